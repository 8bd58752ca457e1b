//! Bytes at any offset, over a client that takes whole sectors.
//!
//! A read covers the sectors around its range. A write changes its first and last sector by
//! read-modify-write if it covers them only partly, which excludes other writes of those sectors.
//! Long requests are split into portions, which are in flight together.

use std::io;
use std::ops::Range;

use blockyard_engine::bio::{BlkStatus, Done, Op};
use rustix::io::Errno;

use crate::local::{Bytes, Client, Part, Request};

/// Length of a portion; together with its ciphertext it fits into L2.
const PORTION_BYTES: u64 = 256 << 10;
/// Length of a request of zeroes.
const ZEROS_BYTES: u64 = 1 << 20;
/// Requests of one call in flight: 4 MiB of buffers, kept by the client.
const IN_FLIGHT_MAX: usize = 16;

/// Requests of one call.
pub struct Calls<'a> {
    client: &'a mut Client,
    sector_bytes: u64,
    size_bytes: u64,
    done: Vec<Done>,
    /// Status of the first failed request.
    status: BlkStatus,
}

/// A caller's buffer, and the volume offset of its first byte.
struct Destination<'a> {
    buffer: &'a mut [u8],
    offset_bytes: u64,
}

/// A caller that takes one read's bytes of this range.
struct Taker<'a> {
    range: Range<u64>,
    take: &'a mut dyn FnMut(&[u8]),
}

/// A caller's data, and the volume offset of its first byte.
struct Origin<'a> {
    data: &'a [u8],
    offset_bytes: u64,
}

impl Bytes for Destination<'_> {
    fn fill(&mut self, _: u64, _: &mut [u8]) {
        unreachable!("a read has no data to write");
    }

    /// `user` is the offset of the portion.
    fn check(&mut self, user: u64, bytes: &[u8]) {
        let end = self.offset_bytes + self.buffer.len() as u64;
        let from = user.max(self.offset_bytes);
        let to = (user + bytes.len() as u64).min(end);
        let source = &bytes[(from - user) as usize..(to - user) as usize];
        let place = (from - self.offset_bytes) as usize;
        self.buffer[place..place + source.len()].copy_from_slice(source);
    }
}

impl Bytes for Taker<'_> {
    fn fill(&mut self, _: u64, _: &mut [u8]) {
        unreachable!("a read has no data to write");
    }

    /// `user` is the offset of the read.
    fn check(&mut self, user: u64, bytes: &[u8]) {
        let place = (self.range.start - user) as usize..(self.range.end - user) as usize;
        (self.take)(&bytes[place]);
    }
}

impl Bytes for Origin<'_> {
    /// `user` is the offset of the portion.
    fn fill(&mut self, user: u64, bytes: &mut [u8]) {
        let place = (user - self.offset_bytes) as usize;
        bytes.copy_from_slice(&self.data[place..place + bytes.len()]);
    }

    fn check(&mut self, _: u64, _: &[u8]) {
        unreachable!("a write has no data to read");
    }
}

/// The parts of a range: partial sectors at its ends, and the whole sectors between.
struct Parts {
    head: Range<u64>,
    whole: Range<u64>,
    tail: Range<u64>,
}

impl Parts {
    fn new(range: &Range<u64>, sector_bytes: u64, size_bytes: u64) -> Self {
        // The last sector of a volume may be cut off, but counts as whole.
        let floor = |offset: u64| {
            if offset == size_bytes { offset } else { offset / sector_bytes * sector_bytes }
        };
        let ceil = |offset: u64| offset.next_multiple_of(sector_bytes).min(size_bytes);
        let start = ceil(range.start).min(range.end);
        let end = floor(range.end).max(start);
        Self { head: range.start..start, whole: start..end, tail: end..range.end }
    }
}

impl<'a> Calls<'a> {
    /// Requests of a client of a volume with these sectors and this length.
    pub fn new(client: &'a mut Client, sector_bytes: u32, size_bytes: u64) -> Self {
        let sector_bytes = u64::from(sector_bytes);
        Self { client, sector_bytes, size_bytes, done: Vec::new(), status: BlkStatus::Ok }
    }

    /// Fills the buffer from `offset_bytes` on. All ranges must be inside the volume.
    ///
    /// # Errors
    /// A request failed.
    pub fn read(mut self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        let end = offset_bytes + buffer.len() as u64;
        let start = offset_bytes / self.sector_bytes * self.sector_bytes;
        let end = end.next_multiple_of(self.sector_bytes).min(self.size_bytes);
        let mut destination = Destination { buffer, offset_bytes };
        for portion in portions(start..end, PORTION_BYTES) {
            self.submit(Op::Read, portion, &mut destination);
        }
        self.end(&mut destination)
    }

    /// Passes the bytes of a range of at most 1 MiB to `take`, out of the client's buffer.
    ///
    /// # Errors
    /// The request failed: `take` was not called.
    pub fn read_into(mut self, range: Range<u64>, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let start = range.start / self.sector_bytes * self.sector_bytes;
        let end = range.end.next_multiple_of(self.sector_bytes).min(self.size_bytes);
        let mut destination = Taker { range, take };
        self.submit(Op::Read, start..end, &mut destination);
        self.end(&mut destination)
    }

    /// Writes the data from `offset_bytes` on.
    ///
    /// # Errors
    /// A request failed; a part may be written.
    pub fn write(mut self, data: &[u8], offset_bytes: u64) -> io::Result<()> {
        let range = offset_bytes..offset_bytes + data.len() as u64;
        let parts = Parts::new(&range, self.sector_bytes, self.size_bytes);
        let mut origin = Origin { data, offset_bytes };
        for portion in portions(parts.whole, PORTION_BYTES) {
            self.submit(Op::Write, portion, &mut origin);
        }
        for part in [parts.head, parts.tail] {
            let place = (part.start - offset_bytes) as usize;
            let len_bytes = (part.end - part.start) as usize;
            self.submit_part(&part, Some(&data[place..place + len_bytes]), &mut origin);
        }
        self.end(&mut origin)
    }

    /// Makes the range read as zeroes.
    ///
    /// # Errors
    /// See [`Calls::write`].
    pub fn zero(mut self, range: &Range<u64>) -> io::Result<()> {
        let parts = Parts::new(range, self.sector_bytes, self.size_bytes);
        let mut nothing = Origin { data: &[], offset_bytes: 0 };
        for portion in portions(parts.whole, ZEROS_BYTES) {
            self.submit(Op::WriteZeroes, portion, &mut nothing);
        }
        for part in [parts.head, parts.tail] {
            self.submit_part(&part, None, &mut nothing);
        }
        self.end(&mut nothing)
    }

    /// Discards the whole sectors in the range; the rest keeps its bytes, because TRIM is a hint.
    ///
    /// # Errors
    /// See [`Calls::write`].
    pub fn discard(mut self, range: &Range<u64>) -> io::Result<()> {
        let mut nothing = Origin { data: &[], offset_bytes: 0 };
        let whole = Parts::new(range, self.sector_bytes, self.size_bytes).whole;
        if !whole.is_empty() {
            self.submit(Op::Discard, whole, &mut nothing);
        }
        self.end(&mut nothing)
    }

    /// Puts all ended writes on stable storage.
    ///
    /// # Errors
    /// A device failed, now or before: acknowledged writes may be lost.
    pub fn flush(mut self) -> io::Result<()> {
        let mut nothing = Origin { data: &[], offset_bytes: 0 };
        self.submit(Op::Flush, 0..0, &mut nothing);
        self.end(&mut nothing)
    }

    fn submit(&mut self, op: Op, range: Range<u64>, bytes: &mut dyn Bytes) {
        self.wait_until_in_flight(IN_FLIGHT_MAX - 1, bytes);
        let offset_bytes = range.start;
        let len_bytes = range.end - range.start;
        let request = Request { user: offset_bytes, op, offset_bytes, len_bytes, sync: true };
        self.client.submit_bytes(request, bytes);
    }

    fn submit_part(&mut self, part: &Range<u64>, bytes: Option<&[u8]>, others: &mut dyn Bytes) {
        if part.is_empty() {
            return;
        }
        let len_bytes = (part.end - part.start) as usize;
        let part = Part { user: part.start, offset_bytes: part.start, len_bytes, bytes };
        self.client.submit_part(part, others);
    }

    fn wait_until_in_flight(&mut self, at_most: usize, bytes: &mut dyn Bytes) {
        let in_flight = self.client.in_flight();
        self.client.wait_bytes(in_flight.saturating_sub(at_most), &mut self.done, bytes);
        for done in self.done.drain(..) {
            if self.status == BlkStatus::Ok {
                self.status = done.status;
            }
        }
    }

    fn end(mut self, bytes: &mut dyn Bytes) -> io::Result<()> {
        self.wait_until_in_flight(0, bytes);
        outcome(self.status)
    }
}

/// Splits a range at multiples of `len_bytes`.
fn portions(range: Range<u64>, len_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let mut next = range.start;
    std::iter::from_fn(move || {
        let start = next;
        next = ((start / len_bytes + 1) * len_bytes).min(range.end);
        (start < range.end).then_some(start..next)
    })
}

fn outcome(status: BlkStatus) -> io::Result<()> {
    Err(match status {
        BlkStatus::Ok => return Ok(()),
        BlkStatus::NotSupported => Errno::OPNOTSUPP,
        BlkStatus::NoSpace => Errno::NOSPC,
        BlkStatus::Invalid => Errno::INVAL,
        BlkStatus::Transport | BlkStatus::Medium | BlkStatus::IoError => Errno::IO,
    }
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_is_cut_into_whole_sectors_and_what_is_left_at_its_ends() {
        let cut = |range: Range<u64>, size_bytes| {
            let parts = Parts::new(&range, 4096, size_bytes);
            assert_eq!(parts.head.start, range.start);
            assert_eq!((parts.head.end, parts.tail.start), (parts.whole.start, parts.whole.end));
            assert_eq!(parts.tail.end, range.end);
            (parts.whole.start, parts.whole.end)
        };
        assert_eq!(cut(0..4096, 1 << 20), (0, 4096));
        assert_eq!(cut(1..4096, 1 << 20), (4096, 4096));
        assert_eq!(cut(1..8193, 1 << 20), (4096, 8192));
        assert_eq!(cut(5..6, 1 << 20), (6, 6), "within one sector: all of it is the head");
        assert_eq!(cut(4000..4200, 1 << 20), (4096, 4096));
        assert_eq!(cut(4096..5120, 5120), (4096, 5120), "the last sector is cut");
        assert_eq!(cut(4096..5119, 5120), (4096, 4096));
    }

    #[test]
    fn portions_end_at_multiples() {
        let cut: Vec<_> = portions(5..25, 10).collect();
        assert_eq!(cut, [5..10, 10..20, 20..25]);
        assert_eq!(portions(5..5, 10).count(), 0);
    }
}
