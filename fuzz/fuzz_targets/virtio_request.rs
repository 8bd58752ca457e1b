//! A descriptor chain, and the request in it. The first bytes say how long the ring is and where
//! the chain starts; the rest is the ring and all of guest memory.
#![no_main]

use blockyard_protocol::virtio_blk::{Command, Disk, HEADER_BYTES, Header, Lengths, SEGMENT_BYTES};
use blockyard_protocol::virtio_queue::{
    CHAIN_MAX, Chain, DESCRIPTOR_BYTES, Descriptor, Place, Span, Walk,
};
use libfuzzer_sys::fuzz_target;

const SIZE_BYTES: u64 = 1 << 30;

fuzz_target!(|input: &[u8]| {
    let [ring_log, head, flags, memory @ ..] = input else { return };
    let ring_len = 1 << (ring_log % 11);
    let Ok(mut walk) = Walk::new((*head).into(), ring_len, flags & 1 != 0) else { return };
    let mut chain = Chain::default();
    let mut steps = 0;
    loop {
        let addr = match walk.place() {
            Place::Ring(index) => {
                assert!(index < ring_len);
                u64::from(index) * DESCRIPTOR_BYTES
            }
            Place::Guest(addr) => addr,
        };
        let mut bytes = [0; DESCRIPTOR_BYTES as usize];
        read(memory, addr, &mut bytes);
        steps += 1;
        assert!(steps <= 2 * CHAIN_MAX + 1, "the walk ends");
        match walk.on_descriptor(Descriptor::of(bytes), &mut chain) {
            Ok(true) => {}
            Ok(false) => break,
            Err(_) => return,
        }
    }
    let spans = chain.readable.iter().chain(&chain.writable);
    spans.for_each(|span| assert!(span.addr.checked_add(span.len_bytes.into()).is_some()));
    let Ok(lengths) = Lengths::of(&chain) else { return };
    let bytes = gather(memory, &chain.readable);
    let header = Header::of(bytes[..HEADER_BYTES].try_into().expect("16 bytes"));
    let segment = header.has_segment().then(|| {
        let segment = &bytes[HEADER_BYTES..];
        segment.try_into().expect("16 bytes")
    });
    let disk = Disk {
        size_bytes: SIZE_BYTES,
        block_bytes: if flags & 2 != 0 { 4096 } else { 512 },
        queues: 1,
        read_only: flags & 4 != 0,
        can_discard: flags & 8 != 0,
    };
    let Ok(command) = disk.check(header, segment, lengths) else { return };
    let range = match command {
        Command::Read(range) => {
            assert_eq!(range.len_bytes, lengths.writable_bytes);
            range
        }
        Command::Write(range) => {
            assert_eq!(range.len_bytes, lengths.readable_bytes);
            assert!(!disk.read_only);
            range
        }
        Command::Discard(range) | Command::WriteZeroes(range) => {
            assert!(!disk.read_only);
            range
        }
        Command::Name(len) => return assert!(len as u64 <= lengths.writable_bytes),
        Command::Flush => return,
    };
    assert!(range.len_bytes > 0 && range.offset_bytes + range.len_bytes <= SIZE_BYTES);
    let block = u64::from(disk.block_bytes);
    assert!((range.offset_bytes | range.len_bytes).is_multiple_of(block));
});

/// Copies from guest memory, which repeats.
fn read(memory: &[u8], addr: u64, bytes: &mut [u8]) {
    if memory.is_empty() {
        return;
    }
    let start = (addr % memory.len() as u64) as usize;
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = memory[(start + at) % memory.len()];
    }
}

/// The first bytes of these spans: a header and a segment.
fn gather(memory: &[u8], spans: &[Span]) -> [u8; HEADER_BYTES + SEGMENT_BYTES] {
    let mut bytes = [0; HEADER_BYTES + SEGMENT_BYTES];
    let mut done = 0;
    for span in spans {
        let len = (span.len_bytes as usize).min(bytes.len() - done);
        read(memory, span.addr, &mut bytes[done..done + len]);
        done += len;
    }
    bytes
}
