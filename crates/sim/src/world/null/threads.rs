//! The threads of a null device: kblockd's workers, and those that run softirqs.

use blockyard_engine::time::Nanos;
use blockyard_workload::program::Task;

use super::super::thread::Kind;
use super::super::trace::{Observer, Wait};
use super::super::{Turn, World};
use super::{Context, NullCauses, Work};
use crate::cpu::{Affinity, CpuId};

impl<T: Task, O: Observer> World<'_, T, O> {
    /// Makes a worker and a softirq thread for each CPU. They sleep.
    pub(in crate::world) fn spawn_null(&mut self) {
        if self.null.is_none() {
            return;
        }
        for cpu in (0..self.config.topology.cpus()).map(CpuId) {
            // kblockd has WQ_HIGHPRI.
            let worker = self.cpus.spawn_urgent(cpu);
            self.put_to_sleep(Kind::Kblockd(cpu), worker);
            self.null().workers.of(cpu).thread = Some(worker);
            let softirq = self.cpus.spawn(Affinity::Cpu(cpu));
            self.put_to_sleep(Kind::Softirq(cpu), softirq);
            self.null().softirqs[usize::from(cpu.0)].thread = Some(softirq);
        }
    }

    /// The turn of a worker: a request to the device, or the next queue to run, or sleep.
    pub(in crate::world) fn run_worker(&mut self, cpu: CpuId) -> Turn {
        let by = Context { cpu, is_worker: true, is_interrupt: false };
        loop {
            let workers = &mut self.null().workers;
            if let Some(issue) = workers.of(cpu).issues.pop_front() {
                self.issue(by, issue);
                return Turn::Run(self.null().take_spent());
            }
            workers.end(cpu);
            match workers.take(cpu) {
                None => return Turn::Block(Wait::Work),
                Some(Work::Upper(_)) => self.run_queues(by),
                Some(Work::Lower(hctx)) => self.run_path(by, hctx),
            }
            let spent = self.null().take_spent();
            if spent > Nanos(0) {
                return Turn::Run(spent);
            }
        }
    }

    /// The turn of a softirq thread: one thing that was raised, or sleep.
    pub(in crate::world) fn run_softirqs(&mut self, cpu: CpuId) -> Turn {
        let by = Context { cpu, is_worker: false, is_interrupt: false };
        let raised = &mut self.null().softirqs[usize::from(cpu.0)].raised;
        let Some(what) = raised.pop_front() else { return Turn::Block(Wait::Work) };
        self.run_softirq(by, what);
        if self.null().stack.is_none() {
            self.run_queues(by);
        }
        Turn::Run(self.null().take_spent())
    }

    /// Counters, with those of the threads.
    pub(in crate::world) fn null_causes(&mut self) -> Option<NullCauses> {
        let null = self.null.as_mut()?;
        let mut causes = null.causes();
        for (is_worker, thread) in null.threads() {
            let switches = self.cpus.switches_of(thread);
            let of = match is_worker {
                true => &mut causes.workers,
                false => &mut causes.softirq_threads,
            };
            *of = *of + switches;
        }
        Some(causes)
    }
}
