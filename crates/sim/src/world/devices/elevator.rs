//! Work of an elevator: its CPU time, and the waits for its lock.
//!
//! ```text
//!   context ── queue's own call ──> steps counted by the engine ── × cost ──> its next burst
//!                                          └ under the lock: after the work of others
//! ```
//! The work is paid before the dispatched requests are issued. CPUs spin while they wait, so a wait
//! is busy time.

use blockyard_engine::time::Nanos;

use super::super::causes::ElevatorCounters;
use super::super::config::{ElevatorCosts, ElevatorLock};

/// The work of a queue's elevator.
#[derive(Debug)]
pub(super) struct ElevatorWork {
    costs: ElevatorCosts,
    /// Steps that are paid for.
    paid_steps: u64,
    /// Time at which each lock is released.
    free_at: Vec<Nanos>,
    counters: ElevatorCounters,
}

impl ElevatorWork {
    pub(super) fn new(costs: ElevatorCosts, hw_queues: u16) -> Self {
        let free_at = vec![Nanos(0); usize::from(hw_queues)];
        Self { costs, paid_steps: 0, free_at, counters: ElevatorCounters::default() }
    }

    pub(super) fn counters(&self) -> ElevatorCounters {
        self.counters
    }

    /// Time of the work since the last call, of a context that begins with it at this time on a
    /// CPU of this hardware queue; with its wait for the lock.
    pub(super) fn take(&mut self, steps: u64, at: Nanos, hctx: u16) -> Nanos {
        let new = steps - self.paid_steps;
        self.paid_steps = steps;
        if new == 0 || self.costs.step == Nanos(0) {
            return Nanos(0);
        }
        let work = Nanos(self.costs.step.0 * new);
        let lock = match self.costs.lock {
            ElevatorLock::None => {
                self.counters.busy = self.counters.busy + work;
                return work;
            }
            ElevatorLock::Queue => &mut self.free_at[0],
            ElevatorLock::HardwareQueue => &mut self.free_at[usize::from(hctx)],
        };
        let wait = lock.since(at);
        let hold = if wait > Nanos(0) { work + self.costs.contended } else { work };
        *lock = at + wait + hold;
        self.counters.busy = self.counters.busy + hold;
        self.counters.lock_waits = self.counters.lock_waits + wait;
        self.counters.waiters += u64::from(wait > Nanos(0));
        wait + hold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(lock: ElevatorLock, contended: u64) -> ElevatorWork {
        let step = Nanos(10);
        ElevatorWork::new(ElevatorCosts { step, lock, contended: Nanos(contended) }, 2)
    }

    #[test]
    fn holders_of_a_lock_exclude_each_other() {
        let mut one = work(ElevatorLock::Queue, 0);
        assert_eq!(one.take(5, Nanos(100), 0), Nanos(50), "until 150");
        assert_eq!(one.take(7, Nanos(120), 1), Nanos(30 + 20), "until 170");
        assert_eq!(one.take(8, Nanos(170), 0), Nanos(10));
        let counters = one.counters();
        assert_eq!((counters.busy, counters.lock_waits), (Nanos(80), Nanos(30)));
        assert_eq!(counters.waiters, 1);

        let mut each = work(ElevatorLock::HardwareQueue, 0);
        assert_eq!(each.take(5, Nanos(100), 0), Nanos(50));
        assert_eq!(each.take(7, Nanos(120), 1), Nanos(20), "of another hardware queue");
        assert_eq!(each.take(8, Nanos(130), 0), Nanos(20 + 10));
    }

    #[test]
    fn contended_work_takes_longer_and_work_without_a_lock_never_waits() {
        let mut contended = work(ElevatorLock::Queue, 25);
        assert_eq!(contended.take(5, Nanos(0), 0), Nanos(50));
        assert_eq!(contended.take(6, Nanos(40), 0), Nanos(10 + 10 + 25));
        let mut free = work(ElevatorLock::None, 25);
        assert_eq!(free.take(5, Nanos(0), 0), Nanos(50));
        assert_eq!(free.take(6, Nanos(40), 0), Nanos(10));
        assert_eq!(free.take(6, Nanos(40), 0), Nanos(0), "each step is paid once");
    }
}
