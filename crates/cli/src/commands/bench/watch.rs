//! Progress of the jobs at a terminal: a bar with rates, and the remaining time.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use blockyard::bench::{Tally, TallySnapshot};
use blockyard_engine::time::Nanos;
use blockyard_workload::fio::Job;

use crate::progress::Progress;
use crate::size::human_size;

/// Interval of the rates.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Total amount of the jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    /// All jobs have a time limit.
    Time(Nanos),
    /// This many bytes; jobs that end early reduce it.
    Bytes(u64),
}

impl Plan {
    fn of(jobs: &[Job]) -> Self {
        let by_clock = |job: &Job| job.end.runtime.filter(|_| job.end.time_based);
        if jobs.iter().any(|job| by_clock(job).is_none()) {
            let bytes = |job: &Job| {
                let ios = job.end.number_ios.map(|ios| ios.saturating_mul(job.shape.block_bytes));
                let pass = ios
                    .unwrap_or(u64::MAX)
                    .min(job.region.io_size_bytes.unwrap_or(job.region.size_bytes));
                pass.saturating_mul(job.end.loops.into()).saturating_mul(job.clones.count().into())
            };
            return Self::Bytes(jobs.iter().map(bytes).fold(0, u64::saturating_add));
        }
        // Jobs between two stonewalls run side by side.
        let mut all = 0;
        let mut group = 0;
        for job in jobs {
            let time = job.pace.start_delay.0
                + job.pace.ramp_time.0
                + by_clock(job).map_or(0, |time| time.0);
            if job.grouping.stonewall {
                all += group;
                group = 0;
            }
            group = group.max(time);
        }
        Self::Time(Nanos(all + group))
    }

    /// The completed fraction, 0 to 1.
    fn done(self, elapsed: Duration, snapshot: TallySnapshot) -> f64 {
        let share = match self {
            Self::Time(all) => elapsed.as_nanos() as f64 / all.0.max(1) as f64,
            Self::Bytes(all) => {
                (snapshot.read_bytes + snapshot.written_bytes) as f64 / all.max(1) as f64
            }
        };
        share.min(1.0)
    }
}

/// Runs a function, and meanwhile shows the progress of its jobs.
pub(super) fn watched<R>(jobs: &[Job], tally: &Tally, work: impl FnOnce() -> R) -> R {
    let progress = Progress::with_words();
    if progress.is_hidden() {
        return work();
    }
    let (stop, stopped) = channel::<()>();
    let plan = Plan::of(jobs);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let start = Instant::now();
            let mut before = TallySnapshot::default();
            while stopped.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                let elapsed = start.elapsed();
                let snapshot = tally.snapshot();
                let done = plan.done(elapsed, snapshot);
                progress.at((done * 1000.0) as u64);
                progress.say(words(before, snapshot, elapsed, done));
                before = snapshot;
            }
        });
        let result = work();
        drop(stop);
        result
    })
}

/// `read 812 MiB/s, 208 k/s; 0:07 left`.
fn words(before: TallySnapshot, now: TallySnapshot, elapsed: Duration, done: f64) -> String {
    let a_second = |amount: u64| (amount as f64 / LOOK_EVERY.as_secs_f64()) as u64;
    let side = |name, ios: u64, bytes: u64| {
        let rate = human_size(a_second(bytes));
        (ios > 0).then(|| format!("{name} {rate}/s, {} IOPS", a_second(ios)))
    };
    let sides = [
        side("read", now.reads - before.reads, now.read_bytes - before.read_bytes),
        side("write", now.writes - before.writes, now.written_bytes - before.written_bytes),
    ];
    let mut words: Vec<String> = sides.into_iter().flatten().collect();
    if done > 0.0 {
        let left = (elapsed.as_secs_f64() * (1.0 - done) / done).ceil() as u64;
        words.push(format!("{}:{:02} left", left / 60, left % 60));
    }
    words.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(words: &[(&str, &str)]) -> Job {
        let mut job = Job::new("a");
        job.set("size", "1m").unwrap();
        words.iter().for_each(|(key, value)| job.set(key, value).unwrap());
        job
    }

    #[test]
    fn jobs_by_the_clock_end_when_the_longest_of_each_group_has() {
        let timed = |runtime, more: &[(&str, &str)]| {
            job(&[&[("runtime", runtime), ("time_based", "1")], more].concat())
        };
        let jobs = [timed("3", &[]), timed("5", &[("ramp_time", "2")]), {
            timed("10", &[("stonewall", "1")])
        }];
        assert_eq!(Plan::of(&jobs), Plan::Time(Nanos::from_ms(17_000)));
        let half = Plan::of(&jobs).done(Duration::from_millis(8500), TallySnapshot::default());
        assert!((half - 0.5).abs() < 1e-9);
    }

    #[test]
    fn jobs_by_bytes_end_when_all_are_moved() {
        let jobs = [job(&[("numjobs", "3"), ("loops", "2")]), job(&[("number_ios", "16")])];
        let all_bytes = (6 << 20) + 16 * 4096;
        assert_eq!(Plan::of(&jobs), Plan::Bytes(all_bytes));
        let snapshot =
            TallySnapshot { read_bytes: all_bytes / 4, reads: 9, ..TallySnapshot::default() };
        let done = Plan::Bytes(all_bytes).done(Duration::from_secs(3), snapshot);
        let text = words(TallySnapshot::default(), snapshot, Duration::from_secs(3), done);
        assert!(text.starts_with("read ") && text.ends_with("18 IOPS; 0:09 left"), "{text}");
    }
}
