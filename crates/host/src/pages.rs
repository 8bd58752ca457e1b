//! Pages of one region, by number: what the engine's page allocators take from in the real world.
//!
//! A buddy system, and before it a stack of single pages, as the kernel keeps one for each CPU: a
//! pool belongs to one shard, so that nothing in it is locked. Nothing is reclaimed, since whatever
//! is not free is in use by a bio; with permission to wait the stack is emptied, so that its pages
//! can merge. The pool knows numbers only. Whoever owns the region ([`crate::memory::Region`])
//! multiplies.

use blockyard_engine::pages::buddy::Buddy;
use blockyard_engine::pages::{
    ALLOCATORS, AllocatorSpec, Consumer, Effort, PAGE_BYTES, Page, PageSource,
};

/// What writes are encrypted into before they are written.
#[derive(Clone, Copy, Debug, Default)]
pub enum BounceChoice {
    /// What is fastest where all memory is ours: contiguous slots, and for a file in memory
    /// nothing, since the cipher runs straight into its pages.
    #[default]
    Fastest,
    /// Contiguous slots, for files in memory too: what pages are to be compared with.
    Slots,
    /// Pages, allocated in one of the kernel's ways.
    Pages(AllocatorSpec),
}

impl BounceChoice {
    /// All names, each with one line about it.
    pub fn named() -> impl Iterator<Item = (&'static str, &'static str)> {
        let ours = [
            ("none", "contiguous slots; for a file in memory nothing, straight into its pages"),
            ("slots", "contiguous slots, for a file in memory too"),
        ];
        ours.into_iter().chain(ALLOCATORS.iter().map(|allocator| (allocator.name, allocator.about)))
    }

    /// Reads `none`, `slots`, or an allocator with its options.
    ///
    /// # Errors
    /// What there is instead.
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

/// A stack is filled with one block of this order: 64 pages.
const BATCH_ORDER: u8 = 6;
/// More single pages than this are not kept: four bios of 1 MiB.
const SINGLES_MAX: usize = 1024;

/// Pages `0..pages`.
#[derive(Debug)]
pub struct PagePool {
    buddy: Buddy,
    /// Free, and not in the buddy system. The page freed last is still in the cache.
    singles: Vec<u32>,
    /// By first page: 1 + the order of the block that somebody has.
    lent: Vec<u8>,
}

impl PagePool {
    /// All pages of a region that is so long, without a rest that is no page.
    ///
    /// # Panics
    /// When the region has more pages than there are numbers.
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

    /// Where a page starts in the region.
    #[must_use]
    pub fn offset_bytes(page: Page) -> usize {
        page.0 as usize * PAGE_BYTES as usize
    }

    /// Pages that nobody has.
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

    /// Those that lie here longest go to the buddy system.
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

    /// The pool is one shard's.
    fn is_shared(&self) -> bool {
        false
    }

    fn free(&mut self, first: Page, order: u8) {
        let lent = std::mem::take(&mut self.lent[first.0 as usize]);
        assert!(lent == 1 + order, "a block goes back as it was lent");
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
            // 100 pages each, until memory and reserve are used up.
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
    #[should_panic(expected = "a block goes back as it was lent")]
    fn page_given_back_twice_is_a_programmer_error() {
        let mut pool = pool();
        let page = pool.alloc(0, Effort::NoWait).unwrap();
        pool.free(page, 0);
        pool.free(page, 0);
    }
}
