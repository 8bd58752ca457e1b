//! Sends decrypted pages to a unix socket without copying them: `vmsplice` into a pipe, `splice`
//! from there into the socket.
//!
//! The socket then holds references to our pages, and nobody says when the client has read them.
//! What is safe rests on flow control: at most the socket's send buffer, and one unit that is being
//! sent, can be unread. So pages are used in a ring that is longer than that by two units, and the
//! oldest unit is written again only when it must have been read. A client that moves the pages on
//! without copying them (`splice` out of the socket) could see later plaintext of its own
//! connection; so a ring belongs to one connection, and nothing but its replies is ever in it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use super::socket::Socket;
use crate::memory::Region;

/// Bytes of data in one unit: the best at the default send buffer of 208 KiB. A unit longer than
/// the send buffer makes client and server wait for each other.
pub(super) const UNIT_BYTES: usize = 128 << 10;
/// Data starts in the middle of a page, behind its header. Clients receive into buffers that start
/// at the beginning of a page or shortly behind it, and where the destination of a `rep movsb` lies
/// 1 to 31 bytes behind its source, modulo 4096, AMD's Zen copies at 3 GB/s instead of 48.
const LEAD_BYTES: usize = 2048;
const PAGE_BYTES: usize = 4096;
/// A unit, and what lies in its first page in front of it and in its last page behind it.
const STRIDE_BYTES: usize = UNIT_BYTES + PAGE_BYTES;
/// Memory of a ring: see [`Splicer::new`].
pub(super) const RING_BYTES: usize = 10 * STRIDE_BYTES;

/// The ring and its pipe.
#[derive(Debug)]
pub(super) struct Splicer {
    region: Arc<Region>,
    /// Where the next unit begins.
    next: usize,
    read_end: OwnedFd,
    write_end: OwnedFd,
}

impl Splicer {
    /// A splicer for this client, if it is on a unix socket whose send buffer leaves the ring safe,
    /// and the system grants the pipe.
    ///
    /// Unread are at most the send buffer, the unit in it that passed its limit, and the one that
    /// is being made. A lap of the ring sends at least half as many bytes as it is long: a unit is
    /// spliced only if 32 KiB of its reply are still to come, and of these, 8 KiB of page ends and
    /// header pages may be lost twice. What is skipped at the end is less than a stride.
    pub(super) fn new(socket: &Socket, region: Arc<Region>) -> Option<Self> {
        assert!(region.len_bytes() >= RING_BYTES);
        let unread_max = socket.send_buffer_bytes().saturating_add(2 * STRIDE_BYTES);
        if !socket.is_unix || unread_max > (RING_BYTES - STRIDE_BYTES) / 2 {
            return None;
        }
        let (read_end, write_end) = pipe_with(PipeFlags::CLOEXEC).ok()?;
        let capacity = fcntl_setpipe_size(&write_end, 2 * UNIT_BYTES).ok()?;
        (capacity >= 2 * UNIT_BYTES).then_some(Self { region, next: 0, read_end, write_end })
    }

    /// Where the data of the next unit goes, with room for a header in front.
    pub(super) fn place(&mut self) -> usize {
        if self.next + STRIDE_BYTES > RING_BYTES {
            self.next = 0;
        }
        self.next + LEAD_BYTES
    }

    /// Sends `len_bytes` that start at `start` in the region and are of the unit at `place`.
    ///
    /// # Errors
    /// When the client is gone. If the system refuses to splice, the bytes are sent as copies.
    pub(super) fn send(
        &mut self,
        socket: &Socket,
        start: usize,
        len_bytes: usize,
    ) -> io::Result<()> {
        self.next = (start + len_bytes).next_multiple_of(PAGE_BYTES);
        let mut sent = 0;
        while sent < len_bytes {
            let base = self.region.at(start + sent, len_bytes - sent);
            let vec = libc::iovec { iov_base: base.cast(), iov_len: len_bytes - sent };
            // SAFETY: the pages stay mapped as long as the region, and are not written again until
            // the client must have read them (see above).
            let piped = unsafe { libc::vmsplice(self.write_end.as_raw_fd(), &raw const vec, 1, 0) };
            if piped <= 0 {
                return socket.send(&mut [vec]);
            }
            self.drain(socket, piped as usize)?;
            sent += piped as usize;
        }
        Ok(())
    }

    fn drain(&self, socket: &Socket, len_bytes: usize) -> io::Result<()> {
        let mut left = len_bytes;
        while left > 0 {
            let moved = splice(&self.read_end, None, socket.as_fd(), None, left, SpliceFlags::MOVE);
            match moved {
                Ok(0) => return Err(io::ErrorKind::BrokenPipe.into()),
                Ok(moved) => left -= moved,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
