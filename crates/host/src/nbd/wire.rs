//! A connected socket to a server, in the clear or with TLS. No call here waits, except those with
//! a deadline.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, SendFlags};

use super::uri::Uri;
use crate::file_op::{iovec, message};
use crate::poll;
use crate::tls::{Shake, Stream};

/// Receive size; more than the largest piece of a handshake.
const RECEIVE_BYTES: usize = 4096;

/// A connected socket.
#[derive(Debug)]
pub(super) struct Wire {
    socket: OwnedFd,
    tls: Option<Box<Stream>>,
}

impl Wire {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, tls: None }
    }

    /// Performs TLS's handshake. Everything later is encrypted.
    pub(super) fn start_tls(&mut self, uri: &Uri, deadline: Instant) -> Result<(), String> {
        let mut stream = Box::new(Stream::new(uri.tls_connection()?));
        loop {
            let state = stream.shake(self.socket.as_fd()).map_err(|error| error.to_string())?;
            match state {
                Shake::Done => break,
                Shake::WaitsForInput => self.wait(false, deadline)?,
                Shake::WaitsForOutput => self.wait(true, deadline)?,
            }
        }
        self.tls = Some(stream);
        Ok(())
    }

    /// Sends available vectors without waiting; returns the accepted bytes. TLS may hold accepted
    /// bytes back ([`Wire::has_unsent`]); the next call sends them.
    pub(super) fn send_now(&mut self, vecs: &mut [libc::iovec]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.send_plain(vecs) };
        let before: usize = vecs.iter().map(|vec| vec.iov_len).sum();
        let sent = tls.send(self.socket.as_fd(), vecs, SendFlags::DONTWAIT)?;
        Ok(before - vecs[sent..].iter().map(|vec| vec.iov_len).sum::<usize>())
    }

    fn send_plain(&self, vecs: &mut [libc::iovec]) -> io::Result<usize> {
        let header = message(vecs);
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: every vector describes memory of the caller that stays until this returns.
        let sent = unsafe { libc::sendmsg(self.socket.as_raw_fd(), &raw const header, flags) };
        done(sent).map(Option::unwrap_or_default)
    }

    /// Whether accepted bytes are not sent yet.
    pub(super) fn has_unsent(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_unsent())
    }

    /// Whether bytes can be received that no poll reports.
    pub(super) fn has_received(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_received())
    }

    /// Receives into a buffer without waiting; `None` without bytes, zero at the end.
    pub(super) fn receive_now(&mut self, to: &mut [u8]) -> io::Result<Option<usize>> {
        if let Some(tls) = &mut self.tls {
            return tls.receive(self.socket.as_fd(), to, RecvFlags::DONTWAIT);
        }
        match rustix::net::recv(&self.socket, to, RecvFlags::DONTWAIT) {
            Ok((_, len)) => Ok(Some(len)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Like [`Wire::receive_now`], into vectors of memory that nothing else uses until it returns.
    pub(super) fn receive_vectors(
        &mut self,
        vecs: &mut [libc::iovec],
    ) -> io::Result<Option<usize>> {
        if let (Some(tls), Some(first)) = (&mut self.tls, vecs.first()) {
            // SAFETY: the caller owns the memory of the vectors.
            let to = unsafe {
                std::slice::from_raw_parts_mut(first.iov_base.cast::<u8>(), first.iov_len)
            };
            return tls.receive(self.socket.as_fd(), to, RecvFlags::DONTWAIT);
        }
        let mut header = message(vecs);
        // SAFETY: the caller owns the memory of the vectors.
        done(unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) })
    }

    /// Sends all bytes before the deadline.
    pub(super) fn send_all(&mut self, mut bytes: &[u8], deadline: Instant) -> Result<(), String> {
        loop {
            let mut vecs = [iovec(bytes.as_ptr().cast_mut(), bytes.len())];
            let sent = self.send_now(&mut vecs).map_err(|error| self.reason(&error))?;
            bytes = &bytes[sent..];
            if bytes.is_empty() && !self.has_unsent() {
                return Ok(());
            }
            self.wait(true, deadline)?;
        }
    }

    /// The reason of a failed send: a server that refuses a certificate says so before it closes.
    fn reason(&mut self, error: &io::Error) -> String {
        match self.receive_now(&mut [0; RECEIVE_BYTES]) {
            Err(received) if received.kind() == io::ErrorKind::InvalidData => lost(&received),
            _ => lost(error),
        }
    }

    /// Appends received bytes until the deadline; zero means the end of the stream.
    pub(super) fn receive(&mut self, to: &mut Vec<u8>, deadline: Instant) -> Result<usize, String> {
        let mut buf = [0; RECEIVE_BYTES];
        loop {
            if let Some(len) = self.receive_now(&mut buf).map_err(|error| lost(&error))? {
                to.extend_from_slice(&buf[..len]);
                return Ok(len);
            }
            self.wait(false, deadline)?;
        }
    }

    /// Waits for bytes, or for room for them.
    fn wait(&self, writable: bool, deadline: Instant) -> Result<(), String> {
        let left = time_left(deadline).ok_or("the server does not answer")?;
        let socket = self.socket.as_fd();
        let waited = if writable {
            poll::writable(socket, &[], Some(left))
        } else {
            poll::readable(&[Some(socket)], Some(left)).map(drop)
        };
        waited.map_err(|error| error.to_string())
    }

    /// Sends the last bytes, and ends TLS, if the socket accepts them now.
    pub(super) fn close(mut self, bytes: &[u8]) {
        let mut vecs = [iovec(bytes.as_ptr().cast_mut(), bytes.len())];
        // If the server does not accept it, it sees the connection closed.
        let _ = self.send_now(&mut vecs);
        if let Some(tls) = &mut self.tls {
            tls.end(self.socket.as_fd());
        }
    }

    /// The socket alone, of a connection that is given up.
    pub(super) fn into_socket(self) -> OwnedFd {
        self.socket
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

pub(super) fn time_left(deadline: Instant) -> Option<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left)
}

/// Words for a failed connection.
pub(super) fn lost(error: &io::Error) -> String {
    match error.kind() {
        // A failure of TLS describes itself.
        io::ErrorKind::InvalidData => error.to_string(),
        _ => format!("the connection is lost: {error}"),
    }
}

/// Result of a non-blocking call.
fn done(result: isize) -> io::Result<Option<usize>> {
    if let Ok(len) = usize::try_from(result) {
        return Ok(Some(len));
    }
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
        _ => Err(error),
    }
}
