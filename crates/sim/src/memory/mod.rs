//! A model of the kernel's page allocator (`mm/page_alloc.c`), for what an allocation costs and
//! when it fails.
//!
//! Zones with a buddy system each, lists of single pages and small blocks before it for every CPU,
//! watermarks, reclaim, compaction; pages of others that split memory or fill it; calls that fail
//! because a test says so. Every call adds to a meter what it took: [`PhysicalMemory::take_spent`].
//!
//! ```text
//!   alloc ─ watermark? ─yes─> list of this CPU ─ empty? ─> zone lock, a batch from the buddies
//!             └no─> may reclaim? ─yes─> compaction (blocks), reclaim, drain, once more
//!                        └no─> None
//! ```
//!
//! Left out: migrate types, NUMA, highatomic reserves, the background reclaim thread, and the lower
//! of two watermarks: a single call that may not wait goes down to it, a bulk call never does.
//!
//! A bulk call looks for a zone that has *all* its pages above the watermark. If there is none, or
//! one page is wanted, it becomes the call for a single page, which may reclaim
//! (`__alloc_pages_bulk`: the same from 5.13 on, when it came).

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
    /// Its size.
    pub pages: u32,
    /// Pages that no call may take (`WMARK_LOW`).
    pub watermark_pages: u32,
}

/// Calls that fail although there are pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocFaults {
    /// These calls give nothing, counted from 0.
    pub calls: BTreeSet<u64>,
    /// So many of a thousand calls fail; a bulk call gives some of its pages then.
    pub per_mille: u32,
    /// Only calls for at least this order fail; bulk calls are of order 0.
    pub order_min: u8,
}

/// What a memory is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// The first one is tried first.
    pub zones: Vec<ZoneConfig>,
    /// How many CPUs have lists.
    pub cpus: usize,
    /// How long these are.
    pub lists: ListSizes,
    /// What work takes.
    pub costs: Costs,
    /// Calls that fail.
    pub faults: AllocFaults,
    /// Of the faults.
    pub seed: u64,
}

impl MemoryConfig {
    /// One zone without a watermark, one CPU, no faults, costs as they are.
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

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryCounters {
    /// Calls that ask for pages.
    pub calls: u64,
    /// Calls that failed because a test says so.
    pub faults: u64,
    /// Times that a zone's lock was taken.
    pub zone_locks: u64,
    /// Lists that were empty and filled.
    pub list_refills: u64,
    /// Lists that were full, or were wanted, and emptied.
    pub list_drains: u64,
    /// Splits, merges, and orders looked at.
    pub buddy_steps: u64,
    /// Direct reclaims.
    pub reclaims: u64,
    /// Compactions begun.
    pub compactions: u64,
    /// Pages that they moved.
    pub pages_moved: u64,
}

/// Whose a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// Free, on a list, or with whoever called.
    Nobody,
    /// Somebody else's; only compaction moves it.
    Pinned,
    /// Somebody else's, clean: reclaim drops it.
    Cached,
}

/// The memory of a simulated machine.
#[derive(Debug)]
pub struct PhysicalMemory {
    zones: Vec<Zone>,
    /// By page.
    owners: Vec<Owner>,
    /// Pages of [`Owner::Cached`], the one taken last at the end.
    cached: Vec<u32>,
    /// Where compaction looked last.
    scanner: u32,
    cpu: usize,
    costs: Costs,
    faults: AllocFaults,
    random: Random,
    meter: Meter,
}

impl PhysicalMemory {
    /// All of it free.
    ///
    /// # Panics
    /// Without a zone or a CPU, or when the zones have 2^32 pages.
    #[must_use]
    pub fn new(config: MemoryConfig) -> Self {
        assert!(!config.zones.is_empty() && config.cpus > 0);
        let (mut zones, mut first) = (Vec::new(), 0u32);
        for ZoneConfig { pages, watermark_pages } in config.zones {
            zones.push(Zone::new(first, pages, watermark_pages, config.cpus, config.lists));
            // So that blocks are aligned across zones too.
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

    /// Calls are made on this CPU from now on.
    ///
    /// # Panics
    /// When there is no such CPU.
    pub fn run_on(&mut self, cpu: usize) {
        assert!(cpu < self.zones[0].cpus(), "a CPU of this machine");
        self.cpu = cpu;
    }

    /// The time that calls took since this was asked last.
    pub fn take_spent(&mut self) -> Nanos {
        std::mem::take(&mut self.meter.spent)
    }

    /// Figures.
    #[must_use]
    pub fn counters(&self) -> &MemoryCounters {
        &self.meter.counters
    }

    /// Free pages, those on the lists of CPUs included.
    #[must_use]
    pub fn free_pages(&self) -> u32 {
        self.zones.iter().map(|zone| zone.buddy.free_pages() + zone.listed_pages()).sum()
    }

    /// The largest order of which a block is free.
    #[must_use]
    pub fn order_free_max(&self) -> Option<u8> {
        self.zones.iter().filter_map(|zone| zone.buddy.order_free_max()).max()
    }

    /// Calls fail like this from now on.
    pub fn set_faults(&mut self, faults: AllocFaults) {
        self.faults = faults;
    }

    fn zone_of(&self, page: u32) -> usize {
        self.zones.iter().position(|zone| zone.has(page)).expect("a page of this memory")
    }

    /// Whether this call fails, and whether wholly.
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

    /// A block from the first zone whose watermark allows it.
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

    /// The same after making room.
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

    /// What remains of a bulk call that finds no zone with so many pages above its watermark
    /// (`failed:` in `__alloc_pages_bulk`).
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
        // As in the kernel: for one page the call is that for one page.
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

    /// With all else that runs on the machine.
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
