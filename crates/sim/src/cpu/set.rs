//! A set of CPUs, as a bitmap.

use std::ops::Range;

/// A set of CPUs.
#[derive(Clone, Debug)]
pub(super) struct CpuSet(Vec<u64>);

impl CpuSet {
    pub(super) fn new(cpus: usize) -> Self {
        Self(vec![0; cpus.div_ceil(64)])
    }

    /// Adds a CPU, or removes it.
    pub(super) fn set(&mut self, cpu: usize, is_member: bool) {
        let bit = 1 << (cpu % 64);
        let word = &mut self.0[cpu / 64];
        *word = if is_member { *word | bit } else { *word & !bit };
    }

    pub(super) fn contains(&self, cpu: usize) -> bool {
        self.0[cpu / 64] >> (cpu % 64) & 1 == 1
    }

    /// The first CPU of the set in a range.
    pub(super) fn first_in(&self, range: Range<usize>) -> Option<usize> {
        Self::first(range, |word| self.0[word])
    }

    /// The first CPU in a range that is a member of both sets.
    pub(super) fn first_of_both(&self, other: &Self, range: Range<usize>) -> Option<usize> {
        Self::first(range, |word| self.0[word] & other.0[word])
    }

    fn first(range: Range<usize>, words: impl Fn(usize) -> u64) -> Option<usize> {
        let mut at = range.start;
        while at < range.end {
            let word = words(at / 64) >> (at % 64);
            if word != 0 {
                let first = at + word.trailing_zeros() as usize;
                return (first < range.end).then_some(first);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// All CPUs of the set, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        let all = self.0.len() * 64;
        let mut from = 0;
        std::iter::from_fn(move || {
            let next = self.first_in(from..all)?;
            from = next + 1;
            Some(next)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_finds_the_first_cpu_of_a_range_across_its_words() {
        let mut set = CpuSet::new(160);
        for cpu in [3, 63, 64, 130] {
            set.set(cpu, true);
        }
        set.set(63, false);
        assert_eq!(set.iter().collect::<Vec<_>>(), [3, 64, 130]);
        for (range, first) in [
            (0..160, Some(3)),
            (4..64, None),
            (4..160, Some(64)),
            (65..130, None),
            (65..131, Some(130)),
            (131..160, None),
            (7..7, None),
        ] {
            assert_eq!(set.first_in(range.clone()), first, "{range:?}");
        }
        let mut other = CpuSet::new(160);
        for cpu in [4, 64, 131] {
            other.set(cpu, true);
        }
        assert_eq!(set.first_of_both(&other, 0..160), Some(64));
        assert_eq!(set.first_of_both(&other, 65..160), None);
    }
}
