//! Elevators: which request a device gets next (`block/elevator.c`). One policy, one file.
//!
//! The queue ([`crate::mq`]) owns requests, finds what could be merged, and knows how many the
//! device takes; an elevator orders what waits. Time is an argument, in ticks of the queue's clock
//! (`jiffies`). To add one: a file here that says what it is in a [`ElevatorType`], and a line in
//! [`ELEVATORS`].
//!
//! ```text
//!   bio ─ allow_merge? ─yes─> merged
//!             └no─> request ─ insert ─> [ elevator ] ─ dispatch ─> device ─> completed
//!                                            └── busy: kept by the queue ──> requeued
//! ```

pub mod cfq;
pub mod deadline;
pub mod deadline_prio;
pub mod deadline_queue;
pub mod fifo;
pub mod mq_deadline;
pub mod none;
pub mod noop;
pub mod sort;
mod spec;

use alloc::boxed::Box;

use crate::bio::{IoContext, Op, Origin};
use crate::request::{RequestId, Requests};
use crate::time::Nanos;

pub use spec::{ElevatorError, ElevatorSpec, Tunables};

/// All there are, as `blockyard elevators` lists them.
pub const ELEVATORS: &[&ElevatorType] = &[
    &none::NONE,
    &noop::NOOP,
    &deadline::DEADLINE,
    &deadline_prio::DEADLINE_PRIO,
    &cfq::CFQ,
    &mq_deadline::MQ_DEADLINE,
];

/// Which end of a request a bio or another request would be put to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Behind it (`ELEVATOR_BACK_MERGE`).
    Back,
    /// In front of it (`ELEVATOR_FRONT_MERGE`).
    Front,
}

/// What wants to be merged into a request: a bio, or another request. The queue has already seen
/// that both are reads or both are writes, that they touch, and that the limits hold.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Read or write.
    pub op: Op,
    /// Somebody waits for it.
    pub sync: bool,
    /// Who submitted it.
    pub origin: Origin,
    /// Where it would go.
    pub side: Side,
    /// The request, if it is one; else it is a bio that is in no elevator yet.
    pub request: Option<RequestId>,
}

/// How a waiting request has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merged {
    /// It became longer at its end.
    Back,
    /// It starts earlier now.
    Front,
    /// It took over another waiting request, which is gone after this call: from the elevator too.
    Absorbed(RequestId),
}

/// Whether [`Elevator::dispatch`] has something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// No request waits.
    None,
    /// One could be dispatched now.
    Now,
    /// Requests wait, but none is given out before this time, unless one is inserted or completed:
    /// the elevator idles.
    At(Nanos),
    /// Requests wait, but none is given out before one is inserted or completed.
    AfterCompletion,
}

/// A policy (`struct elevator_mq_ops`). The times it sees never decrease.
pub trait Elevator: Send {
    /// Whether the candidate may become part of this waiting request (`allow_merge`).
    fn allow_merge(&self, requests: &Requests, request: RequestId, candidate: &Candidate) -> bool;

    /// A request waits from now on (`insert_requests`).
    fn insert(&mut self, now: Nanos, requests: &Requests, request: RequestId);

    /// A waiting request has changed (`request_merged`, `requests_merged`).
    fn merged(&mut self, now: Nanos, requests: &Requests, request: RequestId, how: Merged);

    /// The next request for the device; it waits no longer (`dispatch_request`).
    fn dispatch(&mut self, now: Nanos, requests: &Requests) -> Option<RequestId>;

    /// The device could not take a dispatched request. The queue keeps it and offers it again
    /// before anything else; [`Elevator::completed`] follows in the end (`requeue_request`).
    fn requeued(&mut self, now: Nanos, requests: &Requests, request: RequestId);

    /// A dispatched request has ended (`completed_request`, `finish_request`).
    fn completed(&mut self, now: Nanos, requests: &Requests, request: RequestId);

    /// No more bios will come from this submitter (`exit_io_context`).
    fn exit_context(&mut self, now: Nanos, requests: &Requests, io_context: IoContext);

    /// Whether there is something to dispatch (`has_work`).
    fn work(&self, now: Nanos) -> Work;
}

/// What an elevator is told about its queue when it is made.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// The device seeks.
    pub rotational: bool,
    /// Requests that the queue holds (`nr_requests`).
    pub nr_requests: u32,
    /// Requests that the device takes at a time.
    pub queue_depth: u32,
}

/// An elevator for one queue.
pub struct Attached {
    /// The policy; `none` has none.
    pub policy: Option<Box<dyn Elevator>>,
    /// At most so many of the queue's requests may be asynchronous (`limit_depth`).
    pub async_depth: Option<u32>,
}

/// Which generation of the block layer an elevator is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// One queue; requests counted apart for synchronous and asynchronous I/O.
    Single,
    /// Software queues over hardware queues, with tags.
    Multi,
}

/// A number that can be set, named as in `/sys/block/*/queue/iosched`.
#[derive(Clone, Copy, Debug)]
pub struct Tunable {
    /// Its name.
    pub name: &'static str,
    /// What it is if nothing is said.
    pub default: u64,
    /// Least value.
    pub min: u64,
    /// Largest value.
    pub max: u64,
    /// Unit of the value, or nothing for a count.
    pub unit: &'static str,
    /// One line.
    pub about: &'static str,
}

/// What there is to know about an elevator before there is one.
pub struct ElevatorType {
    /// Its name.
    pub name: &'static str,
    /// One line.
    pub about: &'static str,
    /// Whose requests it orders.
    pub generation: Generation,
    /// What can be set.
    pub tunables: &'static [Tunable],
    /// Makes one.
    pub attach: fn(&Tunables<'_>, Facts) -> Attached,
}

impl ElevatorType {
    /// The elevator of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        ELEVATORS.iter().find(|elevator| elevator.name == name).copied()
    }
}
