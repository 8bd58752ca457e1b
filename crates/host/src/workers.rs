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

mod pool;
mod queue;
mod sleepers;
mod wake_ups;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use blockyard_engine::bio::{BlkStatus, IoContext, Sample};
use blockyard_engine::dm::crypt::hand_over::{self, WakeUp};
use blockyard_engine::dm::crypt::pipeline::Load;
use blockyard_engine::sq::{Cqe, Owner, Token};
use blockyard_engine::time::Nanos;
use pool::Pool;
pub(crate) use pool::{Unbound, WorkerConfig};
use rustix::thread::sched_getcpu;

use crate::completions::CompletionQueue;
use crate::fused::Scratch;
use crate::stages::{self, Span, Stage, Timed};
use crate::submitter::new_io_context;
use crate::threads::Usage;
use crate::{cpus, poll};

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

/// Time to wait for work without sleep.
pub(crate) fn spin_time() -> Nanos {
    hand_over::spin_time(Nanos(round_trip_ns()))
}

/// A hand-over with wake-ups that take this time, compared with the measured one; at least that
/// one. The worker wakes up, and at the end its submitter.
fn hand_over_percent(wake_up: Nanos) -> u16 {
    let percent = 2 * wake_up.0 * 100 / round_trip_ns();
    u16::try_from(percent.max(100)).unwrap_or(u16::MAX)
}

/// The median of some hand-overs; others were interrupted.
fn measure_round_trip() -> Option<u64> {
    let workers = Workers::start(WorkerConfig { unbound: Unbound::Number(1), bound: false });
    if workers.pool.threads() == 0 {
        return None;
    }
    let hand_over = workers.for_submitter();
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
        hand_over.submit(Job::one(run, &completions, 0), &mut task);
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
    pub(crate) wake: WakeUp,
}

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
        Self { run, completions, operations: 1, len_bytes, wake: WakeUp::Always }
    }
}

/// See [`Workers::busy`].
pub(crate) struct Busy(Arc<Workers>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.pool.submitters.fetch_sub(1, Ordering::Relaxed);
    }
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
        (self.pool.usage().since(&self.before), self.pool.threads())
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

    /// Counts the CPUs again, if the number is old, and starts workers for new ones.
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

    /// The workers, for a new submitter of this volume.
    pub(crate) fn for_submitter(self: &Arc<Self>) -> HandOver {
        HandOver { workers: Arc::clone(self), lane: self.pool.unbound.next_lane() }
    }
}

/// Hand-over of one submitter's jobs to the workers.
pub(crate) struct HandOver {
    workers: Arc<Workers>,
    /// Its lane in the queue of the unbound workers.
    lane: usize,
}

impl HandOver {
    /// See [`Workers::busy`].
    pub(crate) fn busy(&self) -> Busy {
        self.workers.busy()
    }

    /// See [`Workers::count_cpus`].
    pub(crate) fn count_cpus(&self, now: Nanos) {
        self.workers.count_cpus(now);
    }

    /// The one of the same lane.
    #[cfg(test)]
    pub(crate) fn again(&self) -> Self {
        Self { workers: Arc::clone(&self.workers), ..*self }
    }

    /// Runs the oldest unbound job of the volume in this lane on this idle thread. Returns false if
    /// none waits.
    pub(crate) fn help(&self, task: &mut Task) -> bool {
        self.workers.pool.unbound.help(self.lane, self.workers.user, task)
    }

    /// Passes a job to any free worker; `task` runs it now if there are no worker threads.
    pub(crate) fn submit(&self, job: Job, task: &mut Task) {
        if self.workers.pool.unbound_threads() == 0 {
            return self.workers.pool.unbound.run(job, task);
        }
        self.workers.pool.unbound.put(self.lane, self.workers.user, job);
    }

    /// Passes a job to the worker of the current CPU, or else like [`HandOver::submit`].
    pub(crate) fn submit_here(&self, job: Job, task: &mut Task) {
        let cpu = sched_getcpu();
        let bound = &self.workers.pool.bound;
        let own = bound.iter().find(|(of, _)| usize::from(*of) == cpu).or(bound.first());
        match own {
            Some((_, queue)) => queue.put(0, self.workers.user, job),
            None => self.workers.pool.unbound.run(job, task),
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

#[cfg(test)]
mod tests {
    use std::process::{Command, Output};
    use std::sync::mpsc::channel;

    use super::*;

    pub(super) const STACK_BYTES: u64 = 64 << 20;

    /// Runs a test again, as a process without other tests and with large stacks. `None` in that
    /// process.
    pub(super) fn run_alone(module: &str, test: &str) -> Option<Output> {
        const IS_ALONE: &str = "BLOCKYARD_TEST_OF_WORKERS_IS_ALONE";
        if std::env::var_os(IS_ALONE).is_some() {
            return None;
        }
        let mut alone = Command::new(std::env::current_exe().unwrap());
        let (_, module) = module.split_once("::").unwrap();
        alone.args([&format!("{module}::{test}"), "--exact"]);
        alone.env(IS_ALONE, "1").env("RUST_MIN_STACK", STACK_BYTES.to_string());
        Some(alone.output().unwrap())
    }

    pub(super) fn assert_passed(alone: &Output) {
        let said = String::from_utf8_lossy(&alone.stdout);
        assert!(alone.status.success() && said.contains("1 passed"), "{alone:?}");
    }

    pub(super) fn wait_for_a_job_of(workers: &Arc<Workers>) {
        let (done, wait) = channel();
        let run: Run = Box::new(move |_| {
            done.send(()).unwrap();
        });
        let completions = CompletionQueue::new().unwrap();
        workers.for_submitter().submit(Job::one(run, &completions, 0), &mut Task::new());
        wait.recv().unwrap();
    }

    /// The only worker is busy, and another job waits: an idle thread takes it.
    #[test]
    fn job_that_no_worker_has_time_for_is_run_by_who_waits() {
        let workers = Workers::start(WorkerConfig { unbound: Unbound::Number(1), bound: false });
        let hand_over = workers.for_submitter();
        let completions = CompletionQueue::new().unwrap();
        let mut task = Task::new();
        let (started, runs) = channel();
        let (go_on, release) = channel();
        let job = |run: Run| Job::one(run, &completions, 4096);
        hand_over.submit(
            job(Box::new(move |_| {
                started.send(()).unwrap();
                release.recv().unwrap();
            })),
            &mut task,
        );
        runs.recv().unwrap();
        let (here, ran_on) = channel();
        hand_over.submit(
            job(Box::new(move |_| {
                here.send(std::thread::current().id()).unwrap();
            })),
            &mut task,
        );
        assert_eq!(workers.load_now().fanned_out_bytes, 2 * 4096);
        assert!(hand_over.help(&mut task));
        assert_eq!(ran_on.recv().unwrap(), std::thread::current().id());
        assert!(!hand_over.help(&mut task), "the other job runs already");
        assert_eq!(workers.load_now().fanned_out_bytes, 4096);
        go_on.send(()).unwrap();
        drop((hand_over, workers));
        assert_eq!(completions.take(&mut Vec::new(), &mut Vec::new()).from_workers, 2);
    }

    /// The test runs itself again as a child process, whose worker panics.
    #[test]
    fn worker_that_panics_ends_the_process_and_keeps_nobody_waiting() {
        let name = "worker_that_panics_ends_the_process_and_keeps_nobody_waiting";
        if let Some(alone) = run_alone(module_path!(), name) {
            let signal = std::os::unix::process::ExitStatusExt::signal(&alone.status);
            assert_eq!(signal, Some(libc::SIGABRT), "{alone:?}");
            return;
        }
        let workers = Workers::start(WorkerConfig { unbound: Unbound::Number(1), bound: false });
        let job = Job::one(Box::new(|_| panic!("a bug")), &CompletionQueue::new().unwrap(), 0);
        workers.for_submitter().submit(job, &mut Task::new());
        // Joining would block; the thread ends with its panic.
        drop(workers);
    }

    #[test]
    fn slow_wake_ups_are_seen_and_make_a_hand_over_dearer() {
        let workers = Workers::start(WorkerConfig { unbound: Unbound::Number(1), bound: false });
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
        let workers = Workers::start(WorkerConfig {
            unbound: Unbound::Number(cpus::allowed().len()),
            bound: false,
        });
        let cpus = workers.load_now().idle_cpus;
        let busy = workers.busy();
        assert_eq!(workers.load_now().idle_cpus, cpus - 1);
        drop(busy);
        assert_eq!(workers.load_now().idle_cpus, cpus);
    }
}
