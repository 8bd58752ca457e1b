//! The record of a queue's requests in flight, in memory that the front end keeps while there is no
//! server.
//!
//! ```text
//! take ─> counter, mark          end ─> chained to the last one that ended
//!                                publish ─> used index of the ring, marks removed, used index here
//! ```
//! A server that is killed between two of these stores leaves a record from which the next one sees
//! what has ended: if the two used indices differ, the last batch was published and its marks were
//! left. A request that is marked then is in flight. It is done again in the order of the counters.

use std::sync::atomic::Ordering;

use super::memory::Window;

/// Offsets of the words of a queue; the first 8 bytes are features, of which there are none.
const VERSION_AT: usize = 8;
const RING_LEN_AT: usize = 10;
const LAST_ENDED_AT: usize = 12;
const USED_AT: usize = 14;
const ENTRIES_AT: usize = 16;
/// Offsets in an entry.
const ENTRY_BYTES: usize = 16;
const MARK_AT: usize = 0;
const NEXT_AT: usize = 6;
const COUNTER_AT: usize = 8;
/// Version of a record in use; a new one is zeroes.
const VERSION: u16 = 1;

/// Whether a record has a request in flight, or one whose end was perhaps not noted.
pub(super) fn has_taken(window: &Window, ring_len: u16) -> bool {
    (0..ring_len).any(|head| is_taken(window, head))
}

fn is_taken(window: &Window, head: u16) -> bool {
    let [mark] = window.load(at(head) + MARK_AT);
    mark != 0
}

fn at(head: u16) -> usize {
    ENTRIES_AT + usize::from(head) * ENTRY_BYTES
}

/// A record of another ring.
#[derive(Debug)]
pub(super) struct BadRecord;

/// The record of one queue.
#[derive(Debug)]
pub(super) struct Inflight {
    window: Window,
    ring_len: u16,
    /// Number of the last request.
    counter: u64,
    /// Ended requests that were not published.
    batch: Vec<u16>,
}

impl Inflight {
    /// The record, and the requests in flight, in order. They are `None` for a new record, which
    /// starts at the used index of the ring.
    pub(super) fn open(
        window: Window,
        ring_len: u16,
        used: u16,
    ) -> Result<(Self, Option<Vec<u16>>), BadRecord> {
        let mut record = Self { window, ring_len, counter: 0, batch: Vec::new() };
        if record.word(VERSION_AT) == 0 {
            record.store(RING_LEN_AT, ring_len);
            record.store(USED_AT, used);
            record.store(VERSION_AT, VERSION);
            return Ok((record, None));
        }
        if record.word(VERSION_AT) != VERSION || record.word(RING_LEN_AT) != ring_len {
            return Err(BadRecord);
        }
        record.finish_batch(used)?;
        let marked = (0..ring_len).filter(|head| record.is_taken(*head));
        let mut marked: Vec<_> = marked.map(|head| (record.counter_of(head), head)).collect();
        marked.sort_unstable();
        record.counter = marked.last().map_or(0, |(counter, _)| *counter);
        Ok((record, Some(marked.into_iter().map(|(_, head)| head).collect())))
    }

    /// Removes the marks of requests whose end was published.
    fn finish_batch(&mut self, used: u16) -> Result<(), BadRecord> {
        let count = used.wrapping_sub(self.word(USED_AT));
        if count > self.ring_len {
            return Err(BadRecord);
        }
        let mut head = self.word(LAST_ENDED_AT);
        for _ in 0..count {
            if head >= self.ring_len {
                return Err(BadRecord);
            }
            self.mark(head, 0);
            head = self.word(at(head) + NEXT_AT);
        }
        self.store(USED_AT, used);
        Ok(())
    }

    /// Whether a request with this head is in flight.
    pub(super) fn is_taken(&self, head: u16) -> bool {
        is_taken(&self.window, head)
    }

    /// Notes a request that was fetched.
    pub(super) fn take(&mut self, head: u16) {
        self.counter = self.counter.wrapping_add(1);
        self.window.store_u64(at(head) + COUNTER_AT, self.counter);
        self.mark(head, 1);
    }

    /// Notes a request that has ended, before the guest can see that.
    pub(super) fn end(&mut self, head: u16) {
        self.store(at(head) + NEXT_AT, self.word(LAST_ENDED_AT));
        self.store(LAST_ENDED_AT, head);
        self.batch.push(head);
    }

    /// The guest can see all ended requests.
    pub(super) fn publish(&mut self, used: u16) {
        let batch = std::mem::take(&mut self.batch);
        batch.iter().for_each(|head| self.mark(*head, 0));
        // Kept for its memory.
        self.batch = batch;
        self.batch.clear();
        self.store(USED_AT, used);
    }

    /// Whether the front end has taken the record away.
    pub(super) fn is_broken(&self) -> bool {
        self.window.is_broken()
    }

    fn word(&self, at: usize) -> u16 {
        self.window.load_u16(at, Ordering::Acquire)
    }

    /// In the order of the program: a kill comes between any two stores.
    fn store(&self, at: usize, value: u16) {
        self.window.store_u16(at, value, Ordering::Release);
    }

    fn mark(&self, head: u16, mark: u8) {
        self.window.store_u8(at(head) + MARK_AT, mark);
    }

    fn counter_of(&self, head: u16) -> u64 {
        u64::from_le_bytes(self.window.load(at(head) + COUNTER_AT))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use blockyard_protocol::vhost_user::{InflightArea, MemoryRegion};
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::vhost_user::memory::GuestMemory;

    const RING_LEN: u16 = 8;

    /// Memory that outlives servers.
    struct Kept(GuestMemory);

    impl Kept {
        fn new() -> Self {
            let len_bytes = InflightArea::new(1, RING_LEN).len_bytes;
            let file: OwnedFd = memfd_create("record", MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&file, len_bytes).unwrap();
            let region =
                MemoryRegion { guest_addr: 0, len_bytes, front_end_addr: 0, file_offset_bytes: 0 };
            Self(GuestMemory::default().with(region, &file).unwrap())
        }

        fn open(&self, used: u16) -> (Inflight, Option<Vec<u16>>) {
            self.try_open(RING_LEN, used).unwrap()
        }

        fn try_open(
            &self,
            ring_len: u16,
            used: u16,
        ) -> Result<(Inflight, Option<Vec<u16>>), BadRecord> {
            let len_bytes = InflightArea::new(1, ring_len).len_bytes as usize;
            Inflight::open(self.0.window(0, len_bytes, 8).unwrap(), ring_len, used)
        }
    }

    #[test]
    fn requests_in_flight_are_found_in_the_order_in_which_they_were_fetched() {
        let kept = Kept::new();
        let (mut record, found) = kept.open(0);
        assert_eq!(found, None);
        [5, 0, 7, 2].iter().for_each(|head| record.take(*head));
        record.end(0);
        record.publish(1);
        // After a kill.
        let (mut record, found) = kept.open(1);
        assert_eq!(found, Some(vec![5, 7, 2]));
        record.take(0);
        assert_eq!(kept.open(1).1, Some(vec![5, 7, 2, 0]), "the counters go on");
    }

    /// The used index of a ring in mid-life is not zero; a record of zeroes must not take its first
    /// entry for one that has ended.
    #[test]
    fn new_record_of_a_ring_in_mid_life_loses_no_request() {
        let kept = Kept::new();
        let (mut record, _) = kept.open(7);
        record.take(0);
        record.take(3);
        assert_eq!(kept.open(7).1, Some(vec![0, 3]));
    }

    #[test]
    fn batch_that_the_guest_saw_has_ended_and_one_that_it_did_not_see_is_in_flight() {
        let kept = Kept::new();
        let (mut record, _) = kept.open(65_535);
        (0..4).for_each(|head| record.take(head));
        record.end(2);
        record.publish(0);
        record.end(1);
        record.end(3);
        // A kill before the used index of the ring is stored, and one after it.
        assert_eq!(kept.open(0).1, Some(vec![0, 1, 3]));
        assert_eq!(kept.open(2).1, Some(vec![0]));
        assert_eq!(kept.open(2).1, Some(vec![0]));
    }

    #[test]
    fn record_of_another_ring_is_refused() {
        let kept = Kept::new();
        let (mut record, _) = kept.open(0);
        record.take(1);
        record.end(1);
        assert!(kept.try_open(RING_LEN / 2, 0).is_err(), "another size");
        assert!(kept.try_open(RING_LEN, 9).is_err(), "more than a ring has ended");
        record.store(LAST_ENDED_AT, 8);
        assert!(kept.try_open(RING_LEN, 1).is_err(), "an entry that does not exist");
        record.store(VERSION_AT, 2);
        assert!(kept.try_open(RING_LEN, 0).is_err(), "another version");
    }
}
