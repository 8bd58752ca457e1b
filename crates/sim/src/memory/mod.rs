//! A model of the kernel's page allocator (`mm/page_alloc.c`): costs and failures of allocations.
//!
//! Zones with a buddy system each, per-CPU lists of single pages and small blocks, watermarks,
//! reclaim, compaction; other users' pages that fragment or fill memory; injected failures. Every
//! call adds its cost to a meter: [`PhysicalMemory::take_spent`].
//!
//! ```text
//!   alloc ─ watermark? ─yes─> list of this CPU ─ empty? ─> zone lock, a batch from the buddies
//!             └no─> may reclaim? ─yes─> compaction (blocks), reclaim, drain, once more
//!                        └no─> None
//! ```
//!
//! Left out: migrate types, NUMA, highatomic reserves, the background reclaim thread, and the lower
//! of two watermarks, which a single non-waiting call may use and a bulk call never does.
//!
//! A bulk call looks for a zone with *all* its pages above the watermark. Without one, or for a
//! single page, it becomes a call for one page, which may reclaim (`__alloc_pages_bulk`, unchanged
//! since its introduction in 5.13).

mod costs;
mod others;
mod shared;
#[cfg(test)]
mod tests;
mod zone;

use std::collections::BTreeSet;

use blockyard_engine::pages::{Consumer, Effort, ORDER_MAX, Page, PageSource};
use blockyard_engine::time::Nanos;
use blockyard_workload::random::Random;

use crate::fault::chance;

pub use costs::Costs;
pub use shared::SharedMemory;
pub use zone::ListSizes;
use zone::{Meter, Zone};

/// One zone of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneConfig {
    /// Size in pages.
    pub pages: u32,
    /// Pages that no call may take (`WMARK_LOW`).
    pub watermark_pages: u32,
}

/// Injected failures of calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocFaults {
    /// Numbers of failing calls, counted from 0.
    pub calls: BTreeSet<u64>,
    /// Random failures per thousand calls; a failing bulk call returns some of its pages.
    pub per_mille: u32,
    /// Only calls of at least this order fail; bulk calls have order 0.
    pub order_min: u8,
}

/// Parameters of a memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// Zones in the order of attempts.
    pub zones: Vec<ZoneConfig>,
    /// Number of CPUs with lists.
    pub cpus: usize,
    /// Sizes of the lists.
    pub lists: ListSizes,
    /// Costs.
    pub costs: Costs,
    /// Injected failures.
    pub faults: AllocFaults,
    /// Seed of the failures.
    pub seed: u64,
}

impl MemoryConfig {
    /// One zone without a watermark, one CPU, no faults, default costs.
    #[must_use]
    pub fn of_pages(pages: u32) -> Self {
        Self {
            zones: vec![ZoneConfig { pages, watermark_pages: 0 }],
            cpus: 1,
            lists: ListSizes { batch_pages: 63, high_pages: 1024 },
            costs: Costs::default(),
            faults: AllocFaults::default(),
            seed: 0,
        }
    }
}

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryCounters {
    /// Allocation calls.
    pub calls: u64,
    /// Injected failures.
    pub faults: u64,
    /// Acquisitions of zone locks.
    pub zone_locks: u64,
    /// Refills of empty lists.
    pub list_refills: u64,
    /// Drains of lists.
    pub list_drains: u64,
    /// Splits, merges, and inspected orders.
    pub buddy_steps: u64,
    /// Direct reclaims.
    pub reclaims: u64,
    /// Started compactions.
    pub compactions: u64,
    /// Pages moved by compaction.
    pub pages_moved: u64,
}

/// Owner of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// Free, on a list, or held by a caller.
    Nobody,
    /// Another user's page that only compaction moves.
    Pinned,
    /// Another user's clean page that reclaim drops.
    Cached,
}

/// The memory of a simulated machine.
#[derive(Debug)]
pub struct PhysicalMemory {
    zones: Vec<Zone>,
    /// Owners by page.
    owners: Vec<Owner>,
    /// Pages of [`Owner::Cached`], the most recent last.
    cached: Vec<u32>,
    /// Position of the last compaction.
    scanner: u32,
    cpu: usize,
    costs: Costs,
    faults: AllocFaults,
    random: Random,
    meter: Meter,
}

impl PhysicalMemory {
    /// A memory with all pages free.
    ///
    /// # Panics
    /// There is no zone or CPU, or the zones have 2^32 pages.
    #[must_use]
    pub fn new(config: MemoryConfig) -> Self {
        assert!(!config.zones.is_empty() && config.cpus > 0);
        let mut zones = Vec::new();
        let mut first = 0u32;
        for ZoneConfig { pages, watermark_pages } in config.zones {
            zones.push(Zone::new(first, pages, watermark_pages, config.cpus, config.lists));
            // Aligns blocks across zones too.
            first = first.checked_add(pages.next_multiple_of(1 << ORDER_MAX)).expect("32 bits");
        }
        Self {
            zones,
            owners: vec![Owner::Nobody; first as usize],
            cached: Vec::new(),
            scanner: 0,
            cpu: 0,
            costs: config.costs,
            faults: config.faults,
            random: Random::new(config.seed, 0),
            meter: Meter::default(),
        }
    }

    /// Sets the CPU of later calls.
    ///
    /// # Panics
    /// The CPU does not exist.
    pub fn run_on(&mut self, cpu: usize) {
        assert!(cpu < self.zones[0].cpus(), "a CPU of this machine");
        self.cpu = cpu;
    }

    /// Takes the cost of calls since the last take.
    pub fn take_spent(&mut self) -> Nanos {
        std::mem::take(&mut self.meter.spent)
    }

    /// Counters.
    #[must_use]
    pub fn counters(&self) -> &MemoryCounters {
        &self.meter.counters
    }

    /// Number of free pages, including those on per-CPU lists.
    #[must_use]
    pub fn free_pages(&self) -> u32 {
        self.zones.iter().map(|zone| zone.buddy.free_pages() + zone.listed_pages()).sum()
    }

    /// The largest order with a free block.
    #[must_use]
    pub fn order_free_max(&self) -> Option<u8> {
        self.zones.iter().filter_map(|zone| zone.buddy.order_free_max()).max()
    }

    /// Sets the failures of later calls.
    pub fn set_faults(&mut self, faults: AllocFaults) {
        self.faults = faults;
    }

    fn zone_of(&self, page: u32) -> usize {
        self.zones.iter().position(|zone| zone.contains(page)).expect("a page of this memory")
    }

    /// Whether this call fails, and whether completely.
    fn fault(&mut self, order: u8) -> Option<bool> {
        let call = self.meter.counters.calls;
        self.meter.counters.calls += 1;
        if order < self.faults.order_min {
            return None;
        }
        let named = self.faults.calls.contains(&call);
        if named || chance(&mut self.random, self.faults.per_mille) {
            self.meter.counters.faults += 1;
            return Some(named);
        }
        None
    }

    /// Takes a block from the first zone whose watermark allows it.
    fn fast(&mut self, order: u8) -> Option<Page> {
        for zone in &mut self.zones {
            if zone.allows(1 << order)
                && let Some(page) = zone.take(order, self.cpu, &self.costs, &mut self.meter)
            {
                return Some(Page(page));
            }
        }
        None
    }

    /// Takes a block after making room.
    fn slow(&mut self, order: u8) -> Option<Page> {
        if order > 0
            && let Some(page) = self.compact(order)
        {
            return Some(page);
        }
        if self.reclaim() == 0 {
            for zone in &mut self.zones {
                zone.drain(&self.costs, &mut self.meter);
            }
        }
        self.fast(order)
    }

    fn alloc_called(&mut self, order: u8, effort: Effort) -> Option<Page> {
        self.meter.charge(self.costs.call);
        let page = match (self.fast(order), effort) {
            (None, Effort::Reclaim) => self.slow(order),
            (found, _) => found,
        }?;
        let tails = (1u64 << order) - 1;
        self.meter.charge(self.costs.prepare + Nanos(self.costs.tail.0 * tails));
        Some(page)
    }

    /// The rest of a bulk call without a suitable zone (`failed:` in `__alloc_pages_bulk`).
    fn one_to(&mut self, consumer: &mut Consumer<'_>, effort: Effort) -> u32 {
        let Some(page) = self.alloc_called(0, effort) else { return 0 };
        self.meter.charge(self.to_consumer(consumer));
        consumer.take(page);
        1
    }

    fn to_consumer(&self, consumer: &Consumer<'_>) -> Nanos {
        match consumer {
            Consumer::List(_) => self.costs.to_list,
            Consumer::Array(_) => self.costs.to_array,
            Consumer::Callback(_) => self.costs.to_callback,
        }
    }
}

impl PageSource for PhysicalMemory {
    fn alloc(&mut self, order: u8, effort: Effort) -> Option<Page> {
        if self.fault(order).is_some() {
            self.meter.charge(self.costs.call);
            return None;
        }
        self.alloc_called(order, effort)
    }

    fn alloc_bulk(&mut self, count: u32, effort: Effort, consumer: &mut Consumer<'_>) -> u32 {
        let wanted = match self.fault(0) {
            None => count,
            Some(true) => 0,
            Some(false) => u32::try_from(self.random.below(u64::from(count))).expect("below a u32"),
        };
        // Like in the kernel, a call for one page is a single-page call.
        if wanted == 1 {
            return self.one_to(consumer, effort);
        }
        self.meter.charge(self.costs.call);
        let each = self.costs.prepare + self.to_consumer(consumer);
        let Some(zone) = self.zones.iter_mut().find(|zone| zone.allows(wanted)) else {
            return self.one_to(consumer, effort);
        };
        for given in 0..wanted {
            let Some(page) = zone.take(0, self.cpu, &self.costs, &mut self.meter) else {
                return given;
            };
            self.meter.charge(each);
            consumer.take(Page(page));
        }
        wanted
    }

    /// Memory is shared with the whole machine.
    fn is_shared(&self) -> bool {
        true
    }

    fn free(&mut self, first: Page, order: u8) {
        let tails = (1u64 << order) - 1;
        self.meter.charge(self.costs.free + Nanos(self.costs.tail.0 * tails));
        let zone = self.zone_of(first.0);
        self.zones[zone].put(first.0, order, self.cpu, &self.costs, &mut self.meter);
    }
}
