//! Crypto workers: the places that are not the connection's own thread.
//!
//! ```text
//!   Unbound   one queue, whichever worker is free takes the oldest job
//!   SameCpu   a queue and a worker for each CPU, pinned there
//! ```
//! A hand-over and back costs as much as many small ciphers: the pipeline decides what comes here.
//! The answers of one executor come back in its own [`Answers`].

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use blockyard_engine::bio::IoContext;
use blockyard_engine::sq::Cqe;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::answers::Answers;
use crate::process;
use crate::submitter::new_io_context;

/// What a worker runs, told the worker's io-context. Without an answer it has passed the operation
/// on to a disk. What it owns it drops before that is told: an executor that waits for it may be
/// the last user of the volume otherwise, and then these workers would wait for themselves.
type Run = Box<dyn FnOnce(IoContext) -> Option<Cqe> + Send>;

/// Something to run on a worker.
pub(crate) struct Job {
    pub(crate) run: Run,
    pub(crate) answer_to: Arc<Answers>,
}

impl Job {
    fn run(self, worker: IoContext) {
        let answer = (self.run)(worker);
        self.answer_to.push_worked(answer);
    }
}

#[derive(Default)]
struct Jobs {
    jobs: VecDeque<Job>,
    stopping: bool,
}

/// Jobs for one worker or several.
#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    more: Condvar,
}

/// How many workers there are to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Crew {
    /// Free to run on any CPU.
    pub(crate) unbound: usize,
    /// One for each CPU, besides.
    pub(crate) bound: bool,
}

/// The threads, until the last user drops them.
pub(crate) struct Workers {
    unbound: Arc<Queue>,
    /// By number of the CPU, as far as there are threads.
    bound: Vec<(usize, Arc<Queue>)>,
    threads: Vec<JoinHandle<()>>,
    /// Of what runs on the submitter's thread because the system gave none.
    io_context: IoContext,
}

impl Workers {
    pub(crate) fn start(crew: Crew) -> Arc<Self> {
        let unbound = Arc::<Queue>::default();
        let mut threads = Vec::new();
        for number in 0..crew.unbound {
            threads.extend(spawn(format!("crypt/u:{number}"), None, &unbound));
        }
        let mut bound = Vec::new();
        for cpu in if crew.bound { allowed_cpus() } else { Vec::new() } {
            let queue = Arc::<Queue>::default();
            if let Some(thread) = spawn(format!("crypt/{cpu}"), Some(cpu), &queue) {
                threads.push(thread);
                bound.push((cpu, queue));
            }
        }
        Arc::new(Self { unbound, bound, threads, io_context: new_io_context() })
    }

    /// To whichever worker is free.
    pub(crate) fn submit(&self, job: Job) {
        if self.threads.len() == self.bound.len() {
            return job.run(self.io_context);
        }
        self.unbound.put(job);
    }

    /// To the worker of the CPU that this runs on.
    pub(crate) fn submit_here(&self, job: Job) {
        let cpu = sched_getcpu();
        let own = self.bound.iter().find(|(of, _)| *of == cpu).or(self.bound.first());
        match own {
            Some((_, queue)) => queue.put(job),
            None => job.run(self.io_context),
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.unbound.stop();
        self.bound.iter().for_each(|(_, queue)| queue.stop());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Queue {
    fn put(&self, job: Job) {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).jobs.push_back(job);
        self.more.notify_one();
    }

    fn stop(&self) {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).stopping = true;
        self.more.notify_all();
    }

    fn work(&self) {
        let io_context = new_io_context();
        let mut waiting = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(job) = waiting.jobs.pop_front() {
                drop(waiting);
                job.run(io_context);
                waiting = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
            } else if waiting.stopping {
                return;
            } else {
                waiting = self.more.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

/// A worker, pinned to a CPU if one is named. None if the system has no more threads.
fn spawn(name: String, cpu: Option<usize>, queue: &Arc<Queue>) -> Option<JoinHandle<()>> {
    let queue = Arc::clone(queue);
    let thread = std::thread::Builder::new().name(name);
    let run = move || {
        process::leave_signals_to_others();
        if let Some(cpu) = cpu {
            let mut cpus = CpuSet::new();
            cpus.set(cpu);
            let _ = sched_setaffinity(None, &cpus); // the CPU may be gone: then anywhere
        }
        queue.work();
    };
    thread.spawn(run).ok()
}

/// The CPUs that this process may run on.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    let cpus = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|cpu| cpus.is_set(*cpu)).collect()
}
