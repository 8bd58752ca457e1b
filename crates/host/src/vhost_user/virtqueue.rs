//! A split virtqueue in guest memory: requests are fetched, and their ends are published.
//!
//! ```text
//! available ring ─ fetch ─> chain (copies of its descriptors)      complete ─> used ring
//!   index, entries          └ walk: protocol/virtio_queue             publish ─> its index
//! ```
//! Every word and every descriptor is read once; the guest may change them at any time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use blockyard_protocol::vhost_user::{FEATURE_EVENT_INDEX, FEATURE_INDIRECT, Queue};
use blockyard_protocol::virtio_queue::{
    Chain, ChainFault, DESCRIPTOR_BYTES, Descriptor, Place, Span, Walk,
};

use super::dirty_log::DirtyLog;
use super::inflight::Inflight;
use super::memory::{GuestMemory, Window};

/// Flag of the used ring: the device wants no kicks.
const NO_KICKS: u16 = 1;
/// Flag of the available ring: the driver wants no calls.
const NO_CALLS: u16 = 1;
/// Offsets in both rings.
const FLAGS_AT: usize = 0;
const INDEX_AT: usize = 2;
const ENTRIES_AT: usize = 4;
const AVAILABLE_ENTRY_BYTES: usize = 2;
const USED_ENTRY_BYTES: usize = 8;

/// The reason why a queue stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RingFault {
    #[error(transparent)]
    Chain(#[from] ChainFault),
    #[error("its ring is outside of the guest's memory, or not aligned there")]
    Ring,
    #[error("{came} requests are available in a ring of {ring_len}")]
    Index { came: u16, ring_len: u16 },
    #[error("a buffer at {0:#x} is outside of the guest's memory")]
    Address(u64),
    #[error("descriptor {0} is made available again before its request has ended")]
    Duplicate(u16),
    #[error("the record of its requests in flight is that of another ring")]
    Record,
    #[error("the log of a migration is too short for the guest's memory")]
    Log,
    #[error("memory of the guest was taken away")]
    MemoryTaken,
}

/// A virtqueue.
#[derive(Debug)]
pub(super) struct Virtqueue {
    ring_len: u16,
    is_indirect: bool,
    has_event_index: bool,
    descriptors: Window,
    available: Window,
    used: Window,
    /// Log of writes to the used ring, and the guest address of the ring.
    used_log: Option<(Arc<DirtyLog>, u64)>,
    next_available: u16,
    /// Index of the next completion, and its published value.
    next_used: u16,
    published: u16,
    /// `None` if the front end keeps no record.
    inflight: Option<Inflight>,
    /// Requests of a server before this one, which are done again first.
    recovered: VecDeque<u16>,
}

impl Virtqueue {
    /// The queue of a front end, from the request at index `next_available` on, or as its record of
    /// requests in flight says. Reads the used index: the guest has kicked, so it has initialised
    /// its ring.
    pub(super) fn new(
        memory: &GuestMemory,
        queue: &Queue,
        features: u64,
        next_available: u16,
        record: Option<Window>,
    ) -> Result<Self, RingFault> {
        let ring_len = queue.ring_len;
        let entries = usize::from(ring_len);
        let addresses = queue.addresses.ok_or(RingFault::Ring)?;
        // With the word for the event index, which follows the entries.
        let available_bytes = ENTRIES_AT + entries * AVAILABLE_ENTRY_BYTES + 2;
        let used_bytes = ENTRIES_AT + entries * USED_ENTRY_BYTES + 2;
        let window = |addr, len, align| memory.window(addr, len, align).ok_or(RingFault::Ring);
        let descriptors_bytes = entries * DESCRIPTOR_BYTES as usize;
        let descriptors = window(addresses.descriptors, descriptors_bytes, 1)?;
        let available = window(addresses.available, available_bytes, 2)?;
        let used = window(addresses.used, used_bytes, 4)?;
        let used_log = memory.log().cloned().zip(queue.used_log_addr);
        let is_logged = |(log, addr): &(Arc<DirtyLog>, u64)| log.covers(*addr, used_bytes as u64);
        if !used_log.as_ref().is_none_or(is_logged) {
            return Err(RingFault::Log);
        }
        let next_used = used.load_u16(INDEX_AT, Ordering::Acquire);
        let opened = record.map(|record| Inflight::open(record, ring_len, next_used)).transpose();
        let (inflight, recovered) = match opened.map_err(|_| RingFault::Record)? {
            Some((inflight, recovered)) => (Some(inflight), recovered),
            None => (None, None),
        };
        // Each request that was fetched before has ended or is in the record of requests in flight.
        let fetched = recovered.as_ref().map(|heads| next_used.wrapping_add(heads.len() as u16));
        let next_available = fetched.unwrap_or(next_available);
        Ok(Self {
            ring_len,
            is_indirect: features & FEATURE_INDIRECT != 0,
            has_event_index: features & FEATURE_EVENT_INDEX != 0,
            descriptors,
            available,
            used,
            used_log,
            next_available,
            next_used,
            published: next_used,
            inflight,
            recovered: recovered.unwrap_or_default().into(),
        })
    }

    /// Index of the next request.
    pub(super) fn next_available(&self) -> u16 {
        self.next_available
    }

    /// Whether requests of an earlier server are to be done again.
    pub(super) fn has_recovered(&self) -> bool {
        !self.recovered.is_empty()
    }

    /// Whether the front end has taken the record of requests in flight away.
    pub(super) fn has_lost_record(&self) -> bool {
        self.inflight.as_ref().is_some_and(Inflight::is_broken)
    }

    /// Whether a request can be fetched.
    pub(super) fn has_available(&self) -> bool {
        let index = self.available.load_u16(INDEX_AT, Ordering::Acquire);
        index != self.next_available || !self.recovered.is_empty()
    }

    /// The next request: its head, and its buffers in `chain`, all of them in `memory`. It stays
    /// the next one until [`Virtqueue::advance`].
    pub(super) fn fetch(
        &self,
        memory: &GuestMemory,
        chain: &mut Chain,
    ) -> Result<Option<u16>, RingFault> {
        let Some(head) = self.head()? else { return Ok(None) };
        chain.clear();
        let mut walk = Walk::new(head, self.ring_len, self.is_indirect)?;
        let is_taken = self.inflight.as_ref().is_some_and(|inflight| inflight.is_taken(head));
        if is_taken && self.recovered.is_empty() {
            return Err(RingFault::Duplicate(head));
        }
        while walk.on_descriptor(self.descriptor(memory, walk.place())?, chain)? {}
        let outside = |span: &&Span| !memory.has(**span);
        if let Some(span) = chain.readable.iter().chain(&chain.writable).find(outside) {
            return Err(RingFault::Address(span.addr));
        }
        if memory.is_broken() {
            return Err(RingFault::MemoryTaken);
        }
        Ok(Some(head))
    }

    /// The head of the next request.
    fn head(&self) -> Result<Option<u16>, RingFault> {
        if let Some(head) = self.recovered.front() {
            return Ok(Some(*head));
        }
        let index = self.available.load_u16(INDEX_AT, Ordering::Acquire);
        let came = index.wrapping_sub(self.next_available);
        if came == 0 {
            return Ok(None);
        }
        if came > self.ring_len {
            return Err(RingFault::Index { came, ring_len: self.ring_len });
        }
        let entry = usize::from(self.next_available % self.ring_len);
        let at = ENTRIES_AT + entry * AVAILABLE_ENTRY_BYTES;
        Ok(Some(self.available.load_u16(at, Ordering::Relaxed)))
    }

    /// Takes the request that was fetched.
    pub(super) fn advance(&mut self, head: u16) {
        if self.recovered.pop_front().is_some() {
            return;
        }
        if let Some(inflight) = &mut self.inflight {
            inflight.take(head);
        }
        self.next_available = self.next_available.wrapping_add(1);
    }

    #[inline]
    fn descriptor(&self, memory: &GuestMemory, place: Place) -> Result<Descriptor, RingFault> {
        Ok(Descriptor::of(match place {
            Place::Ring(index) => {
                self.descriptors.load(usize::from(index) * DESCRIPTOR_BYTES as usize)
            }
            Place::Guest(addr) => {
                let mut bytes = [0; DESCRIPTOR_BYTES as usize];
                memory.load(addr, &mut bytes).ok_or(RingFault::Address(addr))?;
                bytes
            }
        }))
    }

    /// Puts an ended request into the used ring; `written_bytes` were written to its buffers.
    pub(super) fn complete(&mut self, head: u16, written_bytes: u32) {
        if let Some(inflight) = &mut self.inflight {
            inflight.end(head);
        }
        let entry = usize::from(self.next_used % self.ring_len);
        let at = ENTRIES_AT + entry * USED_ENTRY_BYTES;
        self.used.store_u32(at, head.into());
        self.used.store_u32(at + 4, written_bytes);
        self.log_used(at, USED_ENTRY_BYTES);
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// Logs a write to the used ring.
    #[inline]
    fn log_used(&self, at: usize, len_bytes: usize) {
        if let Some((log, addr)) = &self.used_log {
            log.mark(addr + at as u64, len_bytes as u64);
        }
    }

    /// Number of completions that the guest cannot see.
    pub(super) fn unpublished(&self) -> u16 {
        self.next_used.wrapping_sub(self.published)
    }

    /// Shows all completions to the guest; returns whether it must be called.
    pub(super) fn publish(&mut self) -> bool {
        let before = std::mem::replace(&mut self.published, self.next_used);
        if before == self.next_used {
            return false;
        }
        self.used.store_u16(INDEX_AT, self.next_used, Ordering::Release);
        self.log_used(INDEX_AT, 2);
        if let Some(inflight) = &mut self.inflight {
            inflight.publish(self.next_used);
        }
        // The index must be visible before the guest's wish is read; the guest does the reverse.
        fence(Ordering::SeqCst);
        if !self.has_event_index {
            return self.available.load_u16(FLAGS_AT, Ordering::Relaxed) & NO_CALLS == 0;
        }
        let at = ENTRIES_AT + usize::from(self.ring_len) * AVAILABLE_ENTRY_BYTES;
        let event = self.available.load_u16(at, Ordering::Relaxed);
        passes(event, before, self.next_used)
    }

    /// Asks for a kick; returns whether a request came meanwhile.
    pub(super) fn arm(&mut self) -> bool {
        if self.has_event_index {
            let at = ENTRIES_AT + usize::from(self.ring_len) * USED_ENTRY_BYTES;
            self.used.store_u16(at, self.next_available, Ordering::Relaxed);
            self.log_used(at, 2);
        } else {
            self.used.store_u16(FLAGS_AT, 0, Ordering::Relaxed);
            self.log_used(FLAGS_AT, 2);
        }
        fence(Ordering::SeqCst);
        self.has_available()
    }

    /// Wants no kicks. With an event index the last one stands behind the ring anyway.
    pub(super) fn disarm(&mut self) {
        if !self.has_event_index {
            self.used.store_u16(FLAGS_AT, NO_KICKS, Ordering::Relaxed);
            self.log_used(FLAGS_AT, 2);
        }
    }
}

/// Whether an index that moves from `before` to `now` passes `event`.
fn passes(event: u16, before: u16, now: u16) -> bool {
    now.wrapping_sub(event).wrapping_sub(1) < now.wrapping_sub(before)
}

#[cfg(test)]
mod tests;
