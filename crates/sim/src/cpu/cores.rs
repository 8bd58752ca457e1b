//! Cores of two CPUs (simultaneous multithreading): both run, and each is slower while the other
//! is busy.
//!
//! CPUs 2 k and 2 k + 1 are *siblings*. The rest of a burst is stretched from the moment at which
//! the sibling starts to run a thread, and shrinks again when that one has nothing to run. So the
//! work of a core is conserved: two busy siblings do twice the shared speed of one alone.
//!
//! A thread that wakes up prefers a core of which both CPUs are idle, like in the kernel
//! (`select_idle_sibling`). As there, CPU time is time on the CPU, however fast that is.
//!
//! Left out: switches, interrupts and wake-ups run at full speed; a running thread is not moved to
//! an idle core.

use std::ops::Range;

use blockyard_engine::time::Nanos;

use super::{Affinity, CpuSet, Cpus};

impl Cpus {
    /// The other CPU of the core, with the speed of both when both are busy.
    fn sibling(&self, at: usize) -> Option<(usize, u64)> {
        let percent = self.costs.shared_core_percent?;
        Some((at ^ 1, u64::from(percent)))
    }

    /// Duration of work that starts now, which takes `work` on a core alone.
    pub(super) fn shared(&self, now: Nanos, at: usize, work: Nanos) -> Nanos {
        let Some((sibling, percent)) = self.sibling(at) else { return work };
        let sibling = &self.cpus[sibling];
        if sibling.current.is_none() {
            return work;
        }
        let alone = work.min(sibling.began.since(now));
        alone + stretched(work - alone, percent)
    }

    /// A CPU has begun to run threads, or has none any more.
    pub(super) fn set_idle(&mut self, at: usize, is_idle: bool, now: Nanos) {
        if self.idle.contains(at) == is_idle {
            return;
        }
        self.idle.set(at, is_idle);
        if is_idle {
            self.falls_asleep(now.max(self.cpus[at].interrupted_until), at);
        }
        let Some((sibling, percent)) = self.sibling(at) else { return };
        let first = at.min(sibling);
        let is_core_idle = is_idle && self.idle.contains(sibling);
        self.idle_cores.set(first, is_core_idle);
        let Some(thread) = self.cpus[sibling].current else { return };
        // Its switch is not stretched.
        let from = now.max(self.cpus[at].began).max(self.cpus[sibling].since);
        let left = self.ends.of(sibling).since(from);
        if left == Nanos(0) {
            return;
        }
        let now_left =
            if is_idle { Nanos(left.0 * percent / 100) } else { stretched(left, percent) };
        self.ends.set(sibling, from + now_left);
        let change = |time: Nanos| time + now_left - left;
        self.counters.busy = change(self.counters.busy);
        let running = self.thread(thread);
        (running.used, running.virtual_run) = (change(running.used), change(running.virtual_run));
    }

    /// The first idle CPU of a range on which a thread may run, if possible of an idle core.
    pub(super) fn idle_in(&self, affinity: Affinity, range: Range<usize>) -> Option<usize> {
        let first = |idle: &CpuSet| match affinity {
            Affinity::Set(set) => idle.first_of_both(set.of(&self.sets), range.clone()),
            _ => idle.first_in(range.clone()),
        };
        let core = self.costs.shared_core_percent.and_then(|_| first(&self.idle_cores));
        core.or_else(|| first(&self.idle))
    }
}

fn stretched(work: Nanos, percent: u64) -> Nanos {
    Nanos(work.0 * 100 / percent)
}
