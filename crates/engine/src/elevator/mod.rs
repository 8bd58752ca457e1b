//! Elevators: selection of a device's next request (`block/elevator.c`). One policy, one file.
//!
//! The queue ([`crate::mq`]) owns requests, finds merge candidates, and limits the requests at the
//! device; an elevator orders the waiting ones. Time is an argument, in ticks of the queue's clock
//! (`jiffies`). To add an elevator: a file here with an [`ElevatorType`], and a line in
//! [`ELEVATORS`].
//!
//! ```text
//!   bio ─ allow_merge? ─yes─> merged
//!             └no─> request ─ insert ─> [ elevator ] ─ dispatch ─> device ─> completed
//!                                            └── busy: kept by the queue ──> requeued
//! ```

pub mod adios;
pub mod bfq;
pub mod cfq;
pub mod deadline;
pub mod deadline_prio;
pub mod deadline_queue;
pub mod fifo;
pub mod kyber;
pub mod mq_deadline;
pub mod nearest;
pub mod none;
pub mod noop;
pub mod sort;
mod spec;
pub mod think;

use alloc::boxed::Box;

use crate::bio::{IoContext, Op, Origin};
use crate::request::{RequestId, Requests};
use crate::time::Nanos;

pub use spec::{ElevatorError, ElevatorSpec, Tunables};

/// All elevators, in the order of `blockyard elevators`.
pub const ELEVATORS: &[&ElevatorType] = &[
    &none::NONE,
    &noop::NOOP,
    &deadline::DEADLINE,
    &deadline_prio::DEADLINE_PRIO,
    &cfq::CFQ,
    &mq_deadline::MQ_DEADLINE,
    &kyber::KYBER,
    &bfq::BFQ,
    &adios::ADIOS,
];

/// Side of a request at which a bio or another request would be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// After the request (`ELEVATOR_BACK_MERGE`).
    Back,
    /// Before the request (`ELEVATOR_FRONT_MERGE`).
    Front,
}

/// A candidate for a merge into a request: a bio, or another request. The queue has checked already
/// that both are reads or both are writes, that they touch, and that the limits hold.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Read or write.
    pub op: Op,
    /// `REQ_SYNC`, or a read.
    pub sync: bool,
    /// Submitter.
    pub origin: Origin,
    /// Side of the merge.
    pub side: Side,
    /// The candidate request; `None` for a bio, which is in no elevator yet.
    pub request: Option<RequestId>,
}

/// Change of a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merged {
    /// The request has grown at its end.
    Back,
    /// The request has grown at its start.
    Front,
    /// The request has absorbed another waiting one, which leaves the elevator with this call.
    Absorbed(RequestId),
}

/// Availability of requests for [`Elevator::dispatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// No request waits.
    None,
    /// A request can be dispatched now.
    Now,
    /// Requests wait, but none is dispatched before this time unless one is inserted or completed:
    /// the elevator idles.
    At(Nanos),
    /// Requests wait, but none is dispatched before one is inserted or completed.
    AfterCompletion,
}

/// A policy (`struct elevator_mq_ops`). The times in its calls never decrease.
pub trait Elevator: Send {
    /// Whether the candidate may be merged into this waiting request (`allow_merge`).
    fn allow_merge(&self, requests: &Requests, request: RequestId, candidate: &Candidate) -> bool;

    /// Adds a waiting request (`insert_requests`).
    fn insert(&mut self, now: Nanos, requests: &Requests, request: RequestId);

    /// Notes a change of a waiting request (`request_merged`, `requests_merged`).
    fn merged(&mut self, now: Nanos, requests: &Requests, request: RequestId, how: Merged);

    /// Returns the next request for the device and removes it from the waiting ones
    /// (`dispatch_request`).
    fn dispatch(&mut self, now: Nanos, requests: &Requests) -> Option<RequestId>;

    /// Notes that the device refused a dispatched request. The queue keeps it and offers it again
    /// before anything else; [`Elevator::completed`] follows at its end (`requeue_request`).
    fn requeued(&mut self, now: Nanos, requests: &Requests, request: RequestId);

    /// Notes the end of a dispatched request (`completed_request`, `finish_request`).
    fn completed(&mut self, now: Nanos, requests: &Requests, request: RequestId);

    /// Notes the exit of a submitter: no more bios come from it (`exit_io_context`).
    fn exit_context(&mut self, now: Nanos, requests: &Requests, io_context: IoContext);

    /// Whether a request can be dispatched (`has_work`).
    fn work(&self, now: Nanos) -> Work;
}

/// Facts about the queue for a new elevator.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Whether the device seeks.
    pub rotational: bool,
    /// Greatest number of requests in the queue (`nr_requests`).
    pub nr_requests: u32,
    /// Greatest number of requests at the device.
    pub queue_depth: u32,
}

/// An elevator for one queue.
pub struct Attached {
    /// The policy; `None` for `none`.
    pub policy: Option<Box<dyn Elevator>>,
    /// Greatest number of asynchronous requests in the queue (`limit_depth`).
    pub async_depth: Option<u32>,
}

/// Generation of the block layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// One queue, with separate limits for synchronous and asynchronous requests.
    Single,
    /// Software queues over hardware queues, with tags.
    Multi,
}

/// A tunable, named as in `/sys/block/*/queue/iosched`.
#[derive(Clone, Copy, Debug)]
pub struct Tunable {
    /// Name.
    pub name: &'static str,
    /// Default value.
    pub default: u64,
    /// Least value.
    pub min: u64,
    /// Largest value.
    pub max: u64,
    /// Unit of the value; empty for a number.
    pub unit: &'static str,
    /// Description in one line.
    pub about: &'static str,
}

/// Description and constructor of an elevator.
pub struct ElevatorType {
    /// Name.
    pub name: &'static str,
    /// Description in one line.
    pub about: &'static str,
    /// Generation for which the elevator was written.
    pub generation: Generation,
    /// Tunables.
    pub tunables: &'static [Tunable],
    /// Creates an elevator.
    pub attach: fn(&Tunables<'_>, Facts) -> Attached,
}

impl ElevatorType {
    /// Finds an elevator by name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        ELEVATORS.iter().find(|elevator| elevator.name == name).copied()
    }
}
