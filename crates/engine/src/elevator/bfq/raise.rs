//! Weight raising: clients that are probably waited for by a person get a multiple of their weight,
//! for a limited time.
//!
//! ```text
//!   interactive      × 30     a request after 2 s without one    until the time or 60 MB are over
//!   soft real time   × 3000   few sectors, in regular batches    300 ms after a batch began
//! ```
//!
//! A program that starts, or opens a file, comes after a pause. A player asks for a batch of
//! blocks, waits for all of them, and comes back after they have been played. A greedy client
//! comes back at once: it is too early to be a player. Only clients of the default weight are
//! raised: another weight is the wish of its owner.

use crate::time::Nanos;

/// Factor of the weight of an interactive client (`bfq_wr_coeff`).
const INTERACTIVE: u64 = 30;
/// Further factor for soft real time (`BFQ_SOFTRT_WEIGHT_FACTOR`).
const SOFT_REAL_TIME: u64 = 100;
/// Length of a soft real-time period (`bfq_wr_rt_max_time`).
const SOFT_REAL_TIME_FOR: Nanos = Nanos::from_ms(300);
/// Greatest rate of a soft real-time client, in sectors a second (`bfq_wr_max_softrt_rate`).
const SOFT_REAL_TIME_RATE: u64 = 7000;
/// Shortest pause of a soft real-time client beyond `slice_idle`: four ticks of 1 ms.
const TICKS: Nanos = Nanos::from_ms(4);
/// Pause before an interactive period (`bfq_wr_min_idle_time`).
pub(super) const PAUSE: Nanos = Nanos::from_ms(2000);
/// Sectors that end an interactive period (`max_service_from_wr`).
const INTERACTIVE_SECTORS: u64 = 120_000;

/// Reason for a raised weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Interactive,
    SoftRealTime {
        /// Start of the interactive period that this one has interrupted.
        interactive_since: Option<Nanos>,
    },
}

/// A period of weight raising.
#[derive(Clone, Copy, Debug)]
struct Period {
    reason: Reason,
    since: Nanos,
    lasts: Nanos,
    /// Sectors served so far.
    sectors: u64,
}

/// State of a queue's weight raising.
#[derive(Debug)]
pub(super) struct Raising {
    period: Option<Period>,
    /// Time from which a batch may be one of a soft real-time client.
    soft_real_time_from: Nanos,
    /// Start of the current batch, and its sectors.
    batch_since: Nanos,
    batch_sectors: u64,
    /// Whether the batch is over with its last request in flight.
    batch_ends: bool,
}

impl Raising {
    pub(super) fn new(now: Nanos) -> Self {
        Self {
            period: None,
            soft_real_time_from: now,
            batch_since: now,
            batch_sectors: 0,
            batch_ends: false,
        }
    }

    /// Factor of the weight; 1 outside of a period.
    pub(super) fn factor(&self) -> u64 {
        match self.period.map(|period| period.reason) {
            None => 1,
            Some(Reason::Interactive) => INTERACTIVE,
            Some(Reason::SoftRealTime { .. }) => INTERACTIVE * SOFT_REAL_TIME,
        }
    }

    pub(super) fn is_raised(&self) -> bool {
        self.period.is_some()
    }

    pub(super) fn is_soft_real_time(&self) -> bool {
        self.period.is_some_and(|period| matches!(period.reason, Reason::SoftRealTime { .. }))
    }

    /// Whether a batch that begins now may be one of a soft real-time client.
    pub(super) fn may_be_soft_real_time(&self, now: Nanos) -> bool {
        now > self.soft_real_time_from
    }

    /// Begins or extends a period with the first request of a batch. An interactive one lasts for
    /// `interactive`.
    pub(super) fn raise(&mut self, now: Nanos, is_interactive: bool, interactive: Nanos) {
        let before = self.period;
        let sectors = before.map_or(0, |period| period.sectors);
        let period = |reason, lasts| Some(Period { reason, since: now, lasts, sectors });
        if is_interactive {
            self.period = period(Reason::Interactive, interactive);
            return;
        }
        let interactive_since = match before.map(|period| (period.reason, period.since)) {
            Some((Reason::SoftRealTime { interactive_since }, _)) => interactive_since,
            Some((Reason::Interactive, since)) => Some(since),
            None => None,
        };
        self.period = period(Reason::SoftRealTime { interactive_since }, SOFT_REAL_TIME_FOR);
    }

    /// Ends a soft real-time period: the client seeks at random.
    pub(super) fn end_soft_real_time(&mut self) {
        self.period.take_if(|period| period.reason != Reason::Interactive);
    }

    /// Begins a batch.
    pub(super) fn begin_batch(&mut self, now: Nanos) {
        self.batch_since = now;
        self.batch_sectors = 0;
        self.batch_ends = false;
    }

    /// Counts service, and ends a period that has lasted long enough.
    pub(super) fn served(&mut self, now: Nanos, sectors: u64, interactive: Nanos) {
        self.batch_sectors += sectors;
        let Some(period) = &mut self.period else { return };
        period.sectors += sectors;
        if now > period.since + period.lasts {
            let interrupted = match period.reason {
                Reason::SoftRealTime { interactive_since } => interactive_since,
                Reason::Interactive => None,
            };
            match interrupted.filter(|since| now <= *since + interactive) {
                Some(since) => {
                    period.reason = Reason::Interactive;
                    period.since = since;
                    period.lasts = interactive;
                }
                None => self.period = None,
            }
        }
        self.period.take_if(|period| {
            period.reason == Reason::Interactive && period.sectors > INTERACTIVE_SECTORS
        });
    }

    /// Notes that no request of the batch waits any more; `in_flight` ones may exist.
    pub(super) fn emptied(&mut self, now: Nanos, in_flight: u32, slice_idle: Nanos) {
        self.batch_ends = in_flight > 0;
        if in_flight == 0 {
            self.end_batch(now, slice_idle);
        }
    }

    /// Notes that nothing waits or is in flight.
    pub(super) fn drained(&mut self, now: Nanos, slice_idle: Nanos) {
        if core::mem::take(&mut self.batch_ends) {
            self.end_batch(now, slice_idle);
        }
    }

    /// Computes the time from which the next batch keeps to the rate of a player. During an
    /// interactive period the rate says nothing: a player that starts reads at full speed.
    fn end_batch(&mut self, now: Nanos, slice_idle: Nanos) {
        if self.period.is_some_and(|period| period.reason == Reason::Interactive) {
            return;
        }
        // The batch of a client that never pauses may have more sectors than 64 bits of ns allow.
        let ns = u128::from(self.batch_sectors) * 1_000_000_000 / u128::from(SOFT_REAL_TIME_RATE);
        let at_rate = Nanos(u64::try_from(ns).unwrap_or(u64::MAX));
        let from = (self.batch_since + at_rate).max(now + slice_idle + TICKS);
        self.soft_real_time_from = self.soft_real_time_from.max(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 32 TiB without a pause: some hours of a fast disk.
    #[test]
    fn client_that_asks_for_hours_without_a_pause_is_not_soft_real_time() {
        let slice_idle = Nanos::from_ms(8);
        let mut raising = Raising::new(Nanos(0));
        raising.begin_batch(Nanos(0));
        raising.served(Nanos(0), 1 << 36, Nanos::from_ms(3000));
        let end = Nanos::from_ms(10_000_000);
        raising.emptied(end, 0, slice_idle);
        assert!(!raising.may_be_soft_real_time(end + Nanos::from_ms(60_000)));
    }
}
