//! Messages that are wrong in themselves.

use std::os::fd::AsFd;

use super::Case;
use crate::guest::*;

/// A header of any content, and a body.
fn raw(request: u32, flags: u32, len: u32, body: &[u8]) -> Vec<u8> {
    [words(&[request, flags, len]), body.to_vec()].concat()
}

/// Sends it, and waits for the end of the connection.
fn ends(guest: &mut Guest, bytes: &[u8]) {
    guest.send(bytes);
    assert!(guest.is_disconnected());
}

/// A message that is refused, after which the guest goes on.
fn refused(guest: &mut Guest, request: u32, body: &[u8]) {
    assert!(!guest.try_command(request, body, &[]), "message {request}");
    goes_on(guest);
}

pub(super) fn goes_on(guest: &mut Guest) {
    assert!(guest.lives(0) && guest.lives(1));
    assert_eq!((guest.run(0, FLUSH, 0, 0), guest.run(1, FLUSH, 0, 0)), (0, 0));
}

pub(crate) const CASES: &[Case] = &[
    ("version 0", "wrong flags", |guest| ends(guest, &raw(1, 0, 0, &[]))),
    ("version 2", "wrong flags", |guest| ends(guest, &raw(1, 2, 0, &[]))),
    ("a reply", "wrong flags", |guest| ends(guest, &raw(1, 5, 0, &[]))),
    ("body of 4 GiB", "above this server's limit", |guest| ends(guest, &raw(5, 1, u32::MAX, &[]))),
    ("body above the limit", "above this server's", |guest| ends(guest, &raw(5, 1, 513, &[]))),
    ("body too short", "does not fit", |guest| ends(guest, &raw(2, 1, 4, &[0; 4]))),
    ("body too long", "does not fit", |guest| ends(guest, &raw(2, 1, 9, &[0; 9]))),
    ("body of a question", "does not fit", |guest| ends(guest, &raw(1, 1, 8, &[0; 8]))),
    ("table without its regions", "does not fit", |guest| {
        ends(guest, &raw(5, 1, 8, &words(&[8, 0])));
    }),
    ("table of 2^32 regions", "does not fit", |guest| {
        ends(guest, &raw(5, 1, 8, &words(&[u32::MAX, 0])));
    }),
    ("message 0", "does not offer it", |guest| ends(guest, &raw(0, 1, 0, &[]))),
    ("message 2^32 - 1", "does not offer it", |guest| ends(guest, &raw(u32::MAX, 1, 0, &[]))),
    ("unknown message that wants a reply", "", |guest| refused(guest, 4096, &[])),
    ("configuration beyond its end", "does not fit", |guest| {
        ends(guest, &raw(GET_CONFIG, 9, 20, &[words(&[252, 8, 0]), vec![0; 8]].concat()));
    }),
    ("configuration whose end wraps", "does not fit", |guest| {
        ends(guest, &raw(GET_CONFIG, 9, 20, &[words(&[u32::MAX, 8, 0]), vec![0; 8]].concat()));
    }),
    ("base of no queue", "queue 64 does not exist", |guest| {
        ends(guest, &raw(GET_VRING_BASE, 9, 8, &words(&[64, 0])));
    }),
    ("records of 65535 queues", "does not fit 65535 queues", |guest| {
        ends(guest, &raw(GET_INFLIGHT_FD, 9, 24, &[vec![0; 16], vec![0xff; 8]].concat()));
    }),
    ("features that were not offered", "", |guest| {
        refused(guest, SET_FEATURES, &u64::MAX.to_le_bytes());
    }),
    ("ring of no queue", "", |guest| refused(guest, SET_VRING_NUM, &words(&[64, 256]))),
    ("ring of 2^32 - 1", "", |guest| refused(guest, SET_VRING_NUM, &words(&[u32::MAX, 256]))),
    ("ring of 3 entries", "", |guest| refused(guest, SET_VRING_NUM, &words(&[2, 3]))),
    ("ring of no entries", "", |guest| refused(guest, SET_VRING_NUM, &words(&[2, 0]))),
    ("ring of 65536 entries", "", |guest| refused(guest, SET_VRING_NUM, &words(&[2, 65536]))),
    ("index of 65536", "", |guest| refused(guest, SET_VRING_BASE, &words(&[2, 65536]))),
    ("half a switch", "", |guest| refused(guest, SET_VRING_ENABLE, &words(&[0, 2]))),
    ("kick of no queue", "", |guest| refused(guest, SET_VRING_KICK, &200u64.to_le_bytes())),
    ("kick without descriptor", "", |guest| refused(guest, SET_VRING_KICK, &[0; 8])),
    ("queue that polls", "", |guest| refused(guest, SET_VRING_KICK, &0x100u64.to_le_bytes())),
    ("size of a running ring", "", |guest| refused(guest, SET_VRING_NUM, &words(&[0, 128]))),
    ("index of a running ring", "", |guest| refused(guest, SET_VRING_BASE, &words(&[0, 1]))),
    ("descriptors beside a question", "", |guest| {
        let fd = guest.memory.try_clone().unwrap();
        guest.message(GET_FEATURES, 0, &[], &[fd.as_fd(); 8]);
        assert_eq!(guest.reply().len(), 8);
        goes_on(guest);
    }),
    ("nine descriptors", "too many descriptors", |guest| {
        let fd = guest.memory.try_clone().unwrap();
        guest.message(GET_FEATURES, 0, &[], &[fd.as_fd(); 9]);
        assert!(guest.is_disconnected());
    }),
    ("two kicks at once", "", |guest| {
        let fd = guest.memory.try_clone().unwrap();
        assert!(!guest.try_command(SET_VRING_KICK, &[0; 8], &[fd.as_fd(); 2]));
        goes_on(guest);
    }),
    ("no call, with a descriptor", "", |guest| {
        // The message says that there is none, so it is closed and not used.
        let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        assert!(guest.try_command(SET_VRING_CALL, &0x100u64.to_le_bytes(), &[fd.as_fd()]));
        guest.push(0, 0, FLUSH, 0, 0);
        guest.kick(0);
        while !guest.has_ended(0) {
            std::hint::spin_loop();
        }
        guest.stop(0);
        assert!(rustix::io::read(&fd, &mut [0; 8]).is_err(), "it was not called");
    }),
];
