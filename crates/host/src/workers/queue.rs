//! The jobs of one worker, or of several: a queue for each user, and turns among the users.
//!
//! ```text
//!   user 0   [job] [job] [job] [job]  \
//!   user 1   [job]                     >  turns: 0 1 2 0 2 0 0
//!   user 2   [job] [job]              /
//! ```
//! A volume with many jobs delays the job of another one by at most a job of each volume.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use blockyard_engine::time::Nanos;

use super::{Job, Task};
use crate::stages::now;

/// Jobs for one or several workers.
#[derive(Default)]
pub(super) struct Queue {
    jobs: Mutex<Jobs>,
    more: Condvar,
    /// Bytes of its jobs, running ones included.
    in_flight_bytes: AtomicU64,
}

#[derive(Default)]
struct Jobs {
    /// By number of the user.
    users: Vec<UserJobs>,
    /// Users in the order of their turns.
    turns: VecDeque<usize>,
    /// Number of workers that wait for a job; only these are woken.
    sleeping: usize,
    /// Time in which workers waited for a job, whose wait has ended.
    slept: Nanos,
    /// Sum of the starts of the waits that have not ended.
    asleep_since: Nanos,
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
    fn push(&mut self, user: usize, job: Job) {
        if self.users.len() <= user {
            self.users.resize_with(user + 1, UserJobs::default);
        }
        let own = &mut self.users[user];
        own.jobs.push_back(job);
        if !own.has_turn {
            own.has_turn = true;
            self.turns.push_back(user);
        }
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
        self.in_flight_bytes.fetch_add(job.len_bytes, Ordering::Relaxed);
        let mut jobs = self.lock();
        jobs.push(user, job);
        let wakes = jobs.sleeping > 0;
        drop(jobs);
        if wakes {
            self.more.notify_one();
        }
    }

    /// Runs a job that waits for no worker.
    pub(super) fn run(&self, job: Job, task: &mut Task) {
        self.in_flight_bytes.fetch_add(job.len_bytes, Ordering::Relaxed);
        job.run(task, &self.in_flight_bytes);
    }

    /// Runs the oldest job of a user. Returns false if none waits.
    pub(super) fn help(&self, user: usize, task: &mut Task) -> bool {
        let job = self.lock().users.get_mut(user).and_then(|own| own.jobs.pop_front());
        job.map(|job| job.run(task, &self.in_flight_bytes)).is_some()
    }

    /// Time in which its workers waited for a job, all of them together, until now.
    pub(super) fn slept(&self) -> Nanos {
        let jobs = self.lock();
        let until_now = Nanos(now().0 * jobs.sleeping as u64);
        jobs.slept + until_now.since(jobs.asleep_since)
    }

    pub(super) fn stop(&self) {
        self.lock().stopping = true;
        self.more.notify_all();
    }

    /// Runs jobs until the end.
    pub(super) fn work(&self) {
        let mut task = Task::new();
        let mut waiting = self.lock();
        loop {
            if let Some(job) = waiting.pop() {
                drop(waiting);
                job.run(&mut task, &self.in_flight_bytes);
                waiting = self.lock();
            } else if waiting.stopping {
                return;
            } else {
                let since = now();
                waiting.sleeping += 1;
                waiting.asleep_since = waiting.asleep_since + since;
                waiting = self.more.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                waiting.sleeping -= 1;
                waiting.asleep_since = waiting.asleep_since.since(since);
                waiting.slept = waiting.slept + now().since(since);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::completions::CompletionQueue;

    /// A job of a length that names it.
    fn job(len_bytes: u64) -> Job {
        let completions = CompletionQueue::new().unwrap();
        Job { run: Box::new(|_| None), completions, len_bytes }
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
}
