//! Scheduling among the threads of a CPU: virtual run time, like `kernel/sched/fair.c`.
//!
//! The virtual run time of a thread is its run time, shifted so that the threads of a CPU compare.
//! The thread with the least is next. The minimum of a CPU never decreases. A waking thread is
//! placed at most half a period before the minimum, its *bonus*, regardless of its sleep
//! (`GENTLE_FAIR_SLEEPERS`). A thread from another CPU keeps its distance from the minimum.
//!
//! A *turn* is an equal part of the period, but at least the granularity. A running thread is
//! preempted at the end of a burst, by a thread with less run time: after a turn, or by a waking
//! thread whose run time is less by more than the granularity.
//!
//! **The bound.** Among n threads of one CPU, a runnable thread waits for at most 2 n times the sum
//! of bonus, turn, longest burst and switch: each other thread is at most that far behind it, and
//! none is set back twice without having run.

use std::collections::BTreeSet;

use blockyard_engine::time::Nanos;

use super::ThreadId;

/// A thread in the queue; the least is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// Not urgent; urgent threads go first.
    pub(super) is_fair: bool,
    pub(super) virtual_run: Nanos,
    arrival: u64,
    pub(super) thread: ThreadId,
    /// Virtual deadline, for [`super::eevdf`].
    pub(super) deadline: Nanos,
}

/// Runnable threads that wait for a CPU.
#[derive(Clone, Debug, Default)]
pub(super) struct RunQueue {
    waiting: BTreeSet<Place>,
    arrivals: u64,
    /// The minimum of virtual run times so far.
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

    pub(super) fn push(
        &mut self,
        thread: ThreadId,
        is_fair: bool,
        (virtual_run, deadline): (Nanos, Nanos),
    ) {
        let arrival = self.arrivals;
        self.arrivals += 1;
        self.waiting.insert(Place { is_fair, virtual_run, arrival, thread, deadline });
    }

    /// The threads that are not urgent, in the order of their virtual run times.
    pub(super) fn fair(&self) -> impl Iterator<Item = &Place> {
        self.waiting.iter().filter(|place| place.is_fair)
    }

    /// The thread with the earliest deadline among those that have run for at most the mean.
    pub(super) fn eligible(&self, mean: Nanos) -> Option<&Place> {
        let eligible = self.fair().take_while(|place| place.virtual_run <= mean);
        eligible.min_by_key(|place| (place.deadline, place.arrival))
    }

    /// Removes an urgent thread, or else the eligible one with the earliest deadline.
    pub(super) fn pop_eligible(&mut self, mean: Nanos) -> Option<ThreadId> {
        let urgent = self.waiting.first().filter(|place| !place.is_fair);
        let next = *urgent.or_else(|| self.eligible(mean))?;
        self.waiting.remove(&next);
        Some(next.thread)
    }

    pub(super) fn pop(&mut self) -> Option<ThreadId> {
        self.waiting.pop_first().map(|place| place.thread)
    }

    /// The last thread that fits.
    pub(super) fn last(&self, fits: impl Fn(&ThreadId) -> bool) -> Option<ThreadId> {
        self.waiting.iter().rev().map(|place| place.thread).find(|thread| fits(thread))
    }

    /// Removes the last thread that fits.
    pub(super) fn take_last(&mut self, fits: impl Fn(&ThreadId) -> bool) -> Option<ThreadId> {
        let last = self.waiting.iter().rev().find(|place| fits(&place.thread)).copied()?;
        self.waiting.remove(&last);
        Some(last.thread)
    }

    pub(super) fn any(&self, fits: impl Fn(&ThreadId) -> bool) -> bool {
        self.waiting.iter().any(|place| fits(&place.thread))
    }

    /// Virtual run time of a thread that arrives after a sleep or from another CPU, from its value
    /// there.
    pub(super) fn arriving(&self, virtual_run: Nanos, least_there: Nanos) -> Nanos {
        Nanos((virtual_run + self.least).0.saturating_sub(least_there.0))
    }

    /// Lower limit of the virtual run time of a waking thread.
    pub(super) fn waking(&self, virtual_run: Nanos, period: Nanos) -> Nanos {
        virtual_run.max(Nanos(self.least.0.saturating_sub(period.0 / 2)))
    }

    pub(super) fn least(&self) -> Nanos {
        self.least
    }

    /// Advances the minimum to the running thread, unless that is urgent.
    pub(super) fn advance(&mut self, running: Option<Nanos>) {
        let first = match self.waiting.first() {
            Some(place) if !place.is_fair => self.waiting.iter().find(|place| place.is_fair),
            first => first,
        };
        let first = first.map(|place| place.virtual_run);
        let behind = running.into_iter().chain(first).min();
        self.least = self.least.max(behind.unwrap_or(self.least));
    }
}
