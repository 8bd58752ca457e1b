//! One client's page allocation: rounds, waiters, and their order (`crypt_alloc_buffer`).
//!
//! Waiters are in one queue, oldest first. With the mutex only the first one takes pages, until it
//! has all. Without the mutex each waiter takes what it can when it parks, and a waiter that got a
//! page goes to the end of the queue: a deterministic form of the race between woken tasks. A new
//! bio does not overtake waiters, which the kernel allows.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;

use super::counters::{AllocationStep, Counters};
use super::pool::{Holdings, Pool};
use super::source::{BioPages, Effort, PageSource, Segment};
use super::{AllocatorSpec, FromReserve, Gather, Round};

/// Reserve and limit of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Pages in the reserve: those of the largest bio.
    pub reserve_pages: u32,
    /// Greatest number of pages, the reserve included: see [`super::pages_per_client`].
    pub limit_pages: u32,
}

/// The source has too few pages for a reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the page reserve needs {wanted} pages, but memory has {had}; choose a smaller reserve")]
pub struct OutOfPages {
    /// Pages of the reserve.
    pub wanted: u32,
    /// Pages available.
    pub had: u32,
}

/// The reason why a bio waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Other bios wait, and only one at a time may take pages.
    Mutex,
    /// The client is at its limit, and its reserve is used up.
    Limit,
    /// The page allocator has no page, and the reserve is used up.
    Memory,
}

/// Result of [`Allocator::get`].
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome<W> {
    /// The owner, with all its pages.
    Got(W, BioPages),
    /// The owner waits for [`Allocator::take_resumed`].
    Parked,
}

/// A bio without all its pages.
#[derive(Debug)]
struct Waiting<W> {
    who: W,
    pages: BioPages,
    why: Why,
}

/// Pages of one client. `W` is the owner of a wait: the part of a bio.
pub struct Allocator<W> {
    spec: AllocatorSpec,
    gather: Box<dyn Gather + Send>,
    holdings: Holdings,
    counters: Counters,
    waiters: VecDeque<Waiting<W>>,
    /// Owners that waited and have all their pages now.
    resumed: VecDeque<(W, BioPages)>,
    /// Reused lists of ended bios: after the first ones no list is allocated.
    lists: Vec<Vec<Segment>>,
    /// Number of bios with pages, including those in `resumed`.
    out: u32,
}

impl<W> Allocator<W> {
    /// A client with a full reserve, filled page by page.
    ///
    /// # Errors
    /// When the source has too few pages.
    pub fn new(
        spec: AllocatorSpec,
        sizes: Sizes,
        source: &mut dyn PageSource,
    ) -> Result<Self, OutOfPages> {
        let mut reserve = Vec::new();
        while reserve.len() < sizes.reserve_pages as usize {
            if let Some(page) = source.alloc(0, Effort::Reclaim) {
                reserve.push(page);
                continue;
            }
            let had = u32::try_from(reserve.len()).expect("fewer than the reserve");
            reserve.drain(..).for_each(|page| source.free(page, 0));
            return Err(OutOfPages { wanted: sizes.reserve_pages, had });
        }
        let holdings = Holdings {
            reserve,
            reserve_pages: sizes.reserve_pages,
            counted: sizes.reserve_pages,
            held: sizes.reserve_pages,
            limit: sizes.limit_pages,
            counts_blocks: spec.options.accounting,
        };
        Ok(Self {
            spec,
            gather: (spec.allocator.attach)(&spec.options),
            holdings,
            counters: Counters::default(),
            waiters: VecDeque::new(),
            resumed: VecDeque::new(),
            lists: Vec::new(),
            out: 0,
        })
    }

    /// Takes pages for a bio.
    ///
    /// # Panics
    /// When `wanted` is zero or exceeds the reserve: the bio could wait forever.
    pub fn get(&mut self, wanted: u32, who: W, source: &mut dyn PageSource) -> Outcome<W> {
        assert!(wanted > 0, "a bio has pages");
        assert!(wanted <= self.holdings.reserve_pages, "the reserve holds the largest bio");
        let mut pages = BioPages::new(wanted, self.lists.pop().unwrap_or_default());
        if self.is_serialised() && !self.waiters.is_empty() {
            self.counters.mutex_waits += 1;
            pages.went(AllocationStep::Wait);
            self.waiters.push_back(Waiting { who, pages, why: Why::Mutex });
            return Outcome::Parked;
        }
        if self.spec.allocator.from_reserve == FromReserve::PageByPage {
            self.gather(Round::AtOnce, &mut pages, source);
            if pages.missing() == 0 {
                return self.got(who, pages);
            }
            self.counters.second_rounds += 1;
            self.give_back(&mut pages, source);
        }
        let why = self.gather(Round::MayWait, &mut pages, source);
        if pages.missing() == 0 {
            return self.got(who, pages);
        }
        self.park(Waiting { who, pages, why });
        Outcome::Parked
    }

    /// Returns the pages of an ended bio. They may resume owners in [`Allocator::take_resumed`].
    pub fn put(&mut self, mut pages: BioPages, source: &mut dyn PageSource) {
        assert!(pages.missing() == 0, "a bio gives back what it got");
        self.out = self.out.checked_sub(1).expect("the bio had its pages from here");
        if self.is_serialised() {
            self.give_back(&mut pages, source);
            self.retry(source);
        } else {
            while let Some(segment) = pages.pop() {
                self.pool(source).give_back(segment);
                self.retry(source);
            }
        }
        self.lists.push(pages.into_list());
    }

    /// Lets waiters try again, oldest first, because the page allocator may have pages now. Call
    /// this every [`super::RETRY`] while there are waiters.
    pub fn retry(&mut self, source: &mut dyn PageSource) {
        while let Some(mut waiting) = self.waiters.pop_front() {
            let missing = waiting.pages.missing();
            let round = match waiting.why {
                Why::Mutex => Round::MayWait,
                Why::Limit | Why::Memory => Round::Woken,
            };
            let why = self.gather(round, &mut waiting.pages, source);
            if waiting.pages.missing() == 0 {
                self.finish(&waiting.pages);
                self.resumed.push_back((waiting.who, waiting.pages));
                continue;
            }
            if waiting.why == Why::Mutex {
                self.counters.page_waits += 1;
            }
            waiting.why = why;
            if !self.is_serialised() && waiting.pages.missing() < missing {
                self.waiters.push_back(waiting);
            } else {
                self.waiters.push_front(waiting);
            }
            return;
        }
    }

    /// The oldest resumed owner with its pages. Call this until it returns `None`, after
    /// [`Allocator::put`] and [`Allocator::retry`].
    pub fn take_resumed(&mut self) -> Option<(W, BioPages)> {
        self.resumed.pop_front()
    }

    /// Sets another limit, because clients came or went. No pages are taken away.
    pub fn set_limit(&mut self, limit_pages: u32, source: &mut dyn PageSource) {
        self.holdings.limit = limit_pages;
        self.retry(source);
    }

    /// Returns the reserve.
    ///
    /// # Panics
    /// When a bio has pages or waits for them.
    pub fn release(mut self, source: &mut dyn PageSource) {
        assert!(self.is_idle(), "all bios have ended");
        self.holdings.reserve.drain(..).for_each(|page| source.free(page, 0));
    }

    /// Returns all pages except those of bios. The client is gone, and its waiters are dropped.
    pub fn abandon(mut self, source: &mut dyn PageSource) {
        let waiting = self.waiters.drain(..).map(|waiting| waiting.pages);
        for pages in waiting.chain(self.resumed.drain(..).map(|(_, pages)| pages)) {
            pages.segments().iter().for_each(|segment| source.free(segment.first, segment.order));
        }
        self.holdings.reserve.drain(..).for_each(|page| source.free(page, 0));
    }

    /// Number of waiters.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.waiters.len()
    }

    /// Number of waiters for this reason.
    #[must_use]
    pub fn parked_for(&self, why: Why) -> usize {
        self.waiters.iter().filter(|waiting| waiting.why == why).count()
    }

    /// Whether the reserve is full and no bio has pages or waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.out == 0 && self.waiters.is_empty() && self.holdings.reserve_used() == 0
    }

    /// Actual number of pages from the source.
    #[must_use]
    pub fn held_pages(&self) -> u32 {
        self.holdings.held
    }

    /// Counted number of pages, which the limit applies to.
    #[must_use]
    pub fn counted_pages(&self) -> u32 {
        self.holdings.counted
    }

    /// Greatest number of pages.
    #[must_use]
    pub fn limit_pages(&self) -> u32 {
        self.holdings.limit
    }

    /// Number of pages in the reserve.
    #[must_use]
    pub fn reserve_left(&self) -> u32 {
        self.holdings.reserve_pages - self.holdings.reserve_used()
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The allocator's specification.
    #[must_use]
    pub fn spec(&self) -> &AllocatorSpec {
        &self.spec
    }

    /// Whether only one waiter at a time takes pages.
    fn is_serialised(&self) -> bool {
        self.spec.options.mutex || self.spec.allocator.from_reserve == FromReserve::AllAtOnce
    }

    fn pool<'a>(&'a mut self, source: &'a mut dyn PageSource) -> Pool<'a> {
        let holdings = &mut self.holdings;
        let counters = &mut self.counters;
        Pool { source, holdings, counters, step: AllocationStep::Allocator }
    }

    /// Takes pages; returns the reason for missing ones.
    fn gather(&mut self, round: Round, pages: &mut BioPages, source: &mut dyn PageSource) -> Why {
        let refusals = self.counters.limit_refusals;
        let holdings = &mut self.holdings;
        let counters = &mut self.counters;
        let mut pool = Pool { source, holdings, counters, step: AllocationStep::Allocator };
        self.gather.gather(round, pages, &mut pool);
        let step = pool.step;
        pages.went(step);
        if self.counters.limit_refusals > refusals { Why::Limit } else { Why::Memory }
    }

    fn give_back(&mut self, pages: &mut BioPages, source: &mut dyn PageSource) {
        let mut pool = self.pool(source);
        while let Some(segment) = pages.pop() {
            pool.give_back(segment);
        }
    }

    fn park(&mut self, mut waiting: Waiting<W>) {
        self.counters.page_waits += 1;
        waiting.pages.went(AllocationStep::Wait);
        self.waiters.push_back(waiting);
    }

    fn got(&mut self, who: W, pages: BioPages) -> Outcome<W> {
        self.finish(&pages);
        Outcome::Got(who, pages)
    }

    /// Counts a bio that has all its pages.
    fn finish(&mut self, pages: &BioPages) {
        self.out += 1;
        self.counters.bios += 1;
        self.counters.segments += pages.segments().len() as u64;
        self.counters.by_step.add(pages.step());
    }
}

impl<W> fmt::Debug for Allocator<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocator")
            .field("spec", &self.spec)
            .field("holdings", &self.holdings)
            .field("parked", &self.waiters.len())
            .finish_non_exhaustive()
    }
}
