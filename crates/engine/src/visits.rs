//! Counted work of a request queue and its elevator, for worlds that charge CPU time for it.

/// A number of visits of lists, of queues, and of levels of trees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visits(u64);

impl Visits {
    /// Counts visits of lists and queues.
    #[inline]
    pub fn visit(&mut self, count: u32) {
        self.0 += u64::from(count);
    }

    /// Counts a search in a tree of `len` elements, an insertion or a removal.
    #[inline]
    pub fn search(&mut self, len: usize) {
        self.0 += u64::from(len.max(1).ilog2()) + 1;
    }

    /// The number.
    #[must_use]
    pub fn total(self) -> u64 {
        self.0
    }
}

impl core::ops::Add for Visits {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_visits_the_levels_of_the_tree() {
        let levels = |len| {
            let mut visits = Visits::default();
            visits.search(len);
            visits.total()
        };
        assert_eq!([0, 1, 2, 3, 4, 127, 128].map(levels), [1, 1, 2, 2, 3, 7, 8]);
    }
}
