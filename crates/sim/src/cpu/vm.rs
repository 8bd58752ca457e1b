//! Virtual machines: a CPU is a thread of a host, which sees its halts and its calls.
//!
//! ```text
//!   waker ── exit: its call ──> call ──> host wakes the halted CPU ──> exit from idle ──> thread
//!   CPU without a thread ── exit: its halt ──> halted          polls (haltpoll) ──> thread
//! ```
//! A CPU that polls needs neither the call nor the host
//! (`Documentation/virt/guest-halt-polling.rst`).
//!
//! Left out: polls of the host (`kvm.halt_poll_ns`), exits for timers and interrupts, and a host
//! whose own CPUs are busy. A wake-up of a thread on a busy CPU sends no call.

use blockyard_engine::time::Nanos;

use super::{CpuId, Cpus};

/// Costs of a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmCosts {
    /// An exit to the host and the return: for a call, paid by the caller, and for a halt.
    pub exit: Nanos,
    /// The host wakes a halted CPU.
    pub vcpu_wake: Nanos,
}

impl Cpus {
    /// Cost for the caller of a call to a CPU: the exit, if it is needed.
    pub(super) fn cost_of_call(&self, now: Nanos, by: CpuId, at: usize) -> Nanos {
        let Some(vm) = self.costs.vm else { return Nanos(0) };
        let is_needed = usize::from(by.0) != at && self.is_halted(now, at);
        if is_needed { vm.exit } else { Nanos(0) }
    }

    /// Cost for the caller of a function of another CPU: the exit, unless that CPU polls.
    pub(crate) fn cost_of_function(&self, now: Nanos, at: CpuId) -> Nanos {
        let Some(vm) = self.costs.vm else { return Nanos(0) };
        let at = usize::from(at.0);
        let polls = self.cpus[at].current.is_none() && !self.is_halted(now, at);
        if polls { Nanos(0) } else { vm.exit }
    }

    fn is_halted(&self, now: Nanos, at: usize) -> bool {
        let sleep = &self.cpus[at].sleep;
        self.cpus[at].current.is_none() && sleep.halted(now, self.costs.idle.governed()) > Nanos(0)
    }
}

impl VmCosts {
    /// Time until a CPU that has halted for some time runs: the rest of its exit, and the host.
    pub(super) fn wakes_after(self, halted: Nanos) -> Nanos {
        if halted == Nanos(0) { Nanos(0) } else { self.exit.since(halted) + self.vcpu_wake }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{COSTS, CPU0, HALT_POLL, IDLE_EXIT};
    use super::super::{Affinity, Costs, Idle, Topology};
    use super::*;

    const VM: VmCosts = VmCosts { exit: Nanos(1_500), vcpu_wake: Nanos(9_000) };

    /// A thread of CPU 1 sleeps and is woken by another CPU or its own. Returns the delays of the
    /// second of two such sleeps, and the busy time of the waker's wake-up.
    fn wake_up(costs: Costs, sleep_us: u64, by: CpuId) -> (u64, u64) {
        wake_up_after(costs, sleep_us, by, Nanos(0))
    }

    /// As [`wake_up`], by a waker that works for `before` at first.
    fn wake_up_after(costs: Costs, sleep_us: u64, by: CpuId, before: Nanos) -> (u64, u64) {
        let mut cpus = Cpus::new(Topology::of(1, 2), costs);
        // CPU 0 is busy.
        let busy = cpus.spawn(Affinity::Cpu(CPU0));
        cpus.wake(Nanos(0), busy, CPU0, Nanos(0));
        let now = cpus.next_event().unwrap();
        assert_eq!(cpus.take(now), Some((CPU0, busy)));
        cpus.run(now, CPU0, Nanos::from_ms(1_000));
        let thread = cpus.spawn(Affinity::Cpu(CpuId(1)));
        cpus.wake(now, thread, CpuId(1), Nanos(0));
        let mut last = (0, 0);
        for _ in 0..2 {
            let now = cpus.next_event().unwrap();
            assert_eq!(cpus.take(now), Some((CpuId(1), thread)));
            cpus.block(now, CpuId(1));
            let wakes = now + Nanos(sleep_us * 1_000);
            let busy = cpus.counters().busy;
            cpus.wake(wakes, thread, by, before);
            let begins = cpus.next_event().unwrap();
            last = ((begins - wakes).0, (cpus.counters().busy - busy).0);
        }
        last
    }

    #[test]
    fn wake_up_of_a_halted_cpu_costs_its_waker_an_exit_and_waits_for_the_host() {
        let real = wake_up(COSTS, 30, CPU0);
        let call = COSTS.wake_up.0 + COSTS.ipi.0 + IDLE_EXIT.0;
        assert_eq!(real, (call, COSTS.wake_up.0), "the control");
        let guest = Costs { vm: Some(VM), ..COSTS };
        assert_eq!(
            wake_up(guest, 30, CPU0),
            (call + VM.exit.0 + VM.vcpu_wake.0, COSTS.wake_up.0 + VM.exit.0)
        );
        let own = COSTS.wake_up.0 + IDLE_EXIT.0 + VM.vcpu_wake.0;
        assert_eq!(wake_up(guest, 30, CpuId(1)), (own, COSTS.wake_up.0), "no call");
    }

    #[test]
    fn cpu_that_has_just_begun_to_halt_ends_its_exit_first() {
        let guest = Costs { vm: Some(VM), ..COSTS };
        let (late, _) = wake_up(guest, 2, CpuId(1));
        let (early, _) = wake_up(guest, 1, CpuId(1));
        assert_eq!(early - late, VM.exit.0 - 1_000);
    }

    /// The CPU is awake while its own interrupt works before the wake-up.
    #[test]
    fn interrupt_that_works_first_pays_no_second_exit() {
        let guest = Costs { vm: Some(VM), ..COSTS };
        let (at_once, _) = wake_up(guest, 30, CpuId(1));
        let (later, _) = wake_up_after(guest, 30, CpuId(1), Nanos(4_000));
        assert_eq!(later - at_once, 4_000);
    }

    #[test]
    fn poll_needs_no_exit_and_no_host() {
        let of = |sleep_us| {
            let idle = Idle::Governed(HALT_POLL);
            wake_up(Costs { vm: Some(VM), idle, ..COSTS }, sleep_us, CPU0)
        };
        let polled = (COSTS.wake_up.0 + COSTS.ipi.0, COSTS.wake_up.0);
        assert_eq!(of(30), polled);
        let (halted, busy) = of(300);
        assert_eq!(busy, COSTS.wake_up.0 + VM.exit.0, "the control: a longer sleep");
        assert!(halted > polled.0 + VM.vcpu_wake.0, "{halted} ns");
    }
}
