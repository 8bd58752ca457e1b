//! The threads of a null device: kblockd's workers, and those that run softirqs.

use blockyard_engine::time::Nanos;

use super::super::super::causes::NullCauses;
use super::super::super::machine::Machine;
use super::super::super::thread::{Kind, Turn};
use super::super::super::threads::Threads;
use super::super::super::trace::Wait;
use super::workers::Work;
use super::{Context, Null};
use crate::cpu::{Affinity, CpuId};

impl Null {
    /// Spawns a worker and a softirq thread for each CPU, asleep.
    pub(in crate::world) fn spawn(&mut self, machine: &mut Machine<'_>) {
        for cpu in (0..machine.config.topology.cpus()).map(CpuId) {
            // kblockd has WQ_HIGHPRI.
            let worker = machine.threads.spawn_urgent(Kind::Kblockd(cpu), Affinity::Cpu(cpu));
            self.workers.of(cpu).thread = Some(worker);
            let softirq = machine.threads.spawn_asleep(Kind::Softirq(cpu), Affinity::Cpu(cpu));
            self.softirqs[usize::from(cpu.0)].thread = Some(softirq);
        }
    }

    /// Turn of a worker: issue a request, run the next queue, or sleep.
    pub(in crate::world) fn run_worker(&mut self, machine: &mut Machine<'_>, cpu: CpuId) -> Turn {
        let by = Context { cpu, is_worker: true, is_interrupt: false };
        loop {
            if let Some(issue) = self.workers.of(cpu).issues.pop_front() {
                self.issue(machine, by, issue);
                return Turn::Run(machine.threads.take_spent());
            }
            self.workers.end(cpu);
            match self.workers.take(cpu) {
                None => return Turn::Block(Wait::Work),
                Some(Work::Upper(_)) => self.run_queues(machine, by),
                Some(Work::Lower(hctx)) => self.run_path(machine, by, hctx),
            }
            let spent = machine.threads.take_spent();
            if spent > Nanos(0) {
                return Turn::Run(spent);
            }
        }
    }

    /// Turn of a softirq thread: handle one raised item, or sleep.
    pub(in crate::world) fn run_softirqs(&mut self, machine: &mut Machine<'_>, cpu: CpuId) -> Turn {
        let by = Context { cpu, is_worker: false, is_interrupt: false };
        let raised = &mut self.softirqs[usize::from(cpu.0)].raised;
        let Some(what) = raised.pop_front() else { return Turn::Block(Wait::Work) };
        self.run_softirq(machine, by, what);
        if self.stack.is_none() {
            self.run_queues(machine, by);
        }
        Turn::Run(machine.threads.take_spent())
    }

    /// Counters, including those of the threads.
    pub(in crate::world) fn causes(&self, threads: &Threads<'_>) -> NullCauses {
        let mut causes = self.counted();
        for worker in self.workers.threads() {
            causes.workers = causes.workers + threads.cpus.switches_of(worker);
        }
        for thread in self.softirqs.iter().filter_map(|softirq| softirq.thread) {
            causes.softirq_threads = causes.softirq_threads + threads.cpus.switches_of(thread);
        }
        causes
    }
}
