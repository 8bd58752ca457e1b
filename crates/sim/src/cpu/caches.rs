//! Private caches: a thread that continues on another CPU fetches its hot lines from the caches of
//! its last one.
//!
//! The price is time of the thread, before its first work on the new CPU. It depends on the
//! distance alone: within the socket the lines come over the shared cache, else over the link
//! between the sockets. A thread that has not run yet has no hot lines.
//!
//! The scheduler knows of the price. An idle CPU leaves a *cache-hot* thread on its CPU: one that
//! ran a short time ago (`task_hot` in `kernel/sched/fair.c`). A thread that an urgent one preempts
//! waits for it in any case: urgent threads run shortly, and the kernel balances a CPU that is not
//! newly idle at ticks only. A thread that waits for a whole turn is moved, cache-hot or not, like
//! by the balancer after failed attempts (`nr_balance_failed`).
//!
//! Left out: lines that others evict while a thread waits, lines that several threads share, and
//! hyper-threads of one core, which share their caches but pay all the same.

use blockyard_engine::time::Nanos;

use super::{Cpus, Thread, ThreadId};

impl Cpus {
    /// A thread of this CPU continues on another one.
    pub(super) fn migrates(&mut self, thread: ThreadId, from: usize, to: usize) {
        self.counters.migrations += 1;
        let is_near = self.topology.socket(from) == self.topology.socket(to);
        let price = if is_near { self.costs.migrate } else { self.costs.migrate_remote };
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

    /// Whether a thread that was just preempted on this CPU waits there for an urgent one.
    pub(super) fn stays_hot(&self, at: usize) -> bool {
        let is_urgent = |next: ThreadId| self.is_urgent(next);
        self.costs.cache_hot > Nanos(0) && self.cpus[at].current.is_some_and(is_urgent)
    }

    /// Time in which the thread of a CPU fetches its lines, from `now` on.
    pub(super) fn take_refill(&mut self, now: Nanos, at: usize, thread: ThreadId) -> Nanos {
        let refill = std::mem::take(&mut self.thread(thread).refill);
        if refill == Nanos(0) { refill } else { self.shared(now, at, refill) }
    }
}
