//! Rings at places where there is no memory, and absurd indices.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::Case;
use super::messages::goes_on;
use crate::guest::*;

/// A third queue of this size, whose parts are at these places: descriptors, used, available.
fn start(guest: &mut Guest, ring_len: u32, base: u32, at: [u64; 3]) -> OwnedFd {
    let kick = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let error = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let number = 2u64.to_le_bytes();
    assert!(guest.try_command(SET_VRING_NUM, &words(&[2, ring_len]), &[]));
    assert!(guest.try_command(SET_VRING_BASE, &words(&[2, base]), &[]));
    assert!(guest.try_command(SET_VRING_ADDR, &addresses(2, at), &[]));
    assert!(guest.try_command(SET_VRING_ERR, &number, &[error.as_fd()]));
    assert!(guest.try_command(SET_VRING_KICK, &number, &[kick.as_fd()]));
    assert!(guest.try_command(SET_VRING_ENABLE, &words(&[2, 1]), &[]));
    rustix::io::write(&kick, &1u64.to_ne_bytes()).unwrap();
    error
}

/// It stops, and the others go on.
fn stops(guest: &mut Guest, ring_len: u32, base: u32, at: [u64; 3]) {
    let error = start(guest, ring_len, base, at);
    let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
    let mut polled = [PollFd::from_borrowed_fd(error.as_fd(), PollFlags::IN)];
    assert_eq!(poll(&mut polled, Some(&limit)).unwrap(), 1, "the error descriptor is silent");
    goes_on(guest);
}

fn refused(guest: &mut Guest, at: [u64; 3]) {
    assert!(!guest.try_command(SET_VRING_ADDR, &addresses(2, at), &[]), "{at:x?}");
    goes_on(guest);
}

/// Memory of the third queue, unused.
const AT: u64 = FRONT_END + 0x2_0000;
const USED: u64 = AT + USED_AT;
const AVAILABLE: u64 = AT + AVAILABLE_AT;
const OUTSIDE: &str = "its ring is outside";
const HIGHEST: u64 = u64::MAX - 15;

fn end() -> u64 {
    FRONT_END + memory_bytes()
}

pub(crate) const CASES: &[Case] = &[
    ("descriptors misaligned", "", |guest| refused(guest, [AT + 8, USED, AVAILABLE])),
    ("used ring misaligned", "", |guest| refused(guest, [AT, USED + 2, AVAILABLE])),
    ("available ring misaligned", "", |guest| refused(guest, [AT, USED, AVAILABLE + 1])),
    ("ring with an unknown flag", "", |guest| {
        let mut body = addresses(2, [AT, USED, AVAILABLE]);
        body[4] = 2;
        assert!(!guest.try_command(SET_VRING_ADDR, &body, &[]));
        goes_on(guest);
    }),
    ("descriptors at 0", OUTSIDE, |guest| stops(guest, 256, 0, [0, USED, AVAILABLE])),
    ("descriptors at the highest address", OUTSIDE, |guest| {
        stops(guest, 256, 0, [HIGHEST, USED, AVAILABLE]);
    }),
    ("descriptors one behind the end", OUTSIDE, |guest| {
        stops(guest, 256, 0, [end() - 255 * 16, USED, AVAILABLE]);
    }),
    ("used ring behind the end", OUTSIDE, |guest| {
        stops(guest, 256, 0, [AT, end() - 4 - 256 * 8, AVAILABLE]);
    }),
    ("available ring behind the end", OUTSIDE, |guest| {
        stops(guest, 256, 0, [AT, USED, end() - 4 - 256 * 2]);
    }),
    ("guest addresses instead of the front end's", OUTSIDE, |guest| {
        stops(guest, 256, 0, [0x2_0000, 0x2_2000, 0x2_1000]);
    }),
    ("ring whose base is ahead of its index", "requests are available in a ring of 256", |guest| {
        stops(guest, 256, 1, [AT, USED, AVAILABLE]);
    }),
    ("ring whose index is ahead", "40000 requests are available in a ring", |guest| {
        guest.set_available(0, 40001);
        guest.kick(0);
        assert!(guest.is_stopped(0));
        assert_eq!(guest.run(1, FLUSH, 0, 0), 0);
        assert_eq!(guest.stop(0), 1);
    }),
    ("ring of one entry, and one of 1024", "", |guest| {
        let error = start(guest, 1, 0, [AT, USED, AVAILABLE]);
        goes_on(guest);
        guest.ask(GET_VRING_BASE, &words(&[2, 0]));
        start(guest, 1024, 0, [AT, AT + 0x6000, AT + 0x4000]);
        goes_on(guest);
        drop(error);
    }),
    ("three parts of a ring at one place", "", |guest| {
        start(guest, 256, 0, [AT, AT, AT]);
        goes_on(guest);
    }),
    ("rings of two queues at one place", "", |guest| {
        start(guest, 256, 1, [FRONT_END, FRONT_END + USED_AT, FRONT_END + AVAILABLE_AT]);
        goes_on(guest);
    }),
    ("records of requests in flight of another ring", "that of another ring", |guest| {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[7, 0], 8).unwrap();
        let mut body = (1u64 << 20).to_le_bytes().to_vec();
        body.extend([0; 8]);
        body.extend(words(&[1 | 256 << 16, 0]));
        assert!(guest.try_command(SET_INFLIGHT_FD, &body, &[file.as_fd()]));
        assert!(guest.is_stopped(0));
        assert_eq!(guest.run(1, FLUSH, 0, 0), 0);
    }),
    ("records that are longer than their file, or too short", "", |guest| {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        for len_bytes in [2u64 << 20, 64] {
            let mut body = len_bytes.to_le_bytes().to_vec();
            body.extend([0; 8]);
            body.extend(words(&[1 | 256 << 16, 0]));
            assert!(!guest.try_command(SET_INFLIGHT_FD, &body, &[file.as_fd()]));
            goes_on(guest);
        }
    }),
];
