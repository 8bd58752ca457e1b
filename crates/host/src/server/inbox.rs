//! Received bytes: parsed in place, moved only to make room for the rest of a header.

use std::sync::Arc;

use crate::memory::Region;

/// Start of receiving. Payload mostly starts at a page of the socket, and must not be copied to
/// shortly after a page start here: if the destination of `rep movsb` is 1 to 31 bytes after the
/// source modulo 4096, AMD's Zen copies at 3 GB/s instead of 48.
const START: usize = 2048;

/// A receive buffer; `start..end` is received and not consumed.
#[derive(Debug)]
pub(super) struct Inbox {
    region: Arc<Region>,
    start: usize,
    end: usize,
}

impl Inbox {
    pub(super) fn new(region: Arc<Region>) -> Self {
        Self { region, start: START, end: START }
    }

    /// Received bytes that are not consumed.
    pub(super) fn bytes(&self) -> &[u8] {
        let base = self.region.at(self.start, self.end - self.start);
        // SAFETY: the range is initialised memory of the region, and is overwritten only after its
        // consumption and after every write that uses it (`make_room`).
        unsafe { std::slice::from_raw_parts(base, self.end - self.start) }
    }

    /// Consumes a prefix; returns its offset in the region.
    pub(super) fn consume(&mut self, len_bytes: usize) -> usize {
        assert!(len_bytes <= self.end - self.start);
        let at = self.start;
        self.start += len_bytes;
        at
    }

    /// Consumed bytes that are not overwritten yet.
    pub(super) fn consumed(&self, at: usize, len_bytes: usize) -> &[u8] {
        let base = self.region.at(at, len_bytes);
        // SAFETY: the range is initialised memory of the region, which only `make_room` overwrites,
        // and that borrows the whole inbox.
        unsafe { std::slice::from_raw_parts(base, len_bytes) }
    }

    /// Address and length for receiving. No write may use the buffer; unconsumed bytes move to the
    /// front.
    pub(super) fn make_room(&mut self) -> (*mut u8, usize) {
        let left = self.end - self.start;
        if self.start > START {
            let from = self.region.at(self.start, left);
            let to = self.region.at(START, left);
            // SAFETY: both ranges are inside the region, which no write uses; they may overlap.
            unsafe { std::ptr::copy(from, to, left) };
            (self.start, self.end) = (START, START + left);
        }
        let room = self.region.len_bytes() - self.end;
        (self.region.at(self.end, room), room)
    }

    /// Adds `len_bytes` received bytes.
    pub(super) fn received(&mut self, len_bytes: usize) {
        assert!(len_bytes <= self.region.len_bytes() - self.end);
        self.end += len_bytes;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }
}
