//! One queue, `cfqq` in the kernel: synchronous requests of one submitter, or asynchronous requests
//! of all at one priority. The queue keeps the sector order, the order of arrival, and its
//! preferred next request.
//!
//! The head prefers to go forward. A request behind it is a candidate too if it is at most
//! `back_seek_max` away, at `back_seek_penalty` times its distance. (The kernel compares
//! synchronousness first, which is equal within one queue.)
//!
//! ```text
//!            <-- back_seek_max --> head
//!    ...wraps..|..100........150...|..........260........> sectors
//!                       50 · 2 = 100     60: nearest, served next
//! ```

use super::super::fifo::Fifo;
use super::super::sort::SortTree;
use super::context::ContextId;
use super::service::Place;
use super::tunables::Settings;
use crate::bio::Sector;
use crate::priority::{Priority, PriorityClass};
use crate::request::{Request, RequestId, Requests};
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
// 19 fields: the kernel's `cfq_queue`; each decision of the policy reads several of them.
#[derive(Debug)]
pub(super) struct Cfqq {
    /// Whether the queue is one submitter's synchronous queue; otherwise it is shared by all.
    pub(super) sync: bool,
    pub(super) priority: Priority,
    /// Waiting requests, by sector and by arrival.
    sort: SortTree,
    fifo: Fifo,
    /// Preferred next request and its sector.
    pub(super) next: Option<RequestId>,
    pub(super) next_sector: Sector,
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
            sort: SortTree::default(),
            fifo: Fifo::default(),
            next: None,
            next_sector: Sector(0),
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
        self.fifo.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.fifo.len()
    }

    pub(super) fn oldest(&self) -> Option<RequestId> {
        self.fifo.front()
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

    /// Adds a waiting request.
    pub(super) fn add(&mut self, id: RequestId, requests: &Requests, head: &Head<'_>) {
        let sector = requests[id].sector;
        self.sort.insert(id, sector);
        self.fifo.push_back(id);
        self.consider(id, sector, head);
    }

    /// Makes this request the next one if it is better.
    fn consider(&mut self, id: RequestId, sector: Sector, head: &Head<'_>) {
        if self.next.is_none() || head.is_better(sector, self.next_sector) {
            self.next = Some(id);
            self.next_sector = sector;
        }
    }

    /// Removes a request for dispatch: the head goes there.
    pub(super) fn remove(&mut self, id: RequestId, requests: &Requests, settings: &Settings) {
        self.fifo.remove(id);
        if self.next != Some(id) {
            self.sort.remove(id);
            return;
        }
        let [before, after] = self.sort.remove_between(id);
        let after = after.or_else(|| self.sort.first()); // the lowest follows the last one
        self.next = None;
        let head = Head { last: requests[id].sector, settings };
        for candidate in [after, before].into_iter().flatten() {
            self.consider(candidate, requests[candidate].sector, &head);
        }
    }

    /// Handles a waiting request's new start sector.
    pub(super) fn moved(&mut self, id: RequestId, requests: &Requests, head: &Head<'_>) {
        self.sort.remove(id);
        let sector = requests[id].sector;
        self.sort.insert(id, sector);
        if self.next == Some(id) {
            self.next_sector = sector;
        } else {
            self.consider(id, sector, head);
        }
    }

    /// Handles the merge of `absorbed` into `survivor`, which takes the earlier place in the order
    /// of arrival.
    pub(super) fn absorb(&mut self, survivor: RequestId, absorbed: RequestId, is_older: bool) {
        self.sort.remove(absorbed);
        if is_older {
            self.fifo.take_place(survivor, absorbed);
        } else {
            self.fifo.remove(absorbed);
        }
        if self.next == Some(absorbed) {
            self.next = Some(survivor);
        }
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
        if self.fifo.len() >= DEEP_REQUESTS {
            self.deep = true;
        }
    }
}

/// Position of the head, and the cost of moving it.
pub(super) struct Head<'a> {
    pub(super) last: Sector,
    pub(super) settings: &'a Settings,
}

/// Cost of a move: all requests within reach are cheaper than the others, of which the lowest
/// sector is best.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Reach(u64),
    Wrap(Sector),
}

impl Head<'_> {
    /// Whether `other` is the better one of two candidates (`cfq_choose_req`).
    fn is_better(&self, other: Sector, one: Sector) -> bool {
        let way = self.way(one);
        let other_way = self.way(other);
        // At equal distance the higher one: the head keeps its direction.
        other_way < way || (other_way == way && other > one)
    }

    fn way(&self, to: Sector) -> Way {
        let back = self.last.0.saturating_sub(to.0);
        if back == 0 {
            Way::Reach(to.0 - self.last.0)
        } else if back <= self.settings.back_seek_max_sectors {
            Way::Reach(back.saturating_mul(self.settings.back_seek_penalty))
        } else {
            Way::Wrap(to)
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
