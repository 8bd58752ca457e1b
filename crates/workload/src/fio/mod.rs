//! fio's basic jobs: direction and order of requests, depth, rate, and limits.
//!
//! All jobs run side by side; a `stonewall` waits for the jobs before it. Before the first job
//! starts, all files are created. A file is laid out in full if a job reads it, overwrites it,
//! writes it at random, or uses direct I/O; other files are empty. Direct jobs keep `iodepth`
//! blocks in flight, as with `libaio`. Buffered jobs have one block at a time regardless of
//! `iodepth`, as with `psync`. Offsets, mixes and latencies follow fio's documentation
//! ([`Thread`]); the random numbers are our own.

mod buffers;
mod command_priority;
mod control;
mod distribution;
mod ends;
mod histogram_log;
mod job;
mod job_file;
mod known;
mod lens;
mod log;
mod map;
mod measured;
mod offsets;
mod options;
mod pace;
mod percentiles;
mod print;
mod samples;
mod shares;
mod slots;
mod strides;
mod surroundings;
mod task;
mod value;
mod verify;
mod written;
mod zoned;

use std::collections::BTreeMap;
use std::sync::Arc;

use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;

use self::control::Common;
use self::ends::Ends;
use self::measured::Measured;
use self::zoned::Zones;
use crate::program::{Call, Content, FileId, Interface, Phase, Program, Returned, Task, Usage};

pub use blockyard_engine::histogram::Histogram;
pub use buffers::Buffers;
pub use command_priority::{ByPriority, CommandPriority, Share};
pub use control::{Controls, Flow, LatencyTarget, Steady, SteadyFigure, SteadyRule};
pub use distribution::{Distribution, Zone, ZoneLen};
pub use ends::{EndRule, ExitWhat, GoesOn, Stopper};
pub use histogram_log::HistogramLogs;
pub use job::{
    Batching, Clones, Grouping, Job, JobError, Kept, Region, Rw, Sequencer, Shape, Submission,
};
pub use job_file::{Ignored, JobFile, JobFileError};
pub use lens::{Direction, Lens};
pub use log::{LogFile, Logs};
pub use measured::{Errors, Transfers};
pub use pace::{PaceRule, RateProcess};
pub use percentiles::Percentiles;
pub use print::all as print_all;
pub use samples::{Samples, Spread};
pub use shares::{Batches, Bounds, Depths, Queueing};
pub use strides::Strides;
pub use surroundings::Surroundings;
pub use task::Thread;
pub use value::KbBase;
pub use value::cpus as cpu_list;
pub use verify::{Mismatch, Pattern, Sum, Verify};
pub use zoned::ZoneRule;

/// Result of a job with all its clones, of one clone, or of a group of jobs.
// 19 fields: each is one part of fio's report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobResult {
    /// Name of the job; of a group its first job.
    pub name: String,
    /// Number of the reporting group; a stonewall and `new_group` begin the next.
    pub group: u32,
    /// Number of clones.
    pub numjobs: u32,
    /// Reads.
    pub read: Transfers,
    /// Writes.
    pub write: Transfers,
    /// Trims.
    pub trim: Transfers,
    /// Latency of the `fsync` calls.
    pub sync: Histogram,
    /// Completion latencies of reads and writes by fio's bounds.
    pub bounds: Bounds,
    /// Numbers of requests in flight, and per call.
    pub queueing: Queueing,
    /// Resource use of all clones.
    pub usage: Usage,
    /// `iodepth`; with a `latency_target`, the depth that the search found.
    pub iodepth: u32,
    /// Rule of that search.
    pub latency: LatencyTarget,
    /// With `steadystate`: the rates at the end.
    pub steady: Option<Steady>,
    /// Listed percentiles.
    pub percentiles: Percentiles,
    /// Results of each clone, in order.
    pub clones: Vec<CloneResult>,
    /// Longest runtime of a clone, from its start to the end of its last block: the larger number
    /// of fio's `run=`.
    pub runtime: Nanos,
    /// With `zonemode=zbd`: number of zone resets.
    pub zone_resets: u64,
    /// Errors and mismatches.
    pub errors: Errors,
    /// `continue_on_error`.
    pub goes_on: bool,
}

/// Time and transfers of one clone of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloneResult {
    /// From its start to the end of its last block.
    pub runtime: Nanos,
    /// Reads.
    pub read: TransferTotals,
    /// Writes.
    pub write: TransferTotals,
}

/// Totals of transfers in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferTotals {
    /// Number of operations.
    pub ios: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl From<&Transfers> for TransferTotals {
    fn from(transfers: &Transfers) -> Self {
        Self { ios: transfers.ios, bytes: transfers.bytes }
    }
}

impl JobResult {
    /// Reads or writes per second over the longest runtime of a clone, as fio reports all clones of
    /// a job together (`sum_thread_stats`); zero if no bytes were transferred.
    #[must_use]
    pub fn iops(&self, transfers: &Transfers) -> f64 {
        if transfers.bytes > 0 { self.per_second(transfers.ios) } else { 0.0 }
    }

    /// Bytes per second over the same time.
    #[must_use]
    pub fn bandwidth(&self, transfers: &Transfers) -> f64 {
        self.per_second(transfers.bytes)
    }

    /// Operations and bytes per second, summed over the clones, each over its own runtime.
    #[must_use]
    pub fn sums(&self, totals: impl Fn(&CloneResult) -> TransferTotals) -> (f64, f64) {
        let rates = self.clones.iter().map(|clone| {
            let TransferTotals { ios, bytes } = totals(clone);
            (per_second(ios, clone.runtime), per_second(bytes, clone.runtime))
        });
        rates.fold((0.0, 0.0), |sum, rate| (sum.0 + rate.0, sum.1 + rate.1))
    }

    /// Shortest runtime of a clone: the smaller number of fio's `run=`.
    #[must_use]
    pub fn shortest_runtime(&self) -> Nanos {
        self.clones.iter().map(|clone| clone.runtime).min().unwrap_or_default()
    }

    /// The error in fio's report: the error that ended a clone, or else the first one that did not.
    #[must_use]
    pub fn reported_error(&self) -> Option<i32> {
        self.errors.ended_by.or(self.errors.first_counted)
    }

    /// CPU time of the program and of the kernel, each as a share of the clones' runtime.
    #[must_use]
    pub fn cpu(&self) -> (f64, f64) {
        let all: u64 = self.clones.iter().map(|clone| clone.runtime.0).sum();
        let share = |used: Nanos| used.0 as f64 / all.max(1) as f64;
        (share(self.usage.user), share(self.usage.system))
    }

    fn per_second(&self, amount: u64) -> f64 {
        per_second(amount, self.runtime)
    }

    /// Empty result of a job.
    fn new(job: &Job, group: u32, numjobs: u32) -> Self {
        let name = job.name.clone();
        let percentiles = job.percentiles.clone();
        let iodepth = if job.submission.direct { job.submission.iodepth } else { 1 };
        let latency = job.controls.latency;
        let goes_on = job.end.goes_on != GoesOn::default();
        Self { name, group, numjobs, iodepth, latency, goes_on, percentiles, ..Self::default() }
    }

    /// Result of an ended clone.
    fn of(job: &Job, group: u32, measured: Measured) -> Self {
        let Measured { read, write, trim, sync, bounds, queueing, .. } = measured;
        let Measured { runtime, usage, errors, .. } = measured;
        let new = Self::new(job, group, 1);
        Self {
            iodepth: measured.depth.unwrap_or(new.iodepth),
            steady: measured.steady,
            zone_resets: measured.zone_resets,
            clones: vec![CloneResult { runtime, read: (&read).into(), write: (&write).into() }],
            read,
            write,
            trim,
            sync,
            bounds,
            queueing,
            usage,
            runtime,
            errors,
            ..new
        }
    }

    /// Adds another result of the same job or group.
    fn add(&mut self, other: &Self) {
        self.numjobs += other.numjobs;
        self.read.add(&other.read);
        self.write.add(&other.write);
        self.trim.add(&other.trim);
        self.sync.add(&other.sync);
        self.bounds.add(&other.bounds);
        self.queueing.add(&other.queueing);
        let used = other.usage;
        self.usage = Usage {
            user: self.usage.user + used.user,
            system: self.usage.system + used.system,
            switches: self.usage.switches + used.switches,
            voluntary: self.usage.voluntary + used.voluntary,
            involuntary: self.usage.involuntary + used.involuntary,
        };
        self.clones.extend(&other.clones);
        self.runtime = self.runtime.max(other.runtime);
        (self.iodepth, self.latency) = (other.iodepth, other.latency);
        self.zone_resets += other.zone_resets;
        self.errors.add(&other.errors);
        if self.steady.is_none() {
            self.steady.clone_from(&other.steady);
        }
    }
}

fn per_second(amount: u64, time: Nanos) -> f64 {
    if time.0 == 0 { 0.0 } else { amount as f64 * 1e9 / time.0 as f64 }
}

/// A file of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct File {
    len_bytes: u64,
    /// Whether the file is laid out in full before the jobs start.
    is_laid_out: bool,
}

/// The jobs as a program, and their results.
// 13 fields: the jobs with what their clones share, and the results.
#[derive(Debug)]
pub struct Fio {
    jobs: Vec<Job>,
    /// Files of each job.
    files_of: Vec<Vec<FileId>>,
    files: Vec<File>,
    /// Zones of each file.
    zones: Vec<Arc<Zones>>,
    /// Whether the files have been created.
    is_set_up: bool,
    /// Start phase of each job.
    phase_of: Vec<u32>,
    /// The first phase that has not started.
    next_phase: u32,
    /// Rule of each job by which its clones end others.
    ends: Vec<Ends>,
    stopper: Stopper,
    /// State of each job that its clones share with others.
    common: Vec<Common>,
    /// Results of the clones, job by job.
    clones: Vec<JobResult>,
    /// Results of the jobs.
    results: Vec<JobResult>,
    /// Logs of the clones.
    logs: Vec<LogFile>,
}

impl Fio {
    /// Creates a program of these jobs.
    ///
    /// # Errors
    /// When a job is invalid.
    pub fn new(jobs: Vec<Job>) -> Result<Self, JobError> {
        jobs.iter().try_for_each(Job::check)?;
        let mut files = Vec::new();
        let mut names = BTreeMap::new();
        let mut new_file = || {
            files.push(File { len_bytes: 0, is_laid_out: false });
            files.len() - 1
        };
        let mut index_of = |job: &Job| match &job.region.filename {
            Some(name) => *names.entry(name.clone()).or_insert_with(&mut new_file),
            None => new_file(),
        };
        let indices = |job: &Job| (0..job.clones.count()).map(|_| index_of(job)).collect();
        let indices: Vec<Vec<usize>> = jobs.iter().map(indices).collect();
        for (job, indices) in jobs.iter().zip(&indices) {
            for (clone, &index) in (0..).zip(indices) {
                let file: &mut File = &mut files[index];
                file.len_bytes = file.len_bytes.max(job.end_bytes(clone));
                file.is_laid_out |= job.wants_file();
            }
        }
        let ids = |indices: &Vec<usize>| indices.iter().map(|index| file_id(*index)).collect();
        let phase_of = phases(&jobs)?;
        let mut group = 0;
        let mut clones = Vec::new();
        let mut results = Vec::new();
        for (index, job) in jobs.iter().enumerate() {
            group += u32::from(index > 0 && (job.grouping.stonewall || job.grouping.new_group));
            let clone = JobResult::new(job, group, 1);
            clones.extend(std::iter::repeat_n(clone, job.clones.count() as usize));
            // Its clones are added as they end.
            results.push(JobResult::new(job, group, 0));
        }
        let files_of = indices.iter().map(ids).collect();
        let groups: Vec<u32> = results.iter().map(|result: &JobResult| result.group).collect();
        let (ends, stopper) = Ends::of_jobs(&jobs, &groups);
        Ok(Self {
            ends,
            stopper,
            common: Common::of_jobs(&jobs, &groups)?,
            jobs,
            zones: files.iter().map(|_| Arc::default()).collect(),
            files_of,
            files,
            is_set_up: false,
            phase_of,
            next_phase: 0,
            clones,
            results,
            logs: Vec::new(),
        })
    }

    /// Handle that ends all jobs early.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Results of the jobs, in their order.
    #[must_use]
    pub fn results(&self) -> &[JobResult] {
        &self.results
    }

    /// The results as fio lists them: one for each clone, and with `group_reporting` one for each
    /// group.
    #[must_use]
    pub fn listed(&self) -> Vec<JobResult> {
        let mut listed: Vec<JobResult> = Vec::new();
        let mut clones = self.clones.iter();
        for job in &self.jobs {
            for clone in clones.by_ref().take(job.clones.count() as usize) {
                match listed.last_mut() {
                    Some(last) if job.grouping.group_reporting && last.group == clone.group => {
                        last.add(clone);
                    }
                    _ => listed.push(clone.clone()),
                }
            }
        }
        listed
    }

    /// The jobs.
    #[must_use]
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// Logs of the jobs.
    #[must_use]
    pub fn logs(&self) -> &[LogFile] {
        &self.logs
    }

    /// The jobs' log files, still without lines.
    #[must_use]
    pub fn logs_of(jobs: &[Job]) -> Vec<LogFile> {
        let clones = jobs.iter().flat_map(|job| (0..job.clones.count()).map(move |_| job));
        (0..)
            .zip(clones)
            .flat_map(|(number, job)| log::CloneLogs::of(job).files(number).collect::<Vec<_>>())
            .collect()
    }

    /// Length of each file, by its number.
    #[must_use]
    pub fn file_lens_bytes(&self) -> Vec<u64> {
        self.files.iter().map(|file| file.len_bytes).collect()
    }

    /// Report of all jobs in fio's format, without figures that only a kernel has.
    #[must_use]
    pub fn print(&self) -> String {
        print::all(&self.results)
    }

    /// Stores the results of a finished clone.
    fn keep(&mut self, thread: Thread) {
        let Thread { job_index, number, measured, .. } = thread;
        self.logs.extend(measured.logs.files(number));
        let clone = &mut self.clones[number as usize];
        let of_job = &mut self.results[job_index];
        *clone = JobResult::of(&self.jobs[job_index], clone.group, measured);
        of_job.add(clone);
    }

    fn set_up(&self) -> SetUp {
        let call = |(index, file): (usize, &File)| {
            if file.is_laid_out {
                Call::Layout { file: file_id(index), len_bytes: file.len_bytes }
            } else {
                Call::Create(file_id(index))
            }
        };
        let calls: Vec<Call> = self.files.iter().enumerate().map(call).rev().collect();
        SetUp { calls, error: None }
    }
}

/// Phase in which each job starts: after all jobs before it, after its `wait_for` job, or together
/// with the jobs before it.
fn phases(jobs: &[Job]) -> Result<Vec<u32>, JobError> {
    let mut phases = Vec::new();
    let mut base = 0;
    for (index, job) in jobs.iter().enumerate() {
        if job.grouping.stonewall && index > 0 {
            base = phases.iter().max().map_or(0, |last| last + 1);
        }
        let mut phase = base;
        if let Some(name) = &job.grouping.wait_for {
            let awaited = jobs[..index].iter().rposition(|job| job.name == *name);
            let awaited = awaited.ok_or_else(|| JobError {
                job: job.name.clone(),
                key: "wait_for".into(),
                problem: format!("is {name:?}, and no job before it has that name"),
            })?;
            phase = phase.max(phases[awaited] + 1);
        }
        phases.push(phase);
    }
    Ok(phases)
}

fn file_id(index: usize) -> FileId {
    FileId(u32::try_from(index).expect("jobs and clones are few"))
}

impl Program for Fio {
    type Task = FioTask;

    fn next_phase(&mut self) -> Option<Phase<FioTask>> {
        let background = vec![];
        if !std::mem::replace(&mut self.is_set_up, true) {
            return Some(Phase { tasks: vec![FioTask::SetUp(self.set_up())], background });
        }
        let phase = self.next_phase;
        self.next_phase = phase.saturating_add(1);
        if self.phase_of.iter().all(|of_job| *of_job < phase) {
            return None;
        }
        let of_phase = self.results.iter().zip(&self.phase_of).filter(|(_, of)| **of == phase);
        let running: Vec<u32> = of_phase.map(|(result, _)| result.group).collect();
        let mut tasks = Vec::new();
        let mut number = 0;
        for (index, job) in self.jobs.iter().enumerate() {
            for (clone, &file) in (0..).zip(&self.files_of[index]) {
                if self.phase_of[index] == phase {
                    let mut thread = Thread::new(job, (index, clone), file, number);
                    thread.set_ends(self.ends[index].clone(), &running);
                    thread.set_control(&self.common[index]);
                    thread.set_zones(&self.zones[file.0 as usize]);
                    tasks.push(FioTask::Thread(Box::new(thread)));
                }
                number += 1;
            }
        }
        Some(Phase { tasks, background })
    }

    fn end_phase(&mut self, _: Nanos, _: Nanos, tasks: Vec<FioTask>) {
        for task in tasks {
            match task {
                FioTask::SetUp(SetUp { error: None, .. }) => {}
                FioTask::SetUp(SetUp { error, .. }) => {
                    let all = self.results.iter_mut().chain(&mut self.clones);
                    all.for_each(|result| result.errors.ended_by = error);
                    self.next_phase = u32::MAX;
                }
                FioTask::Thread(thread) => self.keep(*thread),
            }
        }
    }
}

/// A task of the program.
#[derive(Debug)]
pub enum FioTask {
    /// The task that creates the files; runs before all others.
    SetUp(SetUp),
    /// A clone of a job.
    Thread(Box<Thread>),
}

/// The task that creates the files.
#[derive(Debug)]
pub struct SetUp {
    /// Remaining calls, the next one last.
    calls: Vec<Call>,
    error: Option<i32>,
}

impl Task for FioTask {
    fn next(&mut self, now: Nanos, returned: &Returned<'_>) -> Call {
        match self {
            Self::Thread(thread) => thread.next(now, returned),
            Self::SetUp(set_up) => {
                if let Err(error) = returned.status {
                    set_up.error = Some(error);
                    return Call::Exit;
                }
                set_up.calls.pop().unwrap_or(Call::Exit)
            }
        }
    }

    fn content(&mut self) -> Option<&mut dyn Content> {
        match self {
            Self::Thread(thread) => thread.content(),
            Self::SetUp(_) => None,
        }
    }

    fn interface(&self) -> Interface {
        match self {
            Self::Thread(thread) => thread.interface(),
            Self::SetUp(_) => Interface::default(),
        }
    }

    fn counts_errors(&self) -> bool {
        match self {
            Self::Thread(thread) => thread.counts_errors(),
            Self::SetUp(_) => false,
        }
    }

    fn calls_per_look(&self) -> u32 {
        match self {
            Self::Thread(thread) => thread.calls_per_look(),
            Self::SetUp(_) => 1,
        }
    }

    fn priority(&self) -> Priority {
        match self {
            Self::Thread(thread) => thread.priority(),
            Self::SetUp(_) => Priority::default(),
        }
    }

    fn socket(&self) -> Option<u16> {
        match self {
            Self::Thread(thread) => thread.socket(),
            Self::SetUp(_) => None,
        }
    }

    fn cpus(&self) -> &[u16] {
        match self {
            Self::Thread(thread) => thread.cpus(),
            Self::SetUp(_) => &[],
        }
    }
}

#[cfg(test)]
mod examples;
#[cfg(test)]
mod tests;
