//! STARTTLS, line by line of the specification's sections "FORCEDTLS", "SELECTIVETLS" and
//! "`NBD_OPT_STARTTLS`".

use blockyard_protocol::nbd::{Tls, Violation};

use crate::client::*;
use crate::meta::has_context;

const ERR_TLS_REQD: u32 = 0x8000_0005;

fn peer(tls: Tls) -> Peer {
    let mut peer = unflagged(tls);
    peer.feed(&client_flags());
    peer
}

/// A server before the client's flags.
fn unflagged(tls: Tls) -> Peer {
    let mut peer = serve(vec![small_export()]);
    peer.session = serve(vec![small_export()]).session.with_tls(tls);
    peer
}

fn started(tls: Tls) -> Peer {
    let mut peer = peer(tls);
    assert_eq!(peer.haggle_one(STARTTLS, &[]), ACK);
    assert_eq!(peer.take_seen(), [SessionOutput::StartTls]);
    peer
}

#[test]
fn before_forced_tls_every_option_but_two_is_refused() {
    let go = info_data("disk", &[]);
    let meta = meta_data("disk", &["base:allocation"]);
    let long = vec![0; 70_000];
    let options: [(u32, &[u8]); 11] = [
        (LIST, &[]),
        (LIST, b"surplus"),
        (INFO, &go),
        (GO, &go),
        (GO, &long),
        (LIST_META, &meta),
        (SET_META, &meta),
        (STRUCTURED_REPLY, &[]),
        (EXTENDED_HEADERS, &[]),
        (0, &[]),
        (4711, b"unknown"),
    ];
    for (number, data) in options {
        assert_eq!(peer(Tls::Require).haggle_one(number, data), ERR_TLS_REQD, "option {number}");
    }
    assert_eq!(peer(Tls::Require).haggle_one(STARTTLS, b"surplus"), ERR_INVALID);
    let mut leaving = peer(Tls::Require);
    assert_eq!(leaving.haggle_one(ABORT, &[]), ACK);
    assert_eq!(leaving.take_seen(), [SessionOutput::Closed]);
}

#[test]
fn export_name_before_forced_tls_ends_the_connection() {
    for name in [&b"disk"[..], b"", b"unknown"] {
        let mut peer = peer(Tls::Require);
        peer.feed(&option(EXPORT_NAME, name));
        let broken = SessionOutput::Broken(Violation::ExportNameWithoutTls);
        assert_eq!(peer.take_seen(), [broken]);
        assert!(peer.take_out().is_empty());
    }
}

#[test]
fn tls_begins_once_and_no_option_asks_for_it_again() {
    for tls in [Tls::On, Tls::Require] {
        let mut peer = started(tls);
        assert_eq!(peer.haggle_one(STARTTLS, &[]), ERR_INVALID);
        assert_eq!(peer.haggle_one(STARTTLS, b"surplus"), ERR_INVALID);
        assert_eq!(peer.haggle_one(4711, &[]), ERR_UNSUP);
        assert_eq!(peer.haggle_one(INFO, &info_data("nothing", &[])), ERR_UNKNOWN);
        assert!(peer.take_seen().is_empty());
        peer.feed(&option(EXPORT_NAME, b"disk"));
        assert_eq!(peer.take_seen(), [SessionOutput::Opened(0)]);
    }
}

/// A man in the middle may have negotiated before.
#[test]
fn nothing_negotiated_before_tls_is_in_force_after_it() {
    for mode in [STRUCTURED_REPLY, EXTENDED_HEADERS] {
        let restarted = || {
            let mut peer = peer(Tls::On);
            assert_eq!(peer.haggle_one(mode, &[]), ACK);
            peer.haggle(SET_META, &meta_data("disk", &["base:allocation"]));
            assert_eq!(peer.haggle_one(STARTTLS, &[]), ACK);
            peer
        };
        // Contexts need structured replies, and those can be asked for again.
        let mut peer = restarted();
        assert_eq!(peer.haggle_one(SET_META, &meta_data("disk", &["base:"])), ERR_INVALID);
        assert_eq!(peer.haggle_one(mode, &[]), ACK);
        let mut peer = restarted();
        assert_eq!(peer.haggle_one(STRUCTURED_REPLY, &[]), ACK);
        assert!(!has_context(&mut peer, "disk"), "the context is from before");
    }
}

#[test]
fn bytes_behind_starttls_end_the_connection_unanswered() {
    for behind in [&option(STRUCTURED_REPLY, &[])[..], &[0x16, 3, 1], b"x"] {
        let mut peer = peer(Tls::Require);
        peer.take_out();
        peer.feed(&[&option(STARTTLS, &[]), behind].concat());
        assert_eq!(peer.take_seen(), [SessionOutput::Broken(Violation::BytesBehindStartTls)]);
        assert!(peer.take_out().is_empty(), "an ACK would begin TLS");
    }
}

#[test]
fn plain_newstyle_client_cannot_start_tls() {
    let mut peer = unflagged(Tls::Require);
    peer.feed(&[0; 4]);
    peer.feed(&option(STARTTLS, &[]));
    let broken = SessionOutput::Broken(Violation::NotFixedNewstyle(STARTTLS));
    assert_eq!(peer.take_seen(), [broken]);
}
