//! fio's basic jobs: what is read and written where, how many at a time, how fast and how often.
//!
//! All jobs run side by side, and a `stonewall` waits for those before it. Before the first starts,
//! every file is made: those that are read, overwritten, written at random or past the page cache
//! are there in full; the others are empty. Direct jobs keep `iodepth` blocks in flight, as with
//! `libaio`; buffered ones have one at a time, as with `psync`, whatever `iodepth` says. Offsets,
//! mixes and latencies are fio's ([`Thread`], from its documentation); its random numbers are not.

mod distribution;
mod job;
mod job_file;
mod known;
mod lens;
mod map;
mod offsets;
mod options;
mod pace;
mod print;
mod samples;
mod shares;
mod surroundings;
mod task;
mod value;
mod verify;
mod written;

use std::collections::BTreeMap;

use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;

use self::task::Measured;
use crate::program::{Call, Content, FileId, Phase, Program, Returned, Task, Usage};

pub use blockyard_engine::histogram::Histogram;
pub use distribution::{Distribution, Zone, ZoneLen};
pub use job::{Job, JobError, Rw, Sequencer};
pub use job_file::{Ignored, JobFile, JobFileError};
pub use lens::{Direction, Lens};
pub use pace::RateProcess;
pub use samples::{Samples, Spread};
pub use shares::{Batches, Bounds, Depths};
pub use surroundings::Surroundings;
pub use task::{Thread, Transfers};
pub use value::KbBase;
pub use verify::{Mismatch, Pattern, Sum, Verify};

/// What a job was like, all its clones together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobResult {
    /// Of the job.
    pub name: String,
    /// Jobs between the same stonewalls have the same.
    pub group: u32,
    /// How many clones it had.
    pub numjobs: u32,
    /// Its reads.
    pub read: Transfers,
    /// Its writes.
    pub write: Transfers,
    /// Its trims.
    pub trim: Transfers,
    /// How long each `fsync` took.
    pub sync: Histogram,
    /// Completion latencies of reads and writes by fio's bounds.
    pub bounds: Bounds,
    /// How many were in flight when one was submitted.
    pub depths: Depths,
    /// How many were submitted with a call.
    pub submits: Batches,
    /// How many had ended when they were reaped.
    pub completes: Batches,
    /// What all clones used.
    pub usage: Usage,
    /// `iodepth`.
    pub iodepth: u32,
    /// Each clone's runtime, and the bytes that it read and wrote, in their order.
    pub clones: Vec<(Nanos, u64, u64)>,
    /// Of the clone that took longest, from its start until its last block was there.
    pub runtime: Nanos,
    /// Requests whose bytes were not those that were written.
    pub mismatches: u64,
    /// The first of them.
    pub mismatch: Option<Mismatch>,
    /// The first error of a clone, which ended it.
    pub error: Option<i32>,
}

impl JobResult {
    /// Reads or writes a second.
    #[must_use]
    pub fn iops(&self, transfers: &Transfers) -> f64 {
        self.per_second(transfers.ios)
    }

    /// Bytes a second.
    #[must_use]
    pub fn bandwidth(&self, transfers: &Transfers) -> f64 {
        self.per_second(transfers.bytes)
    }

    /// Bytes that each clone read a second, all together: each over its own time.
    #[must_use]
    pub fn read_bandwidth_sum(&self) -> f64 {
        self.clones.iter().map(|(runtime, read, _)| per_second(*read, *runtime)).sum()
    }

    /// As [`Self::read_bandwidth_sum`], written.
    #[must_use]
    pub fn write_bandwidth_sum(&self) -> f64 {
        self.clones.iter().map(|(runtime, _, written)| per_second(*written, *runtime)).sum()
    }

    /// CPU time over the time of all clones: of the program, and of the kernel.
    #[must_use]
    pub fn cpu(&self) -> (f64, f64) {
        let all: u64 = self.clones.iter().map(|(runtime, ..)| runtime.0).sum();
        let share = |used: Nanos| used.0 as f64 / all.max(1) as f64;
        (share(self.usage.user), share(self.usage.system))
    }

    fn per_second(&self, amount: u64) -> f64 {
        per_second(amount, self.runtime)
    }

    fn add(&mut self, measured: &Measured) {
        self.read.add(&measured.read);
        self.write.add(&measured.write);
        self.trim.add(&measured.trim);
        self.sync.add(&measured.sync);
        self.bounds.add(&measured.bounds);
        self.depths.add(&measured.depths);
        self.submits.add(&measured.submits);
        self.completes.add(&measured.completes);
        let used = measured.usage;
        self.usage = Usage {
            user: self.usage.user + used.user,
            system: self.usage.system + used.system,
            switches: self.usage.switches + used.switches,
            voluntary: self.usage.voluntary + used.voluntary,
            involuntary: self.usage.involuntary + used.involuntary,
        };
        self.clones.push((measured.runtime, measured.read.bytes, measured.write.bytes));
        self.runtime = self.runtime.max(measured.runtime);
        self.error = self.error.or(measured.error);
        self.mismatches += measured.mismatches;
        if self.mismatch.is_none() {
            self.mismatch.clone_from(&measured.mismatch);
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
    /// It is there in full before the jobs start.
    is_laid_out: bool,
}

/// The program and its results.
#[derive(Debug)]
pub struct Fio {
    jobs: Vec<Job>,
    /// Of each clone of each job.
    files_of: Vec<Vec<FileId>>,
    files: Vec<File>,
    /// The files have been made.
    is_set_up: bool,
    /// The first group that has not been started.
    next_group: u32,
    results: Vec<JobResult>,
}

impl Fio {
    /// A program of these jobs.
    ///
    /// # Errors
    /// When one of them cannot be run.
    pub fn new(jobs: Vec<Job>) -> Result<Self, JobError> {
        jobs.iter().try_for_each(Job::check)?;
        let (mut files, mut names) = (Vec::new(), BTreeMap::new());
        let mut new_file = || {
            files.push(File { len_bytes: 0, is_laid_out: false });
            files.len() - 1
        };
        let mut index_of = |job: &Job| match &job.filename {
            Some(name) => *names.entry(name.clone()).or_insert_with(&mut new_file),
            None => new_file(),
        };
        let indices = |job: &Job| (0..job.clones()).map(|_| index_of(job)).collect();
        let indices: Vec<Vec<usize>> = jobs.iter().map(indices).collect();
        for (job, indices) in jobs.iter().zip(&indices) {
            for (clone, &index) in (0..).zip(indices) {
                let file: &mut File = &mut files[index];
                file.len_bytes = file.len_bytes.max(job.end_bytes(clone));
                file.is_laid_out |= job.wants_file();
            }
        }
        let ids = |indices: &Vec<usize>| indices.iter().map(|index| file_id(*index)).collect();
        let groups = groups(&jobs)?;
        let result = |(job, &group): (&Job, &u32)| {
            let (name, numjobs) = (job.name.clone(), job.clones());
            let iodepth = if job.direct { job.iodepth } else { 1 };
            JobResult { name, group, numjobs, iodepth, ..JobResult::default() }
        };
        let results = jobs.iter().zip(&groups).map(result).collect();
        let files_of = indices.iter().map(ids).collect();
        Ok(Self { jobs, files_of, files, is_set_up: false, next_group: 0, results })
    }

    /// What each job was like, in their order.
    #[must_use]
    pub fn results(&self) -> &[JobResult] {
        &self.results
    }

    /// How long each file is, by its number.
    #[must_use]
    pub fn file_lens_bytes(&self) -> Vec<u64> {
        self.files.iter().map(|file| file.len_bytes).collect()
    }

    /// All jobs, as fio prints them, less what only a kernel knows.
    #[must_use]
    pub fn print(&self) -> String {
        print::all(&self.results)
    }

    fn set_up(&self) -> SetUp {
        let call = |(index, file): (usize, &File)| match file.is_laid_out {
            true => Call::Layout { file: file_id(index), len_bytes: file.len_bytes },
            false => Call::Create(file_id(index)),
        };
        let calls: Vec<Call> = self.files.iter().enumerate().map(call).rev().collect();
        SetUp { calls, error: None }
    }
}

/// When each job starts: behind all before it, behind the one it waits for, or with those before.
fn groups(jobs: &[Job]) -> Result<Vec<u32>, JobError> {
    let (mut groups, mut base) = (Vec::new(), 0);
    for (index, job) in jobs.iter().enumerate() {
        if job.stonewall && index > 0 {
            base = groups.iter().max().map_or(0, |last| last + 1);
        }
        let mut group = base;
        if let Some(name) = &job.wait_for {
            let awaited = jobs[..index].iter().rposition(|job| job.name == *name);
            let awaited = awaited.ok_or_else(|| JobError {
                job: job.name.clone(),
                key: "wait_for".into(),
                problem: format!("is {name:?}, and no job before it has that name"),
            })?;
            group = group.max(groups[awaited] + 1);
        }
        groups.push(group);
    }
    Ok(groups)
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
        let group = self.next_group;
        self.next_group = group.saturating_add(1);
        if self.results.iter().all(|result| result.group < group) {
            return None;
        }
        let (mut tasks, mut number) = (Vec::new(), 0);
        for (index, job) in self.jobs.iter().enumerate() {
            for (clone, &file) in (0..).zip(&self.files_of[index]) {
                if self.results[index].group == group {
                    let thread = Thread::new(job, (index, clone), file, number);
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
                    self.results.iter_mut().for_each(|result| result.error = error);
                    self.next_group = u32::MAX;
                }
                FioTask::Thread(thread) => {
                    self.results[thread.job_index].add(&thread.measured);
                }
            }
        }
    }
}

/// A task of the program.
#[derive(Debug)]
pub enum FioTask {
    /// Before all others.
    SetUp(SetUp),
    /// A clone of a job.
    Thread(Box<Thread>),
}

/// Makes the files.
#[derive(Debug)]
pub struct SetUp {
    /// What is left to do, the next at the end.
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

    fn goes_nowhere(&self) -> bool {
        match self {
            Self::Thread(thread) => thread.goes_nowhere(),
            Self::SetUp(_) => false,
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
}

#[cfg(test)]
mod examples;
#[cfg(test)]
mod tests;
