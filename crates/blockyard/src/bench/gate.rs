//! The clock of a run, and the start and stop of a phase's tasks.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use blockyard_engine::time::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// Time since the program was started; it never goes back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock(Nanos);

impl Clock {
    pub(super) fn start() -> Self {
        Self(since_boot())
    }

    pub(super) fn now(self) -> Nanos {
        since_boot().since(self.0)
    }
}

/// `Instant` without the arithmetic on seconds, which costs as much as a third of the look at the
/// clock: it is done twice for each request.
fn since_boot() -> Nanos {
    let now = clock_gettime(ClockId::Monotonic);
    let ns = now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000);
    Nanos(ns.wrapping_add(now.tv_nsec.cast_unsigned()))
}

/// Closed, open, closed for good.
#[derive(Debug, Default)]
enum State {
    #[default]
    Waiting,
    /// Since then.
    Running(Nanos),
    Stopped,
}

/// The tasks of a phase wait here for their start.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All tasks start.
    pub(super) fn open(&self, now: Nanos) {
        *self.state() = State::Running(now);
        self.changed.notify_all();
    }

    /// Nothing more is started.
    pub(super) fn stop(&self) {
        *self.state() = State::Stopped;
        self.changed.notify_all();
    }

    /// When all tasks have started; none if they do not.
    pub(super) fn wait_for_start(&self) -> Option<Nanos> {
        let closed = |state: &mut State| matches!(state, State::Waiting);
        let state = self.changed.wait_while(self.state(), closed);
        match *state.unwrap_or_else(PoisonError::into_inner) {
            State::Running(started) => Some(started),
            State::Waiting | State::Stopped => None,
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        matches!(*self.state(), State::Stopped)
    }

    /// Sleeps; in the background, no longer than until the stop.
    pub(super) fn sleep(&self, pause: Nanos, until_stop: bool) {
        let pause = Duration::from_nanos(pause.0);
        if until_stop {
            let running = |state: &mut State| !matches!(state, State::Stopped);
            drop(self.changed.wait_timeout_while(self.state(), pause, running));
        } else {
            std::thread::sleep(pause);
        }
    }
}
