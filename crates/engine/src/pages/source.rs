//! What the engine knows of memory: pages by number, and a world that has them.
//!
//! A [`PageSource`] is the page allocator of a world: pages of one region in the real one
//! (`host::pages`), a model with costs and failures in the simulated one (`sim::memory`). It says
//! *no* with `None` or with fewer pages; it has no errors.

use alloc::vec::Vec;

use super::counters::Step;

/// The number of a page in its world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Page(pub u32);

/// What a source may do to find a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Look at what is free (`GFP_NOWAIT`).
    NoWait,
    /// Also reclaim and compact, which takes time, and may still find nothing
    /// (`__GFP_DIRECT_RECLAIM` with `__GFP_NORETRY`).
    Reclaim,
}

/// Where pages come from.
pub trait PageSource {
    /// A block of 2^`order` pages, contiguous and aligned to its size (`alloc_pages`).
    fn alloc(&mut self, order: u8, effort: Effort) -> Option<Page>;

    /// Up to `count` single pages in one call (`alloc_pages_bulk`); says how many it handed over.
    fn alloc_bulk(&mut self, count: u32, effort: Effort, consumer: &mut Consumer<'_>) -> u32;

    /// Whether others use the same memory: then pages may come back that no client of the source
    /// has given back.
    fn is_shared(&self) -> bool;

    /// A block is free again. Single pages of a bulk call are blocks of order 0.
    fn free(&mut self, first: Page, order: u8);
}

/// Where a bulk call leaves its pages.
pub enum Consumer<'a> {
    /// Linked to a list, which the caller walks afterwards.
    List(&'a mut PageList),
    /// Behind what is in the array already; the caller reads it afterwards.
    Array(&'a mut Vec<Page>),
    /// Each handed to the caller's function, and kept nowhere.
    Callback(&'a mut dyn FnMut(Page)),
}

impl Consumer<'_> {
    /// Hands one page over.
    pub fn take(&mut self, page: Page) {
        match self {
            Self::List(list) => list.push(page),
            Self::Array(array) => array.push(page),
            Self::Callback(callback) => callback(page),
        }
    }
}

const END: u32 = u32::MAX;

/// Pages linked to each other, the last one first, as the kernel links them through `struct page`.
#[derive(Debug)]
pub struct PageList {
    /// A page, and the place of the next one.
    links: Vec<(Page, u32)>,
    head: u32,
}

impl Default for PageList {
    fn default() -> Self {
        Self { links: Vec::new(), head: END }
    }
}

impl PageList {
    /// Links a page in front.
    pub fn push(&mut self, page: Page) {
        let place = u32::try_from(self.links.len()).expect("a list has the pages of one bio");
        self.links.push((page, self.head));
        self.head = place;
    }

    /// Unlinks the page in front.
    pub fn pop(&mut self) -> Option<Page> {
        if self.head == END {
            self.links.clear();
            return None;
        }
        let (page, next) = self.links[self.head as usize];
        self.head = next;
        Some(page)
    }
}

/// Pages that lie behind each other: one `bio_vec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The first of them.
    pub first: Page,
    /// There are 2^`order`.
    pub order: u8,
}

impl Segment {
    /// One page.
    #[must_use]
    pub fn single(page: Page) -> Self {
        Self { first: page, order: 0 }
    }

    /// How many pages it has.
    #[must_use]
    pub fn pages(self) -> u32 {
        1 << self.order
    }
}

/// The pages of one bio, some of which may still be missing.
#[derive(Debug, PartialEq, Eq)]
pub struct BioPages {
    segments: Vec<Segment>,
    wanted: u32,
    missing: u32,
    /// How far it had to go.
    step: Step,
}

impl BioPages {
    /// `wanted` pages, none of which is there. The list is emptied and used.
    pub(super) fn new(wanted: u32, mut list: Vec<Segment>) -> Self {
        list.clear();
        Self { segments: list, wanted, missing: wanted, step: Step::Allocator }
    }

    /// In the order of the bio's data.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// How many pages the bio needs.
    #[must_use]
    pub fn wanted(&self) -> u32 {
        self.wanted
    }

    /// How many of them are not there.
    #[must_use]
    pub fn missing(&self) -> u32 {
        self.missing
    }

    /// How far it had to go for them.
    #[must_use]
    pub fn step(&self) -> Step {
        self.step
    }

    /// More of its pages.
    ///
    /// # Panics
    /// When it needs fewer.
    pub fn push(&mut self, segment: Segment) {
        let pages = segment.pages();
        assert!(pages <= self.missing, "a bio takes no more pages than it needs");
        self.missing -= pages;
        self.segments.push(segment);
    }

    pub(super) fn went(&mut self, step: Step) {
        self.step = self.step.max(step);
    }

    /// Takes a segment out again.
    pub(super) fn pop(&mut self) -> Option<Segment> {
        let segment = self.segments.pop()?;
        self.missing += segment.pages();
        Some(segment)
    }

    /// Its list, for the next bio.
    pub(super) fn into_list(self) -> Vec<Segment> {
        assert!(self.missing == self.wanted, "the pages went back before their list");
        self.segments
    }
}
