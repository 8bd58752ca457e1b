//! The jobs of one worker, or of several: lanes, in each a queue for each user, and turns among the
//! users.
//!
//! ```text
//!   submitter ─┐
//!   submitter ─┴─> lane 0   user 0   [job] [job] [job]  \
//!                           user 1   [job]               >  turns: 0 1 0 0  ─┬─> worker
//!   submitter ───> lane 1   user 0   [job] [job]         >  turns: 0 0      ─┴─> worker
//! ```
//! A volume with many jobs delays the job of another one in its lane by at most a job of each
//! volume. Workers take from the lanes in turns. A submitter has one lane, so that submitters of
//! many CPUs do not wait for one lock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use blockyard_engine::dm::crypt::hand_over::{self, WakeUp};
use blockyard_engine::time::Nanos;

use super::sleepers::{Sleepers, Slept};
use super::wake_ups::WakeUps;
use super::{Job, Task, spin_time};
use crate::stages::now;

/// A worker that takes longer for a batch, or to wake up, has no CPU. Ours: both take less than a
/// tenth of it, and the kernel takes a CPU away for three milliseconds or more.
const CROWDED_FROM: Nanos = Nanos(1_000_000);
/// Time for which batches then stay with their submitters. Ours: a few time slices.
const CROWDED_FOR: Nanos = Nanos(20_000_000);

/// Jobs for one or several workers.
pub(super) struct Queue {
    lanes: Box<[Lane]>,
    /// Number of submitters that have got a lane.
    submitters: AtomicUsize,
    sleepers: Sleepers,
    /// Time until which batches stay with their submitters.
    crowded_until: AtomicU64,
    pub(super) wake_ups: WakeUps,
    in_flight: InFlight,
}

/// Bytes of all jobs, running ones included. Each job changes it twice, so it has cache lines of
/// its own.
#[derive(Default)]
#[repr(align(128))]
struct InFlight(AtomicU64);

/// Jobs of some submitters, with cache lines of their own.
#[derive(Default)]
#[repr(align(128))]
struct Lane {
    jobs: Mutex<Jobs>,
    /// Number of waiting jobs. Changed under the lock, so by a plain store; a look without the lock
    /// may miss a job.
    waiting: AtomicUsize,
}

#[derive(Default)]
struct Jobs {
    /// By number of the user.
    users: Vec<UserJobs>,
    /// Users in the order of their turns.
    turns: VecDeque<usize>,
    /// Bytes of waiting jobs.
    bytes: u64,
}

/// The jobs of a user, oldest first.
#[derive(Default)]
struct UserJobs {
    jobs: VecDeque<Job>,
    /// The user is among the turns, possibly without a job: another thread may take its last one.
    has_turn: bool,
}

impl Jobs {
    fn push(&mut self, user: usize, job: Job) {
        if self.users.len() <= user {
            self.users.resize_with(user + 1, UserJobs::default);
        }
        self.bytes += u64::from(job.len_bytes);
        let own = &mut self.users[user];
        own.jobs.push_back(job);
        if !own.has_turn {
            own.has_turn = true;
            self.turns.push_back(user);
        }
    }

    /// Takes the oldest job of the user whose turn it is.
    fn pop(&mut self) -> Option<Job> {
        loop {
            let user = self.turns.pop_front()?;
            let job = self.pop_of(user);
            let own = &mut self.users[user];
            own.has_turn = !own.jobs.is_empty();
            if own.has_turn {
                self.turns.push_back(user);
            }
            if job.is_some() {
                return job;
            }
        }
    }

    /// Takes the oldest job of a user.
    fn pop_of(&mut self, user: usize) -> Option<Job> {
        let job = self.users.get_mut(user)?.jobs.pop_front()?;
        self.bytes -= u64::from(job.len_bytes);
        Some(job)
    }
}

impl Lane {
    /// Whether a job waits, as far as this thread can see.
    fn shows_job(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Whether a job waits.
    fn has_job(&self) -> bool {
        let _jobs = self.lock();
        self.shows_job()
    }

    /// Adds a job. Returns the bytes that wait with it, if a sleeper is to be woken up.
    fn put(&self, user: usize, job: Job, sleepers: &Sleepers) -> Option<u64> {
        let wake = job.wake;
        let mut jobs = self.lock();
        jobs.push(user, job);
        self.waiting.store(self.waiting.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        sleepers.is_due(wake, jobs.bytes).then_some(jobs.bytes)
    }

    /// Takes a job, and the bytes that still wait, if a job does.
    fn take(&self, pop: impl FnOnce(&mut Jobs) -> Option<Job>) -> Option<(Job, Option<u64>)> {
        if !self.shows_job() {
            return None;
        }
        let mut jobs = self.lock();
        let job = pop(&mut jobs)?;
        let waiting = self.waiting.load(Ordering::Relaxed) - 1;
        self.waiting.store(waiting, Ordering::Relaxed);
        Some((job, (waiting > 0).then_some(jobs.bytes)))
    }

    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// A queue for the workers and submitters of so many CPUs.
    pub(super) fn new(cpus: usize) -> Self {
        Self {
            lanes: (0..hand_over::lanes(cpus)).map(|_| Lane::default()).collect(),
            submitters: AtomicUsize::new(0),
            sleepers: Sleepers::default(),
            crowded_until: AtomicU64::new(0),
            wake_ups: WakeUps::default(),
            in_flight: InFlight::default(),
        }
    }

    /// The lane of a new submitter.
    pub(super) fn next_lane(&self) -> usize {
        self.submitters.fetch_add(1, Ordering::Relaxed) % self.lanes.len()
    }

    /// Bytes of the jobs of all users, running ones included.
    pub(super) fn in_flight_bytes(&self) -> u64 {
        self.in_flight.0.load(Ordering::Relaxed)
    }

    /// Adds a job of a submitter with this lane.
    pub(super) fn put(&self, lane: usize, user: usize, job: Job) {
        self.in_flight.0.fetch_add(u64::from(job.len_bytes), Ordering::Relaxed);
        let wake = job.wake;
        if let Some(bytes) = self.lanes[lane].put(user, job, &self.sleepers) {
            self.sleepers.wake(wake, bytes);
        }
    }

    /// Runs a job that waits for no worker.
    pub(super) fn run(&self, job: Job, task: &mut Task) {
        self.in_flight.0.fetch_add(u64::from(job.len_bytes), Ordering::Relaxed);
        job.run(task, &self.in_flight.0);
    }

    /// Runs the oldest job of a user in this lane. Returns false if none waits.
    pub(super) fn help(&self, lane: usize, user: usize, task: &mut Task) -> bool {
        let taken = self.lanes[lane].take(|jobs| jobs.pop_of(user));
        taken.map(|(job, _)| job.run(task, &self.in_flight.0)).is_some()
    }

    /// Number of workers that wait for a job.
    #[cfg(test)]
    pub(super) fn sleeping(&self) -> usize {
        self.sleepers.count()
    }

    /// Time in which its workers did not wait for a job, all of them together, until now.
    pub(super) fn worked(&self) -> Nanos {
        self.sleepers.worked()
    }

    pub(super) fn stop(&self) {
        self.sleepers.stop();
    }

    /// Runs jobs until the end.
    pub(super) fn work(&self) {
        let mut task = Task::new();
        let mut lane = 0;
        let mut awake_since = self.sleepers.begin();
        loop {
            if let Some(job) = self.take(&mut lane) {
                self.run_timed(job, &mut task);
                continue;
            }
            let has_job = || self.lanes.iter().any(Lane::has_job);
            let Slept::Awake { since, came } = self.sleepers.sleep(awake_since, has_job) else {
                return;
            };
            awake_since = since;
            if let Some((took, now)) = came {
                self.note(took, now);
                self.wake_ups.note(took, now);
            }
        }
    }

    /// Takes a job for a worker that has taken its last one from `lane`: from the next lanes first.
    /// Wakes another worker for the jobs that are left there.
    fn take(&self, lane: &mut usize) -> Option<Job> {
        let numbers = (*lane + 1..self.lanes.len()).chain(0..=*lane);
        for number in numbers {
            if let Some((job, bytes_left)) = self.lanes[number].take(Jobs::pop) {
                *lane = number;
                if let Some(bytes) =
                    bytes_left.filter(|&bytes| self.sleepers.is_due(job.wake, bytes))
                {
                    self.sleepers.wake(job.wake, bytes);
                }
                return Some(job);
            }
        }
        None
    }

    /// Whether a job waits, as far as this thread can see.
    fn shows_job(&self) -> bool {
        self.lanes.iter().any(Lane::shows_job)
    }

    /// Runs a job; after a batch, waits a moment for the next.
    fn run_timed(&self, job: Job, task: &mut Task) {
        if job.wake == WakeUp::Always {
            return job.run(task, &self.in_flight.0);
        }
        let begun = now();
        job.run(task, &self.in_flight.0);
        let ended = now();
        self.note(ended.since(begun), ended);
        if !self.shows_job() {
            self.sleepers.spinning(|| self.spin());
        }
    }

    /// Waits a moment for a job without sleep.
    fn spin(&self) {
        let until = now() + spin_time();
        while !self.shows_job() && now() < until {
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
}

#[cfg(test)]
mod tests {
    use std::hint::spin_loop;
    use std::sync::mpsc::channel;

    use super::super::pool::Pool;
    use super::super::{HandOver, Unbound, WorkerConfig, Workers};
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

    #[test]
    fn worker_without_a_cpu_keeps_batches_with_their_submitters() {
        let queue = Queue::new(1);
        let noticed = Nanos(1);
        queue.note(CROWDED_FROM, noticed);
        assert!(!queue.is_crowded(noticed));
        queue.note(CROWDED_FROM + Nanos(1), noticed);
        assert!(queue.is_crowded(noticed));
        assert!(!queue.is_crowded(noticed + CROWDED_FOR), "that was long ago");
    }

    #[test]
    fn user_whose_jobs_were_taken_by_its_own_thread_has_one_turn_left() {
        let queue = Queue::new(1);
        let mut task = Task::new();
        for _ in 0..3 {
            queue.put(0, 0, job(1));
            assert!(queue.help(0, 0, &mut task));
            assert!(!queue.help(0, 0, &mut task) && !queue.help(0, 1, &mut task));
        }
        queue.put(0, 0, job(7));
        queue.put(0, 1, job(8));
        let mut jobs = queue.lanes[0].lock();
        assert_eq!(jobs.turns, [0, 1]);
        let order: Vec<_> = std::iter::from_fn(|| jobs.pop()).map(|job| job.len_bytes).collect();
        assert_eq!(order, [7, 8]);
        drop(jobs);
        assert_eq!(queue.in_flight_bytes(), 15);
    }

    #[test]
    fn job_that_leaves_others_in_its_lane_asks_for_a_worker_and_the_last_one_does_not() {
        let lane = Lane::default();
        let nobody = Sleepers::default();
        assert_eq!([lane.put(0, job(1), &nobody), lane.put(3, job(20), &nobody)], [None, None]);
        let take = || lane.take(Jobs::pop).map(|(job, left)| (job.len_bytes, left));
        assert_eq!([take(), take(), take()], [Some((1, Some(20))), Some((20, None)), None]);
    }

    /// A queue with so many lanes.
    fn queue_of(lanes: usize) -> Queue {
        Queue { lanes: (0..lanes).map(|_| Lane::default()).collect(), ..Queue::new(1) }
    }

    #[test]
    fn worker_takes_from_the_lanes_in_turns_and_a_submitter_from_its_own() {
        let queue = queue_of(3);
        let lanes: Vec<_> = (0..4).map(|_| queue.next_lane()).collect();
        assert_eq!(lanes, [0, 1, 2, 0]);
        (1..=4).for_each(|len| queue.put(0, 0, job(len)));
        (11..=12).for_each(|len| queue.put(1, 0, job(len)));
        queue.put(2, 0, job(21));
        let mut task = Task::new();
        assert!(queue.help(2, 0, &mut task) && !queue.help(2, 0, &mut task));
        queue.put(2, 0, job(22));
        let mut lane = 0;
        let order: Vec<_> =
            std::iter::from_fn(|| queue.take(&mut lane)).map(|job| job.len_bytes).collect();
        assert_eq!(order, [11, 22, 1, 12, 2, 3, 4]);
    }

    /// Submitters of more lanes than workers wait for each of their jobs, so all workers fall
    /// asleep all the time.
    #[test]
    fn no_job_of_any_lane_is_forgotten_while_workers_fall_asleep() {
        let queue = queue_of(4);
        let queue = &queue;
        std::thread::scope(|scope| {
            let workers = [0; 2].map(|_| scope.spawn(|| queue.work()));
            let submitters: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let lane = queue.next_lane();
                        let completions = CompletionQueue::new().unwrap();
                        for number in 0..2_000 {
                            let (ends, ended) = channel();
                            let job = Job::one(
                                Box::new(move |_| ends.send(()).unwrap()),
                                &completions,
                                1,
                            );
                            queue.put(lane, number % 3, job);
                            ended.recv().unwrap();
                        }
                    })
                })
                .collect();
            submitters.into_iter().for_each(|submitter| submitter.join().unwrap());
            queue.stop();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
        });
        assert_eq!(queue.in_flight_bytes(), 0);
    }

    fn wait_until_all_sleep(pool: &Pool) {
        let queues = || pool.bound.iter().map(|(_, queue)| queue).chain([&pool.unbound]);
        while queues().map(|queue| queue.sleeping()).sum::<usize>() < pool.threads() {
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
        let workers = Workers::start(WorkerConfig { unbound: Unbound::Number(2), bound: true });
        let pool = &*workers.pool;
        // A later round also has the time of the earlier ones.
        for submit in [HandOver::submit, HandOver::submit_here, HandOver::submit] {
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
            submit(&workers.for_submitter(), Job::one(run, &completions, 0), &mut Task::new());
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
