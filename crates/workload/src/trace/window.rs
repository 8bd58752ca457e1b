//! Parts of a trace that can be played on their own: a short workload for repeated runs.
//!
//! A part begins with its first bio: earlier bios in flight are left out.

use std::ops::Range;

use blockyard_engine::time::Nanos;

use super::{End, Trace, TracedBio};

/// A window with fewer bios than this share of the fullest one says little about the trace. Our
/// choice.
const SHARE_OF_FULLEST: usize = 10;

impl Trace {
    /// The part of `count` bios from bio `first`. After the last bio the part continues with the
    /// first one, as if the trace had been recorded twice.
    ///
    /// # Panics
    /// When the trace is empty, or has no bio `first`.
    #[must_use]
    pub fn part(&self, first: usize, count: usize) -> Self {
        let began = self.bios[first].start;
        let last = self.bios.last().map_or(Nanos(0), |bio| bio.start);
        let lap = self.end.length.max(last);
        let moved = |number: usize| {
            let bio = self.bios[number % self.bios.len()];
            let laps = Nanos(lap.0.saturating_mul((number / self.bios.len()) as u64));
            TracedBio { start: (bio.start + laps).since(began), ..bio }
        };
        let bios: Vec<TracedBio> = (first..first + count).map(moved).collect();
        let length = bios.last().map_or(Nanos(0), |bio| bio.start);
        Self { header: self.header.clone(), bios, end: End { length, ..End::default() } }
    }

    /// Bio numbers of each window of this length. Each window begins with a bio, and windows do not
    /// overlap. Windows with few bios are left out.
    #[must_use]
    pub fn windows(&self, len: Nanos) -> Vec<Range<usize>> {
        let mut windows: Vec<Range<usize>> = Vec::new();
        let mut first = 0;
        while let Some(bio) = self.bios.get(first) {
            let until = bio.start + len;
            let count = self.bios[first..].partition_point(|bio| bio.start < until).max(1);
            windows.push(first..first + count);
            first += count;
        }
        let fullest = windows.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        windows.retain(|window| window.len() * SHARE_OF_FULLEST >= fullest);
        windows
    }
}

#[cfg(test)]
mod tests {
    use blockyard_engine::bio::Op;
    use blockyard_engine::priority::Priority;

    use super::*;
    use crate::trace::Header;

    fn trace(starts: impl Iterator<Item = u64>, length: u64) -> Trace {
        let bio = |start| TracedBio {
            start: Nanos(start),
            op: Op::Read,
            fua: false,
            preflush: false,
            sync: true,
            sector: start,
            sectors: 8,
            submitter: 0,
            priority: Priority::default(),
            completion: None,
        };
        let end = End { length: Nanos(length), ..End::default() };
        Trace::of(Header::default(), starts.map(bio).collect(), end)
    }

    #[test]
    fn part_begins_at_zero_and_goes_round() {
        let trace = trace([5, 10, 30].into_iter(), 40);
        let part = |first, count| {
            let bios = trace.part(first, count).bios;
            bios.iter().map(|bio| (bio.start.0, bio.sector)).collect::<Vec<_>>()
        };
        assert_eq!(part(1, 1), [(0, 10)]);
        assert_eq!(part(1, 4), [(0, 10), (20, 30), (35, 5), (40, 10)]);
        assert_eq!(part(0, 7).last(), Some(&(80, 5)));
    }

    #[test]
    fn windows_begin_with_a_bio_and_idle_ones_are_left_out() {
        let busy = (0..20).chain([500]).chain(1000..1015);
        let trace = trace(busy, 2000);
        assert_eq!(trace.windows(Nanos(100)), [0..20, 21..36]);
        assert_eq!(trace.windows(Nanos(10)), [0..10, 10..20, 20..21, 21..31, 31..36]);
        assert_eq!(trace.windows(Nanos(u64::MAX)).first(), Some(&(0..36)));
        assert!(self::trace(std::iter::empty(), 5).windows(Nanos(1)).is_empty());
    }
}
