//! A request: one operation of a device, a chain of merged bios (`struct request`).
//!
//! [`Requests`] is the pool of one queue. An elevator refers to requests by [`RequestId`] and keeps
//! its own data about them (tree keys, deadlines) in tables indexed by the id. The crate-private
//! fields belong to the queue ([`crate::mq`]): elevators must not change them.

use core::cell::Cell;
use core::ops::Index;

use crate::bio::{Bio, Op, Origin, Sector};
use crate::slab::Slab;
use crate::time::Nanos;
use crate::visits::Visits;

/// Number of a request in the [`Requests`] of its queue, from its allocation to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u32);

impl RequestId {
    /// The number as an index of a table.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Identity of an issued request for the device: a hardware queue, and a number below its depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tag {
    /// The hardware queue.
    pub hctx: u16,
    /// Number of the tag there.
    pub index: u32,
}

/// A request. It grows by merging, until it is dispatched; a device may complete its first part
/// only.
// 20 fields: the kernel's `request`. Merging and dispatch read most of them, so they lie side by
// side.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Operation.
    pub op: Op,
    /// First sector on the device.
    pub sector: Sector,
    /// Length of the range.
    pub len: Sector,
    /// Whether the request is synchronous (`rq_is_sync`).
    pub sync: bool,
    /// `REQ_FUA`: data on stable storage before it completes.
    pub fua: bool,
    /// Origin of its first bio; where merged priorities differ, with the most urgent one.
    pub origin: Origin,
    /// Number of segments.
    pub segments: u16,
    /// Time of its insertion into the elevator.
    pub inserted: Nanos,
    pub(crate) bios: BioChain,
    /// Stage.
    pub(crate) stage: Stage,
    /// Hardware queue of the CPU that submitted it.
    pub(crate) hctx: u16,
    /// Its driver tag on that hardware queue.
    pub(crate) tag: Option<u32>,
    /// Whether the request counts in the queue's limits.
    pub(crate) counted: bool,
    /// Whether the elevator must be notified of its end (`RQF_ELVPRIV`).
    pub(crate) in_elevator: bool,
    /// For a clone: tag of the original in the queue above.
    pub(crate) above: Option<Tag>,
    /// Remaining steps of its flush sequence.
    pub(crate) steps: Steps,
    /// Time of its timeout, once issued.
    pub(crate) deadline: Nanos,
    /// Neighbours in its current list: a plug, a software queue, the dispatch list, a list of the
    /// flush machine, the issued ones.
    pub(crate) list: Links,
    /// Neighbours in the merge hash, by end and by start; unused when it is not hashed.
    pub(crate) hash: [Links; 2],
    /// Whether the request is in the merge hash.
    pub(crate) hashed: bool,
}

/// First and last bio of a request's chain, by the queue's numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BioChain {
    pub(crate) first: u32,
    pub(crate) last: u32,
}

/// Stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// In the plug of its submitter.
    Plugged,
    /// In the elevator or in a software queue.
    Waiting,
    /// On a dispatch list or with the flush machine: never merged any more.
    Held,
    /// At the device.
    Issued,
}

/// Remaining steps of a flush sequence, in this order: flush, data, flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Steps {
    pub(crate) preflush: bool,
    pub(crate) data: bool,
    pub(crate) postflush: bool,
}

impl Steps {
    pub(crate) const NONE: Self = Self { preflush: false, data: false, postflush: false };
}

/// Neighbours in a list of requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Links {
    pub(crate) prev: Option<RequestId>,
    pub(crate) next: Option<RequestId>,
}

impl Request {
    /// A request of one bio, whose number in the queue is `bio_number`.
    #[must_use]
    pub fn new(bio: &Bio, bio_number: u32) -> Self {
        Self {
            op: bio.op,
            sector: bio.sector,
            len: bio.len,
            sync: bio.is_sync(),
            fua: bio.fua,
            origin: bio.origin,
            segments: 1,
            inserted: Nanos(0),
            bios: BioChain { first: bio_number, last: bio_number },
            stage: Stage::Held,
            hctx: 0,
            tag: None,
            counted: false,
            in_elevator: false,
            above: None,
            steps: Steps::NONE,
            deadline: Nanos(0),
            list: Links::default(),
            hash: [Links::default(); 2],
            hashed: false,
        }
    }

    /// The sector after its last.
    #[must_use]
    pub fn end(&self) -> Sector {
        self.sector + self.len
    }

    /// Whether the request is the data of a flush sequence.
    pub(crate) fn is_flush_data(&self) -> bool {
        self.steps != Steps::NONE
    }
}

/// The requests of one queue.
#[derive(Debug, Default)]
pub struct Requests {
    slab: Slab<Request>,
    visits: Cell<Visits>,
}

impl Requests {
    /// Adds a request to the pool.
    pub fn insert(&mut self, request: Request) -> RequestId {
        RequestId(self.slab.insert(request))
    }

    /// A mutable request.
    ///
    /// # Panics
    /// When it has ended.
    pub fn at(&mut self, id: RequestId) -> &mut Request {
        self.slab.at(id.0)
    }

    /// Removes a request.
    ///
    /// # Panics
    /// When it has ended.
    pub fn remove(&mut self, id: RequestId) -> Request {
        self.slab.remove(id.0)
    }

    /// Counts visits of lists and queues by an elevator's call.
    #[inline]
    pub fn visit(&self, count: u32) {
        let mut visits = self.visits.get();
        visits.visit(count);
        self.visits.set(visits);
    }

    /// Counts a search in a tree of `len` elements, an insertion or a removal.
    #[inline]
    pub fn search(&self, len: usize) {
        let mut visits = self.visits.get();
        visits.search(len);
        self.visits.set(visits);
    }

    /// Counts visits, and sets their counter to zero.
    #[inline]
    pub fn take_visits(&self, from: &mut Visits) {
        self.visits.set(self.visits.get() + core::mem::take(from));
    }

    /// Visits so far.
    #[must_use]
    pub fn visits(&self) -> u64 {
        self.visits.get().total()
    }

    /// Number of requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Whether the pool is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }
}

impl Index<RequestId> for Requests {
    type Output = Request;

    fn index(&self, id: RequestId) -> &Request {
        self.slab.get(id.0)
    }
}
