//! Metadata contexts: queries and valid selections.

use blockyard_protocol::nbd::Export;

use crate::client::*;

fn structured() -> Peer {
    let mut peer = Peer::haggling(vec![small_export(), Export::new("other", 4096)]);
    assert_eq!(peer.haggle_one(STRUCTURED_REPLY, &[]), ACK);
    peer
}

fn context(id: u8) -> (u32, Vec<u8>) {
    (META_CONTEXT, [&[0, 0, 0, id][..], b"base:allocation"].concat())
}

/// A disk with a dirty bitmap, and one without.
fn tracked() -> Peer {
    let dirty_bitmap = Some("daily".to_owned());
    let exports = vec![Export { dirty_bitmap, ..small_export() }, Export::new("other", 4096)];
    let mut peer = Peer::haggling(exports);
    assert_eq!(peer.haggle_one(STRUCTURED_REPLY, &[]), ACK);
    peer
}

fn bitmap(id: u8) -> (u32, Vec<u8>) {
    (META_CONTEXT, [&[0, 0, 0, id][..], b"qemu:dirty-bitmap:daily"].concat())
}

fn none() -> Vec<(u32, Vec<u8>)> {
    vec![(ACK, vec![])]
}

/// Whether BLOCK_STATUS is served after GO to `name`.
pub(crate) fn has_context(peer: &mut Peer, name: &str) -> bool {
    peer.feed(&option(GO, &info_data(name, &[])));
    peer.seen.clear();
    peer.out.clear();
    peer.feed(&Ask::new(BLOCK_STATUS, 0, 512).bytes(Mode::Structured));
    match &peer.take_seen()[..] {
        [SessionOutput::Request(_)] => true,
        [] => {
            assert_eq!(error_of(&peer.out), 22);
            false
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn list_without_queries_lists_all() {
    let expected = [context(0), (ACK, vec![])];
    assert_eq!(structured().haggle(LIST_META, &meta_data("disk", &[])), expected);
}

#[test]
fn list_matches_wildcard_and_exact_name_once() {
    for queries in [
        &["base:"][..],
        &["base:allocation"],
        &["base:allocation", "base:", "base:allocation"],
        &["x-unknown:leaf", "base:"],
    ] {
        let expected = [context(0), (ACK, vec![])];
        assert_eq!(structured().haggle(LIST_META, &meta_data("disk", queries)), expected);
    }
}

#[test]
fn bitmap_of_an_export_is_listed_by_name_and_by_wildcards() {
    let all = [context(0), bitmap(0), (ACK, vec![])];
    assert_eq!(tracked().haggle(LIST_META, &meta_data("disk", &[])), all);
    assert_eq!(tracked().haggle(LIST_META, &meta_data("disk", &["qemu:", "base:"])), all);
    for query in ["qemu:", "qemu:dirty-bitmap:", "qemu:dirty-bitmap:daily"] {
        let expected = [bitmap(0), (ACK, vec![])];
        assert_eq!(tracked().haggle(LIST_META, &meta_data("disk", &[query])), expected, "{query}");
        assert_eq!(tracked().haggle(LIST_META, &meta_data("other", &[query])), none(), "{query}");
    }
    for query in ["qemu:dirty-bitmap:dail", "qemu:dirty-bitmap:daily2", "base:dirty-bitmap:daily"] {
        assert_eq!(tracked().haggle(LIST_META, &meta_data("disk", &[query])), none(), "{query}");
    }
}

#[test]
fn bitmap_is_selected_by_its_exact_name_alone_or_beside_the_allocation() {
    for (queries, expected) in [
        (&["qemu:dirty-bitmap:daily"][..], &[bitmap(2)][..]),
        (&["qemu:dirty-bitmap:daily", "base:allocation"], &[context(1), bitmap(2)]),
    ] {
        let mut peer = tracked();
        let replies = [expected, &none()].concat();
        assert_eq!(peer.haggle(SET_META, &meta_data("disk", queries)), replies);
        assert!(has_context(&mut peer, "disk"));
    }
    for query in ["qemu:", "qemu:dirty-bitmap:", "qemu:dirty-bitmap:other"] {
        let mut peer = tracked();
        assert_eq!(peer.haggle(SET_META, &meta_data("disk", &[query])), none());
        assert!(!has_context(&mut peer, "disk"), "{query}");
    }
}

#[test]
fn bitmap_of_a_closed_export_is_asked_for_and_the_allocation_is_not() {
    let closed = || Export { is_closed: true, ..Export::new("disk", 0) };
    let tracked = || Export { dirty_bitmap: Some("daily".to_owned()), ..small_export() };
    let mut peer = Peer::haggling(vec![closed()]);
    assert_eq!(peer.haggle_one(STRUCTURED_REPLY, &[]), ACK);
    let data = meta_data("disk", &["base:allocation"]);
    assert_eq!(peer.haggle(SET_META, &data), [context(1), (ACK, vec![])]);
    assert_eq!(peer.asked, []);
    let data = meta_data("disk", &["qemu:dirty-bitmap:daily"]);
    assert_eq!(peer.haggle_one(SET_META, &data), ERR_UNKNOWN, "it does not open");
    peer.opens = vec![tracked(), tracked()];
    assert_eq!(peer.haggle(SET_META, &data), [bitmap(2), (ACK, vec![])]);
    assert!(has_context(&mut peer, "disk"));
    assert_eq!(peer.asked, [0, 0, 0]);
}

#[test]
fn unknown_namespaces_and_leaves_are_ignored() {
    for number in [LIST_META, SET_META] {
        for query in ["qemu:allocation-depth", "x-foo:", "base:nothing", "BASE:allocation", ":"] {
            let data = meta_data("disk", &[query]);
            assert_eq!(structured().haggle(number, &data), none(), "{query}");
        }
    }
}

#[test]
fn set_selects_the_exact_name_only() {
    let mut peer = structured();
    let data = meta_data("disk", &["x-foo:bar", "base:allocation", "base:allocation"]);
    assert_eq!(peer.haggle(SET_META, &data), [context(1), (ACK, vec![])]);
    assert!(has_context(&mut peer, "disk"));

    for queries in [&[][..], &["base:"]] {
        let mut peer = structured();
        assert_eq!(peer.haggle(SET_META, &meta_data("disk", queries)), none());
        assert!(!has_context(&mut peer, "disk"));
    }
}

#[test]
fn selection_of_one_export_does_not_serve_another() {
    let mut peer = structured();
    peer.haggle(SET_META, &meta_data("disk", &["base:allocation"]));
    assert!(!has_context(&mut peer, "other"));
}

#[test]
fn default_name_and_real_name_are_the_same_export() {
    let mut peer = structured();
    peer.haggle(SET_META, &meta_data("", &["base:allocation"]));
    assert!(has_context(&mut peer, "disk"));
}

#[test]
fn listing_does_not_select() {
    let mut peer = structured();
    peer.haggle(LIST_META, &meta_data("disk", &["base:allocation"]));
    assert!(!has_context(&mut peer, "disk"));
}

#[test]
fn every_later_set_replaces_the_selection_even_when_it_fails() {
    let malformed = [0, 0, 0, 9, b'x'].to_vec();
    for later in [
        meta_data("disk", &[]),
        meta_data("disk", &["x-foo:bar"]),
        meta_data("other", &["base:allocation"]),
        meta_data("nothing", &["base:allocation"]),
        malformed,
        vec![0; 70_000],
    ] {
        let mut peer = structured();
        peer.haggle(SET_META, &meta_data("disk", &["base:allocation"]));
        peer.haggle(SET_META, &later);
        assert!(!has_context(&mut peer, "disk"), "{later:02x?}");
    }
}

#[test]
fn later_options_of_other_kinds_keep_the_selection() {
    let mut peer = structured();
    peer.haggle(SET_META, &meta_data("disk", &["base:allocation"]));
    peer.haggle(INFO, &info_data("other", &[]));
    peer.haggle(LIST_META, &meta_data("other", &[]));
    peer.haggle(STARTTLS, &[]);
    assert!(has_context(&mut peer, "disk"));
}

#[test]
fn contexts_need_structured_replies() {
    for number in [LIST_META, SET_META] {
        let mut peer = Peer::haggling(vec![small_export()]);
        let data = meta_data("disk", &["base:allocation"]);
        assert_eq!(peer.haggle_one(number, &data), ERR_INVALID);
        assert_eq!(peer.haggle_one(EXTENDED_HEADERS, &[]), ACK);
        assert_eq!(peer.haggle(number, &data).len(), 2);
    }
}

#[test]
fn contexts_of_unknown_exports_are_refused() {
    for number in [LIST_META, SET_META] {
        let data = meta_data("nothing", &["base:allocation"]);
        assert_eq!(structured().haggle_one(number, &data), ERR_UNKNOWN);
    }
}

#[test]
fn malformed_queries_are_refused_before_anything_is_listed() {
    let good = meta_data("disk", &["base:allocation", "base:"]);
    let mut cases: Vec<Vec<u8>> = (0..good.len()).map(|len| good[..len].to_vec()).collect();
    cases.push([&good[..], &[0]].concat());
    cases.push(meta_data("disk", &["base:allocation", "base"]));
    cases.push(meta_data("disk", &["base:allocation", ""]));
    cases.push(meta_data("disk", &["base:allo\0cation"]));
    cases.push(meta_data("disk", &[&format!("x:{}", "a".repeat(4095))]));
    cases.push(meta_data(&"a".repeat(4097), &[]));
    // A count of queries above those in the data, and a query length that wraps.
    cases.push([&string(b"disk")[..], &u32::MAX.to_be_bytes()].concat());
    cases.push([&string(b"disk")[..], &[0, 0, 0, 1], &u32::MAX.to_be_bytes()].concat());
    for case in cases {
        for number in [LIST_META, SET_META] {
            assert_eq!(structured().haggle_one(number, &case), ERR_INVALID, "{case:02x?}");
        }
    }
}

#[test]
fn thousands_of_queries_get_one_context() {
    let queries = vec!["base:allocation"; 3000];
    let replies = structured().haggle(SET_META, &meta_data("disk", &queries));
    assert_eq!(replies, [context(1), (ACK, vec![])]);
}
