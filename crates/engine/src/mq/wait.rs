//! Allocation of requests, and its waiters (`get_request` of `block/blk-core.c` in 2.6.30, tags of
//! `block/blk-mq-tag.c` since).
//!
//! A merge needs no request, so the limit applies to the rest. An exhausted limit is not an error:
//! the bio is parked, in the order of arrival, and gets its request when one is freed.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::batching::RequestList;
use crate::bio::IoContext;
use crate::time::Nanos;

/// A claim for a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) io_context: IoContext,
    pub(super) sync: bool,
    pub(super) hctx: u16,
}

/// A parked bio.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) part: u32,
    pub(super) claim: Claim,
    /// Order of arrival.
    arrival: u64,
}

/// Limit of a queue, and its waiters.
#[derive(Debug)]
pub(super) struct Allocation {
    limit: Limit,
    arrivals: u64,
    parked: usize,
}

#[derive(Debug)]
enum Limit {
    /// Single queue: separate counts of synchronous and asynchronous requests.
    Batching(RequestList),
    /// Multi-queue: tags, per hardware queue.
    Tags(Vec<RequestTags>),
}

impl Allocation {
    pub(super) fn single(nr_requests: u32) -> Self {
        Self { limit: Limit::Batching(RequestList::new(nr_requests)), arrivals: 0, parked: 0 }
    }

    pub(super) fn multi(hw_queues: u16, tags: u32, async_depth: Option<u32>) -> Self {
        let tags = (0..hw_queues).map(|_| RequestTags::new(tags, async_depth)).collect();
        Self { limit: Limit::Tags(tags), arrivals: 0, parked: 0 }
    }

    /// Takes a request; false if there is none for this claim.
    pub(super) fn take(&mut self, now: Nanos, claim: Claim) -> bool {
        match &mut self.limit {
            Limit::Batching(list) => list.take(now, claim.io_context, claim.sync),
            Limit::Tags(tags) => tags[usize::from(claim.hctx)].take(claim.sync),
        }
    }

    /// Parks a bio after [`Allocation::take`] had no request.
    pub(super) fn park(&mut self, part: u32, claim: Claim) {
        let waiter = Waiter { part, claim, arrival: self.arrivals };
        self.arrivals += 1;
        self.parked += 1;
        match &mut self.limit {
            Limit::Batching(list) => list.park(waiter),
            Limit::Tags(tags) => tags[usize::from(claim.hctx)].park(waiter),
        }
    }

    /// Returns a request that has ended, or was merged into another.
    pub(super) fn put(&mut self, sync: bool, hctx: u16) {
        match &mut self.limit {
            Limit::Batching(list) => list.put(sync),
            Limit::Tags(tags) => tags[usize::from(hctx)].put(sync),
        }
    }

    /// The next waiting bio that can have a request, which is taken for it.
    pub(super) fn next_waiter(&mut self, now: Nanos) -> Option<u32> {
        let waiter = match &mut self.limit {
            Limit::Batching(list) => list.next_waiter(now),
            Limit::Tags(tags) => tags.iter_mut().find_map(RequestTags::next_waiter),
        }?;
        self.parked -= 1;
        Some(waiter.part)
    }

    /// Whether submitters of this kind should wait. Only the single-queue generation has
    /// congestion.
    pub(super) fn is_congested(&self, sync: bool) -> bool {
        match &self.limit {
            Limit::Batching(list) => list.is_congested(sync),
            Limit::Tags(_) => false,
        }
    }

    pub(super) fn exit_context(&mut self, io_context: IoContext) {
        match &mut self.limit {
            Limit::Batching(list) => list.exit_context(io_context),
            Limit::Tags(_) => {}
        }
    }

    pub(super) fn is_nobody_parked(&self) -> bool {
        self.parked == 0
    }
}

/// Requests of one hardware queue: scheduler tags, or, without an elevator, driver tags.
///
/// The kernel wakes sleepers in groups, because wake-ups are expensive. Here a freed request goes
/// to the oldest waiter that can have it, so no waiter is passed.
#[derive(Debug)]
struct RequestTags {
    tags: u32,
    /// Greatest number of asynchronous requests (`limit_depth`).
    async_depth: u32,
    used: u32,
    used_async: u32,
    /// Waiters: asynchronous, synchronous.
    waiters: [VecDeque<Waiter>; 2],
}

impl RequestTags {
    fn new(tags: u32, async_depth: Option<u32>) -> Self {
        let async_depth = async_depth.unwrap_or(tags).clamp(1, tags);
        Self { tags, async_depth, used: 0, used_async: 0, waiters: Default::default() }
    }

    /// Takes a tag. Waiters exist only while no tag of their kind is free, so none can be passed.
    fn take(&mut self, sync: bool) -> bool {
        let free = self.is_free(sync);
        if free {
            self.used += 1;
            self.used_async += u32::from(!sync);
        }
        free
    }

    fn is_free(&self, sync: bool) -> bool {
        self.used < self.tags && (sync || self.used_async < self.async_depth)
    }

    fn park(&mut self, waiter: Waiter) {
        self.waiters[usize::from(waiter.claim.sync)].push_back(waiter);
    }

    fn put(&mut self, sync: bool) {
        assert!(self.used > 0, "a tag that is put was taken");
        self.used -= 1;
        self.used_async -= u32::from(!sync);
    }

    fn next_waiter(&mut self) -> Option<Waiter> {
        let arrival = |sync: bool| {
            let front = self.waiters[usize::from(sync)].front();
            front.filter(|_| self.is_free(sync)).map(|waiter| (waiter.arrival, sync))
        };
        let (_, sync) = arrival(false).into_iter().chain(arrival(true)).min()?;
        let taken = self.take(sync);
        assert!(taken, "a tag of this kind is free");
        self.waiters[usize::from(sync)].pop_front()
    }
}
