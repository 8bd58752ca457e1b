//! The NBD session, from the greeting on. The first byte of the input says how the rest is cut into
//! packets, and whether there is TLS; requests that come out are checked as a world relies on them,
//! and answered. Bytes after the start of TLS stand for those that come out of it.
#![no_main]

use std::sync::Arc;

use blockyard_protocol::nbd::{
    Command, DirtyExtent, Errno, Event, Export, Extent, Pieces, READ_HEADER_MAX, ReadChunk,
    Request, Session, Tls,
};
use libfuzzer_sys::fuzz_target;

const SIZE_BYTES: u64 = 1 << 20;
const PIECE_BYTES: usize = 4096;

fuzz_target!(|input: &[u8]| {
    let Some((cut, bytes)) = input.split_first() else { return };
    let mut disk = Export::new("disk", SIZE_BYTES);
    (disk.can_trim, disk.can_fast_zero, disk.multi_conn) = (true, true, true);
    disk.dirty_bitmap = Some("daily".into());
    let mut reader = Export::new("read-only", SIZE_BYTES);
    reader.read_only = true;
    let mut closed = Export::new("closed", 0);
    closed.is_closed = true;
    let session = Session::new(Arc::new([disk, reader, closed]), Some(0));
    let mut session = session.with_tls([Tls::Off, Tls::On, Tls::Require][usize::from(cut % 3)]);
    session.set_piece(512, PIECE_BYTES);
    let mut sent = Vec::new();
    session.greeting(&mut sent);
    // As a world does: what was not consumed is passed again with more behind.
    let packet = usize::from(*cut).max(1);
    let mut start = 0;
    let mut end = 0;
    while end < bytes.len() {
        end = (end + packet).min(bytes.len());
        match drain(&mut session, &bytes[start..end], &mut sent) {
            Some(consumed) => start += consumed,
            None => return,
        }
        sent.clear();
    }
});

/// Takes events until the session wants more; nothing when the connection is over.
fn drain(session: &mut Session, bytes: &[u8], sent: &mut Vec<u8>) -> Option<usize> {
    let mut at = 0;
    loop {
        let step = session.on_bytes(&bytes[at..], sent);
        at += step.consumed;
        assert!(at <= bytes.len(), "it consumed more than there was");
        match step.event {
            Event::NeedMore => return Some(at),
            Event::Closed | Event::Broken(_) => return None,
            Event::Request(request) => {
                assert!(step.consumed > 0);
                answer(session, &request, sent);
            }
            Event::Payload { offset_bytes, len_bytes, .. } => {
                assert!(len_bytes > 0 && len_bytes <= step.consumed && len_bytes <= PIECE_BYTES);
                assert!(offset_bytes + len_bytes as u64 <= SIZE_BYTES, "payload behind the end");
            }
            Event::StartTls => {
                assert!(!session.is_transmission());
                assert_eq!(at, bytes.len(), "bytes in the clear would enter TLS");
            }
            // By turns.
            Event::Asked(index) if sent.len().is_multiple_of(2) => {
                assert_eq!(index, 2, "the others are open");
                session.opened(index, Export::new("closed", SIZE_BYTES));
            }
            Event::Asked(index) => session.refused(index),
            Event::Continue | Event::Opened(_) => assert!(step.consumed > 0, "it does not move"),
        }
    }
}

fn answer(session: &Session, request: &Request, sent: &mut Vec<u8>) {
    let end = request.offset_bytes.checked_add(request.len_bytes).expect("a range that fits");
    assert!(end <= SIZE_BYTES, "a request behind the end");
    assert!(request.len_bytes > 0 || request.command == Command::Flush);
    if session.export() == Some(1) {
        let writes = [Command::Write, Command::Trim, Command::WriteZeroes];
        assert!(!writes.contains(&request.command), "a write to a read-only export");
    }
    match request.command {
        Command::Read if request.cookie % 5 == 0 => {
            let _ = session.read_failed(request, request.offset_bytes, false, Errno::Io, sent);
        }
        Command::Read => read(session, request, sent),
        Command::BlockStatus => {
            let hole = Extent { len_bytes: 700, hole: true, zero: true };
            let extents = [hole, Extent::unknown(request.cookie | 1)];
            let count = usize::try_from(request.cookie % 3).expect("small");
            let dirty = [false, true].map(|is_dirty| DirtyExtent { len_bytes: 900, is_dirty });
            session.block_status(request, &extents[..count], &dirty[..count.min(1)], sent);
        }
        Command::Write => {}
        _ => session.reply(request, None, sent),
    }
}

/// In two pieces, the second one a hole where that may be said.
fn read(session: &Session, request: &Request, sent: &mut Vec<u8>) {
    let half = (request.len_bytes / 2).max(1);
    let piece = |offset: u64, len_bytes: u64, first, last| ReadChunk {
        request: *request,
        offset_bytes: request.offset_bytes + offset,
        len_bytes,
        first,
        last,
    };
    let mut header = [0; READ_HEADER_MAX];
    let whole = half == request.len_bytes;
    assert!(session.read_header(&piece(0, half, true, whole), &mut header) <= READ_HEADER_MAX);
    if whole {
        return;
    }
    let rest = piece(half, request.len_bytes - half, false, true);
    if session.pieces_allowed(request) == Pieces::Chunks && session.reply_zero_hole(&rest, sent) {
        return;
    }
    assert!(session.read_header(&rest, &mut header) <= READ_HEADER_MAX);
    session.read_trailer(&rest, sent);
}
