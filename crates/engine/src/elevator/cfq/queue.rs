//! One queue, `cfqq` in the kernel: what one submitter waits for, or what all of them write back
//! at one priority. It has the order of sectors, the order of arrival, and the request it would
//! like to be served next.
//!
//! The head prefers to go on. A request behind it counts as a candidate too if it is at most
//! `back_seek_max` away, at `back_seek_penalty` times its distance. (The kernel asks first which
//! one is synchronous: in one queue, all are or none is.)
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

/// On a disk, a request this far from its predecessor counts as a seek (`CFQQ_SEEK_THR`).
const SEEK_DISTANCE_SECTORS: u64 = 800;
/// Without a head to move, a request as small as this counts as one.
const SEEK_SIZE_SECTORS: u64 = 64;
/// So many of the last 32 requests may be seeks before the queue counts as seeky.
const SEEKS_MAX: u32 = 4;
/// From so many waiting requests on a queue is deep: it keeps the disk busy by itself.
const DEEP_REQUESTS: usize = 4;

/// Names a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CfqqId(pub(super) u32);

/// A queue.
#[derive(Debug)]
pub(super) struct Cfqq {
    /// Of one submitter, or shared by all.
    pub(super) sync: bool,
    pub(super) priority: Priority,
    /// What waits, by sector and by arrival.
    sort: SortTree,
    fifo: Fifo,
    /// What it would like to be served next, and where that starts.
    pub(super) next: Option<RequestId>,
    pub(super) next_sector: Sector,
    /// Requests in flight.
    pub(super) dispatched: u32,

    /// Where it waits for its turn; the active queue keeps its place.
    pub(super) place: Option<Place>,
    /// What was left of its last slice when that was cut short; below zero it was too long.
    pub(super) residual_ns: i64,
    /// Where a cooperator would find it.
    pub(super) position: Option<(u8, Sector)>,

    /// It pays to wait for its next request.
    pub(super) idle_window: bool,
    /// It had several requests waiting at a time.
    pub(super) deep: bool,
    /// The last 32 requests, the newest in bit 0: was it a seek.
    seeks: u32,
    /// Where its last request ended.
    last_end: Option<Sector>,

    /// Submitters whose requests go here.
    pub(super) users: u32,
    /// Submitters that will follow from queues to be merged into this one.
    pub(super) pending_users: u32,
    /// Its submitters move there with their next request.
    pub(super) merge_into: Option<CfqqId>,
    /// Other submitters have come here.
    pub(super) shared: bool,
    /// It became seeky since: its submitters part again.
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

    /// Its submitters are gone.
    pub(super) fn is_abandoned(&self) -> bool {
        self.users == 0 && self.pending_users == 0
    }

    /// Nobody will need it again.
    pub(super) fn is_unused(&self) -> bool {
        let is_idle = self.dispatched == 0 && self.is_empty() && self.place.is_none();
        self.is_abandoned() && is_idle
    }

    /// A request waits from now on.
    pub(super) fn add(&mut self, id: RequestId, requests: &Requests, head: &Head<'_>) {
        let sector = requests[id].sector;
        self.sort.insert(id, sector);
        self.fifo.push_back(id);
        self.consider(id, sector, head);
    }

    /// This one may be better than what is next.
    fn consider(&mut self, id: RequestId, sector: Sector, head: &Head<'_>) {
        if self.next.is_none() || head.is_better(sector, self.next_sector) {
            self.next = Some(id);
            self.next_sector = sector;
        }
    }

    /// Takes a request out, to be dispatched: the head goes there.
    pub(super) fn remove(&mut self, id: RequestId, requests: &Requests, settings: &Settings) {
        self.fifo.remove(id);
        if self.next != Some(id) {
            self.sort.remove(id);
            return;
        }
        let [before, after] = self.sort.remove_between(id);
        let after = after.or_else(|| self.sort.first()); // behind the last one comes the lowest
        self.next = None;
        let head = Head { last: requests[id].sector, settings };
        for candidate in [after, before].into_iter().flatten() {
            self.consider(candidate, requests[candidate].sector, &head);
        }
    }

    /// A waiting request starts elsewhere now.
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

    /// `survivor` has taken over `absorbed`, which leaves, and its place in the order of arrival
    /// if that was the earlier one.
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

    /// Remembers whether this newest request is a seek, and whether requests pile up.
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

/// Where the head is thought to be, and what it costs to move it.
pub(super) struct Head<'a> {
    pub(super) last: Sector,
    pub(super) settings: &'a Settings,
}

/// Cost of going somewhere: anything within reach before anything that is not, which is best taken
/// from its lowest sector on.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Reach(u64),
    Wrap(Sector),
}

impl Head<'_> {
    /// Whether `other` is the better one of two candidates (`cfq_choose_req`).
    fn is_better(&self, other: Sector, one: Sector) -> bool {
        let (way, other_way) = (self.way(one), self.way(other));
        // Equally far, the one further up: the head need not turn round.
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

/// What is kept of each request from its insertion to its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) queue: CfqqId,
    /// Of a synchronous request: its submitter.
    pub(super) context: Option<ContextId>,
    /// Overdue from then on (`fifo_time`).
    pub(super) deadline: Nanos,
}
