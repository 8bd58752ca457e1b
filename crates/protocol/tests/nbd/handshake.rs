//! Options, byte by byte.

use blockyard_protocol::nbd::{Export, Violation};

use crate::client::*;

fn two_exports() -> Vec<Export> {
    let mut disk = small_export();
    disk.description = "the first".into();
    let mut other = Export::new("other", 8 << 30);
    other.read_only = true;
    other.can_trim = true; // not offered on a read-only export
    other.rotational = true;
    other.multi_conn = true;
    vec![disk, other]
}

/// HAS_FLAGS, FLUSH, FUA, TRIM, WRITE_ZEROES, CACHE, FAST_ZERO.
const DISK_FLAGS: u16 = 1 | 4 | 8 | 32 | 64 | 1024 | 2048;
/// HAS_FLAGS, READ_ONLY, FLUSH, FUA, ROTATIONAL, MULTI_CONN, CACHE.
const OTHER_FLAGS: u16 = 1 | 2 | 4 | 8 | 16 | 256 | 1024;
const SEND_DF: u16 = 128;
const STATUS_PAYLOAD: u16 = 4096;

fn info_export(size: u64, flags: u16) -> (u32, Vec<u8>) {
    let mut data = vec![0, 0];
    data.extend_from_slice(&size.to_be_bytes());
    data.extend_from_slice(&flags.to_be_bytes());
    (REP_INFO, data)
}

fn broken(peer: &mut Peer) -> Violation {
    match peer.take_seen()[..] {
        [SessionOutput::Broken(violation)] => violation,
        ref other => panic!("expected a broken connection, got {other:?}"),
    }
}

#[test]
fn greeting_is_fixed_newstyle_without_zeroes() {
    let peer = serve(two_exports());
    let mut out = Vec::new();
    peer.session.greeting(&mut out);
    assert_eq!(out, b"NBDMAGICIHAVEOPT\0\x03");
}

#[test]
fn unknown_client_flags_break_the_connection() {
    for flags in [4_u32, 1 << 16, 0x8000_0003, u32::MAX] {
        let mut peer = serve(two_exports());
        peer.feed(&flags.to_be_bytes());
        assert_eq!(broken(&mut peer), Violation::ClientFlags(flags));
        assert!(peer.out.is_empty());
    }
}

#[test]
fn plain_newstyle_client_gets_its_export_and_nothing_else() {
    let mut peer = serve(two_exports());
    peer.feed(&[0, 0, 0, 0]);
    peer.feed(&option(EXPORT_NAME, b"other"));
    assert_eq!(peer.take_seen(), [SessionOutput::Opened(1)]);

    let mut peer = serve(two_exports());
    peer.feed(&[0, 0, 0, 2]);
    peer.feed(&option(LIST, &[]));
    assert_eq!(broken(&mut peer), Violation::NotFixedNewstyle(3));
}

#[test]
fn export_name_sends_size_flags_and_124_zeroes() {
    let mut peer = serve(two_exports());
    peer.feed(&[0, 0, 0, 1]);
    peer.feed(&option(EXPORT_NAME, b"other"));
    assert_eq!(peer.take_seen(), [SessionOutput::Opened(1)]);
    let mut expected = (8_u64 << 30).to_be_bytes().to_vec();
    expected.extend_from_slice(&OTHER_FLAGS.to_be_bytes());
    expected.extend_from_slice(&[0; 124]);
    assert_eq!(peer.out, expected);
}

#[test]
fn export_name_with_no_zeroes_sends_ten_bytes() {
    let mut peer = Peer::haggling(two_exports());
    peer.feed(&option(EXPORT_NAME, b""));
    assert_eq!(peer.take_seen(), [SessionOutput::Opened(0)]);
    let mut expected = (1_u64 << 20).to_be_bytes().to_vec();
    expected.extend_from_slice(&DISK_FLAGS.to_be_bytes());
    assert_eq!(peer.out, expected);
}

#[test]
fn export_name_of_unknown_export_breaks_the_connection() {
    for name in [&b"Disk"[..], b"disk\0", b"\xff", &[b'a'; 4096]] {
        let mut peer = Peer::haggling(two_exports());
        peer.feed(&option(EXPORT_NAME, name));
        assert_eq!(broken(&mut peer), Violation::UnknownExport);
        assert!(peer.out.is_empty());
    }
    let mut peer = Peer::new(two_exports(), None);
    peer.feed(&client_flags());
    peer.feed(&option(EXPORT_NAME, b""));
    assert_eq!(broken(&mut peer), Violation::UnknownExport);
}

#[test]
fn export_name_after_extended_headers_breaks_the_connection() {
    let mut peer = Peer::haggling(two_exports());
    assert_eq!(peer.haggle_one(EXTENDED_HEADERS, &[]), ACK);
    peer.feed(&option(EXPORT_NAME, b"disk"));
    assert_eq!(broken(&mut peer), Violation::ExportNameAfterExtended);
}

#[test]
fn abort_is_acknowledged_with_or_without_data() {
    for data in [&b""[..], b"bye", &[7; 100_000]] {
        let mut peer = Peer::haggling(two_exports());
        assert_eq!(peer.haggle(ABORT, data), [(ACK, vec![])]);
        assert_eq!(peer.take_seen(), [SessionOutput::Closed]);
        peer.feed(&option(LIST, &[]));
        assert_eq!(peer.take_seen(), [SessionOutput::Closed]);
        assert!(peer.out.is_empty(), "nothing is said after goodbye");
    }
}

#[test]
fn list_names_every_export_with_its_description() {
    let mut peer = Peer::haggling(two_exports());
    let expected = [
        (SERVER, b"\0\0\0\x04diskthe first".to_vec()),
        (SERVER, b"\0\0\0\x05other".to_vec()),
        (ACK, vec![]),
    ];
    assert_eq!(peer.haggle(LIST, &[]), expected);
}

#[test]
fn options_without_data_refuse_data_and_go_on() {
    for number in [LIST, STRUCTURED_REPLY, EXTENDED_HEADERS] {
        for len in [1, 100_000] {
            let mut peer = Peer::haggling(two_exports());
            assert_eq!(peer.haggle_one(number, &vec![0; len]), ERR_INVALID);
            assert_eq!(peer.haggle(LIST, &[]).len(), 3);
        }
    }
}

#[test]
fn unknown_options_are_refused_and_their_data_skipped() {
    for number in [0, PEEK_EXPORT, 12, 0x7fff_ffff, u32::MAX] {
        for len in [0, 1, 70_000, 1 << 20] {
            let mut peer = Peer::haggling(two_exports());
            assert_eq!(peer.haggle_one(number, &vec![0x55; len]), ERR_UNSUP);
            assert_eq!(peer.haggle(LIST, &[]).len(), 3);
        }
    }
}

#[test]
fn starttls_is_refused_and_negotiated_state_stays() {
    let mut peer = Peer::haggling(two_exports());
    let no_tls = b"this server does not offer TLS".to_vec();
    assert_eq!(peer.haggle(STARTTLS, &[]), [(ERR_UNSUP, no_tls)]);
    assert_eq!(peer.haggle_one(STRUCTURED_REPLY, &[]), ACK);
    assert_eq!(peer.haggle_one(STARTTLS, b"x"), ERR_UNSUP);
    let replies = peer.haggle(GO, &info_data("disk", &[]));
    assert_eq!(replies[0], info_export(1 << 20, DISK_FLAGS | SEND_DF));
}

#[test]
fn go_answers_export_info_and_opens() {
    let mut peer = Peer::haggling(two_exports());
    let replies = peer.haggle(GO, &info_data("other", &[]));
    assert_eq!(replies, [info_export(8 << 30, OTHER_FLAGS), (ACK, vec![])]);
    assert_eq!(peer.take_seen(), [SessionOutput::Opened(1)]);
}

#[test]
fn info_answers_what_was_asked_for_and_does_not_open() {
    let mut peer = Peer::haggling(two_exports());
    let replies = peer.haggle(INFO, &info_data("", &[3, 0, 999, 2, 1, 3]));
    let expected = [
        info_export(1 << 20, DISK_FLAGS),
        (REP_INFO, b"\0\x01disk".to_vec()),
        (REP_INFO, b"\0\x02the first".to_vec()),
        (REP_INFO, vec![0, 3, 0, 0, 0, 1, 0, 0, 0x10, 0, 2, 0, 0, 0]),
        (ACK, vec![]),
    ];
    assert_eq!(replies, expected);
    assert!(peer.take_seen().is_empty());
    assert!(!peer.session.is_transmission());
    assert_eq!(peer.session.export(), None);
}

#[test]
fn unusual_block_sizes_are_told_without_being_asked() {
    let told = |export| Peer::haggling(vec![export]).haggle(GO, &info_data("disk", &[]));
    let larger_min = Export { block_min_bytes: 512, ..small_export() };
    let sizes = (REP_INFO, vec![0, 3, 0, 0, 2, 0, 0, 0, 0x10, 0, 2, 0, 0, 0]);
    assert_eq!(told(larger_min)[1], sizes);
    let smaller_max = Export { block_max_bytes: 1 << 20, ..small_export() };
    let sizes = (REP_INFO, vec![0, 3, 0, 0, 0, 1, 0, 0, 0x10, 0, 0, 0x10, 0, 0]);
    assert_eq!(told(smaller_max)[1], sizes);
    // Every client may send 32 MiB, whatever larger limit there is.
    let larger_max = Export { block_max_bytes: 64 << 20, ..small_export() };
    assert_eq!(told(larger_max).len(), 2);
}

#[test]
fn info_and_go_of_unknown_exports_are_refused_and_haggling_goes_on() {
    for number in [INFO, GO] {
        let mut peer = Peer::haggling(two_exports());
        assert_eq!(peer.haggle_one(number, &info_data("nothing", &[3])), ERR_UNKNOWN);
        assert!(peer.take_seen().is_empty());
        assert_eq!(peer.haggle(GO, &info_data("disk", &[])).len(), 2);
    }
    let mut peer = Peer::new(two_exports(), None);
    peer.feed(&client_flags());
    assert_eq!(peer.haggle_one(GO, &info_data("", &[])), ERR_UNKNOWN);
}

#[test]
fn malformed_info_is_refused_and_haggling_goes_on() {
    let good = info_data("disk", &[3, 1]);
    let mut cases: Vec<Vec<u8>> = (0..good.len()).map(|len| good[..len].to_vec()).collect();
    cases.push([&good[..], &[0]].concat());
    cases.push(info_data("di\0sk", &[]));
    cases.push(info_data(&"a".repeat(4097), &[]));
    cases.push([&u32::MAX.to_be_bytes()[..], b"disk\0\0"].concat());
    cases.push([&5_u32.to_be_bytes()[..], b"disk\0\0"].concat());
    cases.push([&string(b"disk")[..], &u16::MAX.to_be_bytes()].concat());
    for case in cases {
        let mut peer = Peer::haggling(two_exports());
        for number in [INFO, GO] {
            assert_eq!(peer.haggle_one(number, &case), ERR_INVALID, "{case:02x?}");
        }
        assert!(peer.take_seen().is_empty());
    }
}

#[test]
fn longest_name_is_found_and_every_request_for_it_is_read() {
    let name = "n".repeat(4096);
    let mut peer = Peer::haggling(vec![Export::new(name.clone(), 512)]);
    let replies = peer.haggle(INFO, &info_data(&name, &[0, 1, 2, 3]));
    assert_eq!(replies[1].1.len(), 2 + 4096);
    let many: Vec<u16> = (0..29_000).collect();
    assert_eq!(peer.haggle(INFO, &info_data(&name, &many)).len(), 4);
}

#[test]
fn options_of_64_kib_are_read() {
    for number in [INFO, GO, LIST_META, SET_META] {
        let mut peer = Peer::haggling(two_exports());
        assert_eq!(peer.haggle_one(number, &[0; 64 << 10]), ERR_INVALID);
    }
}

#[test]
fn options_beyond_64_kib_are_skipped_and_refused() {
    for number in [INFO, GO, LIST_META, SET_META] {
        for len in [(64 << 10) + 1, 1 << 20] {
            let mut peer = Peer::haggling(two_exports());
            assert_eq!(peer.haggle_one(number, &vec![0; len]), ERR_TOO_BIG);
            assert_eq!(peer.haggle(LIST, &[]).len(), 3);
        }
    }
}

#[test]
fn options_beyond_1_mib_break_the_connection_at_once() {
    for number in [0, ABORT, LIST, STARTTLS, INFO, GO, SET_META, 77] {
        for len_bytes in [(1 << 20) + 1, u32::MAX] {
            let mut peer = Peer::haggling(two_exports());
            peer.feed(&option_header(number, len_bytes));
            let expected = Violation::OptionTooLong { option: number, len_bytes };
            assert_eq!(broken(&mut peer), expected);
        }
    }
}

#[test]
fn wrong_option_magic_breaks_the_connection() {
    let mut peer = Peer::haggling(two_exports());
    let mut bytes = option(LIST, &[]);
    bytes[7] ^= 1;
    peer.feed(&bytes);
    assert_eq!(broken(&mut peer), Violation::OptionMagic(IHAVEOPT ^ 1));
    assert!(peer.out.is_empty());
}

#[test]
fn haggling_without_end_breaks_the_connection() {
    let mut peer = Peer::haggling(two_exports());
    for _ in 0..4096 {
        peer.feed(&option(77, &[]));
    }
    assert!(peer.take_seen().is_empty());
    peer.feed(&option(77, &[]));
    assert_eq!(broken(&mut peer), Violation::TooManyOptions);
}

#[test]
fn structured_replies_add_df_and_stay_when_they_are_asked_for_again() {
    let mut peer = Peer::haggling(two_exports());
    assert_eq!(peer.haggle(STRUCTURED_REPLY, &[]), [(ACK, vec![])]);
    assert_eq!(peer.haggle_one(STRUCTURED_REPLY, &[]), ERR_INVALID);
    let replies = peer.haggle(INFO, &info_data("disk", &[]));
    assert_eq!(replies[0], info_export(1 << 20, DISK_FLAGS | SEND_DF));
    peer.out.clear();
    peer.feed(&option(EXPORT_NAME, b"disk"));
    assert_eq!(peer.out[8..10], (DISK_FLAGS | SEND_DF).to_be_bytes());
}

#[test]
fn extended_headers_take_precedence_over_structured_replies() {
    for first in [None, Some(STRUCTURED_REPLY)] {
        let mut peer = Peer::haggling(two_exports());
        if let Some(first) = first {
            assert_eq!(peer.haggle_one(first, &[]), ACK);
        }
        assert_eq!(peer.haggle_one(EXTENDED_HEADERS, &[]), ACK);
        assert_eq!(peer.haggle_one(EXTENDED_HEADERS, &[]), ERR_INVALID);
        assert_eq!(peer.haggle_one(STRUCTURED_REPLY, &[]), ERR_EXT_HEADER_REQD);
        peer.feed(&option(GO, &info_data("disk", &[])));
        assert_eq!(peer.take_seen(), [SessionOutput::Opened(0)]);
        peer.out.clear();
        let request = peer.request(&Ask::new(FLUSH, 0, 0).bytes(Mode::Extended));
        peer.session.reply(&request, None, &mut peer.out);
        assert_eq!(be32(&peer.out), 0x6e8a_278c);
    }
}

#[test]
fn status_payload_is_advertised_only_with_extended_headers_and_a_context() {
    let context = meta_data("disk", &["base:allocation"]);
    for (mode, set, expected) in [
        (STRUCTURED_REPLY, true, 0),
        (EXTENDED_HEADERS, false, 0),
        (EXTENDED_HEADERS, true, STATUS_PAYLOAD),
    ] {
        let mut peer = Peer::haggling(two_exports());
        assert_eq!(peer.haggle_one(mode, &[]), ACK);
        if set {
            peer.haggle(SET_META, &context);
        }
        let replies = peer.haggle(INFO, &info_data("disk", &[]));
        assert_eq!(replies[0], info_export(1 << 20, DISK_FLAGS | SEND_DF | expected));
        let replies = peer.haggle(INFO, &info_data("other", &[]));
        assert_eq!(replies[0], info_export(8 << 30, OTHER_FLAGS | SEND_DF));
    }
}

#[test]
fn exports_that_the_protocol_cannot_describe_are_refused() {
    let good = small_export();
    assert_eq!(good.check(), Ok(()));
    let wrong = |change: fn(&mut Export)| {
        let mut export = small_export();
        change(&mut export);
        export.check().expect_err("must be refused").to_string()
    };
    assert!(wrong(|e| e.name = "a\0".into()).contains("name"));
    assert!(wrong(|e| e.name = "a".repeat(4097)).contains("name"));
    assert!(wrong(|e| e.description = "a".repeat(4097)).contains("description"));
    assert!(wrong(|e| e.block_min_bytes = 0).contains("block sizes"));
    assert!(wrong(|e| e.block_min_bytes = 3).contains("block sizes"));
    let too_large = wrong(|e| (e.block_min_bytes, e.block_preferred_bytes) = (1 << 17, 1 << 17));
    assert!(too_large.contains("block sizes"));
    assert!(wrong(|e| e.block_preferred_bytes = 256).contains("block sizes"));
    assert!(wrong(|e| e.block_preferred_bytes = 6000).contains("block sizes"));
    assert!(wrong(|e| e.block_max_bytes = 2048).contains("block sizes"));
    assert!(wrong(|e| e.size_bytes = 1 << 63).contains("size"));
    assert!(wrong(|e| (e.block_min_bytes, e.size_bytes) = (512, 1000)).contains("size"));
}

#[test]
fn exports_at_the_limits_of_the_protocol_are_served() {
    let usual = || Export::new("disk", 1 << 20);
    for export in [
        Export { name: "a".repeat(4096), description: "b".repeat(4096), ..usual() },
        Export { size_bytes: (1 << 63) - 1, ..usual() },
        Export { block_preferred_bytes: 512, block_max_bytes: 512, ..usual() },
        Export { block_min_bytes: 1 << 16, block_preferred_bytes: 1 << 16, ..usual() },
    ] {
        assert_eq!(export.check(), Ok(()), "{export:?}");
    }
    let larger_min = Export { block_min_bytes: 8192, ..usual() };
    assert!(larger_min.check().is_err(), "its preferred block is 4096 bytes");
}

/// An open export, and a closed one.
fn with_closed() -> Vec<Export> {
    let closed = Export { is_closed: true, ..Export::new("other", 0) };
    vec![small_export(), closed]
}

#[test]
fn closed_export_is_listed_and_is_described_when_a_client_asks_for_it() {
    let mut peer = Peer::haggling(with_closed());
    assert_eq!(peer.haggle(LIST, &[]).len(), 3);
    assert!(peer.asked.is_empty(), "a list opens nothing");
    let open = two_exports().pop().unwrap();
    peer.opens = vec![open.clone(), open.clone()];
    let info = peer.haggle(INFO, &info_data("other", &[]));
    assert_eq!(info, [info_export(8 << 30, OTHER_FLAGS), (ACK, vec![])]);
    let replies = peer.haggle(GO, &info_data("other", &[]));
    assert_eq!(replies, info);
    assert_eq!(peer.take_seen(), [SessionOutput::Opened(1)]);
    assert_eq!(peer.asked, [1, 1], "it may have been closed meanwhile");

    let mut peer = Peer::haggling(with_closed());
    peer.opens = vec![open];
    peer.feed(&option(EXPORT_NAME, b"other"));
    assert_eq!(peer.out[..8], (8_u64 << 30).to_be_bytes());
    assert_eq!(peer.take_seen(), [SessionOutput::Opened(1)]);
}

#[test]
fn closed_default_export_of_the_empty_name_is_asked_for() {
    let closed = Export { is_closed: true, ..Export::new("", 0) };
    let mut peer = serve(vec![closed]);
    peer.feed(&client_flags());
    peer.opens = vec![Export::new("", 1 << 20)];
    peer.feed(&option(EXPORT_NAME, b""));
    assert_eq!(peer.take_seen(), [SessionOutput::Opened(0)]);
}

#[test]
fn closed_export_that_does_not_open_is_refused_and_may_be_asked_for_again() {
    let mut peer = Peer::haggling(with_closed());
    for number in [INFO, GO] {
        assert_eq!(peer.haggle_one(number, &info_data("other", &[])), ERR_UNKNOWN);
    }
    peer.opens = vec![Export::new("other", 512)];
    assert_eq!(peer.haggle(GO, &info_data("other", &[]))[1], (ACK, vec![]));
    assert_eq!(peer.asked, [1, 1, 1]);

    let mut peer = Peer::haggling(with_closed());
    peer.feed(&option(EXPORT_NAME, b"other"));
    assert_eq!(broken(&mut peer), Violation::ExportNotAvailable);
}

#[test]
fn context_of_a_closed_export_is_kept_until_it_opens() {
    let mut peer = Peer::haggling(with_closed());
    peer.haggle(STRUCTURED_REPLY, &[]);
    let contexts = peer.haggle(SET_META, &meta_data("other", &["base:allocation"]));
    assert_eq!(contexts.len(), 2);
    assert!(peer.asked.is_empty());
    peer.opens = vec![Export::new("other", 1 << 20)];
    peer.haggle(GO, &info_data("other", &[]));
    peer.take_seen();
    // Without the context it would be refused.
    peer.feed(&Ask::new(BLOCK_STATUS, 0, 4096).bytes(Mode::Structured));
    assert!(matches!(peer.take_seen()[..], [SessionOutput::Request(_)]));
}
