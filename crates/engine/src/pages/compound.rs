//! `compound`: few compound pages of falling order, then single ones: the counter-proposal of 2023,
//! and dm-crypt's allocation since 6.5.
//!
//! The order starts at the bio's need, and never rises again within a round: an order without a
//! free block is not tried again. 100 pages are 64, 32 and 4. The second round takes single pages
//! only. A compound page is freed as a whole and never goes to the reserve.
//!
//! Until 6.7 (commit 9793c269da6c) compound pages did not count towards the limit, so that a client
//! could take all memory: `accounting=off`. Blocks are requested without reclaim; `compaction=on`
//! shows the cost of compaction.

use alloc::boxed::Box;

use super::single::page_by_page;
use super::source::{Effort, Segment};
use super::{AllocatorType, BioPages, FromReserve, Gather, ORDER_MAX, Pool, Round};

/// The allocator's type.
pub static COMPOUND: AllocatorType = AllocatorType {
    name: "compound",
    about: "few contiguous blocks of falling order, then single pages (dm-crypt since 6.5)",
    from_reserve: FromReserve::PageByPage,
    attach: |options| {
        let effort = if options.compaction { Effort::Reclaim } else { Effort::NoWait };
        Box::new(Compound { effort })
    },
};

struct Compound {
    /// Permission of block allocations.
    effort: Effort,
}

impl Gather for Compound {
    fn gather(&mut self, round: Round, pages: &mut BioPages, pool: &mut Pool<'_>) {
        if round == Round::AtOnce {
            self.blocks(pages, pool);
        }
        page_by_page(round, pages, pool);
    }
}

impl Compound {
    /// Takes blocks, until no order above zero is left.
    fn blocks(&self, pages: &mut BioPages, pool: &mut Pool<'_>) {
        let mut order = ORDER_MAX;
        while pages.missing() > 1 {
            // The result is below 11, because the order was.
            order = order.min(u8::try_from(pages.missing().ilog2()).expect("below 32"));
            while order > 0 {
                if let Some(first) = pool.alloc(order, self.effort) {
                    pages.push(Segment { first, order });
                    break;
                }
                pool.counters.order_drops += 1;
                order -= 1;
            }
            if order == 0 {
                return;
            }
        }
    }
}
