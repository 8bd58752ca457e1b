//! `bulk-list`, `bulk-array`, `bulk-callback`: the mempool bulk allocation proposed in 2023.
//!
//! Four steps: one bulk call for all pages; missing ones from the reserve, page by page; both again
//! with permission to reclaim; wait, and repeat. Pages of earlier steps are kept. In the first
//! round dm-crypt forbids waiting, so only two steps remain.
//!
//! The three variants differ in the destination of a bulk call's pages. A list is linked and then
//! walked. An array is filled and then read (its content counts when the call is repeated). A
//! callback puts each page into the bio. The posted series has no mempool call for lists, for lack
//! of a user; here all three do the same four steps.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::source::{Consumer, Effort, Page, PageList, Segment};
use super::{AllocatorType, BioPages, FromReserve, Gather, Options, Pool, Round};

/// Type of the allocator with bulk calls to a list.
pub static BULK_LIST: AllocatorType = AllocatorType {
    name: "bulk-list",
    about: "all pages in one call, linked to a list (proposed in 2022)",
    from_reserve: FromReserve::PageByPage,
    attach: |_: &Options| Box::new(BulkList::default()),
};

/// Type of the allocator with bulk calls to an array.
pub static BULK_ARRAY: AllocatorType = AllocatorType {
    name: "bulk-array",
    about: "all pages in one call, into an array (proposed in 2023)",
    from_reserve: FromReserve::PageByPage,
    attach: |_: &Options| Box::new(BulkArray::default()),
};

/// Type of the allocator with bulk calls to a callback.
pub static BULK_CALLBACK: AllocatorType = AllocatorType {
    name: "bulk-callback",
    about: "all pages in one call, each passed to the bio (proposed in 2023)",
    from_reserve: FromReserve::PageByPage,
    attach: |_: &Options| Box::new(BulkCallback),
};

/// Steps one to three; three with permission to reclaim. The caller does the fourth, the wait.
fn steps(round: Round, pool: &mut Pool<'_>, mut once: impl FnMut(&mut Pool<'_>, Effort) -> bool) {
    if round != Round::Woken && once(pool, Effort::NoWait) {
        return;
    }
    if round != Round::AtOnce {
        pool.reclaims();
        once(pool, Effort::Reclaim);
    }
}

/// One bulk call, and the reserve. Returns whether `missing` pages were consumed.
fn bulk_then_reserve(
    missing: &mut u32,
    effort: Effort,
    pool: &mut Pool<'_>,
    consumer: &mut Consumer<'_>,
) -> bool {
    *missing -= pool.bulk(*missing, effort, consumer);
    while *missing > 0
        && let Some(page) = pool.reserve_page()
    {
        consumer.take(page);
        *missing -= 1;
    }
    *missing == 0
}

#[derive(Default)]
struct BulkList {
    list: PageList,
}

impl Gather for BulkList {
    fn gather(&mut self, round: Round, pages: &mut BioPages, pool: &mut Pool<'_>) {
        let mut missing = pages.missing();
        let mut consumer = Consumer::List(&mut self.list);
        steps(round, pool, |pool, effort| {
            bulk_then_reserve(&mut missing, effort, pool, &mut consumer)
        });
        while let Some(page) = self.list.pop() {
            pages.push(Segment::single(page));
        }
    }
}

#[derive(Default)]
struct BulkArray {
    array: Vec<Page>,
}

impl Gather for BulkArray {
    fn gather(&mut self, round: Round, pages: &mut BioPages, pool: &mut Pool<'_>) {
        let mut missing = pages.missing();
        let mut consumer = Consumer::Array(&mut self.array);
        steps(round, pool, |pool, effort| {
            bulk_then_reserve(&mut missing, effort, pool, &mut consumer)
        });
        for page in self.array.drain(..) {
            pages.push(Segment::single(page));
        }
    }
}

struct BulkCallback;

impl Gather for BulkCallback {
    fn gather(&mut self, round: Round, pages: &mut BioPages, pool: &mut Pool<'_>) {
        let mut missing = pages.missing();
        let mut add = |page| pages.push(Segment::single(page));
        let mut consumer = Consumer::Callback(&mut add);
        steps(round, pool, |pool, effort| {
            bulk_then_reserve(&mut missing, effort, pool, &mut consumer)
        });
    }
}
