//! Waiting requests in two orders: by sector, to save seeks, and by deadline, so that none is
//! forgotten (`sort_list` and `fifo_list` of `block/deadline-iosched.c`).
//!
//! All requests of a queue get their deadline by the same rule, so the order of arrival is the
//! order of deadlines. A merge preserves it: the survivor gets the earlier deadline and its place.
//!
//! ```text
//!   by sector     10 ── 40 ── 70 ── 90        the way of the disk's head
//!   by deadline   70 ── 10 ── 90 ── 40        oldest: the first to expire
//! ```

use alloc::vec::Vec;

use super::fifo::Fifo;
use super::sort::SortTree;
use crate::bio::{Op, Sector};
use crate::request::{RequestId, Requests};
use crate::time::Nanos;

#[cfg(test)]
pub(super) mod by_hand;
#[cfg(test)]
pub(super) mod random;

/// Direction of the data (`rq_data_dir`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DataDirection {
    /// From the device.
    Read,
    /// Write, including operations without data that change the device.
    Write,
}

impl DataDirection {
    /// Direction of an operation.
    #[must_use]
    pub fn of(op: Op) -> Self {
        if op == Op::Read { Self::Read } else { Self::Write }
    }
}

/// The queue. Every request is in it at most once.
#[derive(Debug, Default)]
pub struct DeadlineQueue {
    by_sector: SortTree,
    by_deadline: Fifo,
    /// Deadlines by request; entries of requests outside the queue are void.
    deadlines: Vec<Nanos>,
}

impl DeadlineQueue {
    /// Inserts a request. Its deadline must not be before any other's.
    pub fn insert(&mut self, id: RequestId, sector: Sector, deadline: Nanos) {
        self.by_sector.insert(id, sector);
        self.by_deadline.push_back(id);
        if self.deadlines.len() <= id.index() {
            self.deadlines.resize(id.index() + 1, Nanos(0));
        }
        self.deadlines[id.index()] = deadline;
    }

    /// Removes a request; returns the next one in sector order.
    ///
    /// # Panics
    /// When it is not in the queue.
    pub fn remove(&mut self, id: RequestId) -> Option<RequestId> {
        self.by_deadline.remove(id);
        self.by_sector.remove(id)
    }

    /// Moves a request to its new start sector; its deadline stays.
    ///
    /// # Panics
    /// When it is not in the queue.
    pub fn reposition(&mut self, id: RequestId, sector: Sector) {
        self.unsort(id);
        self.sort(id, sector);
    }

    /// Removes a request from the sector order, until it is sorted in again.
    ///
    /// # Panics
    /// When it is not in the queue.
    pub fn unsort(&mut self, id: RequestId) {
        self.by_sector.remove(id);
    }

    /// Sorts a request into the sector order again.
    pub fn sort(&mut self, id: RequestId, sector: Sector) {
        assert!(self.contains(id), "it was unsorted, not removed");
        self.by_sector.insert(id, sector);
    }

    /// Removes `absorbed`, which becomes part of `survivor`; returns the next one in sector order.
    /// The survivor gets the earlier deadline and its place.
    ///
    /// # Panics
    /// When one of them is not in the queue, or they are the same.
    pub fn absorb(&mut self, survivor: RequestId, absorbed: RequestId) -> Option<RequestId> {
        let earlier = self.deadlines[absorbed.index()];
        if earlier < self.deadlines[survivor.index()] {
            self.deadlines[survivor.index()] = earlier;
            self.by_deadline.take_place(survivor, absorbed);
        } else {
            self.by_deadline.remove(absorbed);
        }
        self.by_sector.remove(absorbed)
    }

    /// The request with the earliest deadline.
    #[must_use]
    pub fn oldest(&self) -> Option<RequestId> {
        self.by_deadline.front()
    }

    /// The earliest deadline.
    #[must_use]
    pub fn earliest_deadline(&self) -> Option<Nanos> {
        self.oldest().map(|id| self.deadlines[id.index()])
    }

    /// The request with the earliest deadline, if expired.
    #[must_use]
    pub fn expired(&self, now: Nanos) -> Option<RequestId> {
        self.oldest().filter(|id| now >= self.deadlines[id.index()])
    }

    /// The request before another one, in sector order.
    #[must_use]
    pub fn prev(&self, id: RequestId) -> Option<RequestId> {
        self.by_sector.prev(id)
    }

    /// A request that starts at `sector`.
    #[must_use]
    pub fn at(&self, requests: &Requests, sector: Sector) -> Option<RequestId> {
        self.by_sector.first_from(sector).filter(|id| requests[*id].sector == sector)
    }

    /// Whether a request is in the queue.
    #[must_use]
    pub fn contains(&self, id: RequestId) -> bool {
        self.by_deadline.contains(id)
    }

    /// Number of requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_deadline.len()
    }

    /// Whether the queue is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_deadline.is_empty()
    }

    /// Asserts that both orders hold the same requests and are sorted.
    #[cfg(test)]
    pub(super) fn assert_consistent(&self, requests: &Requests) {
        let mut deadline = Nanos(0);
        let mut place = self.by_deadline.front();
        while let Some(id) = place {
            assert!(self.by_sector.contains(id), "{id:?} is in both orders");
            assert!(deadline <= self.deadlines[id.index()], "{id:?} is in order of deadlines");
            deadline = self.deadlines[id.index()];
            place = self.by_deadline.next(id);
        }
        let mut count = 0;
        let mut sector = Sector(0);
        let mut place = self.by_sector.first();
        while let Some(id) = place {
            assert!(self.by_deadline.contains(id), "{id:?} is in both orders");
            assert!(sector <= requests[id].sector, "{id:?} is in order of sectors");
            (count, sector) = (count + 1, requests[id].sector);
            place = self.by_sector.next(id);
        }
        assert_eq!((count, count), (self.by_sector.len(), self.by_deadline.len()));
    }
}
