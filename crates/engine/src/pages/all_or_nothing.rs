//! `all-or-nothing`: bulk allocation, with all missing pages or none from the reserve, like the
//! kernel's generic `mempool_alloc_bulk` (late 2025).
//!
//! A waiter keeps pages from the page allocator, but never holds part of the reserve. So two
//! waiters cannot deadlock, and there is no first round and no mutex: the oldest waiter takes all
//! its pages as soon as the reserve has enough.

use alloc::boxed::Box;

use super::source::{Consumer, Effort, Segment};
use super::{AllocatorType, BioPages, FromReserve, Gather, Pool, Round};

/// The allocator's type.
pub static ALL_OR_NOTHING: AllocatorType = AllocatorType {
    name: "all-or-nothing",
    about: "all pages in one call; all missing pages or none from the reserve (as of 2025)",
    from_reserve: FromReserve::AllAtOnce,
    attach: |_| Box::new(AllOrNothing),
};

struct AllOrNothing;

impl Gather for AllOrNothing {
    fn gather(&mut self, round: Round, pages: &mut BioPages, pool: &mut Pool<'_>) {
        if round != Round::Woken {
            let missing = pages.missing();
            let mut add = |page| pages.push(Segment::single(page));
            pool.bulk(missing, Effort::NoWait, &mut Consumer::Callback(&mut add));
            from_both(Effort::NoWait, pages, pool);
        }
        if pages.missing() > 0 {
            pool.reclaims();
            from_both(Effort::Reclaim, pages, pool);
        }
    }
}

/// Takes page by page from the page allocator until it has none, then all missing pages from the
/// reserve.
fn from_both(effort: Effort, pages: &mut BioPages, pool: &mut Pool<'_>) {
    while pages.missing() > 0
        && let Some(page) = pool.alloc(0, effort)
    {
        pages.push(Segment::single(page));
    }
    if pages.missing() > 0 {
        pool.reserve_pages(pages);
    }
}
