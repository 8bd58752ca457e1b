//! Received bytes: parsed in place, moved only to make room for the rest of a header.
//!
//! Writes that have not ended may still read the bytes of their payload: a device thread sends them
//! to a server, a worker encrypts them. So the buffer has parts. One part is filled; the others are
//! used by such writes, or free.

use std::sync::Arc;

use crate::memory::Region;

/// Start of receiving in a part. Payload mostly starts at a page of the socket, and must not be
/// copied to shortly after a page start here: if the destination of `rep movsb` is 1 to 31 bytes
/// after the source modulo 4096, AMD's Zen copies at 3 GB/s instead of 48.
const START: usize = 2048;
const PAGE: usize = 4096;

/// Least room behind bytes in use that is worth a system call. Ours: a quarter of a part.
const ROOM_MIN_BYTES: usize = 32 << 10;

/// A receive buffer; `start..end` is received and not consumed.
#[derive(Debug)]
pub(super) struct Inbox {
    region: Arc<Region>,
    part_bytes: usize,
    /// Number of payload pieces in flight, by part.
    in_flight: Vec<u32>,
    /// The part that is filled.
    part: usize,
    start: usize,
    end: usize,
}

impl Inbox {
    /// An inbox of parts of this length, a multiple of the page size.
    pub(super) fn new(region: Arc<Region>, part_bytes: usize) -> Self {
        let in_flight = vec![0; region.len_bytes() / part_bytes];
        Self { region, part_bytes, in_flight, part: 0, start: START, end: START }
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

    /// Notes a write of consumed bytes; returns their part.
    pub(super) fn write_begins(&mut self, at: usize) -> u8 {
        let part = at / self.part_bytes;
        self.in_flight[part] += 1;
        u8::try_from(part).expect("an inbox has a few parts")
    }

    /// Notes the end of a write of bytes of this part.
    pub(super) fn write_ends(&mut self, part: u8) {
        self.in_flight[usize::from(part)] -= 1;
    }

    /// Place of further bytes behind those of the part that is filled, if there is enough room.
    fn behind(&self) -> Option<usize> {
        // After complete requests, the next one begins at a good place.
        let is_empty = self.start == self.end;
        let good = (self.end - START).next_multiple_of(PAGE) + START;
        let at = if is_empty { good } else { self.end };
        (at + ROOM_MIN_BYTES <= self.end_of_part()).then_some(at)
    }

    fn end_of_part(&self) -> usize {
        (self.part + 1) * self.part_bytes
    }

    fn is_used(&self) -> bool {
        self.in_flight[self.part] > 0
    }

    /// Whether there is room to receive. `are_read`: writes in flight may still read their bytes
    /// here.
    pub(super) fn has_room(&self, are_read: bool) -> bool {
        let is_kept = are_read && self.is_used();
        !is_kept || self.behind().is_some() || self.in_flight.contains(&0)
    }

    /// Address and length for receiving, if [`Inbox::has_room`]. Unconsumed bytes may move.
    pub(super) fn make_room(&mut self, are_read: bool) -> (*mut u8, usize) {
        let is_kept = are_read && self.is_used();
        match self.behind().filter(|_| is_kept) {
            Some(at) if self.start == self.end => (self.start, self.end) = (at, at),
            Some(_) => {}
            None if is_kept => {
                let free = self.in_flight.iter().position(|count| *count == 0);
                self.part = free.expect("there is room");
                self.move_to_front();
            }
            None => self.move_to_front(),
        }
        let room = self.end_of_part() - self.end;
        (self.region.at(self.end, room), room)
    }

    /// Moves the unconsumed bytes to the front of the part, whose bytes no write reads.
    fn move_to_front(&mut self) {
        let front = self.part * self.part_bytes + START;
        let left = self.end - self.start;
        if self.start != front {
            let from = self.region.at(self.start, left);
            let to = self.region.at(front, left);
            // SAFETY: both ranges are inside the region; no write reads the destination; they may
            // overlap.
            unsafe { std::ptr::copy(from, to, left) };
            (self.start, self.end) = (front, front + left);
        }
    }

    /// Adds `len_bytes` received bytes.
    pub(super) fn received(&mut self, len_bytes: usize) {
        assert!(len_bytes <= self.end_of_part() - self.end);
        self.end += len_bytes;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART_BYTES: usize = 64 << 10;

    fn inbox(parts: usize) -> Inbox {
        Inbox::new(Arc::new(Region::new(parts * PART_BYTES).unwrap()), PART_BYTES)
    }

    impl Inbox {
        /// Receives so many of this byte.
        fn receive(&mut self, byte: u8, len_bytes: usize, are_read: bool) {
            assert!(self.has_room(are_read));
            let (room, len) = self.make_room(are_read);
            assert!(len_bytes <= len);
            // SAFETY: the room is that long.
            unsafe { room.write_bytes(byte, len_bytes) };
            self.received(len_bytes);
        }

        /// Consumes so many bytes, as the payload of a write in flight.
        fn write(&mut self, len_bytes: usize) -> (usize, u8) {
            let at = self.consume(len_bytes);
            (at, self.write_begins(at))
        }
    }

    #[test]
    fn bytes_of_writes_in_flight_stay_until_the_last_one_of_their_part_ends() {
        let mut inbox = inbox(2);
        let mut writes = Vec::new();
        let mut number = 0;
        while inbox.has_room(true) {
            inbox.receive(number, 9000, true);
            writes.push(inbox.write(9000));
            number += 1;
        }
        assert_eq!(writes.iter().filter(|(_, part)| *part == 1).count(), writes.len() / 2);
        assert!(writes.len() >= 4);
        for (number, (at, _)) in writes.iter().enumerate() {
            assert!(inbox.consumed(*at, 9000).iter().all(|byte| usize::from(*byte) == number));
        }
        let (last_of_all, others): (Vec<_>, Vec<_>) =
            writes.into_iter().partition(|(at, part)| *part == 0 && *at == START);
        others.into_iter().for_each(|(_, part)| {
            if part == 0 {
                inbox.write_ends(part);
            }
        });
        assert!(!inbox.has_room(true), "a write of each part is in flight");
        assert!(inbox.has_room(false), "it does not read its bytes any more");
        inbox.write_ends(last_of_all[0].1);
        inbox.receive(99, 9000, true);
        assert_eq!(inbox.consume(9000), START);
    }

    #[test]
    fn begun_request_follows_into_the_next_part() {
        let mut inbox = inbox(2);
        inbox.receive(1, 50_000, true);
        let (at, part) = inbox.write(49_990);
        inbox.receive(2, 4000, true);
        assert_eq!(inbox.bytes()[..11], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2]);
        assert_eq!(inbox.bytes().len(), 4010);
        assert_eq!(inbox.write(4010).1, 1);
        assert!(inbox.consumed(at, 49_990).iter().all(|byte| *byte == 1));
        assert!(!inbox.has_room(true) || inbox.behind().is_some());
        inbox.write_ends(part);
        assert!(inbox.has_room(true));
    }

    #[test]
    fn requests_begin_far_from_the_start_of_a_page() {
        let mut inbox = inbox(1);
        inbox.receive(1, 28 + 4096, false);
        inbox.write(28 + 4096);
        inbox.receive(2, 28 + 4096, true);
        assert_eq!(inbox.consume(28) % PAGE, START);
    }

    #[test]
    fn inbox_without_writes_in_flight_is_filled_from_its_front() {
        let mut inbox = inbox(2);
        for byte in 0..50 {
            inbox.receive(byte, 9000, true);
            assert_eq!(inbox.consume(8990), START);
            assert_eq!(inbox.bytes(), [byte; 10]);
            inbox.consume(10);
        }
    }
}
