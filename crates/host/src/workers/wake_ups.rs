//! The time that a sleeping worker takes to come, as it is in use.
//!
//! The hand-over that is measured at the start says little about a machine whose CPUs sleep more
//! deeply between requests, or that is busy later.

use std::sync::atomic::{AtomicU64, Ordering};

use blockyard_engine::time::Nanos;

/// Time after which the last wake-up says nothing any more: then hand-overs are tried again. Ours:
/// a trial in vain is a thousandth of that.
const VALID_FOR: Nanos = Nanos(100_000_000);

/// A wake-up moves the typical time by this part of it. Ours: two dozen of them find a time that is
/// ten times as long, and one that was interrupted changes little.
const STEP: u64 = 8;
/// The part after a time without wake-ups, when each one is a trial.
const STEP_OF_TRIAL: u64 = 2;

/// Limit of the first one, which may have been interrupted. Ours: half of the longest hand-over
/// that is measured at the start.
const FIRST_MAX: u64 = super::ROUND_TRIP_MAX_NS / 2;

/// Typical time of the latest wake-ups: near their median.
#[derive(Default)]
pub(super) struct WakeUps {
    typical_ns: AtomicU64,
    /// Time of the last one; 0 before the first.
    last_at: AtomicU64,
}

impl WakeUps {
    /// Notes a wake-up. Of two threads that call it at a time, one step may be lost.
    pub(super) fn note(&self, took: Nanos, now: Nanos) {
        let before = self.typical_ns.load(Ordering::Relaxed);
        let part = if self.typical(now).is_none() { STEP_OF_TRIAL } else { STEP };
        let step = before / part;
        let typical_ns = match before {
            0 => took.0.min(FIRST_MAX),
            _ if took.0 > before => before + step,
            _ => before - step,
        };
        self.typical_ns.store(typical_ns.max(STEP), Ordering::Relaxed);
        self.last_at.store(now.0, Ordering::Relaxed);
    }

    /// The typical time, if a worker has come lately.
    pub(super) fn typical(&self, now: Nanos) -> Option<Nanos> {
        let last_at = Nanos(self.last_at.load(Ordering::Relaxed));
        let is_valid = last_at > Nanos(0) && now.since(last_at) < VALID_FOR;
        is_valid.then(|| Nanos(self.typical_ns.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The typical time after these wake-ups of so many microseconds.
    fn typical_us(wake_ups: &WakeUps, all_us: impl Iterator<Item = u64>) -> u64 {
        let now = Nanos(1);
        all_us.for_each(|us| wake_ups.note(Nanos(us * 1000), now));
        wake_ups.typical(now).unwrap().0 / 1000
    }

    #[test]
    fn typical_time_follows_the_wake_ups_and_not_a_single_one() {
        let wake_ups = WakeUps::default();
        assert_eq!(typical_us(&wake_ups, [6].into_iter()), 6, "the first one");
        assert_eq!(typical_us(&wake_ups, [900].into_iter()), 6, "an interrupted one");
        let slow = typical_us(&wake_ups, std::iter::repeat_n(60, 24));
        assert!((52..=68).contains(&slow), "{slow}");
        let mixed =
            typical_us(&wake_ups, [50, 70, 50, 70, 900, 50, 70].into_iter().cycle().take(70));
        assert!((45..=80).contains(&mixed), "{mixed}");
        let fast = typical_us(&wake_ups, std::iter::repeat_n(5, 30));
        assert!((4..=6).contains(&fast), "{fast}");
    }

    #[test]
    fn first_wake_up_that_was_interrupted_is_soon_forgotten() {
        let typical = typical_us(&WakeUps::default(), std::iter::once(3_000));
        assert_eq!(typical, FIRST_MAX / 1000);
        let after = [3_000].into_iter().chain(std::iter::repeat_n(6, 20));
        let typical = typical_us(&WakeUps::default(), after);
        assert!((5..=7).contains(&typical), "{typical}");
    }

    #[test]
    fn trials_after_a_slow_time_find_a_fast_one_soon() {
        let wake_ups = WakeUps::default();
        typical_us(&wake_ups, std::iter::repeat_n(80, 40));
        for trial in 1..=4 {
            wake_ups.note(Nanos(5_000), Nanos(1 + trial * VALID_FOR.0));
        }
        assert!(wake_ups.typical(Nanos(2 + 4 * VALID_FOR.0)).unwrap() < Nanos(8_000));
    }

    #[test]
    fn old_wake_ups_say_nothing() {
        let wake_ups = WakeUps::default();
        assert_eq!(wake_ups.typical(VALID_FOR), None, "there was none");
        let at = Nanos(1);
        wake_ups.note(Nanos(9_000), at);
        assert_eq!(wake_ups.typical(Nanos(VALID_FOR.0)), Some(Nanos(9_000)));
        assert_eq!(wake_ups.typical(at + VALID_FOR), None);
    }
}
