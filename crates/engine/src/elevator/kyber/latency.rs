//! Tokens of kyber's domains from measured latencies (`kyber_timer_fn`).
//!
//! A domain has two histograms, of the time at the device and of the total time. A bucket is a
//! quarter of the target wide; the last four are beyond the target. The check runs 100 ms after a
//! completion, at the next insertion or completion:
//!
//! - The device is congested if the p90 of the time at the device is beyond the target in a domain.
//! - A domain's tokens are scaled by the p99 of its total time: `tokens * (bucket + 1) / 4`. A
//!   domain beyond its target gets more. The others get fewer, only while the device is congested.
//!
//! A percentile needs 500 samples, or a second since a check that lacked some. Both histograms of a
//! domain share that second, and the time at the device is first: with fewer samples it takes the
//! second, and the total time starts the next one. So a busy domain of a slow disk is judged after
//! 500 requests, not after a second, unless it pauses. The kernel does the same.

use super::DEPTHS;
use crate::time::Nanos;

/// Buckets of a histogram (`KYBER_LATENCY_BUCKETS`).
const BUCKETS: usize = 8;

/// Buckets up to the target (`KYBER_GOOD_BUCKETS`).
const GOOD: usize = 4;

/// Samples that are enough at any time.
const SAMPLES: u32 = 500;

/// Time after which fewer samples are enough.
const PATIENCE: Nanos = Nanos::from_ms(1000);

/// Time from a completion to the check.
const INTERVAL: Nanos = Nanos::from_ms(100);

/// Target of discards.
const DISCARD_TARGET: Nanos = Nanos::from_ms(5000);

/// Domains with a target: reads, writes, discards.
const MEASURED: usize = 3;

/// Times of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clocks {
    pub(super) inserted: Nanos,
    pub(super) dispatched: Nanos,
}

/// Latencies by bucket.
type Histogram = [u32; BUCKETS];

/// The bucket of a latency.
fn bucket(latency: Nanos, target: Nanos) -> usize {
    let width = (target.0 / GOOD as u64).max(1);
    let bucket = latency.0.saturating_sub(1) / width;
    bucket.min(BUCKETS as u64 - 1) as usize
}

/// Measurements of a domain.
#[derive(Debug, Default)]
struct Measured {
    target: Nanos,
    total: Histogram,
    device: Histogram,
    /// Time from which fewer samples are enough.
    patient_until: Option<Nanos>,
    /// The last p99 of the total time, until a congestion has used it.
    p99: Option<usize>,
}

/// Bucket with this percentile; clears the histogram. `None` while there are too few samples
/// (`calculate_percentile`).
fn percentile(
    histogram: &mut Histogram,
    patient_until: &mut Option<Nanos>,
    now: Nanos,
    percent: u32,
) -> Option<usize> {
    let samples: u32 = histogram.iter().sum();
    if samples == 0 {
        return None;
    }
    let until = *patient_until.get_or_insert(now + PATIENCE);
    if samples < SAMPLES && now < until {
        return None;
    }
    *patient_until = None;
    let mut rank = (u64::from(samples) * u64::from(percent)).div_ceil(100);
    let mut found = BUCKETS - 1;
    for (bucket, count) in histogram[..BUCKETS - 1].iter().enumerate() {
        if u64::from(*count) >= rank {
            found = bucket;
            break;
        }
        rank -= u64::from(*count);
    }
    *histogram = [0; BUCKETS];
    Some(found)
}

/// The measurements, and the time of the next check.
#[derive(Debug)]
pub(super) struct Control {
    domains: [Measured; MEASURED],
    check_at: Option<Nanos>,
}

impl Control {
    /// Measures against the targets of reads and writes.
    pub(super) fn new([read, write]: [Nanos; 2]) -> Self {
        let measured = |target| Measured { target, ..Measured::default() };
        Self { domains: [read, write, DISCARD_TARGET].map(measured), check_at: None }
    }

    /// Adds the times of an ended request.
    pub(super) fn add(&mut self, domain: usize, now: Nanos, clocks: Clocks) {
        let Some(measured) = self.domains.get_mut(domain) else { return };
        measured.total[bucket(now.since(clocks.inserted), measured.target)] += 1;
        measured.device[bucket(now.since(clocks.dispatched), measured.target)] += 1;
        self.check_at.get_or_insert(now + INTERVAL);
    }

    /// The domains' tokens from now on.
    pub(super) fn adjust<const N: usize>(&mut self, now: Nanos, tokens: [u32; N]) -> [u32; N] {
        if self.check_at.is_none_or(|time| now < time) {
            return tokens;
        }
        self.check_at = None;
        let mut congested = false;
        for domain in &mut self.domains {
            let p90 = percentile(&mut domain.device, &mut domain.patient_until, now, 90);
            congested |= p90.is_some_and(|bucket| bucket >= GOOD);
        }
        let mut adjusted = tokens;
        for (place, domain) in self.domains.iter_mut().enumerate() {
            let mut p99 = percentile(&mut domain.total, &mut domain.patient_until, now, 99);
            if congested {
                p99 = p99.or(domain.p99);
                domain.p99 = None;
            } else if p99.is_some() {
                domain.p99 = p99;
            }
            if let Some(bucket) = p99.filter(|bucket| congested || *bucket >= GOOD) {
                let scaled = tokens[place] * (bucket as u32 + 1) / GOOD as u32;
                adjusted[place] = scaled.clamp(1, DEPTHS[place]);
            }
        }
        adjusted
    }
}
