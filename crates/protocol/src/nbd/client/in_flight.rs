//! Requests in flight, in a slab. A [`Cookie`] names a slot.

use alloc::vec::Vec;

use super::coverage::{Coverage, Part};
use super::failure::Violation;
use super::request::Request;
use crate::nbd::request::{Command, Errno};

/// Handle of a request from its submission to [`super::Event::Done`].
///
/// On the wire it is one number: the slot, and the number of its earlier uses. So a duplicate reply
/// to a request differs from the first reply to the slot's next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cookie {
    generation: u32,
    slot: u32,
}

impl Cookie {
    /// Slot of the request: below `in_flight_max` and unique among the requests in flight. A caller
    /// can use it as the index of its own array.
    #[inline]
    pub const fn slot(self) -> usize {
        self.slot as usize
    }

    #[inline]
    pub(super) const fn on_wire(self) -> u64 {
        (self.generation as u64) << 32 | self.slot as u64
    }
}

/// A request in flight, with the state of its reply.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: Request,
    /// The first reported error.
    pub(super) error: Option<Errno>,
    /// Whether a chunk of the reply was received.
    pub(super) has_chunks: bool,
    /// Whether a block status chunk was received.
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
    /// Slots without a request; the last one freed is the next one used.
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

    /// Takes a free slot, if there is one.
    #[inline]
    pub(super) fn start(&mut self, request: Request) -> Option<Cookie> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[index as usize];
        assert!(slot.waiting.is_none());
        slot.waiting = Some(Waiting { request, error: None, has_chunks: false, has_status: false });
        slot.coverage.clear();
        Some(Cookie { generation: slot.generation, slot: index })
    }

    /// Finds the request of a reply.
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

    /// A request whose reply has begun and not ended.
    #[inline]
    pub(super) fn waiting(&mut self, cookie: Cookie) -> &mut Waiting {
        self.slots[cookie.slot()].waiting.as_mut().expect("its reply has not ended")
    }

    /// Marks a part of a READ as answered. The part is not empty and lies within the request.
    #[inline]
    pub(super) fn cover(&mut self, cookie: Cookie, part: Part) -> Result<(), Violation> {
        assert!(part.end_bytes <= self.waiting(cookie).request.len_bytes);
        self.slots[cookie.slot()].coverage.add(part)
    }

    /// Checks at the final chunk that a successful reply is complete.
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
