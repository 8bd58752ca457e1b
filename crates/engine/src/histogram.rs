//! Latencies in a log-linear histogram: 2^`SUB_BITS` buckets for each power of two.
//!
//! With 64, as in fio, a percentile is at most 0.8 % from its sample. With 16, the value for each
//! stage of a connection in `host`, it is 3 %. A percentile is the middle of a bucket.

use alloc::vec::Vec;

use crate::time::Nanos;

/// A histogram of durations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram<const SUB_BITS: u32 = 6> {
    /// Counts up to the last non-zero one.
    counts: Vec<u64>,
    count: u64,
    sum_ns: u128,
    squares: u128,
    min: Nanos,
    max: Nanos,
}

impl<const SUB_BITS: u32> Histogram<SUB_BITS> {
    /// Builds a histogram from counts by [`Histogram::bucket_of`], with the sum and the longest
    /// sample. Minimum and deviation assume each sample in the middle of its bucket.
    #[must_use]
    pub fn of_counts(counts: Vec<u64>, sum_ns: u64, max: Nanos) -> Self {
        let mut histogram = Self { sum_ns: sum_ns.into(), max, ..Self::default() };
        for (bucket, &count) in counts.iter().enumerate().rev().filter(|(_, count)| **count > 0) {
            histogram.min = Nanos(Self::middle(bucket)).min(max);
            histogram.count += count;
            let square = u128::from(histogram.min.0).pow(2);
            let squares = square.saturating_mul(u128::from(count));
            histogram.squares = histogram.squares.saturating_add(squares);
        }
        histogram.counts = counts;
        histogram
    }

    /// Non-empty buckets: longest duration and number of samples of each.
    pub fn buckets(&self) -> impl Iterator<Item = (Nanos, u64)> {
        let counts = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        counts.map(|(bucket, count)| (Nanos(Self::last(bucket)), *count))
    }

    /// Sum of all samples.
    #[must_use]
    pub fn sum_ns(&self) -> u128 {
        self.sum_ns
    }

    /// Adds a sample.
    pub fn record(&mut self, sample: Nanos) {
        let bucket = Self::bucket_of(sample);
        match self.counts.get_mut(bucket) {
            Some(count) => *count += 1,
            None => self.count_first(bucket),
        }
        if sample < self.min || self.count == 0 {
            self.min = sample;
        }
        self.max = self.max.max(sample);
        self.count += 1;
        self.sum_ns += u128::from(sample.0);
        // The sum of squares overflows only after 2^64 samples of 0.5 s each.
        let square = u128::from(sample.0) * u128::from(sample.0);
        self.squares = self.squares.saturating_add(square);
    }

    /// Counts a sample beyond the last bucket: a separate function, because it is rare.
    #[cold]
    fn count_first(&mut self, bucket: usize) {
        self.counts.resize(bucket + 1, 0);
        self.counts[bucket] = 1;
    }

    /// Adds the samples of `other`.
    pub fn add(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
        self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
        self.max = self.max.max(other.max);
        self.count += other.count;
        self.sum_ns += other.sum_ns;
        self.squares = self.squares.saturating_add(other.squares);
    }

    /// Number of samples.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Shortest sample; zero if empty.
    #[must_use]
    pub fn min(&self) -> Nanos {
        self.min
    }

    /// Longest sample.
    #[must_use]
    pub fn max(&self) -> Nanos {
        self.max
    }

    /// Mean in nanoseconds; zero if empty.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum_ns as f64 / self.count as f64 }
    }

    /// Standard deviation in nanoseconds, with n - 1 as in fio.
    #[must_use]
    pub fn stdev_ns(&self) -> f64 {
        if self.count < 2 {
            return 0.0;
        }
        let n = u128::from(self.count);
        // n * sum(x^2) - sum(x)^2 is exact in integers; in floats it would lose precision.
        let spread = match (self.squares.checked_mul(n), self.sum_ns.checked_mul(self.sum_ns)) {
            (Some(squares), Some(square)) => squares.saturating_sub(square) as f64,
            _ => self.squares as f64 * n as f64 - self.sum_ns as f64 * self.sum_ns as f64,
        };
        square_root(spread.max(0.0) / (n as f64 * (n - 1) as f64))
    }

    /// The middle of the bucket that holds the given permille. In the last bucket it may exceed the
    /// longest sample, as in fio. Zero if empty.
    #[must_use]
    pub fn permille(&self, permille: u32) -> Nanos {
        self.per_ten_thousand(permille * 10)
    }

    /// As [`Self::permille`], limited to the longest sample.
    #[must_use]
    pub fn permille_within(&self, permille: u32) -> Nanos {
        self.permille(permille).min(self.max)
    }

    /// As [`Self::permille`], in ten thousandths.
    #[must_use]
    pub fn per_ten_thousand(&self, share: u32) -> Nanos {
        self.share(share.into(), 10_000)
    }

    /// As [`Self::permille`], for any fraction.
    ///
    /// # Panics
    /// When `whole` is zero.
    #[must_use]
    pub fn share(&self, part: u64, whole: u64) -> Nanos {
        let wanted = u128::from(self.count) * u128::from(part);
        let wanted = wanted.div_ceil(whole.into()).max(1);
        let mut seen = 0u128;
        for (bucket, &count) in self.counts.iter().enumerate() {
            seen += u128::from(count);
            if seen >= wanted {
                return Nanos(Self::middle(bucket));
            }
        }
        self.max
    }

    /// Bucket of a sample. The first `2^(SUB_BITS + 1)` values have their own buckets; each further
    /// power of two is divided into `2^SUB_BITS`.
    #[must_use]
    pub fn bucket_of(sample: Nanos) -> usize {
        let shift = (sample.0 | (1 << SUB_BITS)).ilog2() - SUB_BITS;
        let bucket = (u64::from(shift) << SUB_BITS) + (sample.0 >> shift);
        usize::try_from(bucket).expect("there are fewer than 64 for each power of two")
    }

    /// The middle of a bucket, rounded up.
    fn middle(bucket: usize) -> u64 {
        let (first, shift) = Self::first(bucket);
        first + (1 << shift >> 1)
    }

    /// Longest duration of a bucket.
    fn last(bucket: usize) -> u64 {
        let (first, shift) = Self::first(bucket);
        first + ((1 << shift) - 1)
    }

    /// Shortest duration of a bucket, and its width, a power of two.
    fn first(bucket: usize) -> (u64, u64) {
        let bucket = bucket as u64;
        let shift = (bucket >> SUB_BITS).saturating_sub(1);
        ((bucket - (shift << SUB_BITS)) << shift, shift)
    }
}

/// Square root, which `core` lacks: Newton's iteration from above, until it no longer decreases.
fn square_root(of: f64) -> f64 {
    if of <= 0.0 {
        return 0.0;
    }
    // Half the exponent: within a few percent; each step doubles the digits.
    let mut root = f64::from_bits((of.to_bits() >> 1) + (1023 << 51));
    for _ in 0..6 {
        root = (root + of / root) / 2.0;
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_is_close<const SUB_BITS: u32>(ns: u64) {
        let bucket = Histogram::<SUB_BITS>::bucket_of(Nanos(ns));
        let (first, _) = Histogram::<SUB_BITS>::first(bucket);
        let middle = Histogram::<SUB_BITS>::middle(bucket);
        let last = Histogram::<SUB_BITS>::last(bucket);
        assert!(middle.abs_diff(ns) <= ns >> (SUB_BITS + 1), "{ns}: {middle}");
        assert!(first <= ns && ns <= last && first <= middle && middle <= last, "{ns}");
        assert_eq!(Histogram::<SUB_BITS>::bucket_of(Nanos(last)), bucket);
    }

    #[test]
    fn histogram_of_counts_is_that_of_the_samples() {
        let mut counts = Vec::new();
        let mut sum = 0;
        let mut direct = Histogram::<4>::default();
        for ns in [0, 1, 40, 40, 1_000_000] {
            let bucket = Histogram::<4>::bucket_of(Nanos(ns));
            counts.resize(counts.len().max(bucket + 1), 0);
            (counts[bucket], sum) = (counts[bucket] + 1, sum + ns);
            direct.record(Nanos(ns));
        }
        let histogram = Histogram::<4>::of_counts(counts, sum, Nanos(1_000_000));
        assert_eq!((histogram.count(), histogram.sum_ns()), (5, 1_000_081));
        assert_eq!((histogram.min(), histogram.max()), (direct.min(), direct.max()));
        assert_eq!(histogram.permille(500), direct.permille(500));
        assert!((histogram.stdev_ns() / direct.stdev_ns() - 1.0).abs() < 0.03);
        let buckets: Vec<(Nanos, u64)> = histogram.buckets().collect();
        assert_eq!(buckets[..3], [(Nanos(0), 1), (Nanos(1), 1), (Nanos(41), 2)]);
        assert!(buckets[3].0 >= Nanos(1_000_000) && buckets[3].1 == 1);
    }

    #[test]
    fn every_sample_is_close_to_the_middle_of_its_bucket() {
        let powers = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        for ns in powers.chain([196_005_000, u64::MAX]) {
            assert_is_close::<6>(ns);
            assert_is_close::<4>(ns);
        }
        // fio 3.33 prints 10688 for 10650.
        assert_eq!(Histogram::<6>::middle(Histogram::<6>::bucket_of(Nanos(10_650))), 10_688);
    }

    #[test]
    fn percentiles_mean_and_deviation_of_a_hundred_samples() {
        let (mut low, mut high) = <(Histogram, Histogram)>::default();
        (1..=50).for_each(|us| low.record(Nanos(us * 1000)));
        (51..=100).for_each(|us| high.record(Nanos(us * 1000)));
        let mut all: Histogram = Histogram::default();
        [&high, &low].into_iter().for_each(|part| all.add(part));
        assert_eq!((all.count(), all.min(), all.max()), (100, Nanos(1000), Nanos(100_000)));
        assert!((all.mean_ns() - 50_500.0).abs() < 1e-6);
        // sqrt((100^2 - 1) / 12 * 100 / 99)
        assert!((all.stdev_ns() - 29_011.491_975).abs() < 1e-3, "{}", all.stdev_ns());
        for (permille, exact) in
            [(1, 1000), (10, 1000), (500, 50_000), (990, 99_000), (991, 100_000)]
        {
            let got = all.permille(permille).0;
            assert!(got.abs_diff(exact) <= exact / 128, "{permille}: {got}");
        }
        assert_eq!(Histogram::<6>::default().permille(500), Nanos(0));
    }
}
