//! A job: a program of `blockyard-workload` and its options.
//!
//! ```toml
//! [jobs.tio]
//! program = "tiotest"          # threads, file_mib, block_bytes, random_ops
//! [jobs.fsync]
//! program = "fsync-tester"     # samples, background_mib, ioprio
//! [jobs.create]
//! program = "fs_mark"          # threads, files, file_kib, directories, sync_method
//! [jobs.mix]
//! program = "fio"              # each section is a job of fio, with fio's option names
//! sections.reader = { rw = "randread", bs = "4k", size = "64m", direct = 1, iodepth = 16 }
//! [jobs.home]
//! program = "trace"            # file, fast, depth, speed_percent, wrap
//! ```

use blockyard_engine::priority::Priority;
use blockyard_sim::cpu::Topology;
use blockyard_sim::world::Config;
use blockyard_workload::fio::{Fio, Job, Logs};
use blockyard_workload::fs_mark::Timed;
use blockyard_workload::program::Interface;
use blockyard_workload::{fs_mark, fsync_tester, tiotest};

use super::section::{Section, mistake};
use super::traced::{TRACE_ROW, TraceJob, TraceKeys, Traces};
use super::tree::Value;
use crate::Error;

/// Row of fsync-tester.
pub(crate) const FSYNC_ROW: &str = "fsync";
/// Row of all phases of tiotest together.
pub(crate) const TOTAL_ROW: &str = "Total";
/// Row of fs_mark as a whole.
pub(crate) const FS_MARK_ROW: &str = "fs_mark";
/// A longer fsync is an outlier, as the 2009 mail's readers counted.
const LONG_FSYNC_S: f64 = 1.0;

/// Metrics of a phase of tiotest; the total has no time and no rate.
const PHASE_METRICS: &[&str] =
    &["phase_time", "bytes", "rate", "latency_avg", "latency_max", "ops_over_2s", "ops_over_10s"];
const TOTAL_METRICS: &[&str] = &["latency_avg", "latency_max", "ops_over_2s", "ops_over_10s"];
const FSYNC_METRICS: &[&str] = &["fsync_min", "fsync_median", "fsync_max", "fsync_over_1s"];
/// Metrics of fs_mark, and of each of its calls.
const FS_MARK_METRICS: &[&str] = &["files_per_s", "phase_time"];
const CALL_METRICS: &[&str] = &["latency_min", "latency_avg", "latency_max"];
/// Metrics of a fio job's reads or writes; `fsync` has only latencies.
const FIO_METRICS: &[&str] = &[
    "phase_time",
    "shortest_time",
    "rate",
    "rate_sum",
    "iops",
    "iops_sum",
    "latency_avg",
    "latency_p50",
    "latency_p99",
    "latency_max",
];
/// Metrics of all bios of a trace, and of the bios of one kind.
const TRACE_METRICS: &[&str] =
    &["phase_time", "iops", "latency_avg", "latency_p50", "latency_p99", "latency_max", "errors"];
const TRACE_OP_METRICS: &[&str] =
    &["rate", "iops", "latency_avg", "latency_p50", "latency_p99", "latency_max"];
/// Further metrics of direct I/O.
const FIO_DIRECT_METRICS: &[&str] = &["slat_avg", "clat_avg", "clat_max", "latency_stdev"];
/// Metrics of a fio job as a whole.
const FIO_JOB_METRICS: &[&str] = &["cpu_busy", "switches_per_1000", "errors"];
/// Metrics of a fio job in a world with user time.
const FIO_USAGE_METRICS: &[&str] =
    &["usr", "sys", "ctx", "ctx_per_1000", "voluntary_per_1000", "involuntary_per_1000"];
const FIO_FSYNC_METRICS: &[&str] = &["latency_avg", "latency_p50", "latency_p99", "latency_max"];

/// Metrics of the further lines of fio's report: of reads or writes, and of the job.
pub(crate) const REPORT_METRICS: &[&str] = &[
    "bytes",
    "ios",
    "slat_min",
    "slat_max",
    "slat_stdev",
    "clat_min",
    "clat_stdev",
    "latency_min",
    "depth_latency_error",
    "clat_p1",
    "clat_p5",
    "clat_p10",
    "clat_p20",
    "clat_p30",
    "clat_p40",
    "clat_p50",
    "clat_p60",
    "clat_p70",
    "clat_p80",
    "clat_p90",
    "clat_p95",
    "clat_p99",
    "clat_p99_50",
    "clat_p99_90",
    "clat_p99_95",
    "clat_p99_99",
    "samples",
    "rate_sample_min",
    "rate_sample_max",
    "rate_sample_avg",
    "rate_sample_stdev",
    "rate_sample_share",
    "iops_sample_min",
    "iops_sample_max",
    "iops_sample_avg",
    "iops_sample_stdev",
];
pub(crate) const REPORT_JOB_METRICS: &[&str] = &[
    "reads",
    "trims",
    "syncs",
    "zone_resets",
    "first_error",
    "below_10us",
    "below_750us",
    "below_1000us",
    "below_2ms",
    "below_4ms",
    "below_10ms",
    "below_20ms",
    "below_50ms",
    "below_100ms",
    "below_250ms",
    "depth_1",
    "depth_2",
    "depth_4",
    "depth_8",
    "depth_16",
    "depth_32",
    "depth_64",
    "submit_0",
    "submit_4",
    "submit_8",
    "submit_16",
    "submit_32",
    "submit_64",
    "submit_more",
    "reap_0",
    "reap_4",
    "reap_8",
    "reap_16",
    "reap_32",
    "reap_64",
    "reap_more",
];

/// A row that a job can yield.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Yield {
    pub(crate) row: String,
    pub(crate) metrics: &'static [&'static str],
}

impl Yield {
    /// Whether it is of all operations of a fio section.
    pub(super) fn is_of_section(&self) -> bool {
        [FIO_JOB_METRICS, FIO_USAGE_METRICS, REPORT_JOB_METRICS].contains(&self.metrics)
    }
}

/// A job: a program of [`blockyard::workload`] and its options.
#[derive(Clone, Debug)]
pub enum JobSpec {
    /// tiotest.
    Tiotest(tiotest::Config),
    /// fsync-tester.
    Fsync(fsync_tester::Config),
    /// fs_mark.
    FsMark(fs_mark::Config),
    /// Jobs of fio.
    Fio(Vec<Job>, FioRows),
    /// A trace.
    Trace(TraceJob),
}

/// Rows of a job of fio.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FioRows {
    /// The usual rows.
    #[default]
    Usual,
    /// The usual rows, which result lines stand for.
    ResultLine,
    /// A row for every line of fio's report.
    Report,
}

#[derive(Clone, Copy)]
enum ProgramKind {
    Tiotest,
    Fsync,
    FsMark,
    Fio,
    Trace,
}

impl JobSpec {
    pub(super) fn read(
        mut section: Section<'_>,
        traces: &Traces,
        config: &Config,
    ) -> Result<Self, Error> {
        let kinds = [
            ("tiotest", ProgramKind::Tiotest),
            ("fsync-tester", ProgramKind::Fsync),
            ("fs_mark", ProgramKind::FsMark),
            ("fio", ProgramKind::Fio),
            ("trace", ProgramKind::Trace),
        ];
        section.needed_text("program")?;
        let job = match section.choice("program", &kinds)? {
            ProgramKind::Tiotest => Self::Tiotest(tiotest_config(&mut section)?),
            ProgramKind::Fsync => Self::Fsync(fsync_config(&mut section)?),
            ProgramKind::FsMark => Self::FsMark(fs_mark_config(&mut section)?),
            ProgramKind::Fio => {
                let rows = [
                    ("usual", FioRows::Usual),
                    ("result line", FioRows::ResultLine),
                    ("report", FioRows::Report),
                ];
                let rows = section.choice("rows", &rows)?;
                Self::Fio(fio_jobs(&mut section)?, rows)
            }
            ProgramKind::Trace => {
                let keys = TraceKeys::read(&mut section)?;
                section.finish()?;
                return Ok(Self::Trace(keys.load(traces, config)?));
            }
        };
        section.finish()?;
        Ok(job)
    }

    /// The rows of the job, in a world with or without user time.
    pub(crate) fn yields(&self, has_user_time: bool) -> Vec<Yield> {
        let one = |row: String, metrics| Yield { row, metrics };
        match self {
            Self::Tiotest(_) => {
                let phases = tiotest::PhaseKind::ALL.iter();
                let phases = phases.map(|kind| one(kind.name().into(), PHASE_METRICS));
                phases.chain([one(TOTAL_ROW.into(), TOTAL_METRICS)]).collect()
            }
            Self::Fsync(_) => vec![one(FSYNC_ROW.into(), FSYNC_METRICS)],
            Self::FsMark(config) => {
                let calls = Timed::ALL.into_iter().filter(|call| config.makes(*call));
                let calls = calls.map(|call| one(call.name().into(), CALL_METRICS));
                [one(FS_MARK_ROW.into(), FS_MARK_METRICS)].into_iter().chain(calls).collect()
            }
            Self::Trace(job) => {
                let ops = job.ops().into_iter();
                let ops = ops.map(|op| one(op.into(), TRACE_OP_METRICS));
                ops.chain([one(TRACE_ROW.into(), TRACE_METRICS)]).collect()
            }
            Self::Fio(jobs, shown) => {
                let is_report = *shown == FioRows::Report;
                let rows = |job: &Job| {
                    let fsyncs = job.shape.rw.writes() && job.submission.fsync_every > 0;
                    [
                        (job.shape.rw.reads(), " read", FIO_METRICS),
                        (job.shape.rw.writes(), " write", FIO_METRICS),
                        (
                            job.submission.direct && job.shape.rw.reads(),
                            " read",
                            FIO_DIRECT_METRICS,
                        ),
                        (
                            job.submission.direct && job.shape.rw.writes(),
                            " write",
                            FIO_DIRECT_METRICS,
                        ),
                        (fsyncs, " fsync", FIO_FSYNC_METRICS),
                        (true, "", FIO_JOB_METRICS),
                        (has_user_time, "", FIO_USAGE_METRICS),
                        (is_report && job.shape.rw.reads(), " read", REPORT_METRICS),
                        (is_report && job.shape.rw.writes(), " write", REPORT_METRICS),
                        (is_report, "", REPORT_JOB_METRICS),
                    ]
                    .into_iter()
                    .filter(|(is_there, ..)| *is_there)
                    .map(|(_, kind, metrics)| one(format!("{}{kind}", job.name), metrics))
                    .collect::<Vec<_>>()
                };
                jobs.iter().flat_map(rows).collect()
            }
        }
    }

    /// Whether result lines replace its rows by default.
    pub(crate) fn has_result_line(&self) -> bool {
        matches!(self, Self::Fio(_, FioRows::ResultLine))
    }

    /// Lengths of its files, by number.
    pub(crate) fn file_lens_bytes(&self) -> Vec<u64> {
        match self {
            Self::Tiotest(config) => vec![config.file_bytes; config.threads as usize],
            Self::Fsync(config) => {
                let tested = [fsync_tester::BUFFER_BYTES];
                tested.into_iter().chain(config.background_bytes).collect()
            }
            Self::FsMark(config) => {
                // Each file has whole blocks.
                let len_bytes = config.file_bytes.next_multiple_of(4096);
                vec![len_bytes; config.threads as usize * config.files as usize]
            }
            Self::Fio(jobs, _) => Fio::new(jobs.clone())
                .map_or_else(|_| Vec::new(), |program| program.file_lens_bytes()),
            Self::Trace(job) => vec![job.end_bytes()],
        }
    }

    /// Checks that its files and clones fit into the world.
    ///
    /// # Errors
    /// The files or clones do not fit; the message says why.
    pub fn check(&self, config: &Config) -> Result<(), Error> {
        if let Self::Trace(job) = self {
            let fits = job.target.check(&job.trace);
            return fits.map_err(|misfit| Error::new(misfit.to_string()));
        }
        if let Self::Fio(jobs, _) = self {
            jobs.iter().try_for_each(|job| check_place(job, config))?;
        }
        let sectors = config.sectors();
        if let (Self::FsMark(job), Some(fs)) = (self, &config.fs) {
            let files = u64::from(job.threads) * u64::from(job.files);
            fs.check_files(sectors, files, job.directories).map_err(Error::new)?;
        }
        let lens_bytes = self.file_lens_bytes();
        let needed_bytes = lens_bytes.iter().fold(0, |sum: u64, len| sum.saturating_add(*len));
        match &config.fs {
            Some(fs) => fs.check(sectors, needed_bytes).map_err(Error::new),
            None if lens_bytes.len() > 1 => Err(Error::new(
                "this program has several files, but with file_system.kind \"none\" the only file \
                 is the device; use \"ext3\" or \"log\"",
            )),
            None if needed_bytes > sectors.saturating_mul(512) => {
                let device_bytes = sectors.saturating_mul(512);
                Err(Error::new(format!(
                    "the file needs {needed_bytes} bytes, but the device has {device_bytes}: make \
                     the file smaller or the device larger"
                )))
            }
            None => Ok(()),
        }
    }
}

/// Checks that the sockets and CPUs of a job's clones exist.
fn check_place(job: &Job, config: &Config) -> Result<(), Error> {
    let Topology { sockets, .. } = config.topology;
    let cpus = config.topology.cpus();
    let name = &job.name;
    if let Some(socket) = job.clones.nodes.iter().find(|socket| **socket >= sockets) {
        return Err(Error::new(format!(
            "numa_cpu_nodes of {name} has socket {socket}, but the machine has {sockets} sockets, \
             numbered from 0: name existing ones, or raise machine.sockets"
        )));
    }
    if let Some(cpu) = job.clones.cpus.iter().find(|cpu| **cpu >= cpus) {
        return Err(Error::new(format!(
            "cpus_allowed of {name} has CPU {cpu}, but the machine has {cpus} CPUs, numbered from \
             0: name existing ones, or raise machine.cpus_per_socket"
        )));
    }
    if !job.clones.nodes.is_empty() && !job.clones.cpus.is_empty() {
        return Err(Error::new(format!(
            "{name} has numa_cpu_nodes and cpus_allowed: keep one of them"
        )));
    }
    Ok(())
}

fn tiotest_config(section: &mut Section<'_>) -> Result<tiotest::Config, Error> {
    let usual = tiotest::Config::of_2009(1, 0);
    let block_bytes = section.number("block_bytes", 1..=1 << 30, usual.block_bytes)?;
    let file_bytes = section.number("file_mib", 1..=1 << 20, usual.file_bytes >> 20)? << 20;
    let config = tiotest::Config {
        threads: section.number("threads", 1..=1024, usual.threads)?,
        file_bytes,
        block_bytes,
        random_ops: section.number("random_ops", 0..=10_000_000, usual.random_ops)?,
        seed: 0,
    };
    if file_bytes < 2 * block_bytes {
        return Err(section.wrong("has files shorter than two blocks"));
    }
    Ok(config)
}

fn fsync_config(section: &mut Section<'_>) -> Result<fsync_tester::Config, Error> {
    let samples = section.number("samples", 1..=1_000_000, 12)?;
    let background_mib = section.number("background_mib", 0..=1u64 << 20, 0)?;
    let priority = match section.text("ioprio")? {
        None => Priority::default(),
        Some(text) => Priority::parse(text)
            .map_err(|error| section.wrong_key("ioprio", &error.to_string()))?,
    };
    let background_bytes = (background_mib > 0).then_some(background_mib << 20);
    Ok(fsync_tester::Config { samples, background_bytes, priority })
}

fn fs_mark_config(section: &mut Section<'_>) -> Result<fs_mark::Config, Error> {
    Ok(fs_mark::Config {
        threads: section.number("threads", 1..=64, 1)?,
        files: section.number("files", 1..=100_000, 1_000)?,
        file_bytes: section.number("file_kib", 1..=1 << 20, 50u64)? << 10,
        write_bytes: section.number("write_kib", 1..=1024, 16u64)? << 10,
        directories: section.number("directories", 1..=128, 1)?,
        files_per_directory: section.number("files_per_directory", 1..=100_000, 1)?,
        sync_method: section.number("sync_method", 0..=6, 1)?,
    })
}

fn fio_jobs(section: &mut Section<'_>) -> Result<Vec<Job>, Error> {
    let mut jobs = Vec::new();
    for (name, options) in section.named("sections")? {
        let mut job = Job::new(name);
        for (key, node) in options.entries() {
            let text = match &node.value {
                Value::Text(text) => text.clone(),
                Value::Flag(flag) => u8::from(*flag).to_string(),
                other => other.to_string(),
            };
            job.set(key, &text)
                .map_err(|error| mistake(node, &options.path(key), &error.problem))?;
        }
        if job.shape.rw.trims() {
            return Err(options.wrong_key(
                "rw",
                "trims, which no device of the lab does; run it with \
                                                `blockyard bench`",
            ));
        }
        if job.submission.interface == Interface::Nowhere {
            let problem = "is null, which sends nothing to a device; run it with `blockyard bench`";
            return Err(options.wrong_key("ioengine", problem));
        }
        if job.logs != Logs::default() {
            let problem = "writes a file; run it with `blockyard bench --lab`";
            return Err(options.wrong_key("write_lat_log", problem));
        }
        job.check().map_err(|error| options.wrong_key(&error.key, &error.problem))?;
        jobs.push(job);
    }
    if jobs.is_empty() {
        return Err(section.wrong_key("sections", "takes a table for each job of fio"));
    }
    Fio::new(jobs.clone()).map_err(|error| section.wrong_key("sections", &error.to_string()))?;
    Ok(jobs)
}

/// Metrics of a list of fsync times: minimum, median, maximum, and the share of long ones.
pub(crate) fn fsync_metrics(samples: &[f64]) -> Vec<(&'static str, f64)> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some((first, last)) = sorted.first().zip(sorted.last()) else { return Vec::new() };
    let middle = sorted.len() / 2;
    let median = match sorted.len() % 2 {
        0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    };
    let long = sorted.iter().filter(|sample| **sample > LONG_FSYNC_S).count();
    vec![
        ("fsync_min", *first),
        ("fsync_median", median),
        ("fsync_max", *last),
        ("fsync_over_1s", long as f64 / sorted.len() as f64),
    ]
}
