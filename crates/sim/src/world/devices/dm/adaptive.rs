//! The workers of `adaptive`, and the load by which the engine places a cipher: those of a server
//! in user space (crates/host/src/workers.rs and driver/turn.rs), not a workqueue.
//!
//! ```text
//!   submitter  short ciphers ── batch ────┐                   ┌─> worker: ciphers, ends the job,
//!              long cipher, part by part ─┴─> queue of jobs ──┤           spins a moment, sleeps
//!                                                             └─> a submitter with nothing to do
//! ```
//! A *turn* of a submitter is what it submits until it looks for completions. A batch wakes a
//! worker only if much waits and no worker is coming or looking.
//!
//! Left out: hand-overs that take longer in use than at the start, CPUs that others use, and
//! several volumes. A submitter counts while it is awake; the server counts one with short requests
//! only in a steady load. The thread that has encrypted a write submits it; in the server its
//! submitter does.

use std::collections::{BTreeMap, VecDeque};

use blockyard_engine::dm::crypt::pipeline::{Adaptive, Load, TOGETHER_MIN_BYTES};
use blockyard_engine::slab::Slab;
use blockyard_engine::sq::{SqeOp, Token};
use blockyard_engine::time::Nanos;

use super::super::super::actions::Step;
use super::super::super::pools::QueueLock;
use crate::cpu::{CpuId, ThreadId};

/// A full batch (executor/batch.rs).
const BATCH_BYTES: u64 = 32 << 10;
/// Waiting bytes for which a batch wakes a worker (workers.rs).
const WAKES_FROM_BYTES: u64 = TOGETHER_MIN_BYTES;
/// Length of a step of a thread that spins. Ours: a small part of the shortest cipher.
pub(super) const SPIN_STEP: Nanos = Nanos(100);

/// When a job wakes a sleeping worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wake {
    Always,
    /// If much waits, and no worker comes or looks.
    ForMany,
}

/// Ciphers for one worker.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) steps: Vec<Step>,
    pub(super) owner: ThreadId,
    pub(super) wake: Wake,
}

impl Job {
    fn len_bytes(&self) -> u64 {
        self.steps.iter().map(len_bytes).sum()
    }
}

/// Length of a cipher.
fn len_bytes(step: &Step) -> u64 {
    match step.sqe.op {
        SqeOp::Crypt { src, .. } => src.len_bytes.into(),
        _ => 0,
    }
}

/// A job in work.
#[derive(Debug)]
struct Running {
    owner: ThreadId,
    len_bytes: u64,
    left: usize,
    ended: Vec<Token>,
}

/// A job that a thread takes.
pub(super) struct Taken {
    pub(super) steps: Vec<Step>,
    wake: Wake,
    /// The worker to wake for the next one.
    pub(super) woken: Option<ThreadId>,
}

/// Next step of a worker.
pub(super) enum Look {
    Takes(Taken),
    Spins,
    Sleeps,
}

/// State of a worker.
#[derive(Clone, Copy, Debug)]
enum State {
    Asleep,
    Working(Wake),
    /// It looks for a job without sleep, for so long.
    Spinning(Nanos),
}

/// A thread that submits.
#[derive(Debug, Default)]
struct Submitter {
    /// The next batch, and its bytes.
    batch: Vec<Step>,
    batch_bytes: u64,
    /// Number of operations of its jobs.
    at_workers: u64,
    /// Bytes and number of the short requests of this turn, and `at_workers` at its start.
    bytes: u64,
    requests: u64,
    at_workers_before: u64,
    /// Bytes since it last slept, without this turn.
    awake_bytes: u64,
    is_steady: bool,
    together_bytes: u64,
    /// Its last request, if that was long.
    at_once_bytes: u64,
    is_awaited: bool,
    /// Time for which it has spun for completions.
    spun: Nanos,
}

/// The workers and their jobs.
// 15 fields: the queue, its workers, and the submitters.
#[derive(Debug)]
pub(super) struct HostWorkers {
    hand_over_bytes: u64,
    long_from_bytes: u64,
    spin: Nanos,
    workers: u16,
    jobs: VecDeque<Job>,
    waiting_bytes: u64,
    in_flight_bytes: u64,
    lock: QueueLock,
    /// Sleeping workers, the most recent last.
    idle: Vec<ThreadId>,
    states: BTreeMap<ThreadId, State>,
    /// Number of workers that look for a job without sleep.
    spinning: usize,
    /// A worker was woken, and has not come.
    is_called: bool,
    running: Slab<Running>,
    running_of: BTreeMap<Token, u32>,
    submitters: BTreeMap<ThreadId, Submitter>,
}

impl HostWorkers {
    /// `None` without workers.
    pub(super) fn new(adaptive: &Adaptive, hand_over: Nanos, cpus: u16) -> Option<Self> {
        let hand_over_bytes = adaptive.fan_out_min_bytes?.into();
        Some(Self {
            hand_over_bytes,
            long_from_bytes: adaptive.asks_load_from_bytes()?,
            spin: Nanos(hand_over.0 / 8),
            workers: cpus - 1,
            jobs: VecDeque::new(),
            waiting_bytes: 0,
            in_flight_bytes: 0,
            lock: QueueLock::default(),
            idle: Vec::new(),
            states: BTreeMap::new(),
            spinning: 0,
            is_called: false,
            running: Slab::default(),
            running_of: BTreeMap::new(),
            submitters: BTreeMap::new(),
        })
    }

    /// Number of workers: a thread for each CPU but one.
    pub(super) fn workers(&self) -> u16 {
        self.workers
    }

    pub(super) fn is_idle(&self) -> bool {
        let has_batch = |submitter: &Submitter| !submitter.batch.is_empty();
        self.jobs.is_empty() && self.running.is_empty() && !self.submitters.values().any(has_batch)
    }

    pub(super) fn submitters(&self) -> impl Iterator<Item = ThreadId> + '_ {
        self.submitters.keys().copied()
    }

    /// Notes a new request. `is_awaited`: its submitter has no other one.
    pub(super) fn arrives(&mut self, thread: ThreadId, len_bytes: u64, is_awaited: bool) {
        let is_long = len_bytes >= self.long_from_bytes;
        let submitter = self.submitters.entry(thread).or_default();
        submitter.at_once_bytes = if is_long { len_bytes } else { 0 };
        submitter.is_awaited = is_long && is_awaited;
        if !is_long {
            if submitter.requests == 0 {
                submitter.at_workers_before = submitter.at_workers + submitter.batch.len() as u64;
            }
            submitter.bytes += len_bytes;
            submitter.requests += 1;
        }
    }

    /// The load for the requests of a submitter, while `awake` submitters have a CPU or wait for
    /// one.
    pub(super) fn load(&self, thread: ThreadId, awake: usize) -> Load {
        let submitter = self.submitters.get(&thread);
        let idle_cpus = (usize::from(self.workers) + 1).saturating_sub(awake);
        let idle_cpus = u16::try_from(idle_cpus).unwrap_or(u16::MAX).min(self.workers);
        Load {
            idle_cpus,
            fanned_out_bytes: self.in_flight_bytes,
            at_once_bytes: submitter.map_or(0, |submitter| submitter.at_once_bytes),
            together_bytes: submitter.map_or(0, |submitter| submitter.together_bytes),
            is_awaited: submitter.is_some_and(|submitter| submitter.is_awaited),
            ..Load::default()
        }
    }

    /// The submitter looks for completions (`Turn::end`).
    pub(super) fn end_turn(&mut self, thread: ThreadId) {
        let Some(submitter) = self.submitters.get_mut(&thread) else { return };
        if submitter.requests == 0 {
            return;
        }
        let operations = submitter.requests + submitter.at_workers_before;
        let together_bytes = submitter.bytes * operations / submitter.requests;
        submitter.awake_bytes += submitter.bytes;
        (submitter.bytes, submitter.requests) = (0, 0);
        let was_steady = submitter.is_steady;
        submitter.is_steady =
            submitter.awake_bytes >= self.hand_over_bytes && together_bytes >= TOGETHER_MIN_BYTES;
        let counts = submitter.is_steady && was_steady;
        submitter.together_bytes = if counts { together_bytes } else { 0 };
    }

    /// The submitter is about to sleep (`Turn::sleep`).
    pub(super) fn sleeps(&mut self, thread: ThreadId) {
        if let Some(submitter) = self.submitters.get_mut(&thread) {
            (submitter.awake_bytes, submitter.together_bytes) = (0, 0);
            submitter.is_steady = false;
            submitter.spun = Nanos(0);
        }
    }

    /// Whether the submitter goes on looking for completions of workers, instead of a sleep.
    pub(super) fn submitter_spins(&mut self, thread: ThreadId) -> bool {
        let Some(submitter) = self.submitters.get_mut(&thread) else { return false };
        let spins = submitter.is_steady && submitter.at_workers > 0 && submitter.spun < self.spin;
        submitter.spun = if spins { submitter.spun + SPIN_STEP } else { Nanos(0) };
        spins
    }

    /// The submitter has completions.
    pub(super) fn has_reaped(&mut self, thread: ThreadId) {
        if let Some(submitter) = self.submitters.get_mut(&thread) {
            submitter.spun = Nanos(0);
        }
    }

    /// Whether this cipher completes a batch.
    pub(super) fn fills_batch(&self, thread: ThreadId, step: &Step) -> bool {
        let so_far = self.submitters.get(&thread).map_or(0, |submitter| submitter.batch_bytes);
        so_far + len_bytes(step) >= BATCH_BYTES
    }

    /// Adds a cipher to the batch; returns a full one.
    pub(super) fn gather(&mut self, owner: ThreadId, step: Step) -> Option<Job> {
        let is_full = self.fills_batch(owner, &step);
        let submitter = self.submitters.entry(owner).or_default();
        submitter.batch_bytes += len_bytes(&step);
        submitter.batch.push(step);
        if is_full { self.take_batch(owner) } else { None }
    }

    /// Takes the batch of a submitter, if it has one.
    pub(super) fn take_batch(&mut self, owner: ThreadId) -> Option<Job> {
        let submitter = self.submitters.get_mut(&owner)?;
        submitter.batch_bytes = 0;
        let steps = std::mem::take(&mut submitter.batch);
        (!steps.is_empty()).then_some(Job { steps, owner, wake: Wake::ForMany })
    }

    pub(super) fn has_batch(&self, thread: ThreadId) -> bool {
        self.submitters.get(&thread).is_some_and(|submitter| !submitter.batch.is_empty())
    }

    pub(super) fn has_work_at_workers(&self, thread: ThreadId) -> bool {
        self.submitters.get(&thread).is_some_and(|submitter| submitter.at_workers > 0)
    }

    /// Time for the lock of the queue, of a CPU that begins at this time.
    pub(super) fn lock_time(&mut self, at: Nanos, cpu: CpuId, lines: Nanos) -> Nanos {
        self.lock.take(at, cpu, lines)
    }

    /// Queues a job; returns the worker to wake.
    pub(super) fn put(&mut self, job: Job) -> Option<ThreadId> {
        let submitter = self.submitters.entry(job.owner).or_default();
        submitter.at_workers += job.steps.len() as u64;
        self.in_flight_bytes += job.len_bytes();
        self.waiting_bytes += job.len_bytes();
        let wake = job.wake;
        self.jobs.push_back(job);
        self.wakes(wake)
    }

    /// The worker to wake for the waiting jobs, of which one has this wish (`Jobs::wakes`).
    fn wakes(&mut self, wake: Wake) -> Option<ThreadId> {
        if self.jobs.is_empty() {
            return None;
        }
        let is_enough =
            !self.is_called && self.spinning == 0 && self.waiting_bytes >= WAKES_FROM_BYTES;
        if wake == Wake::ForMany && !is_enough {
            return None;
        }
        let woken = self.idle.pop()?;
        self.is_called = true;
        Some(woken)
    }

    /// Takes the oldest job.
    pub(super) fn take(&mut self) -> Option<Taken> {
        let job = self.jobs.pop_front()?;
        let len_bytes = job.len_bytes();
        self.waiting_bytes -= len_bytes;
        let Job { steps, owner, wake } = job;
        let left = steps.len();
        let id = self.running.insert(Running { owner, len_bytes, left, ended: Vec::new() });
        self.running_of.extend(steps.iter().map(|step| (step.sqe.token, id)));
        let woken = self.wakes(wake);
        Some(Taken { steps, wake, woken })
    }

    /// A cipher of a job has ended. Returns the tokens to complete: those of the job, at its end.
    pub(super) fn ends(&mut self, token: Token) -> Vec<Token> {
        let id = self.running_of.remove(&token).expect("the cipher is of a job in work");
        let running = self.running.at(id);
        running.ended.push(token);
        running.left -= 1;
        if running.left > 0 {
            return Vec::new();
        }
        let Running { owner, len_bytes, ended, .. } = self.running.remove(id);
        self.in_flight_bytes -= len_bytes;
        let submitter = self.submitters.get_mut(&owner).expect("it has put the job");
        submitter.at_workers -= ended.len() as u64;
        ended
    }

    /// The next step of a worker that comes, or has nothing to do any more.
    pub(super) fn look(&mut self, worker: ThreadId) -> Look {
        let before = self.states.insert(worker, State::Asleep).unwrap_or(State::Asleep);
        match before {
            State::Asleep => self.is_called = false,
            State::Spinning(_) => self.spinning -= 1,
            State::Working(_) => {}
        }
        if let Some(taken) = self.take() {
            self.states.insert(worker, State::Working(taken.wake));
            return Look::Takes(taken);
        }
        let spun = match before {
            State::Working(Wake::ForMany) => Nanos(0),
            State::Spinning(spun) if spun < self.spin => spun,
            _ => {
                self.idle.push(worker);
                return Look::Sleeps;
            }
        };
        self.spinning += 1;
        self.states.insert(worker, State::Spinning(spun + SPIN_STEP));
        Look::Spins
    }

    /// The worker to wake for the jobs of a submitter that has ended.
    pub(super) fn takes_over(&mut self) -> Option<ThreadId> {
        self.wakes(Wake::Always)
    }

    /// Adds a worker, which sleeps.
    pub(super) fn add_worker(&mut self, worker: ThreadId) {
        self.idle.push(worker);
    }
}
