//! BLOCK_STATUS: conversion of extents to descriptors.

use std::slice;

use blockyard_protocol::nbd::{Contexts, DirtyExtent, Export, Extent, Request};

use crate::client::*;

const DATA: u64 = 0;
const HOLE: u64 = 3;

fn peer(mode: Mode) -> Peer {
    opened(Export::new("disk", 1 << 46), mode)
}

fn ask(peer: &mut Peer, mode: Mode, len: u64, flags: u16) -> Request {
    peer.request(&Ask::new(BLOCK_STATUS, 0, len).flags(flags).bytes(mode))
}

fn extent(len_bytes: u64, flags: u64) -> Extent {
    Extent { len_bytes, hole: flags & 1 != 0, zero: flags & 2 != 0 }
}

/// Sends the answer and decodes it: length and flags of each descriptor.
fn answer(peer: &mut Peer, mode: Mode, request: &Request, extents: &[Extent]) -> Vec<(u64, u64)> {
    peer.out.clear();
    peer.session.block_status(request, extents, &[], &mut peer.out);
    let [reply] = &replies(&peer.out)[..] else { panic!("one chunk") };
    assert!(reply.done);
    let payload = &reply.payload;
    assert_eq!(be32(payload), 1, "the id that SET_META_CONTEXT gave");
    let found: Vec<(u64, u64)> = if mode == Mode::Extended {
        assert_eq!(reply.kind, 6);
        let (descriptors, rest) = payload[8..].as_chunks::<16>();
        assert!(rest.is_empty());
        assert_eq!(be32(&payload[4..]) as usize, descriptors.len());
        descriptors.iter().map(|d| (be64(d), be64(&d[8..]))).collect()
    } else {
        assert_eq!(reply.kind, 5);
        let (descriptors, rest) = payload[4..].as_chunks::<8>();
        assert!(rest.is_empty());
        descriptors.iter().map(|d| (u64::from(be32(d)), u64::from(be32(&d[4..])))).collect()
    };
    assert!(!found.is_empty());
    assert!(found.iter().all(|(len, _)| *len > 0));
    let total: u64 = found.iter().map(|(len, _)| len).sum();
    assert!(total <= request.len_bytes);
    found
}

#[test]
fn compact_layout_byte_by_byte() {
    let mut peer = peer(Mode::Structured);
    let request = ask(&mut peer, Mode::Structured, 8192, 0);
    let extents = [extent(4096, 1), extent(4096, 2)];
    peer.session.block_status(&request, &extents, &[], &mut peer.out);
    let expected = [
        0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 5, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0, 0,
        0, 20, 0, 0, 0, 1, 0, 0, 16, 0, 0, 0, 0, 1, 0, 0, 16, 0, 0, 0, 0, 2,
    ];
    assert_eq!(peer.out, expected);
}

#[test]
fn extended_layout_byte_by_byte() {
    let mut peer = peer(Mode::Extended);
    let bytes = Ask::new(BLOCK_STATUS, 512, 4096).bytes(Mode::Extended);
    let request = peer.request(&bytes);
    peer.session.block_status(&request, &[extent(4096, 3)], &[], &mut peer.out);
    let expected = [
        0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0, 6, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0, 0,
        0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 24, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 16, 0,
        0, 0, 0, 0, 0, 0, 0, 3,
    ];
    assert_eq!(peer.out, expected);
}

#[test]
fn neighbours_in_the_same_state_are_joined_and_empty_ones_dropped() {
    for mode in [Mode::Structured, Mode::Extended] {
        let mut peer = peer(mode);
        let request = ask(&mut peer, mode, 1 << 20, 0);
        let extents = [
            extent(0, HOLE),
            extent(512, DATA),
            extent(0, HOLE),
            extent(512, DATA),
            extent(4096, HOLE),
            extent(4096, HOLE),
            extent(4096, 2),
        ];
        let found = answer(&mut peer, mode, &request, &extents);
        assert_eq!(found, [(1024, DATA), (8192, HOLE), (4096, 2)]);
    }
}

#[test]
fn extents_beyond_the_request_are_cut() {
    for mode in [Mode::Structured, Mode::Extended] {
        let mut peer = peer(mode);
        let request = ask(&mut peer, mode, 10_000, 0);
        let extents = [extent(4096, DATA), extent(1 << 40, HOLE), extent(512, DATA)];
        let found = answer(&mut peer, mode, &request, &extents);
        assert_eq!(found, [(4096, DATA), (5904, HOLE)]);
        let overflowing = [extent(u64::MAX, HOLE), extent(512, HOLE)];
        assert_eq!(answer(&mut peer, mode, &request, &overflowing), [(10_000, HOLE)]);
    }
}

#[test]
fn req_one_is_one_extent_within_the_request() {
    for mode in [Mode::Structured, Mode::Extended] {
        let mut peer = peer(mode);
        let request = ask(&mut peer, mode, 10_000, REQ_ONE);
        let extents = [extent(512, DATA), extent(512, DATA), extent(8192, HOLE)];
        assert_eq!(answer(&mut peer, mode, &request, &extents), [(1024, DATA)]);
        let found = answer(&mut peer, mode, &request, &[extent(1 << 30, HOLE)]);
        assert_eq!(found, [(10_000, HOLE)]);
    }
}

#[test]
fn unknown_state_is_one_data_extent() {
    for mode in [Mode::Structured, Mode::Extended] {
        let mut peer = peer(mode);
        let request = ask(&mut peer, mode, 10_000, 0);
        assert_eq!(answer(&mut peer, mode, &request, &[]), [(10_000, DATA)]);
        assert_eq!(answer(&mut peer, mode, &request, &[extent(0, HOLE)]), [(10_000, DATA)]);
    }
}

#[test]
fn long_extents_are_told_in_aligned_parts_that_fit_32_bits() {
    let mode = Mode::Structured;
    let mut peer = peer(mode);
    let longest = u64::from(u32::MAX);
    let cut = 0xffff_0000;
    let request = ask(&mut peer, mode, longest, 0);
    let found = answer(&mut peer, mode, &request, &[extent(5 << 32, HOLE)]);
    assert_eq!(found, [(cut, HOLE), (longest - cut, HOLE)]);
    assert_eq!(answer(&mut peer, mode, &request, &[]), [(cut, DATA), (longest - cut, DATA)]);
    let request = ask(&mut peer, mode, longest, REQ_ONE);
    assert_eq!(answer(&mut peer, mode, &request, &[extent(5 << 32, HOLE)]), [(cut, HOLE)]);
}

#[test]
fn extended_extents_have_64_bits() {
    let mut peer = peer(Mode::Extended);
    let request = ask(&mut peer, Mode::Extended, 1 << 46, 0);
    let extents = [extent(5 << 32, HOLE), extent(1 << 45, DATA)];
    let found = answer(&mut peer, Mode::Extended, &request, &extents);
    assert_eq!(found, [(5 << 32, HOLE), (1 << 45, DATA)]);
}

#[test]
fn count_of_extents_is_bounded() {
    let many: Vec<Extent> =
        (0..70_000).map(|i| extent(512, if i % 2 == 0 { DATA } else { HOLE })).collect();
    for mode in [Mode::Structured, Mode::Extended] {
        let mut peer = peer(mode);
        let request = ask(&mut peer, mode, 1 << 30, 0);
        assert_eq!(answer(&mut peer, mode, &request, &many).len(), 1 << 16);
    }
}

#[test]
fn descriptors_stay_below_a_small_payload_limit() {
    let export = Export { block_max_bytes: 4096, ..Export::new("disk", 1 << 40) };
    let many: Vec<Extent> =
        (0..2000).map(|i| extent(512, if i % 2 == 0 { DATA } else { HOLE })).collect();
    for (mode, count) in [(Mode::Structured, 512), (Mode::Extended, 256)] {
        let mut peer = opened(export.clone(), mode);
        let request = ask(&mut peer, mode, 1 << 30, 0);
        assert_eq!(answer(&mut peer, mode, &request, &many).len(), count);
    }
}

/// A disk with a bitmap, open with these contexts.
fn tracked(queries: &[&str], mode: Mode) -> Peer {
    let dirty_bitmap = Some("daily".to_owned());
    let mut peer = Peer::haggling(vec![Export { dirty_bitmap, ..Export::new("disk", 1 << 46) }]);
    let number = if mode == Mode::Extended { EXTENDED_HEADERS } else { STRUCTURED_REPLY };
    peer.feed(&option(number, &[]));
    peer.feed(&option(SET_META, &meta_data("disk", queries)));
    peer.feed(&option(GO, &info_data("disk", &[])));
    peer.seen.clear();
    peer.out.clear();
    peer
}

/// Id, length and flags of the descriptors of each chunk; only the last chunk ends the reply.
fn chunks(peer: &mut Peer, request: &Request, dirty: &[DirtyExtent]) -> Vec<(u32, Vec<u32>)> {
    peer.session.block_status(request, &[extent(512, HOLE)], dirty, &mut peer.out);
    let replies = replies(&peer.out);
    let ends: Vec<bool> = replies.iter().map(|reply| reply.done).collect();
    assert_eq!(ends.iter().position(|done| *done), Some(ends.len() - 1));
    let numbers =
        |reply: &Reply| reply.payload[4..].as_chunks::<4>().0.iter().map(|one| be32(one)).collect();
    replies.iter().map(|reply| (be32(&reply.payload), numbers(reply))).collect()
}

#[test]
fn each_selected_context_has_its_own_extents() {
    const DIRTY: &str = "qemu:dirty-bitmap:daily";
    let runs = [(4096, true), (512, true), (512, false), (1 << 30, true)];
    let runs = runs.map(|(len_bytes, is_dirty)| DirtyExtent { len_bytes, is_dirty });
    let allocation = (1, vec![512, 3]);
    let dirty = (2, vec![4608, 1, 512, 0, 4880, 1]);
    for (queries, expected) in [
        (&[DIRTY][..], slice::from_ref(&dirty)),
        (&["base:allocation"], slice::from_ref(&allocation)),
        (&[DIRTY, "base:allocation"], &[allocation.clone(), dirty.clone()]),
    ] {
        let mut peer = tracked(queries, Mode::Structured);
        let request = ask(&mut peer, Mode::Structured, 10_000, 0);
        assert_eq!(chunks(&mut peer, &request, &runs), expected);
    }
}

#[test]
fn range_without_known_bits_is_dirty() {
    let mut peer = tracked(&["qemu:dirty-bitmap:daily"], Mode::Structured);
    let request = ask(&mut peer, Mode::Structured, 8192, 0);
    assert_eq!(chunks(&mut peer, &request, &[]), [(2, vec![8192, 1])]);
}

#[test]
fn payload_of_a_status_selects_among_the_contexts_of_the_connection() {
    let both = ["qemu:dirty-bitmap:daily", "base:allocation"];
    let filtered = |queries: &[&str], ids: &[u32]| {
        let mut peer = tracked(queries, Mode::Extended);
        let len = 8 + 4 * ids.len() as u64;
        let mut bytes = Ask::new(BLOCK_STATUS, 0, len).flags(PAYLOAD_LEN).bytes(Mode::Extended);
        bytes.extend(512u64.to_be_bytes());
        bytes.extend(ids.iter().flat_map(|id| id.to_be_bytes()));
        peer.feed(&bytes);
        match &peer.take_seen()[..] {
            [SessionOutput::Request(request)] => Some((request.len_bytes, request.contexts)),
            other => {
                assert!(other.is_empty(), "{other:?}");
                assert_eq!(error_of(&peer.out), 22);
                None
            }
        }
    };
    let of = |allocation, dirty| Some((512, Contexts { allocation, dirty }));
    assert_eq!(filtered(&both, &[2]), of(false, true));
    assert_eq!(filtered(&both, &[1]), of(true, false));
    assert_eq!(filtered(&both, &[2, 1]), of(true, true));
    for ids in [&[3][..], &[0], &[1, 1], &[2, 2], &[1, 3], &[1, 2, 1], &[]] {
        assert_eq!(filtered(&both, ids), None, "{ids:?}");
    }
    assert_eq!(filtered(&both[..1], &[1]), None, "it was not selected");
    assert_eq!(filtered(&both[..1], &[2, 1]), None);
}
