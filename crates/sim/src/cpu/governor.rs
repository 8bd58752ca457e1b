//! How fast each CPU runs: at full speed, or as a governor decides from its load (`ondemand`,
//! `drivers/cpufreq/cpufreq_ondemand.c`).
//!
//! Once per sample the share of time in which the CPU was busy is looked at. Above the threshold it
//! runs at full speed, else in proportion to that share, down to the slowest. A CPU that sleeps is
//! not looked at until it wakes: the load of a sample in which it did little stays on it.
//!
//! Left out: steps between frequencies, the time of a change, CPUs that share a clock.

use blockyard_engine::time::Nanos;

/// What decides how fast CPUs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Governor {
    /// How often it looks.
    pub sample: Nanos,
    /// From this load on it chooses full speed.
    pub up_threshold_percent: u32,
    /// The slowest speed, in percent of full speed.
    pub speed_min_percent: u32,
}

/// The speed of one CPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    speed_percent: u32,
    sample_began: Nanos,
    /// Busy since then.
    busy: Nanos,
}

impl Default for Clock {
    fn default() -> Self {
        Self { speed_percent: 100, sample_began: Nanos(0), busy: Nanos(0) }
    }
}

impl Clock {
    /// How long work takes that takes `burst` at full speed.
    pub(super) fn stretch(&mut self, now: Nanos, burst: Nanos, governor: &Governor) -> Nanos {
        let elapsed = now.since(self.sample_began);
        if elapsed >= governor.sample {
            let load = self.busy.0.min(elapsed.0) * 100 / elapsed.0;
            let load = u32::try_from(load).expect("a percentage");
            self.speed_percent = match load >= governor.up_threshold_percent {
                true => 100,
                false => load.max(governor.speed_min_percent),
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

    /// The last of `bursts` that each begin `every_us` after the one before.
    fn last_us(bursts: u64, burst_us: u64, every_us: u64) -> u64 {
        let (mut clock, mut now, mut last) = (Clock::default(), 0, Nanos(0));
        for _ in 0..bursts {
            last = clock.stretch(Nanos(now * 1000), Nanos(burst_us * 1000), &GOVERNOR);
            now += every_us.max(last.0 / 1000);
        }
        last.0 / 1000
    }

    #[test]
    fn busy_cpu_stays_fast_and_one_with_pauses_is_slowed_until_it_is_busy() {
        assert_eq!(last_us(1_000, 100, 0), 100);
        // A tenth of the time busy: the slowest speed makes that half of it, then half is chosen.
        let paused = last_us(1_000, 100, 1_000);
        assert!((150..=500).contains(&paused), "{paused} us");
        assert_eq!(last_us(1_000, 100, 100_000), 500, "one burst in a while is always slow");
    }
}
