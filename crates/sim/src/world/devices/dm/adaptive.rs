//! The workers of `adaptive`, and the load by which the engine places a cipher: those of a server
//! in user space (crates/host/src/workers.rs), not a workqueue. Both apply the rules of
//! [`hand_over`].
//!
//! ```text
//!   submitter  short ciphers ── batch ────┐                   ┌─> worker: ciphers, ends the job,
//!              long cipher, part by part ─┴─> lane of jobs ───┤           spins a moment, sleeps
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

use blockyard_engine::dm::crypt::hand_over::{self, BATCH_BYTES, Waiting, WakeUp};
use blockyard_engine::dm::crypt::pipeline::{Adaptive, Load};
use blockyard_engine::slab::Slab;
use blockyard_engine::sq::{SqeOp, Token};
use blockyard_engine::time::Nanos;

use super::super::super::actions::Step;
use super::super::super::pools::QueueLock;
use crate::cpu::{CpuId, ThreadId};

/// Length of a step of a thread that spins. Ours: a small part of the shortest cipher.
pub(super) const SPIN_STEP: Nanos = Nanos(100);

/// Ciphers for one worker.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) steps: Vec<Step>,
    pub(super) owner: ThreadId,
    pub(super) wake: WakeUp,
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
    wake: WakeUp,
    /// Its lane.
    pub(super) lane: usize,
    /// The worker to wake for the next one.
    pub(super) woken: Option<ThreadId>,
}

/// Jobs of some submitters.
#[derive(Debug, Default)]
struct Lane {
    jobs: VecDeque<Job>,
    /// Bytes of its jobs.
    bytes: u64,
    lock: QueueLock,
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
    Working(WakeUp),
    /// It looks for a job without sleep, for so long.
    Spinning(Nanos),
}

/// A thread that submits.
#[derive(Debug)]
struct Submitter {
    /// The next batch, and its bytes.
    batch: Vec<Step>,
    batch_bytes: u64,
    /// Number of operations of its jobs.
    at_workers: u64,
    /// Its short requests.
    turn: hand_over::Turn,
    /// Its last request, if that was long.
    at_once_bytes: u64,
    is_awaited: bool,
    /// Time for which it has spun for completions.
    spun: Nanos,
    /// Lane of its jobs.
    lane: usize,
}

impl Submitter {
    fn new(hand_over_bytes: u64, lane: usize) -> Self {
        Self {
            lane,
            batch: Vec::new(),
            batch_bytes: 0,
            at_workers: 0,
            turn: hand_over::Turn::new(hand_over_bytes),
            at_once_bytes: 0,
            is_awaited: false,
            spun: Nanos(0),
        }
    }
}

/// The workers and their jobs.
// 14 fields: the lanes, the workers, and the submitters.
#[derive(Debug)]
pub(super) struct HostWorkers {
    hand_over_bytes: u64,
    long_from_bytes: u64,
    spin: Nanos,
    workers: u16,
    lanes: Vec<Lane>,
    in_flight_bytes: u64,
    /// Sleeping workers, the most recent last.
    idle: Vec<ThreadId>,
    states: BTreeMap<ThreadId, State>,
    /// The lane of each worker's last job.
    last_lanes: BTreeMap<ThreadId, usize>,
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
            spin: hand_over::spin_time(hand_over),
            workers: cpus - 1,
            lanes: (0..hand_over::lanes(cpus.into())).map(|_| Lane::default()).collect(),
            in_flight_bytes: 0,
            idle: Vec::new(),
            states: BTreeMap::new(),
            last_lanes: BTreeMap::new(),
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
        let has_none = |lane: &Lane| lane.jobs.is_empty();
        self.lanes.iter().all(has_none)
            && self.running.is_empty()
            && !self.submitters.values().any(has_batch)
    }

    pub(super) fn submitters(&self) -> impl Iterator<Item = ThreadId> + '_ {
        self.submitters.keys().copied()
    }

    fn submitter(&mut self, thread: ThreadId) -> &mut Submitter {
        let hand_over_bytes = self.hand_over_bytes;
        let lane = self.submitters.len() % self.lanes.len();
        let new = || Submitter::new(hand_over_bytes, lane);
        self.submitters.entry(thread).or_insert_with(new)
    }

    /// Notes a new request. `is_awaited`: its submitter has no other one.
    pub(super) fn arrives(&mut self, thread: ThreadId, len_bytes: u64, is_awaited: bool) {
        let is_long = len_bytes >= self.long_from_bytes;
        let submitter = self.submitter(thread);
        submitter.at_once_bytes = if is_long { len_bytes } else { 0 };
        submitter.is_awaited = is_long && is_awaited;
        if !is_long {
            let at_workers = submitter.at_workers + submitter.batch.len() as u64;
            submitter.turn.count(len_bytes, at_workers);
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
            together_bytes: submitter.map_or(0, |submitter| submitter.turn.together_bytes()),
            is_awaited: submitter.is_some_and(|submitter| submitter.is_awaited),
            ..Load::default()
        }
    }

    /// The submitter looks for completions.
    pub(super) fn end_turn(&mut self, thread: ThreadId) {
        if let Some(submitter) = self.submitters.get_mut(&thread) {
            submitter.turn.end();
        }
    }

    /// The submitter is about to sleep.
    pub(super) fn sleeps(&mut self, thread: ThreadId) {
        if let Some(submitter) = self.submitters.get_mut(&thread) {
            submitter.turn.sleep();
            submitter.spun = Nanos(0);
        }
    }

    /// Whether the submitter goes on looking for completions of workers, instead of a sleep.
    pub(super) fn submitter_spins(&mut self, thread: ThreadId) -> bool {
        let Some(submitter) = self.submitters.get_mut(&thread) else { return false };
        let spins =
            submitter.turn.is_steady() && submitter.at_workers > 0 && submitter.spun < self.spin;
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
        let submitter = self.submitter(owner);
        submitter.batch_bytes += len_bytes(&step);
        submitter.batch.push(step);
        if is_full { self.take_batch(owner) } else { None }
    }

    /// Takes the batch of a submitter, if it has one.
    pub(super) fn take_batch(&mut self, owner: ThreadId) -> Option<Job> {
        let submitter = self.submitters.get_mut(&owner)?;
        submitter.batch_bytes = 0;
        let steps = std::mem::take(&mut submitter.batch);
        (!steps.is_empty()).then_some(Job { steps, owner, wake: WakeUp::ForMany })
    }

    pub(super) fn has_batch(&self, thread: ThreadId) -> bool {
        self.submitters.get(&thread).is_some_and(|submitter| !submitter.batch.is_empty())
    }

    pub(super) fn has_work_at_workers(&self, thread: ThreadId) -> bool {
        self.submitters.get(&thread).is_some_and(|submitter| submitter.at_workers > 0)
    }

    /// Lane of a submitter.
    pub(super) fn lane_of(&mut self, thread: ThreadId) -> usize {
        self.submitter(thread).lane
    }

    /// Time for the lock of a lane, of a CPU that begins at this time.
    pub(super) fn lock_time(&mut self, lane: usize, at: Nanos, cpu: CpuId, lines: Nanos) -> Nanos {
        self.lanes[lane].lock.take(at, cpu, lines)
    }

    /// Queues a job; returns the worker to wake.
    pub(super) fn put(&mut self, job: Job) -> Option<ThreadId> {
        let submitter = self.submitter(job.owner);
        submitter.at_workers += job.steps.len() as u64;
        let lane = submitter.lane;
        self.in_flight_bytes += job.len_bytes();
        self.lanes[lane].bytes += job.len_bytes();
        let wake = job.wake;
        self.lanes[lane].jobs.push_back(job);
        self.wakes(lane, wake)
    }

    /// The worker to wake for the waiting jobs of a lane, of which one has this wish.
    fn wakes(&mut self, lane: usize, wake: WakeUp) -> Option<ThreadId> {
        let Lane { jobs, bytes, .. } = &self.lanes[lane];
        if jobs.is_empty() {
            return None;
        }
        let is_called = self.is_called;
        let waiting = Waiting { bytes: *bytes, spinning: self.spinning, is_called };
        if !wake.is_due(waiting) {
            return None;
        }
        let woken = self.idle.pop()?;
        self.is_called = true;
        Some(woken)
    }

    /// Takes the oldest job of a lane.
    pub(super) fn take(&mut self, lane: usize) -> Option<Taken> {
        let job = self.lanes[lane].jobs.pop_front()?;
        let len_bytes = job.len_bytes();
        self.lanes[lane].bytes -= len_bytes;
        let Job { steps, owner, wake } = job;
        let left = steps.len();
        let id = self.running.insert(Running { owner, len_bytes, left, ended: Vec::new() });
        self.running_of.extend(steps.iter().map(|step| (step.sqe.token, id)));
        let woken = self.wakes(lane, wake);
        Some(Taken { steps, wake, lane, woken })
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
        if let Some(taken) = self.take_next(worker) {
            self.states.insert(worker, State::Working(taken.wake));
            return Look::Takes(taken);
        }
        let spun = match before {
            State::Working(WakeUp::ForMany) => Nanos(0),
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

    /// Takes a job for a worker: from the lanes behind its last one first.
    fn take_next(&mut self, worker: ThreadId) -> Option<Taken> {
        let last = self.last_lanes.get(&worker).copied().unwrap_or(0);
        let mut lanes = (last + 1..self.lanes.len()).chain(0..=last);
        let taken = lanes.find_map(|lane| self.take(lane))?;
        self.last_lanes.insert(worker, taken.lane);
        Some(taken)
    }

    /// The worker to wake for the jobs of a submitter that has ended.
    pub(super) fn takes_over(&mut self) -> Option<ThreadId> {
        let with_jobs = |lane: &usize| !self.lanes[*lane].jobs.is_empty();
        let lane = (0..self.lanes.len()).find(with_jobs)?;
        self.wakes(lane, WakeUp::Always)
    }

    /// Adds a worker, which sleeps.
    pub(super) fn add_worker(&mut self, worker: ThreadId) {
        self.idle.push(worker);
    }
}
