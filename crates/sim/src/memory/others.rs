//! Everybody else who uses memory: pages that split it, pages that fill it, and how they are moved
//! or taken away again.
//!
//! *Pinned* pages lie where [`PhysicalMemory::fragment`] put them; compaction can move them, and
//! nothing else. *Cached* pages fill memory ([`PhysicalMemory::squeeze`]); reclaim takes them away.

use blockyard_engine::pages::{ORDER_MAX, Page};
use blockyard_engine::time::Nanos;
use blockyard_workload::random::Random;

use super::{Owner, PhysicalMemory};
use crate::fault::chance;

/// Pages that direct reclaim frees in one go (`SWAP_CLUSTER_MAX`).
const RECLAIM_PAGES: u32 = 32;
/// Ranges that one compaction looks at. Ours.
const SCAN_RANGES_MAX: u32 = 16;

impl PhysicalMemory {
    /// In `per_mille` of a thousand ranges of 2^`order` pages one page is pinned, so that no free
    /// block of that order or a larger one is left there. Which page is drawn from `seed`.
    ///
    /// # Panics
    /// When `order` is larger than there is.
    pub fn fragment(&mut self, order: u8, per_mille: u32, seed: u64) {
        assert!(order <= ORDER_MAX);
        let mut random = Random::new(seed, 1);
        for zone in 0..self.zones.len() {
            let (start, pages) = (self.zones[zone].first, self.zones[zone].buddy.pages());
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

    /// Others take pages, or give them back, until so many are free beyond what the watermarks keep
    /// back. Pages on the lists of CPUs are drained first, as they are in a memory that is full.
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

    /// Free pages beyond what the watermarks keep back.
    #[must_use]
    pub fn usable_pages(&self) -> u32 {
        let usable =
            |zone: &super::zone::Zone| zone.buddy.free_pages().saturating_sub(zone.watermark_pages);
        self.zones.iter().map(usable).sum()
    }

    /// Some of what others have cached is dropped; how many pages.
    pub(super) fn reclaim(&mut self) -> u32 {
        self.meter.counters.reclaims += 1;
        self.meter.charge(self.costs.reclaim);
        let mut freed = 0;
        while freed < RECLAIM_PAGES && self.drop_cached() {
            freed += 1;
        }
        freed
    }

    /// One page that others can do without.
    fn drop_cached(&mut self) -> bool {
        let Some(page) = self.cached.pop() else { return false };
        assert!(self.owners[page as usize] == Owner::Cached, "nothing else moves cached pages");
        self.owners[page as usize] = Owner::Nobody;
        let zone = self.zone_of(page);
        let first = self.zones[zone].first;
        self.zones[zone].buddy.free(page - first, 0);
        true
    }

    /// Makes room for a block by moving pinned pages out of a range (`compact_zone`). The range
    /// looked at first is the one behind the last one.
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
        // What is moved needs a place: a range's worth of free pages is enough.
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
