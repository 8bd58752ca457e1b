//! A connected stream socket with plain calls, or with TLS on top of it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, SendFlags, Shutdown, sockopt};
use rustls::{ServerConfig, ServerConnection};

use crate::file_op::message;
use crate::tls::{Shake, Stream};

/// One client.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    pub(super) is_unix: bool,
    /// Time at which the server accepted it. The client has sent no request before.
    pub(super) accepted_at: Instant,
    /// Set once the client has started TLS. Only the client's own thread locks it.
    tls: OnceLock<Box<Mutex<Stream>>>,
}

impl Socket {
    pub(super) fn new(fd: OwnedFd, is_unix: bool) -> Self {
        if !is_unix {
            let _ = sockopt::set_tcp_nodelay(&fd, true);
            let _ = sockopt::set_socket_keepalive(&fd, true);
        }
        Self { fd, is_unix, accepted_at: Instant::now(), tls: OnceLock::new() }
    }

    /// The client, for the log: its address or process, and the name in its certificate. A process
    /// outside of this one's namespaces has no number.
    pub(super) fn peer_name(&self) -> String {
        let address = if self.is_unix {
            peer_process(&self.fd).unwrap_or_else(|| "a process".into())
        } else {
            let address = rustix::net::getpeername(&self.fd).ok().flatten();
            let address = address.and_then(|address| SocketAddr::try_from(address).ok());
            address.map_or_else(|| "a client".into(), |address| address.to_string())
        };
        match self.tls().and_then(|tls| tls.peer_name()) {
            Some(name) => format!("{address} ({name})"),
            None => address,
        }
    }

    /// Begins TLS; [`Socket::shake`] continues it.
    pub(super) fn start_tls(&self, config: &Arc<ServerConfig>) -> io::Result<()> {
        let connection = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        let _ = self.tls.set(Box::new(Mutex::new(Stream::new(connection))));
        Ok(())
    }

    /// Continues the TLS handshake without waiting.
    pub(super) fn shake(&self) -> io::Result<Shake> {
        self.tls().map_or(Ok(Shake::Done), |mut tls| tls.shake(self.as_fd()))
    }

    /// Ends TLS, if the client has started it. The end of the connection follows.
    pub(super) fn end_tls(&self) {
        if let Some(mut tls) = self.tls() {
            tls.end(self.as_fd());
        }
    }

    /// Whether bytes can be received that no poll reports.
    pub(super) fn has_received(&self) -> bool {
        self.tls().is_some_and(|tls| tls.has_received())
    }

    /// Whether accepted bytes are not sent yet.
    pub(super) fn has_unsent(&self) -> bool {
        self.tls().is_some_and(|tls| tls.has_unsent())
    }

    fn tls(&self) -> Option<MutexGuard<'_, Stream>> {
        let tls = self.tls.get()?;
        Some(tls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Receives available bytes, and waits for at least one. `Ok(None)` after the time limit.
    pub(super) fn receive(&self, base: *mut u8, len_bytes: usize) -> io::Result<Option<usize>> {
        if let Some(mut tls) = self.tls() {
            // SAFETY: the caller owns the range, which is initialised, until the call returns.
            let buf = unsafe { std::slice::from_raw_parts_mut(base, len_bytes) };
            return tls.receive(self.as_fd(), buf, RecvFlags::empty());
        }
        loop {
            // SAFETY: the caller owns the range until the call returns.
            let buf = unsafe {
                std::slice::from_raw_parts_mut(base.cast::<std::mem::MaybeUninit<u8>>(), len_bytes)
            };
            match rustix::net::recv(&self.fd, buf, RecvFlags::empty()) {
                Ok((_, len)) => return Ok(Some(len)),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Like [`Socket::receive`], after a poll has reported bytes. A part of a TLS record gives
    /// `Ok(None)`, because its rest may come late.
    pub(super) fn receive_reported(
        &self,
        base: *mut u8,
        len_bytes: usize,
    ) -> io::Result<Option<usize>> {
        if self.tls.get().is_none() {
            return self.receive(base, len_bytes);
        }
        // SAFETY: the caller owns the range, which is initialised, until the call returns.
        self.receive_now(unsafe { std::slice::from_raw_parts_mut(base, len_bytes) })
    }

    /// Receives available bytes without waiting. `Ok(None)` without any, `Ok(Some(0))` at the end
    /// of the stream.
    pub(super) fn receive_now(&self, bytes: &mut [u8]) -> io::Result<Option<usize>> {
        if let Some(mut tls) = self.tls() {
            return tls.receive(self.as_fd(), bytes, RecvFlags::DONTWAIT);
        }
        match rustix::net::recv(&self.fd, bytes, RecvFlags::DONTWAIT) {
            Ok((_, len)) => Ok(Some(len)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends as much as the system accepts without waiting; returns the length.
    pub(super) fn send_now(&self, bytes: &[u8]) -> io::Result<usize> {
        if self.tls.get().is_some() {
            let mut vecs = [crate::file_op::iovec(bytes.as_ptr().cast_mut(), bytes.len())];
            let all = self.send_what_fits(&mut vecs)? == 1;
            return Ok(if all { bytes.len() } else { bytes.len() - vecs[0].iov_len });
        }
        match rustix::net::send(&self.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(len) => Ok(len),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Limits the time of [`Socket::send`] for a client that does not read.
    pub(super) fn set_send_timeout(&self, limit: Duration) {
        let _ = sockopt::set_socket_timeout(&self.fd, sockopt::Timeout::Send, Some(limit));
    }

    /// Limits the time of [`Socket::receive`]; zero means no limit.
    pub(super) fn set_receive_timeout(&self, limit: Duration) {
        let limit = (!limit.is_zero()).then_some(limit);
        let _ = sockopt::set_socket_timeout(&self.fd, sockopt::Timeout::Recv, limit);
    }

    /// Sends all of `vecs`, which it consumes, and waits for the client to read them.
    pub(super) fn send(&self, vecs: &mut [libc::iovec]) -> io::Result<()> {
        self.send_with(vecs, 0).map(drop)
    }

    /// Sends as much as the socket accepts without waiting; returns the number of sent `vecs`. The
    /// next one is shortened to its rest.
    pub(super) fn send_what_fits(&self, vecs: &mut [libc::iovec]) -> io::Result<usize> {
        self.send_with(vecs, libc::MSG_DONTWAIT)
    }

    fn send_with(&self, vecs: &mut [libc::iovec], flags: libc::c_int) -> io::Result<usize> {
        if let Some(mut tls) = self.tls() {
            return tls.send(self.as_fd(), vecs, SendFlags::from_bits_retain(flags as u32));
        }
        let mut next = 0;
        let flags = libc::MSG_NOSIGNAL | flags;
        while next < vecs.len() {
            let rest = &mut vecs[next..];
            let header = message(rest);
            // SAFETY: every vector describes memory of the caller that stays until this returns.
            let sent = unsafe { libc::sendmsg(self.fd.as_raw_fd(), &raw const header, flags) };
            if sent < 0 {
                let error = io::Error::last_os_error();
                match error.kind() {
                    io::ErrorKind::Interrupted => continue,
                    io::ErrorKind::WouldBlock => break,
                    _ => return Err(error),
                }
            }
            let mut sent = sent as usize;
            while next < vecs.len() && sent >= vecs[next].iov_len {
                sent -= vecs[next].iov_len;
                next += 1;
            }
            if sent > 0 {
                vecs[next].iov_base = vecs[next].iov_base.wrapping_byte_add(sent);
                vecs[next].iov_len -= sent;
            }
        }
        Ok(next)
    }

    /// Stops receiving; the client may still read replies.
    pub(super) fn stop_receiving(&self) {
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Read);
    }

    /// Ends the connection, regardless of its thread's state.
    pub(super) fn shut_down(&self) {
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Both);
    }
}

/// The process at the other end of a Unix socket.
pub(super) fn peer_process(socket: &impl AsFd) -> Option<String> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len_bytes = size_of::<libc::ucred>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // rustix reads the number as a `Pid`, which cannot be zero.
    // SAFETY: the kernel writes at most this length into the structure, which is plain numbers.
    let asked = unsafe {
        let peer = (&raw mut peer).cast();
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, peer, &raw mut len_bytes)
    };
    let user = peer.uid;
    match peer.pid {
        _ if asked != 0 => None,
        0 => Some(format!("a process of user {user}")),
        pid => Some(format!("process {pid} of user {user}")),
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
