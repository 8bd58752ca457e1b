//! Reserve and limit of a client, and the allocation of a page through both (`mempool_alloc`).
//!
//! The page allocator is asked *first*; the reserve is the fallback. A returned page refills the
//! reserve before it goes to the page allocator. All pages of a client, its reserve included, count
//! towards its limit. At the limit the page allocator is not asked, so that the client lives from
//! its reserve: back-pressure without an error. (The bulk proposal of 2023 filled its reserve
//! without counting it; here all allocators count alike.)

use alloc::vec::Vec;

use super::counters::{AllocationStep, Counters};
use super::source::{Consumer, Effort, Page, PageSource, Segment};
use super::{BIO_PAGES_MAX, BioPages, Round};

/// Least limit of a client in bios (`DM_CRYPT_MIN_PAGES_PER_CLIENT`).
const CLIENT_BIOS_MIN: u32 = 16;
/// Limit of all clients together in percent of memory (`DM_CRYPT_MEMORY_PERCENT`).
const MEMORY_PERCENT: u64 = 2;

/// Limit of each of `clients` in a memory of `memory_pages`. Whenever a client comes or goes,
/// compute it again and set it with [`super::Allocator::set_limit`].
#[must_use]
pub fn pages_per_client(memory_pages: u64, clients: u32) -> u32 {
    let share = memory_pages.saturating_mul(MEMORY_PERCENT) / 100 / u64::from(clients.max(1));
    u32::try_from(share).unwrap_or(u32::MAX).max(CLIENT_BIOS_MIN * BIO_PAGES_MAX)
}

/// Pages of a client.
#[derive(Debug)]
pub(super) struct Holdings {
    /// Reserve, LIFO.
    pub(super) reserve: Vec<Page>,
    /// Pages in a full reserve (`min_nr`).
    pub(super) reserve_pages: u32,
    /// Number of pages that count towards the limit.
    pub(super) counted: u32,
    /// Actual number of pages from the page allocator.
    pub(super) held: u32,
    pub(super) limit: u32,
    /// Whether compound pages count towards the limit.
    pub(super) counts_blocks: bool,
}

impl Holdings {
    fn counts(&self, order: u8) -> bool {
        order == 0 || self.counts_blocks
    }

    /// Number of pages missing from the reserve.
    pub(super) fn reserve_used(&self) -> u32 {
        let there = u32::try_from(self.reserve.len()).expect("a reserve is counted in 32 bits");
        self.reserve_pages - there
    }
}

/// Memory for the allocation of one bio's pages.
pub struct Pool<'a> {
    pub(super) source: &'a mut dyn PageSource,
    pub(super) holdings: &'a mut Holdings,
    pub(super) counters: &'a mut Counters,
    /// Last step of this bio's allocation.
    pub(super) step: AllocationStep,
}

impl Pool<'_> {
    /// Takes a page: from the page allocator, or from the reserve, or from the page allocator with
    /// reclaim. `None`: the caller must wait, or, in the first round, fail.
    pub fn page(&mut self, round: Round) -> Option<Page> {
        if round != Round::Woken
            && let Some(page) = self.weak_page()
        {
            return Some(page);
        }
        if round == Round::AtOnce {
            return None;
        }
        self.step = self.step.max(AllocationStep::Reclaim);
        match self.alloc(0, Effort::Reclaim) {
            Some(page) => Some(page),
            None => self.reserve_page(),
        }
    }

    fn weak_page(&mut self) -> Option<Page> {
        match self.alloc(0, Effort::NoWait) {
            Some(page) => Some(page),
            None => self.reserve_page(),
        }
    }

    /// Asks the page allocator for one block, if the limit permits.
    pub fn alloc(&mut self, order: u8, effort: Effort) -> Option<Page> {
        let pages = 1 << order;
        if self.holdings.counts(order) && self.left() < pages {
            self.counters.limit_refusals += 1;
            return None;
        }
        match order {
            0 => self.counters.single_calls += 1,
            _ => self.counters.block_calls += 1,
        }
        let Some(first) = self.source.alloc(order, effort) else {
            self.counters.short_calls += 1;
            return None;
        };
        self.took(pages, self.holdings.counts(order));
        Some(first)
    }

    /// One bulk call for up to `count` pages, as many as the limit permits.
    pub fn bulk(&mut self, count: u32, effort: Effort, consumer: &mut Consumer<'_>) -> u32 {
        let allowed = count.min(self.left());
        self.counters.limit_refusals += u64::from(allowed < count);
        if allowed == 0 {
            return 0;
        }
        self.counters.bulk_calls += 1;
        let given = self.source.alloc_bulk(allowed, effort, consumer);
        assert!(given <= allowed, "a source gives no more than it was asked for");
        self.counters.short_calls += u64::from(given < allowed);
        self.took(given, true);
        given
    }

    /// Takes one page from the reserve.
    pub fn reserve_page(&mut self) -> Option<Page> {
        let page = self.holdings.reserve.pop()?;
        self.drew(1);
        Some(page)
    }

    /// Takes all missing pages of the bio from the reserve, or none.
    pub fn reserve_pages(&mut self, pages: &mut BioPages) {
        let missing = pages.missing();
        let there = self.holdings.reserve.len();
        let Some(rest) = there.checked_sub(missing as usize) else { return };
        for page in self.holdings.reserve.drain(rest..) {
            pages.push(Segment::single(page));
        }
        self.drew(missing);
    }

    /// Notes a second request to the page allocator, with permission to reclaim.
    pub(super) fn reclaims(&mut self) {
        self.step = self.step.max(AllocationStep::Reclaim);
    }

    /// Returns a segment: to the reserve while that is not full.
    pub(super) fn give_back(&mut self, segment: Segment) {
        if segment.order == 0 && self.holdings.reserve_used() > 0 {
            self.holdings.reserve.push(segment.first);
            return;
        }
        self.counters.frees += 1;
        self.holdings.held -= segment.pages();
        if self.holdings.counts(segment.order) {
            self.holdings.counted -= segment.pages();
        }
        self.source.free(segment.first, segment.order);
    }

    /// Number of pages up to the limit.
    fn left(&self) -> u32 {
        self.holdings.limit.saturating_sub(self.holdings.counted)
    }

    fn took(&mut self, pages: u32, counts: bool) {
        self.counters.source_pages += u64::from(pages);
        self.holdings.held += pages;
        if counts {
            self.holdings.counted += pages;
        }
    }

    fn drew(&mut self, pages: u32) {
        self.step = self.step.max(AllocationStep::Reserve);
        self.counters.reserve_pages += u64::from(pages);
        let used = self.holdings.reserve_used();
        self.counters.reserve_used_max = self.counters.reserve_used_max.max(used);
    }
}
