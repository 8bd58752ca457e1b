//! Crypto workers: the placements outside the connection's own thread.
//!
//! ```text
//!   Unbound   one queue, any free worker takes the oldest job
//!   SameCpu   a queue and a worker for each CPU, pinned there
//! ```
//! Volumes of a process with equal configurations share the threads, so their number does not grow
//! with the volumes. The jobs of each volume have a queue of their own, and the queues take turns
//! ([`queue`]). Jobs that also wait for a disk are on threads of their volume only: a disk that
//! does not answer must not stop other volumes.
//!
//! A hand-over and back costs as much as many small ciphers; the pipeline decides which jobs come
//! here. The completions of one executor return through its own [`CompletionQueue`].

mod queue;
mod wake_ups;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use blockyard_engine::bio::{BlkStatus, IoContext, Sample};
use blockyard_engine::dm::crypt::pipeline::{Load, TOGETHER_MIN_BYTES};
use blockyard_engine::sq::{Cqe, Owner, Token};
use blockyard_engine::time::Nanos;
use queue::Queue;
use rustix::thread::sched_getcpu;

use crate::completions::CompletionQueue;
use crate::fused::Scratch;
use crate::stages::{self, Span, Stage, Timed};
use crate::submitter::new_io_context;
use crate::threads::{self, Usage};
use crate::{cpus, poll, process};

/// Hand-overs of a measurement, and the pause before each, in which the worker falls asleep. Ours:
/// two milliseconds in all.
const MEASURED_HAND_OVERS: usize = 12;
const MEASURED_PAUSE: Duration = Duration::from_micros(50);
/// A hand-over that cannot be measured, and the limits of a measured one: threads need microseconds
/// for it anywhere, and a machine that is busy now may be idle later.
const USUAL_ROUND_TRIP_NS: u64 = 40_000;
const ROUND_TRIP_MIN_NS: u64 = 4_000;
const ROUND_TRIP_MAX_NS: u64 = 100_000;

/// Time of a hand-over to a sleeping worker and back on this machine, measured once.
pub(crate) fn round_trip_ns() -> u64 {
    static MEASURED: OnceLock<u64> = OnceLock::new();
    *MEASURED.get_or_init(|| measure_round_trip().unwrap_or(USUAL_ROUND_TRIP_NS))
}

/// Time to wait for work without sleep. Ours: an eighth of a hand-over, so a wait that was in vain
/// adds little to it.
pub(crate) fn spin_time() -> Nanos {
    Nanos(round_trip_ns() / 8)
}

/// A hand-over with wake-ups that take this time, compared with the measured one; at least that
/// one. The worker wakes up, and at the end its submitter.
fn hand_over_percent(wake_up: Nanos) -> u16 {
    let percent = 2 * wake_up.0 * 100 / round_trip_ns();
    u16::try_from(percent.max(100)).unwrap_or(u16::MAX)
}

/// The median of some hand-overs; others were interrupted.
fn measure_round_trip() -> Option<u64> {
    let workers = Workers::start(WorkerConfig { unbound: 1, bound: false });
    if workers.pool.threads.is_empty() {
        return None;
    }
    let completions = CompletionQueue::new().ok()?;
    let mut task = Task::new();
    let mut cqes = Vec::new();
    let mut timed = Vec::new();
    let mut times = Vec::new();
    for _ in 0..MEASURED_HAND_OVERS {
        std::thread::sleep(MEASURED_PAUSE);
        let token = Token { owner: Owner::Shard, index: 0 };
        let run: Run = Box::new(move |task| task.cqes.push(Cqe { token, status: BlkStatus::Ok }));
        let completions = Arc::clone(&completions);
        let begun = Instant::now();
        workers.submit(Job::one(run, &completions, 0), &mut task);
        while cqes.is_empty() {
            poll::readable(&[Some(completions.ready())], None).ok()?;
            completions.take(&mut cqes, &mut timed);
        }
        cqes.clear();
        times.push(begun.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    Some(times[times.len() / 2].clamp(ROUND_TRIP_MIN_NS, ROUND_TRIP_MAX_NS))
}

/// A thread that runs jobs.
pub(crate) struct Task {
    pub(crate) io_context: IoContext,
    pub(crate) scratch: Scratch,
    /// Completions of the running job.
    pub(crate) cqes: Vec<Cqe>,
    /// Spans of the running job.
    timed: Vec<Timed>,
    /// End of the last span, if the job's bio is sampled.
    pub(crate) timed_until: Nanos,
}

impl Task {
    pub(crate) fn new() -> Self {
        let io_context = new_io_context();
        let scratch = Scratch::default();
        Self { io_context, scratch, cqes: Vec::new(), timed: Vec::new(), timed_until: Nanos(0) }
    }

    /// Ends a span of the bio in this stage, now.
    pub(crate) fn lap(&mut self, sample: Sample, stage: Stage) {
        if sample != Sample::NONE {
            self.lap_until(sample, stage, stages::now());
        }
    }

    /// Ends a span of the bio in this stage, at this time.
    pub(crate) fn lap_until(&mut self, sample: Sample, stage: Stage, to: Nanos) {
        let span = Span { stage, from: self.timed_until, to };
        self.timed.push(Timed { sample, span });
        self.timed_until = to;
    }
}

/// Code of a job. Adds a completion to [`Task::cqes`] for each operation that it did not pass on to
/// a disk. Drops its data before its completion is signalled: otherwise a waiting executor could be
/// the last user of the volume, and the workers would wait for themselves.
type Run = Box<dyn FnOnce(&mut Task) + Send>;

/// A job for a worker.
pub(crate) struct Job {
    pub(crate) run: Run,
    pub(crate) completions: Arc<CompletionQueue>,
    /// Number of its operations.
    pub(crate) operations: u16,
    /// Bytes to encrypt or decrypt.
    pub(crate) len_bytes: u32,
    pub(crate) wake: Wake,
}

/// When a job wakes a sleeping worker up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// Always: its submitter waits for it.
    Always,
    /// If at least [`WAKES_FROM_BYTES`] wait, and no worker is about to look for jobs. Otherwise
    /// the submitter runs it.
    ForMany,
}

/// See [`Wake::ForMany`]: two batches, one for a worker and one for the submitter.
const WAKES_FROM_BYTES: u64 = TOGETHER_MIN_BYTES;

impl Job {
    /// Runs it, and subtracts its length from the sum of the bytes in flight.
    fn run(self, task: &mut Task, in_flight_bytes: &AtomicU64) {
        (self.run)(task);
        in_flight_bytes.fetch_sub(u64::from(self.len_bytes), Ordering::Relaxed);
        self.completions.push_worked(&mut task.cqes, self.operations.into(), &mut task.timed);
    }

    /// A job of one operation, for which a worker wakes up.
    pub(crate) fn one(run: Run, completions: &Arc<CompletionQueue>, len_bytes: u32) -> Self {
        let completions = Arc::clone(completions);
        Self { run, completions, operations: 1, len_bytes, wake: Wake::Always }
    }
}

/// See [`Workers::busy`].
pub(crate) struct Busy(Arc<Workers>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.pool.submitters.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Number of workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorkerConfig {
    /// Workers that may run on any CPU.
    pub(crate) unbound: usize,
    /// Additional workers, one pinned to each CPU.
    pub(crate) bound: bool,
}

/// The threads for all volumes of a [`Key`]; the drop by the last user ends them.
struct Pool {
    unbound: Arc<Queue>,
    /// By number of the CPU, for existing threads.
    bound: Vec<(u16, Arc<Queue>)>,
    threads: Vec<JoinHandle<()>>,
    /// Thread numbers of running threads.
    numbers: Arc<Mutex<Vec<u32>>>,
    /// Number of the pool, which no other running pool of this process has.
    id: usize,
    cpus: Cpus,
    /// Submitters that keep a CPU busy with long parts.
    submitters: AtomicUsize,
    /// Users that exist, by their number.
    users: Mutex<Vec<bool>>,
}

/// CPUs that a pool and its submitters have. They are counted again at most once in
/// [`COUNT_EVERY`], because an operator may change them, or the quota of their time.
struct Cpus {
    count: AtomicUsize,
    /// Time of the last count; 0: a new one is due.
    counted: AtomicU64,
}

/// Ours: a change is seen at once by a person, and a count takes microseconds.
const COUNT_EVERY: Nanos = Nanos(1_000_000_000);

impl Cpus {
    fn new(count: usize) -> Self {
        Self { count: AtomicUsize::new(count), counted: AtomicU64::new(stages::now().0.max(1)) }
    }

    fn get(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Takes a new number from `count`, if the last one is old.
    fn count_again(&self, now: Nanos, count: impl FnOnce() -> usize) {
        let counted = Nanos(self.counted.load(Ordering::Relaxed));
        if counted == Nanos(0) || now.since(counted) >= COUNT_EVERY {
            self.count.store(count(), Ordering::Relaxed);
            self.counted.store(now.0, Ordering::Relaxed);
        }
    }
}

/// Volumes with equal keys share their workers.
#[derive(PartialEq, Eq)]
struct Key {
    config: WorkerConfig,
    /// A worker inherits the CPUs of the thread that starts it.
    cpus: Vec<u16>,
    /// A child after `fork` has none of its parent's threads.
    process: u32,
}

/// The pools that volumes share.
struct Running(Vec<(Key, Weak<Pool>)>);

impl Running {
    fn find(&mut self, key: &Key) -> Option<Arc<Pool>> {
        self.0.retain(|(_, pool)| pool.strong_count() > 0);
        self.0.iter().find(|(of, _)| of == key).and_then(|(_, pool)| pool.upgrade())
    }
}

fn running() -> MutexGuard<'static, Running> {
    static RUNNING: Mutex<Running> = Mutex::new(Running(Vec::new()));
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    fn start(config: WorkerConfig, cpus: &[u16]) -> Self {
        let unbound = Arc::<Queue>::default();
        let mut threads = Vec::new();
        let numbers = Arc::default();
        for number in 0..config.unbound {
            threads.extend(spawn(format!("crypt/u:{number}"), None, &unbound, &numbers));
        }
        let mut bound = Vec::new();
        for cpu in if config.bound { cpus } else { &[] } {
            let queue = Arc::<Queue>::default();
            if let Some(thread) = spawn(format!("crypt/{cpu}"), Some(*cpu), &queue, &numbers) {
                threads.push(thread);
                bound.push((*cpu, queue));
            }
        }
        Self {
            unbound,
            bound,
            threads,
            numbers,
            id: take_lowest(&mut numbers_of_pools()),
            cpus: Cpus::new(cpus::parallelism()),
            submitters: AtomicUsize::new(0),
            users: Mutex::default(),
        }
    }

    /// The running pool with this configuration, or a new one.
    fn shared(config: WorkerConfig) -> Arc<Self> {
        let key = Key { config, cpus: cpus::allowed(), process: std::process::id() };
        if let Some(pool) = running().find(&key) {
            return pool;
        }
        // Without the lock: a child after `fork` would wait for it forever.
        let started = Arc::new(Self::start(config, &key.cpus));
        if !started.is_complete(config, key.cpus.len()) {
            // The next volume tries again.
            return started;
        }
        let mut running = running();
        let faster = running.find(&key);
        if faster.is_none() {
            running.0.push((key, Arc::downgrade(&started)));
        }
        // The lock ends before the threads of a pool that nobody needs.
        drop(running);
        faster.unwrap_or(started)
    }

    /// Counts the CPUs for the unbound workers and their submitters again, if the number is old.
    fn count_cpus(&self, now: Nanos) {
        if !self.bound.is_empty() {
            // One of the threads is pinned; no line of such a volume asks.
            return;
        }
        self.cpus.count_again(now, || {
            let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
            let thread = numbers.first().and_then(|number| i32::try_from(*number).ok());
            cpus::parallelism_of(thread.unwrap_or_default())
        });
    }

    /// Number of workers that may run on any CPU.
    fn unbound_threads(&self) -> usize {
        self.threads.len() - self.bound.len()
    }

    /// Whether the system has started all threads.
    fn is_complete(&self, config: WorkerConfig, cpus: usize) -> bool {
        self.threads.len() == config.unbound + if config.bound { cpus } else { 0 }
    }

    /// Adds a user, with the lowest number that is free.
    fn join(self: Arc<Self>) -> Arc<Workers> {
        let user = take_lowest(&mut self.users.lock().unwrap_or_else(PoisonError::into_inner));
        let before = self.usage();
        Arc::new(Workers { pool: self, user, before })
    }

    /// Time in which the threads had jobs, all of them together, since they started.
    fn busy(&self) -> Nanos {
        let queues = self.bound.iter().map(|(_, queue)| queue).chain([&self.unbound]);
        Nanos(queues.map(|queue| queue.worked().0).sum())
    }

    /// Usage of the threads since they started.
    fn usage(&self) -> Usage {
        let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Usage::default();
        numbers.iter().for_each(|number| all.add(&threads::of_thread(*number)));
        all
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.unbound.stop();
        self.bound.iter().for_each(|(_, queue)| queue.stop());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        numbers_of_pools()[self.id] = false;
    }
}

/// Numbers of the pools that exist. Low ones come again, so that a monitor does not get new series
/// of figures for each opening of a volume.
fn numbers_of_pools() -> MutexGuard<'static, Vec<bool>> {
    static NUMBERS: Mutex<Vec<bool>> = Mutex::new(Vec::new());
    NUMBERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the lowest free number.
fn take_lowest(taken: &mut Vec<bool>) -> usize {
    let free = taken.iter().position(|is_taken| !is_taken).unwrap_or(taken.len());
    match taken.get_mut(free) {
        Some(is_taken) => *is_taken = true,
        None => taken.push(true),
    }
    free
}

/// The workers, as one volume uses them.
pub(crate) struct Workers {
    pool: Arc<Pool>,
    /// Number of the user in the pool.
    user: usize,
    /// Usage of the threads before this user came.
    before: Usage,
}

impl Workers {
    /// Workers of the process, which all volumes with this configuration and the same CPUs share.
    pub(crate) fn shared(config: WorkerConfig) -> Arc<Self> {
        Pool::shared(config).join()
    }

    /// Workers for one user only.
    pub(crate) fn start(config: WorkerConfig) -> Arc<Self> {
        Arc::new(Pool::start(config, &cpus::allowed())).join()
    }

    /// Usage of the threads by all users since this one came, and their number.
    pub(crate) fn usage(&self) -> (Usage, usize) {
        (self.pool.usage().since(&self.before), self.pool.threads.len())
    }

    /// Time in which the threads had jobs of any user, all threads together.
    pub(crate) fn busy_time(&self) -> Nanos {
        self.pool.busy()
    }

    /// Number of the pool, equal for all of its users.
    pub(crate) fn pool(&self) -> u64 {
        self.pool.id as u64
    }

    /// Counts the calling thread as a submitter with a busy CPU, until the value is dropped.
    pub(crate) fn busy(self: &Arc<Self>) -> Busy {
        self.pool.submitters.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(self))
    }

    /// Load for a [`Workers::busy`] submitter. The figures may be inconsistent.
    pub(crate) fn load(&self, now: Nanos) -> Load {
        let submitters = self.pool.submitters.load(Ordering::Relaxed);
        let fanned_out_bytes = self.pool.unbound.in_flight_bytes();
        let without_work = self.pool.cpus.get().saturating_sub(submitters);
        // A CPU without a worker is of no use.
        let idle_cpus = without_work.min(self.pool.unbound_threads());
        let idle_cpus = u16::try_from(idle_cpus).unwrap_or(u16::MAX);
        let wake_up = self.pool.unbound.wake_ups.typical(now);
        let hand_over_percent = wake_up.map_or(100, hand_over_percent);
        Load { idle_cpus, fanned_out_bytes, hand_over_percent, ..Load::default() }
    }

    /// Counts the CPUs again, if the number is old.
    pub(crate) fn count_cpus(&self, now: Nanos) {
        self.pool.count_cpus(now);
    }

    /// Whether workers lately had to wait for a CPU that others used.
    pub(crate) fn is_crowded(&self, now: Nanos) -> bool {
        self.pool.unbound.is_crowded(now)
    }

    /// Behaves as if no CPU had been counted, long ago.
    #[cfg(test)]
    pub(crate) fn miscount_cpus(&self) {
        self.pool.cpus.count.store(0, Ordering::Relaxed);
        self.pool.cpus.counted.store(0, Ordering::Relaxed);
    }

    /// The load at this moment.
    #[cfg(test)]
    pub(crate) fn load_now(&self) -> Load {
        self.load(stages::now())
    }

    /// Waits until all unbound workers sleep.
    #[cfg(test)]
    pub(crate) fn fall_asleep(&self) {
        while self.pool.unbound.sleeping() < self.pool.unbound_threads() {
            std::thread::yield_now();
        }
    }

    /// Behaves as after a wait for a CPU.
    #[cfg(test)]
    pub(crate) fn crowd(&self) {
        self.pool.unbound.note(Nanos(1 << 40), stages::now());
    }

    /// Runs the user's oldest unbound job on this idle thread. Returns false if none waits.
    pub(crate) fn help(&self, task: &mut Task) -> bool {
        self.pool.unbound.help(self.user, task)
    }

    /// Passes a job to any free worker; `task` runs it now if there are no worker threads.
    pub(crate) fn submit(&self, job: Job, task: &mut Task) {
        if self.pool.unbound_threads() == 0 {
            return self.pool.unbound.run(job, task);
        }
        self.pool.unbound.put(self.user, job);
    }

    /// Passes a job to the worker of the current CPU, or else like [`Workers::submit`].
    pub(crate) fn submit_here(&self, job: Job, task: &mut Task) {
        let cpu = sched_getcpu();
        let bound = &self.pool.bound;
        let own = bound.iter().find(|(of, _)| usize::from(*of) == cpu).or(bound.first());
        match own {
            Some((_, queue)) => queue.put(self.user, job),
            None => self.pool.unbound.run(job, task),
        }
    }
}

impl Drop for Workers {
    /// No job is left: a volume ends after its requests.
    fn drop(&mut self) {
        let mut users = self.pool.users.lock().unwrap_or_else(PoisonError::into_inner);
        users[self.user] = false;
    }
}

/// Starts a worker, pinned to a CPU if given. `None` if the system has no more threads.
fn spawn(
    name: String,
    cpu: Option<u16>,
    queue: &Arc<Queue>,
    numbers: &Arc<Mutex<Vec<u32>>>,
) -> Option<JoinHandle<()>> {
    let queue = Arc::clone(queue);
    let numbers = Arc::clone(numbers);
    let thread = std::thread::Builder::new().name(name);
    let run = move || {
        let _guard = threads::AbortOnPanic;
        numbers.lock().unwrap_or_else(PoisonError::into_inner).push(threads::this_thread());
        if let Some(cpu) = cpu {
            let _ = cpus::run_on(&[cpu]); // the CPU may be offline: then any CPU
        }
        queue.work();
    };
    // From its first instruction on, no signal is delivered to it.
    process::with_signals_blocked(|| thread.spawn(run)).ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Output};
    use std::sync::mpsc::channel;

    use rustix::process::{Pid, Resource, Rlimit, WaitOptions, getrlimit, setrlimit, waitpid};

    use super::*;

    const STACK_BYTES: u64 = 64 << 20;

    /// Runs a test again, as a process without other tests and with large stacks. `None` in that
    /// process.
    fn run_alone(test: &str) -> Option<Output> {
        const IS_ALONE: &str = "BLOCKYARD_TEST_OF_WORKERS_IS_ALONE";
        if std::env::var_os(IS_ALONE).is_some() {
            return None;
        }
        let mut alone = Command::new(std::env::current_exe().unwrap());
        alone.args([&format!("workers::tests::{test}"), "--exact"]);
        alone.env(IS_ALONE, "1").env("RUST_MIN_STACK", STACK_BYTES.to_string());
        Some(alone.output().unwrap())
    }

    fn assert_passed(alone: &Output) {
        let said = String::from_utf8_lossy(&alone.stdout);
        assert!(alone.status.success() && said.contains("1 passed"), "{alone:?}");
    }

    fn wait_for_a_job_of(workers: &Workers) {
        let (done, wait) = channel();
        let run: Run = Box::new(move |_| {
            done.send(()).unwrap();
        });
        let completions = CompletionQueue::new().unwrap();
        workers.submit(Job::one(run, &completions, 0), &mut Task::new());
        wait.recv().unwrap();
    }

    /// The only worker is busy, and another job waits: an idle thread takes it.
    #[test]
    fn job_that_no_worker_has_time_for_is_run_by_who_waits() {
        let workers = Workers::start(WorkerConfig { unbound: 1, bound: false });
        let completions = CompletionQueue::new().unwrap();
        let mut task = Task::new();
        let (started, runs) = channel();
        let (go_on, release) = channel();
        let job = |run: Run| Job::one(run, &completions, 4096);
        workers.submit(
            job(Box::new(move |_| {
                started.send(()).unwrap();
                release.recv().unwrap();
            })),
            &mut task,
        );
        runs.recv().unwrap();
        let (here, ran_on) = channel();
        workers.submit(
            job(Box::new(move |_| {
                here.send(std::thread::current().id()).unwrap();
            })),
            &mut task,
        );
        assert_eq!(workers.load_now().fanned_out_bytes, 2 * 4096);
        assert!(workers.help(&mut task));
        assert_eq!(ran_on.recv().unwrap(), std::thread::current().id());
        assert!(!workers.help(&mut task), "the other job runs already");
        assert_eq!(workers.load_now().fanned_out_bytes, 4096);
        go_on.send(()).unwrap();
        drop(workers);
        assert_eq!(completions.take(&mut Vec::new(), &mut Vec::new()).from_workers, 2);
    }

    /// The test runs itself again as a child process, whose worker panics.
    #[test]
    fn worker_that_panics_ends_the_process_and_keeps_nobody_waiting() {
        let name = "worker_that_panics_ends_the_process_and_keeps_nobody_waiting";
        if let Some(alone) = run_alone(name) {
            let signal = std::os::unix::process::ExitStatusExt::signal(&alone.status);
            assert_eq!(signal, Some(libc::SIGABRT), "{alone:?}");
            return;
        }
        let workers = Workers::start(WorkerConfig { unbound: 1, bound: false });
        let job = Job::one(Box::new(|_| panic!("a bug")), &CompletionQueue::new().unwrap(), 0);
        workers.submit(job, &mut Task::new());
        // Joining would block; the thread ends with its panic.
        drop(workers);
    }

    #[test]
    fn users_of_equal_configurations_share_their_threads_until_the_last_one_ends() {
        // No other test has this number.
        let config = WorkerConfig { unbound: 3, bound: false };
        let first = Workers::shared(config);
        let second = Workers::shared(config);
        assert_eq!((first.pool(), first.usage().1), (second.pool(), second.usage().1));
        assert_ne!(first.user, second.user);
        let other = Workers::shared(WorkerConfig { unbound: 4, bound: false });
        assert_ne!(other.pool(), first.pool());
        let freed = first.user;
        let pool = first.pool();
        let threads = Arc::downgrade(&first.pool);
        drop(first);
        let third = Workers::shared(config);
        assert_eq!((third.user, third.pool()), (freed, pool));
        drop((second, third));
        assert!(threads.upgrade().is_none());
    }

    /// The address space has room for the stack of one more thread.
    #[test]
    fn pool_that_lacks_threads_is_not_shared_and_the_next_volume_tries_again() {
        let name = "pool_that_lacks_threads_is_not_shared_and_the_next_volume_tries_again";
        if let Some(alone) = run_alone(name) {
            return assert_passed(&alone);
        }
        let before = getrlimit(Resource::As);
        let limit = |current| setrlimit(Resource::As, Rlimit { current, ..before }).unwrap();
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = pages.split_whitespace().next().unwrap().parse().unwrap();
        let used_bytes = pages * rustix::param::page_size() as u64;
        limit(Some(used_bytes + STACK_BYTES * 3 / 2));
        let config = WorkerConfig { unbound: 2, bound: false };
        let first = Workers::shared(config);
        limit(before.current);
        assert_eq!(first.usage().1, 1);
        wait_for_a_job_of(&first);
        let [second, third] = [(); 2].map(|()| Workers::shared(config));
        assert_eq!(second.usage().1, 2);
        assert_eq!(second.pool(), third.pool());
    }

    /// A volume is open, and a thread that opens another is about to number its new pool.
    #[test]
    fn child_after_a_fork_waits_for_no_thread_of_its_parent_and_gets_workers_of_its_own() {
        let name =
            "child_after_a_fork_waits_for_no_thread_of_its_parent_and_gets_workers_of_its_own";
        if let Some(alone) = run_alone(name) {
            return assert_passed(&alone);
        }
        let [opened, opening] = [2, 3].map(|unbound| WorkerConfig { unbound, bound: false });
        let workers = Workers::shared(opened);
        let numbers = numbers_of_pools();
        let starts = std::thread::spawn(move || drop(Workers::shared(opening)));
        while !threads_of_this_process().any(|name| name == "crypt/u:2") {
            std::thread::yield_now();
        }
        // SAFETY: the child calls what a child of a program with threads calls that opens a volume.
        // Its allocator works: the C library unlocks it in the child.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let _guard = threads::AbortOnPanic;
            // SAFETY: the call touches no memory. Its signal ends a child that waits for ever.
            unsafe { libc::alarm(20) };
            drop(numbers);
            for config in [opened, opening] {
                wait_for_a_job_of(&Workers::shared(config));
            }
            process::exit_now(0);
        }
        drop(numbers);
        let child = Pid::from_raw(child).expect("a child");
        let (_, ended) = waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(ended.exit_status(), Some(0), "{ended:?}");
        starts.join().unwrap();
        wait_for_a_job_of(&workers);
    }

    fn threads_of_this_process() -> impl Iterator<Item = String> {
        let threads = std::fs::read_dir("/proc/self/task").unwrap();
        let name = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm"));
        threads.filter_map(move |thread| Some(name(thread.ok()?).ok()?.trim().to_string()))
    }

    #[test]
    fn numbers_of_ended_pools_come_again() {
        let mut taken = Vec::new();
        assert_eq!([0; 3].map(|_| take_lowest(&mut taken)), [0, 1, 2]);
        taken[1] = false;
        assert_eq!([0; 2].map(|_| take_lowest(&mut taken)), [1, 3]);
        let pool = Workers::start(WorkerConfig::default());
        let number = pool.pool.id;
        assert!(numbers_of_pools()[number]);
    }

    #[test]
    fn cpus_are_counted_again_after_a_second() {
        let cpus = Cpus::new(4);
        let begun = Nanos(cpus.counted.load(Ordering::Relaxed));
        cpus.count_again(begun + Nanos(COUNT_EVERY.0 - 1), || unreachable!());
        assert_eq!(cpus.get(), 4);
        cpus.count_again(begun + COUNT_EVERY, || 2);
        assert_eq!(cpus.get(), 2);
        cpus.count_again(begun + COUNT_EVERY + Nanos(1), || unreachable!());
    }

    #[test]
    fn slow_wake_ups_are_seen_and_make_a_hand_over_dearer() {
        let workers = Workers::start(WorkerConfig { unbound: 1, bound: false });
        assert_eq!(workers.load_now().hand_over_percent, 100);
        workers.fall_asleep();
        wait_for_a_job_of(&workers);
        let wake_ups = &workers.pool.unbound.wake_ups;
        // No wake-up is old at the first moment.
        let now = Nanos(0);
        assert!(wake_ups.typical(now).is_some(), "the worker has come");
        for _ in 0..100 {
            wake_ups.note(Nanos(10 * round_trip_ns()), Nanos(1));
        }
        assert!(workers.load(now).hand_over_percent > 1000);
    }

    #[test]
    fn cpu_without_a_worker_is_not_idle() {
        let workers = Workers::start(WorkerConfig::default());
        assert_eq!(workers.load_now().idle_cpus, 0);
    }

    #[test]
    fn submitter_that_is_busy_leaves_one_cpu_less() {
        let workers = Workers::start(WorkerConfig { unbound: cpus::allowed().len(), bound: false });
        let cpus = workers.load_now().idle_cpus;
        let busy = workers.busy();
        assert_eq!(workers.load_now().idle_cpus, cpus - 1);
        drop(busy);
        assert_eq!(workers.load_now().idle_cpus, cpus);
    }
}
