//! The request list of the single-queue generation: two counts, congestion, a full mark, and
//! submitters that batch (`struct request_list`, `ioc_batching`).
//!
//! ```text
//!   requests of one kind, nr_requests = 128:
//!   0 ......... 103 ...... 113 ........ 128 ............ 192
//!               │          └ congested  └ full: only     └ no more
//!               └ below: not congested    batching ones    requests
//! ```
//!
//! A submitter that had to wait, or that filled the queue, may take 32 requests within 20 ms even
//! if the queue is full: otherwise each freed request would wake one submitter for one request. The
//! hard limit of 150 % is from memory.

use alloc::collections::{BTreeMap, VecDeque};

use super::wait::Waiter;
use crate::bio::IoContext;
use crate::time::Nanos;

/// Requests of a batch (`BLK_BATCH_REQ`).
const BATCH_REQUESTS: u32 = 32;
/// Duration of a batch (`BLK_BATCH_TIME`).
const BATCH_TIME: Nanos = Nanos::from_ms(20);

/// The counts of a queue's requests.
#[derive(Debug)]
pub(super) struct RequestList {
    nr_requests: u32,
    /// Asynchronous, synchronous.
    kinds: [SyncClass; 2],
    submitters: BTreeMap<IoContext, Submitter>,
}

/// Requests of one class: synchronous or not.
#[derive(Debug, Default)]
struct SyncClass {
    count: u32,
    full: bool,
    congested: bool,
    waiters: VecDeque<Waiter>,
}

/// State of a submitter (`nr_batch_requests`, `last_waited`).
#[derive(Debug, Default)]
struct Submitter {
    batch_left: u32,
    batch_start: Nanos,
    /// Numbers of its parked bios, asynchronous and synchronous: it must not pass itself.
    parked: [u32; 2],
}

impl Submitter {
    /// Whether the submitter batches. The first request of a batch is always granted: otherwise a
    /// wake-up would be lost.
    fn is_batching(&self, now: Nanos) -> bool {
        self.batch_left == BATCH_REQUESTS
            || (self.batch_left > 0 && now.since(self.batch_start) < BATCH_TIME)
    }
}

impl RequestList {
    pub(super) fn new(nr_requests: u32) -> Self {
        Self { nr_requests, kinds: Default::default(), submitters: BTreeMap::new() }
    }

    /// Number of requests from which a kind is congested.
    fn congestion_on(&self) -> u32 {
        (self.nr_requests - self.nr_requests / 8 + 1).min(self.nr_requests)
    }

    /// Number of requests below which a kind is no longer congested.
    fn congestion_off(&self) -> u32 {
        let least = self.nr_requests / 8 + self.nr_requests / 16 + 1;
        self.nr_requests.saturating_sub(least).max(1)
    }

    /// Takes a request for a submitter that has not waited.
    pub(super) fn take(&mut self, now: Nanos, io_context: IoContext, sync: bool) -> bool {
        let kind = usize::from(sync);
        let waits = !self.kinds[kind].waiters.is_empty()
            && self.submitters.get(&io_context).is_some_and(|submitter| submitter.parked[kind] > 0);
        !waits && self.get(now, io_context, sync)
    }

    fn get(&mut self, now: Nanos, io_context: IoContext, sync: bool) -> bool {
        let kind = usize::from(sync);
        let count = self.kinds[kind].count + 1;
        if count >= self.congestion_on() {
            if count >= self.nr_requests {
                if !self.kinds[kind].full {
                    self.set_batching(now, io_context);
                    self.kinds[kind].full = true;
                } else if !self.is_batching(now, io_context) {
                    return false;
                }
            }
            self.kinds[kind].congested = true;
        }
        if self.kinds[kind].count >= self.nr_requests + self.nr_requests / 2 {
            return false;
        }
        self.kinds[kind].count = count;
        if let Some(submitter) = self.submitters.get_mut(&io_context)
            && submitter.is_batching(now)
        {
            submitter.batch_left -= 1;
        }
        true
    }

    fn is_batching(&self, now: Nanos, io_context: IoContext) -> bool {
        self.submitters.get(&io_context).is_some_and(|submitter| submitter.is_batching(now))
    }

    fn set_batching(&mut self, now: Nanos, io_context: IoContext) {
        let submitter = self.submitters.entry(io_context).or_default();
        if !submitter.is_batching(now) {
            submitter.batch_left = BATCH_REQUESTS;
            submitter.batch_start = now;
        }
    }

    pub(super) fn park(&mut self, waiter: Waiter) {
        let kind = usize::from(waiter.claim.sync);
        self.submitters.entry(waiter.claim.io_context).or_default().parked[kind] += 1;
        self.kinds[kind].waiters.push_back(waiter);
    }

    pub(super) fn put(&mut self, sync: bool) {
        let off = self.congestion_off();
        let kind = &mut self.kinds[usize::from(sync)];
        assert!(kind.count > 0, "a request that is put was taken");
        kind.count -= 1;
        if kind.count < off {
            kind.congested = false;
        }
        if kind.count < self.nr_requests {
            kind.full = false;
        }
    }

    /// The oldest waiter, if a request is free; or the next one of the woken submitter while it
    /// batches.
    pub(super) fn next_waiter(&mut self, now: Nanos) -> Option<Waiter> {
        [true, false].into_iter().find_map(|sync| {
            let kind = &self.kinds[usize::from(sync)];
            let waiter = *kind.waiters.front()?;
            let io_context = waiter.claim.io_context;
            if kind.count < self.nr_requests {
                self.set_batching(now, io_context);
            } else if !self.is_batching(now, io_context) {
                return None;
            }
            if !self.get(now, io_context, sync) {
                return None;
            }
            self.kinds[usize::from(sync)].waiters.pop_front();
            let submitter = self.submitters.get_mut(&io_context);
            submitter.expect("who has parked is known").parked[usize::from(sync)] -= 1;
            Some(waiter)
        })
    }

    pub(super) fn is_congested(&self, sync: bool) -> bool {
        self.kinds[usize::from(sync)].congested
    }

    /// Handles an exit. A submitter with parked bios is kept until its next exit.
    pub(super) fn exit_context(&mut self, io_context: IoContext) {
        let parks = self.submitters.get(&io_context).is_some_and(|s| s.parked != [0, 0]);
        if !parks {
            self.submitters.remove(&io_context);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_at_128_are_those_of_the_kernel() {
        let list = RequestList::new(128);
        assert_eq!((list.congestion_on(), list.congestion_off()), (113, 103));
        let smallest = RequestList::new(1);
        assert_eq!((smallest.congestion_on(), smallest.congestion_off()), (1, 1));
    }
}
