//! The units of a region that a pass has used, where lengths differ (fio's `axmap`).
//!
//! A tree of bit words: a set bit above means that all 64 bits below are set, so that the search
//! for a free unit reads a few words however full the map is.

/// Greatest number of units: 128 MiB of memory. Our choice.
pub(super) const UNITS_MAX: u64 = 1 << 30;

/// A set of units.
#[derive(Clone, Debug)]
pub(super) struct Map {
    units: u64,
    free: u64,
    /// Levels from the units' own bits up to a single word.
    levels: Vec<Vec<u64>>,
}

impl Map {
    /// A map with all units free.
    pub(super) fn new(units: u64) -> Self {
        assert!(units > 0 && units <= UNITS_MAX, "the job was checked");
        let mut levels = Vec::new();
        let mut len = units;
        loop {
            let words = len.div_ceil(64);
            let mut level = vec![0; words as usize];
            // Units past the end are never free.
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

    /// The first free unit from `from` on, with wrap-around.
    pub(super) fn next_free(&self, from: u64) -> Option<u64> {
        self.free_from(from).or_else(|| self.free_from(0))
    }

    fn free_from(&self, from: u64) -> Option<u64> {
        let mut at = from;
        let mut level = 0;
        // Up, to a word with a free bit after the position.
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
        // And down to its first free unit.
        while level > 0 {
            level -= 1;
            let open = !self.levels[level][at as usize];
            at = at * 64 + u64::from(open.trailing_zeros());
        }
        Some(at)
    }

    /// Marks free units up to the first used one. Returns their number.
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
