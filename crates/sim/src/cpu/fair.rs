//! Whose turn it is among the threads of a CPU: virtual run time, as in `kernel/sched/fair.c`.
//!
//! The virtual run time of a thread is the time that it has run, moved so that the threads of a CPU
//! compare. Who has the least is next. The least of a CPU never goes back. One that wakes up is put
//! no further behind it than half a period, its *bonus*, however long it slept
//! (`GENTLE_FAIR_SLEEPERS`). One that comes from another CPU keeps its distance from the least.
//!
//! A *turn* is an equal part of the period, but no less than the granularity. Who runs gives way at
//! the end of a burst, behind somebody who has run less: after a turn, or when one wakes up that
//! has run less by more than the granularity.
//!
//! **The bound.** Among n threads of one CPU, one that can run waits for no longer than 2 n times
//! the sum of bonus, turn, longest burst and switch: each of the others is at most so far behind
//! it, and nobody is put back twice without having run.

use std::collections::BTreeSet;

use blockyard_engine::time::Nanos;

use super::ThreadId;

/// A thread in the queue. The least is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// It is not urgent: who is goes first.
    pub(super) is_fair: bool,
    pub(super) virtual_run: Nanos,
    arrival: u64,
    pub(super) thread: ThreadId,
}

/// Those that wait for a CPU.
#[derive(Clone, Debug, Default)]
pub(super) struct RunQueue {
    waiting: BTreeSet<Place>,
    arrivals: u64,
    /// The least virtual run time that any thread has had here.
    least: Nanos,
}

impl RunQueue {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn first(&self) -> Option<&Place> {
        self.waiting.first()
    }

    pub(super) fn push(&mut self, thread: ThreadId, is_fair: bool, virtual_run: Nanos) {
        let arrival = self.arrivals;
        self.arrivals += 1;
        self.waiting.insert(Place { is_fair, virtual_run, arrival, thread });
    }

    pub(super) fn pop(&mut self) -> Option<ThreadId> {
        self.waiting.pop_first().map(|place| place.thread)
    }

    /// Takes the last out that fits.
    pub(super) fn take_last(&mut self, fits: impl Fn(&ThreadId) -> bool) -> Option<ThreadId> {
        let last = self.waiting.iter().rev().find(|place| fits(&place.thread)).copied()?;
        self.waiting.remove(&last);
        Some(last.thread)
    }

    pub(super) fn has(&self, fits: impl Fn(&ThreadId) -> bool) -> bool {
        self.waiting.iter().any(|place| fits(&place.thread))
    }

    /// Where a thread that slept goes, or comes from another CPU, by what it had there.
    pub(super) fn arriving(&self, virtual_run: Nanos, least_there: Nanos) -> Nanos {
        Nanos((virtual_run + self.least).0.saturating_sub(least_there.0))
    }

    /// The least that one is given that wakes up.
    pub(super) fn waking(&self, virtual_run: Nanos, period: Nanos) -> Nanos {
        virtual_run.max(Nanos(self.least.0.saturating_sub(period.0 / 2)))
    }

    pub(super) fn least(&self) -> Nanos {
        self.least
    }

    /// What runs, unless that is urgent, has come so far.
    pub(super) fn advance(&mut self, running: Option<Nanos>) {
        let first = self.waiting.iter().find(|place| place.is_fair).map(|place| place.virtual_run);
        let behind = running.into_iter().chain(first).min();
        self.least = self.least.max(behind.unwrap_or(self.least));
    }
}
