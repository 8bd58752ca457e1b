//! Elevators that break a rule: see [`super::sabotage`].
//!
//! Each has the name of the registered elevator whose rules it breaks, so that the oracles apply
//! those.

use std::collections::{HashSet, VecDeque};

use blockyard_engine::bio::{IoContext, Op};
use blockyard_engine::elevator::{
    Attached, Candidate, Elevator, ElevatorSpec, ElevatorType, Facts, Generation, Merged, Tunable,
    Tunables, Work,
};
use blockyard_engine::request::{RequestId, Requests};
use blockyard_engine::time::Nanos;

pub(super) static LOSER: ElevatorType =
    broken("noop", &[], |_, facts| wrapped("noop", facts, Fault::Loses));
pub(super) static SLEEPER: ElevatorType =
    broken("noop", &[], |_, facts| wrapped("noop", facts, Fault::Sleeps));
pub(super) static MERGER: ElevatorType =
    broken("mq-deadline", MERGER_TUNABLES, |_, facts| wrapped("mq-deadline", facts, Fault::Merges));
pub(super) static STARVER: ElevatorType =
    broken("deadline", STARVER_TUNABLES, |_, _| attached(Box::new(Starver::default())));
pub(super) static MAP: ElevatorType =
    broken("none", &[], |_, _| attached(Box::new(Map::default())));

/// Tunables of `deadline`; short, so that a broken promise shows soon.
const STARVER_TUNABLES: &[Tunable] = &[
    tunable("read_expire", 5),
    tunable("write_expire", 5),
    tunable("writes_starved", 1),
    tunable("fifo_batch", 1),
];

/// Tunables of the wrapped elevator.
const MERGER_TUNABLES: &[Tunable] = &[
    tunable("read_expire", 500),
    tunable("write_expire", 5000),
    tunable("writes_starved", 2),
    tunable("fifo_batch", 16),
];

const fn tunable(name: &'static str, default: u64) -> Tunable {
    Tunable { name, default, min: 0, max: u64::MAX, unit: "", about: "" }
}

const fn broken(
    name: &'static str,
    tunables: &'static [Tunable],
    attach: fn(&Tunables<'_>, Facts) -> Attached,
) -> ElevatorType {
    ElevatorType { name, about: "broken", generation: Generation::Single, tunables, attach }
}

fn attached(policy: Box<dyn Elevator>) -> Attached {
    Attached { policy: Some(policy), async_depth: None }
}

fn wrapped(inner: &str, facts: Facts, fault: Fault) -> Attached {
    let spec = ElevatorSpec::parse(inner).expect("it is in the registry");
    let inner = spec.attach(facts).policy.expect("only none has none");
    attached(Box::new(Wrapped { inner, fault, inserted: 0 }))
}

/// Fault of a wrapped elevator.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    Loses,
    Sleeps,
    Merges,
}

/// Number of requests between two faults.
const EVERY: u32 = 50;

struct Wrapped {
    inner: Box<dyn Elevator>,
    fault: Fault,
    inserted: u32,
}

impl Wrapped {
    fn strikes(&self, fault: Fault) -> bool {
        self.fault == fault && self.inserted.is_multiple_of(EVERY)
    }
}

impl Elevator for Wrapped {
    fn allow_merge(&self, requests: &Requests, request: RequestId, candidate: &Candidate) -> bool {
        self.fault == Fault::Merges || self.inner.allow_merge(requests, request, candidate)
    }

    fn insert(&mut self, now: Nanos, requests: &Requests, request: RequestId) {
        self.inserted += 1;
        if !self.strikes(Fault::Loses) {
            self.inner.insert(now, requests, request);
        }
    }

    fn merged(&mut self, now: Nanos, requests: &Requests, request: RequestId, how: Merged) {
        self.inner.merged(now, requests, request, how);
    }

    fn dispatch(&mut self, now: Nanos, requests: &Requests) -> Option<RequestId> {
        if self.strikes(Fault::Sleeps) { None } else { self.inner.dispatch(now, requests) }
    }

    fn requeued(&mut self, now: Nanos, requests: &Requests, request: RequestId) {
        self.inner.requeued(now, requests, request);
    }

    fn completed(&mut self, now: Nanos, requests: &Requests, request: RequestId) {
        self.inner.completed(now, requests, request);
    }

    fn exit_context(&mut self, now: Nanos, requests: &Requests, io_context: IoContext) {
        self.inner.exit_context(now, requests, io_context);
    }

    fn work(&self, now: Nanos) -> Work {
        self.inner.work(now)
    }
}

/// Dispatches reads in order; writes only without reads.
#[derive(Default)]
struct Starver {
    reads: VecDeque<RequestId>,
    writes: VecDeque<RequestId>,
}

impl Elevator for Starver {
    fn allow_merge(&self, _: &Requests, _: RequestId, _: &Candidate) -> bool {
        false
    }

    fn insert(&mut self, _: Nanos, requests: &Requests, request: RequestId) {
        let reads = requests[request].op == Op::Read;
        if reads { &mut self.reads } else { &mut self.writes }.push_back(request);
    }

    fn merged(&mut self, _: Nanos, _: &Requests, _: RequestId, _: Merged) {}

    fn dispatch(&mut self, _: Nanos, _: &Requests) -> Option<RequestId> {
        self.reads.pop_front().or_else(|| self.writes.pop_front())
    }

    fn requeued(&mut self, _: Nanos, _: &Requests, _: RequestId) {}

    fn completed(&mut self, _: Nanos, _: &Requests, _: RequestId) {}

    fn exit_context(&mut self, _: Nanos, _: &Requests, _: IoContext) {}

    fn work(&self, _: Nanos) -> Work {
        if self.reads.is_empty() && self.writes.is_empty() { Work::None } else { Work::Now }
    }
}

/// Dispatches in the order of a hash map.
#[derive(Default)]
struct Map {
    waiting: HashSet<u32>,
}

impl Elevator for Map {
    fn allow_merge(&self, _: &Requests, _: RequestId, _: &Candidate) -> bool {
        false
    }

    fn insert(&mut self, _: Nanos, _: &Requests, request: RequestId) {
        self.waiting.insert(request.0);
    }

    fn merged(&mut self, _: Nanos, _: &Requests, _: RequestId, _: Merged) {}

    fn dispatch(&mut self, _: Nanos, _: &Requests) -> Option<RequestId> {
        let first = self.waiting.iter().next().copied()?;
        self.waiting.remove(&first);
        Some(RequestId(first))
    }

    fn requeued(&mut self, _: Nanos, _: &Requests, _: RequestId) {}

    fn completed(&mut self, _: Nanos, _: &Requests, _: RequestId) {}

    fn exit_context(&mut self, _: Nanos, _: &Requests, _: IoContext) {}

    fn work(&self, _: Nanos) -> Work {
        if self.waiting.is_empty() { Work::None } else { Work::Now }
    }
}
