//! A TLS connection over a socket that the caller owns and passes to each call.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::BorrowedFd;

use rustix::net::{RecvFlags, SendFlags};
use rustls::Connection;

use super::explain;

/// Receive size: a record has at most 16 KiB, and `rustls` itself asks for 4 KiB at a time.
const RECEIVE_BYTES: usize = 64 << 10;
/// Plaintext that is encrypted before it is sent; more would only leave the cache.
const BATCH_BYTES: usize = 64 << 10;
const BATCH_SLICES: usize = 64;

/// State of a TLS handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shake {
    Done,
    WaitsForInput,
    WaitsForOutput,
}

/// One end of a TLS connection.
#[derive(Debug)]
pub(crate) struct Stream {
    connection: Connection,
    /// The other end, for errors.
    peer: &'static str,
    /// `start..end` is received and not passed to `rustls`.
    received: Vec<u8>,
    start: usize,
    end: usize,
    /// Plaintext may be left without another receive.
    has_received: bool,
}

impl Stream {
    pub(crate) fn new(connection: impl Into<Connection>) -> Self {
        let mut connection = connection.into();
        // `send` limits the buffer itself.
        connection.set_buffer_limit(None);
        let peer = match connection {
            Connection::Server(_) => "the client",
            Connection::Client(_) => "the server",
        };
        let received = vec![0; RECEIVE_BYTES];
        Self { connection, peer, received, start: 0, end: 0, has_received: false }
    }

    /// Continues the handshake without waiting.
    ///
    /// # Errors
    /// The connection has ended, or one end refuses the other.
    pub(crate) fn shake(&mut self, socket: BorrowedFd<'_>) -> io::Result<Shake> {
        loop {
            if !self.flush(socket, SendFlags::DONTWAIT)? {
                return Ok(Shake::WaitsForOutput);
            }
            if !self.connection.is_handshaking() {
                self.has_received = true;
                return Ok(Shake::Done);
            }
            if self.start == self.end {
                match self.fill(socket, RecvFlags::DONTWAIT)? {
                    None => return Ok(Shake::WaitsForInput),
                    Some(0) => {
                        let problem = format!("{} ended the TLS handshake", self.peer);
                        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, problem));
                    }
                    Some(_) => {}
                }
            }
            self.decrypt(socket)?;
        }
    }

    /// The first name in the certificate of the other end.
    pub(crate) fn peer_name(&self) -> Option<String> {
        let certificate = self.connection.peer_certificates()?.first()?;
        super::identity(certificate)?.names.into_iter().next()
    }

    /// Whether plaintext may be available although nothing is in the socket.
    pub(crate) fn has_received(&self) -> bool {
        self.has_received
    }

    /// Whether encrypted bytes wait to be sent.
    pub(crate) fn has_unsent(&self) -> bool {
        self.connection.wants_write()
    }

    /// Receives plaintext. `Ok(None)` if the socket has none, or none before its time limit;
    /// `Ok(Some(0))` at the end of the stream. An end without close_notify is no error: NBD's
    /// requests have lengths, so nothing is taken for complete that is cut off.
    ///
    /// # Errors
    /// The connection failed, or bytes were changed on the way.
    pub(crate) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        to: &mut [u8],
        flags: RecvFlags,
    ) -> io::Result<Option<usize>> {
        loop {
            match self.connection.reader().read(to) {
                Ok(len) => {
                    self.has_received = self.start < self.end || len == to.len();
                    return Ok(Some(len));
                }
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Some(0)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if self.start == self.end && self.fill(socket, flags)?.is_none() {
                self.has_received = false;
                return Ok(None);
            }
            self.decrypt(socket)?;
        }
    }

    /// Receives ciphertext; `Some(0)` at the end of the stream.
    fn fill(&mut self, socket: BorrowedFd<'_>, flags: RecvFlags) -> io::Result<Option<usize>> {
        loop {
            match rustix::net::recv(socket, &mut self.received[..], flags) {
                Ok((_, len)) => {
                    (self.start, self.end) = (0, len);
                    return Ok(Some(len));
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Passes received bytes to `rustls`; none are the end of the stream.
    fn decrypt(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let mut bytes = &self.received[self.start..self.end];
        self.start += self.connection.read_tls(&mut bytes)?;
        if let Err(error) = self.connection.process_new_packets() {
            // The alert tells the other end the reason.
            let _ = self.flush(socket, SendFlags::DONTWAIT);
            let problem = explain(&error, self.peer);
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        // The answer to a change of keys; what does not fit goes before the next data.
        self.flush(socket, SendFlags::DONTWAIT).map(drop)
    }

    /// Encrypts and sends; returns the number of consumed `vecs`, of which the next one is
    /// shortened
    /// to its rest. Encrypted bytes may be left ([`Stream::has_unsent`]), and so may be vectors.
    ///
    /// # Errors
    /// The connection failed.
    pub(crate) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        vecs: &mut [libc::iovec],
        flags: SendFlags,
    ) -> io::Result<usize> {
        let mut next = 0;
        while self.flush(socket, flags)? && next < vecs.len() {
            let mut batch = [IoSlice::new(&[]); BATCH_SLICES];
            let mut len_bytes = 0;
            let rest = &mut vecs[next..];
            for (slice, vec) in batch.iter_mut().zip(&*rest) {
                let taken = vec.iov_len.min(BATCH_BYTES - len_bytes);
                // SAFETY: every vector describes memory of the caller that stays until this
                // returns.
                *slice = IoSlice::new(unsafe {
                    std::slice::from_raw_parts(vec.iov_base.cast::<u8>(), taken)
                });
                len_bytes += taken;
            }
            let written = self.connection.writer().write_vectored(&batch)?;
            next += consume(rest, written);
        }
        Ok(next)
    }

    /// Sends encrypted bytes; returns whether all are sent.
    fn flush(&mut self, socket: BorrowedFd<'_>, flags: SendFlags) -> io::Result<bool> {
        let flags = flags | SendFlags::NOSIGNAL;
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Sender { socket, flags }) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Announces the end (close_notify), if the socket accepts it now.
    pub(crate) fn end(&mut self, socket: BorrowedFd<'_>) {
        self.connection.send_close_notify();
        let _ = self.flush(socket, SendFlags::DONTWAIT);
    }
}

/// Drops the first bytes of vectors; returns the number of empty ones at the front.
fn consume(vecs: &mut [libc::iovec], mut len_bytes: usize) -> usize {
    let mut next = 0;
    while next < vecs.len() && len_bytes >= vecs[next].iov_len {
        len_bytes -= vecs[next].iov_len;
        next += 1;
    }
    if len_bytes > 0 {
        vecs[next].iov_base = vecs[next].iov_base.wrapping_byte_add(len_bytes);
        vecs[next].iov_len -= len_bytes;
    }
    next
}

/// The socket as a destination of `rustls`.
struct Sender<'a> {
    socket: BorrowedFd<'a>,
    flags: SendFlags,
}

impl Write for Sender<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(self.socket, bytes, self.flags)?)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut no_control = rustix::net::SendAncillaryBuffer::default();
        Ok(rustix::net::sendmsg(self.socket, slices, &mut no_control, self.flags)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
