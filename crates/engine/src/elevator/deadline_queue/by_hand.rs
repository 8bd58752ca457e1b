//! An elevator without a queue, for small tests: requests are inserted and dispatched by hand, and
//! named by their first sector.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::bio::{Bio, Op, Origin, Sector};
use crate::buf::BufRef;
use crate::elevator::{Candidate, Elevator, ElevatorSpec, Facts, Merged, Side};
use crate::priority::Priority;
use crate::request::{Request, RequestId, Requests};
use crate::time::Nanos;

/// Length of every request.
pub(in crate::elevator) const LEN: u64 = 8;

/// Origin with this priority and synchronousness.
pub(in crate::elevator) fn origin(priority: &str, sync: bool) -> Origin {
    Origin { priority: Priority::parse(priority).unwrap(), sync, ..Origin::default() }
}

pub(in crate::elevator) struct ByHand {
    elevator: Box<dyn Elevator>,
    requests: Requests,
    pub(in crate::elevator) now_ms: u64,
}

impl ByHand {
    pub(in crate::elevator) fn new(spec: &str, rotational: bool) -> Self {
        let facts = Facts { rotational, nr_requests: 128, queue_depth: 1 };
        let attached = ElevatorSpec::parse(spec).unwrap().attach(facts);
        Self { elevator: attached.policy.unwrap(), requests: Requests::default(), now_ms: 0 }
    }

    fn now(&self) -> Nanos {
        Nanos::from_ms(self.now_ms)
    }

    pub(in crate::elevator) fn insert(&mut self, op: Op, sector: u64, origin: Origin) -> RequestId {
        let bio = Bio { origin, ..Bio::new(op, Sector(sector), Sector(LEN), BufRef::NONE, 0) };
        let id = self.requests.insert(Request::new(&bio, 0));
        self.elevator.insert(self.now(), &self.requests, id);
        id
    }

    pub(in crate::elevator) fn read(&mut self, sector: u64) -> RequestId {
        self.insert(Op::Read, sector, Origin::default())
    }

    pub(in crate::elevator) fn write(&mut self, sector: u64) -> RequestId {
        self.insert(Op::Write, sector, Origin::default())
    }

    /// Whether a bio of this origin could be merged into a request at this side.
    pub(in crate::elevator) fn allows(&self, id: RequestId, origin: Origin, side: Side) -> bool {
        let op = self.requests[id].op;
        let sync = op == Op::Read || origin.sync;
        let candidate = Candidate { op, sync, origin, side, request: None };
        self.elevator.allow_merge(&self.requests, id, &candidate)
    }

    pub(in crate::elevator) fn allows_request(&self, id: RequestId, absorbed: RequestId) -> bool {
        let Request { op, sync, origin, .. } = self.requests[absorbed];
        let candidate = Candidate { op, sync, origin, side: Side::Back, request: Some(absorbed) };
        self.elevator.allow_merge(&self.requests, id, &candidate)
    }

    /// Makes a request more urgent, as a merge does.
    pub(in crate::elevator) fn make_urgent(&mut self, id: RequestId, priority: &str) {
        self.requests.at(id).origin.priority = Priority::parse(priority).unwrap();
    }

    /// Merges a bio before a request.
    pub(in crate::elevator) fn merge_front(&mut self, id: RequestId) {
        let request = self.requests.at(id);
        request.sector = Sector(request.sector.0 - LEN);
        request.len = request.len + Sector(LEN);
        self.elevator.merged(self.now(), &self.requests, id, Merged::Front);
    }

    /// Merges a request into the one before it.
    pub(in crate::elevator) fn absorb(&mut self, survivor: RequestId, absorbed: RequestId) {
        let len = self.requests[absorbed].len;
        let request = self.requests.at(survivor);
        request.len = request.len + len;
        self.elevator.merged(self.now(), &self.requests, survivor, Merged::Absorbed(absorbed));
        self.requests.remove(absorbed);
    }

    /// The next request for the device.
    pub(in crate::elevator) fn dispatch(&mut self) -> Option<u64> {
        let id = self.elevator.dispatch(self.now(), &self.requests)?;
        Some(self.requests.remove(id).sector.0)
    }

    /// The next requests, at most `count`.
    pub(in crate::elevator) fn take(&mut self, count: usize) -> Vec<u64> {
        (0..count).map_while(|_| self.dispatch()).collect()
    }

    /// All requests.
    pub(in crate::elevator) fn drain(&mut self) -> Vec<u64> {
        self.take(usize::MAX)
    }
}
