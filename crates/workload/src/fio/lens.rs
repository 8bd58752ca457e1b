//! Lengths of requests by direction: `bs`, `bsrange`, `bssplit`.

use crate::random::Random;

/// Direction of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Trim: a discard.
    Trim,
}

impl Direction {
    /// All directions, in fio's order.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Trim];

    pub(crate) fn index(self) -> usize {
        self as usize
    }

    /// Name in fio's options and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["read", "write", "trim"][self.index()]
    }
}

/// Request lengths of a direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lens {
    /// `bs`: one fixed length.
    Fixed(u64),
    /// `bsrange`: any multiple of the smallest length, with equal probability.
    Range {
        /// Smallest length.
        min_bytes: u64,
        /// Largest length.
        max_bytes: u64,
    },
    /// `bssplit`: lengths with their shares in percent, in all a hundred.
    Split(Vec<(u64, u32)>),
}

impl Lens {
    pub(crate) fn min_bytes(&self) -> u64 {
        match self {
            Self::Fixed(bytes) | Self::Range { min_bytes: bytes, .. } => *bytes,
            Self::Split(parts) => parts.iter().map(|part| part.0).min().unwrap_or(0),
        }
    }

    pub(crate) fn max_bytes(&self) -> u64 {
        match self {
            Self::Fixed(bytes) | Self::Range { max_bytes: bytes, .. } => *bytes,
            Self::Split(parts) => parts.iter().map(|part| part.0).max().unwrap_or(0),
        }
    }

    /// Whether all possible lengths satisfy the predicate.
    pub(crate) fn all(&self, is_good: impl Fn(u64) -> bool) -> bool {
        match self {
            Self::Fixed(bytes) => is_good(*bytes),
            Self::Range { min_bytes, max_bytes } => is_good(*min_bytes) && is_good(*max_bytes),
            Self::Split(parts) => parts.iter().all(|(bytes, _)| is_good(*bytes)),
        }
    }

    /// Draws the next length.
    pub(crate) fn draw(&self, random: &mut Random) -> u64 {
        match self {
            Self::Fixed(bytes) => *bytes,
            Self::Range { min_bytes, max_bytes } => {
                min_bytes * (1 + random.below(max_bytes / min_bytes))
            }
            Self::Split(parts) => {
                let mut lot = random.below(100);
                let found = parts.iter().find(|(_, percent)| {
                    let is_here = lot < u64::from(*percent);
                    lot = lot.saturating_sub(u64::from(*percent));
                    is_here
                });
                found.or(parts.last()).expect("a split has parts").0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn lengths_come_with_their_shares() {
        let mut random = Random::new(3, 0);
        let mut count = |lens: &Lens| {
            let mut counts = BTreeMap::new();
            (0..10_000).for_each(|_| *counts.entry(lens.draw(&mut random)).or_insert(0u32) += 1);
            counts
        };
        let split = count(&Lens::Split(vec![(4096, 10), (65_536, 0), (8192, 90)]));
        assert_eq!(split.keys().collect::<Vec<_>>(), [&4096, &8192]);
        assert!((900..1100).contains(&split[&4096]), "{split:?}");
        let range = count(&Lens::Range { min_bytes: 4096, max_bytes: 16_384 });
        assert_eq!(range.len(), 4);
        assert!(range.values().all(|n| (2300..2700).contains(n)), "{range:?}");
    }
}
