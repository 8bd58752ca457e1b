//! Known attacks on other servers, by name, and similar cases.

use blockyard_protocol::nbd::{Command, Export, Extent, Violation};

use crate::client::*;

fn peer() -> Peer {
    Peer::haggling(vec![small_export()])
}

/// Whether the connection has ended without an answer.
fn dropped(peer: &mut Peer) -> bool {
    matches!(peer.take_seen()[..], [SessionOutput::Broken(_)]) && peer.out.is_empty()
}

#[test]
fn cve_2017_15118_export_name_of_4097_bytes_and_more() {
    for len in [4097, 8192, 65_536, u32::MAX] {
        let mut peer = peer();
        peer.feed(&option_header(EXPORT_NAME, len));
        assert!(dropped(&mut peer), "EXPORT_NAME of {len} bytes");
    }
    let long = "n".repeat(4097);
    for number in [INFO, GO] {
        assert_eq!(peer().haggle_one(number, &info_data(&long, &[])), ERR_INVALID);
    }
    let name = "n".repeat(4096);
    let mut peer = Peer::haggling(vec![Export::new(name.clone(), 4096)]);
    peer.feed(&option(EXPORT_NAME, name.as_bytes()));
    assert_eq!(peer.take_seen(), [SessionOutput::Opened(0)]);
}

#[test]
fn cve_2017_15119_large_option_is_not_collected() {
    let mut peer = peer();
    peer.feed(&option_header(STARTTLS, 1 << 20));
    for _ in 0..1 << 10 {
        peer.feed(&[0; 1 << 10]); // `feed` checks that no bytes stay behind
    }
    assert_eq!(option_replies(STARTTLS, &peer.take_out())[0].0, ERR_UNSUP);
    peer.feed(&option_header(STARTTLS, u32::MAX));
    assert!(dropped(&mut peer));
}

#[test]
fn cve_2022_26495_name_length_that_overflows_with_its_header() {
    for len in [u32::MAX, u32::MAX - 1, u32::MAX - 3, 0x8000_0000, 0x7fff_ffff] {
        let mut data = len.to_be_bytes().to_vec();
        data.extend_from_slice(b"disk\0\0");
        for number in [INFO, GO] {
            assert_eq!(peer().haggle_one(number, &data), ERR_INVALID);
        }
        let mut peer = peer();
        assert_eq!(peer.haggle_one(STRUCTURED_REPLY, &[]), ACK);
        for number in [LIST_META, SET_META] {
            assert_eq!(peer.haggle_one(number, &data), ERR_INVALID);
        }
    }
}

#[test]
fn cve_2022_26496_name_longer_than_the_option() {
    for extra in 1..8 {
        let mut data = (4 + extra as u32).to_be_bytes().to_vec();
        data.extend_from_slice(b"disk");
        data.extend_from_slice(&vec![0; extra]);
        for number in [INFO, GO] {
            assert_eq!(peer().haggle_one(number, &data), ERR_INVALID);
        }
    }
}

#[test]
fn cve_2020_10761_error_text_does_not_grow_with_the_clients_name() {
    let name = "x".repeat(4096);
    let mut peer = peer();
    assert_eq!(peer.haggle_one(STRUCTURED_REPLY, &[]), ACK);
    for (number, data) in [
        (INFO, info_data(&name, &[])),
        (GO, info_data(&name, &[])),
        (LIST_META, meta_data(&name, &[&name[..4096]])),
        (SET_META, meta_data(&name, &[])),
    ] {
        let replies = peer.haggle(number, &data);
        assert!(replies.len() == 1 && replies[0].1.len() < 200);
    }
}

#[test]
fn cve_2019_14850_nothing_is_opened_or_answered_before_the_client_speaks() {
    let mut peer = serve(vec![small_export()]);
    peer.feed(&[]);
    peer.feed(&[0, 0, 0]);
    assert!(peer.out.is_empty() && peer.seen.is_empty());
}

#[test]
fn cve_2019_14851_info_then_other_export_then_go() {
    let mut other = Export::new("other", 4096);
    other.read_only = true;
    let mut peer = Peer::haggling(vec![small_export(), other]);
    peer.haggle(INFO, &info_data("disk", &[3]));
    peer.haggle(INFO, &info_data("nothing", &[3]));
    peer.haggle(GO, &info_data("other", &[3]));
    assert_eq!(peer.take_seen(), [SessionOutput::Opened(1)]);
    peer.feed(&Ask::new(READ, 4096, 1).bytes(Mode::Simple));
    assert_eq!(error_of(&peer.out), 22, "the size is that of the export that was opened");
}

#[test]
fn cve_2021_3716_options_sent_ahead_of_starttls_gain_nothing() {
    // All in one receive, as an attacker injects it. STARTTLS is refused, so there is no encrypted
    // phase that could inherit the state of earlier options.
    let mut peer = peer();
    let stream = [option(STRUCTURED_REPLY, &[]), option(STARTTLS, &[]), option(LIST, &[])].concat();
    peer.feed(&stream);
    let kinds: Vec<u32> = {
        let out = peer.take_out();
        let mut at = 0;
        std::iter::from_fn(|| {
            let reply = out.get(at..)?.get(..20)?;
            at += 20 + be32(&reply[16..]) as usize;
            Some(be32(&reply[12..]))
        })
        .collect()
    };
    assert_eq!(kinds, [ACK, ERR_UNSUP, SERVER, ACK]);
}

#[test]
fn cve_2005_3534_and_2011_0530_write_beyond_any_buffer() {
    let mut peer = opened(small_export(), Mode::Simple);
    peer.feed(&Ask::new(WRITE, 0, u64::from(u32::MAX)).bytes(Mode::Simple));
    assert_eq!(peer.take_seen(), [SessionOutput::Broken(Violation::PayloadTooLong(0xffff_ffff))]);
    // Within the read limit, but not within the export: discarded, never passed on.
    let mut peer = opened(small_export(), Mode::Simple);
    peer.feed(&Ask::new(WRITE, 0, 33 << 20).bytes(Mode::Simple));
    for _ in 0..33 {
        peer.feed(&vec![0; 1 << 20]);
    }
    assert_eq!(error_of(&peer.out), 28);
    assert!(peer.seen.is_empty());
}

#[test]
fn cve_2011_1925_negotiation_that_fails_ends_in_order() {
    let mut peer = peer();
    peer.feed(&option(EXPORT_NAME, b"no such export"));
    assert_eq!(peer.take_seen(), [SessionOutput::Broken(Violation::UnknownExport)]);
    assert!(peer.out.is_empty());
    peer.feed(&Ask::new(READ, 0, 512).bytes(Mode::Simple));
    assert!(dropped(&mut peer), "and stays ended");
}

#[test]
fn cve_2013_7441_and_2017_9524_client_gone_at_any_point_of_the_handshake() {
    let stream = [
        client_flags(),
        option(STRUCTURED_REPLY, &[]),
        option(SET_META, &meta_data("disk", &["base:allocation"])),
        option(77, b"some data"),
        option(GO, &info_data("disk", &[3])),
    ]
    .concat();
    for len in 0..stream.len() {
        let mut peer = serve(vec![small_export()]);
        peer.feed(&stream[..len]);
        assert_eq!(peer.seen, [], "{len} bytes of a handshake are neither wrong nor enough");
    }
}

#[test]
fn garbage_instead_of_a_handshake_is_dropped() {
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64], &[0x16, 3, 1, 2, 0, 1]] {
        let mut peer = serve(vec![small_export()]);
        peer.feed(bytes);
        assert!(dropped(&mut peer));
    }
}

#[test]
fn cve_2025_47711_and_47712_block_status_of_4_gib() {
    for mode in [Mode::Structured, Mode::Extended] {
        let mut peer = opened(Export::new("disk", 1 << 40), mode);
        let lens = [u64::from(u32::MAX), 0xffff_ffff & !511, 0x8000_0000];
        for len in lens {
            let request = peer.request(&Ask::new(BLOCK_STATUS, 0, len).bytes(mode));
            for extents in [&[][..], &[Extent::unknown(1 << 40)], &[Extent::unknown(u64::MAX)]] {
                peer.session.block_status(&request, extents, &[], &mut peer.out);
                let reply = &replies(&peer.take_out())[0];
                assert!(reply.payload.len() > 8, "at least one extent");
            }
        }
    }
}

#[test]
fn cve_2023_5871_status_length_of_64_bits_stays_within_the_export() {
    let mut peer = opened(Export::new("disk", 1 << 40), Mode::Extended);
    for len in [u64::MAX, 1 << 63, (1 << 40) + 1] {
        peer.feed(&Ask::new(BLOCK_STATUS, 0, len).bytes(Mode::Extended));
        assert_eq!(error_of(&peer.take_out()), 22);
    }
    let request = peer.request(&Ask::new(BLOCK_STATUS, 0, 1 << 40).bytes(Mode::Extended));
    peer.session.block_status(&request, &[Extent::unknown(u64::MAX)], &[], &mut peer.out);
    let reply = &replies(&peer.out)[0];
    assert_eq!(be64(&reply.payload[8..]), 1 << 40);
}

#[test]
fn data_of_an_unannounced_write_is_never_taken_for_requests() {
    // The payload is a valid request that would destroy the disk.
    let mut peer = opened(small_export(), Mode::Extended);
    let mut bytes = Ask::new(WRITE, 0, 32).raw(Mode::Extended);
    bytes.extend(Ask::new(WRITE_ZEROES, 0, 1 << 20).bytes(Mode::Extended));
    peer.feed(&bytes);
    let seen = peer.take_seen();
    let [SessionOutput::Request(request), payload @ ..] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((request.command, request.len_bytes), (Command::Write, 32));
    assert!(
        payload.iter().all(|seen| matches!(seen, SessionOutput::Payload { .. })),
        "{payload:?}"
    );
}

#[test]
fn data_of_a_refused_write_is_never_taken_for_requests() {
    let smuggled = Ask::new(WRITE_ZEROES, 0, 1 << 20);
    for mode in MODES {
        let len = smuggled.bytes(mode).len() as u64;
        for (offset, flags) in [(0, NO_HOLE), (1 << 20, 0), (u64::MAX, 0)] {
            let mut peer = opened(small_export(), mode);
            let mut bytes = Ask::new(WRITE, offset, len).flags(flags).bytes(mode);
            bytes.extend(smuggled.bytes(mode));
            peer.feed(&bytes);
            assert!(peer.seen.is_empty());
            assert_ne!(error_of(&peer.out), 0);
        }
    }
}

#[test]
fn write_cut_off_in_the_middle_waits_and_promises_nothing() {
    for mode in MODES {
        let mut peer = opened(small_export(), mode);
        let mut bytes = Ask::new(WRITE, 0, 4096).bytes(mode);
        bytes.extend([1; 4095]);
        peer.feed(&bytes);
        assert!(peer.out.is_empty());
        assert!(matches!(
            peer.seen[..],
            [SessionOutput::Request(_), SessionOutput::Payload { last: false, .. }]
        ));
    }
}
