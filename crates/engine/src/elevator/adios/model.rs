//! Predicted time of a request at the device: a base up to 4 KiB, and a slope for each further KiB
//! (`struct latency_model`).
//!
//! Short requests teach the base, longer ones the slope. Their times are collected in buckets by
//! the ratio of measured to predicted time. An update adds all but the slowest hundredth to the
//! sums that base and slope are the means of. The first update of a sum takes all. Sums fade by a
//! quarter after ten million short requests, or 100 GiB of longer ones.

use crate::time::Nanos;

/// Time from a completion to the update.
pub(super) const INTERVAL: Nanos = Nanos::from_ms(100);

/// Size up to which a request is short (`LM_BLOCK_SIZE_THRESHOLD`).
const SHORT_BYTES: u64 = 4096;

/// Samples that are enough for an update at any time.
const SAMPLES: u64 = 1024;

/// Time after which fewer samples are enough.
const PATIENCE: Nanos = Nanos::from_ms(1500);

/// Percentage of the samples that count; the rest are outliers.
const PERCENT: u64 = 99;

/// Short requests after which the sums fade.
const SHORT_MAX: u64 = 10_000_000;

/// Bytes of longer requests after which the sums fade.
const LONG_BYTES_MAX: u64 = 100 << 30;

const BUCKETS: usize = 64;

/// Samples of a similar ratio of measured to predicted time.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    count: u64,
    time_ns: u64,
    bytes: u64,
}

/// Samples since the last update.
#[derive(Debug)]
struct Samples([Bucket; BUCKETS]);

impl Default for Samples {
    fn default() -> Self {
        Self([Bucket::default(); BUCKETS])
    }
}

impl Samples {
    fn add(&mut self, measured: Nanos, predicted: Nanos, bytes: u64) {
        let measured = measured.0;
        let predicted = predicted.0.max(1);
        let ratio = |times: u64, of: u64| (measured.saturating_mul(times) / of) as usize;
        let place = if measured < predicted.saturating_mul(2) {
            ratio(20, predicted)
        } else if measured < predicted.saturating_mul(5) {
            ratio(10, predicted) + 20
        } else {
            ratio(3, predicted).saturating_add(40)
        };
        let bucket = &mut self.0[place.min(BUCKETS - 1)];
        bucket.count += 1;
        bucket.time_ns += measured;
        bucket.bytes += bytes;
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|bucket| bucket.count).sum()
    }

    /// Takes the sum of the fastest samples, up to a percentage; clears all.
    fn take(&mut self, percent: u64) -> Bucket {
        let mut left = self.count() * percent / 100;
        let mut sum = Bucket::default();
        for bucket in core::mem::take(self).0 {
            let count = bucket.count.min(left);
            if count > 0 {
                sum.count += count;
                sum.time_ns += bucket.time_ns.saturating_mul(count) / bucket.count;
                sum.bytes += bucket.bytes.saturating_mul(count) / bucket.count;
                left -= count;
            }
        }
        sum
    }
}

/// The learned latency of one kind of operation.
#[derive(Debug, Default)]
pub(super) struct Model {
    base_ns: u64,
    slope_ns_per_kib: u64,
    /// Sums behind the base: `bytes` is unused.
    short: Bucket,
    /// Sums behind the slope: the time without the base.
    long: Bucket,
    short_samples: Samples,
    long_samples: Samples,
    updated: Nanos,
}

impl Model {
    /// Whether the base is known.
    pub(super) fn has_learned(&self) -> bool {
        self.base_ns > 0
    }

    /// The predicted time of a request of this size; zero before a short one has ended.
    pub(super) fn predict(&self, bytes: u64) -> Nanos {
        let kib = bytes.saturating_sub(SHORT_BYTES) / 1024;
        Nanos(self.base_ns.saturating_add(self.slope_ns_per_kib.saturating_mul(kib)))
    }

    /// Takes in an ended request (`latency_model_input`). The very first short one sets the base.
    /// Longer ones count if they were predicted.
    pub(super) fn learn(&mut self, now: Nanos, bytes: u64, measured: Nanos, predicted: Nanos) {
        if bytes <= SHORT_BYTES {
            self.short_samples.add(measured, Nanos(self.base_ns), bytes);
            if self.base_ns == 0 {
                self.update(now);
            }
        } else if self.base_ns > 0 && predicted > Nanos(0) {
            self.long_samples.add(measured, predicted, bytes);
        }
    }

    /// Updates base and slope if there are enough samples (`latency_model_update`).
    pub(super) fn update(&mut self, now: Nanos) {
        let is_due = self.base_ns == 0 || self.updated + PATIENCE <= now;
        let is_enough = |samples: &Samples, known: u64| {
            let count = samples.count();
            count > 0 && (is_due || count >= SAMPLES || known == 0)
        };
        let percent = |known: u64| if known == 0 { 100 } else { PERCENT };
        if is_enough(&self.short_samples, self.base_ns) {
            let sum = self.short_samples.take(percent(self.base_ns));
            if self.short.count >= SHORT_MAX {
                fade(&mut self.short);
            }
            self.short.time_ns += sum.time_ns;
            self.short.count += sum.count;
            self.base_ns = self.short.time_ns.checked_div(self.short.count).unwrap_or(0);
        }
        if is_enough(&self.long_samples, self.slope_ns_per_kib) {
            let sum = self.long_samples.take(percent(self.slope_ns_per_kib));
            if self.long.bytes >= LONG_BYTES_MAX {
                fade(&mut self.long);
            }
            let base = self.base_ns.saturating_mul(sum.count);
            // A mean below the base counts whole, as in adios.
            let above = if sum.time_ns > base { sum.time_ns - base } else { sum.time_ns };
            self.long.time_ns += above;
            self.long.bytes += sum.bytes;
            let kib = self.long.bytes.div_ceil(1024);
            self.slope_ns_per_kib = self.long.time_ns.checked_div(kib).unwrap_or(0);
        }
        if is_due {
            self.updated = now;
        }
    }
}

/// Removes a quarter of the weight of old samples.
fn fade(sum: &mut Bucket) {
    sum.time_ns -= sum.time_ns / 4;
    sum.count -= sum.count / 4;
    sum.bytes -= sum.bytes / 4;
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    /// Requests of a device that needs 100 us and 2 us for each KiB above 4 KiB.
    fn learn(model: &mut Model, now: &mut Nanos, bytes: u64, count: u32) {
        for _ in 0..count {
            let time = Nanos(100_000 + 2_000 * (bytes.saturating_sub(4 * KIB) / KIB));
            *now = *now + time;
            let predicted = model.predict(bytes);
            model.learn(*now, bytes, time, predicted);
        }
        *now = *now + Nanos::from_ms(1500);
        model.update(*now);
    }

    #[test]
    fn base_and_slope_are_those_of_the_device() {
        let mut model = Model::default();
        let mut now = Nanos(0);
        assert!(!model.has_learned() && model.predict(4096) == Nanos(0));
        learn(&mut model, &mut now, 4 * KIB, 100);
        assert_eq!(model.predict(512), Nanos(100_000));
        learn(&mut model, &mut now, 1024 * KIB, 50);
        let predicted = model.predict(1024 * KIB).0;
        // The slope is the mean over all bytes, the first 4 KiB too.
        assert!((2_120_000..=2_140_000).contains(&predicted), "{predicted}");
    }

    #[test]
    fn slowest_hundredth_does_not_count() {
        let mut model = Model::default();
        let mut now = Nanos(0);
        learn(&mut model, &mut now, 4096, 1);
        for number in 0..1000 {
            let time = if number < 9 { Nanos::from_ms(1000) } else { Nanos(100_000) };
            model.learn(now, 4096, time, Nanos(100_000));
        }
        model.update(now + Nanos::from_ms(2000));
        assert_eq!(model.predict(4096), Nanos(100_000));
    }

    #[test]
    fn long_requests_before_any_short_one_teach_nothing() {
        let mut model = Model::default();
        learn(&mut model, &mut Nanos(0), 64 * KIB, 100);
        assert!(!model.has_learned() && model.predict(64 * KIB) == Nanos(0));
    }

    #[test]
    fn old_samples_fade() {
        let mut model = Model {
            base_ns: 100,
            short: Bucket { count: SHORT_MAX, time_ns: 100 * SHORT_MAX, bytes: 0 },
            ..Model::default()
        };
        model.learn(Nanos(0), 512, Nanos(100), Nanos(100));
        model.learn(Nanos(0), 512, Nanos(100), Nanos(100));
        model.update(Nanos::from_ms(1500));
        assert_eq!((model.short.count, model.predict(1).0), (SHORT_MAX / 4 * 3 + 1, 100));
    }
}
