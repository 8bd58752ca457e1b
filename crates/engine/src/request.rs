//! A request: what a device is asked for in one go, a chain of merged bios (`struct request`).
//!
//! [`Requests`] is the pool of one queue. An elevator knows requests by [`RequestId`] and keeps
//! what it needs about them (tree keys, deadlines) itself, in tables indexed by the id. The fields
//! that only this crate sees are the queue's ([`crate::mq`]): elevators leave them alone.

use core::ops::Index;

use crate::bio::{Bio, Op, Origin, Sector};
use crate::slab::Slab;
use crate::time::Nanos;

/// Names a request in the [`Requests`] of its queue, from its allocation to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u32);

impl RequestId {
    /// As an index of a table.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Names an issued request for the device: a hardware queue, and a number below its depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tag {
    /// The hardware queue.
    pub hctx: u16,
    /// Its tag there.
    pub index: u32,
}

/// A request. It grows by merging, until it is dispatched; a device may do its first part only.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// What to do.
    pub op: Op,
    /// First sector on the device.
    pub sector: Sector,
    /// Length of the range.
    pub len: Sector,
    /// Somebody waits for it (`rq_is_sync`).
    pub sync: bool,
    /// On stable storage before it completes.
    pub fua: bool,
    /// Of the bio that it was made from; where merged priorities differ, the most urgent one.
    pub origin: Origin,
    /// Pieces of memory.
    pub segments: u16,
    /// When it was given to the elevator.
    pub inserted: Nanos,
    /// First and last bio of the chain, in the queue's numbering.
    pub(crate) first_bio: u32,
    pub(crate) last_bio: u32,
    /// Where it is.
    pub(crate) stage: Stage,
    /// Hardware queue of the CPU that submitted it.
    pub(crate) hctx: u16,
    /// Its driver tag on that hardware queue.
    pub(crate) tag: Option<u32>,
    /// It is one of those that the queue's limits count.
    pub(crate) counted: bool,
    /// It went through the elevator, which wants to hear of its end (`RQF_ELVPRIV`).
    pub(crate) in_elevator: bool,
    /// It is a clone, of the request that the queue above has issued under this tag.
    pub(crate) above: Option<Tag>,
    /// What is left of its flush sequence.
    pub(crate) steps: Steps,
    /// When it counts as lost, once it is issued.
    pub(crate) deadline: Nanos,
    /// Neighbours in the one list that it is in: a plug, a software queue, the dispatch list, a
    /// list of the flush machine, the issued ones.
    pub(crate) list: Links,
    /// Neighbours in the merge hash, by end and by start; none when it is not hashed.
    pub(crate) hash: [Links; 2],
    /// Whether it is in the merge hash.
    pub(crate) hashed: bool,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// In the plug of its submitter.
    Plugged,
    /// In the elevator or in a software queue.
    Waiting,
    /// On a dispatch list or with the flush machine: never merged any more.
    Held,
    /// The device has it.
    Issued,
}

/// What is left of a flush sequence, in this order: flush, data, flush.
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
    /// A request of one bio, which has the number `bio_number` in the queue.
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
            first_bio: bio_number,
            last_bio: bio_number,
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

    /// The sector behind its last.
    #[must_use]
    pub fn end(&self) -> Sector {
        self.sector + self.len
    }

    /// It is the data of a flush sequence.
    pub(crate) fn is_flush_data(&self) -> bool {
        self.steps != Steps::NONE
    }
}

/// The requests of one queue.
#[derive(Debug, Default)]
pub struct Requests {
    slab: Slab<Request>,
}

impl Requests {
    /// Takes a request into the pool.
    pub fn insert(&mut self, request: Request) -> RequestId {
        RequestId(self.slab.insert(request))
    }

    /// A request, to change it.
    ///
    /// # Panics
    /// When it has ended.
    pub fn at(&mut self, id: RequestId) -> &mut Request {
        self.slab.at(id.0)
    }

    /// Takes it out.
    ///
    /// # Panics
    /// When it has ended.
    pub fn remove(&mut self, id: RequestId) -> Request {
        self.slab.remove(id.0)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Whether there is none.
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
