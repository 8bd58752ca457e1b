//! Messages with descriptors on a Unix socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use blockyard_protocol::vhost_user::MEMORY_REGIONS_MAX;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketType, recvmsg, sendmsg, sockopt,
};

/// Fills `bytes`, and moves descriptors that came beside them to the end of `descriptors`. Returns
/// false at the end of the stream. It never takes a byte of the next message, whose descriptors
/// would be taken for those of this one.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<bool> {
    let mut done = 0;
    while done < bytes.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MEMORY_REGIONS_MAX))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let rest = &mut [IoSliceMut::new(&mut bytes[done..])];
        let received = match recvmsg(socket, rest, &mut beside, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR | Errno::AGAIN) => continue,
            received => received?,
        };
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(came) = message {
                descriptors.extend(came);
            }
        }
        let is_cut = received.flags.contains(ReturnFlags::CTRUNC);
        if is_cut || descriptors.len() > MEMORY_REGIONS_MAX {
            return Err(io::Error::other("a message has too many descriptors"));
        }
        if received.bytes == 0 {
            return Ok(false);
        }
        done += received.bytes;
    }
    Ok(true)
}

/// Sends all bytes, and a descriptor beside the first.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &[IoSlice::new(&bytes[done..])];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        let descriptors = descriptor.filter(|_| done == 0);
        if let Some(descriptors) = descriptors.as_ref().map(std::slice::from_ref) {
            assert!(beside.push(SendAncillaryMessage::ScmRights(descriptors)), "it has room");
        }
        match sendmsg(socket, rest, &mut beside, SendFlags::NOSIGNAL) {
            Ok(len) => done += len,
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The channel for this side's messages: a stream socket, or a pipe, as User-Mode Linux has it.
///
/// The front end shares the flags of the descriptor that it sent, and may make it blocking again.
/// So a socket is told with each message not to wait, and a pipe is opened anew.
#[derive(Debug)]
pub(super) enum Notices {
    Socket(OwnedFd),
    Pipe(OwnedFd),
}

impl Notices {
    /// `None` for any other descriptor, and for a pipe without a reader.
    pub(super) fn over(fd: OwnedFd) -> Option<Self> {
        let facts = rustix::fs::fstat(&fd).ok()?;
        match FileType::from_raw_mode(facts.st_mode) {
            FileType::Fifo => {
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
                rustix::fs::open(path, flags, Mode::empty()).ok().map(Self::Pipe)
            }
            FileType::Socket if sockopt::socket_type(&fd) == Ok(SocketType::STREAM) => {
                Some(Self::Socket(fd))
            }
            _ => None,
        }
    }

    /// Sends a message without waiting; returns whether the channel can be used further. A full
    /// channel holds messages that the front end has not read: the next one would say the same.
    pub(super) fn send(&self, message: &[u8]) -> bool {
        let sent = match self {
            Self::Socket(socket) => {
                rustix::net::send(socket, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            }
            Self::Pipe(pipe) => rustix::io::write(pipe, message),
        };
        match sent {
            Ok(len) => len == message.len(),
            Err(error) => error == Errno::AGAIN,
        }
    }
}
