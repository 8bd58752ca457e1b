//! Bounce buffers for the ciphertext of writes: contiguous slots, or lists of pages.
//!
//! Slots come from a [`crate::mempool`], one array of equal buffers: the fastest choice where the
//! process owns all memory. Page lists come from one of the page allocators ([`crate::pages`]), as
//! in the kernel, where memory is shared. Each crypt line is then a client with its own reserve and
//! limit (`struct crypt_config`); all clients take pages from the single source of the shard.
//!
//! ```text
//!   get ─ pages? ─yes─> list ─> slot number ─ the world asks for its segments ─> put
//!            └no─> parked ── put of another, timer, higher limit ──> resumed
//! ```

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Part;
use crate::bio::Origin;
use crate::buf::BufRef;
use crate::pages::{
    Allocator, AllocatorSpec, BIO_PAGES_MAX, BioPages, OutOfPages, Outcome, PAGE_BYTES, PageSource,
    RETRY, Segment, Sizes,
};
use crate::slab::Slab;
use crate::sq::{Owner, Sqe, SqeOp, Token};

/// Memory into which a shard's crypt lines encrypt writes.
pub enum Bounce {
    /// Contiguous slots, numbered from zero, in memory of the world. The lines share them.
    Slots {
        /// Number of slots, at least one for each line that needs one.
        slots: u32,
        /// Length of each slot, a multiple of 4 KiB; also the longest write.
        slot_bytes: u32,
    },
    /// Pages, which the world resolves with [`crate::shard::Shard::segments`].
    Pages {
        /// Allocator.
        spec: AllocatorSpec,
        /// Reserve and limit of each line. The longest write is the reserve, or [`BIO_PAGES_MAX`]
        /// if that is less.
        sizes: Sizes,
        /// Source of the pages.
        source: Box<dyn PageSource + Send>,
    },
}

/// The pages of a shard: the clients of all lines, and the lists of writes in flight.
pub struct PageBounce {
    source: Box<dyn PageSource + Send>,
    /// Clients by number of the target.
    clients: Vec<Option<Allocator<Part>>>,
    /// Lists, with slot numbers from [`BufRef::FIRST_LIST_SLOT`] on.
    lists: Slab<BioPages>,
    /// Whether a timer is pending.
    timer_runs: bool,
}

impl PageBounce {
    pub(crate) fn new(source: Box<dyn PageSource + Send>) -> Self {
        Self { source, clients: Vec::new(), lists: Slab::default(), timer_runs: false }
    }

    /// The longest write with such a reserve.
    pub(crate) fn longest_bytes(sizes: Sizes) -> u32 {
        sizes.reserve_pages.min(BIO_PAGES_MAX) * PAGE_BYTES
    }

    /// Adds the next target of the table; with sizes it is a client.
    pub(crate) fn add_target(
        &mut self,
        client: Option<(AllocatorSpec, Sizes)>,
    ) -> Result<(), OutOfPages> {
        let new = |(spec, sizes)| Allocator::new(spec, sizes, &mut *self.source);
        self.clients.push(client.map(new).transpose()?);
        Ok(())
    }

    fn client(&mut self, number: u16) -> (&mut Allocator<Part>, &mut dyn PageSource) {
        let client = self.clients[usize::from(number)].as_mut();
        (client.expect("only a crypt line takes pages"), &mut *self.source)
    }

    fn lend(&mut self, pages: BioPages) -> u32 {
        let slot = BufRef::FIRST_LIST_SLOT + self.lists.insert(pages);
        assert!(slot < BufRef::ZEROS_SLOT, "fewer than 2^31 writes are in flight");
        slot
    }

    /// Takes a list for a part of the target `number`. Without free pages the part waits for
    /// [`PageBounce::take_resumed`].
    pub(crate) fn get(&mut self, number: u16, part: Part, sq: &mut Vec<Sqe>) -> Option<u32> {
        let wanted = part.len.bytes().div_ceil(u64::from(PAGE_BYTES));
        let wanted = u32::try_from(wanted).expect("parts are cut to the reserve");
        let (client, source) = self.client(number);
        match client.get(wanted, part, source) {
            Outcome::Got(_, pages) => Some(self.lend(pages)),
            Outcome::Parked => {
                self.start_timer(sq);
                None
            }
        }
    }

    /// Returns a list. The pages may resume parts in [`PageBounce::take_resumed`].
    pub(crate) fn put(&mut self, number: u16, slot: u32) {
        let pages = self.lists.remove(slot - BufRef::FIRST_LIST_SLOT);
        let (client, source) = self.client(number);
        client.put(pages, source);
    }

    /// The oldest waiting part of this target that has its pages now.
    pub(crate) fn take_resumed(&mut self, number: u16) -> Option<(Part, u32)> {
        let (part, pages) = self.client(number).0.take_resumed()?;
        Some((part, self.lend(pages)))
    }

    /// Whether the target `number` takes pages.
    pub(crate) fn has_client(&self, number: usize) -> bool {
        self.clients[number].is_some()
    }

    /// Handles the timer: waiting parts try again.
    pub(crate) fn on_timer(&mut self, sq: &mut Vec<Sqe>) {
        self.timer_runs = false;
        for client in self.clients.iter_mut().flatten() {
            client.retry(&mut *self.source);
        }
        if self.parked() > 0 {
            self.start_timer(sq);
        }
    }

    /// Starts the timer for another attempt, while a part waits and the memory is shared with
    /// others.
    fn start_timer(&mut self, sq: &mut Vec<Sqe>) {
        if !self.timer_runs && self.source.is_shared() {
            self.timer_runs = true;
            let token = Token { owner: Owner::Pages, index: 0 };
            let op = SqeOp::Timeout { after: RETRY };
            sq.push(Sqe { token, op, linked: false, origin: Origin::default() });
        }
    }

    pub(crate) fn set_limit(&mut self, limit_pages: u32) {
        for client in self.clients.iter_mut().flatten() {
            client.set_limit(limit_pages, &mut *self.source);
        }
    }

    pub(crate) fn segments(&self, slot: u32) -> &[Segment] {
        self.lists.get(slot - BufRef::FIRST_LIST_SLOT).segments()
    }

    pub(crate) fn allocators(&self) -> impl Iterator<Item = &Allocator<Part>> {
        self.clients.iter().flatten()
    }

    pub(crate) fn parked(&self) -> usize {
        self.allocators().map(Allocator::parked).sum()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.lists.is_empty() && self.allocators().all(Allocator::is_idle)
    }
}

impl Drop for PageBounce {
    /// Returns all pages, those of writes in flight included, because these writes never end.
    fn drop(&mut self) {
        for pages in self.lists.drain() {
            for segment in pages.segments() {
                self.source.free(segment.first, segment.order);
            }
        }
        for client in self.clients.drain(..).flatten() {
            client.abandon(&mut *self.source);
        }
    }
}

#[cfg(test)]
mod tests;
