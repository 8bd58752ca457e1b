//! CPU frequency: constant full speed, or set by a governor from the load (`ondemand`,
//! `drivers/cpufreq/cpufreq_ondemand.c`).
//!
//! Once per sample the governor reads the share of busy time. Above the threshold the CPU runs at
//! full speed, otherwise in proportion to the share, with a minimum. A sleeping CPU is sampled when
//! it wakes, so a sample with little load stays in effect.
//!
//! Left out: frequency steps, transition times, CPUs that share a clock.

use blockyard_engine::time::Nanos;

/// A frequency governor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Governor {
    /// Interval of samples.
    pub sample: Nanos,
    /// Load from which on it chooses full speed.
    pub up_threshold_percent: u32,
    /// Minimum speed, in percent of full speed.
    pub speed_min_percent: u32,
}

/// Speed of one CPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    speed_percent: u32,
    sample_began: Nanos,
    /// Busy time since the last sample.
    busy: Nanos,
}

impl Default for Clock {
    fn default() -> Self {
        Self { speed_percent: 100, sample_began: Nanos(0), busy: Nanos(0) }
    }
}

impl Clock {
    /// Duration of work that takes `burst` at full speed.
    pub(super) fn stretch(&mut self, now: Nanos, burst: Nanos, governor: &Governor) -> Nanos {
        let elapsed = now.since(self.sample_began);
        if elapsed >= governor.sample {
            let load = self.busy.0.min(elapsed.0) * 100 / elapsed.0;
            let load = u32::try_from(load).expect("a percentage");
            self.speed_percent = if load >= governor.up_threshold_percent {
                100
            } else {
                load.max(governor.speed_min_percent)
            };
            (self.sample_began, self.busy) = (now, Nanos(0));
        }
        let stretched = Nanos(burst.0 * 100 / u64::from(self.speed_percent.max(1)));
        self.busy = self.busy + stretched;
        stretched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOVERNOR: Governor =
        Governor { sample: Nanos::from_ms(10), up_threshold_percent: 95, speed_min_percent: 20 };

    /// Duration of the last of `bursts` bursts, which start every `every_us`.
    fn last_us(bursts: u64, burst_us: u64, every_us: u64) -> u64 {
        let mut clock = Clock::default();
        let mut now = 0;
        let mut last = Nanos(0);
        for _ in 0..bursts {
            last = clock.stretch(Nanos(now * 1000), Nanos(burst_us * 1000), &GOVERNOR);
            now += every_us.max(last.0 / 1000);
        }
        last.0 / 1000
    }

    #[test]
    fn busy_cpu_stays_fast_and_one_with_pauses_is_slowed_until_it_is_busy() {
        assert_eq!(last_us(1_000, 100, 0), 100);
        // Busy for a tenth of the time: at minimum speed that is half of it, so half speed is
        // chosen.
        let paused = last_us(1_000, 100, 1_000);
        assert!((150..=500).contains(&paused), "{paused} us");
        assert_eq!(last_us(1_000, 100, 100_000), 500, "one burst in a while is always slow");
    }
}
