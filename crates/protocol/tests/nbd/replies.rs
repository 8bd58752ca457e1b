//! Replies, byte by byte, in the three forms.

use blockyard_protocol::nbd::{Errno, Pieces, READ_HEADER_MAX, ReadChunk, ReadFailure, Request};

use crate::client::*;

const COOKIE: [u8; 8] = [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88];

/// A peer and a READ of 4096 bytes at 8192, with these flags.
fn reading(mode: Mode, flags: u16) -> (Peer, Request) {
    let mut peer = opened(small_export(), mode);
    let request = peer.request(&Ask::new(READ, 8192, 4096).flags(flags).bytes(mode));
    (peer, request)
}

fn chunk(request: Request, offset_bytes: u64, len_bytes: u64) -> ReadChunk {
    let first = offset_bytes == request.offset_bytes;
    let last = offset_bytes + len_bytes == request.offset_bytes + request.len_bytes;
    ReadChunk { request, offset_bytes, len_bytes, first, last }
}

fn header(peer: &Peer, chunk: &ReadChunk) -> Vec<u8> {
    let mut bytes = [0xee; READ_HEADER_MAX];
    let len = peer.session.read_header(chunk, &mut bytes);
    bytes[..len].to_vec()
}

fn trailer(peer: &Peer, chunk: &ReadChunk) -> Vec<u8> {
    let mut bytes = Vec::new();
    peer.session.read_trailer(chunk, &mut bytes);
    bytes
}

fn bytes(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

const OFFSET_8192: [u8; 8] = [0, 0, 0, 0, 0, 0, 0x20, 0];

#[test]
fn success_without_data() {
    let (peer, request) = reading(Mode::Simple, 0);
    let mut out = Vec::new();
    peer.session.reply(&request, None, &mut out);
    assert_eq!(out, bytes(&[&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], &COOKIE]));

    let (peer, request) = reading(Mode::Structured, 0);
    out.clear();
    peer.session.reply(&request, None, &mut out);
    let expected = bytes(&[&[0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 0], &COOKIE, &[0; 4]]);
    assert_eq!(out, expected);

    let (peer, request) = reading(Mode::Extended, 0);
    out.clear();
    peer.session.reply(&request, None, &mut out);
    let magic = [0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0, 0];
    assert_eq!(out, bytes(&[&magic, &COOKIE, &OFFSET_8192, &[0; 8]]));
}

#[test]
fn errors_carry_number_and_message() {
    let errors = [
        (Errno::Perm, 1),
        (Errno::Io, 5),
        (Errno::NoMem, 12),
        (Errno::Inval, 22),
        (Errno::NoSpc, 28),
        (Errno::Overflow, 75),
        (Errno::NotSup, 95),
        (Errno::Shutdown, 108),
    ];
    for (errno, number) in errors {
        for mode in MODES {
            let (mut peer, request) = reading(mode, 0);
            peer.session.reply(&request, Some(errno), &mut peer.out);
            assert_eq!(error_of(&peer.out), number);
        }
    }
    let (peer, request) = reading(Mode::Simple, 0);
    let mut out = Vec::new();
    peer.session.reply(&request, Some(Errno::NoSpc), &mut out);
    assert_eq!(out, bytes(&[&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28], &COOKIE]));

    let (peer, request) = reading(Mode::Structured, 0);
    out.clear();
    peer.session.reply(&request, Some(Errno::Io), &mut out);
    let text = b"input/output error";
    let magic = [0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 1];
    let expected = bytes(&[&magic, &COOKIE, &[0, 0, 0, 24], &[0, 0, 0, 5], &[0, 18], text]);
    assert_eq!(out, expected);

    let (peer, request) = reading(Mode::Extended, 0);
    out.clear();
    peer.session.reply(&request, Some(Errno::Io), &mut out);
    let magic = [0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0x80, 1];
    let len = [0, 0, 0, 0, 0, 0, 0, 24];
    let body = bytes(&[&[0, 0, 0, 5, 0, 18], text]);
    assert_eq!(out, bytes(&[&magic, &COOKIE, &OFFSET_8192, &len, &body]));
}

#[test]
fn simple_read_has_one_header() {
    let (peer, request) = reading(Mode::Simple, 0);
    assert_eq!(peer.session.pieces_allowed(&request), Pieces::Ordered);
    let pieces = [chunk(request, 8192, 1024), chunk(request, 9216, 3072)];
    let expected = bytes(&[&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], &COOKIE]);
    assert_eq!(header(&peer, &pieces[0]), expected);
    assert_eq!(header(&peer, &pieces[1]), b"");
    assert_eq!(header(&peer, &chunk(request, 8192, 4096)), expected);
    for piece in &pieces {
        assert_eq!(trailer(&peer, piece), b"");
    }
}

#[test]
fn structured_read_has_a_header_for_each_piece() {
    let (peer, request) = reading(Mode::Structured, 0);
    assert_eq!(peer.session.pieces_allowed(&request), Pieces::Chunks);
    let pieces = [chunk(request, 8192, 1024), chunk(request, 9216, 3072)];
    let front = [0x66, 0x8e, 0x33, 0xef, 0, 0, 0, 1];
    let expected = bytes(&[&front, &COOKIE, &[0, 0, 4, 8], &OFFSET_8192]);
    assert_eq!(header(&peer, &pieces[0]), expected);
    let front = [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1];
    let offset = [0, 0, 0, 0, 0, 0, 0x24, 0];
    let expected = bytes(&[&front, &COOKIE, &[0, 0, 12, 8], &offset]);
    assert_eq!(header(&peer, &pieces[1]), expected);
    for piece in &pieces {
        assert_eq!(trailer(&peer, piece), b"");
    }
}

#[test]
fn extended_read_repeats_the_offset_of_the_request() {
    let (peer, request) = reading(Mode::Extended, 0);
    assert_eq!(peer.session.pieces_allowed(&request), Pieces::Chunks);
    let piece = chunk(request, 9216, 3072);
    let front = [0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0, 1];
    let len = [0, 0, 0, 0, 0, 0, 12, 8];
    let offset = [0, 0, 0, 0, 0, 0, 0x24, 0];
    let expected = bytes(&[&front, &COOKIE, &OFFSET_8192, &len, &offset]);
    assert_eq!(header(&peer, &piece), expected);
}

#[test]
fn unfragmented_read_in_one_piece_is_one_chunk() {
    let (peer, request) = reading(Mode::Structured, DF);
    assert_eq!(peer.session.pieces_allowed(&request), Pieces::Ordered);
    let whole = chunk(request, 8192, 4096);
    let front = [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1];
    let expected = bytes(&[&front, &COOKIE, &[0, 0, 16, 8], &OFFSET_8192]);
    assert_eq!(header(&peer, &whole), expected);
    assert_eq!(trailer(&peer, &whole), b"");
}

#[test]
fn unfragmented_read_in_pieces_is_done_only_behind_the_last() {
    let (peer, request) = reading(Mode::Structured, DF);
    let pieces =
        [chunk(request, 8192, 1024), chunk(request, 9216, 1024), chunk(request, 10_240, 2048)];
    let front = [0x66, 0x8e, 0x33, 0xef, 0, 0, 0, 1];
    let expected = bytes(&[&front, &COOKIE, &[0, 0, 16, 8], &OFFSET_8192]);
    assert_eq!(header(&peer, &pieces[0]), expected);
    assert_eq!(header(&peer, &pieces[1]), b"");
    assert_eq!(header(&peer, &pieces[2]), b"");
    assert_eq!(trailer(&peer, &pieces[0]), b"");
    assert_eq!(trailer(&peer, &pieces[1]), b"");
    let done = bytes(&[&[0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 0], &COOKIE, &[0; 4]]);
    assert_eq!(trailer(&peer, &pieces[2]), done);
}

#[test]
fn zero_holes_only_where_chunks_are_allowed() {
    for (mode, flags) in [(Mode::Simple, 0), (Mode::Structured, DF), (Mode::Extended, DF)] {
        let (peer, request) = reading(mode, flags);
        let mut out = Vec::new();
        assert!(!peer.session.reply_zero_hole(&chunk(request, 8192, 4096), &mut out));
        assert!(out.is_empty());
    }
    let hole = [0, 0, 0, 0, 0, 0, 0x24, 0, 0, 0, 4, 0];
    let (peer, request) = reading(Mode::Structured, 0);
    let mut out = Vec::new();
    assert!(peer.session.reply_zero_hole(&chunk(request, 9216, 1024), &mut out));
    let front = [0x66, 0x8e, 0x33, 0xef, 0, 0, 0, 2];
    assert_eq!(out, bytes(&[&front, &COOKIE, &[0, 0, 0, 12], &hole]));

    let (peer, request) = reading(Mode::Extended, 0);
    out.clear();
    let last = ReadChunk { last: true, ..chunk(request, 9216, 1024) };
    assert!(peer.session.reply_zero_hole(&last, &mut out));
    let front = [0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0, 2];
    let len = [0, 0, 0, 0, 0, 0, 0, 12];
    assert_eq!(out, bytes(&[&front, &COOKIE, &OFFSET_8192, &len, &hole]));
}

#[test]
fn failed_read_that_has_not_begun_is_an_error_reply() {
    for mode in MODES {
        for flags in [0, DF] {
            if mode == Mode::Simple && flags == DF {
                continue;
            }
            let (mut peer, request) = reading(mode, flags);
            let failure = peer.session.read_failed(&request, 9000, false, Errno::Io, &mut peer.out);
            assert_eq!(failure, ReadFailure::Replied);
            assert_eq!(error_of(&peer.out), 5);
        }
    }
}

#[test]
fn failed_read_tells_the_offset_in_chunks() {
    for mode in [Mode::Structured, Mode::Extended] {
        for (at, told) in [(9000, 9000), (0, 8192), (1 << 40, 12_287)] {
            let (mut peer, request) = reading(mode, 0);
            let failure = peer.session.read_failed(&request, at, true, Errno::Io, &mut peer.out);
            assert_eq!(failure, ReadFailure::Replied);
            let reply = &replies(&peer.out)[0];
            assert_eq!((reply.kind, reply.done), (0x8002, true));
            let text_len = usize::from(u16::from_be_bytes([reply.payload[4], reply.payload[5]]));
            assert_eq!(reply.payload.len(), 4 + 2 + text_len + 8);
            assert_eq!(be64(&reply.payload[6 + text_len..]), told);
        }
    }
}

#[test]
fn failed_read_whose_data_was_promised_ends_the_connection() {
    for (mode, flags) in [(Mode::Simple, 0), (Mode::Structured, DF), (Mode::Extended, DF)] {
        let (mut peer, request) = reading(mode, flags);
        let failure = peer.session.read_failed(&request, 9000, true, Errno::Io, &mut peer.out);
        assert_eq!(failure, ReadFailure::MustDisconnect);
        assert!(peer.out.is_empty());
    }
}

#[test]
fn pieces_outside_their_read_are_a_bug_of_the_caller() {
    let (peer, request) = reading(Mode::Structured, 0);
    for (offset_bytes, len_bytes) in [(8192, 0), (8191, 1), (8192, 4097), (12_287, 2), (0, 4096)] {
        let wrong = ReadChunk { request, offset_bytes, len_bytes, first: true, last: true };
        let attempt = std::panic::AssertUnwindSafe(|| header(&peer, &wrong));
        assert!(std::panic::catch_unwind(attempt).is_err(), "{offset_bytes} {len_bytes}");
    }
}

#[test]
fn read_of_nothing_is_a_reply_without_content() {
    for (mode, kind) in [(Mode::Simple, 0), (Mode::Structured, 0), (Mode::Extended, 0)] {
        let mut peer = opened(small_export(), mode);
        peer.feed(&Ask::new(READ, 512, 0).bytes(mode));
        let [reply] = &replies(&peer.out)[..] else { panic!("one reply") };
        assert_eq!((reply.kind, reply.done, reply.error), (kind, true, 0));
        assert!(reply.payload.is_empty());
    }
}
