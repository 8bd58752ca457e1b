//! The device's peak rate, from the times of dispatches. Two numbers depend on it: the largest
//! budget, which is what the device transfers within `timeout_sync`, and the length of weight
//! raising.
//!
//! An observation takes a second, or ends when the device was idle for long. It counts if three
//! quarters of its requests followed the one before, or if it is faster than the estimate. The
//! estimate moves towards it by up to a half, the more the longer and the more sequential it was.

use crate::time::Nanos;

/// Fraction bits of a rate in sectors per microsecond.
const SHIFT: u32 = 16;
/// An observation that counts has this many requests, and lasts this long.
const SAMPLES_MIN: u64 = 32;
const WINDOW_MIN: Nanos = Nanos::from_ms(300);
/// Length of an observation.
const WINDOW: Nanos = Nanos::from_ms(1000);
/// A pause of the device that ends an observation.
const PAUSE: Nanos = Nanos::from_ms(100);
/// A pause between requests of one client that the device does not notice (`BFQ_MIN_TT`).
const SHORT_PAUSE: Nanos = Nanos::from_ms(2);
/// Rates above this one are mistakes: 20 sectors in a microsecond.
const RATE_MAX: u64 = 20 << SHIFT;
/// Rate below which a request that took long ends an observation: 2^-10 sectors in a microsecond.
const RATE_MIN: u64 = 1 << (SHIFT - 10);

/// Rate of the reference device (`ref_rate`), rotational or not.
const REFERENCE: [u64; 2] = [33_000, 14_000];
/// Length of weight raising on the reference device (`ref_wr_duration`).
const REFERENCE_RAISING_MS: [u64; 2] = [2500, 7000];
/// Limits of the length of weight raising.
const RAISING_MS: [u64; 2] = [3000, 25_000];
/// Largest budget until the rate has been measured (`bfq_default_max_budget`).
const DEFAULT_BUDGET: u64 = 16 * 1024;
/// Least largest budget: our limit, for very slow devices.
const BUDGET_MIN: u64 = 256;

/// The estimate and the observation.
#[derive(Debug)]
pub(super) struct PeakRate {
    rotational: bool,
    /// Sectors per microsecond, shifted.
    rate: u64,
    is_measured: bool,
    samples: u64,
    sequential: u64,
    sectors: u64,
    /// Size of the largest of the last 32 requests.
    largest: u64,
    first_dispatch: Nanos,
    last_dispatch: Nanos,
    last_completion: Nanos,
}

impl PeakRate {
    pub(super) fn new(rotational: bool) -> Self {
        Self {
            rotational,
            rate: REFERENCE[usize::from(rotational)] * 2 / 3,
            is_measured: false,
            samples: 0,
            sequential: 0,
            sectors: 0,
            largest: 0,
            first_dispatch: Nanos(0),
            last_dispatch: Nanos(0),
            last_completion: Nanos(0),
        }
    }

    /// Largest budget of a turn that may take `timeout`.
    pub(super) fn largest_budget(&self, timeout: Nanos) -> u64 {
        if !self.is_measured {
            return DEFAULT_BUDGET;
        }
        let sectors = (u128::from(self.rate) * u128::from(timeout.0 / 1000)) >> SHIFT;
        u64::try_from(sectors).unwrap_or(u64::MAX).max(BUDGET_MIN)
    }

    /// Length of weight raising for an interactive client: longer on slower devices.
    pub(super) fn raising(&self) -> Nanos {
        let class = usize::from(self.rotational);
        let ms = REFERENCE[class] * REFERENCE_RAISING_MS[class] / self.rate;
        Nanos::from_ms(ms.clamp(RAISING_MS[0], RAISING_MS[1]))
    }

    /// Notes the dispatch of a request, with `others` in flight.
    pub(super) fn dispatched(&mut self, now: Nanos, sectors: u64, is_seek: bool, others: u32) {
        let has_paused = now.since(self.last_dispatch) > PAUSE && others == 0;
        if self.samples == 0 || has_paused {
            self.end_observation();
            self.begin_observation(now, sectors);
            return;
        }
        self.samples += 1;
        let is_fed = others > 0 || now.since(self.last_completion) < SHORT_PAUSE;
        self.sequential += u64::from(is_fed && !is_seek);
        self.sectors += sectors;
        let is_old = self.samples.is_multiple_of(32);
        self.largest = if is_old { sectors } else { self.largest.max(sectors) };
        self.last_dispatch = now;
        if now.since(self.first_dispatch) >= WINDOW {
            self.end_observation();
            self.begin_observation(now, sectors);
        }
    }

    /// Notes the end of a request.
    pub(super) fn completed(&mut self, now: Nanos) {
        let pause = now.since(self.last_completion);
        let pause_us = pause.0 / 1000;
        if pause > SHORT_PAUSE && (self.largest << SHIFT) / pause_us < RATE_MIN {
            self.end_observation();
        }
        self.last_completion = now;
    }

    fn begin_observation(&mut self, now: Nanos, sectors: u64) {
        self.samples = 1;
        self.sequential = 0;
        self.sectors = sectors;
        self.largest = sectors;
        self.first_dispatch = now;
        self.last_dispatch = now;
    }

    /// Ends the observation, at the last dispatch or at a later completion.
    fn end_observation(&mut self) {
        let samples = core::mem::take(&mut self.samples);
        let window = self.last_dispatch.since(self.first_dispatch);
        if samples < SAMPLES_MIN || window < WINDOW_MIN {
            return;
        }
        let window = window.max(self.last_completion.since(self.first_dispatch));
        let rate = (self.sectors << SHIFT) / (window.0 / 1000);
        let is_random = self.sequential < 3 * samples / 4;
        if (is_random && rate <= self.rate) || rate > RATE_MAX {
            return;
        }
        let weight = 9 * self.sequential / samples;
        let weight = (weight * window.0 / WINDOW.0).min(8);
        let divisor = 10 - weight;
        self.rate = (self.rate * (divisor - 1) / divisor + rate / divisor).max(1);
        self.is_measured = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests of 256 sectors, one after the other, at this rate, for `ms`.
    fn stream(rate: &mut PeakRate, sectors_per_ms: u64, from: Nanos, ms: u64) -> Nanos {
        let mut now = from;
        while now.since(from) < Nanos::from_ms(ms) {
            rate.dispatched(now, 256, false, 0);
            now = now + Nanos(256_000_000 / sectors_per_ms);
            rate.completed(now);
        }
        now
    }

    #[test]
    fn largest_budget_is_what_the_device_transfers_within_the_timeout() {
        let timeout = Nanos::from_ms(125);
        let mut rate = PeakRate::new(true);
        assert_eq!(rate.largest_budget(timeout), 16_384);
        stream(&mut rate, 300, Nanos(0), 12_000);
        let exact = 37_100..=37_900; // 300 sectors in a millisecond, within 1 %
        assert!(exact.contains(&rate.largest_budget(timeout)), "{rate:?}");
        // A random reader says nothing about the peak.
        let mut now = Nanos::from_ms(20_000);
        for _ in 0..1000 {
            rate.dispatched(now, 8, true, 0);
            now = now + Nanos::from_ms(8);
            rate.completed(now);
        }
        assert!(exact.contains(&rate.largest_budget(timeout)), "{rate:?}");
    }

    #[test]
    fn raising_is_longer_on_slower_devices_within_its_limits() {
        let raising_ms = |sectors_per_ms| {
            let mut rate = PeakRate::new(true);
            stream(&mut rate, sectors_per_ms, Nanos(0), 15_000);
            rate.raising().0 / 1_000_000
        };
        assert_eq!(PeakRate::new(true).raising(), Nanos::from_ms(10_500));
        assert_eq!((raising_ms(4000), raising_ms(20)), (3000, 25_000));
        let at_reference = raising_ms(214); // 14000 / 65536 sectors in a microsecond
        assert!((6900..7200).contains(&at_reference), "{at_reference}");
    }
}
