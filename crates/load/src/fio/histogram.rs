//! Latencies as fio keeps them: 64 buckets for each power of two. A percentile is the middle of a
//! bucket, so at most 0.8 % from the sample that it stands for.

use blockyard_engine::time::Nanos;

/// Buckets of each power of two.
const SUB_BUCKETS: u64 = 64;
const SUB_BITS: u32 = SUB_BUCKETS.ilog2();

/// Samples, counted by length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Up to the last that counts something.
    counts: Vec<u64>,
    count: u64,
    sum_ns: u128,
    squares: u128,
    min: Nanos,
    max: Nanos,
}

impl Histogram {
    /// Adds a sample.
    pub fn record(&mut self, sample: Nanos) {
        let bucket = bucket_of(sample.0);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.min = if self.count == 0 { sample } else { self.min.min(sample) };
        self.max = self.max.max(sample);
        self.count += 1;
        self.sum_ns += u128::from(sample.0);
        // A sample is below 2^64 ns; only after 2^64 of 0.5 s each would this be too small.
        self.squares = self.squares.saturating_add(u128::from(sample.0).pow(2));
    }

    /// Adds the samples of another.
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

    /// Samples.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The shortest; zero without a sample.
    #[must_use]
    pub fn min(&self) -> Nanos {
        self.min
    }

    /// The longest.
    #[must_use]
    pub fn max(&self) -> Nanos {
        self.max
    }

    /// The mean in nanoseconds; zero without a sample.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum_ns as f64 / self.count as f64 }
    }

    /// The standard deviation of a sample in nanoseconds, with n - 1 as fio has it.
    #[must_use]
    pub fn stdev_ns(&self) -> f64 {
        if self.count < 2 {
            return 0.0;
        }
        let n = u128::from(self.count);
        // n * sum(x^2) - sum(x)^2 is exact; in floats the two would cancel.
        let spread = match (self.squares.checked_mul(n), self.sum_ns.checked_mul(self.sum_ns)) {
            (Some(squares), Some(square)) => squares.saturating_sub(square) as f64,
            _ => self.squares as f64 * n as f64 - (self.sum_ns as f64).powi(2),
        };
        (spread.max(0.0) / (n as f64 * (n - 1) as f64)).sqrt()
    }

    /// The middle of the bucket up to which so many thousandths of the samples lie; of the last, it
    /// may be more than the longest sample, as with fio. Zero without a sample.
    #[must_use]
    pub fn permille(&self, permille: u32) -> Nanos {
        self.per_ten_thousand(permille * 10)
    }

    /// As [`Self::permille`], of ten thousand.
    #[must_use]
    pub fn per_ten_thousand(&self, share: u32) -> Nanos {
        let wanted = (u128::from(self.count) * u128::from(share)).div_ceil(10_000).max(1);
        let mut seen = 0u128;
        for (bucket, &count) in self.counts.iter().enumerate() {
            seen += u128::from(count);
            if seen >= wanted {
                return Nanos(middle(bucket));
            }
        }
        self.max
    }
}

/// `0..128` have buckets of their own; after that each power of two is cut into 64.
fn bucket_of(ns: u64) -> usize {
    let shift = (ns | SUB_BUCKETS).ilog2() - SUB_BITS;
    let bucket = u64::from(shift) * SUB_BUCKETS + (ns >> shift);
    usize::try_from(bucket).expect("there are fewer than 64 * 64")
}

/// The middle of a bucket, rounded up.
fn middle(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket / SUB_BUCKETS).saturating_sub(1);
    let first = (bucket - shift * SUB_BUCKETS) << shift;
    first + (1 << shift >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_is_close_to_the_middle_of_its_bucket() {
        let powers = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        for ns in powers.chain([196_005_000, u64::MAX]) {
            let middle = middle(bucket_of(ns));
            assert!(middle.abs_diff(ns) <= ns / 128, "{ns}: {middle}");
            assert_eq!(bucket_of(middle), bucket_of(ns));
        }
        // fio 3.33 prints 10688 for 10650.
        assert_eq!(middle(bucket_of(10_650)), 10_688);
    }

    #[test]
    fn percentiles_mean_and_deviation_of_a_hundred_samples() {
        let (mut low, mut high) = (Histogram::default(), Histogram::default());
        (1..=50).for_each(|us| low.record(Nanos(us * 1000)));
        (51..=100).for_each(|us| high.record(Nanos(us * 1000)));
        let mut all = Histogram::default();
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
        assert_eq!(Histogram::default().permille(500), Nanos(0));
    }
}
