//! A request: what a device is asked for in one go, a chain of merged bios (`struct request`).
//!
//! [`Requests`] is the pool of one queue. An elevator knows requests by [`RequestId`] and keeps
//! what it needs about them (tree keys, deadlines) itself, in tables indexed by the id.

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

/// A request. It changes by merging only, and only until it is dispatched.
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
        }
    }

    /// The sector behind its last.
    #[must_use]
    pub fn end(&self) -> Sector {
        self.sector + self.len
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
