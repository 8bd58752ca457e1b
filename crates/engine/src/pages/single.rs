//! `single`: one call per page, as in dm-crypt from 4.0 to 6.4.
//!
//! A bio of 1 MiB calls the page allocator 256 times. The first round never waits and returns all
//! pages on failure. The second round, as the only waiter, takes page after page from the mempool
//! and waits when it is empty (commit 7145c241a1bf).

use alloc::boxed::Box;

use super::source::Segment;
use super::{AllocatorType, BioPages, FromReserve, Gather, Pool, Round};

/// The allocator's type.
pub static SINGLE: AllocatorType = AllocatorType {
    name: "single",
    about: "one page per call, as in dm-crypt before 6.5",
    from_reserve: FromReserve::PageByPage,
    attach: |_| Box::new(Single),
};

struct Single;

impl Gather for Single {
    fn gather(&mut self, round: Round, pages: &mut BioPages, pool: &mut Pool<'_>) {
        page_by_page(round, pages, pool);
    }
}

/// Takes pages from the mempool until it is empty or none is missing.
pub(super) fn page_by_page(mut round: Round, pages: &mut BioPages, pool: &mut Pool<'_>) {
    while pages.missing() > 0
        && let Some(page) = pool.page(round)
    {
        pages.push(Segment::single(page));
        // Only the first page has been tried before the wake-up.
        if round == Round::Woken {
            round = Round::MayWait;
        }
    }
}
