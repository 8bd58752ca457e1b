//! `deadline-prio`: deadline with three levels, for synchronous writes and for those in a hurry
//! (Corrado Zoccolo, linux-kernel, 22 April 2009: "Reduce latencies for syncronous writes and high
//! I/O priority requests in deadline IO scheduler").
//!
//! ```text
//!   level           reads        synchronous writes   asynchronous writes
//!   0 real time     rt
//!   1 sync          be           rt, be
//!   2 async         idle         idle                 rt, be, idle
//! ```
//!
//! Each batch belongs to a level and, there, to reads or to writes. Level 0 has precedence and may
//! starve the others; level 1 passes level 2 `async_starved` times.
//!
//! ```text
//!            ┌─ batch not used up, a next one there ──> it
//!   dispatch ┤
//!            └─ new batch: level ──> reads or writes: whose oldest is due first
//!                          └─ oldest late ──> up to fifo_batch / 3 in front of it, by sector
//!                             next one    ──> it
//!                             else        ──> the oldest
//! ```
//!
//! A batch is used up when it had `fifo_batch` requests *and* `quantum` is over: many adjacent
//! requests cost little. On devices that do not seek, the next read is the oldest one.
//!
//! The mail's patch is lost. The following is our own choice: all numbers but fifo_batch; the
//! choice between reads and writes in a level; that a batch which starts early reaches the overdue
//! request after `fifo_batch / 3` others whatever is inserted meanwhile; that requests may start at
//! the same sector (`deadline` pushes the older one out, which would pass real-time reads here);
//! and `rt_preempt`. The latter is off by default: the mail assigns levels to batches, and gives
//! these a minimum time.
//!
//! Bound: when a request's deadline passes, let `A` be the number of requests of its level with a
//! deadline no later than its own (itself included), and `C` the number of batches that real-time
//! reads cut short since (none without `rt_preempt`). Then the request is in one of the next `N`
//! batches, where those of level 0 do not count for the other levels:
//!
//! ```text
//!   level 0   N = A
//!   level 1   N = A + C + 1 + (A + C - 1) / async_starved
//!   level 2   N = (A + C) * (async_starved + 1)
//! ```
//!
//! and a batch has at most `fifo_batch` requests, or the number that the device takes within
//! `quantum` of its first, whichever is more.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::deadline_queue::DataDirection::{Read, Write};
use super::deadline_queue::{DataDirection, DeadlineQueue};
use super::{Attached, Candidate, Elevator, ElevatorType, Facts, Generation, Merged, Side};
use super::{Tunable, Tunables, Work};
use crate::bio::{IoContext, Op};
use crate::priority::PriorityClass;
use crate::request::{RequestId, Requests};
use crate::time::Nanos;

/// The elevator's type.
pub static DEADLINE_PRIO: ElevatorType = ElevatorType {
    name: "deadline-prio",
    about: "deadline with levels: real time reads, then synchronous requests, then the rest",
    generation: Generation::Single,
    tunables: &[
        expire("rt_expire", 125, "a real time read that waited this long starts the next batch"),
        expire("sync_expire", 500, "likewise for level 1: reads and synchronous writes"),
        expire("async_expire", 5000, "likewise for level 2: asynchronous writes, the idle class"),
        Tunable {
            name: "async_starved",
            default: 2,
            // With 0, level 1 would wait as long as level 2 has requests.
            min: 1,
            max: 100,
            unit: "",
            about: "batches of level 1 that pass a waiting level 2",
        },
        Tunable {
            name: "fifo_batch",
            default: 16,
            min: 1,
            // More than a queue holds: a batch would end only with its requests.
            max: 4096,
            unit: "",
            about: "least number of requests in a batch",
        },
        Tunable {
            name: "quantum",
            default: 40,
            min: 0,
            // A second: the longest time that a client should wait for another batch.
            max: 1000,
            unit: "ms",
            about: "least time of a batch; 0: only fifo_batch counts",
        },
        flag("rt_preempt", 0, "1: a real time read cuts the batch of another level short"),
        flag("front_merges", 1, "1: bios are also merged to the front of a request"),
    ],
    attach,
};

const fn expire(name: &'static str, default: u64, about: &'static str) -> Tunable {
    // Ten minutes: longer than any client waits.
    Tunable { name, default, min: 1, max: 600_000, unit: "ms", about }
}

const fn flag(name: &'static str, default: u64, about: &'static str) -> Tunable {
    Tunable { name, default, min: 0, max: 1, unit: "", about }
}

fn attach(tunables: &Tunables<'_>, facts: Facts) -> Attached {
    let expire = |name| Nanos::from_ms(tunables.value(name));
    let tuning = Tuning {
        expire: [expire("rt_expire"), expire("sync_expire"), expire("async_expire")],
        async_starved: tunables.value("async_starved"),
        fifo_batch: tunables.value("fifo_batch"),
        quantum: Nanos::from_ms(tunables.value("quantum")),
        rt_preempt: tunables.value("rt_preempt") == 1,
        front_merges: tunables.value("front_merges") == 1,
        reads_by_age: !facts.rotational,
    };
    Attached { policy: Some(Box::new(DeadlinePrio::new(tuning))), async_depth: None }
}

/// Values of the tunables, and facts about the device.
#[derive(Clone, Copy, Debug)]
struct Tuning {
    /// Expiry by level.
    expire: [Nanos; LEVELS],
    async_starved: u64,
    fifo_batch: u64,
    quantum: Nanos,
    rt_preempt: bool,
    front_merges: bool,
    /// Whether the device does not seek: then reads are dispatched in deadline order.
    reads_by_age: bool,
}

const LEVELS: usize = 3;
const REAL_TIME: usize = 0;
const SYNC: usize = 1;
const ASYNC: usize = 2;

/// Requests that can share a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lane {
    level: usize,
    direction: DataDirection,
}

impl Lane {
    /// The table above. Asynchronous requests stay asynchronous even in the real-time class (our
    /// choice).
    fn of(op: Op, sync: bool, class: PriorityClass) -> Self {
        let direction = DataDirection::of(op);
        let level = match (class, direction) {
            (PriorityClass::Idle, _) => ASYNC,
            (PriorityClass::RealTime, Read) => REAL_TIME,
            (PriorityClass::BestEffort, Read) => SYNC,
            (_, Write) => {
                if sync {
                    SYNC
                } else {
                    ASYNC
                }
            }
        };
        Self { level, direction }
    }
}

/// Requests of a level.
#[derive(Debug, Default)]
struct Level {
    reads: DeadlineQueue,
    writes: DeadlineQueue,
}

impl Level {
    fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }

    /// The direction with the earlier deadline; reads if equal.
    fn due_first(&self) -> DataDirection {
        match (self.reads.earliest_deadline(), self.writes.earliest_deadline()) {
            (Some(read), Some(write)) if write < read => Write,
            (None, Some(_)) => Write,
            _ => Read,
        }
    }
}

/// The running batch.
#[derive(Clone, Copy, Debug)]
struct Batch {
    lane: Lane,
    started: Nanos,
    /// Number of its requests.
    len: u64,
    /// Next request, determined when the last one was taken; `None`: the batch is over.
    next: Option<RequestId>,
    /// The overdue request for which the batch started, until it is taken.
    late: Option<Late>,
}

#[derive(Clone, Copy, Debug)]
struct Late {
    request: RequestId,
    /// Number of requests that may still go before it.
    lead: u64,
}

/// The deadline-prio policy.
#[derive(Debug)]
pub struct DeadlinePrio {
    tuning: Tuning,
    levels: [Level; LEVELS],
    /// Lanes by request. A merge may make a request more urgent, but does not move it: the idle
    /// class and asynchronous writes share a level and would move together.
    lanes: Vec<Lane>,
    batch: Batch,
    /// Number of level 1 batches that passed a waiting level 2.
    starved: u64,
}

impl DeadlinePrio {
    fn new(tuning: Tuning) -> Self {
        let lane = Lane { level: REAL_TIME, direction: Read };
        Self {
            tuning,
            levels: Default::default(),
            lanes: Vec::new(),
            batch: Batch { lane, started: Nanos(0), len: 0, next: None, late: None },
            starved: 0,
        }
    }

    fn queue(&self, lane: Lane) -> &DeadlineQueue {
        let level = &self.levels[lane.level];
        match lane.direction {
            Read => &level.reads,
            Write => &level.writes,
        }
    }

    fn queue_mut(&mut self, lane: Lane) -> &mut DeadlineQueue {
        let level = &mut self.levels[lane.level];
        match lane.direction {
            Read => &mut level.reads,
            Write => &mut level.writes,
        }
    }

    /// Whether a lane is ordered by age only, without sectors.
    fn is_by_age(&self, lane: Lane) -> bool {
        self.tuning.reads_by_age && lane.direction == Read
    }

    /// Next request of the running batch.
    fn next_in_batch(&self) -> Option<RequestId> {
        match self.batch.late {
            Some(late) if late.lead == 0 || self.batch.next.is_none() => Some(late.request),
            _ => self.batch.next,
        }
    }

    /// Start of a batch for an overdue request: up to `fifo_batch / 3` places before it in sector
    /// order. So low sectors get their share: an upward sweep passes them most often.
    fn early_start(&self, lane: Lane, late: RequestId) -> (RequestId, Option<Late>) {
        let mut start = late;
        let mut lead = 0;
        while lead < self.tuning.fifo_batch / 3
            && let Some(prev) = self.queue(lane).prev(start)
        {
            (start, lead) = (prev, lead + 1);
        }
        (start, Some(Late { request: late, lead }))
    }

    /// Takes a request; the batch continues after it.
    fn take(&mut self, requests: &Requests, id: RequestId) {
        let by_age = self.is_by_age(self.batch.lane);
        let queue = self.queue_mut(self.batch.lane);
        let len = queue.len();
        let behind = queue.remove(id);
        self.batch.next = if by_age { queue.oldest() } else { behind };
        requests.visit(1);
        requests.search(len);
        self.batch.len += 1;
        self.batch.late = match self.batch.late {
            Some(late) if late.request != id => Some(Late { lead: late.lead - 1, ..late }),
            _ => None,
        };
    }
}

impl Elevator for DeadlinePrio {
    fn allow_merge(&self, _: &Requests, request: RequestId, candidate: &Candidate) -> bool {
        let lane = match candidate.request {
            Some(id) => self.lanes[id.index()],
            None => Lane::of(candidate.op, candidate.sync, candidate.origin.priority.class),
        };
        lane == self.lanes[request.index()]
            && (candidate.side == Side::Back || self.tuning.front_merges)
    }

    fn insert(&mut self, now: Nanos, requests: &Requests, request: RequestId) {
        let it = &requests[request];
        let lane = Lane::of(it.op, it.sync, it.origin.priority.class);
        if self.lanes.len() <= request.index() {
            self.lanes.resize(request.index() + 1, lane);
        }
        self.lanes[request.index()] = lane;
        let deadline = now + self.tuning.expire[lane.level];
        let queue = self.queue_mut(lane);
        queue.insert(request, it.sector, deadline);
        let len = queue.len();
        requests.visit(2);
        requests.search(len);
    }

    fn merged(&mut self, _: Nanos, requests: &Requests, request: RequestId, how: Merged) {
        let lane = self.lanes[request.index()];
        let by_age = self.is_by_age(lane);
        let queue = self.queue_mut(lane);
        match how {
            Merged::Back => {}
            Merged::Front => queue.reposition(request, requests[request].sector),
            Merged::Absorbed(absorbed) => {
                let behind = queue.absorb(request, absorbed);
                let next = if by_age { queue.oldest() } else { behind };
                if self.batch.next == Some(absorbed) {
                    self.batch.next = next;
                }
                if let Some(late) = &mut self.batch.late
                    && late.request == absorbed
                {
                    late.request = request;
                }
            }
        }
    }

    fn dispatch(&mut self, now: Nanos, requests: &Requests) -> Option<RequestId> {
        let Tuning { async_starved, fifo_batch, quantum, rt_preempt, .. } = self.tuning;
        let waits = self.levels.each_ref().map(|level| !level.is_empty());
        let batch = self.batch;
        let used_up = batch.len >= fifo_batch && now.since(batch.started) >= quantum;
        // The levels, and the batch.
        requests.visit(1 + LEVELS as u32);
        let cut = rt_preempt && waits[REAL_TIME] && batch.lane.level != REAL_TIME;
        let chosen = match self.next_in_batch() {
            Some(next) if !used_up && !cut => next,
            _ => {
                let level = match waits {
                    [true, _, _] => REAL_TIME,
                    [_, true, false] => SYNC,
                    [_, true, true] if self.starved < async_starved => {
                        self.starved += 1;
                        SYNC
                    }
                    [_, _, true] => {
                        self.starved = 0;
                        ASYNC
                    }
                    [false, false, false] => return None,
                };
                let lane = Lane { level, direction: self.levels[level].due_first() };
                // Both directions, and the oldest request.
                requests.visit(3);
                let queue = self.queue(lane);
                let goes_on = batch.next.filter(|_| batch.lane == lane);
                let (start, late) = match (queue.expired(now), goes_on) {
                    _ if self.is_by_age(lane) => (queue.oldest()?, None),
                    (Some(late), _) => self.early_start(lane, late),
                    (None, Some(next)) => (next, None),
                    (None, None) => (queue.oldest()?, None),
                };
                self.batch = Batch { lane, started: now, len: 0, next: None, late };
                start
            }
        };
        self.take(requests, chosen);
        Some(chosen)
    }

    fn requeued(&mut self, _: Nanos, _: &Requests, _: RequestId) {}

    fn completed(&mut self, _: Nanos, _: &Requests, _: RequestId) {}

    fn exit_context(&mut self, _: Nanos, _: &Requests, _: IoContext) {}

    fn work(&self, _: Nanos) -> Work {
        if self.levels.iter().all(Level::is_empty) { Work::None } else { Work::Now }
    }
}

#[cfg(test)]
mod tests;
