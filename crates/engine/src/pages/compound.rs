//! `compound`: few compound pages of falling order, then single ones: the counter-proposal of 2023,
//! and what dm-crypt does since 6.5.
//!
//! The order starts at what the bio needs, and never rises again within a round: where no block of
//! an order was free the next one is not looked for. 100 pages are 64, 32 and 4. The second round
//! takes single pages only. A compound page is freed as a whole and never goes to the reserve.
//!
//! Until 6.7 (commit 9793c269da6c) compound pages did not count towards the limit, so that a client
//! could take all memory: `accounting=off`. Blocks are asked for without reclaim; what else
//! compaction would cost is seen with `compaction=on`.

use alloc::boxed::Box;

use super::single::page_by_page;
use super::source::{Effort, Segment};
use super::{AllocatorType, BioPages, FromReserve, Gather, ORDER_MAX, Pool, Round};

/// Compound pages.
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
    /// How blocks are asked for.
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
    /// Blocks, until no order above zero is left.
    fn blocks(&self, pages: &mut BioPages, pool: &mut Pool<'_>) {
        let mut order = ORDER_MAX;
        while pages.missing() > 1 {
            // Below 11, because the order was.
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
