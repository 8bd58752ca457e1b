//! Outgoing bytes in order, gathered for few system calls.
//!
//! Small replies are copied into the outbox's own buffer; read data is there or in a read slot,
//! directly after its header. One `sendmsg` sends everything.

use std::io;
use std::sync::Arc;

use super::socket::Socket;
use crate::memory::Region;

/// Data starts at a cache line: the cipher writes unaligned lines 10 % slower.
const ALIGN_BYTES: usize = 64;
/// Enough for one system call; more would only leave the cache.
const SEND_AT_BYTES: usize = 64 << 10;
const SEND_AT_VECS: usize = 64;

/// Replies to be sent.
#[derive(Debug)]
pub(super) struct Outbox {
    region: Arc<Region>,
    used: usize,
    vecs: Vec<libc::iovec>,
    gathered_bytes: usize,
}

// SAFETY: the vectors point into regions that the connection owns, together with the outbox.
unsafe impl Send for Outbox {}

impl Outbox {
    pub(super) fn new(region: Arc<Region>) -> Self {
        Self { region, used: 0, vecs: Vec::new(), gathered_bytes: 0 }
    }

    /// Copies as much of a small reply as fits; returns the copied length.
    pub(super) fn append(&mut self, bytes: &[u8]) -> usize {
        let len = bytes.len().min(self.region.len_bytes() - self.used);
        if len > 0 {
            let to = self.region.at(self.used, len);
            // SAFETY: the range of the region is free and disjoint from the caller's bytes.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, len) };
            self.used += len;
            self.push(to, len);
        }
        len
    }

    /// Reserves room for `len_bytes` of data after a header; returns its offset in the region.
    /// `None` until the gathered bytes are sent.
    pub(super) fn reserve(&mut self, header_bytes: usize, len_bytes: usize) -> Option<usize> {
        let start = (self.used + header_bytes).next_multiple_of(ALIGN_BYTES);
        if start + len_bytes > self.region.len_bytes() {
            assert!(self.used > 0, "pieces are cut to the outbox");
            return None;
        }
        self.used = start + len_bytes;
        Some(start)
    }

    /// Address of a reserved offset.
    pub(super) fn at(&self, place: usize) -> *mut u8 {
        self.region.at(place, 0)
    }

    /// Queues bytes that stay valid until they are sent.
    pub(super) fn push(&mut self, base: *const u8, len_bytes: usize) {
        self.gathered_bytes += len_bytes;
        if let Some(last) = self.vecs.last_mut()
            && last.iov_base.cast_const().wrapping_byte_add(last.iov_len) == base.cast()
        {
            last.iov_len += len_bytes;
            return;
        }
        self.vecs.push(libc::iovec { iov_base: base.cast_mut().cast(), iov_len: len_bytes });
    }

    /// Whether enough bytes are gathered.
    pub(super) fn is_full(&self) -> bool {
        self.gathered_bytes >= SEND_AT_BYTES || self.vecs.len() >= SEND_AT_VECS
    }

    /// Sends as much as the socket accepts; returns whether all is sent.
    pub(super) fn send(&mut self, socket: &Socket) -> io::Result<bool> {
        if !self.vecs.is_empty() || socket.has_unsent() {
            let sent = socket.send_what_fits(&mut self.vecs)?;
            self.vecs.drain(..sent);
        }
        if self.vecs.is_empty() {
            (self.used, self.gathered_bytes) = (0, 0);
        }
        Ok(self.vecs.is_empty() && !socket.has_unsent())
    }
}
