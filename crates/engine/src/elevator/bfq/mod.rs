//! `bfq`: each submitter has its own queue and gets the disk for a budget of sectors
//! (`block/bfq-iosched.c` of Linux 5 and later).
//!
//! Fairness is by *sectors*: of two clients with equal weight each gets half of the throughput,
//! however the device treats them. Clients that are slow by their own fault, because they seek, are
//! charged for the time of their turn instead, as under cfq.
//!
//! ```text
//!   io-context 1 ─> [bfqq] ─┐          B-WF2Q+: the eligible
//!   io-context 2 ─> [bfqq] ─┼─ class ─ queue with the least ──> queue in service ──> device
//!   everybody's     [bfqq]  │          virtual finish           budget, timeout, idling
//!   writeback   ─> [be:4] ──┘                 ^                        │
//!                                             └── next budget <── reason of the end
//! ```
//!
//! `select_queue` is the decision. The order of the queues is in wf2q.rs, the end of a turn and the
//! next budget in turn.rs, idling in idle.rs, weight raising in raise.rs, the device's rate in
//! rate.rs. A queue's requests are in the order of [`Nearest`](super::nearest::Nearest), as under
//! cfq; an overdue one goes first at the start of a turn.
//!
//! **Bound**, with `low_latency=0`, if the device is offered requests whenever it could take one:
//! after a request of the real-time or best-effort class is overdue, with `f` older ones in its
//! queue of weight `w`, requests of its class with at most this many sectors pass it:
//!
//! ```text
//!   (f + 1) · (2 · W / w + n) · (B + 3 R)
//! ```
//!
//! with `n` busy queues of the class, W the sum of their weights, B the largest budget and R the
//! largest request. The bound is loose, but excludes starvation within a class. With weight raising
//! there is none, here and in the kernel: an endless series of new clients passes the others. The
//! idle class gets a request every 200 ms, even if higher classes have requests.
//!
//! Left out: cgroups, merging of queues (early queue merge), injection, bursts of new queues. The
//! page `docs/elevators/bfq.md` has the whole list.

mod classes;
mod hardware;
mod idle;
mod queue;
mod raise;
mod rate;
mod tunables;
mod turn;
mod wf2q;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::nearest::Head;
use super::{Attached, Candidate, Elevator, ElevatorType, Facts, Generation, Merged};
use super::{Tunables, Work};
use crate::bio::{IoContext, Origin, Sector};
use crate::priority::Priority;
use crate::request::{Request, RequestId, Requests};
use crate::slab::Slab;
use crate::time::Nanos;
use crate::visits::Visits;

use classes::Classes;
use hardware::Hardware;
use idle::Weights;
use queue::{Bfqq, BfqqId, Entry};
use rate::PeakRate;
use tunables::{Settings, TUNABLES};
use turn::{Ended, Turn};

/// Charge of an asynchronous request, as a multiple of its sectors (`bfq_async_charge_factor`).
const ASYNC_CHARGE: u64 = 3;

/// The elevator's type.
pub static BFQ: ElevatorType = ElevatorType {
    name: "bfq",
    about: "a queue and a budget of sectors for each client, by weight; interactive clients first",
    generation: Generation::Multi,
    tunables: TUNABLES,
    attach,
};

fn attach(tunables: &Tunables<'_>, facts: Facts) -> Attached {
    let policy = Bfq::new(Settings::new(|name| tunables.value(name), facts));
    let async_depth = Some((facts.nr_requests / 2).max(1));
    Attached { policy: Some(Box::new(policy)), async_depth }
}

/// The reason why nothing was dispatched although requests wait.
#[derive(Clone, Copy, Debug)]
enum Blocked {
    Idling { until: Nanos },
    InFlight,
}

/// The bfq policy.
// 16 fields: the kernel's `bfq_data`, facts about the last dispatch, and its work.
#[derive(Debug)]
struct Bfq {
    settings: Settings,
    queues: Slab<Bfqq>,
    /// Entries by request, from insertion to end.
    entries: Vec<Entry>,
    sync_queues: BTreeMap<IoContext, BfqqId>,
    async_queues: [Option<BfqqId>; Priority::COUNT],
    classes: Classes,
    weights: Weights,
    /// Number of raised queues among the busy ones.
    raised_busy: u32,
    /// The queue in service.
    turn: Option<Turn>,

    waiting: usize,
    /// Dispatched requests in flight.
    in_flight: u32,
    hardware: Hardware,
    rate: PeakRate,
    /// End of the last dispatched request.
    last_position: Option<Sector>,
    /// Result of the last dispatch call; the next event clears it.
    blocked: Option<Blocked>,
    visits: Visits,
}

impl Bfq {
    fn new(settings: Settings) -> Self {
        Self {
            settings,
            queues: Slab::default(),
            entries: Vec::new(),
            sync_queues: BTreeMap::new(),
            async_queues: [None; Priority::COUNT],
            classes: Classes::default(),
            weights: Weights::default(),
            raised_busy: 0,
            turn: None,
            waiting: 0,
            in_flight: 0,
            hardware: Hardware::default(),
            rate: PeakRate::new(settings.rotational),
            last_position: None,
            blocked: None,
            visits: Visits::default(),
        }
    }

    #[inline]
    fn queue(&self, id: BfqqId) -> &Bfqq {
        self.queues.get(id.0)
    }

    fn entry(&self, request: RequestId) -> Entry {
        self.entries[request.index()]
    }

    fn head(&self) -> Head {
        Head { at: self.last_position.unwrap_or_default(), reach: self.settings.backward }
    }

    fn is_in_service(&self, id: BfqqId) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.queue == id)
    }

    /// The current queue for I/O of this origin, if there is one.
    fn present_queue(&self, origin: &Origin, sync: bool) -> Option<BfqqId> {
        if sync {
            self.sync_queues.get(&origin.io_context).copied()
        } else {
            self.async_queues[origin.priority.index()]
        }
    }

    /// Queue of a new request, with the priority of this request.
    fn queue_of(&mut self, now: Nanos, rq: &Request) -> BfqqId {
        let Origin { io_context, priority, .. } = rq.origin;
        let id = self.present_queue(&rq.origin, rq.sync).unwrap_or_else(|| {
            let budget = self.largest_budget() * 2 / 3;
            let of = rq.sync.then_some(io_context);
            let id = BfqqId(self.queues.insert(Bfqq::new(now, of, priority, budget)));
            if rq.sync {
                self.sync_queues.insert(io_context, id);
            } else {
                self.async_queues[priority.index()] = Some(id);
            }
            id
        });
        self.queues.at(id.0).priority = priority;
        id
    }

    fn largest_budget(&self) -> u64 {
        let measured = || self.rate.largest_budget(self.settings.timeout);
        self.settings.max_budget.unwrap_or_else(measured)
    }

    fn least_budget(&self) -> u64 {
        (self.largest_budget() / 32).max(1)
    }

    /// Sectors that a request costs its queue (`bfq_serv_to_charge`).
    fn charge(&self, queue: &Bfqq, rq: &Request) -> u64 {
        let is_exact = queue.sync || queue.raising.is_raised() || self.is_asymmetric(queue);
        if is_exact { rq.len.0 } else { rq.len.0 * ASYNC_CHARGE }
    }

    /// Selects the queue that may dispatch now; `None` while the disk idles for the one in service
    /// (`bfq_select_queue`).
    fn select_queue(&mut self, now: Nanos, requests: &Requests) -> Option<BfqqId> {
        // The queue in service and its time.
        self.visits.visit(2);
        if let Some(turn) = &self.turn {
            let queue = self.queue(turn.queue);
            let is_empty = queue.waiting.is_empty();
            if self.may_end_for_timeout(now, turn) && !(is_empty && self.should_idle(queue)) {
                self.end_turn(now, requests, Ended::Timeout);
            } else if let Some(next) = queue.waiting.next() {
                let charge = self.charge(queue, &requests[next]);
                if turn.dispatched == 0 || charge <= queue.entity.budget_left() {
                    return Some(turn.queue);
                }
                self.end_turn(now, requests, Ended::Exhausted);
            } else if turn.idle.is_some() || (queue.dispatched > 0 && self.should_idle(queue)) {
                return None;
            } else {
                self.end_turn(now, requests, Ended::NoMoreRequests);
            }
        }
        // The classes, and the tree of the first.
        self.visits.visit(3);
        self.visits.search(self.classes.busy() as usize);
        let id = self.classes.next(now)?;
        self.begin_turn(now, id);
        Some(id)
    }

    /// Frees a queue without a submitter and requests.
    fn free_if_finished(&mut self, id: BfqqId) {
        if self.queue(id).is_finished() {
            self.queues.remove(id.0);
        }
    }
}

impl Elevator for Bfq {
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
        self.end_idling(now, requests);
        let rq = &requests[request];
        let id = self.queue_of(now, rq);
        let entry = Entry { queue: id, deadline: now + self.settings.fifo_expire(rq.sync) };
        if self.entries.len() <= request.index() {
            self.entries.resize(request.index() + 1, entry);
        }
        self.entries[request.index()] = entry;
        let head = self.head();
        let queue = self.queues.at(id.0);
        queue.pattern.came(now, rq, self.settings.slice_idle, self.settings.rotational);
        queue.waiting.add(request, requests, head);
        // The queue, the entry, the pattern and its weight; the list and the next request.
        self.visits.visit(6);
        self.visits.search(self.sync_queues.len());
        self.visits.search(queue.waiting.len());
        self.waiting += 1;
        self.end_raising_of_seeker(id);
        if !self.queue(id).is_busy {
            self.become_busy(now, requests, id);
        }
        self.end_waiting_for(now, requests, id);
        self.blocked = None;
        requests.take_visits(&mut self.visits);
    }

    fn merged(&mut self, _: Nanos, requests: &Requests, request: RequestId, how: Merged) {
        let head = self.head();
        let waiting = &mut self.queues.at(self.entries[request.index()].queue.0).waiting;
        match how {
            Merged::Back => {}
            Merged::Front => waiting.moved(request, requests, head),
            Merged::Absorbed(absorbed) => {
                let own = self.entries[request.index()].deadline;
                let other = self.entries[absorbed.index()].deadline;
                waiting.absorb(request, absorbed, other < own);
                waiting.moved(request, requests, head);
                self.entries[request.index()].deadline = own.min(other);
                self.waiting -= 1;
            }
        }
    }

    fn dispatch(&mut self, now: Nanos, requests: &Requests) -> Option<RequestId> {
        self.end_idling(now, requests);
        if self.work(now) != Work::Now {
            return None; // no event since then could change the result
        }
        let is_alone = !self.settings.strict_guarantees || self.in_flight == 0;
        let id = if is_alone { self.select_queue(now, requests) } else { None };
        let Some(id) = id else {
            let idle = self.turn.as_ref().and_then(|turn| turn.idle);
            self.blocked = Some(match idle {
                Some(idle) => Blocked::Idling { until: idle.until },
                None => Blocked::InFlight,
            });
            assert!(idle.is_some() || self.in_flight > 0, "something will go on");
            return None;
        };
        self.visits.visit(1);
        let overdue = self.overdue_request(now, id);
        let request = overdue.or(self.queue(id).waiting.next());
        let request = request.expect("a selected queue is not empty");
        self.take(now, request, requests);
        self.blocked = None;
        requests.take_visits(&mut self.visits);
        Some(request)
    }

    /// The request stays in flight.
    fn requeued(&mut self, _: Nanos, _: &Requests, _: RequestId) {
        self.blocked = None;
    }

    fn completed(&mut self, now: Nanos, requests: &Requests, request: RequestId) {
        self.end_idling(now, requests);
        self.watch_hardware();
        let id = self.entry(request).queue;
        self.in_flight -= 1;
        self.rate.completed(now);
        // The depth of the device, the entry, the rate, the queue, its pattern and its weight.
        self.visits.visit(6);
        let queue = self.queues.at(id.0);
        queue.dispatched -= 1;
        queue.pattern.ended(now);
        if queue.dispatched == 0 && queue.waiting.is_empty() {
            queue.raising.drained(now, self.settings.slice_idle);
        }
        if queue.dispatched == 0 && !queue.is_busy {
            queue.idle_since = Some(now);
            self.weights.remove(queue);
        }
        if self.is_in_service(id) {
            self.completed_in_service(now, requests);
        } else {
            self.free_if_finished(id);
        }
        self.blocked = None;
        requests.take_visits(&mut self.visits);
    }

    fn exit_context(&mut self, now: Nanos, requests: &Requests, io_context: IoContext) {
        self.end_idling(now, requests);
        let Some(id) = self.sync_queues.remove(&io_context) else { return };
        self.queues.at(id.0).io_context = None;
        if self.is_in_service(id) {
            self.end_turn(now, requests, Ended::Preempted);
        } else {
            self.free_if_finished(id);
        }
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
