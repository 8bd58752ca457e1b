//! Received bytes: parsed in place, moved only to make room for the rest of a header.

use std::sync::Arc;

use crate::memory::Region;

/// Receiving starts here. Payload mostly lies at the start of a page of the socket, and must not be
/// copied to shortly behind the start of one here: where the destination of a `rep movsb` lies 1 to
/// 31 bytes behind its source, modulo 4096, AMD's Zen copies at 3 GB/s instead of 48.
const START: usize = 2048;

/// A receive buffer; `start..end` is received and not yet consumed.
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

    /// What is not consumed.
    pub(super) fn bytes(&self) -> &[u8] {
        let base = self.region.at(self.start, self.end - self.start);
        // SAFETY: the range is initialised memory of the region. Nobody writes to it until it has
        // been consumed and every write that uses it has ended (`make_room`).
        unsafe { std::slice::from_raw_parts(base, self.end - self.start) }
    }

    /// Consumes a prefix and says where in the region it lies.
    pub(super) fn consume(&mut self, len_bytes: usize) -> usize {
        assert!(len_bytes <= self.end - self.start);
        let at = self.start;
        self.start += len_bytes;
        at
    }

    /// Bytes that were consumed and not yet overwritten.
    pub(super) fn consumed(&self, at: usize, len_bytes: usize) -> &[u8] {
        let base = self.region.at(at, len_bytes);
        // SAFETY: the range is initialised memory of the region, which nobody writes to before
        // `make_room`, and that borrows the inbox as a whole.
        unsafe { std::slice::from_raw_parts(base, len_bytes) }
    }

    /// Where to receive, and how much. No write may use the buffer any more: what is left of it is
    /// moved to the front.
    pub(super) fn make_room(&mut self) -> (*mut u8, usize) {
        let left = self.end - self.start;
        if self.start > START {
            let (from, to) = (self.region.at(self.start, left), self.region.at(START, left));
            // SAFETY: both ranges lie in the region, which no write uses; they may overlap.
            unsafe { std::ptr::copy(from, to, left) };
            (self.start, self.end) = (START, START + left);
        }
        let room = self.region.len_bytes() - self.end;
        (self.region.at(self.end, room), room)
    }

    /// `len_bytes` were received into the room.
    pub(super) fn received(&mut self, len_bytes: usize) {
        assert!(len_bytes <= self.region.len_bytes() - self.end);
        self.end += len_bytes;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }
}
