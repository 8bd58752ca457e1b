//! `noop`: first come, first served, with merging (`block/noop-iosched.c`).
//!
//! Nothing is sorted: a device without seeks, or with its own sorting, benefits from large requests
//! only.
//!
//! Bound: no request is passed by a later one. A merged bio gets the place of its request. If one
//! request absorbs another, the kernel's noop keeps the survivor's place even if the absorbed one
//! is older: so a bio may be passed by the requests between the two, but never by one that came
//! after both.

use alloc::boxed::Box;

use super::fifo::Fifo;
use super::{Attached, Candidate, Elevator, ElevatorType, Facts, Generation, Merged};
use super::{Tunables, Work};
use crate::bio::IoContext;
use crate::request::{RequestId, Requests};
use crate::time::Nanos;

/// The elevator's type.
pub static NOOP: ElevatorType = ElevatorType {
    name: "noop",
    about: "first come, first served, with merging; for devices that sort themselves",
    generation: Generation::Single,
    tunables: &[],
    attach,
};

fn attach(_: &Tunables<'_>, _: Facts) -> Attached {
    Attached { policy: Some(Box::new(Noop::default())), async_depth: None }
}

/// The noop policy.
#[derive(Debug, Default)]
pub struct Noop {
    queue: Fifo,
}

impl Elevator for Noop {
    fn allow_merge(&self, _: &Requests, _: RequestId, _: &Candidate) -> bool {
        true
    }

    fn insert(&mut self, _: Nanos, requests: &Requests, request: RequestId) {
        self.queue.push_back(request);
        requests.visit(1);
    }

    /// The survivor keeps its own place: the kernel's noop only removes the other one.
    fn merged(&mut self, _: Nanos, _: &Requests, _: RequestId, how: Merged) {
        if let Merged::Absorbed(absorbed) = how {
            self.queue.remove(absorbed);
        }
    }

    fn dispatch(&mut self, _: Nanos, requests: &Requests) -> Option<RequestId> {
        requests.visit(1);
        self.queue.pop_front()
    }

    fn requeued(&mut self, _: Nanos, _: &Requests, _: RequestId) {}

    fn completed(&mut self, _: Nanos, _: &Requests, _: RequestId) {}

    fn exit_context(&mut self, _: Nanos, _: &Requests, _: IoContext) {}

    fn work(&self, _: Nanos) -> Work {
        if self.queue.is_empty() { Work::None } else { Work::Now }
    }
}
