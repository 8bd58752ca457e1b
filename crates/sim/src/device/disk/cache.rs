//! The volatile write cache of a drive: accepted ranges that are not on the medium.
//!
//! Ranges do not overlap; a newer write replaces the overlapping part of an older one. A flush
//! closes an *epoch* and waits for the ranges of this and earlier epochs, not for later ones.
//! Exception: a write over a range of a waiting flush must reach the medium in its place.

use std::collections::BTreeMap;

/// A range that is not on the medium.
#[derive(Clone, Copy, Debug)]
struct Dirty {
    sectors: u32,
    epoch: u64,
}

/// The cache.
#[derive(Debug)]
pub(super) struct WriteCache {
    capacity: u32,
    used: u32,
    epoch: u64,
    /// Ranges by first sector.
    ranges: BTreeMap<u64, Dirty>,
    /// Number of dirty sectors of each epoch.
    epochs: BTreeMap<u64, u32>,
}

impl WriteCache {
    pub(super) fn new(capacity: u32) -> Self {
        Self { capacity, used: 0, epoch: 0, ranges: BTreeMap::new(), epochs: BTreeMap::new() }
    }

    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(super) fn is_clean(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Ends the current epoch and returns it.
    pub(super) fn close_epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch - 1
    }

    pub(super) fn is_clean_up_to(&self, epoch: u64) -> bool {
        self.epochs.first_key_value().is_none_or(|(oldest, _)| *oldest > epoch)
    }

    /// Accepts a write if there is room. A write longer than the cache is accepted while the cache
    /// is clean.
    pub(super) fn accept(&mut self, sector: u64, sectors: u32) -> bool {
        if self.used > 0 && self.used.saturating_add(sectors) > self.capacity {
            return false;
        }
        let epoch = self.overwrite(sector, sectors);
        let mut start = sector;
        let mut len = sectors;
        // Extends a range that ends here, if it has the same epoch.
        if let Some((&before, &dirty)) = self.ranges.range(..sector).next_back()
            && before + u64::from(dirty.sectors) == sector
            && dirty.epoch == epoch
        {
            (start, len) = (before, dirty.sectors + sectors);
        }
        self.ranges.insert(start, Dirty { sectors: len, epoch });
        self.used += sectors;
        *self.epochs.entry(epoch).or_default() += sectors;
        true
    }

    /// Removes the overlapped parts of cached ranges for a newer write. Returns the epoch of the
    /// newer write: the oldest of the replaced ones.
    pub(super) fn overwrite(&mut self, sector: u64, sectors: u32) -> u64 {
        let mut epoch = self.epoch;
        let end = sector + u64::from(sectors);
        let first = self.ranges.range(..sector).next_back().map_or(sector, |(start, _)| *start);
        let touched: Vec<(u64, Dirty)> = self
            .ranges
            .range(first..end)
            .filter(|(start, dirty)| *start + u64::from(dirty.sectors) > sector)
            .map(|(start, dirty)| (*start, *dirty))
            .collect();
        for (start, dirty) in touched {
            self.remove(start);
            epoch = epoch.min(dirty.epoch);
            let dirty_end = start + u64::from(dirty.sectors);
            if start < sector {
                self.keep(start, sector, dirty.epoch);
            }
            if dirty_end > end {
                self.keep(end, dirty_end, dirty.epoch);
            }
        }
        epoch
    }

    fn keep(&mut self, start: u64, end: u64, epoch: u64) {
        let sectors = u32::try_from(end - start).expect("a part is shorter than the whole");
        self.ranges.insert(start, Dirty { sectors, epoch });
        self.used += sectors;
        *self.epochs.entry(epoch).or_default() += sectors;
    }

    fn remove(&mut self, start: u64) {
        let dirty = self.ranges.remove(&start).expect("the range is in the cache");
        self.used -= dirty.sectors;
        let left = self.epochs.get_mut(&dirty.epoch).expect("the epoch has this range");
        *left -= dirty.sectors;
        if *left == 0 {
            self.epochs.remove(&dirty.epoch);
        }
    }

    /// Whether a range is completely in the cache.
    pub(super) fn holds(&self, sector: u64, sectors: u32) -> bool {
        let end = sector + u64::from(sectors);
        let mut at = sector;
        while at < end {
            let Some((start, dirty)) = self.ranges.range(..=at).next_back() else { return false };
            let dirty_end = start + u64::from(dirty.sectors);
            if dirty_end <= at {
                return false;
            }
            at = dirty_end;
        }
        true
    }

    /// The nearest ranges before and after a sector, of this epoch or older ones.
    pub(super) fn around(&self, sector: u64, epoch: u64) -> [Option<u64>; 2] {
        let wanted = |(start, dirty): (&u64, &Dirty)| (dirty.epoch <= epoch).then_some(*start);
        [
            self.ranges.range(sector..).find_map(wanted),
            self.ranges.range(..sector).rev().find_map(wanted),
        ]
    }

    /// Length of the range that starts here.
    pub(super) fn len_at(&self, sector: u64) -> u32 {
        self.ranges[&sector].sectors
    }

    /// A range has reached the medium. Newer writes over it stay dirty.
    pub(super) fn destaged(&mut self, sector: u64, sectors: u32) {
        if self.ranges.get(&sector).is_some_and(|dirty| dirty.sectors == sectors) {
            self.remove(sector);
        }
    }
}
