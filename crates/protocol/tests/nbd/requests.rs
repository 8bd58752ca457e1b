//! Requests: those that reach the world, and those that the session answers.

use blockyard_protocol::nbd::{Command, Contexts, Export, Request, Violation};

use crate::client::*;

const SIZE: u64 = 1 << 20;

const EPERM: u32 = 1;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const EOVERFLOW: u32 = 75;
const ENOTSUP: u32 = 95;

fn plain(command: Command, offset_bytes: u64, len_bytes: u64) -> Request {
    Request {
        cookie: 0x1122_3344_5566_7788,
        command,
        offset_bytes,
        len_bytes,
        fua: false,
        no_hole: false,
        fast_zero: false,
        dont_fragment: false,
        req_one: false,
        contexts: Contexts { allocation: command == Command::BlockStatus, dirty: false },
    }
}

/// Asserts that the request is answered with this error, and the one after it is understood.
fn refused(peer: &mut Peer, bytes: &[u8], mode: Mode, errno: u32) {
    peer.out.clear();
    peer.feed(bytes);
    assert_eq!(peer.take_seen(), [], "must not reach the world: {bytes:02x?}");
    assert_eq!(error_of(&peer.take_out()), errno, "{bytes:02x?}");
    in_step(peer, mode);
}

fn in_step(peer: &mut Peer, mode: Mode) {
    let request = peer.request(&Ask::new(READ, 4096, 512).cookie(7).bytes(mode));
    assert_eq!(request, Request { cookie: 7, ..plain(Command::Read, 4096, 512) });
}

fn broken(peer: &mut Peer) -> Violation {
    match peer.take_seen()[..] {
        [SessionOutput::Broken(violation)] => violation,
        ref other => panic!("expected a broken connection, got {other:?}"),
    }
}

#[test]
fn every_command_arrives_with_its_fields_and_flags() {
    use Command::*;
    let base = |command| plain(command, 8192, 4096);
    for mode in MODES {
        let mut peer = opened(small_export(), mode);
        let fua = |request: Request| Request { fua: true, ..request };
        let mut cases = vec![
            (READ, 0, base(Read)),
            (READ, FUA, fua(base(Read))),
            (TRIM, 0, base(Trim)),
            (TRIM, FUA, fua(base(Trim))),
            (CACHE, 0, base(Cache)),
            (CACHE, FUA, fua(base(Cache))),
            (WRITE_ZEROES, 0, base(WriteZeroes)),
            (WRITE_ZEROES, FUA | NO_HOLE, Request { no_hole: true, ..fua(base(WriteZeroes)) }),
            (WRITE_ZEROES, FAST_ZERO, Request { fast_zero: true, ..base(WriteZeroes) }),
        ];
        if mode != Mode::Simple {
            cases.push((READ, DF, Request { dont_fragment: true, ..base(Read) }));
            cases.push((BLOCK_STATUS, 0, base(BlockStatus)));
            cases.push((BLOCK_STATUS, REQ_ONE, Request { req_one: true, ..base(BlockStatus) }));
        }
        for (command, flags, expected) in cases {
            let bytes = Ask::new(command, 8192, 4096).flags(flags).bytes(mode);
            assert_eq!(peer.request(&bytes), expected);
        }
        let flush = peer.request(&Ask::new(FLUSH, 0, 0).flags(FUA).bytes(mode));
        assert_eq!(flush, fua(plain(Flush, 0, 0)));
        assert!(peer.out.is_empty(), "the world answers these");
    }
}

#[test]
fn headers_are_read_byte_by_byte_as_specified() {
    let compact = [
        0x25, 0x60, 0x95, 0x13, 0, 1, 0, 4, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x20, 0, 0,
        0, 0x10, 0,
    ];
    let extended = [
        0x21, 0xe4, 0x1c, 0x71, 0, 1, 0, 4, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x20, 0, 0,
        0, 0, 0, 0, 0, 0x10, 0,
    ];
    let expected = Request {
        cookie: 0x0102_0304_0506_0708,
        fua: true,
        ..plain(Command::Trim, 0x2000, 0x1000)
    };
    assert_eq!(opened(small_export(), Mode::Simple).request(&compact), expected);
    assert_eq!(opened(small_export(), Mode::Structured).request(&compact), expected);
    assert_eq!(opened(small_export(), Mode::Extended).request(&extended), expected);
}

#[test]
fn write_payload_arrives_in_place_and_the_next_request_behind_it() {
    for mode in MODES {
        let mut peer = opened(small_export(), mode);
        let data: Vec<u8> = (0..5000_u32).map(|i| i as u8).collect();
        let mut bytes = Ask::new(WRITE, 100, 5000).flags(FUA).bytes(mode);
        bytes.extend_from_slice(&data);
        bytes.extend_from_slice(&Ask::new(DISC, 0, 0).bytes(mode));
        peer.feed(&bytes);
        let write = Request { fua: true, ..plain(Command::Write, 100, 5000) };
        let expected = [
            SessionOutput::Request(write),
            SessionOutput::Payload { offset: 100, data, last: true },
            SessionOutput::Closed,
        ];
        assert_eq!(peer.take_seen(), expected);
    }
}

#[test]
fn payload_pieces_end_on_multiples_and_stay_below_the_maximum() {
    use blockyard_protocol::nbd::{Event, Step};
    let mut peer = opened(small_export(), Mode::Simple);
    peer.session.set_piece(4096, 8192);
    let mut out = Vec::new();
    let header = Ask::new(WRITE, 1000, 20_000).bytes(Mode::Simple);
    let step = peer.session.on_bytes(&header, &mut out);
    assert_eq!(step.consumed, 28);
    let data = vec![1; 30_000];
    // Available bytes, offset and length of the piece, whether it is the last one.
    let steps = [
        (0, None),
        (3095, None),
        (3097, Some((1000, 3096, false))),
        (4095, None),
        (30_000, Some((4096, 8192, false))),
        (8191, Some((12_288, 4096, false))),
        (4615, Some((16_384, 4096, false))),
        (519, None),
        (30_000, Some((20_480, 520, true))),
    ];
    for (here, expected) in steps {
        let step = peer.session.on_bytes(&data[..here], &mut out);
        let expected = match expected {
            None => Step { consumed: 0, event: Event::NeedMore },
            Some((offset_bytes, len_bytes, last)) => Step {
                consumed: len_bytes,
                event: Event::Payload { offset_bytes, len_bytes, last },
            },
        };
        assert_eq!(step, expected, "with {here} bytes there");
    }
}

#[test]
fn disc_is_silent_and_final_but_earlier_requests_can_be_answered() {
    for mode in MODES {
        let mut peer = opened(small_export(), mode);
        let request = peer.request(&Ask::new(FLUSH, 0, 0).bytes(mode));
        peer.feed(&Ask::new(DISC, 0, 0).bytes(mode));
        peer.feed(&Ask::new(READ, 0, 512).bytes(mode));
        assert_eq!(peer.take_seen(), [SessionOutput::Closed, SessionOutput::Closed]);
        assert!(peer.out.is_empty());
        peer.session.reply(&request, None, &mut peer.out);
        assert_eq!(replies(&peer.out).len(), 1);
    }
}

#[test]
fn wrong_request_magic_breaks_the_connection_before_the_header_is_complete() {
    for (mode, magic) in [
        (Mode::Simple, 0x21e4_1c71_u32),
        (Mode::Structured, 0x1256_0953),
        (Mode::Extended, 0x2560_9513),
    ] {
        let mut peer = opened(small_export(), mode);
        peer.feed(&magic.to_be_bytes());
        assert_eq!(broken(&mut peer), Violation::RequestMagic(magic));
        let mut peer = opened(small_export(), mode);
        let mut bytes = Ask::new(READ, 0, 512).bytes(mode);
        bytes[..4].copy_from_slice(&magic.to_be_bytes());
        peer.feed(&bytes);
        assert_eq!(broken(&mut peer), Violation::RequestMagic(magic));
        assert!(peer.out.is_empty());
    }
}

#[test]
fn unknown_commands_are_refused_in_step() {
    for mode in MODES {
        let mut peer = opened(small_export(), mode);
        for command in [8, 9, 255, 0x0100, u16::MAX] {
            refused(&mut peer, &Ask::new(command, 0, 512).bytes(mode), mode, EINVAL);
        }
    }
}

#[test]
fn flags_that_a_command_does_not_have_are_refused_in_step() {
    for mode in MODES {
        let mut peer = opened(small_export(), mode);
        let df = if mode == Mode::Simple { 0 } else { DF };
        let allowed = [
            (READ, FUA | df),
            (FLUSH, FUA),
            (TRIM, FUA),
            (CACHE, FUA),
            (WRITE_ZEROES, FUA | NO_HOLE | FAST_ZERO),
            (BLOCK_STATUS, FUA | REQ_ONE),
        ];
        for (command, allowed) in allowed {
            for flag in (0..16).map(|bit| 1 << bit).filter(|flag| allowed & flag == 0) {
                if mode == Mode::Extended && flag == PAYLOAD_LEN {
                    continue; // with payload, see below
                }
                let len = if command == FLUSH { 0 } else { 512 };
                let ask = Ask::new(command, 0, len).flags(flag | FUA);
                refused(&mut peer, &ask.bytes(mode), mode, EINVAL);
            }
        }
    }
}

#[test]
fn refused_writes_are_drained() {
    for mode in MODES {
        for (flags, offset, len, errno) in [
            (NO_HOLE, 0, 3000, EINVAL),
            (DF, 0, 3000, EINVAL),
            (1 << 15, 0, 3000, EINVAL),
            (0, SIZE, 1, ENOSPC),
            (0, SIZE - 2999, 3000, ENOSPC),
            (0, u64::MAX, 3000, ENOSPC),
            (0, u64::MAX - 2999, 3000, ENOSPC),
        ] {
            let mut peer = opened(small_export(), mode);
            let mut bytes = Ask::new(WRITE, offset, len).flags(flags).bytes(mode);
            peer.feed(&bytes);
            assert!(peer.out.is_empty(), "the reply comes behind the payload");
            bytes = vec![0x25; len as usize];
            refused(&mut peer, &bytes, mode, errno);
        }
    }
}

#[test]
fn compact_payload_flag_is_an_unknown_flag() {
    for mode in [Mode::Simple, Mode::Structured] {
        let mut peer = opened(small_export(), mode);
        let ask = Ask::new(READ, 0, 512).flags(PAYLOAD_LEN);
        refused(&mut peer, &ask.bytes(mode), mode, EINVAL);
        let mut bytes = Ask::new(WRITE, 0, 512).flags(PAYLOAD_LEN).bytes(mode);
        bytes.extend_from_slice(&[0; 512]);
        refused(&mut peer, &bytes, mode, EINVAL);
    }
}

#[test]
fn extended_payload_of_any_command_is_drained() {
    let mode = Mode::Extended;
    for command in [READ, FLUSH, TRIM, CACHE, WRITE_ZEROES, BLOCK_STATUS, 8, 999] {
        for len in [0, 1, 11, 13, 4096] {
            let mut peer = opened(small_export(), mode);
            let mut bytes = Ask::new(command, 0, len).flags(PAYLOAD_LEN).bytes(mode);
            bytes.extend(std::iter::repeat_n(0x21, len as usize));
            refused(&mut peer, &bytes, mode, EINVAL);
        }
    }
}

/// QEMU 10.0 sends this.
#[test]
fn extended_write_that_does_not_announce_its_payload_has_one() {
    let mut peer = opened(small_export(), Mode::Extended);
    let request = peer.request(&Ask::new(WRITE, 4096, 512).raw(Mode::Extended));
    assert_eq!((request.offset_bytes, request.len_bytes), (4096, 512));
    peer.feed(&[7; 512]);
    assert!(matches!(peer.take_seen()[..], [SessionOutput::Payload { .. }]));
}

#[test]
fn ranges_outside_the_export_are_refused() {
    let outside = [
        (SIZE, 1),
        (SIZE - 1, 2),
        (0, SIZE + 1),
        (SIZE + 1, 0),
        (u64::MAX, 1),
        (u64::MAX, u32::MAX as u64),
        (1, u32::MAX as u64),
    ];
    for mode in MODES {
        let mut peer = opened(small_export(), mode);
        for (offset, len) in outside {
            for (command, errno) in
                [(READ, EINVAL), (TRIM, EINVAL), (CACHE, EINVAL), (WRITE_ZEROES, ENOSPC)]
            {
                refused(&mut peer, &Ask::new(command, offset, len).bytes(mode), mode, errno);
            }
            let status = Ask::new(BLOCK_STATUS, offset, len).bytes(mode);
            refused(&mut peer, &status, mode, EINVAL);
        }
    }
    let mut peer = opened(small_export(), Mode::Extended);
    for (offset, len) in [(0, u64::MAX), (u64::MAX, u64::MAX), (1, u64::MAX), (512, 1 << 63)] {
        let bytes = Ask::new(WRITE_ZEROES, offset, len).bytes(Mode::Extended);
        refused(&mut peer, &bytes, Mode::Extended, ENOSPC);
    }
}

#[test]
fn ranges_up_to_the_last_byte_are_served() {
    for mode in MODES {
        let mut peer = opened(small_export(), mode);
        for (offset, len) in [(0, SIZE), (SIZE - 1, 1)] {
            let request = peer.request(&Ask::new(READ, offset, len).bytes(mode));
            assert_eq!(request, plain(Command::Read, offset, len));
        }
    }
}

#[test]
fn ranges_of_length_zero_succeed_without_the_world() {
    for mode in MODES {
        let mut peer = opened(small_export(), mode);
        for command in [READ, WRITE, TRIM, CACHE, WRITE_ZEROES] {
            for offset in [0, 512, SIZE] {
                refused(&mut peer, &Ask::new(command, offset, 0).bytes(mode), mode, 0);
            }
        }
        refused(&mut peer, &Ask::new(BLOCK_STATUS, 0, 0).bytes(mode), mode, EINVAL);
        refused(&mut peer, &Ask::new(WRITE, SIZE + 1, 0).bytes(mode), mode, ENOSPC);
    }
}

#[test]
fn read_only_export_refuses_what_writes() {
    for mode in MODES {
        let mut peer = opened(Export { read_only: true, ..small_export() }, mode);
        for (command, flags) in
            [(TRIM, 0), (WRITE_ZEROES, 0), (WRITE_ZEROES, FAST_ZERO), (WRITE, FUA)]
        {
            let mut bytes = Ask::new(command, 0, 4096).flags(flags).bytes(mode);
            if command == WRITE {
                bytes.extend_from_slice(&[0x67; 4096]);
            }
            refused(&mut peer, &bytes, mode, EPERM);
        }
        peer.request(&Ask::new(FLUSH, 0, 0).bytes(mode));
    }
}

#[test]
fn trim_that_is_not_offered_is_refused() {
    let mut peer = opened(Export { can_trim: false, ..small_export() }, Mode::Simple);
    let bytes = Ask::new(TRIM, 0, 4096).bytes(Mode::Simple);
    refused(&mut peer, &bytes, Mode::Simple, EINVAL);
}

#[test]
fn fast_zero_that_is_not_fast_says_so() {
    let mut peer = opened(Export { can_fast_zero: false, ..small_export() }, Mode::Structured);
    let ask = Ask::new(WRITE_ZEROES, 0, 4096);
    refused(&mut peer, &ask.flags(FAST_ZERO).bytes(Mode::Simple), Mode::Structured, ENOTSUP);
    peer.request(&ask.bytes(Mode::Structured));
    // Where holes are fast, zeroes without holes are not.
    let mut peer = opened(Export { can_fast_zero: true, ..small_export() }, Mode::Structured);
    let both = ask.flags(FAST_ZERO | NO_HOLE).bytes(Mode::Structured);
    refused(&mut peer, &both, Mode::Structured, ENOTSUP);
}

#[test]
fn flush_with_a_range_is_refused() {
    let mut peer = opened(small_export(), Mode::Simple);
    for (offset, len) in [(0, 512), (512, 0), (512, 512), (u64::MAX, 0)] {
        let bytes = Ask::new(FLUSH, offset, len).bytes(Mode::Simple);
        refused(&mut peer, &bytes, Mode::Simple, EINVAL);
    }
}

#[test]
fn unaligned_requests_are_refused_where_a_client_has_asked_for_the_minimum_block() {
    let mut export = small_export();
    export.block_min_bytes = 4096;
    // A client that has not asked counts in bytes.
    let mut peer = opened(export.clone(), Mode::Structured);
    peer.request(&Ask::new(WRITE_ZEROES, 512, 512).bytes(Mode::Structured));
    let mut peer = opened_asking(export, Mode::Structured, &[3]);
    for (offset, len) in [(1, 4096), (0, 4095), (512, 512), (4096, 512)] {
        let bytes = Ask::new(WRITE_ZEROES, offset, len).bytes(Mode::Structured);
        peer.feed(&bytes);
        assert_eq!(error_of(&peer.take_out()), EINVAL);
        let mut bytes = Ask::new(WRITE, offset, len).bytes(Mode::Structured);
        bytes.extend(std::iter::repeat_n(0, len as usize));
        peer.feed(&bytes);
        assert_eq!(error_of(&peer.take_out()), EINVAL);
    }
    assert_eq!(peer.take_seen(), []);
    peer.request(&Ask::new(READ, 4096, 8192).bytes(Mode::Structured));
}

fn big_export(block_max_bytes: u32) -> Export {
    Export { block_max_bytes, ..Export::new("disk", 1 << 40) }
}

#[test]
fn reads_above_the_limit_are_refused_without_losing_step() {
    let limit = 32 << 20;
    for (mode, errno) in
        [(Mode::Simple, EINVAL), (Mode::Structured, EOVERFLOW), (Mode::Extended, EOVERFLOW)]
    {
        let mut peer = opened(big_export(limit), mode);
        peer.request(&Ask::new(READ, 0, u64::from(limit)).bytes(mode));
        for len in [u64::from(limit) + 1, u64::from(u32::MAX)] {
            refused(&mut peer, &Ask::new(READ, 0, len).bytes(mode), mode, errno);
        }
    }
    let mut peer = opened(big_export(limit), Mode::Extended);
    for len in [1 << 32, 1 << 40] {
        let bytes = Ask::new(READ, 0, len).bytes(Mode::Extended);
        refused(&mut peer, &bytes, Mode::Extended, EOVERFLOW);
    }
}

#[test]
fn unlimited_reads_still_fit_the_length_of_a_chunk() {
    let mut peer = opened(big_export(u32::MAX), Mode::Structured);
    let longest = u64::from(u32::MAX) - 8;
    peer.request(&Ask::new(READ, 0, longest).bytes(Mode::Structured));
    let bytes = Ask::new(READ, 0, longest + 1).bytes(Mode::Structured);
    refused(&mut peer, &bytes, Mode::Structured, EOVERFLOW);
}

#[test]
fn limits_below_32_mib_hold_only_for_clients_that_asked_for_them() {
    for (infos, longest) in [(&[][..], 32 << 20), (&[3][..], 1 << 20)] {
        let mut peer = Peer::haggling(vec![big_export(1 << 20)]);
        peer.haggle(GO, &info_data("disk", infos));
        peer.seen.clear();
        peer.request(&Ask::new(READ, 0, longest).bytes(Mode::Simple));
        let bytes = Ask::new(READ, 0, longest + 1).bytes(Mode::Simple);
        refused(&mut peer, &bytes, Mode::Simple, EINVAL);
        let write = peer.request(&Ask::new(WRITE, 0, longest).bytes(Mode::Simple));
        assert_eq!(write, plain(Command::Write, 0, longest));
    }
}

#[test]
fn writes_above_the_limit_are_drained_up_to_64_mib_and_broken_beyond() {
    for mode in MODES {
        let mut peer = opened(big_export(32 << 20), mode);
        peer.feed(&Ask::new(WRITE, 0, 64 << 20).bytes(mode));
        let part = vec![0x25; 1 << 20];
        for _ in 0..63 {
            peer.feed(&part);
            assert!(peer.out.is_empty());
        }
        refused(&mut peer, &part, mode, EINVAL);

        peer.feed(&Ask::new(WRITE, 0, (64 << 20) + 1).bytes(mode));
        assert_eq!(broken(&mut peer), Violation::PayloadTooLong((64 << 20) + 1));
        assert!(peer.out.is_empty());
    }
    for command in [READ, WRITE, BLOCK_STATUS, 999] {
        let mut peer = opened(big_export(32 << 20), Mode::Extended);
        let ask = Ask::new(command, 0, u64::MAX).flags(PAYLOAD_LEN);
        peer.feed(&ask.bytes(Mode::Extended));
        assert_eq!(broken(&mut peer), Violation::PayloadTooLong(u64::MAX));
    }
}

#[test]
fn commands_without_payload_take_64_bit_lengths() {
    let mut peer = opened(Export { can_trim: true, ..big_export(1 << 20) }, Mode::Extended);
    for (command, expected) in [
        (TRIM, Command::Trim),
        (CACHE, Command::Cache),
        (WRITE_ZEROES, Command::WriteZeroes),
        (BLOCK_STATUS, Command::BlockStatus),
    ] {
        let request = peer.request(&Ask::new(command, 4096, 5 << 32).bytes(Mode::Extended));
        assert_eq!(request, plain(expected, 4096, 5 << 32));
    }
}

#[test]
fn block_status_without_a_context_is_refused() {
    for mode in MODES {
        let mut peer = Peer::haggling(vec![small_export()]);
        match mode {
            Mode::Simple => {}
            Mode::Structured => assert_eq!(peer.haggle_one(STRUCTURED_REPLY, &[]), ACK),
            Mode::Extended => assert_eq!(peer.haggle_one(EXTENDED_HEADERS, &[]), ACK),
        }
        peer.haggle(GO, &info_data("disk", &[]));
        peer.seen.clear();
        refused(&mut peer, &Ask::new(BLOCK_STATUS, 0, 512).bytes(mode), mode, EINVAL);
        if mode == Mode::Extended {
            refused(&mut peer, &status_filter(512, &[1]), mode, EINVAL);
        }
    }
}

/// BLOCK_STATUS in its payload form.
fn status_filter(len: u64, ids: &[u32]) -> Vec<u8> {
    let payload_len = 8 + 4 * ids.len() as u64;
    let ask = Ask::new(BLOCK_STATUS, 1024, payload_len).flags(PAYLOAD_LEN | REQ_ONE);
    let mut bytes = ask.bytes(Mode::Extended);
    bytes.extend_from_slice(&len.to_be_bytes());
    for id in ids {
        bytes.extend_from_slice(&id.to_be_bytes());
    }
    bytes
}

#[test]
fn block_status_payload_selects_the_negotiated_context() {
    let mut peer = opened(small_export(), Mode::Extended);
    let bytes = status_filter(8192, &[1]);
    let (front, end) = bytes.split_at(43);
    peer.feed(front);
    assert_eq!(peer.take_seen(), []);
    let expected = Request { req_one: true, ..plain(Command::BlockStatus, 1024, 8192) };
    assert_eq!(peer.request(end), expected);
    for (len, ids) in [
        (512, &[][..]),
        (512, &[0]),
        (512, &[2]),
        (512, &[1, 1]),
        (512, &[1, 2]),
        (SIZE, &[1]),
        (u64::MAX, &[1]),
        (0, &[1]),
    ] {
        refused(&mut peer, &status_filter(len, ids), Mode::Extended, EINVAL);
    }
}

#[test]
fn equal_cookies_are_the_clients_matter() {
    let mut peer = opened(small_export(), Mode::Structured);
    for offset in [0, 512] {
        let request = peer.request(&Ask::new(READ, offset, 512).cookie(9).bytes(Mode::Simple));
        assert_eq!((request.cookie, request.offset_bytes), (9, offset));
    }
}
