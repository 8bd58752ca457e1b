//! Who gets a request, and who waits for one (`get_request` of `block/blk-core.c` in 2.6.30, tags
//! of `block/blk-mq-tag.c` since).
//!
//! Merging needs no request, so this is the limit on what is left after merging. Running out is no
//! error: the bio is parked, in the order of arrival, and gets its request when one is given back.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::batching::RequestList;
use crate::bio::IoContext;
use crate::time::Nanos;

/// Who wants a request.
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

/// The limit of a queue and its waiters.
#[derive(Debug)]
pub(super) struct Allocation {
    limit: Limit,
    arrivals: u64,
    parked: usize,
}

#[derive(Debug)]
enum Limit {
    /// Single queue: synchronous and asynchronous requests counted apart.
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

    /// Takes a request, unless there is none for this claim.
    pub(super) fn take(&mut self, now: Nanos, claim: Claim) -> bool {
        match &mut self.limit {
            Limit::Batching(list) => list.take(now, claim.io_context, claim.sync),
            Limit::Tags(tags) => tags[usize::from(claim.hctx)].take(claim.sync),
        }
    }

    /// Queues a bio that [`Allocation::take`] had no request for.
    pub(super) fn park(&mut self, part: u32, claim: Claim) {
        let waiter = Waiter { part, claim, arrival: self.arrivals };
        self.arrivals += 1;
        self.parked += 1;
        match &mut self.limit {
            Limit::Batching(list) => list.park(waiter),
            Limit::Tags(tags) => tags[usize::from(claim.hctx)].park(waiter),
        }
    }

    /// A request has ended, or was absorbed by another.
    pub(super) fn put(&mut self, sync: bool, hctx: u16) {
        match &mut self.limit {
            Limit::Batching(list) => list.put(sync),
            Limit::Tags(tags) => tags[usize::from(hctx)].put(sync),
        }
    }

    /// The next bio whose turn it is, with its request taken for it.
    pub(super) fn next_waiter(&mut self, now: Nanos) -> Option<u32> {
        let waiter = match &mut self.limit {
            Limit::Batching(list) => list.next_waiter(now),
            Limit::Tags(tags) => tags.iter_mut().find_map(RequestTags::next_waiter),
        }?;
        self.parked -= 1;
        Some(waiter.part)
    }

    /// Whether writers of this kind had better wait. Only the single-queue generation says so.
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

/// The requests of one hardware queue: scheduler tags, or, without an elevator, the driver's.
///
/// The kernel wakes sleepers in groups, because waking costs; here a request that is given back
/// goes to whoever has waited longest and can have it, so nobody is passed.
#[derive(Debug)]
struct RequestTags {
    tags: u32,
    /// How many may be asynchronous (`limit_depth`).
    async_depth: u32,
    used: u32,
    used_async: u32,
    /// Asynchronous, synchronous.
    waiters: [VecDeque<Waiter>; 2],
}

impl RequestTags {
    fn new(tags: u32, async_depth: Option<u32>) -> Self {
        let async_depth = async_depth.unwrap_or(tags).clamp(1, tags);
        Self { tags, async_depth, used: 0, used_async: 0, waiters: Default::default() }
    }

    /// Whoever waits waits for want of a tag of its kind: nobody can be passed here.
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
