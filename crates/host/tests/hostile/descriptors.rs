//! Kick, call and error descriptors that are no events, or do not what events do.

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketType};

use super::Case;
use super::messages::goes_on;
use crate::guest::*;

/// Each of these descriptors is refused as kick, call and error.
fn refused(guest: &mut Guest, fds: &[OwnedFd]) {
    for fd in fds {
        for request in [SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR] {
            assert!(!guest.try_command(request, &[0; 8], &[fd.as_fd()]), "{request}");
        }
        goes_on(guest);
    }
}

fn open(path: &str, flags: OFlags) -> OwnedFd {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

/// A path of a descriptor, which can be named and not used.
fn path_of(fd: &impl AsRawFd) -> OwnedFd {
    open(&format!("/proc/self/fd/{}", fd.as_raw_fd()), OFlags::PATH)
}

/// A descriptor to which a write blocks.
fn full() -> OwnedFd {
    let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    fd
}

fn set(guest: &mut Guest, request: u32, fd: &OwnedFd) {
    assert!(guest.try_command(request, &[0; 8], &[fd.as_fd()]));
}

/// Runs a request whose end is seen in memory: no call comes.
fn run_silently(guest: &mut Guest) {
    guest.push(0, 0, FLUSH, 0, 0);
    guest.kick(0);
    while !guest.has_ended(0) {
        std::thread::yield_now();
    }
    guest.ended(0);
}

/// Its queue writes to a full descriptor, and waits there for good.
fn blocks_again(guest: &mut Guest, fd: &OwnedFd) {
    rustix::io::ioctl_fionbio(fd, false).unwrap();
    guest.push(0, 0, FLUSH, 0, 0);
    guest.kick(0);
}

pub(crate) const CASES: &[Case] = &[
    ("devices, files, directories and paths", "", |guest| {
        let pipe = rustix::pipe::pipe().unwrap();
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        refused(
            guest,
            &[
                open("/dev/zero", OFlags::RDWR),
                open("/dev/full", OFlags::WRONLY),
                open("/", OFlags::RDONLY),
                open("/proc/self/exe", OFlags::RDONLY),
                open("/", OFlags::PATH),
                path_of(&event),
                path_of(&pipe.0),
                guest.memory.try_clone().unwrap().into(),
            ],
        );
    }),
    ("sockets and other anonymous files", "", |guest| {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        refused(guest, &[socket, epoll::create(epoll::CreateFlags::CLOEXEC).unwrap()]);
    }),
    ("signals of the server as a kick", "", |guest| {
        // To read from such a descriptor would take SIGTERM away from the server.
        // SAFETY: the set is initialised, and the descriptor has no other owner.
        let fd = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            std::os::fd::FromRawFd::from_raw_fd(libc::signalfd(-1, &raw const set, 0))
        };
        refused(guest, &[fd]);
    }),
    ("call and error are sockets, as those of User-Mode Linux", "", |guest| {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let theirs = theirs.into();
        set(guest, SET_VRING_ERR, &theirs);
        set(guest, SET_VRING_CALL, &theirs);
        guest.push(0, 0, FLUSH, 0, 0);
        guest.kick(0);
        while !guest.has_ended(0) {
            ours.read_exact(&mut [0; 8]).unwrap();
        }
        guest.stop(0);
    }),
    ("full call descriptor", "", |guest| {
        set(guest, SET_VRING_CALL, &full());
        (0..3).for_each(|_| run_silently(guest));
        guest.stop(0);
    }),
    ("full call descriptor that blocks again", "", |guest| {
        let call = full();
        set(guest, SET_VRING_CALL, &call);
        blocks_again(guest, &call);
        guest.stop(0);
    }),
    ("full pipe as a call that blocks again", "", |guest| {
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
        set(guest, SET_VRING_CALL, &writer);
        blocks_again(guest, &writer);
        guest.stop(0);
    }),
    ("front end leaves a queue that waits for its call", "", |guest| {
        let call = full();
        set(guest, SET_VRING_CALL, &call);
        blocks_again(guest, &call);
    }),
    ("kick that never fires", "", |guest| {
        set(guest, SET_VRING_KICK, &eventfd(0, EventfdFlags::empty()).unwrap());
        guest.push(0, 0, FLUSH, 0, 0);
        guest.stop(0);
    }),
    ("kick that always fires", "", |guest| {
        let kick = eventfd(u32::MAX, EventfdFlags::SEMAPHORE).unwrap();
        set(guest, SET_VRING_KICK, &kick);
        guest.push(0, 0, FLUSH, 0, 0);
        assert_eq!(guest.ended(0).0, 0);
        guest.stop(0);
    }),
    ("kick is a pipe without a writer", "no writer any more", |guest| {
        set(guest, SET_VRING_KICK, &rustix::pipe::pipe().unwrap().0);
        assert!(guest.is_stopped(0));
    }),
    ("kick is the wrong end of a pipe", "is stopped", |guest| {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        set(guest, SET_VRING_KICK, &writer);
        drop(reader);
        assert!(guest.is_stopped(0));
    }),
    ("call is the wrong end of a pipe, or has no reader", "", |guest| {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        set(guest, SET_VRING_CALL, &reader);
        run_silently(guest);
        drop(reader);
        set(guest, SET_VRING_CALL, &writer);
        run_silently(guest);
    }),
    ("call and error are the kick", "", |guest| {
        let fd = eventfd(0, EventfdFlags::empty()).unwrap();
        for request in [SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR] {
            set(guest, request, &fd);
        }
        guest.push(0, 0, FLUSH, 0, 0);
        rustix::io::write(&fd, &1u64.to_ne_bytes()).unwrap();
        while !guest.has_ended(0) {
            std::thread::yield_now();
        }
        guest.stop(0);
    }),
];
