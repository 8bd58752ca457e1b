//! The engine's view of memory: page numbers, and a world's page allocator.
//!
//! A [`PageSource`] is the page allocator of a world: pages of one region in the real one
//! (`host::pages`), a model with costs and failures in the simulated one (`sim::memory`). A failed
//! allocation returns `None` or fewer pages; there are no errors.

use alloc::vec::Vec;

use super::counters::AllocationStep;

/// Number of a page in its world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Page(pub u32);

/// Permission of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Take free pages only (`GFP_NOWAIT`).
    NoWait,
    /// Reclaim and compact, too, which takes time and may fail (`__GFP_DIRECT_RECLAIM` with
    /// `__GFP_NORETRY`).
    Reclaim,
}

/// A page allocator.
pub trait PageSource {
    /// Allocates a block of 2^`order` pages, contiguous and aligned to its size (`alloc_pages`).
    fn alloc(&mut self, order: u8, effort: Effort) -> Option<Page>;

    /// Allocates up to `count` single pages in one call (`alloc_pages_bulk`); returns their number.
    fn alloc_bulk(&mut self, count: u32, effort: Effort, consumer: &mut Consumer<'_>) -> u32;

    /// Whether the memory is shared with others: then pages may become free without a return by a
    /// client of this source.
    fn is_shared(&self) -> bool;

    /// Frees a block. Single pages of a bulk call are blocks of order 0.
    fn free(&mut self, first: Page, order: u8);
}

/// Destination of a bulk call's pages.
pub enum Consumer<'a> {
    /// A linked list, which the caller walks afterwards.
    List(&'a mut PageList),
    /// An array, after its present content; the caller reads it afterwards.
    Array(&'a mut Vec<Page>),
    /// A function of the caller; no container.
    Callback(&'a mut dyn FnMut(Page)),
}

impl Consumer<'_> {
    /// Takes one page.
    pub fn take(&mut self, page: Page) {
        match self {
            Self::List(list) => list.push(page),
            Self::Array(array) => array.push(page),
            Self::Callback(callback) => callback(page),
        }
    }
}

const END: u32 = u32::MAX;

/// Linked pages, the last one first, as the kernel links them through `struct page`.
#[derive(Debug)]
pub struct PageList {
    /// A page, and the index of the next one.
    links: Vec<(Page, u32)>,
    head: u32,
}

impl Default for PageList {
    fn default() -> Self {
        Self { links: Vec::new(), head: END }
    }
}

impl PageList {
    /// Adds a page at the front.
    pub fn push(&mut self, page: Page) {
        let place = u32::try_from(self.links.len()).expect("a list has the pages of one bio");
        self.links.push((page, self.head));
        self.head = place;
    }

    /// Removes the front page.
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

/// Contiguous pages: one `bio_vec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First page.
    pub first: Page,
    /// Order: there are 2^`order` pages.
    pub order: u8,
}

impl Segment {
    /// A segment of one page.
    #[must_use]
    pub fn single(page: Page) -> Self {
        Self { first: page, order: 0 }
    }

    /// Number of pages.
    #[must_use]
    pub fn pages(self) -> u32 {
        1 << self.order
    }
}

/// Pages of one bio, some of which may be missing.
#[derive(Debug, PartialEq, Eq)]
pub struct BioPages {
    segments: Vec<Segment>,
    wanted: u32,
    missing: u32,
    /// Last step of the allocation.
    step: AllocationStep,
}

impl BioPages {
    /// `wanted` pages, all missing. The list is cleared and reused.
    pub(super) fn new(wanted: u32, mut list: Vec<Segment>) -> Self {
        list.clear();
        Self { segments: list, wanted, missing: wanted, step: AllocationStep::Allocator }
    }

    /// Segments in the order of the bio's data.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Number of pages of the bio.
    #[must_use]
    pub fn wanted(&self) -> u32 {
        self.wanted
    }

    /// Number of missing pages.
    #[must_use]
    pub fn missing(&self) -> u32 {
        self.missing
    }

    /// Last step of the allocation.
    #[must_use]
    pub fn step(&self) -> AllocationStep {
        self.step
    }

    /// Adds a segment.
    ///
    /// # Panics
    /// When fewer pages are missing.
    pub fn push(&mut self, segment: Segment) {
        let pages = segment.pages();
        assert!(pages <= self.missing, "a bio takes no more pages than it needs");
        self.missing -= pages;
        self.segments.push(segment);
    }

    pub(super) fn went(&mut self, step: AllocationStep) {
        self.step = self.step.max(step);
    }

    /// Removes the last segment.
    pub(super) fn pop(&mut self) -> Option<Segment> {
        let segment = self.segments.pop()?;
        self.missing += segment.pages();
        Some(segment)
    }

    /// The list, for reuse by the next bio.
    pub(super) fn into_list(self) -> Vec<Segment> {
        assert!(self.missing == self.wanted, "the pages went back before their list");
        self.segments
    }
}
