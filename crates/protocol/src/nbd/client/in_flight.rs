//! The requests that wait for their reply, in a slab: [`Cookie`]s name its slots.

use alloc::vec::Vec;

use super::coverage::{Coverage, Part};
use super::failure::Violation;
use super::request::Request;
use crate::nbd::request::{Command, Errno};

/// The name of a request from its submission to [`super::Event::Done`].
///
/// On the wire it is one number: the slot, and how often the slot was used before. So a second
/// reply to a request is told from the first reply to the next one in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cookie {
    generation: u32,
    slot: u32,
}

impl Cookie {
    /// Which slot the request has: below `in_flight_max`, and no other request in flight has it.
    /// With it, a caller finds what belongs to the request in an array of its own.
    #[inline]
    pub const fn slot(self) -> usize {
        self.slot as usize
    }

    #[inline]
    pub(super) const fn on_wire(self) -> u64 {
        (self.generation as u64) << 32 | self.slot as u64
    }
}

/// A request and what has been heard about it.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: Request,
    /// The first error that was reported.
    pub(super) error: Option<Errno>,
    /// Its reply comes in chunks, the first of which was seen.
    pub(super) has_chunks: bool,
    /// A block status chunk was seen.
    pub(super) has_status: bool,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    waiting: Option<Waiting>,
    coverage: Coverage,
}

/// All slots of a session.
#[derive(Debug)]
pub(super) struct InFlight {
    slots: Vec<Slot>,
    /// The slots without a request; the one used last is used next.
    free: Vec<u32>,
}

impl InFlight {
    pub(super) fn new(in_flight_max: u16) -> Self {
        Self {
            slots: (0..in_flight_max).map(|_| Slot::default()).collect(),
            free: (0..u32::from(in_flight_max)).rev().collect(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Cookie, &Request)> {
        (0..).zip(&self.slots).filter_map(|(slot, Slot { generation, waiting, .. })| {
            let cookie = Cookie { generation: *generation, slot };
            waiting.as_ref().map(|waiting| (cookie, &waiting.request))
        })
    }

    /// Takes a slot, if there is one.
    #[inline]
    pub(super) fn start(&mut self, request: Request) -> Option<Cookie> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[index as usize];
        assert!(slot.waiting.is_none());
        slot.waiting = Some(Waiting { request, error: None, has_chunks: false, has_status: false });
        slot.coverage.clear();
        Some(Cookie { generation: slot.generation, slot: index })
    }

    /// The request of a reply.
    #[inline]
    pub(super) fn find(&mut self, on_wire: u64) -> Result<(Cookie, &mut Waiting), Violation> {
        let cookie = Cookie { generation: (on_wire >> 32) as u32, slot: on_wire as u32 };
        match self.slots.get_mut(cookie.slot()) {
            Some(Slot { generation, waiting: Some(waiting), .. })
                if *generation == cookie.generation =>
            {
                Ok((cookie, waiting))
            }
            _ => Err(Violation::Cookie(on_wire)),
        }
    }

    /// A request that is known to wait: its reply has begun and not ended.
    #[inline]
    pub(super) fn waiting(&mut self, cookie: Cookie) -> &mut Waiting {
        self.slots[cookie.slot()].waiting.as_mut().expect("its reply has not ended")
    }

    /// Notes that a part of a READ, which is not empty and lies within it, is being answered.
    #[inline]
    pub(super) fn cover(&mut self, cookie: Cookie, part: Part) -> Result<(), Violation> {
        assert!(part.end_bytes <= self.waiting(cookie).request.len_bytes);
        self.slots[cookie.slot()].coverage.add(part)
    }

    /// Checks, once the final chunk is known, that the reply has all that a success needs.
    #[inline]
    pub(super) fn check_complete(&self, cookie: Cookie) -> Result<(), Violation> {
        let Slot { waiting, coverage, .. } = &self.slots[cookie.slot()];
        let waiting = waiting.as_ref().expect("its reply has not ended");
        let request = &waiting.request;
        match request.command {
            _ if waiting.error.is_some() => Ok(()),
            Command::Read if !coverage.is_whole(request.len_bytes) => Err(Violation::MissingData),
            Command::BlockStatus if !waiting.has_status => Err(Violation::StatusCount),
            _ => Ok(()),
        }
    }

    /// Frees the slot of a request whose reply is complete.
    #[inline]
    pub(super) fn end(&mut self, cookie: Cookie) -> Result<(), Errno> {
        let slot = &mut self.slots[cookie.slot()];
        assert_eq!(slot.generation, cookie.generation);
        let waiting = slot.waiting.take().expect("its reply has not ended");
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(cookie.slot);
        waiting.error.map_or(Ok(()), Err)
    }
}
