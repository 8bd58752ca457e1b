//! Which units of a region a pass has had already, where lengths differ (fio's `axmap`).
//!
//! Bits in levels of 64 to 1: a bit above says that all below are set, so that the next free unit
//! is found in a few words however full the map is.

/// More units are more memory than the workload is worth: 128 MiB. Ours.
pub(super) const UNITS_MAX: u64 = 1 << 30;

/// A set of units.
#[derive(Clone, Debug)]
pub(super) struct Map {
    units: u64,
    free: u64,
    /// From the units' own bits up to one word.
    levels: Vec<Vec<u64>>,
}

impl Map {
    /// All are free.
    pub(super) fn new(units: u64) -> Self {
        assert!(units > 0 && units <= UNITS_MAX, "the job was checked");
        let mut levels = Vec::new();
        let mut len = units;
        loop {
            let words = len.div_ceil(64);
            let mut level = vec![0; words as usize];
            // What is behind the end is never free.
            if !len.is_multiple_of(64) {
                level[words as usize - 1] = u64::MAX << (len % 64);
            }
            levels.push(level);
            if words == 1 {
                return Self { units, free: units, levels };
            }
            len = words;
        }
    }

    pub(super) fn units(&self) -> u64 {
        self.units
    }

    pub(super) fn is_full(&self) -> bool {
        self.free == 0
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.units);
    }

    /// The first free unit from this one on, and from the start again.
    pub(super) fn next_free(&self, from: u64) -> Option<u64> {
        self.free_from(from).or_else(|| self.free_from(0))
    }

    fn free_from(&self, from: u64) -> Option<u64> {
        let (mut at, mut level) = (from, 0);
        // Up, until a word has something free behind the place.
        loop {
            let words = &self.levels[level];
            let word = words.get((at / 64) as usize)?;
            let open = !word & (u64::MAX << (at % 64));
            if open != 0 {
                at = at / 64 * 64 + u64::from(open.trailing_zeros());
                break;
            }
            at = at / 64 + 1;
            level += 1;
            if level == self.levels.len() {
                return None;
            }
        }
        // And down to the first of those below.
        while level > 0 {
            level -= 1;
            let open = !self.levels[level][at as usize];
            at = at * 64 + u64::from(open.trailing_zeros());
        }
        Some(at)
    }

    /// Marks units that are free, up to the first that is not; says how many.
    pub(super) fn mark(&mut self, first: u64, count: u64) -> u64 {
        let end = first.saturating_add(count).min(self.units);
        let mut at = first;
        while at < end && self.levels[0][(at / 64) as usize] & (1 << (at % 64)) == 0 {
            self.set(at);
            at += 1;
        }
        self.free -= at - first;
        at - first
    }

    fn set(&mut self, unit: u64) {
        let mut at = unit;
        for level in &mut self.levels {
            let word = &mut level[(at / 64) as usize];
            *word |= 1 << (at % 64);
            if *word != u64::MAX {
                return;
            }
            at /= 64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_found_once_however_full_it_is() {
        for units in [1, 63, 64, 65, 4096, 4097, 10_000] {
            let mut map = Map::new(units);
            let mut seen = vec![false; units as usize];
            for step in 0..units {
                let at = map.next_free(step * 7919 % units).expect("some are left");
                assert_eq!(map.mark(at, 1), 1);
                assert!(!std::mem::replace(&mut seen[at as usize], true), "{at} of {units}");
            }
            assert!(map.is_full() && map.next_free(0).is_none());
            map.clear();
            assert_eq!(map.next_free(units - 1), Some(units - 1));
        }
    }

    #[test]
    fn a_run_ends_before_what_is_marked() {
        let mut map = Map::new(100);
        assert_eq!(map.mark(70, 1), 1);
        assert_eq!(map.mark(64, 20), 6);
        assert_eq!(map.mark(64, 1), 0);
        assert_eq!(map.mark(95, 20), 5, "the end");
        assert_eq!(map.next_free(64), Some(71));
    }
}
