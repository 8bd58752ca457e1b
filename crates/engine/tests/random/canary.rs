//! Checks the alarm: elevators that violate the rules are caught.

use std::panic::{AssertUnwindSafe, catch_unwind};

use blockyard_engine::bio::IoContext;
use blockyard_engine::elevator::{
    Attached, Candidate, Elevator, ElevatorSpec, ElevatorType, Facts, Generation, Merged, Tunables,
    Work,
};
use blockyard_engine::request::{RequestId, Requests};
use blockyard_engine::time::Nanos;

use super::world::World;

/// The fault of an elevator.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// No fault: the wrapper itself is harmless.
    Nothing,
    /// One request in two hundred is never dispatched.
    Loses,
    /// Available requests are not reported.
    Sleeps,
    /// Every merge is allowed.
    MergesAll,
}

struct Broken {
    inner: Box<dyn Elevator>,
    fault: Fault,
    inserted: u32,
}

impl Elevator for Broken {
    fn allow_merge(&self, requests: &Requests, request: RequestId, candidate: &Candidate) -> bool {
        self.fault == Fault::MergesAll || self.inner.allow_merge(requests, request, candidate)
    }

    fn insert(&mut self, now: Nanos, requests: &Requests, request: RequestId) {
        self.inserted += 1;
        if self.fault != Fault::Loses || !self.inserted.is_multiple_of(200) {
            self.inner.insert(now, requests, request);
        }
    }

    fn merged(&mut self, now: Nanos, requests: &Requests, request: RequestId, how: Merged) {
        self.inner.merged(now, requests, request, how);
    }

    fn dispatch(&mut self, now: Nanos, requests: &Requests) -> Option<RequestId> {
        let rests = self.fault == Fault::Sleeps && self.inserted.is_multiple_of(200);
        if rests { None } else { self.inner.dispatch(now, requests) }
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

fn broken(inner: &str, facts: Facts, fault: Fault) -> Attached {
    let attached = ElevatorSpec::parse(inner).expect("it is in the registry").attach(facts);
    let policy = attached.policy.map(|inner| {
        let broken: Box<dyn Elevator> = Box::new(Broken { inner, fault, inserted: 0 });
        broken
    });
    Attached { policy, ..attached }
}

const fn canary(name: &'static str, attach: fn(&Tunables<'_>, Facts) -> Attached) -> ElevatorType {
    let about = "broken";
    let generation = Generation::Single;
    ElevatorType { name, about, generation, tunables: &[], attach }
}

static HARMLESS: ElevatorType =
    canary("harmless", |_, facts| broken("noop", facts, Fault::Nothing));
static LOSER: ElevatorType = canary("loser", |_, facts| broken("noop", facts, Fault::Loses));
static SLEEPER: ElevatorType = canary("sleeper", |_, facts| broken("noop", facts, Fault::Sleeps));
/// Named like the elevator whose rule it violates.
static MERGER: ElevatorType =
    canary("mq-deadline", |_, facts| broken("mq-deadline", facts, Fault::MergesAll));

/// Number of worlds out of ten in which an error was found.
fn alarms(elevator: &'static ElevatorType) -> usize {
    let alarm = |seed: &u64| {
        let world = || World::new(elevator, Generation::Single, *seed).live(2000);
        // The engine's own assertions count as alarms.
        catch_unwind(AssertUnwindSafe(world)).map_or(true, |found| found.is_err())
    };
    (0..10).filter(alarm).count()
}

#[test]
fn broken_elevators_are_caught_and_the_wrapper_alone_is_not() {
    assert_eq!(alarms(&HARMLESS), 0);
    assert_eq!(alarms(&LOSER), 10);
    // The sleeper wakes up with the next bio, but never in a standstill.
    assert!(alarms(&SLEEPER) > 0);
    assert!(alarms(&MERGER) > 0);
}
