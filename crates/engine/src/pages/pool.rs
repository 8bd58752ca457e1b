//! The reserve, the limit, and the way through them to a page (`mempool_alloc`).
//!
//! The page allocator is asked *first*; the reserve is what remains when it says no. A page that
//! comes back fills the reserve before it goes to the page allocator. All pages that a client
//! holds, its reserve included, count towards its limit. At the limit the page allocator is not
//! asked, so that a client lives from its reserve: that is back-pressure, and no error. (The bulk
//! proposal of 2023 filled its reserve without counting it; here one rule is for all.)

use alloc::vec::Vec;

use super::counters::{Counters, Step};
use super::source::{Consumer, Effort, Page, PageSource, Segment};
use super::{BIO_PAGES_MAX, BioPages, Round};

/// A client has at least so many bios' worth of pages (`DM_CRYPT_MIN_PAGES_PER_CLIENT`).
const CLIENT_BIOS_MIN: u32 = 16;
/// All clients together may have this much of memory (`DM_CRYPT_MEMORY_PERCENT`).
const MEMORY_PERCENT: u64 = 2;

/// The limit of each of `clients` in a memory of so many pages. To be asked again, and set with
/// [`super::Allocator::set_limit`], whenever a client comes or goes.
#[must_use]
pub fn pages_per_client(memory_pages: u64, clients: u32) -> u32 {
    let share = memory_pages.saturating_mul(MEMORY_PERCENT) / 100 / u64::from(clients.max(1));
    u32::try_from(share).unwrap_or(u32::MAX).max(CLIENT_BIOS_MIN * BIO_PAGES_MAX)
}

/// What a client has.
#[derive(Debug)]
pub(super) struct Holdings {
    /// LIFO.
    pub(super) reserve: Vec<Page>,
    /// How many pages the reserve has when it is full (`min_nr`).
    pub(super) reserve_pages: u32,
    /// What counts towards the limit.
    pub(super) counted: u32,
    /// What it has from the page allocator in truth.
    pub(super) held: u32,
    pub(super) limit: u32,
    /// Compound pages count as what they are. Without it they do not count at all.
    pub(super) counts_blocks: bool,
}

impl Holdings {
    fn counts(&self, order: u8) -> bool {
        order == 0 || self.counts_blocks
    }

    /// Fewer than the reserve is to have are there.
    pub(super) fn reserve_used(&self) -> u32 {
        let there = u32::try_from(self.reserve.len()).expect("a reserve is counted in 32 bits");
        self.reserve_pages - there
    }
}

/// Memory, as an allocator sees it while it gathers pages for one bio.
pub struct Pool<'a> {
    pub(super) source: &'a mut dyn PageSource,
    pub(super) holdings: &'a mut Holdings,
    pub(super) counters: &'a mut Counters,
    /// How far this bio had to go.
    pub(super) step: Step,
}

impl Pool<'_> {
    /// A page: from the page allocator, or from the reserve, or from the page allocator when it
    /// reclaims; `None` is when the caller has to wait, or, in the first round, to give up.
    pub fn page(&mut self, round: Round) -> Option<Page> {
        if round != Round::Woken
            && let Some(page) = self.weak_page()
        {
            return Some(page);
        }
        if round == Round::AtOnce {
            return None;
        }
        self.step = self.step.max(Step::Reclaim);
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

    /// Asks the page allocator for one block, unless the limit is in the way.
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

    /// One bulk call for all of `count` that the limit allows.
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

    /// One page of the reserve.
    pub fn reserve_page(&mut self) -> Option<Page> {
        let page = self.holdings.reserve.pop()?;
        self.drew(1);
        Some(page)
    }

    /// All that the bio misses, or nothing.
    pub fn reserve_pages(&mut self, pages: &mut BioPages) {
        let missing = pages.missing();
        let there = self.holdings.reserve.len();
        let Some(rest) = there.checked_sub(missing as usize) else { return };
        for page in self.holdings.reserve.drain(rest..) {
            pages.push(Segment::single(page));
        }
        self.drew(missing);
    }

    /// A second request to the page allocator is made, with permission to reclaim.
    pub(super) fn reclaims(&mut self) {
        self.step = self.step.max(Step::Reclaim);
    }

    /// A segment comes back: to the reserve while that is not full.
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

    /// Pages up to the limit.
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
        self.step = self.step.max(Step::Reserve);
        self.counters.reserve_pages += u64::from(pages);
        let used = self.holdings.reserve_used();
        self.counters.reserve_used_max = self.counters.reserve_used_max.max(used);
    }
}
