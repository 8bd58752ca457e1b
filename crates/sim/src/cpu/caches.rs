//! Private caches: a thread that continues on another CPU fetches its hot lines from the caches of
//! its last one.
//!
//! The price is time of the thread, before its first work on the new CPU. It depends on the
//! distance alone: within an L3 cache the lines come over that, else over the socket, or over the
//! link between two sockets. A thread that has not run yet has no hot lines.
//!
//! The scheduler knows of the price. An idle CPU leaves a *cache-hot* thread on its CPU: one that
//! blocked, or that an urgent one preempted, a short time ago (`task_hot` in
//! `kernel/sched/fair.c`). A thread that a fair one preempts, usually at the end of its turn, is
//! taken: else two busy threads would share a CPU beside an idle one. The kernel's balancer takes a
//! cache-hot one of them after some failed attempts (`nr_balance_failed`).
//!
//! Left out: lines that others evict while a thread waits, lines that several threads share, and
//! hyper-threads of one core, which share their caches but pay all the same.

use blockyard_engine::time::Nanos;

use super::{Cpus, Distance, Thread, ThreadId};

/// Price of a migration, by its distance.
#[derive(Clone, Copy, Debug, Default)]
pub struct Migration {
    /// To another CPU of the L3 cache.
    pub same_l3: Nanos,
    /// To another L3 cache of the socket.
    pub other_l3: Nanos,
    /// To another socket.
    pub remote: Nanos,
}

impl Cpus {
    /// A thread of this CPU continues on another one.
    pub(super) fn migrates(&mut self, thread: ThreadId, from: usize, to: usize) {
        self.counters.migrations += 1;
        let price = match self.topology.distance_at(from, to) {
            Distance::SameCache => self.costs.migrate.same_l3,
            Distance::SameSocket => self.costs.migrate.other_l3,
            Distance::Remote => self.costs.migrate.remote,
        };
        let moved = self.thread(thread);
        if moved.used > Nanos(0) {
            moved.refill = moved.refill + price;
        }
    }

    /// Whether a thread that waits ran so shortly before that an idle CPU leaves it.
    pub(super) fn is_cache_hot(&self, now: Nanos, thread: ThreadId) -> bool {
        let Thread { stopped, used, .. } = self.threads[thread.0 as usize];
        used > Nanos(0) && now < stopped + self.costs.cache_hot
    }

    /// Time in which the thread of a CPU fetches its lines, from `now` on.
    pub(super) fn take_refill(&mut self, now: Nanos, at: usize, thread: ThreadId) -> Nanos {
        let refill = std::mem::take(&mut self.thread(thread).refill);
        if refill == Nanos(0) { refill } else { self.shared(now, at, refill) }
    }
}
