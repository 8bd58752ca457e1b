//! Runs each variant at each point and seed, in a world of its own, on all cores.
//!
//! Runs share nothing, so any thread takes the next one. The results are sorted afterwards, so the
//! order of a report does not depend on timing.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use blockyard::bench::replay_report;
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_sim::world::{self, Causes, Config, Observer};
use blockyard_workload::fio::{Fio, Histogram, Job, JobResult, Transfers};
use blockyard_workload::fs_mark::{self, FsMark, Timed};
use blockyard_workload::fsync_tester::FsyncTester;
use blockyard_workload::latency::Latency;
use blockyard_workload::program::{Program, Usage};
use blockyard_workload::replay::Replay;
use blockyard_workload::tiotest::{self, Tiotest};

use super::causes;
use super::fio_report;
use super::observe::{PlotData, PlotObserver};
use super::spec::fit::Point;
use super::spec::job::{FS_MARK_ROW, FSYNC_ROW, FioRows, JobSpec, TOTAL_ROW, fsync_metrics};
use super::spec::traced::TRACE_ROW;
use super::spec::tree::Override;
use super::spec::{Experiment, Variant};
use crate::Error;

/// Receives the numbers of ended runs and of all runs. Called on several threads.
pub type Progress<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// One result of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Name of a phase, of an operation, or of the job.
    pub row: String,
    /// Name of the metric in an experiment file.
    pub metric: &'static str,
    /// Value in seconds, bytes or counts.
    pub value: f64,
}

/// Results of a job.
#[derive(Clone, Debug)]
pub struct JobDone {
    /// Name of the job.
    pub job: String,
    /// All results.
    pub measured: Vec<Measured>,
    /// Output in the tool's own format.
    pub listing: String,
    /// Counters of the simulated world.
    pub causes: Causes,
    /// Hash of all events; equal for equal runs.
    pub trace_hash: u64,
    /// Series for plots, if recorded.
    pub(crate) plot_data: Option<PlotData>,
}

/// Identity of a run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) variant: String,
    /// Number of the variant's point.
    pub(crate) point: usize,
    pub(crate) seed: u64,
    /// Settings of a negative control; empty for the experiment itself.
    pub(crate) control: String,
}

/// A planned run.
#[derive(Clone, Debug)]
pub(crate) struct Run<'a> {
    pub(crate) key: Key,
    pub(crate) variant: &'a Variant,
    pub(crate) point: Option<Point>,
    pub(crate) control: &'a [Override],
    /// Record series for plots.
    pub(crate) record: bool,
}

/// Parameters of all runs.
#[derive(Clone, Copy)]
pub(crate) struct RunOptions<'a> {
    pub(crate) experiment: &'a Experiment,
    /// Changes by the user.
    pub(crate) set: &'a [Override],
    /// Replaces the world's elevator.
    pub(crate) elevator: Option<&'a ElevatorSpec>,
    /// Receives the number of ended runs.
    pub(crate) progress: Progress<'a>,
    /// Make each run twice and compare the traces.
    pub(crate) check: bool,
}

/// Results by run.
pub(crate) type Done = BTreeMap<Key, Vec<JobDone>>;

/// Executes all runs. Equal runs are made once: many a control turns a variant into another one.
pub(crate) fn execute(options: RunOptions<'_>, runs: &[Run<'_>]) -> Result<Done, Error> {
    let RunOptions { experiment, set, .. } = options;
    let mut distinct: Vec<Run<'_>> = Vec::new();
    let mut numbers = BTreeMap::new();
    let mut number_of = Vec::new();
    for run in runs {
        let point = run.point.as_ref();
        let world = experiment.world_text(run.variant, point, set, run.control)?;
        let number = *numbers.entry((world, run.key.seed)).or_insert(distinct.len());
        match distinct.get_mut(number) {
            Some(equal) => equal.record |= run.record,
            None => distinct.push(run.clone()),
        }
        number_of.push(number);
    }
    let results = spread(&distinct, options.progress, |run| one(options, run))?;
    let done = runs.iter().zip(number_of).map(|(run, number)| {
        let mut jobs = results[number].clone();
        if !run.record {
            jobs.iter_mut().for_each(|job| job.plot_data = None);
        }
        (run.key.clone(), jobs)
    });
    Ok(done.collect())
}

/// Maps each item on all cores; results keep the items' order. An error stops the start of further
/// items.
pub(crate) fn spread<T: Sync, R: Send>(
    items: &[T],
    progress: Progress<'_>,
    work: impl Fn(&T) -> Result<R, Error> + Sync,
) -> Result<Vec<R>, Error> {
    progress(0, items.len());
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let results = Mutex::new(BTreeMap::new());
    let worker = || {
        while !failed.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(number) else { return };
            let result = work(item);
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            let mut results = results.lock().expect("nothing panics while it holds the lock");
            results.insert(number, result);
            progress(results.len(), items.len());
        }
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(items.len());
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(worker))));
    results.into_inner().expect("nothing panics while it holds the lock").into_values().collect()
}

/// Runs the jobs of one run in order.
fn one(options: RunOptions<'_>, run: &Run<'_>) -> Result<Vec<JobDone>, Error> {
    let RunOptions { experiment, set, elevator, check, .. } = options;
    let mut setup = experiment.setup(run.variant, run.point.as_ref(), set, run.control)?;
    if let Some(elevator) = elevator {
        setup.config.elevator = elevator.clone();
    }
    let config = Config { seed: run.key.seed, ..setup.config };
    let place = || format!("variant {}, seed {}", run.key.variant, run.key.seed);
    let mut done = Vec::new();
    for (name, job) in &setup.jobs {
        let (mut first, observer) = run_job(&config, name, job, PlotObserver::new(run.record))
            .map_err(|error| error.at(format!("{}, job {name}", place())))?;
        first.plot_data = observer.plot_data();
        if check {
            let (second, ()) = run_job(&config, name, job, ())?;
            if first.trace_hash != second.trace_hash {
                return Err(Error::new(format!(
                    "{}, job {name}: two runs differ ({:016x} and {:016x}); please report it",
                    place(),
                    first.trace_hash,
                    second.trace_hash
                )));
            }
        }
        done.push(first);
    }
    Ok(done)
}

/// Runs a job in a simulated world; returns the results and the observer.
///
/// # Errors
/// The world cannot run the job.
pub fn run_job<O: Observer>(
    config: &Config,
    name: &str,
    job: &JobSpec,
    observer: O,
) -> Result<(JobDone, O), Error> {
    let ((outcome, observer), yielded) =
        run_program(job, config.seed, Simulated { config, observer })?;
    let done = JobDone {
        job: name.into(),
        measured: yielded.measured.into_iter().chain(causes::rows(config, &outcome)).collect(),
        listing: yielded.listing,
        causes: outcome.causes,
        trace_hash: outcome.trace_hash,
        plot_data: None,
    };
    Ok((done, observer))
}

/// A world that runs a program to completion.
pub(crate) trait Runner {
    /// Results of the world.
    type Out;

    /// Runs the program; `lens_bytes` are the lengths of its files.
    fn run<P: Program>(self, program: &mut P, lens_bytes: &[u64]) -> Result<Self::Out, Error>;
}

/// The simulated world.
struct Simulated<'a, O> {
    config: &'a Config,
    observer: O,
}

impl<O: Observer> Runner for Simulated<'_, O> {
    type Out = (world::Outcome, O);

    fn run<P: Program>(self, program: &mut P, _: &[u64]) -> Result<Self::Out, Error> {
        world::run(self.config, program, self.observer).map_err(Error::new)
    }
}

/// Results of a program.
pub(crate) struct Yielded {
    pub(crate) measured: Vec<Measured>,
    pub(crate) listing: String,
}

/// Builds the program of a job and runs it.
pub(crate) fn run_program<R: Runner>(
    job: &JobSpec,
    seed: u64,
    runner: R,
) -> Result<(R::Out, Yielded), Error> {
    let lens_bytes = job.file_lens_bytes();
    match job {
        JobSpec::Tiotest(options) => {
            let mut program = Tiotest::new(tiotest::Config { seed, ..*options });
            let out = runner.run(&mut program, &lens_bytes)?;
            let measured = tiotest_rows(&program);
            let listing = program.print();
            Ok((out, Yielded { measured, listing }))
        }
        JobSpec::Fsync(options) => {
            let mut program = FsyncTester::new(*options);
            let out = runner.run(&mut program, &lens_bytes)?;
            let measured = fsync_rows(&program);
            let listing = program.print();
            Ok((out, Yielded { measured, listing }))
        }
        JobSpec::FsMark(options) => {
            let mut program = FsMark::new(*options);
            let out = runner.run(&mut program, &lens_bytes)?;
            let measured = fs_mark_rows(&program, options);
            let listing = program.print();
            Ok((out, Yielded { measured, listing }))
        }
        JobSpec::Fio(jobs, rows) => {
            let seeded = |job: &Job| {
                job.clone().with(|job| job.shape.seed = job.shape.seed.wrapping_add(seed))
            };
            let mut program = Fio::new(jobs.iter().map(seeded).collect())
                .map_err(|error| Error::new(error.to_string()))?;
            let out = runner.run(&mut program, &lens_bytes)?;
            let mut measured = fio_rows(&program);
            let listing = program.print();
            if *rows == FioRows::Report {
                measured.extend(program.results().iter().flat_map(fio_report::rows));
            }
            Ok((out, Yielded { measured, listing }))
        }
        JobSpec::Trace(job) => {
            let mut program = job.program()?;
            let out = runner.run(&mut program, &lens_bytes)?;
            if !program.is_complete() {
                let what = "not all bios of the trace have ended; please report it";
                return Err(Error::new(what));
            }
            let listing = replay_report::lines(&job.trace, &program, "");
            Ok((out, Yielded { measured: trace_rows(&program), listing }))
        }
    }
}

/// Rows of tiotest's two tables, including the total.
fn tiotest_rows(program: &Tiotest) -> Vec<Measured> {
    let mut rows = Vec::new();
    let mut total = Latency::default();
    for result in program.results() {
        let seconds = result.time.0 as f64 / 1e9;
        let row = result.kind.name();
        rows.push(Measured { row: row.into(), metric: "phase_time", value: seconds });
        let value = result.bytes as f64;
        rows.push(Measured { row: row.into(), metric: "bytes", value });
        let value = value / seconds;
        rows.push(Measured { row: row.into(), metric: "rate", value });
        latencies(&mut rows, row, &result.latency);
        total.add(&result.latency);
    }
    latencies(&mut rows, TOTAL_ROW, &total);
    rows
}

fn latencies(rows: &mut Vec<Measured>, row: &str, latency: &Latency) {
    for (metric, value) in [
        ("latency_avg", latency.average_ms() / 1e3),
        ("latency_max", latency.max.0 as f64 / 1e9),
        ("ops_over_2s", latency.percent(latency.over_2_s) / 100.0),
        ("ops_over_10s", latency.percent(latency.over_10_s) / 100.0),
    ] {
        rows.push(Measured { row: row.into(), metric, value });
    }
}

/// Rows of the list of fsync times.
fn fsync_rows(program: &FsyncTester) -> Vec<Measured> {
    let samples: Vec<f64> = program.samples().iter().map(|time| time.0 as f64 / 1e9).collect();
    let row = |(metric, value)| Measured { row: FSYNC_ROW.into(), metric, value };
    fsync_metrics(&samples).into_iter().map(row).collect()
}

/// Rows of fs_mark: the rate, and the times of each call that it has made.
fn fs_mark_rows(program: &FsMark, options: &fs_mark::Config) -> Vec<Measured> {
    let results = program.results();
    let row = |row: &str, metric, value| Measured { row: row.into(), metric, value };
    let mut rows = vec![
        row(FS_MARK_ROW, "files_per_s", results.files_per_s),
        row(FS_MARK_ROW, "phase_time", results.longest.0 as f64 / 1e9),
    ];
    let calls = Timed::ALL.into_iter().zip(&results.calls);
    for (call, times) in calls.filter(|(call, _)| options.makes(*call)) {
        let average = times.sum.0 as f64 / times.count.max(1) as f64;
        rows.extend([
            row(call.name(), "latency_min", times.min.0 as f64 / 1e9),
            row(call.name(), "latency_avg", average / 1e9),
            row(call.name(), "latency_max", times.max.0 as f64 / 1e9),
        ]);
    }
    rows
}

/// Rows of fio's jobs: reads, writes and `fsync` have separate rows.
fn fio_rows(program: &Fio) -> Vec<Measured> {
    let mut rows = Vec::new();
    for job in program.results() {
        for (kind, transfers, sums) in [
            ("read", &job.read, job.sums(|clone| clone.read)),
            ("write", &job.write, job.sums(|clone| clone.write)),
        ] {
            if transfers.bytes > 0 {
                let row = format!("{} {kind}", job.name);
                transfer_rows(&mut rows, &row, job, transfers, sums);
            }
        }
        let ios = job.read.ios + job.write.ios;
        let (user, system) = job.cpu();
        for (metric, value) in [
            ("cpu_busy", user + system),
            ("switches_per_1000", job.usage.switches as f64 * 1000.0 / ios.max(1) as f64),
        ] {
            rows.push(Measured { row: job.name.clone(), metric, value });
        }
        if user > 0.0 {
            usage_rows(&mut rows, job, ios);
        }
        if job.sync.count() > 0 {
            histogram(&mut rows, &format!("{} fsync", job.name), &job.sync);
        }
        if job.errors.ended_by.is_some() {
            rows.push(Measured { row: job.name.clone(), metric: "errors", value: 1.0 });
        }
    }
    rows
}

/// Rows of a trace: one for each kind of bio, and one for all bios.
fn trace_rows(program: &Replay) -> Vec<Measured> {
    let mut rows = Vec::new();
    let seconds = program.took().0.max(1) as f64 / 1e9;
    let mut bios = 0;
    let mut latency = Histogram::default();
    for (op, counted) in program.counted() {
        for (metric, value) in [
            ("rate", counted.out_bytes as f64 / seconds),
            ("iops", counted.out_bios as f64 / seconds),
        ] {
            rows.push(Measured { row: (*op).into(), metric, value });
        }
        histogram(&mut rows, op, &counted.latency);
        bios += counted.out_bios;
        latency.add(&counted.latency);
    }
    for (metric, value) in [("phase_time", seconds), ("iops", bios as f64 / seconds)] {
        rows.push(Measured { row: TRACE_ROW.into(), metric, value });
    }
    histogram(&mut rows, TRACE_ROW, &latency);
    if program.errors() > 0 {
        let value = program.errors() as f64;
        rows.push(Measured { row: TRACE_ROW.into(), metric: "errors", value });
    }
    rows
}

/// CPU times and context switches of a job.
fn usage_rows(rows: &mut Vec<Measured>, job: &JobResult, ios: u64) {
    let (user, system) = job.cpu();
    let Usage { voluntary, involuntary, .. } = job.usage;
    let per_1000 = |count: u64| count as f64 * 1000.0 / ios.max(1) as f64;
    for (metric, value) in [
        ("usr", user),
        ("sys", system),
        ("ctx", (voluntary + involuntary) as f64),
        ("ctx_per_1000", per_1000(voluntary + involuntary)),
        ("voluntary_per_1000", per_1000(voluntary)),
        ("involuntary_per_1000", per_1000(involuntary)),
    ] {
        rows.push(Measured { row: job.name.clone(), metric, value });
    }
}

/// Rows of a job's reads or writes.
fn transfer_rows(
    rows: &mut Vec<Measured>,
    row: &str,
    job: &JobResult,
    transfers: &Transfers,
    (iops_sum, rate_sum): (f64, f64),
) {
    let mut add = |metric, value| rows.push(Measured { row: row.into(), metric, value });
    add("phase_time", job.runtime.0 as f64 / 1e9);
    add("shortest_time", job.shortest_runtime().0 as f64 / 1e9);
    add("rate", job.bandwidth(transfers));
    add("rate_sum", rate_sum);
    add("iops", job.iops(transfers));
    add("iops_sum", iops_sum);
    if transfers.slat.count() > 0 {
        add("slat_avg", transfers.slat.mean_ns() / 1e9);
        add("clat_avg", transfers.clat.mean_ns() / 1e9);
        add("clat_max", transfers.clat.max().0 as f64 / 1e9);
        add("latency_stdev", transfers.lat.stdev_ns() / 1e9);
    }
    histogram(rows, row, &transfers.lat);
}

fn histogram(rows: &mut Vec<Measured>, row: &str, histogram: &Histogram) {
    for (metric, ns) in [
        ("latency_avg", histogram.mean_ns()),
        ("latency_p50", histogram.permille(500).0 as f64),
        ("latency_p99", histogram.permille(990).0 as f64),
        ("latency_max", histogram.max().0 as f64),
    ] {
        rows.push(Measured { row: row.into(), metric, value: ns / 1e9 });
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use blockyard_engine::bio::Op;
    use blockyard_engine::priority::Priority;
    use blockyard_engine::time::Nanos;
    use blockyard_workload::random::Random;
    use blockyard_workload::trace::{Header, TracedBio, Writer};

    use super::*;

    #[test]
    fn jobs_measure_the_rows_that_they_say_and_no_others() {
        let text = r#"
name = "a"
title = "a"
[device]
kind = "flash"
size_mib = 1024
[jobs.a]
program = "tiotest"
threads = 2
file_mib = 1
random_ops = 4
[jobs.b]
program = "fsync-tester"
samples = 2
[jobs.c]
program = "fio"
sections.x = { rw = "randrw", size = "64k", fsync = 2 }
sections.y = { rw = "read", size = "64k" }
[jobs.d]
program = "fs_mark"
files = 3
sync_method = 4
[jobs.e]
program = "fs_mark"
files = 3
sync_method = 0
[variants.a]
jobs = ["a", "b", "c", "d"]
[variants.b]
jobs = ["e"]
"#;
        let experiment = Experiment::parse("a.toml", text, None).unwrap();
        let of = |variant| experiment.setup(variant, None, &[], &[]).unwrap();
        let setups: Vec<_> = experiment.variants.iter().map(of).collect();
        let jobs = setups.iter().flat_map(|setup| setup.jobs.iter().map(move |job| (setup, job)));
        for (setup, (name, job)) in jobs {
            let (done, ()) = run_job(&setup.config, name, job, ()).unwrap();
            let mut said = job.yields(false);
            said.extend(causes::yields(&setup.config));
            let said =
                said.iter().flat_map(|one| one.metrics.iter().map(|m| (one.row.as_str(), *m)));
            // Only a job with errors has their row.
            let mut said: Vec<_> = said.filter(|(_, metric)| *metric != "errors").collect();
            let rows = done.measured.iter().map(|one| (one.row.as_str(), one.metric));
            let mut measured: Vec<_> = rows.collect();
            said.sort_unstable();
            measured.sort_unstable();
            assert_eq!(said, measured, "{name}");
        }
    }

    #[test]
    fn equal_runs_are_made_once_and_give_what_each_would_give_alone() {
        let text = r#"
name = "a"
title = "a"
seeds = [1, 2]
[device]
kind = "memory"
[jobs.a]
program = "fio"
sections.x = { rw = "randrw", size = "64k", direct = 1 }
[variants.deadline.set]
"queue.elevator" = "deadline"
[variants.cfq.set]
"queue.elevator" = "cfq"
[variants.deadline-again.set]
"queue.elevator" = "deadline"
"#;
        let experiment = Experiment::parse("a.toml", text, None).unwrap();
        let variants: Vec<&Variant> = experiment.variants.iter().collect();
        let runs = crate::page::own_runs(&experiment, &variants, &experiment.seeds, false);
        let made = |runs: &[Run<'_>]| {
            let all = AtomicUsize::new(0);
            let progress = &|_, number| all.store(number, Ordering::Relaxed);
            let experiment = &experiment;
            let options =
                RunOptions { experiment, set: &[], elevator: None, progress, check: false };
            let done = execute(options, runs).unwrap();
            (done, all.into_inner())
        };
        let (done, count) = made(&runs);
        assert_eq!((done.len(), count), (6, 4), "two elevators, two seeds");
        for run in &runs {
            let (alone, _) = made(std::slice::from_ref(run));
            assert_eq!(alone[&run.key][0].trace_hash, done[&run.key][0].trace_hash);
            assert_eq!(alone[&run.key][0].measured, done[&run.key][0].measured);
        }
    }

    /// Bios of every kind, of three submitters with priorities.
    fn trace_file(dir: &Path) -> Vec<TracedBio> {
        let mut random = Random::new(5, 0);
        let bio = |number: u64| {
            let op = [Op::Read, Op::Write, Op::Flush, Op::Discard][random.below(4) as usize];
            let (sector, sectors) = match op {
                Op::Flush => (0, 0),
                _ => (8 * random.below(1 << 16), 8 * (1 + random.below(8) as u32)),
            };
            let is_write = op == Op::Write;
            TracedBio {
                start: Nanos(number * 100_000),
                op,
                fua: is_write && random.below(4) == 0,
                preflush: is_write && random.below(4) == 0,
                sync: !is_write || random.below(2) == 0,
                sector,
                sectors,
                submitter: number as u32 % 3,
                priority: Priority::best_effort(number as u8 % 3),
                completion: None,
            }
        };
        let bios: Vec<TracedBio> = (0..200).map(bio).collect();
        let file = std::fs::File::create(dir.join("small.trace")).unwrap();
        let header = Header { sector_bytes: 512, ..Header::default() };
        let mut writer = Writer::begin(file, &header).unwrap();
        bios.iter().for_each(|bio| writer.push(bio).unwrap());
        writer.end(Nanos(200 * 100_000)).unwrap();
        bios
    }

    #[test]
    fn trace_runs_as_a_job_under_each_variant_and_twice_the_same() {
        let text = r#"
name = "a"
title = "a"
[device]
kind = "disk"
[jobs.home]
program = "trace"
file = "small.trace"
fast = true
[settings.short.set]
"queue.elevator" = "deadline"
[settings.long.set]
"queue.elevator" = "cfq"
[variants.deadline]
settings = ["short"]
[variants.cfq]
settings = ["long"]
"#;
        let dir = tempfile::tempdir().unwrap();
        let bios = trace_file(dir.path());
        let file = dir.path().join("a.toml");
        let experiment = Experiment::parse(file.to_str().unwrap(), text, None).unwrap();
        let mut hashes = Vec::new();
        for variant in &experiment.variants {
            let setup = experiment.setup(variant, None, &[], &[]).unwrap();
            let (name, job) = &setup.jobs[0];
            let [first, second] = [(), ()].map(|()| run_job(&setup.config, name, job, ()).unwrap());
            assert_eq!(first.0.trace_hash, second.0.trace_hash);
            assert_eq!(first.0.measured, second.0.measured);
            hashes.push(first.0.trace_hash);
            let mut said = job.yields(false);
            said.extend(causes::yields(&setup.config));
            let said =
                said.iter().flat_map(|one| one.metrics.iter().map(|m| (one.row.as_str(), *m)));
            let mut said: Vec<_> = said.filter(|(_, metric)| *metric != "errors").collect();
            let rows = first.0.measured.iter().map(|one| (one.row.as_str(), one.metric));
            let mut measured: Vec<_> = rows.filter(|(row, _)| *row != "queue").collect();
            said.sort_unstable();
            measured.sort_unstable();
            assert_eq!(said, measured);
            let value = |row: &str, metric: &str| {
                let is = |one: &&Measured| one.row == row && one.metric == metric;
                first.0.measured.iter().find(is).unwrap().value
            };
            let bios_run = value(TRACE_ROW, "iops") * value(TRACE_ROW, "phase_time");
            assert!((bios_run - bios.len() as f64).abs() < 1e-6, "{bios_run}");
        }
        assert_ne!(hashes[0], hashes[1], "the elevator matters");
        let mut misspelled = text.replace("small.trace", "smal.trace");
        let said = Experiment::parse(file.to_str().unwrap(), &misspelled, None).unwrap_err();
        assert!(
            said.to_string().contains("line 8") && said.to_string().contains("smal.trace"),
            "{said}"
        );
        misspelled = text.replace("fast = true", "depth = 4");
        let said = Experiment::parse(file.to_str().unwrap(), &misspelled, None).unwrap_err();
        assert!(said.to_string().contains("needs fast = true"), "{said}");
    }
}
