//! Pauses before a request: `thinktime`, `rate`, `rate_iops`; and the least rate: `rate_min`,
//! `rate_iops_min`.
//!
//! As in fio (`handle_thinktime`, `usec_for_io`), a pause begins after the requests in flight have
//! ended, so that latencies do not contain it. Each direction has its own rate, counted from the
//! start, and a clone catches up after a delay. With `rate_process=poisson` the intervals between
//! requests are random, and the rate is their mean.

use blockyard_engine::time::Nanos;

use super::job::Job;
use super::lens::Direction;
use crate::random::Random;

/// Stream of random numbers besides that of the offsets. Our choice.
const POISSON_STREAM: u64 = 0x706f_6973;

/// Start times of the requests of a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateProcess {
    /// `linear`: at equal intervals.
    #[default]
    Linear,
    /// `poisson`: independent of each other.
    Poisson,
}

/// Start times of the requests: delays, think times, and rates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaceRule {
    /// `startdelay`: delay before the first block.
    pub start_delay: Nanos,
    /// `ramp_time`: unmeasured time at the start, before `runtime` begins.
    pub ramp_time: Nanos,
    /// `thinktime`: pause after [`Self::thinktime_blocks`], without requests in flight.
    pub thinktime: Nanos,
    /// `thinktime_blocks`.
    pub thinktime_blocks: u32,
    /// `thinktime_blocks_type=complete`: count ended blocks, not started ones.
    pub thinks_of_completed: bool,
    /// `rate_ignore_thinktime`: a rate limit makes no allowance for the think time.
    pub rate_ignore_thinktime: bool,
    /// `rate`: limit of each clone in bytes per second, by direction.
    pub rate_bytes_s: [Option<u64>; 3],
    /// `rate_iops`: limit of each clone in requests per second, by direction; `rate` has
    /// precedence.
    pub rate_iops: [Option<u64>; 3],
    /// `rate_process`.
    pub rate_process: RateProcess,
    /// `rate_min`: least rate in bytes per second, by direction; a slower clone fails.
    pub rate_min_bytes_s: [Option<u64>; 3],
    /// `rate_iops_min`: least rate in requests per second, by direction; a slower clone fails.
    pub rate_min_iops: [Option<u64>; 3],
    /// `rate_cycle`: interval over which the least rate is checked.
    pub rate_cycle: Nanos,
}

impl Default for PaceRule {
    fn default() -> Self {
        Self {
            start_delay: Nanos(0),
            ramp_time: Nanos(0),
            thinktime: Nanos(0),
            thinktime_blocks: 1,
            thinks_of_completed: false,
            rate_ignore_thinktime: false,
            rate_bytes_s: [None; 3],
            rate_iops: [None; 3],
            rate_process: RateProcess::default(),
            rate_min_bytes_s: [None; 3],
            rate_min_iops: [None; 3],
            rate_cycle: Nanos::from_ms(1000),
        }
    }
}

/// The pace of a clone.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    thinktime: Nanos,
    thinktime_blocks: u64,
    thinks_of_completed: bool,
    /// Requests since the last think time.
    since_think: u64,
    /// `rate_ignore_thinktime`: a rate does not catch up for the think time.
    forgets_missed: bool,
    /// Remaining think time.
    think_left: Nanos,
    bytes_s: [Option<u64>; 3],
    iops: [Option<u64>; 3],
    /// Started bytes and requests, by direction.
    bytes: [u64; 3],
    ios: [u64; 3],
    /// `poisson`: due time of the next request, by direction.
    poisson: Option<(Random, [f64; 3])>,
}

impl Pace {
    pub(super) fn of(job: &Job, number: u64) -> Self {
        let is_drawn = job.pace.rate_process == RateProcess::Poisson;
        let poisson = is_drawn.then(|| Random::new(job.shape.seed ^ POISSON_STREAM, number));
        Self {
            thinktime: job.pace.thinktime,
            thinktime_blocks: job.pace.thinktime_blocks.into(),
            thinks_of_completed: job.pace.thinks_of_completed,
            since_think: 0,
            forgets_missed: job.pace.rate_ignore_thinktime,
            think_left: job.pace.thinktime,
            bytes_s: job.pace.rate_bytes_s,
            iops: job.pace.rate_iops,
            bytes: [0; 3],
            ios: [0; 3],
            poisson: poisson.map(|random| (random, [0.0; 3])),
        }
    }

    /// The pause before the next request, `elapsed` after the clone's start.
    pub(super) fn pause(&self, elapsed: Nanos, direction: Direction) -> Option<Nanos> {
        if self.thinks_now() {
            return Some(self.think_left);
        }
        let index = direction.index();
        let due_ns = match &self.poisson {
            Some((_, due)) => due[index] as u128,
            None => {
                let (done, a_second) = match (self.bytes_s[index], self.iops[index]) {
                    (Some(bytes_s), _) => (self.bytes[index], bytes_s),
                    (None, iops) => (self.ios[index], iops?),
                };
                u128::from(done) * 1_000_000_000 / u128::from(a_second)
            }
        };
        let due = Nanos(u64::try_from(due_ns).unwrap_or(u64::MAX));
        (due > elapsed).then(|| due - elapsed)
    }

    /// Counts a started request.
    pub(super) fn started(&mut self, direction: Direction, len_bytes: u64) {
        let index = direction.index();
        self.since_think += u64::from(!self.thinks_of_completed);
        self.bytes[index] = self.bytes[index].saturating_add(len_bytes);
        self.ios[index] += 1;
        if let Some((random, due)) = &mut self.poisson {
            let mean_ns = match (self.bytes_s[index], self.iops[index]) {
                (Some(bytes_s), _) => len_bytes as f64 * 1e9 / bytes_s as f64,
                (None, Some(iops)) => 1e9 / iops as f64,
                (None, None) => return,
            };
            let lot = (random.below(1 << 53) + 1) as f64 / (1u64 << 53) as f64;
            due[index] += -lot.ln() * mean_ns;
        }
    }

    /// Counts ended requests.
    pub(super) fn completed(&mut self, requests: u64) {
        self.since_think += if self.thinks_of_completed { requests } else { 0 };
    }

    fn thinks_now(&self) -> bool {
        self.thinktime > Nanos(0) && self.since_think >= self.thinktime_blocks
    }

    /// Notes the end of a pause. A pause for the rate is no think time.
    pub(super) fn paused(&mut self, pause: Nanos) {
        if self.thinks_now() {
            self.think_left = self.think_left.since(pause);
            if self.think_left == Nanos(0) {
                (self.since_think, self.think_left) = (0, self.thinktime);
                if self.forgets_missed {
                    self.forget_missed();
                }
            }
        }
    }

    /// Counts the think time as if the rate had been met in it.
    fn forget_missed(&mut self) {
        let in_time = |a_second: u64| {
            let missed = u128::from(a_second) * u128::from(self.thinktime.0) / 1_000_000_000;
            u64::try_from(missed).unwrap_or(u64::MAX)
        };
        for index in 0..3 {
            let bytes = self.bytes_s[index].map_or(0, in_time);
            let ios = self.iops[index].map_or(0, in_time);
            self.bytes[index] = self.bytes[index].saturating_add(bytes);
            self.ios[index] = self.ios[index].saturating_add(ios);
        }
        if let Some((_, due)) = &mut self.poisson {
            due.iter_mut().for_each(|due| *due += self.thinktime.0 as f64);
        }
    }

    /// Restarts the counts at the end of the ramp.
    pub(super) fn restart(&mut self) {
        (self.bytes, self.ios) = ([0; 3], [0; 3]);
        if let Some((_, due)) = &mut self.poisson {
            *due = [0.0; 3];
        }
    }
}

/// Check of the least rate, after each request, cycle by cycle.
#[derive(Clone, Debug)]
pub(super) struct Floor {
    bytes_s: [Option<u64>; 3],
    iops: [Option<u64>; 3],
    cycle: Nanos,
    since: Nanos,
    bytes: [u64; 3],
    ios: [u64; 3],
}

impl Floor {
    /// `None` if the job has no least rate.
    pub(super) fn of(job: &Job) -> Option<Self> {
        let of_used = |all: [Option<u64>; 3]| {
            let floor = |direction: Direction| all[direction.index()];
            Direction::ALL.map(|one| floor(one).filter(|_| job.shape.rw.has(one)))
        };
        let bytes_s = of_used(job.pace.rate_min_bytes_s);
        let iops = of_used(job.pace.rate_min_iops);
        let has_any = bytes_s.iter().chain(&iops).any(Option::is_some);
        let cycle = job.pace.rate_cycle;
        let since = Nanos(0);
        has_any.then_some(Self { bytes_s, iops, cycle, since, bytes: [0; 3], ios: [0; 3] })
    }

    /// Counts an ended request. Returns false if the clone is too slow, `elapsed` after its start.
    pub(super) fn ended(&mut self, elapsed: Nanos, direction: Direction, len_bytes: u64) -> bool {
        let index = direction.index();
        self.bytes[index] += len_bytes;
        self.ios[index] += 1;
        let span = elapsed.since(self.since);
        if span < self.cycle {
            return true;
        }
        let is_enough = |done: u64, floor: Option<u64>| {
            let a_second = u128::from(done) * 1_000_000_000 / u128::from(span.0.max(1));
            floor.is_none_or(|floor| a_second >= u128::from(floor))
        };
        let is_well = (0..3).all(|index| {
            is_enough(self.bytes[index], self.bytes_s[index])
                && is_enough(self.ios[index], self.iops[index])
        });
        (self.since, self.bytes, self.ios) = (elapsed, [0; 3], [0; 3]);
        is_well
    }
}
