//! The queue between what submits bios and a device (`block/blk-mq.c`, `block/blk-core.c`).
//!
//! A [`RequestQueue`] is a plain struct: bios and times go in, requests for the device come out,
//! their completions go in, finished bios come out. Nothing is dispatched unless the world asks:
//! after each event that could have changed something, and at [`RequestQueue::wake_at`].
//!
//! ```text
//!            plug          limit                               driver tag
//!   bio ──> merge ──> get a request ──> [plug] ──> elevator ──> dispatch ──> device
//!             │            └ parked                   │            ^  ^        │ busy
//!             └ grew a request <── merge ─────────────┘            │  └────────┤
//!                                      flush machine ──> dispatch list <───────┘
//! ```
//!
//! Both generations are here ([`Generation`]). *Multi*: software queues feed hardware queues, each
//! with driver tags; with an elevator a request is made first and gets its driver tag when it is
//! dispatched, without one the driver tag is the request. *Single*: one queue, requests counted
//! apart for synchronous and asynchronous I/O, congestion, batching of waiters.

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
use crate::time::Nanos;

pub use config::{Limits, PlugRule, QueueConfig};

use bios::Bios;
use flush::FlushMachine;
use hctx::Hctx;
use list::List;
use merge::MergeHash;
use plug::Plugs;
use wait::Allocation;

/// What the device is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Issue {
    /// Names it until it is completed, or was refused as [`RequestQueue::busy`].
    pub tag: Tag,
    /// What to do.
    pub op: Op,
    /// First sector.
    pub sector: Sector,
    /// Length; zero for a flush.
    pub len: Sector,
    /// On stable storage before it completes.
    pub fua: bool,
    /// Who asked.
    pub origin: Origin,
    /// Pieces of memory.
    pub segments: u16,
}

/// What became of a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// It is on its way.
    Accepted,
    /// It is too, but some of it waits for a free request: its submitter would sleep now.
    Parked,
}

/// The queue has no tag for the clone of a request: the queue above keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bios submitted.
    pub bios: u64,
    /// Bios that were put behind a request.
    pub back_merges: u64,
    /// Bios that were put in front of a request.
    pub front_merges: u64,
    /// Requests that became part of another one.
    pub request_merges: u64,
    /// Requests given to the device, again after it was busy, too.
    pub issued: u64,
    /// Requests that came back: the device was too busy, or did a part only.
    pub requeued: u64,
    /// Bios, or pieces of one, that had to wait for a request.
    pub parked: u64,
    /// Flushes that the queue itself made.
    pub flushes: u64,
}

/// A queue.
pub struct RequestQueue {
    config: QueueConfig,
    elevator: Option<Box<dyn Elevator>>,
    /// Without an elevator and with tags: who gets a request gets a driver tag.
    allocates_tags: bool,
    requests: Requests,
    bios: Bios,
    allocation: Allocation,
    hctxs: Vec<Hctx>,
    /// The hardware queue of each CPU.
    hctx_by_cpu: Vec<u16>,
    hash: MergeHash,
    /// The request that the elevator heard of last, while it waits (`q->last_merge`).
    last_merge: Option<RequestId>,
    plugs: Plugs,
    /// A plug that is being flushed; emptied after each use, kept for its memory.
    unplugging: Vec<(Sector, usize, RequestId)>,
    /// Nothing that waits is dispatched before this time.
    queue_plug: Option<Nanos>,
    flush: FlushMachine,
    /// What the device has, if there is a timeout.
    issued: List,
    /// Requests in the elevator or in software queues.
    waiting: u32,
    /// Requests on dispatch lists.
    held: u32,
    /// The hardware queue whose list is looked at first.
    first_held: usize,
    /// The last time that was heard of.
    now: Nanos,
    counters: Counters,
}

impl RequestQueue {
    /// A queue.
    ///
    /// # Panics
    /// When no request could pass: a depth, a limit, the CPUs or the tick are zero; or when the
    /// single-queue generation is to have several hardware queues.
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

    /// The bios of an issued request, in the order of their sectors; where a bio was split, its
    /// piece. A flush that the queue made has none, and a clone's are those of the queue above.
    ///
    /// # Panics
    /// When the device does not have a request of this tag.
    pub fn bios(&self, tag: Tag) -> impl Iterator<Item = &Bio> {
        let id = self.hctxs[usize::from(tag.hctx)].tags.owner(tag.index);
        let Request { above, first_bio, .. } = self.requests[id];
        let has_bios = above.is_none() && !self.flush.is_running(id);
        self.bios.chain(has_bios.then_some(first_bio))
    }

    /// The bios that have ended, in order.
    pub fn take_done(&mut self, out: &mut Vec<Done>) {
        self.bios.take_done(out);
    }

    /// [`Bio::user`] of the bios that were parked and have got their request, in order.
    pub fn take_unparked(&mut self, out: &mut Vec<u64>) {
        self.bios.take_unparked(out);
    }

    /// Whether there are so many requests of this kind that submitters had better wait. With tags:
    /// never.
    #[must_use]
    pub fn is_congested(&self, sync: bool) -> bool {
        self.allocation.is_congested(sync)
    }

    /// When [`RequestQueue::dispatch`] and [`RequestQueue::timed_out`] want to be called, if
    /// nothing happens before: a plug or a retry is due, the elevator has idled for long enough, a
    /// flush has waited for long enough, a request is late.
    #[must_use]
    pub fn wake_at(&self) -> Option<Nanos> {
        let retry = |hctx: &Hctx| hctx.retry_at.filter(|_| !hctx.dispatch.is_empty());
        let retry = self.hctxs.iter().filter_map(retry).min();
        let others = [self.queue_plug, self.flush_due_at(), self.timeout_at(), self.elevator_at()];
        others.into_iter().flatten().chain(retry).min()
    }

    /// When the elevator, which idles, will have something. Its clock must have reached that time:
    /// rounded up to a tick.
    fn elevator_at(&self) -> Option<Nanos> {
        if !self.asks_elevator() {
            return None;
        }
        let tick = self.config.tick;
        match self.elevator.as_ref()?.work(self.tick(self.now)) {
            Work::At(time) => Some(Nanos(time.0.div_ceil(tick.0).saturating_mul(tick.0))),
            Work::None | Work::Now | Work::AfterCompletion => None,
        }
    }

    /// No more bios will come from this submitter.
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

    /// What has happened so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Whether a request waits for the device.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.waiting > 0 || self.held > 0
    }

    /// Every bio has ended.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let idle = self.bios.is_empty();
        assert!(!idle || self.allocation.is_nobody_parked(), "who is parked has a bio");
        idle && self.requests.is_empty()
    }

    /// The time as the elevator sees it.
    fn tick(&self, now: Nanos) -> Nanos {
        let tick = self.config.tick;
        if tick == Nanos(1) { now } else { now.tick_before(tick) }
    }
}
