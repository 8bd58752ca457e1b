//! Programs on this machine, through our queue and elevator: the lab's, and `blockyard bench`.
//!
//! Each task is a thread with a client of its own ([`blockyard_host::local`]), so the elevator sees
//! as many submitters, with their priorities, as the program has tasks.
//!
//! ```text
//!   program ─ phase ─> task ─ call ─> client ─┐
//!                      task ─ call ─> client ─┴─> queue, elevator ─> file, device, memory
//! ```
//! A variant of the lab with a crypt target runs on an encrypted target: AES-XTS under a random
//! key, with the variant's pipeline.
//!
//! There is no page cache and no file system: what the program's buffered writes did in memory goes
//! to the target here, and what it read again is read again. So its numbers say how an elevator
//! serves this load on this machine, and are not those of a run through a file system.

mod gate;
mod tally;
mod target;
mod task;

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{Builder, ScopedJoinHandle};

use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::time::Nanos;
use blockyard_host::local::Client;
use blockyard_host::usage::Usage;
use blockyard_host::volume::{Volume, VolumeOptions};
use blockyard_workload::fio::Surroundings;
use blockyard_workload::program::{Phase, Program, Task};

use crate::failure::Failure;
use gate::{Clock, Gate};
use target::Opened;
use task::{FailedCall, Worker};

pub(crate) use tally::{Moved, Tally};
pub(crate) use target::{Place, Target};

/// For every report of a real run.
pub(crate) const NO_PAGE_CACHE: &str =
    "no page cache: what the program's buffered writes did in memory goes to the disk here";

/// How a run went, beside what the program has measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RealOutcome {
    /// As on the command line.
    pub(crate) elevator: String,
    /// From the start of the first phase to the end of the last.
    pub(crate) ended: Nanos,
    /// What was used beside the tasks' own threads: workers, threads of devices, who waits for all.
    pub(crate) beside: Usage,
}

/// Runs a program to its end. Its files are this long, by their numbers.
pub(crate) fn run<P: Program>(
    target: &Target,
    file_lens_bytes: &[u64],
    program: &mut P,
) -> Result<RealOutcome, Failure> {
    let opened = target.open(file_lens_bytes)?;
    let (ended, beside) = run_on(&opened, program, &Tally::default())?;
    Ok(RealOutcome { elevator: opened.volume.elevator(), ended, beside })
}

/// Runs a program on a volume that all of its files are: what is on it is what they have. The tally
/// may be looked at meanwhile.
pub(crate) fn run_on_whole<P: Program>(
    volume: &Arc<Volume>,
    program: &mut P,
    tally: &Tally,
) -> Result<(), Failure> {
    run_on(&Opened::whole(volume), program, tally).map(|_| ())
}

/// What a job file may ask about this machine, beside a volume of this length.
pub(crate) fn surroundings(device_bytes: u64) -> Surroundings<'static> {
    Surroundings {
        device_bytes,
        page_bytes: rustix::param::page_size() as u64,
        memory_mib: target::memory_bytes().unwrap_or(0) >> 20,
        cpus: std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64),
        variable: &|name| std::env::var(name).ok(),
    }
}

/// A volume that keeps nothing: its bios end at once.
pub(crate) fn null(sectors: u64, options: &VolumeOptions) -> Result<Volume, Failure> {
    let table = format!("0 {sectors} null 2 discard:1 stale_reads:1");
    Ok(Volume::from_table(&SecretBytes::copy_of(table.as_bytes()), options)?)
}

/// Runs a program to its end, and says when that was, and what was used beside its tasks.
fn run_on<P: Program>(
    opened: &Opened,
    program: &mut P,
    tally: &Tally,
) -> Result<(Nanos, Usage), Failure> {
    let (clock, before) = (Clock::start(), Usage::of_process());
    let mut of_tasks = Usage::default();
    while let Some(phase) = program.next_phase() {
        let Ended { started, ended, tasks, used, failed } = run_phase(opened, clock, phase, tally)?;
        of_tasks = of_tasks.plus(used);
        program.end_phase(started, ended, tasks);
        if let Some(FailedCall { call, error }) = failed {
            let reason = std::io::Error::from_raw_os_error(error);
            return Err(Failure::failed(format!("a call failed ({call:?}): {reason}")));
        }
    }
    Ok((clock.now(), Usage::of_process().since(before).since(of_tasks)))
}

/// A phase that has ended.
struct Ended<T> {
    started: Nanos,
    ended: Nanos,
    /// Background behind the others.
    tasks: Vec<T>,
    /// By their threads.
    used: Usage,
    /// The first call of a task that went wrong.
    failed: Option<FailedCall>,
}

fn run_phase<T: Task + Send>(
    opened: &Opened,
    clock: Clock,
    phase: Phase<T>,
    tally: &Tally,
) -> Result<Ended<T>, Failure> {
    let gate = Gate::default();
    let Opened { volume, regions, lays_out, .. } = opened;
    let foreground = phase.tasks.len();
    let tasks = phase.tasks.into_iter().chain(phase.background);
    let mut workers = Vec::new();
    for (number, task) in tasks.enumerate() {
        let is_background = number >= foreground;
        let client = client(volume, &task)?;
        let (gate, failed, done, reaped) = (&gate, None, VecDeque::new(), vec![]);
        let (lays_out, tally) = (*lays_out, tally.task());
        let worker = Worker {
            client,
            regions,
            lays_out,
            clock,
            gate,
            is_background,
            tally,
            failed,
            done,
            reaped,
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
                    return Err(Failure::failed(format!("cannot start a thread: {error}")));
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

/// However the phase ends, no thread is left waiting.
struct StopAtEnd<'a>(&'a Gate);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// A task's way to the target.
fn client(volume: &Arc<Volume>, task: &impl Task) -> Result<Client, Failure> {
    Ok(Client::new(volume, task.priority())?)
}

/// A task that panics has told of its defect; so does the lab.
fn join<R>(thread: ScopedJoinHandle<'_, R>) -> R {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests;
