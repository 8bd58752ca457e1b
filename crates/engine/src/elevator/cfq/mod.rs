//! `cfq`: each submitter has its own queue and gets the disk for a time slice
//! (`block/cfq-iosched.c`, 2.6.30 to 4.x).
//!
//! Fairness is by *time*, not by requests: a sequential reader gets much data in its slice, a
//! random reader little, and neither slows the other down. Most of the policy keeps the head in
//! place as long as that pays, even by idling.
//!
//! ```text
//!   io-context 1 ─> [cfqq] ─┐
//!   io-context 2 ─> [cfqq] ─┼─ class, type, key ─> active queue ─> limits ─> device
//!   everybody's     [cfqq]  │   (service.rs)       slice, idling   (depth.rs)
//!   writeback   ─> [be:4] ──┘                      (idle.rs)
//! ```
//!
//! `select_queue` is the decision: keep the active queue, idle for it, switch to a cooperator, or
//! take the next queue. The order of requests within a queue is in queue.rs, the length and the
//! time of a slice in prio.rs, preemption in preempt.rs, shared queues in coop.rs.
//!
//! The slice's clock starts at the first completion: the initial seek is free. An overdue request
//! goes first, but only at the start of a slice.
//!
//! Requests are never merged across queues, however close they are: data of one file written by
//! threads with different io-contexts stays apart.
//!
//! **Bound:** assume that no higher class has requests, `starved_after` is not 0, the device ends
//! each request within D and is offered requests whenever it could take one. Then a request of the
//! real-time or best-effort class that has `f` older ones in its queue waits at most
//!
//! ```text
//!   fifo_expire + (f + 1) · round
//!   round = (n + 1) · (turn + workload) + n · 7/5 · slice_sync + slice + starved_after
//!   turn  = 3 D + slice + slice_idle      slice    = 9/5 · max(slice_sync, slice_async)
//!                                         workload = max(target_latency, 2 · slice_idle)
//! ```
//!
//! with `n` busy queues. The bound is loose, but excludes starvation. With `starved_after=0`, as in
//! the kernel, preemption can pass a queue without limit. The idle class has no bound.
//!
//! The kernel's cgroups, and with them `group_idle`, are not implemented: there is one group.

mod context;
mod coop;
mod depth;
mod idle;
mod preempt;
mod prio;
mod queue;
mod service;
mod slice;
mod tunables;

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::nearest::Head;
use super::sort::SortTree;
use super::{Attached, Candidate, Elevator, ElevatorType, Facts, Generation, Merged};
use super::{Tunables, Work};
use crate::bio::{IoContext, Sector};
use crate::priority::Priority;
use crate::request::{RequestId, Requests};
use crate::slab::Slab;
use crate::time::Nanos;
use crate::visits::Visits;

use context::Contexts;
use depth::Hardware;
use queue::{Cfqq, CfqqId, Entry};
use service::ServiceTrees;
use slice::Slice;
use tunables::{Settings, TUNABLES};

/// The elevator's type.
pub static CFQ: ElevatorType = ElevatorType {
    name: "cfq",
    about: "a queue and a time slice for each client, idling for its next request; for disks",
    generation: Generation::Single,
    tunables: TUNABLES,
    attach,
};

fn attach(tunables: &Tunables<'_>, facts: Facts) -> Attached {
    let policy = Cfq::new(Settings::new(|name| tunables.value(name), facts));
    Attached { policy: Some(Box::new(policy)), async_depth: None }
}

/// The reason why nothing was dispatched although requests wait.
#[derive(Clone, Copy, Debug)]
enum Blocked {
    Idling { until: Nanos },
    InFlight,
}

/// The cfq policy.
// 16 fields: the kernel's `cfq_data`, facts about the last dispatch, and its work.
#[derive(Debug)]
pub struct Cfq {
    settings: Settings,
    queues: Slab<Cfqq>,
    /// Entries by request, from insertion to end.
    entries: Vec<Entry>,
    contexts: Contexts,
    async_queues: [Option<CfqqId>; Priority::COUNT],
    service: ServiceTrees,
    active: Option<Slice>,
    /// Position trees by level: queues, under request ids, by the sector of their next request.
    positions: [SortTree; 8],

    waiting: usize,
    /// Dispatched requests in flight: asynchronous, synchronous.
    in_flight: [u32; 2],
    /// Number of them that the device has just refused.
    requeued: u32,
    hardware: Hardware,
    /// End of the last dispatched request.
    last_position: Sector,
    /// Time at which the last overdue synchronous request ended.
    last_delayed_sync: Option<Nanos>,
    /// Result of the last dispatch call; the next event clears it.
    blocked: Option<Blocked>,
    visits: Visits,
}

impl Cfq {
    fn new(settings: Settings) -> Self {
        Self {
            settings,
            queues: Slab::default(),
            entries: Vec::new(),
            contexts: Contexts::default(),
            async_queues: [None; Priority::COUNT],
            service: ServiceTrees::default(),
            active: None,
            positions: Default::default(),
            waiting: 0,
            in_flight: [0; 2],
            requeued: 0,
            hardware: Hardware::default(),
            last_position: Sector(0),
            last_delayed_sync: None,
            blocked: None,
            visits: Visits::default(),
        }
    }

    fn set_entry(&mut self, request: RequestId, entry: Entry) {
        if self.entries.len() <= request.index() {
            self.entries.resize(request.index() + 1, entry);
        }
        self.entries[request.index()] = entry;
    }

    fn entry(&self, request: RequestId) -> Entry {
        self.entries[request.index()]
    }

    fn head(&self) -> Head {
        Head { at: self.last_position, reach: self.settings.backward }
    }

    /// Selects the queue that may dispatch now; `None` while the disk idles for the active one
    /// (`cfq_select_queue`).
    fn select_queue(&mut self, now: Nanos) -> Option<CfqqId> {
        let mut next = None;
        // The active queue.
        self.visits.visit(1);
        if let Some(slice) = &self.active {
            let id = slice.queue;
            if !slice.is_used(now) {
                if !self.queue(id).is_empty() {
                    return Some(id);
                }
                let is_idling = slice.idle_until.is_some();
                // The queues next to the head, and the rules of idling.
                self.visits.visit(3);
                next = self.close_cooperator(now, id);
                if let Some(other) = next {
                    self.setup_merge(id, other);
                } else if is_idling {
                    return None;
                } else {
                    self.give_up_deep(now);
                    let queue = self.queue(id);
                    if queue.dispatched > 0 && self.should_idle(queue) {
                        return None; // idling begins after their end
                    }
                }
            }
            self.expire_slice(now, false);
        }
        let id = next.unwrap_or_else(|| self.first_queue(now));
        self.begin_slice(now, id);
        Some(id)
    }
}

impl Elevator for Cfq {
    /// A merge is allowed only with I/O that would go to the request's queue.
    fn allow_merge(&self, requests: &Requests, request: RequestId, candidate: &Candidate) -> bool {
        if candidate.sync && !requests[request].sync {
            return false; // synchronous I/O would wait for the writeback around it
        }
        let queue = match candidate.request {
            Some(other) => Some(self.entry(other).queue),
            None => self.present_queue(&candidate.origin, candidate.sync),
        };
        queue == Some(self.entry(request).queue)
    }

    fn insert(&mut self, now: Nanos, requests: &Requests, request: RequestId) {
        self.end_idling(now);
        let rq = &requests[request];
        let arrival = self.arrive(now, request, rq);
        let id = arrival.queue;
        let deadline = now + self.settings.fifo_expire(rq.sync);
        self.set_entry(request, Entry { queue: id, context: arrival.context, deadline });
        let head = self.head();
        let waiting = &mut self.queues.at(id.0).waiting;
        waiting.add(request, requests, head);
        // The submitter, its think time and its queue; the entry; the list, the tree and the next
        // request.
        self.visits.visit(6);
        self.visits.search(waiting.len());
        self.waiting += 1;
        if self.queue(id).place.is_none() {
            self.add_busy(now, id);
        }
        self.update_position(id);
        self.note_request(now, arrival, requests);
        // The seeks of the queue, think times of its tree, its idle window, and the active queue.
        self.visits.visit(4);
        if let Some(slice) = self.active.as_mut().filter(|slice| slice.queue == id) {
            slice.idle_until = None; // it came in time
        } else if self.should_preempt(now, id, rq) {
            self.preempt(now, id);
        }
        self.blocked = None;
        requests.take_visits(&mut self.visits);
    }

    fn merged(&mut self, _: Nanos, requests: &Requests, request: RequestId, how: Merged) {
        let id = self.entry(request).queue;
        let queue = self.queues.at(id.0);
        match how {
            Merged::Back => return,
            Merged::Front => {}
            Merged::Absorbed(absorbed) => {
                let own = self.entries[request.index()].deadline;
                let other = self.entries[absorbed.index()];
                assert!(other.queue == id, "requests of different queues are never merged");
                queue.waiting.absorb(request, absorbed, other.deadline < own);
                self.entries[request.index()].deadline = own.min(other.deadline);
                self.waiting -= 1;
            }
        }
        let head = self.head();
        self.queues.at(id.0).waiting.moved(request, requests, head);
        self.update_position(id);
    }

    fn dispatch(&mut self, now: Nanos, requests: &Requests) -> Option<RequestId> {
        self.requeued = 0;
        self.end_idling(now);
        if self.work(now) != Work::Now {
            return None; // no event since then could change the result
        }
        let id = self.select_queue(now).filter(|id| self.may_dispatch(now, *id));
        let Some(id) = id else {
            let idle_until = self.active.as_ref().and_then(|slice| slice.idle_until);
            self.blocked = Some(match idle_until {
                Some(until) => Blocked::Idling { until },
                None => Blocked::InFlight,
            });
            assert!(idle_until.is_some() || self.in_flight != [0; 2], "something will go on");
            return None;
        };
        // The limits of the device, the oldest request, and the quota.
        self.visits.visit(3);
        let request = self.overdue_request(now, id);
        let request =
            request.or(self.queue(id).waiting.next()).expect("a selected queue is not empty");
        self.take(request, requests);
        self.end_slice_by_quota(now, id);
        self.blocked = None;
        requests.take_visits(&mut self.visits);
        Some(request)
    }

    /// The request stays in flight: only the knowledge of the device's depth changes.
    fn requeued(&mut self, _: Nanos, _: &Requests, _: RequestId) {
        self.requeued += 1;
        self.blocked = None;
    }

    fn completed(&mut self, now: Nanos, requests: &Requests, request: RequestId) {
        self.end_idling(now);
        self.watch_hardware();
        // The depth of the device, the entry, its queue, the submitter and its think times.
        self.visits.visit(6);
        let Entry { queue: id, context, deadline } = self.entry(request);
        let rq = &requests[request];
        self.in_flight[usize::from(rq.sync)] -= 1;
        self.queues.at(id.0).dispatched -= 1;
        if rq.sync {
            self.note_end(now, id, context.map(|context| (context, rq.origin.io_context)));
            if deadline <= now {
                self.last_delayed_sync = Some(now);
            }
        }
        if self.active.as_ref().is_some_and(|slice| slice.queue == id) {
            self.active_completed(now, id, rq.origin.noidle);
        } else {
            self.free_if_unused(id);
        }
        self.blocked = None;
        requests.take_visits(&mut self.visits);
    }

    fn exit_context(&mut self, now: Nanos, _: &Requests, io_context: IoContext) {
        self.end_idling(now);
        self.remove_context(now, io_context);
        self.blocked = None;
    }

    fn work(&self, now: Nanos) -> Work {
        match self.blocked {
            _ if self.waiting == 0 => Work::None,
            Some(Blocked::Idling { until }) if now < until => Work::At(until),
            Some(Blocked::InFlight) => Work::AfterCompletion,
            _ => Work::Now,
        }
    }
}

#[cfg(test)]
mod tests;
