//! How long requests are: `bs`, `bsrange`, `bssplit`, of each direction.

use crate::random::Random;

/// What a request does with its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// It reads.
    Read,
    /// It writes.
    Write,
    /// It says that nobody needs it any more.
    Trim,
}

impl Direction {
    /// In fio's order.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Trim];

    pub(crate) fn index(self) -> usize {
        self as usize
    }

    /// As fio's options and logs say it.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["read", "write", "trim"][self.index()]
    }
}

/// Lengths of the requests of a direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lens {
    /// `bs`: all of them.
    Fixed(u64),
    /// `bsrange`: any multiple of the smallest, each as likely as the others.
    Range {
        /// The smallest.
        min_bytes: u64,
        /// The largest.
        max_bytes: u64,
    },
    /// `bssplit`: lengths, each with its share in percent; all of them are a hundred.
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

    /// All lengths that there can be are of this kind.
    pub(crate) fn all(&self, is_good: impl Fn(u64) -> bool) -> bool {
        match self {
            Self::Fixed(bytes) => is_good(*bytes),
            Self::Range { min_bytes, max_bytes } => is_good(*min_bytes) && is_good(*max_bytes),
            Self::Split(parts) => parts.iter().all(|(bytes, _)| is_good(*bytes)),
        }
    }

    /// The next length.
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
