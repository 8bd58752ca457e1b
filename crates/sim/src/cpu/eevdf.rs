//! Earliest eligible virtual deadline first: the kernel's fair scheduler from 6.6 on
//! (`kernel/sched/fair.c`).
//!
//! The *lag* of a thread is the time that its CPU owes it: the mean virtual run time of the CPU's
//! runnable threads, minus its own. A thread is *eligible* if its lag is not negative. A thread
//! requests a slice at a time; its *deadline* is its virtual run time at the end of that slice. Of
//! the eligible threads the one with the earliest deadline is next. A running thread keeps its CPU
//! until its deadline while it is eligible, regardless of wake-ups (`RUN_TO_PARITY`).
//!
//! A waiting thread keeps its lag, at most two slices of it (`PLACE_LAG`): a sleep earns no bonus,
//! and a short sleep clears no debt. A thread takes its lag to another CPU.
//!
//! **The bound.** Among n threads of one CPU, a runnable thread waits for at most 2 n times the sum
//! of two slices, longest burst and switch: it is eligible after its debt, and has the earliest
//! deadline at the latest when every other thread has had its slice.
//!
//! Left out: weights, slices of a thread's own (`sched_attr::sched_runtime`), delayed dequeue.

use blockyard_engine::time::Nanos;

use super::{Cpus, ThreadId};

impl Cpus {
    /// Mean virtual run time of a CPU's fair threads, and their number. The burst of the running
    /// one counts as far as it is done.
    fn mean(&self, now: Nanos, at: usize) -> (Nanos, u64) {
        let cpu = &self.cpus[at];
        // A switch to the thread is not part of its run time.
        let left = self.ends.of(at).since(now.max(cpu.since));
        let running = cpu.current.map(|thread| &self.threads[thread.0 as usize]);
        let running = running.filter(|running| !running.urgent);
        let times = cpu.queue.fair().map(|place| place.virtual_run);
        let times = times.chain(running.map(|running| running.virtual_run.since(left)));
        let (sum, count) = times.fold((0, 0), |(sum, count), time| (sum + time.0, count + 1));
        (sum.checked_div(count).map_or(cpu.queue.least(), Nanos), count)
    }

    /// Keeps the lag of a thread that is about to leave a CPU.
    pub(super) fn keep_lag(&mut self, now: Nanos, at: usize, thread: ThreadId) {
        let (mean, _) = self.mean(now, at);
        let limit = signed(self.costs.granularity) * 2;
        let leaving = self.thread(thread);
        leaving.lag = (signed(mean) - signed(leaving.virtual_run)).clamp(-limit, limit);
    }

    /// Places a thread on a CPU by its lag, with a new request. The thread itself moves the mean,
    /// so its distance grows with its weight among the others.
    pub(super) fn place_by_lag(&mut self, now: Nanos, at: usize, thread: ThreadId) {
        let (mean, count) = self.mean(now, at);
        let slice = self.costs.granularity;
        let arriving = self.thread(thread);
        let distance = match i64::try_from(count).expect("threads are few") {
            0 => 0,
            count => arriving.lag * (count + 1) / count,
        };
        let virtual_run = (signed(mean) - distance).max(0);
        arriving.virtual_run = Nanos(virtual_run.unsigned_abs());
        arriving.deadline = arriving.virtual_run + slice;
    }

    /// Takes the next thread from a CPU's own queue.
    pub(super) fn pop_eligible(&mut self, now: Nanos, at: usize) -> Option<ThreadId> {
        let (mean, _) = self.mean(now, at);
        self.cpus[at].queue.pop_eligible(mean)
    }

    /// Whether the running thread gives way to a waiting one, both fair. A used-up slice is
    /// followed by the next request.
    pub(super) fn gives_way_to_eligible(
        &mut self,
        now: Nanos,
        at: usize,
        current: ThreadId,
    ) -> bool {
        let (mean, _) = self.mean(now, at);
        let slice = self.costs.granularity;
        let reschedule = self.cpus[at].reschedule;
        let running = self.thread(current);
        let is_used_up = running.virtual_run >= running.deadline;
        if is_used_up {
            running.deadline = running.virtual_run + slice;
        }
        let is_eligible = running.virtual_run <= mean;
        let deadline = running.deadline;
        if !is_used_up && (is_eligible || !reschedule) {
            return false;
        }
        let next = self.cpus[at].queue.eligible(mean);
        next.is_some_and(|next| !is_eligible || next.deadline <= deadline)
    }
}

fn signed(time: Nanos) -> i64 {
    i64::try_from(time.0).expect("a run is shorter than ten days")
}
