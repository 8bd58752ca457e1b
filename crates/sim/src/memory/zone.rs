//! One zone: its buddy system under a lock, and the per-CPU lists in front.
//!
//! Blocks up to order 3 come from a list of the calling CPU and return there. An empty list is
//! filled with a batch under one hold of the lock, a full one returns a batch. Larger blocks take
//! the lock each time. Pages on lists do not count as free.

use blockyard_engine::pages::buddy::Buddy;
use blockyard_engine::time::Nanos;

use super::{Costs, MemoryCounters};

/// The largest order that has lists (`PAGE_ALLOC_COSTLY_ORDER`).
pub(super) const LIST_ORDER_MAX: u8 = 3;

/// Work done, and its cost.
#[derive(Debug, Default)]
pub(super) struct Meter {
    pub(super) spent: Nanos,
    pub(super) counters: MemoryCounters,
}

impl Meter {
    pub(super) fn charge(&mut self, cost: Nanos) {
        self.spent = self.spent + cost;
    }

    fn steps(&mut self, costs: &Costs, steps: u8) {
        self.counters.buddy_steps += u64::from(steps);
        self.charge(Nanos(costs.buddy_step.0 * u64::from(steps)));
    }

    fn lock(&mut self, costs: &Costs) {
        self.counters.zone_locks += 1;
        self.charge(costs.lock + costs.contention);
    }
}

/// Blocks kept by one CPU.
#[derive(Clone, Debug, Default)]
struct CpuLists {
    /// By order; the block freed last is taken first.
    blocks: [Vec<u32>; LIST_ORDER_MAX as usize + 1],
    pages: u32,
}

/// Sizes of per-CPU lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListSizes {
    /// Pages per refill and drain of a list (63 in the kernel).
    pub batch_pages: u32,
    /// Limit of kept pages. The mail reports more than 1000 for its machine.
    pub high_pages: u32,
}

#[derive(Debug)]
pub(super) struct Zone {
    pub(super) buddy: Buddy,
    /// Number of its first page.
    pub(super) first: u32,
    /// Minimum of free pages after a call.
    pub(super) watermark_pages: u32,
    lists: Vec<CpuLists>,
    sizes: ListSizes,
}

impl Zone {
    pub(super) fn new(
        first: u32,
        pages: u32,
        watermark: u32,
        cpus: usize,
        sizes: ListSizes,
    ) -> Self {
        let lists = vec![CpuLists::default(); cpus];
        Self { buddy: Buddy::new(pages), first, watermark_pages: watermark, lists, sizes }
    }

    pub(super) fn cpus(&self) -> usize {
        self.lists.len()
    }

    pub(super) fn contains(&self, page: u32) -> bool {
        page.checked_sub(self.first).is_some_and(|place| place < self.buddy.pages())
    }

    /// Whether this many pages may be taken.
    pub(super) fn allows(&self, pages: u32) -> bool {
        u64::from(self.buddy.free_pages()) >= u64::from(self.watermark_pages) + u64::from(pages)
    }

    /// Number of pages on per-CPU lists.
    pub(super) fn listed_pages(&self) -> u32 {
        self.lists.iter().map(|lists| lists.pages).sum()
    }

    pub(super) fn take(
        &mut self,
        order: u8,
        cpu: usize,
        costs: &Costs,
        meter: &mut Meter,
    ) -> Option<u32> {
        if order > LIST_ORDER_MAX {
            meter.lock(costs);
            return self.cut(order, costs, meter).map(|first| self.first + first);
        }
        if self.lists[cpu].blocks[usize::from(order)].is_empty() {
            self.fill(order, cpu, costs, meter);
        }
        let lists = &mut self.lists[cpu];
        let first = lists.blocks[usize::from(order)].pop()?;
        lists.pages -= 1 << order;
        meter.charge(costs.take);
        Some(self.first + first)
    }

    /// Takes a block from the buddy system.
    fn cut(&mut self, order: u8, costs: &Costs, meter: &mut Meter) -> Option<u32> {
        let Some((first, from)) = self.buddy.alloc(order) else {
            meter.steps(costs, blockyard_engine::pages::ORDER_MAX - order + 1);
            return None;
        };
        // Inspected orders, and splits.
        meter.steps(costs, 2 * (from - order));
        Some(first)
    }

    fn fill(&mut self, order: u8, cpu: usize, costs: &Costs, meter: &mut Meter) {
        meter.lock(costs);
        meter.counters.list_refills += 1;
        for _ in 0..(self.sizes.batch_pages >> order).max(1) {
            let Some(first) = self.cut(order, costs, meter) else { break };
            let lists = &mut self.lists[cpu];
            lists.blocks[usize::from(order)].push(first);
            lists.pages += 1 << order;
        }
        // The first block was cut first: adjacent blocks are given out in order.
        self.lists[cpu].blocks[usize::from(order)].reverse();
    }

    pub(super) fn put(
        &mut self,
        page: u32,
        order: u8,
        cpu: usize,
        costs: &Costs,
        meter: &mut Meter,
    ) {
        let first = page - self.first;
        if order > LIST_ORDER_MAX {
            meter.lock(costs);
            self.join(first, order, costs, meter);
            return;
        }
        let lists = &mut self.lists[cpu];
        lists.blocks[usize::from(order)].push(first);
        lists.pages += 1 << order;
        meter.charge(costs.take);
        if lists.pages > self.sizes.high_pages {
            self.empty(cpu, self.sizes.batch_pages, costs, meter);
        }
    }

    fn join(&mut self, first: u32, order: u8, costs: &Costs, meter: &mut Meter) {
        let merged = self.buddy.free(first, order);
        meter.steps(costs, merged - order);
    }

    /// Returns at least `pages` pages of this CPU to the buddy system, large blocks first, oldest
    /// first.
    fn empty(&mut self, cpu: usize, pages: u32, costs: &Costs, meter: &mut Meter) {
        meter.lock(costs);
        meter.counters.list_drains += 1;
        let mut left = pages;
        for order in (0..=LIST_ORDER_MAX).rev() {
            let lists = &mut self.lists[cpu];
            let blocks = &mut lists.blocks[usize::from(order)];
            let count = (left.div_ceil(1 << order) as usize).min(blocks.len());
            let given: Vec<u32> = blocks.drain(..count).collect();
            let given_pages = u32::try_from(count << order).expect("part of a zone");
            lists.pages -= given_pages;
            left = left.saturating_sub(given_pages);
            for first in given {
                self.join(first, order, costs, meter);
            }
        }
    }

    /// Returns all lists of all CPUs (`drain_all_pages`).
    pub(super) fn drain(&mut self, costs: &Costs, meter: &mut Meter) {
        for cpu in 0..self.lists.len() {
            if self.lists[cpu].pages > 0 {
                self.empty(cpu, u32::MAX, costs, meter);
            }
        }
    }
}
