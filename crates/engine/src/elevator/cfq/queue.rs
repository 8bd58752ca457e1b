//! One queue, `cfqq` in the kernel: synchronous requests of one submitter, or asynchronous requests
//! of all at one priority. [`Nearest`] has their order.

use super::super::nearest::Nearest;
use super::context::ContextId;
use super::service::Place;
use crate::bio::Sector;
use crate::priority::{Priority, PriorityClass};
use crate::request::Request;
use crate::time::Nanos;

/// Distance from the last request that counts as a seek on a rotating disk (`CFQQ_SEEK_THR`).
const SEEK_DISTANCE_SECTORS: u64 = 800;
/// Size up to which a request counts as a seek on a device without a head.
const SEEK_SIZE_SECTORS: u64 = 64;
/// Greatest number of seeks among the last 32 requests of a non-seeky queue.
const SEEKS_MAX: u32 = 4;
/// Number of waiting requests from which a queue is deep: it keeps the disk busy by itself.
const DEEP_REQUESTS: usize = 4;

/// Number of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CfqqId(pub(super) u32);

/// A cfq queue.
// 16 fields: the kernel's `cfq_queue`; each decision of the policy reads several of them.
#[derive(Debug)]
pub(super) struct Cfqq {
    /// Whether the queue is one submitter's synchronous queue; otherwise it is shared by all.
    pub(super) sync: bool,
    pub(super) priority: Priority,
    /// Waiting requests.
    pub(super) waiting: Nearest,
    /// Requests in flight.
    pub(super) dispatched: u32,

    /// Place in the service tree; the active queue keeps its place.
    pub(super) place: Option<Place>,
    /// Rest of the last slice if it was cut short; negative after an overrun.
    pub(super) residual_ns: i64,
    /// Entry in the position trees.
    pub(super) position: Option<(u8, Sector)>,

    /// Whether idling for the next request pays.
    pub(super) idle_window: bool,
    /// Whether several requests waited at a time.
    pub(super) deep: bool,
    /// Seek flags of the last 32 requests, the newest in bit 0.
    seeks: u32,
    /// End of the last request.
    last_end: Option<Sector>,

    /// Number of submitters that use the queue.
    pub(super) users: u32,
    /// Number of submitters that will follow from queues to be merged into this one.
    pub(super) pending_users: u32,
    /// Target of a merge: submitters follow with their next request.
    pub(super) merge_into: Option<CfqqId>,
    /// Whether other submitters have been merged into the queue.
    pub(super) shared: bool,
    /// Whether the shared queue has become seeky, so that its submitters are split again.
    pub(super) split: bool,
}

impl Cfqq {
    pub(super) fn new(sync: bool, priority: Priority) -> Self {
        Self {
            sync,
            priority,
            waiting: Nearest::default(),
            dispatched: 0,
            place: None,
            residual_ns: 0,
            position: None,
            idle_window: sync && priority.class != PriorityClass::Idle,
            deep: false,
            seeks: 0,
            last_end: None,
            users: 0,
            pending_users: 0,
            merge_into: None,
            shared: false,
            split: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn is_idle_class(&self) -> bool {
        self.priority.class == PriorityClass::Idle
    }

    pub(super) fn is_seeky(&self) -> bool {
        self.seeks.count_ones() > SEEKS_MAX
    }

    /// Whether its submitters have exited.
    pub(super) fn is_abandoned(&self) -> bool {
        self.users == 0 && self.pending_users == 0
    }

    /// Whether the queue is not needed any more.
    pub(super) fn is_unused(&self) -> bool {
        let is_idle = self.dispatched == 0 && self.is_empty() && self.place.is_none();
        self.is_abandoned() && is_idle
    }

    /// Updates the seek flags with the newest request, and the deep flag.
    pub(super) fn note_request(&mut self, request: &Request, rotational: bool) {
        let distance = self.last_end.map_or(0, |last| last.0.abs_diff(request.sector.0));
        let seek = if rotational {
            distance > SEEK_DISTANCE_SECTORS
        } else {
            request.len.0 < SEEK_SIZE_SECTORS
        };
        self.seeks = self.seeks << 1 | u32::from(seek);
        self.last_end = Some(request.end());
        if self.waiting.len() >= DEEP_REQUESTS {
            self.deep = true;
        }
    }
}

/// Data of each request from its insertion to its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) queue: CfqqId,
    /// Submitter of a synchronous request.
    pub(super) context: Option<ContextId>,
    /// Time from which the request is overdue (`fifo_time`).
    pub(super) deadline: Nanos,
}
