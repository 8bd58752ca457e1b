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

/// `Instant` without its arithmetic on seconds, which costs a third of a clock reading: each
/// request reads the clock twice.
fn since_boot() -> Nanos {
    let now = clock_gettime(ClockId::Monotonic);
    let ns = now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000);
    Nanos(ns.wrapping_add(now.tv_nsec.cast_unsigned()))
}

/// State of a gate.
#[derive(Debug, Default)]
enum State {
    #[default]
    Waiting,
    /// Open since this time.
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

    /// Starts all tasks.
    pub(super) fn open(&self, now: Nanos) {
        *self.state() = State::Running(now);
        self.changed.notify_all();
    }

    /// Stops the start of further work.
    pub(super) fn stop(&self) {
        *self.state() = State::Stopped;
        self.changed.notify_all();
    }

    /// The time when all tasks have started; `None` if they do not start.
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

    /// Sleeps; with `until_stop`, at most until the stop.
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
