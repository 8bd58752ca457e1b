//! The goal of a search, as one number of a run.

use blockyard_workload::fio::{Fio, Histogram};
use blockyard_workload::replay::Replay;
use rustix::time::{ClockId, clock_gettime};

/// The goal of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Goal {
    /// Bytes per second.
    #[default]
    Throughput,
    /// Requests per second.
    Iops,
    /// Mean latency.
    Latency,
    /// 99th percentile of the latencies.
    P99,
    /// CPU time of this process per byte.
    Cpu,
}

impl Goal {
    /// The unit of [`Goal::value`].
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::Throughput => "MiB/s",
            Self::Iops => "IOPS",
            Self::Latency | Self::P99 => "us",
            Self::Cpu => "us of CPU per MiB",
        }
    }

    /// A score in the goal's unit.
    #[must_use]
    pub fn value(self, score: f64) -> f64 {
        match self {
            Self::Throughput => score / f64::from(1 << 20),
            Self::Iops => score,
            Self::Latency | Self::P99 => 1e6 / score,
            Self::Cpu => f64::from(1 << 20) * 1e6 / score,
        }
    }

    /// Score of a run: higher is better. `None` for a run without requests.
    pub(super) fn score(self, run: &Run) -> Option<f64> {
        let seconds = |ns: f64| (ns > 0.0).then(|| 1e9 / ns);
        if run.ios == 0 || run.seconds <= 0.0 {
            return None;
        }
        match self {
            Self::Throughput => Some(run.bytes as f64 / run.seconds),
            Self::Iops => Some(run.ios as f64 / run.seconds),
            Self::Latency => seconds(run.latency_ns / run.ios as f64),
            Self::P99 => seconds(run.p99_ns),
            Self::Cpu => (run.cpu_seconds > 0.0).then(|| run.bytes as f64 / run.cpu_seconds),
        }
    }
}

/// The requests of a measurement.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    pub(super) ios: u64,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    /// Sum over all requests.
    pub(super) latency_ns: f64,
    /// The worst of all jobs.
    pub(super) p99_ns: f64,
    /// CPU time of this process.
    pub(super) cpu_seconds: f64,
}

impl Run {
    /// The sum of all jobs. Groups run one after the other, jobs of a group side by side.
    pub(super) fn of_jobs(fio: &Fio, cpu_seconds: f64) -> Self {
        let mut run = Self { cpu_seconds, ..Self::default() };
        let mut group = (None, 0.0);
        for job in fio.results() {
            for side in [&job.read, &job.write] {
                run.ios += side.ios;
                run.bytes += side.bytes;
                run.add_latency(&side.lat);
            }
            let seconds = job.runtime.0 as f64 / 1e9;
            group = match group {
                (Some(same), longest) if same == job.group => (Some(same), seconds.max(longest)),
                (_, longest) => {
                    run.seconds += longest;
                    (Some(job.group), seconds)
                }
            };
        }
        run.seconds += group.1;
        run
    }

    /// The sum of all bios of a trace.
    pub(super) fn of_replay(replay: &Replay, cpu_seconds: f64) -> Self {
        let seconds = replay.took().0 as f64 / 1e9;
        let mut run = Self { seconds, cpu_seconds, ..Self::default() };
        let mut latency = Histogram::default();
        for one in replay.counted().values() {
            run.ios += one.out_bios;
            run.bytes += one.out_bytes;
            latency.add(&one.latency);
        }
        run.add_latency(&latency);
        run
    }

    fn add_latency(&mut self, histogram: &Histogram) {
        if histogram.count() > 0 {
            self.latency_ns += histogram.mean_ns() * histogram.count() as f64;
            self.p99_ns = self.p99_ns.max(histogram.permille(990).0 as f64);
        }
    }
}

/// CPU time of all threads of this process.
pub(super) fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
