//! `steadystate`: a job ends when its rates have settled.
//!
//! The window holds the rates of the last seconds. When the window is full, a limit applies to the
//! greatest deviation from the mean, or to the slope of the least-squares line. In fio a helper
//! thread ends the seconds by the clock. Here the first request after a second's end does, and the
//! rate is over the time that has passed. With `group_reporting` a group is measured as one, and
//! ends as one. `lat` and `steadystate_check_interval` are of a later fio than 3.33.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blockyard_engine::time::Nanos;

use crate::fio::job::{Job, JobError};
use crate::fio::value::{KbBase, millionths, size};

/// Greatest number of samples: one a second for a day. Our choice.
const SAMPLES_MAX: u64 = 86_400;
/// Longest duration: a year. Our choice.
const LONGEST: Nanos = Nanos(366 * 86_400 * 1_000_000_000);

/// The measured figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SteadyFigure {
    /// `iops`.
    #[default]
    Iops,
    /// `bw`.
    Bandwidth,
    /// `lat`: the mean latency.
    Latency,
}

/// A job's steady-state rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteadyRule {
    /// The figure.
    pub figure: SteadyFigure,
    /// Whether the limit applies to the slope per second; otherwise to the deviation from the mean.
    pub is_slope: bool,
    /// The limit, in millionths.
    pub limit_millionths: u64,
    /// Whether the limit is in percent of the mean.
    pub is_percent: bool,
    /// `steadystate_duration`: length of the window; zero: no rule.
    pub window: Nanos,
    /// `steadystate_ramp_time`: time before the first sample.
    pub ramp: Nanos,
    /// `steadystate_check_interval`: time of a sample.
    pub interval: Nanos,
}

impl Default for SteadyRule {
    fn default() -> Self {
        Self {
            figure: SteadyFigure::Iops,
            is_slope: true,
            limit_millionths: 10_000,
            is_percent: true,
            window: Nanos(0),
            ramp: Nanos(0),
            interval: Nanos::from_ms(1000),
        }
    }
}

impl SteadyRule {
    /// Parses `iops:2%`, `bw_slope:1m`.
    pub(super) fn set_limit(&mut self, text: &str, base: KbBase) -> Result<(), String> {
        let wanted = "it must be iops, bw or lat, or one of them with _slope, and a limit, as in \
                      iops:2% or bw_slope:1m";
        let (name, limit) = text.split_once(':').ok_or(wanted)?;
        let (name, is_slope) =
            name.strip_suffix("_slope").map_or((name, false), |name| (name, true));
        let figure = match name {
            "iops" => SteadyFigure::Iops,
            "bw" => SteadyFigure::Bandwidth,
            "lat" => SteadyFigure::Latency,
            _ => return Err(wanted.into()),
        };
        let (percent, is_percent) =
            limit.strip_suffix('%').map_or((limit, false), |limit| (limit, true));
        let limit = match figure {
            SteadyFigure::Bandwidth if !is_percent => size(limit, base)?.checked_mul(1_000_000),
            _ => millionths(percent.trim()),
        };
        let limit_millionths = limit.ok_or(wanted)?;
        *self = Self { figure, is_slope, limit_millionths, is_percent, ..*self };
        Ok(())
    }

    /// The problem of an invalid rule.
    pub(super) fn problem(&self) -> Option<String> {
        match () {
            () if self.window == Nanos(0) => None,
            () if self.ramp.max(self.interval) > LONGEST => {
                Some("has a ramp time or a check interval of more than a year".into())
            }
            () if self.interval == Nanos(0) => Some("needs a check interval, as in 1s".into()),
            () if self.samples() < 2 => {
                Some("needs a duration of two check intervals at least, as in ss_dur=30".into())
            }
            () if self.samples() > SAMPLES_MAX => {
                Some(format!("has more than {SAMPLES_MAX} check intervals in its duration"))
            }
            () => None,
        }
    }

    fn samples(&self) -> u64 {
        self.window.0 / self.interval.0.max(1)
    }

    /// The rule in fio's form.
    #[must_use]
    pub fn name(&self) -> String {
        let figure = match self.figure {
            SteadyFigure::Iops => "iops",
            SteadyFigure::Bandwidth => "bw",
            SteadyFigure::Latency => "lat",
        };
        format!("{figure}{}", if self.is_slope { "_slope" } else { "" })
    }
}

/// Rates at the end of the jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Steady {
    /// The rule.
    pub rule: SteadyRule,
    /// Whether the rates had settled.
    pub is_attained: bool,
    /// The figure compared with the limit, of the last full window.
    pub criterion: f64,
    /// Greatest deviation from the mean.
    pub deviation: f64,
    /// Slope per check interval.
    pub slope: f64,
    /// Requests per second, the oldest first; padded with zeros to the length of the window.
    pub iops: Vec<u64>,
    /// Bytes per second, likewise.
    pub bandwidth: Vec<u64>,
    /// Mean latency in nanoseconds, likewise.
    pub latency_ns: Vec<u64>,
}

/// Rates of one interval.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    iops: u64,
    bytes_s: u64,
    latency_ns: u64,
}

#[derive(Debug)]
struct Window {
    rule: SteadyRule,
    /// Start of the first clone.
    began: Option<Nanos>,
    /// End of the last interval.
    since: Nanos,
    samples: VecDeque<Sample>,
    criterion: f64,
    deviation: f64,
    slope: f64,
}

/// Clones that are measured together.
#[derive(Debug)]
pub(super) struct Group {
    requests: AtomicU64,
    bytes: AtomicU64,
    latency_ns: AtomicU64,
    is_attained: AtomicBool,
    window: Mutex<Window>,
}

/// The measured group of each job's clones; `None`: each clone is measured by itself.
pub(super) fn of_jobs(jobs: &[Job], groups: &[u32]) -> Result<Vec<Option<Arc<Group>>>, JobError> {
    let mut shared: BTreeMap<u32, Arc<Group>> = BTreeMap::new();
    let mut rules: BTreeMap<u32, SteadyRule> = BTreeMap::new();
    let of = |(job, group): (&Job, &u32)| {
        let rule = job.controls.steady;
        if rule.window == Nanos(0) || !job.grouping.group_reporting {
            return Ok(None);
        }
        if *rules.entry(*group).or_insert(rule) != rule {
            return Err(JobError {
                job: job.name.clone(),
                key: "steadystate".into(),
                problem: "and its like must be the same in all jobs of a group that is \
                          reported as one"
                    .into(),
            });
        }
        let new = || Arc::new(Group::new(&rule));
        Ok(Some(Arc::clone(shared.entry(*group).or_insert_with(new))))
    };
    jobs.iter().zip(groups).map(of).collect()
}

impl Group {
    pub(super) fn new(rule: &SteadyRule) -> Self {
        let window = Window {
            rule: *rule,
            began: None,
            since: Nanos(0),
            samples: VecDeque::new(),
            criterion: 0.0,
            deviation: 0.0,
            slope: 0.0,
        };
        Self {
            requests: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            latency_ns: AtomicU64::new(0),
            is_attained: AtomicBool::new(false),
            window: Mutex::new(window),
        }
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the interval if it is over. Returns the end of the open interval.
    fn end_interval(&self, now: Nanos) -> Nanos {
        let mut window = self.window();
        let span = now.since(window.since);
        if span >= window.rule.interval {
            let [requests, bytes, latency_ns] = [&self.requests, &self.bytes, &self.latency_ns]
                .map(|count| count.swap(0, Ordering::Relaxed));
            let a_second = |count: u64| {
                let rate = u128::from(count) * 1_000_000_000 / u128::from(span.0);
                u64::try_from(rate).unwrap_or(u64::MAX)
            };
            let latency_ns = latency_ns / requests.max(1);
            window.since = now;
            let sample = Sample { iops: a_second(requests), bytes_s: a_second(bytes), latency_ns };
            if window.add(now, sample) {
                self.is_attained.store(true, Ordering::Relaxed);
            }
        }
        window.since + window.rule.interval
    }
}

impl Window {
    /// Adds a sample. Returns true if the rates have settled.
    fn add(&mut self, now: Nanos, sample: Sample) -> bool {
        let SteadyRule { ramp, interval, .. } = self.rule;
        let elapsed = now.since(self.began.unwrap_or(now));
        // A sample's interval must begin after the ramp.
        if ramp > Nanos(0) && elapsed < ramp + interval {
            return false;
        }
        let samples = self.rule.samples() as usize;
        if self.samples.len() == samples {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        self.samples.len() == samples && self.judge()
    }

    fn judge(&mut self) -> bool {
        let figure = |sample: &Sample| match self.rule.figure {
            SteadyFigure::Iops => sample.iops as f64,
            SteadyFigure::Bandwidth => sample.bytes_s as f64,
            SteadyFigure::Latency => sample.latency_ns as f64,
        };
        let values: Vec<f64> = self.samples.iter().map(figure).collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let middle = (n - 1.0) / 2.0;
        let found = if self.rule.is_slope {
            let at = |(x, y): (usize, &f64)| (x as f64 - middle, y - mean);
            let points = || values.iter().enumerate().map(at);
            let products: f64 = points().map(|(x, y)| x * y).sum();
            self.slope = products / points().map(|(x, _)| x * x).sum::<f64>();
            self.slope
        } else {
            let distances = values.iter().map(|value| (value - mean).abs());
            self.deviation = distances.fold(0.0, f64::max);
            self.deviation
        };
        self.criterion =
            if self.rule.is_percent && mean > 0.0 { 100.0 * found / mean } else { found };
        self.criterion.abs() < self.rule.limit_millionths as f64 / 1e6
    }
}

/// A clone's membership of a measured group.
#[derive(Debug)]
pub(super) struct Watch {
    group: Arc<Group>,
    /// Time of the next check.
    due: Nanos,
}

impl Watch {
    pub(super) fn new(group: Arc<Group>) -> Self {
        Self { group, due: Nanos(u64::MAX) }
    }

    pub(super) fn started(&mut self, now: Nanos) {
        let mut window = self.group.window();
        if window.began.is_none() {
            (window.began, window.since) = (Some(now), now);
        }
        self.due = window.since + window.rule.interval;
    }

    pub(super) fn ended(&self, bytes: u64, lat: Nanos) {
        for (count, more) in
            [(&self.group.requests, 1), (&self.group.bytes, bytes), (&self.group.latency_ns, lat.0)]
        {
            count.fetch_add(more, Ordering::Relaxed);
        }
    }

    pub(super) fn is_attained(&mut self, now: Nanos) -> bool {
        if now >= self.due {
            self.due = self.group.end_interval(now);
        }
        self.group.is_attained.load(Ordering::Relaxed)
    }

    pub(super) fn result(&self) -> Steady {
        let window = self.group.window();
        let all = |figure: fn(&Sample) -> u64| {
            let mut figures: Vec<u64> = window.samples.iter().map(figure).collect();
            figures.resize(window.rule.samples() as usize, 0);
            figures
        };
        Steady {
            rule: window.rule,
            is_attained: self.group.is_attained.load(Ordering::Relaxed),
            criterion: window.criterion,
            deviation: window.deviation,
            slope: window.slope,
            iops: all(|sample| sample.iops),
            bandwidth: all(|sample| sample.bytes_s),
            latency_ns: all(|sample| sample.latency_ns),
        }
    }
}

impl Steady {
    /// Mean of the window.
    #[must_use]
    pub fn mean(figures: &[u64]) -> u64 {
        figures.iter().sum::<u64>() / (figures.len() as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(limit: &str, rates: &[u64]) -> (Vec<bool>, Window) {
        let mut rule = SteadyRule { window: Nanos::from_ms(3000), ..SteadyRule::default() };
        rule.set_limit(limit, KbBase::default()).unwrap();
        let group = Group::new(&rule);
        let mut window = group.window.into_inner().unwrap();
        let add = |(at, rate): (u64, &u64)| {
            let sample = Sample { iops: *rate, bytes_s: rate * 4096, latency_ns: 1_000_000 / rate };
            window.add(Nanos::from_ms(1000 * at), sample)
        };
        let seen = (1..).zip(rates).map(add).collect();
        (seen, window)
    }

    #[test]
    fn the_largest_distance_from_the_mean_decides() {
        let (seen, window) = window("iops:11", &[100, 90, 100, 130, 100, 100, 110]);
        assert_eq!(seen, [false, false, true, false, false, false, true]);
        assert!((window.deviation - 20.0 / 3.0).abs() < 1e-9, "{}", window.deviation);
    }

    #[test]
    fn the_slope_of_the_line_through_the_rates_decides() {
        let (seen, window) = window("bw_slope:9%", &[100, 120, 140, 150, 140]);
        // 20, 15 and 0 a second, of 120, 137 and 143.
        assert_eq!(seen, [false, false, false, false, true]);
        assert!(window.slope.abs() < 1e-9 && window.criterion.abs() < 1e-9);
        let (seen, window) = self::window("iops_slope:20.5", &[100, 120, 140]);
        assert_eq!((seen, window.slope), (vec![false, false, true], 20.0));
    }
}
