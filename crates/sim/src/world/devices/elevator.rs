//! Work of an elevator: its CPU time, and the waits for its lock.
//!
//! ```text
//!   context ── queue's own call ──> steps counted by the engine ── × cost ──> its next burst
//!                                          └ under the lock: after the work of others
//! ```
//! The work is paid before the dispatched requests are issued. CPUs spin while they wait, so a wait
//! is busy time. Under a deferred lock nobody waits for the dispatch of another CPU: that CPU comes
//! back at its end, and pays for what the others have left.

use blockyard_engine::time::Nanos;

use super::super::causes::ElevatorCounters;
use super::super::config::{ElevatorCosts, ElevatorLock};
use crate::cpu::CpuId;

/// The work of a queue's elevator.
#[derive(Debug)]
pub(super) struct ElevatorWork {
    costs: ElevatorCosts,
    /// Steps that are paid for.
    paid_steps: u64,
    /// Time at which each lock is released.
    free_at: Vec<Nanos>,
    /// Of a deferred lock.
    deferred: Deferred,
    counters: ElevatorCounters,
}

/// State of a deferred lock.
#[derive(Debug)]
struct Deferred {
    /// Steps of insertions that the next dispatch pays for.
    owed_steps: u64,
    /// Time at which the lock of the list of new requests is released.
    list_free_at: Nanos,
    /// CPU of the last dispatch.
    holder: CpuId,
    /// The holder comes back.
    is_called: bool,
}

/// Whether a context may dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It may.
    Dispatch,
    /// Another CPU does, and takes what is new.
    Leave,
    /// As before; that CPU must come back at this time.
    Call(CpuId, Nanos),
}

impl ElevatorWork {
    pub(super) fn new(costs: ElevatorCosts, hw_queues: u16) -> Self {
        let free_at = vec![Nanos(0); usize::from(hw_queues)];
        let list_free_at = Nanos(0);
        let holder = CpuId(0);
        let deferred = Deferred { owed_steps: 0, list_free_at, holder, is_called: false };
        Self { costs, paid_steps: 0, free_at, deferred, counters: ElevatorCounters::default() }
    }

    pub(super) fn counters(&self) -> ElevatorCounters {
        self.counters
    }

    /// Time of the work since the last call, of a context that begins with it at this time on a
    /// CPU of this hardware queue; with its wait for the lock.
    pub(super) fn take(&mut self, steps: u64, at: Nanos, hctx: u16) -> Nanos {
        let new = steps - self.paid_steps + std::mem::take(&mut self.deferred.owed_steps);
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
            ElevatorLock::Queue | ElevatorLock::Deferred => &mut self.free_at[0],
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

    /// As [`ElevatorWork::take`], for a completion, which needs no deferred lock.
    pub(super) fn complete(&mut self, steps: u64, at: Nanos, hctx: u16) -> Nanos {
        if !self.is_deferred() {
            return self.take(steps, at, hctx);
        }
        let work = Nanos(self.costs.step.0 * (steps - self.paid_steps));
        self.paid_steps = steps;
        self.counters.busy = self.counters.busy + work;
        work
    }

    /// Whether a bio at this time skips the look-up for a merge.
    pub(super) fn skips_merges(&self, at: Nanos) -> bool {
        self.is_deferred() && self.free_at[0] > at
    }

    /// Time in which a context adds its new requests to the list. Later contexts pay for the rest.
    pub(super) fn add(&mut self, steps: u64, at: Nanos) -> Nanos {
        let new = steps - self.paid_steps;
        if !self.is_deferred() || new == 0 {
            return Nanos(0);
        }
        self.paid_steps = steps;
        self.deferred.owed_steps += new;
        let wait = self.deferred.list_free_at.since(at);
        let step = self.costs.step;
        let hold = if wait > Nanos(0) { step + self.costs.contended } else { step };
        self.deferred.list_free_at = at + wait + hold;
        self.counters.busy = self.counters.busy + hold;
        self.counters.lock_waits = self.counters.lock_waits + wait;
        self.counters.waiters += u64::from(wait > Nanos(0));
        wait + hold
    }

    /// Time from which a deferred lock is free.
    pub(super) fn deferred_until(&self) -> Nanos {
        if self.is_deferred() { self.free_at[0] } else { Nanos(0) }
    }

    /// Whether a context on this CPU dispatches at this time.
    pub(super) fn turn(&mut self, at: Nanos, cpu: CpuId) -> Turn {
        let until = self.deferred_until();
        let deferred = &mut self.deferred;
        if until <= at {
            (deferred.holder, deferred.is_called) = (cpu, false);
            Turn::Dispatch
        } else if std::mem::replace(&mut deferred.is_called, true) {
            Turn::Leave
        } else {
            Turn::Call(deferred.holder, until)
        }
    }

    fn is_deferred(&self) -> bool {
        self.costs.lock == ElevatorLock::Deferred
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
    fn deferred_work_waits_for_the_list_only_and_the_holder_pays_for_it() {
        let mut work = work(ElevatorLock::Deferred, 25);
        let [holder, other] = [CpuId(0), CpuId(1)];
        assert_eq!(work.add(4, Nanos(100)), Nanos(10), "the list");
        assert_eq!(work.turn(Nanos(110), holder), Turn::Dispatch);
        assert_eq!(work.take(6, Nanos(110), 0), Nanos(60), "until 170");
        assert!(work.skips_merges(Nanos(169)) && !work.skips_merges(Nanos(170)));
        assert_eq!(work.add(9, Nanos(105)), Nanos(5 + 10 + 25), "the list of another CPU");
        assert_eq!(work.turn(Nanos(145), other), Turn::Call(holder, Nanos(170)));
        assert_eq!(work.turn(Nanos(146), other), Turn::Leave, "it is called");
        assert_eq!(work.turn(Nanos(170), holder), Turn::Dispatch);
        assert_eq!(work.take(9, Nanos(170), 0), Nanos(30), "steps of the other CPU");
        assert_eq!(work.counters().busy, Nanos(10 + 60 + 35 + 30));
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
