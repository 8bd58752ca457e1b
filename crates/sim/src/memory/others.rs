//! Other users of memory: pages that fragment it, pages that fill it, and their migration and
//! reclaim.
//!
//! [`PhysicalMemory::fragment`] places *pinned* pages; only compaction moves them. *Cached* pages
//! fill memory ([`PhysicalMemory::squeeze`]); reclaim drops them.

use blockyard_engine::pages::{ORDER_MAX, Page};
use blockyard_engine::time::Nanos;
use blockyard_workload::random::Random;

use super::{Owner, PhysicalMemory};
use crate::fault::chance;

/// Pages freed by one direct reclaim (`SWAP_CLUSTER_MAX`).
const RECLAIM_PAGES: u32 = 32;
/// Ranges scanned by one compaction. Ours.
const SCAN_RANGES_MAX: u32 = 16;

impl PhysicalMemory {
    /// Pins one page in `per_mille` of a thousand ranges of 2^`order` pages, so that these have no
    /// free block of that order or above. `seed` selects the pages.
    ///
    /// # Panics
    /// `order` is above the maximum.
    pub fn fragment(&mut self, order: u8, per_mille: u32, seed: u64) {
        assert!(order <= ORDER_MAX);
        let mut random = Random::new(seed, 1);
        for zone in 0..self.zones.len() {
            let start = self.zones[zone].first;
            let pages = self.zones[zone].buddy.pages();
            for range in (0..pages).step_by(1 << order) {
                if !chance(&mut random, per_mille) {
                    continue;
                }
                let offset = random.below(1 << order);
                let place = range + u32::try_from(offset).expect("below 1024");
                if place < pages && self.zones[zone].buddy.take(place) {
                    self.owners[(start + place) as usize] = Owner::Pinned;
                }
            }
        }
    }

    /// Other users take or return pages until this many are free above the watermarks. Drains the
    /// per-CPU lists first, like a full memory.
    pub fn squeeze(&mut self, usable_pages: u32) {
        for zone in &mut self.zones {
            zone.drain(&self.costs, &mut self.meter);
        }
        while self.usable_pages() > usable_pages {
            let Some(zone) = self.zones.iter().position(|zone| zone.allows(1)) else { return };
            let Some((place, _)) = self.zones[zone].buddy.alloc(0) else { return };
            let page = self.zones[zone].first + place;
            self.owners[page as usize] = Owner::Cached;
            self.cached.push(page);
        }
        while self.usable_pages() < usable_pages && self.drop_cached() {}
    }

    /// Number of free pages above the watermarks.
    #[must_use]
    pub fn usable_pages(&self) -> u32 {
        let usable =
            |zone: &super::zone::Zone| zone.buddy.free_pages().saturating_sub(zone.watermark_pages);
        self.zones.iter().map(usable).sum()
    }

    /// Drops some cached pages; returns their number.
    pub(super) fn reclaim(&mut self) -> u32 {
        self.meter.counters.reclaims += 1;
        self.meter.charge(self.costs.reclaim);
        let mut freed = 0;
        while freed < RECLAIM_PAGES && self.drop_cached() {
            freed += 1;
        }
        freed
    }

    /// Drops one cached page.
    fn drop_cached(&mut self) -> bool {
        let Some(page) = self.cached.pop() else { return false };
        assert!(self.owners[page as usize] == Owner::Cached, "nothing else moves cached pages");
        self.owners[page as usize] = Owner::Nobody;
        let zone = self.zone_of(page);
        let first = self.zones[zone].first;
        self.zones[zone].buddy.free(page - first, 0);
        true
    }

    /// Makes room for a block by moving pinned pages out of a range (`compact_zone`). The scan
    /// starts after the last scanned range.
    pub(super) fn compact(&mut self, order: u8) -> Option<Page> {
        self.meter.counters.compactions += 1;
        for zone in 0..self.zones.len() {
            let ranges = self.zones[zone].buddy.pages() >> order;
            for _ in 0..SCAN_RANGES_MAX.min(ranges) {
                self.meter.charge(self.costs.compact_scan);
                self.scanner = self.scanner.wrapping_add(1);
                let start = (self.scanner % ranges) << order;
                if let Some(page) = self.compact_range(zone, start, order) {
                    return Some(page);
                }
            }
        }
        None
    }

    fn compact_range(&mut self, zone: usize, start: u32, order: u8) -> Option<Page> {
        let first = self.zones[zone].first;
        let range = start..start + (1 << order);
        let buddy = &self.zones[zone].buddy;
        let pinned: Vec<u32> =
            range.clone().filter(|place| buddy.free_block(*place).is_none()).collect();
        let movable = |place: &u32| self.owners[(first + place) as usize] == Owner::Pinned;
        if !pinned.iter().all(movable) {
            return None;
        }
        // Moved pages need free pages: a range's worth is enough.
        if !self.zones[zone].allows(1 << order) {
            return None;
        }
        for place in range.clone() {
            self.zones[zone].buddy.take(place);
        }
        for place in pinned {
            let (target, _) = self.zones[zone].buddy.alloc(0).expect("counted before");
            self.owners[(first + place) as usize] = Owner::Nobody;
            self.owners[(first + target) as usize] = Owner::Pinned;
            self.meter.counters.pages_moved += 1;
            self.meter.charge(self.costs.compact_move);
        }
        self.meter.charge(Nanos(self.costs.buddy_step.0 * u64::from(order)));
        Some(Page(first + start))
    }
}
