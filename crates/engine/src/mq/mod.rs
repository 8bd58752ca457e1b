//! The request queue between submitters and a device (`block/blk-mq.c`, `block/blk-core.c`).
//!
//! A [`RequestQueue`] is a plain struct: bios and times go in, requests for the device come out,
//! their completions go in, finished bios come out. Dispatch happens only when the world calls for
//! it: after each event that could enable it, and at [`RequestQueue::wake_at`].
//!
//! ```text
//!            plug          limit                               driver tag
//!   bio ──> merge ──> get a request ──> [plug] ──> elevator ──> dispatch ──> device
//!             │            └ parked                   │            ^  ^        │ busy
//!             └ grew a request <── merge ─────────────┘            │  └────────┤
//!                                      flush machine ──> dispatch list <───────┘
//! ```
//!
//! Both generations are implemented ([`Generation`]). *Multi*: software queues feed hardware queues
//! with driver tags. With an elevator a request is allocated first and gets its driver tag at
//! dispatch; without one the driver tag is the request. *Single*: one queue, separate limits for
//! synchronous and asynchronous requests, congestion, batching of waiters.

mod batching;
mod bios;
pub mod complete;
mod config;
mod dispatch;
mod flush;
mod hctx;
mod list;
mod merge;
mod plug;
mod software;
pub(crate) mod stack;
mod submit;
mod tags;
#[cfg(test)]
mod tests;
mod timeout;
mod wait;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::bio::{Bio, Done, IoContext, Op, Origin, Sector};
use crate::elevator::{Attached, Elevator, ElevatorSpec, Facts, Generation, Work};
use crate::request::{Request, RequestId, Requests, Tag};
use crate::time::{Nanos, earlier};

pub use config::{Limits, PlugRule, QueueConfig};

use bios::Bios;
use flush::FlushMachine;
use hctx::Hctx;
use list::List;
use merge::MergeHash;
use plug::Plugs;
use wait::Allocation;

/// A request for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Issue {
    /// Tag of the request, until it is completed or refused ([`RequestQueue::busy`]).
    pub tag: Tag,
    /// Operation.
    pub op: Op,
    /// First sector.
    pub sector: Sector,
    /// Length; zero for a flush.
    pub len: Sector,
    /// `REQ_FUA`: data on stable storage before it completes.
    pub fua: bool,
    /// Submitter.
    pub origin: Origin,
    /// Number of segments.
    pub segments: u16,
}

/// Result of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// The bio is accepted.
    Accepted,
    /// The bio is accepted, but parts of it wait for a free request: a submitter would sleep now.
    Parked,
}

/// The queue has no tag for a clone: the queue above keeps the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// Counters of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Submitted bios.
    pub bios: u64,
    /// Bios merged at the end of a request.
    pub back_merges: u64,
    /// Bios merged at the start of a request.
    pub front_merges: u64,
    /// Requests merged into another one.
    pub request_merges: u64,
    /// Requests issued to the device, including repeated attempts.
    pub issued: u64,
    /// Requests returned by the device: it was busy, or did a part only.
    pub requeued: u64,
    /// Bios, or pieces of bios, that waited for a request.
    pub parked: u64,
    /// Flushes issued by the queue itself.
    pub flushes: u64,
}

/// A request queue.
// 20 fields: the kernel's `request_queue`. Each bio passes most of them, so they lie side by side.
pub struct RequestQueue {
    config: QueueConfig,
    elevator: Option<Box<dyn Elevator>>,
    /// Whether driver tags are allocated as requests: with tags and without an elevator.
    allocates_tags: bool,
    requests: Requests,
    bios: Bios,
    allocation: Allocation,
    hctxs: Vec<Hctx>,
    /// Hardware queue of each CPU.
    hctx_by_cpu: Vec<u16>,
    hash: MergeHash,
    /// The waiting request that the elevator was last called for (`q->last_merge`).
    last_merge: Option<RequestId>,
    plugs: Plugs,
    /// Scratch buffer for a plug that is being flushed, kept for its memory.
    unplugging: Vec<(Sector, usize, RequestId)>,
    /// End of the queue's plug: no waiting request is dispatched before.
    queue_plug: Option<Nanos>,
    flush: FlushMachine,
    /// Issued requests, if there is a timeout.
    issued: List,
    /// Number of requests in the elevator or in software queues.
    waiting: u32,
    /// Number of requests on dispatch lists.
    held: u32,
    /// Hardware queue whose dispatch list is served first.
    first_held: usize,
    /// Latest time of a call.
    now: Nanos,
    counters: Counters,
}

impl RequestQueue {
    /// Creates a queue.
    ///
    /// # Panics
    /// When no request could pass: a depth, a limit, the number of CPUs or the tick is zero; or
    /// when the single-queue generation has several hardware queues.
    #[must_use]
    pub fn new(config: QueueConfig, elevator: &ElevatorSpec) -> Self {
        config.check();
        let QueueConfig { generation, hw_queues, queue_depth, nr_requests, .. } = config;
        let facts = Facts { rotational: config.rotational, nr_requests, queue_depth };
        let Attached { policy, async_depth } = elevator.attach(facts);
        let multi = generation == Generation::Multi;
        let allocates_tags = multi && policy.is_none();
        let per_hctx = if allocates_tags { queue_depth } else { nr_requests };
        let hctx = |number: u16| {
            let mut cpus = (0..config.cpus).filter(|cpu| config.hctx_of(*cpu) == number);
            let first_cpu = cpus.next().unwrap_or(0);
            Hctx::new(queue_depth, first_cpu, 1 + u16::try_from(cpus.count()).expect("CPUs"))
        };
        Self {
            config,
            elevator: policy,
            allocates_tags,
            requests: Requests::default(),
            bios: Bios::default(),
            allocation: match generation {
                Generation::Single => Allocation::single(nr_requests),
                Generation::Multi => Allocation::multi(hw_queues, per_hctx, async_depth),
            },
            hctxs: (0..hw_queues).map(hctx).collect(),
            hctx_by_cpu: (0..config.cpus).map(|cpu| config.hctx_of(cpu)).collect(),
            hash: MergeHash::new(per_hctx.saturating_mul(u32::from(hw_queues))),
            last_merge: None,
            plugs: Plugs::default(),
            unplugging: Vec::new(),
            queue_plug: None,
            flush: FlushMachine::default(),
            issued: List::default(),
            waiting: 0,
            held: 0,
            first_held: 0,
            now: Nanos(0),
            counters: Counters::default(),
        }
    }

    /// Bios of an issued request in sector order; for a split bio its piece. A flush by the queue
    /// itself has none, and a clone's bios are in the queue above.
    ///
    /// # Panics
    /// When the device does not have a request of this tag.
    pub fn bios(&self, tag: Tag) -> impl Iterator<Item = &Bio> {
        let id = self.hctxs[usize::from(tag.hctx)].tags.owner(tag.index);
        let Request { above, bios, .. } = self.requests[id];
        let has_bios = above.is_none() && !self.flush.is_running(id);
        self.bios.chain(has_bios.then_some(bios.first))
    }

    /// Moves the ended bios to `out`, in order.
    pub fn take_done(&mut self, out: &mut Vec<Done>) {
        self.bios.take_done(out);
    }

    /// Moves [`Bio::user`] of the parked bios that have got their request to `out`, in order.
    pub fn take_unparked(&mut self, out: &mut Vec<u64>) {
        self.bios.take_unparked(out);
    }

    /// Whether requests of this kind are congested, so that submitters should wait. Never with
    /// tags.
    #[must_use]
    pub fn is_congested(&self, sync: bool) -> bool {
        self.allocation.is_congested(sync)
    }

    /// Time at which [`RequestQueue::dispatch`] and [`RequestQueue::timed_out`] must be called at
    /// the latest: for a plug, a retry, the end of idling, a delayed flush or a timeout.
    #[must_use]
    pub fn wake_at(&self) -> Option<Nanos> {
        let own = earlier(self.queue_plug, self.flush_due_at());
        let next = earlier(own, earlier(self.timeout_at(), self.elevator_at()));
        if self.held == 0 {
            return next;
        }
        let retry = |hctx: &Hctx| hctx.retry_at.filter(|_| !hctx.dispatch.is_empty());
        earlier(next, self.hctxs.iter().filter_map(retry).min())
    }

    /// Time at which the idling elevator has a request. Its clock must have reached that time, so
    /// the time is rounded up to a tick.
    fn elevator_at(&self) -> Option<Nanos> {
        let elevator = self.elevator.as_ref().filter(|_| self.asks_elevator())?;
        let tick = self.config.tick;
        match elevator.work(self.tick(self.now)) {
            Work::At(time) => Some(Nanos(time.0.div_ceil(tick.0).saturating_mul(tick.0))),
            Work::None | Work::Now | Work::AfterCompletion => None,
        }
    }

    /// Handles the exit of a submitter.
    pub fn exit_context(&mut self, now: Nanos, io_context: IoContext) {
        self.now = now;
        self.forget_plug(now, io_context);
        self.allocation.exit_context(io_context);
        let tick = self.tick(now);
        if let Some(elevator) = &mut self.elevator {
            elevator.exit_context(tick, &self.requests, io_context);
        }
        self.grant_waiters(now);
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Counted work so far of the queue and its elevator on waiting requests: look-ups for merges,
    /// insertions, dispatches and completions.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.requests.visits()
    }

    /// Whether a request waits for the device.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.waiting > 0 || self.held > 0
    }

    /// Whether all bios have ended.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let idle = self.bios.is_empty();
        assert!(!idle || self.allocation.is_nobody_parked(), "who is parked has a bio");
        idle && self.requests.is_empty()
    }

    /// The time in ticks of the elevator's clock.
    fn tick(&self, now: Nanos) -> Nanos {
        let tick = self.config.tick;
        if tick == Nanos(1) { now } else { now.tick_before(tick) }
    }
}
