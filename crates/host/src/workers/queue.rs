//! The jobs of one worker, or of several: a queue for each user, and turns among the users.
//!
//! ```text
//!   user 0   [job] [job] [job] [job]  \
//!   user 1   [job]                     >  turns: 0 1 2 0 2 0 0
//!   user 2   [job] [job]              /
//! ```
//! A volume with many jobs delays the job of another one by at most a job of each volume.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use blockyard_engine::time::Nanos;

use super::wake_ups::WakeUps;
use super::{Job, Task, WAKES_FROM_BYTES, Wake, spin_time};
use crate::stages::now;

/// A worker that takes longer for a batch, or to wake up, has no CPU. Ours: both take less than a
/// tenth of it, and the kernel takes a CPU away for three milliseconds or more.
const CROWDED_FROM: Nanos = Nanos(1_000_000);
/// Time for which batches then stay with their submitters. Ours: a few time slices.
const CROWDED_FOR: Nanos = Nanos(20_000_000);

/// Jobs for one or several workers.
#[derive(Default)]
pub(super) struct Queue {
    jobs: Mutex<Jobs>,
    more: Condvar,
    /// Bytes of its jobs, running ones included.
    in_flight_bytes: AtomicU64,
    /// Number of waiting jobs, for workers that spin. Changed under the lock, so by a plain store.
    waiting: AtomicUsize,
    /// Time until which batches stay with their submitters.
    crowded_until: AtomicU64,
    pub(super) wake_ups: WakeUps,
}

#[derive(Default)]
struct Jobs {
    /// By number of the user.
    users: Vec<UserJobs>,
    /// Users in the order of their turns.
    turns: VecDeque<usize>,
    /// Bytes of waiting jobs.
    waiting_bytes: u64,
    /// Number of workers that look for a job without sleep.
    spinning: usize,
    /// Time of the first call to a worker that has not come yet.
    called: Option<Nanos>,
    /// Number of workers that wait for a job; only these are woken.
    sleeping: usize,
    /// Number of workers that do not wait.
    awake: usize,
    /// Sum of the times since which these are awake.
    awake_since: Nanos,
    /// Time in which workers were awake, until they began to wait.
    worked: Nanos,
    stopping: bool,
}

/// The jobs of a user, oldest first.
#[derive(Default)]
struct UserJobs {
    jobs: VecDeque<Job>,
    /// The user is among the turns, possibly without a job: another thread may take its last one.
    has_turn: bool,
}

impl Jobs {
    /// A worker has begun, or waits no more. Returns the time.
    fn awakes(&mut self) -> Nanos {
        let since = now();
        self.awake += 1;
        self.awake_since = self.awake_since + since;
        since
    }

    /// A worker that is awake since then begins to wait.
    fn falls_asleep(&mut self, since: Nanos) {
        self.awake -= 1;
        self.awake_since = self.awake_since.since(since);
        self.worked = self.worked + now().since(since);
    }

    fn push(&mut self, user: usize, job: Job) {
        if self.users.len() <= user {
            self.users.resize_with(user + 1, UserJobs::default);
        }
        self.waiting_bytes += u64::from(job.len_bytes);
        let own = &mut self.users[user];
        own.jobs.push_back(job);
        if !own.has_turn {
            own.has_turn = true;
            self.turns.push_back(user);
        }
    }

    /// Whether a sleeping worker is to be woken for the waiting jobs, of which one has this wish.
    fn wakes(&mut self, wake: Wake) -> bool {
        if self.sleeping == 0 || self.turns.is_empty() {
            return false;
        }
        let is_enough = || self.spinning == 0 && self.waiting_bytes >= WAKES_FROM_BYTES;
        let wakes = wake == Wake::Always || (self.called.is_none() && is_enough());
        if wakes && self.called.is_none() {
            self.called = Some(now());
        }
        wakes
    }

    /// The oldest job of the user whose turn it is.
    fn pop(&mut self) -> Option<Job> {
        loop {
            let user = self.turns.pop_front()?;
            let own = &mut self.users[user];
            let job = own.jobs.pop_front();
            own.has_turn = !own.jobs.is_empty();
            if own.has_turn {
                self.turns.push_back(user);
            }
            if job.is_some() {
                return job;
            }
        }
    }
}

impl Queue {
    /// Bytes of the jobs of all users, running ones included.
    pub(super) fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn put(&self, user: usize, job: Job) {
        self.in_flight_bytes.fetch_add(u64::from(job.len_bytes), Ordering::Relaxed);
        let mut jobs = self.lock();
        let wake = job.wake;
        jobs.push(user, job);
        self.waiting.store(self.waiting.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let wakes = jobs.wakes(wake);
        drop(jobs);
        if wakes {
            self.more.notify_one();
        }
    }

    /// Runs a job that waits for no worker.
    pub(super) fn run(&self, job: Job, task: &mut Task) {
        self.in_flight_bytes.fetch_add(u64::from(job.len_bytes), Ordering::Relaxed);
        job.run(task, &self.in_flight_bytes);
    }

    /// Runs the oldest job of a user. Returns false if none waits.
    pub(super) fn help(&self, user: usize, task: &mut Task) -> bool {
        let pop = |jobs: &mut Jobs| jobs.users.get_mut(user)?.jobs.pop_front();
        let job = self.take(&mut self.lock(), pop);
        job.map(|job| job.run(task, &self.in_flight_bytes)).is_some()
    }

    /// Number of workers that wait for a job.
    #[cfg(test)]
    pub(super) fn sleeping(&self) -> usize {
        self.lock().sleeping
    }

    /// Time in which its workers did not wait for a job, all of them together, until now.
    pub(super) fn worked(&self) -> Nanos {
        let jobs = self.lock();
        let until_now = Nanos(now().0 * jobs.awake as u64);
        jobs.worked + until_now.since(jobs.awake_since)
    }

    pub(super) fn stop(&self) {
        self.lock().stopping = true;
        self.more.notify_all();
    }

    /// Runs jobs until the end.
    pub(super) fn work(&self) {
        let mut task = Task::new();
        let mut jobs = self.lock();
        let mut awake_since = jobs.awakes();
        loop {
            if let Some(job) = self.take(&mut jobs, Jobs::pop) {
                let wakes = jobs.wakes(job.wake);
                drop(jobs);
                if wakes {
                    self.more.notify_one();
                }
                self.run_timed(job, &mut task);
                jobs = self.lock();
            } else if jobs.stopping {
                return;
            } else {
                jobs.falls_asleep(awake_since);
                jobs = self.sleep(jobs);
                awake_since = jobs.awakes();
            }
        }
    }

    /// Runs a job; after a batch, waits a moment for the next.
    fn run_timed(&self, job: Job, task: &mut Task) {
        if job.wake == Wake::Always {
            return job.run(task, &self.in_flight_bytes);
        }
        let begun = now();
        job.run(task, &self.in_flight_bytes);
        let ended = now();
        self.note(ended.since(begun), ended);
        if self.waiting.load(Ordering::Relaxed) == 0 {
            self.lock().spinning += 1;
            self.spin();
            self.lock().spinning -= 1;
        }
    }

    /// Sleeps until there may be a job.
    fn sleep<'a>(&'a self, mut jobs: MutexGuard<'a, Jobs>) -> MutexGuard<'a, Jobs> {
        jobs.sleeping += 1;
        jobs = self.more.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        jobs.sleeping -= 1;
        if let Some(called) = jobs.called.take() {
            let now = now();
            self.note(now.since(called), now);
            self.wake_ups.note(now.since(called), now);
        }
        jobs
    }

    /// Takes a job out of the waiting ones.
    fn take(&self, jobs: &mut Jobs, pop: impl FnOnce(&mut Jobs) -> Option<Job>) -> Option<Job> {
        let job = pop(jobs)?;
        jobs.waiting_bytes -= u64::from(job.len_bytes);
        self.waiting.store(self.waiting.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        Some(job)
    }

    /// Waits a moment for a job without sleep.
    fn spin(&self) {
        let until = now() + spin_time();
        while self.waiting.load(Ordering::Relaxed) == 0 && now() < until {
            std::hint::spin_loop();
        }
    }

    /// Notes that a worker has had no CPU, if it took so long.
    pub(super) fn note(&self, took: Nanos, now: Nanos) {
        if took > CROWDED_FROM {
            self.crowded_until.store((now + CROWDED_FOR).0, Ordering::Relaxed);
        }
    }

    /// Whether workers lately had to wait for a CPU.
    pub(super) fn is_crowded(&self, now: Nanos) -> bool {
        now.0 < self.crowded_until.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::hint::spin_loop;
    use std::sync::mpsc::channel;

    use super::super::{Pool, WorkerConfig, Workers};
    use super::*;
    use crate::completions::CompletionQueue;

    /// A job of a length that names it.
    fn job(len_bytes: u32) -> Job {
        let completions = CompletionQueue::new().unwrap();
        Job::one(Box::new(|_| ()), &completions, len_bytes)
    }

    #[test]
    fn users_take_turns_and_the_jobs_of_each_stay_in_order() {
        let mut jobs = Jobs::default();
        for len in 1..=4 {
            jobs.push(0, job(len));
        }
        jobs.push(2, job(21));
        jobs.push(1, job(11));
        jobs.push(2, job(22));
        let order: Vec<_> = std::iter::from_fn(|| jobs.pop()).map(|job| job.len_bytes).collect();
        assert_eq!(order, [1, 21, 11, 2, 22, 3, 4]);
        assert!(jobs.turns.is_empty());
    }

    /// A batch of half the bytes for which a worker wakes up.
    fn batch() -> Job {
        Job { wake: Wake::ForMany, ..job(WAKES_FROM_BYTES as u32 / 2) }
    }

    #[test]
    fn batches_call_one_worker_at_a_time_and_none_for_little_work() {
        let mut jobs = Jobs { sleeping: 3, ..Jobs::default() };
        let put = |jobs: &mut Jobs, job: Job| {
            let wake = job.wake;
            jobs.push(0, job);
            jobs.wakes(wake)
        };
        assert!(!put(&mut jobs, batch()), "its submitter takes it");
        assert!(put(&mut jobs, batch()));
        assert!(!put(&mut jobs, batch()), "a worker comes");
        assert!(put(&mut jobs, job(1)), "somebody waits for this one");
        jobs.called = None;
        jobs.spinning = 1;
        assert!(!put(&mut jobs, batch()), "a worker looks");
        jobs.spinning = 0;
        assert!(put(&mut jobs, batch()), "the one that came is busy");
        jobs.sleeping = 0;
        assert!(!put(&mut jobs, job(1)));
    }

    #[test]
    fn worker_that_takes_the_only_job_wakes_no_other_one() {
        let mut jobs = Jobs { sleeping: 1, ..Jobs::default() };
        jobs.push(0, job(1));
        assert!(jobs.wakes(Wake::Always));
        jobs.push(0, job(2));
        assert!(jobs.pop().is_some() && jobs.wakes(Wake::Always), "another one waits");
        assert!(jobs.pop().is_some() && !jobs.wakes(Wake::Always));
    }

    #[test]
    fn worker_without_a_cpu_keeps_batches_with_their_submitters() {
        let queue = Queue::default();
        let noticed = Nanos(1);
        queue.note(CROWDED_FROM, noticed);
        assert!(!queue.is_crowded(noticed));
        queue.note(CROWDED_FROM + Nanos(1), noticed);
        assert!(queue.is_crowded(noticed));
        assert!(!queue.is_crowded(noticed + CROWDED_FOR), "that was long ago");
    }

    #[test]
    fn user_whose_jobs_were_taken_by_its_own_thread_has_one_turn_left() {
        let queue = Queue::default();
        let mut task = Task::new();
        for _ in 0..3 {
            queue.put(0, job(1));
            assert!(queue.help(0, &mut task));
            assert!(!queue.help(0, &mut task) && !queue.help(1, &mut task));
        }
        queue.put(0, job(7));
        queue.put(1, job(8));
        let mut jobs = queue.lock();
        assert_eq!(jobs.turns, [0, 1]);
        let order: Vec<_> = std::iter::from_fn(|| jobs.pop()).map(|job| job.len_bytes).collect();
        assert_eq!(order, [7, 8]);
        drop(jobs);
        assert_eq!(queue.in_flight_bytes(), 15);
    }

    fn wait_until_all_sleep(pool: &Pool) {
        let queues = || pool.bound.iter().map(|(_, queue)| queue).chain([&pool.unbound]);
        while queues().map(|queue| queue.lock().sleeping).sum::<usize>() < pool.threads.len() {
            std::thread::yield_now();
        }
    }

    /// The busy time at some time between two of the clock.
    struct Reading {
        from: Nanos,
        busy: Nanos,
        to: Nanos,
    }

    /// The busy time between two readings.
    struct Growth {
        busy: Nanos,
        /// Time between the readings, at least and at most.
        least: Nanos,
        most: Nanos,
    }

    const PHASE: Nanos = Nanos(5_000_000);

    impl Reading {
        fn of(pool: &Pool) -> Self {
            Self { from: now(), busy: pool.busy(), to: now() }
        }

        fn after_a_phase(pool: &Pool) -> Self {
            let begun = now();
            while now().since(begun) < PHASE {
                spin_loop();
            }
            Self::of(pool)
        }

        fn until(&self, later: &Self) -> Growth {
            let busy = later.busy.since(self.busy);
            let least = later.from.since(self.to);
            let most = later.to.since(self.from);
            Growth { busy, least, most }
        }
    }

    #[test]
    fn pool_is_busy_with_the_jobs_that_its_workers_hold_and_not_while_they_sleep() {
        let workers = Workers::start(WorkerConfig { unbound: 2, bound: true });
        let pool = &*workers.pool;
        // A later round also has the time of the earlier ones.
        for submit in [Workers::submit, Workers::submit_here, Workers::submit] {
            wait_until_all_sleep(pool);
            let first = Reading::of(pool);
            let slept = Reading::after_a_phase(pool);
            assert_eq!(first.until(&slept).busy, Nanos(0), "they sleep");
            let (started, runs) = channel();
            let (end, ended) = channel::<()>();
            let run = Box::new(move |_: &mut Task| {
                started.send(()).unwrap();
                let _ = ended.recv();
            });
            let completions = CompletionQueue::new().unwrap();
            submit(&workers, Job::one(run, &completions, 0), &mut Task::new());
            runs.recv().unwrap();
            let holds = Reading::of(pool);
            let held = Reading::after_a_phase(pool);
            let Growth { busy, least, most } = holds.until(&held);
            assert!((least..=most).contains(&busy), "{busy:?} of {least:?} to {most:?}");
            end.send(()).unwrap();
            wait_until_all_sleep(pool);
            for (name, later) in [("until now", held), ("in all", Reading::of(pool))] {
                let Growth { busy, most, .. } = slept.until(&later);
                assert!((least..=most).contains(&busy), "{name}: {busy:?} of {most:?}");
            }
        }
    }
}
