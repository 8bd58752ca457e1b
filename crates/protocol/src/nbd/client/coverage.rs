//! The answered parts of a READ: chunks may come in any order, without overlaps or gaps.
//!
//! ```text
//!   0       front_bytes                          len_bytes
//!   |#########|......|####|.....|#########|......|
//!                    `----------------------- islands, sorted, apart from each other
//! ```
//!
//! Servers usually send in order, so there is usually only the front. The number of islands is
//! bounded: a server that answers every other byte could otherwise cost its client far more memory
//! than it sends.

use alloc::vec::Vec;

use super::failure::Violation;

/// Greatest number of islands of one READ. 8192 blocks of 4 KiB (32 MiB) in random order make about
/// 2000 at most. Our choice.
const ISLANDS_MAX: usize = 4096;

/// A part of a READ, relative to the start of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) start_bytes: u64,
    /// End of the part, exclusive.
    pub(super) end_bytes: u64,
}

/// The answered parts of a READ.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    front_bytes: u64,
    islands: Vec<Part>,
}

impl Coverage {
    /// Resets the coverage for the next request; keeps the memory.
    pub(super) fn clear(&mut self) {
        self.front_bytes = 0;
        self.islands.clear();
    }

    /// Adds a part, which must not be empty.
    #[inline]
    pub(super) fn add(&mut self, part: Part) -> Result<(), Violation> {
        assert!(part.start_bytes < part.end_bytes);
        if self.islands.is_empty() && part.start_bytes == self.front_bytes {
            self.front_bytes = part.end_bytes;
            return Ok(());
        }
        self.add_apart(part)
    }

    #[cold]
    fn add_apart(&mut self, part: Part) -> Result<(), Violation> {
        let index = self.islands.partition_point(|island| island.end_bytes <= part.start_bytes);
        let next = self.islands.get(index).copied();
        if part.start_bytes < self.front_bytes
            || next.is_some_and(|next| next.start_bytes < part.end_bytes)
        {
            return Err(Violation::Overlap);
        }
        let joins_next = next.is_some_and(|next| next.start_bytes == part.end_bytes);
        let joins_last = index > 0 && self.islands[index - 1].end_bytes == part.start_bytes;
        match (joins_last, joins_next) {
            (true, true) => {
                self.islands[index - 1].end_bytes = self.islands[index].end_bytes;
                self.islands.remove(index);
            }
            (true, false) => self.islands[index - 1].end_bytes = part.end_bytes,
            (false, true) => self.islands[index].start_bytes = part.start_bytes,
            (false, false) if self.islands.len() == ISLANDS_MAX => {
                return Err(Violation::TooScattered);
            }
            (false, false) => self.islands.insert(index, part),
        }
        // Islands never touch, so only the first one can have reached the front.
        if self.islands[0].start_bytes == self.front_bytes {
            self.front_bytes = self.islands.remove(0).end_bytes;
        }
        Ok(())
    }

    /// Whether the first `len_bytes` are answered without gaps.
    #[inline]
    pub(super) fn is_whole(&self, len_bytes: u64) -> bool {
        self.front_bytes == len_bytes
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn part(start_bytes: u64, end_bytes: u64) -> Part {
        Part { start_bytes, end_bytes }
    }

    /// All ways to add parts of a small request agree with a list of flags, one per byte.
    #[test]
    fn coverage_of_any_three_parts_is_that_of_their_bytes() {
        const LEN: u64 = 6;
        let parts: Vec<Part> =
            (0..LEN).flat_map(|start| (start + 1..=LEN).map(move |end| part(start, end))).collect();
        let mut refused = 0;
        for case in 0..parts.len().pow(3) {
            let mut coverage = Coverage::default();
            let mut bytes = vec![false; LEN as usize];
            for step in 0..3 {
                let part = parts[case / parts.len().pow(step) % parts.len()];
                let range = &mut bytes[part.start_bytes as usize..part.end_bytes as usize];
                let overlaps = range.contains(&true);
                assert_eq!(coverage.add(part).is_err(), overlaps, "{part:?} to {coverage:?}");
                if overlaps {
                    refused += 1;
                    break;
                }
                range.fill(true);
                assert_eq!(coverage.is_whole(LEN), !bytes.contains(&false), "{coverage:?}");
            }
        }
        assert!(refused > 0);
    }

    #[test]
    fn coverage_of_every_other_byte_ends_at_its_bound() {
        let mut coverage = Coverage::default();
        for island in 0..ISLANDS_MAX as u64 {
            assert_eq!(coverage.add(part(2 * island + 1, 2 * island + 2)), Ok(()));
        }
        assert_eq!(coverage.add(part(1 << 20, 1 << 21)), Err(Violation::TooScattered));
        // The gaps can still be filled, and the islands merge into the front.
        for gap in 0..ISLANDS_MAX as u64 {
            assert_eq!(coverage.add(part(2 * gap, 2 * gap + 1)), Ok(()));
        }
        assert!(coverage.is_whole(2 * ISLANDS_MAX as u64));
        coverage.clear();
        assert_eq!(coverage.add(part(0, 1)), Ok(()));
    }
}
