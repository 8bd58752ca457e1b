//! The threads of a pool, which volumes of equal configurations share.
//!
//! A number of unbound workers that follows the CPUs grows with them: an operator may give a
//! container more of them, or more of their time. Workers that are too many then sleep.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use blockyard_engine::time::Nanos;

use super::Workers;
use super::queue::Queue;
use crate::log::{Event, Kind};
use crate::threads::{self, Usage};
use crate::{cpus, process, stages};

/// Number of workers that may run on any CPU.
// The order of the variants is that of their numbers, in volumes that have both of the last two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unbound {
    /// So many.
    Number(usize),
    /// One for each CPU of the pool and its submitters but one: a submitter has a CPU itself.
    EachCpuButOne,
    /// One for each CPU.
    EachCpu,
}

impl Unbound {
    /// The number with so many CPUs.
    fn with(self, cpus: usize) -> usize {
        match self {
            Self::Number(number) => number,
            Self::EachCpuButOne => cpus.saturating_sub(1),
            Self::EachCpu => cpus,
        }
    }
}

impl Default for Unbound {
    fn default() -> Self {
        Self::Number(0)
    }
}

/// Number of workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorkerConfig {
    /// Workers that may run on any CPU.
    pub(crate) unbound: Unbound,
    /// Additional workers, one pinned to each CPU.
    pub(crate) bound: bool,
}

/// The threads for all volumes of a [`Key`]; the drop by the last user ends them.
pub(super) struct Pool {
    config: WorkerConfig,
    pub(super) unbound: Arc<Queue>,
    /// Number of existing threads for this queue.
    unbound_threads: AtomicUsize,
    /// By number of the CPU, for existing threads.
    pub(super) bound: Vec<(u16, Arc<Queue>)>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The system has refused a thread, and the operator knows.
    has_been_refused: AtomicBool,
    /// Thread numbers of running threads.
    numbers: Arc<Mutex<Vec<u32>>>,
    /// Number of the pool, which no other running pool of this process has.
    pub(super) id: usize,
    pub(super) cpus: Cpus,
    /// Submitters that keep a CPU busy with long parts.
    pub(super) submitters: AtomicUsize,
    /// Users that exist, by their number.
    pub(super) users: Mutex<Vec<bool>>,
}

/// CPUs that a pool and its submitters have. They are counted again at most once in
/// [`COUNT_EVERY`], because an operator may change them, or the quota of their time.
pub(super) struct Cpus {
    pub(super) count: AtomicUsize,
    /// Time of the last count; 0: a new one is due.
    pub(super) counted: AtomicU64,
}

/// Ours: a change is seen at once by a person, and a count takes microseconds.
const COUNT_EVERY: Nanos = Nanos(1_000_000_000);

impl Cpus {
    fn new(count: usize) -> Self {
        Self { count: AtomicUsize::new(count), counted: AtomicU64::new(stages::now().0.max(1)) }
    }

    pub(super) fn get(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Takes a new number from `count`, if the last one is old. Returns whether it was.
    fn count_again(&self, now: Nanos, count: impl FnOnce() -> usize) -> bool {
        let counted = Nanos(self.counted.load(Ordering::Relaxed));
        let is_old = counted == Nanos(0) || now.since(counted) >= COUNT_EVERY;
        if is_old {
            self.count.store(count(), Ordering::Relaxed);
            self.counted.store(now.0, Ordering::Relaxed);
        }
        is_old
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
    /// Starts the threads; `allowed` are the CPUs of the calling thread.
    pub(super) fn start(config: WorkerConfig, allowed: &[u16]) -> Self {
        let mut threads = Vec::new();
        let numbers = Arc::default();
        let mut bound = Vec::new();
        for cpu in if config.bound { allowed } else { &[] } {
            let queue = Arc::new(Queue::new(1));
            let name = format!("crypt/{cpu}");
            if let Some(thread) = spawn(name, Some(vec![*cpu]), &queue, &numbers) {
                threads.push(thread);
                bound.push((*cpu, queue));
            }
        }
        let mut pool = Self {
            config,
            unbound: Arc::new(Queue::new(allowed.len())),
            unbound_threads: AtomicUsize::new(0),
            bound,
            threads: Mutex::new(threads),
            has_been_refused: AtomicBool::new(false),
            numbers,
            id: 0,
            cpus: Cpus::new(cpus::parallelism()),
            submitters: AtomicUsize::new(0),
            users: Mutex::default(),
        };
        pool.grow(None);
        pool.id = take_lowest(&mut numbers_of_pools());
        pool
    }

    /// Starts the unbound threads that are missing, on these CPUs if given.
    fn grow(&self, cpus: Option<&[u16]>) {
        let wanted = self.wanted();
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for number in self.unbound_threads()..wanted {
            let name = format!("crypt/u:{number}");
            let Some(thread) = spawn(name, cpus.map(<[u16]>::to_vec), &self.unbound, &self.numbers)
            else {
                if !self.has_been_refused.swap(true, Ordering::Relaxed) {
                    Event::new(Kind::Warning).say(format_args!(
                        "the system has started {number} of {wanted} cipher workers; see to its \
                         limits of threads and memory"
                    ));
                }
                return;
            };
            threads.push(thread);
            self.unbound_threads.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Number of unbound threads for the CPUs.
    fn wanted(&self) -> usize {
        self.config.unbound.with(self.cpus.get())
    }

    /// Thread number of a running thread.
    fn first_thread(&self) -> Option<libc::pid_t> {
        let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.first().and_then(|number| libc::pid_t::try_from(*number).ok())
    }

    /// The running pool with this configuration, or a new one.
    pub(super) fn shared(config: WorkerConfig) -> Arc<Self> {
        let key = Key { config, cpus: cpus::allowed(), process: std::process::id() };
        let found = running().find(&key);
        if let Some(pool) = found {
            pool.count_cpus(stages::now());
            return pool;
        }
        // Without the lock: a child after `fork` would wait for it forever.
        let started = Arc::new(Self::start(config, &key.cpus));
        if !started.is_complete(key.cpus.len()) {
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

    /// Counts the CPUs for the unbound workers and their submitters again, if the number is old,
    /// and starts workers for new ones.
    pub(super) fn count_cpus(&self, now: Nanos) {
        if !self.bound.is_empty() {
            // One of the threads is pinned; no line of such a volume asks.
            return;
        }
        let count = || cpus::parallelism_of(self.first_thread().unwrap_or_default());
        if self.cpus.count_again(now, count) && self.unbound_threads() < self.wanted() {
            // The submitter that counts may be pinned.
            self.grow(self.first_thread().map(cpus::allowed_of).as_deref());
        }
    }

    /// Number of workers that may run on any CPU.
    pub(super) fn unbound_threads(&self) -> usize {
        self.unbound_threads.load(Ordering::Relaxed)
    }

    /// Number of all threads.
    pub(super) fn threads(&self) -> usize {
        self.unbound_threads() + self.bound.len()
    }

    /// Whether the system has started all threads.
    fn is_complete(&self, cpus: usize) -> bool {
        self.threads() == self.wanted() + if self.config.bound { cpus } else { 0 }
    }

    /// Adds a user, with the lowest number that is free.
    pub(super) fn join(self: Arc<Self>) -> Arc<Workers> {
        let user = take_lowest(&mut self.users.lock().unwrap_or_else(PoisonError::into_inner));
        let before = self.usage();
        Arc::new(Workers { pool: self, user, before })
    }

    /// Time in which the threads had jobs, all of them together, since they started.
    pub(super) fn busy(&self) -> Nanos {
        let queues = self.bound.iter().map(|(_, queue)| queue).chain([&self.unbound]);
        Nanos(queues.map(|queue| queue.worked().0).sum())
    }

    /// Usage of the threads since they started.
    pub(super) fn usage(&self) -> Usage {
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
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            let _ = thread.join();
        }
        numbers_of_pools()[self.id] = false;
    }
}

/// Numbers of the pools that exist. Low ones come again, so that a monitor does not get new series
/// of figures for each opening of a volume.
pub(super) fn numbers_of_pools() -> MutexGuard<'static, Vec<bool>> {
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

/// Starts a worker, on these CPUs if given. `None` if the system has no more threads.
fn spawn(
    name: String,
    cpus: Option<Vec<u16>>,
    queue: &Arc<Queue>,
    numbers: &Arc<Mutex<Vec<u32>>>,
) -> Option<JoinHandle<()>> {
    let queue = Arc::clone(queue);
    let numbers = Arc::clone(numbers);
    let thread = std::thread::Builder::new().name(name);
    let run = move || {
        let _guard = threads::AbortOnPanic;
        numbers.lock().unwrap_or_else(PoisonError::into_inner).push(threads::this_thread());
        // Those of the thread that starts it may be others.
        if let Some(cpus) = cpus.filter(|cpus| *cpus != cpus::allowed()) {
            let _ = cpus::run_on(&cpus); // a CPU may be offline: then any CPU
        }
        queue.work();
    };
    // From its first instruction on, no signal is delivered to it.
    process::with_signals_blocked(|| thread.spawn(run)).ok()
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, Resource, Rlimit, WaitOptions, getrlimit, setrlimit, waitpid};

    use super::super::tests::{STACK_BYTES, assert_passed, run_alone, wait_for_a_job_of};
    use super::*;

    fn number_of(unbound: usize) -> WorkerConfig {
        WorkerConfig { unbound: Unbound::Number(unbound), bound: false }
    }

    #[test]
    fn users_of_equal_configurations_share_their_threads_until_the_last_one_ends() {
        // No other test has this number.
        let config = WorkerConfig { unbound: Unbound::Number(3), bound: false };
        let first = Workers::shared(config);
        let second = Workers::shared(config);
        assert_eq!((first.pool(), first.usage().1), (second.pool(), second.usage().1));
        assert_ne!(first.user, second.user);
        let other = Workers::shared(WorkerConfig { unbound: Unbound::Number(4), bound: false });
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
        if let Some(alone) = run_alone(module_path!(), name) {
            let said = String::from_utf8_lossy(&alone.stderr);
            assert!(said.contains("has started 1 of 2 cipher workers"), "{said}");
            return assert_passed(&alone);
        }
        let before = getrlimit(Resource::As);
        let limit = |current| setrlimit(Resource::As, Rlimit { current, ..before }).unwrap();
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = pages.split_whitespace().next().unwrap().parse().unwrap();
        let used_bytes = pages * rustix::param::page_size() as u64;
        limit(Some(used_bytes + STACK_BYTES * 3 / 2));
        let config = WorkerConfig { unbound: Unbound::Number(2), bound: false };
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
        if let Some(alone) = run_alone(module_path!(), name) {
            return assert_passed(&alone);
        }
        let [opened, opening] = [2, 3].map(number_of);
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

    /// An operator gives the container more CPUs; the submitter that counts them is pinned.
    #[test]
    fn workers_that_follow_the_cpus_grow_with_them_and_run_on_all_of_them() {
        let all = cpus::allowed();
        let one = vec![all[0]];
        let grows = move || {
            cpus::run_on(&one).unwrap();
            let each = WorkerConfig { unbound: Unbound::EachCpu, bound: false };
            let fixed = WorkerConfig { unbound: Unbound::Number(1), bound: false };
            let [each, fixed] = [each, fixed].map(|config| Pool::start(config, &one));
            assert_eq!((each.threads(), fixed.threads()), (1, 1));
            for pool in [&each, &fixed] {
                while pool.first_thread().is_none() {
                    std::thread::yield_now();
                }
                cpus::run_thread_on(pool.first_thread().unwrap(), &all).unwrap();
                let counted = Nanos(pool.cpus.counted.load(Ordering::Relaxed));
                pool.count_cpus(counted + Nanos(COUNT_EVERY.0 - 1));
                assert_eq!(pool.threads(), 1, "it is early");
                pool.count_cpus(counted + COUNT_EVERY);
                pool.count_cpus(counted + COUNT_EVERY + COUNT_EVERY);
            }
            assert_eq!((each.threads(), fixed.threads()), (all.len(), 1));
            // The threads that have come are placed.
            let come = || each.numbers.lock().unwrap().clone();
            while each.unbound.sleeping() < all.len() {
                std::thread::yield_now();
            }
            let placed = |number: u32| cpus::allowed_of(number as libc::pid_t);
            assert!(come().into_iter().all(|number| placed(number) == all));
        };
        std::thread::spawn(grows).join().unwrap();
    }

    #[test]
    fn unbound_workers_beside_bound_ones_run_on_all_cpus() {
        let all = cpus::allowed();
        let config = WorkerConfig { unbound: Unbound::Number(2), bound: true };
        let pool = Pool::start(config, &all);
        while pool.numbers.lock().unwrap().len() < all.len() + 2 {
            std::thread::yield_now();
        }
        let queues = || pool.bound.iter().map(|(_, queue)| queue).chain([&pool.unbound]);
        while queues().map(|queue| queue.sleeping()).sum::<usize>() < all.len() + 2 {
            std::thread::yield_now();
        }
        let numbers = pool.numbers.lock().unwrap();
        let placed = numbers.iter().map(|number| cpus::allowed_of(*number as libc::pid_t));
        let unpinned = placed.filter(|cpus| *cpus == all).count();
        assert_eq!(unpinned, if all.len() == 1 { 3 } else { 2 });
    }

    #[test]
    fn submitter_without_workers_gets_one_when_a_second_cpu_comes() {
        let all = cpus::allowed();
        let grows = move || {
            cpus::run_on(&all[..1]).unwrap();
            let config = WorkerConfig { unbound: Unbound::EachCpuButOne, bound: false };
            let pool = Pool::start(config, &all[..1]);
            assert_eq!(pool.threads(), 0);
            cpus::run_on(&all).unwrap();
            pool.count_cpus(Nanos(pool.cpus.counted.load(Ordering::Relaxed)) + COUNT_EVERY);
            assert_eq!(pool.threads(), all.len() - 1);
        };
        std::thread::spawn(grows).join().unwrap();
    }
}
