//! The workers of a queue that have nothing to do: their sleep, their wake-ups, and the time that
//! all of them have worked.
//!
//! A job may come while a worker falls asleep. So a submitter adds it and looks for sleepers in
//! one critical section of its lane; and a worker counts as a sleeper first, and then locks each
//! lane to look once more. If its lock comes later, it sees the job; if it comes earlier, the
//! submitter sees the sleeper. The other counters change before that look, and so need no order of
//! their own.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use blockyard_engine::dm::crypt::hand_over::{Waiting, WakeUp};
use blockyard_engine::time::Nanos;

use crate::stages::now;

/// Workers that sleep, and those that do not.
#[derive(Default)]
pub(super) struct Sleepers {
    state: Mutex<State>,
    wake_up: Condvar,
    /// Number of workers that sleep, or look for jobs for the last time. Changed under the lock.
    count: AtomicUsize,
    /// Number of workers that look for a job without sleep.
    spinning: AtomicUsize,
    /// A worker was called, and has not come yet. Changed under the lock.
    is_called: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Time of the first call to a worker that has not come yet.
    called: Option<Nanos>,
    /// Number of workers that do not sleep.
    awake: usize,
    /// Sum of the times since which these are awake.
    awake_since: Nanos,
    /// Time in which workers were awake, until they fell asleep.
    worked: Nanos,
    stopping: bool,
}

impl State {
    /// A worker is awake from now on. Returns the time.
    fn awakes(&mut self) -> Nanos {
        let since = now();
        self.awake += 1;
        self.awake_since = self.awake_since + since;
        since
    }

    /// A worker that is awake since then falls asleep.
    fn falls_asleep(&mut self, since: Nanos) {
        self.awake -= 1;
        self.awake_since = self.awake_since.since(since);
        self.worked = self.worked + now().since(since);
    }
}

/// Result of [`Sleepers::sleep`].
pub(super) enum Slept {
    /// A worker has woken up, or there is a job.
    Awake {
        /// Start of its time awake.
        since: Nanos,
        /// Time that it took to come, and now, if it was called.
        came: Option<(Nanos, Nanos)>,
    },
    /// There are no jobs any more.
    Stopped,
}

impl Sleepers {
    /// A worker begins. Returns the time.
    pub(super) fn begin(&self) -> Nanos {
        self.lock().awakes()
    }

    /// Sleeps until there may be a job, unless there is one or all has ended. The worker is awake
    /// since then. `has_job` locks the lanes.
    pub(super) fn sleep(&self, since: Nanos, has_job: impl Fn() -> bool) -> Slept {
        let mut state = self.lock();
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(count + 1, Ordering::Relaxed);
        let slept = if has_job() {
            Slept::Awake { since, came: None }
        } else if state.stopping {
            Slept::Stopped
        } else {
            state.falls_asleep(since);
            state = self.wake_up.wait(state).unwrap_or_else(PoisonError::into_inner);
            let since = state.awakes();
            self.is_called.store(false, Ordering::Relaxed);
            let came = state.called.take().map(|called| (since.since(called), since));
            Slept::Awake { since, came }
        };
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(count - 1, Ordering::Relaxed);
        slept
    }

    /// Whether a sleeper is to be woken up for a job with this wish, in a lane with so many bytes.
    /// A submitter asks while it holds the lock of the lane.
    pub(super) fn is_due(&self, wake: WakeUp, bytes: u64) -> bool {
        let spinning = self.spinning.load(Ordering::Relaxed);
        let is_called = self.is_called.load(Ordering::Relaxed);
        let has_sleeper = self.count.load(Ordering::Relaxed) > 0;
        has_sleeper && wake.is_due(Waiting { bytes, spinning, is_called })
    }

    /// Wakes a sleeper up, after [`Sleepers::is_due`] and without the lock of the lane.
    pub(super) fn wake(&self, wake: WakeUp, bytes: u64) {
        let mut state = self.lock();
        // Another submitter may have called it in the meantime.
        if self.is_due(wake, bytes) {
            state.called.get_or_insert_with(now);
            self.is_called.store(true, Ordering::Relaxed);
            drop(state);
            self.wake_up.notify_one();
        }
    }

    /// Runs `spin` as a worker that looks for jobs.
    pub(super) fn spinning(&self, spin: impl FnOnce()) {
        self.spinning.fetch_add(1, Ordering::Relaxed);
        spin();
        self.spinning.fetch_sub(1, Ordering::Relaxed);
    }

    /// Ends the workers when no jobs wait any more.
    pub(super) fn stop(&self) {
        self.lock().stopping = true;
        self.wake_up.notify_all();
    }

    /// Time in which the workers did not sleep, all of them together, until now.
    pub(super) fn worked(&self) -> Nanos {
        let state = self.lock();
        let until_now = Nanos(now().0 * state.awake as u64);
        state.worked + until_now.since(state.awake_since)
    }

    /// Number of workers that sleep.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        let _state = self.lock();
        self.count.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use blockyard_engine::dm::crypt::hand_over::WAKES_FROM_BYTES;

    use super::*;

    /// Sleepers of whom so many sleep.
    fn sleepers(count: usize) -> Sleepers {
        Sleepers { count: AtomicUsize::new(count), ..Sleepers::default() }
    }

    /// Whether a worker is called for this.
    fn calls(sleepers: &Sleepers, wake: WakeUp, bytes: u64) -> bool {
        if sleepers.is_due(wake, bytes) {
            sleepers.wake(wake, bytes);
        }
        sleepers.lock().called.take().is_some()
    }

    #[test]
    fn batches_call_one_worker_at_a_time_and_none_for_little_work() {
        let some = sleepers(3);
        assert!(!calls(&some, WakeUp::ForMany, WAKES_FROM_BYTES - 1), "its submitter takes it");
        assert!(calls(&some, WakeUp::ForMany, WAKES_FROM_BYTES));
        assert!(!calls(&some, WakeUp::ForMany, WAKES_FROM_BYTES), "a worker comes");
        assert!(calls(&some, WakeUp::Always, 1), "somebody waits for this one");
        let some = sleepers(3);
        some.spinning(|| {
            assert!(!calls(&some, WakeUp::ForMany, WAKES_FROM_BYTES), "a worker looks");
        });
        assert!(calls(&some, WakeUp::ForMany, WAKES_FROM_BYTES), "it has found nothing");
        assert!(!calls(&sleepers(0), WakeUp::Always, 1));
    }

    #[test]
    fn job_that_comes_while_a_worker_falls_asleep_keeps_it_awake() {
        let sleepers = Sleepers::default();
        let since = sleepers.begin();
        let comes = || {
            // The submitter has shown its job, and looks for sleepers.
            assert_eq!(sleepers.count.load(Ordering::Relaxed), 1);
            true
        };
        let Slept::Awake { since: still, came: None } = sleepers.sleep(since, comes) else {
            panic!("nobody has called it");
        };
        assert_eq!((still, sleepers.count()), (since, 0));
        sleepers.stop();
        assert!(matches!(sleepers.sleep(since, || true), Slept::Awake { .. }), "a job is left");
        assert!(matches!(sleepers.sleep(since, || false), Slept::Stopped));
    }
}
