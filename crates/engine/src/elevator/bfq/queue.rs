//! One queue, `bfqq` in the kernel: synchronous requests of one submitter, or asynchronous requests
//! of all at one priority.

use super::super::nearest::Nearest;
use super::super::think::ThinkTime;
use super::raise::Raising;
use super::wf2q::Entity;
use crate::bio::{IoContext, Sector};
use crate::priority::{Priority, PriorityClass};
use crate::request::Request;
use crate::time::Nanos;

/// Distance from the last request that counts as a seek (`BFQQ_SEEK_THR`).
pub(super) const SEEK_DISTANCE_SECTORS: u64 = 800;
/// Size from which a request is no seek on a device without a head (`BFQQ_SECT_THR_NONROT`).
const LARGE_SECTORS: u64 = 64;
/// Greatest number of seeks among the last 32 requests of a non-seeky queue (`BFQQ_SEEKY`).
const SEEKS_MAX: u32 = 19;
/// Weight of a level below the least urgent one (`BFQ_WEIGHT_CONVERSION_COEFF`).
const LEVEL_WEIGHT: u64 = 10;
/// Successive requests in time that make a queue I/O-bound again (`bfq_requests_within_timer`).
const IO_BOUND_AFTER: u32 = 120;

/// Number of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BfqqId(pub(super) u32);

/// A bfq queue.
// 14 fields: the kernel's `bfq_queue`; each decision of the policy reads several of them.
#[derive(Debug)]
pub(super) struct Bfqq {
    /// Whether the queue is one submitter's synchronous queue; otherwise it is shared by all.
    pub(super) sync: bool,
    /// Submitter of a synchronous queue, until it exits.
    pub(super) io_context: Option<IoContext>,
    /// Priority of the last request. The class in force is `class`.
    pub(super) priority: Priority,
    pub(super) class: PriorityClass,
    pub(super) waiting: Nearest,
    /// Requests in flight.
    pub(super) dispatched: u32,
    /// Whether the queue has requests, or is in service.
    pub(super) is_busy: bool,
    pub(super) entity: Entity,
    /// Budget of the next turn, before its first request is known.
    pub(super) max_budget: u64,
    pub(super) raising: Raising,
    pub(super) pattern: Pattern,
    /// Time since which no request waits or is in flight; `None` for a new queue.
    pub(super) idle_since: Option<Nanos>,
    /// Whether the last turn ended only for lack of a request (`non_blocking_wait_rq`).
    pub(super) awaits_request: bool,
    /// Level under which the queue counts among the active ones.
    pub(super) counted: Option<u8>,
}

impl Bfqq {
    pub(super) fn new(
        now: Nanos,
        io_context: Option<IoContext>,
        priority: Priority,
        budget: u64,
    ) -> Self {
        Self {
            sync: io_context.is_some(),
            io_context,
            priority,
            class: priority.class,
            waiting: Nearest::default(),
            dispatched: 0,
            is_busy: false,
            entity: Entity::default(),
            max_budget: budget,
            raising: Raising::new(now),
            pattern: Pattern::default(),
            idle_since: None,
            awaits_request: false,
            counted: None,
        }
    }

    /// Weight by level, times the factor of weight raising.
    pub(super) fn weight(&self) -> u64 {
        self.own_weight() * self.raising.factor()
    }

    pub(super) fn own_weight(&self) -> u64 {
        (8 - u64::from(self.priority.level)) * LEVEL_WEIGHT
    }

    pub(super) fn is_idle_class(&self) -> bool {
        self.class == PriorityClass::Idle
    }

    /// Whether more requests may come from the queue's submitter.
    pub(super) fn is_used(&self) -> bool {
        !self.sync || self.io_context.is_some()
    }

    /// Whether the queue is not needed any more.
    pub(super) fn is_finished(&self) -> bool {
        !self.is_used() && !self.is_busy && self.dispatched == 0
    }
}

/// The pattern of a queue's requests.
#[derive(Debug)]
pub(super) struct Pattern {
    /// Seek flags of the last 32 requests, the newest in bit 0.
    seeks: u32,
    /// End of the last request.
    last_end: Option<Sector>,
    think: ThinkTime,
    /// Time at which a request last ended.
    pub(super) last_completion: Option<Nanos>,
    /// Whether the next request usually comes within `slice_idle`.
    pub(super) thinks_briefly: bool,
    /// Whether the submitter asks without pauses of its own.
    pub(super) is_io_bound: bool,
    in_time: u32,
}

impl Default for Pattern {
    fn default() -> Self {
        Self {
            seeks: 1, // the first request is one
            last_end: None,
            think: ThinkTime::default(),
            last_completion: None,
            thinks_briefly: true,
            is_io_bound: true,
            in_time: 0,
        }
    }
}

impl Pattern {
    pub(super) fn is_seeky(&self) -> bool {
        self.seeks.count_ones() > SEEKS_MAX
    }

    pub(super) fn is_totally_seeky(&self) -> bool {
        self.seeks == u32::MAX
    }

    /// Notes a new request.
    pub(super) fn came(&mut self, now: Nanos, rq: &Request, slice_idle: Nanos, rotational: bool) {
        self.think.came(now, slice_idle);
        self.thinks_briefly = self.think.is_longer_than(slice_idle) != Some(true);
        let seek = is_seek(self.last_end, rq, rotational);
        self.seeks = (self.seeks << 1) | u32::from(seek);
        self.last_end = Some(rq.end());
    }

    /// Notes that the queue has a request after it was empty.
    pub(super) fn resumed(&mut self, in_time: bool) {
        if self.is_io_bound {
            return;
        }
        self.in_time = if in_time { self.in_time + 1 } else { 0 };
        self.is_io_bound = self.in_time >= IO_BOUND_AFTER;
    }

    /// Notes the end of a request.
    pub(super) fn ended(&mut self, now: Nanos) {
        self.think.ended(now);
        self.last_completion = Some(now);
    }
}

/// Whether a request is far from `last`. A large one is no seek on a device without a head.
pub(super) fn is_seek(last: Option<Sector>, rq: &Request, rotational: bool) -> bool {
    let distance = last.map_or(0, |last| last.0.abs_diff(rq.sector.0));
    distance > SEEK_DISTANCE_SECTORS && (rotational || rq.len.0 < LARGE_SECTORS)
}

/// Data of each request from its insertion to its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) queue: BfqqId,
    /// Time from which the request is overdue.
    pub(super) deadline: Nanos,
}
