//! Pages of one region, by number: the memory behind the engine's page allocators in the real
//! world.
//!
//! A buddy system, and a stack of single pages in front, like the kernel's per-CPU lists. A pool
//! belongs to one shard, so it has no locks. There is no reclaim, because every page that is not
//! free belongs to a bio; with permission to wait the stack is emptied, so that its pages can
//! merge. The pool knows only numbers; the owner of the region ([`crate::memory::Region`]) converts
//! them to addresses.

use blockyard_engine::pages::buddy::Buddy;
use blockyard_engine::pages::{
    ALLOCATORS, AllocatorSpec, Consumer, Effort, PAGE_BYTES, Page, PageSource,
};

/// Bounce memory for encrypted writes.
#[derive(Clone, Copy, Debug, Default)]
pub enum BounceChoice {
    /// The fastest choice: contiguous slots; for a file in memory none, because the cipher writes
    /// directly into its pages.
    #[default]
    Fastest,
    /// Contiguous slots, for files in memory too; the reference for page allocators.
    Slots,
    /// Pages from one of the kernel's allocators.
    Pages(AllocatorSpec),
}

impl BounceChoice {
    /// All names, each with a one-line description.
    pub fn named() -> impl Iterator<Item = (&'static str, &'static str)> {
        let ours = [
            ("none", "contiguous slots; for a file in memory none: directly into its pages"),
            ("slots", "contiguous slots, for a file in memory too"),
        ];
        ours.into_iter().chain(ALLOCATORS.iter().map(|allocator| (allocator.name, allocator.about)))
    }

    /// Parses `none`, `slots`, or an allocator with its options.
    ///
    /// # Errors
    /// The text is none of them; the message lists the choices.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::Fastest),
            "slots" => Ok(Self::Slots),
            _ => AllocatorSpec::parse(text)
                .map(Self::Pages)
                .map_err(|error| format!("{error}; or none, or slots")),
        }
    }
}

/// Order of the block that refills the stack: 64 pages.
const BATCH_ORDER: u8 = 6;
/// Limit of single pages in the stack: four bios of 1 MiB.
const SINGLES_MAX: usize = 1024;

/// Pages `0..pages`.
#[derive(Debug)]
pub struct PagePool {
    buddy: Buddy,
    /// Free pages outside the buddy system. The page freed last is still in the cache.
    singles: Vec<u32>,
    /// By first page: 1 + the order of a lent block.
    lent: Vec<u8>,
}

impl PagePool {
    /// All pages of a region of this length; a partial last page is ignored.
    ///
    /// # Panics
    /// The region has more pages than `u32` numbers.
    #[must_use]
    pub fn of_bytes(len_bytes: usize) -> Self {
        let pages = len_bytes / PAGE_BYTES as usize;
        let pages = u32::try_from(pages).expect("a pool has less than 16 TiB");
        Self {
            buddy: Buddy::new(pages),
            singles: Vec::with_capacity(SINGLES_MAX + 1),
            lent: vec![0; pages as usize],
        }
    }

    /// Offset of a page in the region.
    #[must_use]
    pub fn offset_bytes(page: Page) -> usize {
        page.0 as usize * PAGE_BYTES as usize
    }

    /// Number of free pages.
    #[must_use]
    pub fn free_pages(&self) -> u32 {
        let singles = u32::try_from(self.singles.len()).expect("at most SINGLES_MAX");
        self.buddy.free_pages() + singles
    }

    fn single(&mut self) -> Option<u32> {
        if let Some(page) = self.singles.pop() {
            return Some(page);
        }
        if let Some((first, _)) = self.buddy.alloc(BATCH_ORDER) {
            self.singles.extend((first..first + (1 << BATCH_ORDER)).rev());
            return self.singles.pop();
        }
        self.buddy.alloc(0).map(|(page, _)| page)
    }

    fn block(&mut self, order: u8, effort: Effort) -> Option<u32> {
        if let Some((first, _)) = self.buddy.alloc(order) {
            return Some(first);
        }
        if effort == Effort::NoWait || self.singles.is_empty() {
            return None;
        }
        self.empty(self.singles.len());
        self.buddy.alloc(order).map(|(first, _)| first)
    }

    /// Moves the oldest pages of the stack to the buddy system.
    fn empty(&mut self, count: usize) {
        for page in self.singles.drain(..count) {
            self.buddy.free(page, 0);
        }
    }
}

impl PageSource for PagePool {
    fn alloc(&mut self, order: u8, effort: Effort) -> Option<Page> {
        let first = match order {
            0 => self.single(),
            _ => self.block(order, effort),
        }?;
        self.lent[first as usize] = 1 + order;
        Some(Page(first))
    }

    fn alloc_bulk(&mut self, count: u32, _effort: Effort, consumer: &mut Consumer<'_>) -> u32 {
        for given in 0..count {
            let Some(page) = self.single() else { return given };
            self.lent[page as usize] = 1;
            consumer.take(Page(page));
        }
        count
    }

    /// The pool belongs to one shard.
    fn is_shared(&self) -> bool {
        false
    }

    fn free(&mut self, first: Page, order: u8) {
        let lent = std::mem::take(&mut self.lent[first.0 as usize]);
        assert!(lent == 1 + order, "a block is returned with its order");
        if order > 0 {
            self.buddy.free(first.0, order);
            return;
        }
        self.singles.push(first.0);
        if self.singles.len() > SINGLES_MAX {
            self.empty(1 << BATCH_ORDER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockyard_engine::pages::{Allocator, BIO_PAGES_MAX, BioPages, Outcome, Sizes};

    const PAGES: usize = 2048;

    fn pool() -> PagePool {
        PagePool::of_bytes(PAGES * PAGE_BYTES as usize + 100)
    }

    #[test]
    fn every_allocator_serves_bios_from_the_pool_and_gives_all_back() {
        for allocator in ALLOCATORS {
            let mut pool = pool();
            let sizes = Sizes { reserve_pages: BIO_PAGES_MAX, limit_pages: u32::MAX };
            let spec = AllocatorSpec::of(allocator);
            let mut client: Allocator<u32> = Allocator::new(spec, sizes, &mut pool).unwrap();
            let mut used = vec![false; PAGES];
            let mut bios: Vec<BioPages> = Vec::new();
            // Allocations of 100 pages, until memory and reserve are used up.
            while let Outcome::Got(_, pages) = client.get(100, 0, &mut pool) {
                for segment in pages.segments() {
                    let first = segment.first.0 as usize;
                    for page in &mut used[first..first + segment.pages() as usize] {
                        assert!(!std::mem::replace(page, true), "{}", allocator.name);
                    }
                }
                bios.push(pages);
            }
            assert_eq!((bios.len(), client.parked()), (20, 1), "{}", allocator.name);
            bios.into_iter().for_each(|pages| client.put(pages, &mut pool));
            let (_, pages) = client.take_resumed().unwrap();
            client.put(pages, &mut pool);
            client.release(&mut pool);
            assert_eq!(pool.free_pages() as usize, PAGES, "{}", allocator.name);
        }
    }

    #[test]
    fn single_pages_merge_again_when_a_block_is_worth_waiting_for() {
        let mut pool = PagePool::of_bytes(64 * PAGE_BYTES as usize);
        let page = pool.alloc(0, Effort::NoWait).unwrap();
        pool.free(page, 0);
        assert_eq!(pool.alloc(6, Effort::NoWait), None);
        assert_eq!(pool.alloc(6, Effort::Reclaim), Some(Page(0)));
        assert_eq!(PagePool::offset_bytes(Page(3)), 12288);
    }

    #[test]
    #[should_panic(expected = "a block is returned with its order")]
    fn page_given_back_twice_is_a_programmer_error() {
        let mut pool = pool();
        let page = pool.alloc(0, Effort::NoWait).unwrap();
        pool.free(page, 0);
        pool.free(page, 0);
    }
}
