//! Workloads on a volume: measure it, play a trace on it, or run the jobs of an experiment.
//!
//! [`run`] runs a [`Program`] on an open [`Volume`], which is the program's only file.
//! [`Target::run`] makes a disk for the program: memory, nothing, a file or a block device.
//!
//! ```
//! use blockyard::bench::{Place, Scheduling, Target};
//! use blockyard::workload::fio::{Fio, Job, Rw};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let job = Job::new("reads").with(|job| {
//!     job.shape.rw = Rw::RandRead;
//!     job.region.size_bytes = 1 << 20;
//! });
//! let mut fio = Fio::new(vec![job])?;
//! let target = Target {
//!     place: Place::Memory { len_bytes: None },
//!     may_destroy: false,
//!     scheduling: Scheduling::default(),
//!     pipeline: None,
//! };
//! let lens_bytes = fio.file_lens_bytes();
//! target.run(&lens_bytes, &mut fio)?;
//! assert_eq!(fio.results()[0].read.ios, 256);
//! # Ok(())
//! # }
//! ```
//!
//! Each task of the program is a thread with a [`Client`](crate::client::Client) of its own, so the
//! elevator sees as many submitters, with their priorities, as the program has tasks.
//!
//! ```text
//!   program ─ phase ─> task ─ call ─> client ─┐
//!                      task ─ call ─> client ─┴─> queue, elevator ─> file, device, memory
//! ```
//!
//! There is no page cache and no file system: each buffered read and write of the program is direct
//! I/O of the volume. So the numbers say how the volume and its elevator serve this load, and
//! differ from those of a run through a file system.

mod gate;
pub mod replay_report;
mod tally;
mod target;
mod task;

use std::collections::VecDeque;
use std::thread::{Builder, ScopedJoinHandle};

use blockyard_engine::time::Nanos;
use blockyard_host::volume::VolumeOptions;
use blockyard_workload::fio::Surroundings;
use blockyard_workload::program::{Phase, Program, Task};

use crate::error::contained;
use crate::{Error, Volume};
use gate::{Clock, Gate};
use target::Files;
use task::{FailedCall, Worker};

pub use blockyard_host::usage::Usage;

pub use crate::{PipelineChoice, Scheduling};
pub use tally::{Tally, TallySnapshot};
pub use target::{Place, Target};

/// Notice for every report of a run on a [`Target`].
pub const NO_PAGE_CACHE: &str =
    "no page cache: the program's buffered writes go directly to the disk";

/// Result of a run, beside the measurements of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Elevator in the form of the command line.
    pub elevator: String,
    /// Time from the start of the first phase to the end of the last.
    pub ended: Nanos,
    /// CPU time and context switches of all threads except the tasks' own: workers, threads of
    /// devices, the caller.
    pub beside: Usage,
}

impl Target {
    /// Runs a program to its end. `file_lens_bytes` are the lengths of its files.
    ///
    /// # Errors
    /// The place is too small, of another kind or in use; it has data and [`Target::may_destroy`]
    /// is false; or a call of the program fails.
    pub fn run<P: Program>(
        &self,
        file_lens_bytes: &[u64],
        program: &mut P,
    ) -> Result<Outcome, Error> {
        contained(|| {
            let opened = self.open(file_lens_bytes)?;
            let (ended, beside) =
                run_phases(&opened.volume, &opened.files, program, &Tally::default())?;
            Ok(Outcome { elevator: opened.volume.elevator(), ended, beside })
        })
    }
}

/// Runs a program to its end on a volume, which is its only file, with the volume's data. Another
/// thread may watch the tally meanwhile.
///
/// # Errors
/// A call of the program fails, as each write to a read-only volume does.
pub fn run<P: Program>(volume: &Volume, program: &mut P, tally: &Tally) -> Result<(), Error> {
    volume.contained(|| run_phases(volume, &Files::whole(volume), program, tally).map(|_| ()))
}

/// The variables of a job file, for a volume of this length on this machine.
#[must_use]
pub fn surroundings(device_bytes: u64) -> Surroundings<'static> {
    Surroundings {
        device_bytes,
        page_bytes: rustix::param::page_size() as u64,
        memory_mib: target::memory_bytes().unwrap_or(0) >> 20,
        cpus: std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64),
        variable: &|name| std::env::var(name).ok(),
    }
}

/// A volume that stores nothing: its bios end immediately.
///
/// # Errors
/// The settings do not fit.
pub fn null(sectors: u64, settings: &VolumeOptions) -> Result<Volume, Error> {
    contained(|| target::of_table(&format!("0 {sectors} null 2 discard:1 stale_reads:1"), settings))
}

/// Runs a program to its end; returns the end, and the usage of other threads.
fn run_phases<P: Program>(
    volume: &Volume,
    files: &Files,
    program: &mut P,
    tally: &Tally,
) -> Result<(Nanos, Usage), Error> {
    let clock = Clock::start();
    let before = Usage::of_process();
    let mut of_tasks = Usage::default();
    while let Some(phase) = program.next_phase() {
        let Ended { started, ended, tasks, used, failed } =
            run_phase(volume, files, clock, phase, tally)?;
        of_tasks = of_tasks.plus(used);
        program.end_phase(started, ended, tasks);
        if let Some(FailedCall { call, error }) = failed {
            let reason = std::io::Error::from_raw_os_error(error);
            return Err(Error::Workload(format!("a call failed ({call:?}): {reason}")));
        }
    }
    Ok((clock.now(), Usage::of_process().since(before).since(of_tasks)))
}

/// An ended phase.
struct Ended<T> {
    started: Nanos,
    ended: Nanos,
    /// Tasks, background tasks last.
    tasks: Vec<T>,
    /// Usage of their threads.
    used: Usage,
    /// The first failed call of a task.
    failed: Option<FailedCall>,
}

fn run_phase<T: Task + Send>(
    volume: &Volume,
    files: &Files,
    clock: Clock,
    phase: Phase<T>,
    tally: &Tally,
) -> Result<Ended<T>, Error> {
    let gate = Gate::default();
    let foreground = phase.tasks.len();
    let tasks = phase.tasks.into_iter().chain(phase.background);
    let mut workers = Vec::new();
    for (number, task) in tasks.enumerate() {
        let is_background = number >= foreground;
        let worker = Worker {
            client: volume.client(task.priority())?,
            files,
            clock,
            gate: &gate,
            is_background,
            tally: tally.task(),
            failed: None,
            done: VecDeque::new(),
            reaped: Vec::new(),
            now: Nanos(0),
            calls_per_look: 1,
            stale: 0,
        };
        workers.push((worker, task));
    }
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&gate);
        let mut threads = Vec::new();
        for (number, (mut worker, mut task)) in workers.into_iter().enumerate() {
            let body = move || {
                let ended = worker.run(&mut task);
                (task, ended, worker.failed, Usage::of_this_thread())
            };
            let thread = Builder::new().name(format!("task/{number}"));
            match thread.spawn_scoped(scope, body) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    return Err(Error::Workload(format!("cannot start a thread: {error}")));
                }
            }
        }
        let started = clock.now();
        gate.open(started);
        let background = threads.split_off(foreground);
        let mut all: Vec<_> = threads.into_iter().map(join).collect();
        let ended = all.iter().map(|(_, ended, ..)| *ended).max().unwrap_or(started);
        gate.stop();
        all.extend(background.into_iter().map(join));
        let failed = all.iter().find_map(|(_, _, failed, _)| failed.clone());
        let used = all.iter().fold(Usage::default(), |sum, (.., used)| sum.plus(*used));
        let tasks = all.into_iter().map(|(task, ..)| task).collect();
        Ok(Ended { started, ended, tasks, used, failed })
    })
}

/// Stops the phase in any case, so that no thread keeps waiting.
struct StopAtEnd<'a>(&'a Gate);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Propagates a panic of a task.
fn join<R>(thread: ScopedJoinHandle<'_, R>) -> R {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests;
