//! Further rules for starting requests and ending a clone: a latency target, a share of the
//! requests, settled rates.
//!
//! A job without these rules has no [`Control`], so its requests do not pay for them.

mod flow;
mod latency_target;
mod steady_state;

use std::sync::Arc;

use blockyard_engine::time::Nanos;

use super::job::{Job, JobError};
use super::lens::Direction;
use super::options::{Set, set};
use super::percentiles::share;
use super::value::{any_duration, flag, microseconds, number, of_directions};

use flow::{Group, Part};
use latency_target::DepthSearch;
use steady_state::Watch;

pub use flow::Flow;
pub use latency_target::LatencyTarget;
pub use steady_state::{Steady, SteadyFigure, SteadyRule};

/// ETIMEDOUT: fio's error for a request that took too long.
pub(super) const TOO_LATE: i32 = 110;

/// Options of this module.
pub(super) const OPTIONS: &[(&str, Set)] = &[
    ("max_latency", |job, text| {
        set(&mut job.controls.max_latency, of_directions(text, microseconds))
    }),
    ("latency_target", |job, text| set(&mut job.controls.latency.target, microseconds(text))),
    ("latency_window", |job, text| set(&mut job.controls.latency.window, microseconds(text))),
    ("latency_percentile", |job, text| {
        let share = share(text).ok_or_else(|| "it must be a percentage, as in 99.9".into());
        set(&mut job.controls.latency.share, share)
    }),
    ("latency_run", |job, text| set(&mut job.controls.latency.runs_on, flag(text))),
    ("flow", |job, text| set(&mut job.controls.flow.weight, number(text, 0, 1000))),
    ("flow_id", |job, text| set(&mut job.controls.flow.id, number(text, 0, u32::MAX.into()))),
    ("flow_sleep", |job, text| set(&mut job.controls.flow.pause, microseconds(text))),
    ("steadystate", |job, text| {
        let base = job.kb_base;
        job.controls.steady.set_limit(text, base)
    }),
    ("ss", |job, text| job.set("steadystate", text).map_err(|error| error.problem)),
    ("steadystate_duration", |job, text| set(&mut job.controls.steady.window, any_duration(text))),
    ("ss_dur", |job, text| set(&mut job.controls.steady.window, any_duration(text))),
    ("steadystate_ramp_time", |job, text| set(&mut job.controls.steady.ramp, any_duration(text))),
    ("ss_ramp", |job, text| set(&mut job.controls.steady.ramp, any_duration(text))),
    ("steadystate_check_interval", |job, text| {
        set(&mut job.controls.steady.interval, any_duration(text))
    }),
    ("ss_interval", |job, text| set(&mut job.controls.steady.interval, any_duration(text))),
];

/// A job's rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Controls {
    /// `max_latency`: a longer request ends its clone; by direction.
    pub max_latency: [Option<Nanos>; 3],
    /// `latency_target` and its options.
    pub latency: LatencyTarget,
    /// `flow` and its options.
    pub flow: Flow,
    /// `steadystate` and its options.
    pub steady: SteadyRule,
}

impl Controls {
    /// The first invalid option, and its problem.
    pub(super) fn problem(&self) -> Option<(&'static str, String)> {
        self.steady.problem().map(|text| ("steadystate", text))
    }
}

/// State that the clones of a job share with others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Common {
    flow: Option<Arc<Group>>,
    /// The steady-state group; `None`: each clone is measured by itself.
    steady: Option<Arc<steady_state::Group>>,
}

impl Common {
    /// The shared state of each job.
    ///
    /// # Errors
    /// When jobs of one group have different rules.
    pub(super) fn of_jobs(jobs: &[Job], groups: &[u32]) -> Result<Vec<Self>, JobError> {
        let flows = flow::of_jobs(jobs);
        let steady = steady_state::of_jobs(jobs, groups)?;
        let both = flows.into_iter().zip(steady);
        Ok(both.map(|(flow, steady)| Self { flow, steady }).collect())
    }
}

/// A clone's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Start a request.
    Start,
    /// Wait for this many requests.
    Reap(u32),
    /// Start nothing for this time.
    Pause(Nanos),
    /// Discard all measurements so far.
    Restart,
    /// Start nothing any more.
    End,
}

/// A clone's state of these rules.
#[derive(Debug)]
pub(super) struct Control {
    max_latency: [Option<Nanos>; 3],
    search: Option<DepthSearch>,
    flow: Option<Part>,
    watch: Option<Watch>,
    /// Greatest number of requests in flight; zero for buffered I/O.
    iodepth: u32,
}

impl Control {
    /// `None` for a job without such rules.
    pub(super) fn of(job: &Job, common: &Common) -> Option<Box<Self>> {
        let Controls { max_latency, latency, steady, flow } = &job.controls;
        let iodepth = if job.submission.direct { job.submission.iodepth } else { 0 };
        let control = Self {
            max_latency: *max_latency,
            search: (latency.target > Nanos(0)).then(|| DepthSearch::new(latency, iodepth.max(1))),
            flow: common
                .flow
                .as_ref()
                .map(|group| Part::new(Arc::clone(group), flow, job.pace.start_delay == Nanos(0))),
            watch: (steady.window > Nanos(0)).then(|| match &common.steady {
                Some(group) => Watch::new(Arc::clone(group)),
                None => Watch::new(Arc::new(steady_state::Group::new(steady))),
            }),
            iodepth,
        };
        let is_used = *max_latency != [None; 3]
            || control.search.is_some()
            || control.flow.is_some()
            || control.watch.is_some();
        is_used.then(|| Box::new(control))
    }

    /// Notes the start of the measurement, the first or a repeated one.
    pub(super) fn started(&mut self, now: Nanos) {
        if let Some(search) = &mut self.search {
            search.started(now);
        }
        if let Some(watch) = &mut self.watch {
            watch.started(now);
        }
    }

    /// Counts an ended request. Returns the error that ends the clone, if the request was too late.
    pub(super) fn ended(&mut self, direction: Direction, bytes: u64, lat: Nanos) -> Option<i32> {
        if let Some(watch) = &self.watch {
            watch.ended(bytes, lat);
        }
        let is_kept = self.max_latency[direction.index()].is_none_or(|max| lat <= max);
        let is_well = self.search.as_mut().is_none_or(|search| search.ended(lat));
        if is_kept && is_well { None } else { Some(TOO_LATE) }
    }

    /// The step before each request.
    pub(super) fn step(&mut self, now: Nanos, in_flight: u32, in_ramp: bool) -> Step {
        if self.watch.as_mut().is_some_and(|watch| watch.is_attained(now)) {
            return Step::End;
        }
        if let Some(search) = &mut self.search {
            match search.step(now, in_flight, in_ramp) {
                Step::Start => {}
                step => return step,
            }
        }
        if in_flight > 0 && in_flight >= self.iodepth {
            return Step::Reap(1);
        }
        match &mut self.flow {
            Some(flow) => flow.step(in_flight),
            None => Step::Start,
        }
    }

    /// Final values at the clone's end: the found depth, and the rates.
    pub(super) fn end(&mut self) -> (Option<u32>, Option<Steady>) {
        if let Some(flow) = &mut self.flow {
            flow.leave();
        }
        (self.search.as_ref().map(DepthSearch::depth), self.watch.as_ref().map(Watch::result))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::JobResult;
    use crate::fio::tests::{World, run};

    /// A job of 1000 s, unless something ends it earlier.
    fn endless(options: &[(&str, &str)]) -> Job {
        let mut job = Job::new("a").with(|job| {
            job.submission.direct = true;
            job.region.size_bytes = 1 << 20;
        });
        job.set("runtime", "1000").unwrap();
        job.set("time_based", "1").unwrap();
        options.iter().for_each(|(key, value)| job.set(key, value).unwrap());
        job
    }

    /// Result in a world where a call takes 10 µs and the device 1 ms.
    fn result(options: &[(&str, &str)]) -> JobResult {
        run(&mut World::new(10, 1000), endless(options))
    }

    #[test]
    fn latency_target_ends_with_one_window_at_the_depth_that_keeps_it() {
        let wanted = [("iodepth", "16"), ("latency_target", "2ms"), ("latency_window", "50ms")];
        let found = result(&wanted);
        assert_eq!((found.errors.ended_by, found.iodepth), (None, 16));
        // 16 requests of 1.01 ms each, for one window; the windows at lower depths do not count.
        let ms = found.runtime.0 / 1_000_000;
        assert!((50..53).contains(&ms), "{ms}");
        assert!((750..=900).contains(&found.read.ios), "{}", found.read.ios);
    }

    #[test]
    fn latency_run_follows_until_the_runtime_is_over() {
        let run = result(&[
            ("iodepth", "4"),
            ("latency_target", "2ms"),
            ("latency_window", "5ms"),
            ("latency_run", "1"),
            ("runtime", "1"),
        ]);
        assert_eq!((run.runtime.0 / 1_000_000_000, run.iodepth), (1, 4));
    }

    #[test]
    fn a_request_that_takes_too_long_ends_its_clone() {
        for options in [
            &[("max_latency", "999us")][..],
            &[("latency_target", "999us"), ("latency_window", "1s")],
        ] {
            let late = result(options);
            assert_eq!((late.errors.ended_by, late.read.ios), (Some(TOO_LATE), 1), "{options:?}");
        }
        let other = result(&[("max_latency", "2ms,1ms"), ("runtime", "1")]);
        assert_eq!(other.errors.ended_by, None, "that of writes is not that of reads");
    }

    #[test]
    fn a_job_ends_when_its_rates_have_settled() {
        let steady = result(&[("steadystate", "iops:5%"), ("ss_dur", "4"), ("ss_ramp", "2")]);
        // Two samples of the ramp, one skipped, and four of the window.
        assert_eq!(steady.runtime.0 / 1_000_000_000, 6);
        let found = steady.steady.unwrap();
        assert!(found.is_attained && found.criterion < 5.0, "{found:?}");
        assert_eq!(found.iops.len(), 4);
        assert!(found.iops.iter().all(|iops| (999..=1000).contains(iops)), "{found:?}");
        assert!(
            found.bandwidth.iter().all(|bytes| (4090..=4096).contains(&(bytes / 1000))),
            "{found:?}"
        );
    }

    #[test]
    fn a_job_whose_rates_never_settle_ends_as_it_would() {
        let options = [("ss", "bw_slope:0.000001"), ("ss_dur", "3"), ("runtime", "9")];
        assert!(endless(&[]).clone().set("ss", options[0].1).is_err(), "bytes are whole");
        let unsteady = result(&[("ss", "lat:0"), options[1], options[2]]);
        assert_eq!(unsteady.runtime.0 / 1_000_000_000, 9);
        assert!(!unsteady.steady.unwrap().is_attained);
    }

    #[test]
    fn jobs_that_ask_for_none_of_it_have_no_control() {
        let common = Common::default();
        assert!(
            Control::of(&endless(&[("latency_window", "1s"), ("ss", "iops:1%")]), &common)
                .is_none()
        );
        assert!(Control::of(&endless(&[("max_latency", "1s")]), &common).is_some());
    }

    #[test]
    fn invalid_control_options_are_refused() {
        let problem = |options| endless(options).check().unwrap_err().to_string();
        assert!(problem(&[("ss_dur", "1")]).contains("steadystate needs a duration"));
        assert!(
            problem(&[("ss_dur", "9"), ("ss_interval", "0")]).contains("needs a check interval")
        );
        assert!(problem(&[("ss_dur", "9"), ("ss_ramp", "9999d")]).contains("more than a year"));
        for (key, value) in [
            ("ss", "iops"),
            ("ss", "cpu:3"),
            ("ss", "iops:x%"),
            ("latency_percentile", "101"),
            ("latency_target", "x"),
            ("flow", "1001"),
        ] {
            assert!(endless(&[]).set(key, value).is_err(), "{key}={value}");
        }
        let together = |limit| endless(&[("group_reporting", "1"), ("ss_dur", "9"), ("ss", limit)]);
        let jobs = [together("iops:1%"), together("iops:2%")];
        let error = Common::of_jobs(&jobs, &[0, 0]).unwrap_err().to_string();
        assert!(error.contains("must be the same"), "{error}");
        assert!(Common::of_jobs(&jobs, &[0, 1]).is_ok());
    }
}
