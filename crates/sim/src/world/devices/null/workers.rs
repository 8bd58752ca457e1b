//! kblockd: one worker for each CPU, and the work items that run queues
//! (`kblockd_schedule_delayed_work_on`, `kernel/workqueue.c`).
//!
//! ```text
//!   idle ── queued ──> pending ── its worker takes it ──> running ── done ──> idle
//!                                      ^                     │ queued again
//!                                      └──── same worker ────┘
//! ```
//! A pending work item is not queued again, and a running one is queued behind itself on the same
//! worker: it never runs twice at once. So the worker of a hardware queue serves all submitters,
//! one after the other. With one hardware queue it runs on the CPU of the caller, otherwise on the
//! CPUs of its hardware queue in turn, for eight runs each (`blk_mq_hctx_next_cpu`, from memory).

use std::collections::{BTreeMap, VecDeque};

use blockyard_engine::mq::Issue;
use blockyard_engine::mq::QueueConfig;

use crate::cpu::{CpuId, ThreadId};

/// Runs of a hardware queue before it goes to its next CPU (`BLK_MQ_CPU_WORK_BATCH`).
const RUNS_ON_CPU: u32 = 8;

/// Work of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Work {
    /// One hardware queue of the upper queue.
    Upper(u16),
    /// A hardware queue of the path.
    Lower(u16),
}

/// State of a work item.
#[derive(Clone, Copy, Debug, Default)]
struct Item {
    pending: bool,
    /// The CPU of the running worker.
    runs_on: Option<CpuId>,
    /// Index of the current CPU of its hardware queue.
    turn: u16,
    runs: u32,
}

/// A worker.
#[derive(Debug, Default)]
pub(super) struct Kblockd {
    pub(super) thread: Option<ThreadId>,
    queue: VecDeque<Work>,
    /// Running work.
    running: Option<Work>,
    /// Dispatched requests that it has not issued.
    pub(super) issues: VecDeque<Issue>,
}

/// All workers.
#[derive(Debug)]
pub(super) struct Workers {
    by_cpu: Vec<Kblockd>,
    items: BTreeMap<Work, Item>,
}

impl Workers {
    pub(super) fn new(cpus: u16) -> Self {
        let by_cpu = (0..cpus).map(|_| Kblockd::default()).collect();
        Self { by_cpu, items: BTreeMap::new() }
    }

    pub(super) fn of(&mut self, cpu: CpuId) -> &mut Kblockd {
        &mut self.by_cpu[usize::from(cpu.0)]
    }

    /// The threads of all workers.
    pub(super) fn threads(&self) -> impl Iterator<Item = ThreadId> {
        self.by_cpu.iter().filter_map(|worker| worker.thread)
    }

    /// Queues a work item on behalf of a CPU; returns the CPU whose worker must be woken, or `None`
    /// if the item was pending.
    pub(super) fn queue(&mut self, work: Work, queue: &QueueConfig, by: CpuId) -> Option<CpuId> {
        let item = self.items.entry(work).or_default();
        if std::mem::replace(&mut item.pending, true) {
            return None;
        }
        let cpu = item.runs_on.unwrap_or_else(|| item.next_cpu(work, queue, by));
        self.of(cpu).queue.push_back(work);
        Some(cpu)
    }

    /// The next work of a CPU's worker.
    pub(super) fn take(&mut self, cpu: CpuId) -> Option<Work> {
        let work = self.of(cpu).queue.pop_front()?;
        let item = self.items.get_mut(&work).expect("it was queued");
        (item.pending, item.runs_on) = (false, Some(cpu));
        self.of(cpu).running = Some(work);
        Some(work)
    }

    /// Ends the current work.
    pub(super) fn end(&mut self, cpu: CpuId) {
        if let Some(work) = self.of(cpu).running.take() {
            self.items.get_mut(&work).expect("it was queued").runs_on = None;
        }
    }
}

impl Item {
    fn next_cpu(&mut self, work: Work, queue: &QueueConfig, by: CpuId) -> CpuId {
        if queue.hw_queues == 1 {
            return by;
        }
        let (Work::Upper(number) | Work::Lower(number)) = work;
        let of_it = |cpu: &u16| queue.hctx_of(*cpu) == number;
        let cpus = || (0..queue.cpus).filter(of_it);
        let count = u16::try_from(cpus().count()).expect("CPUs are few");
        if self.runs == RUNS_ON_CPU {
            (self.runs, self.turn) = (0, (self.turn + 1) % count.max(1));
        }
        self.runs += 1;
        cpus().nth(usize::from(self.turn)).map_or(by, CpuId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: [CpuId; 4] = [CpuId(0), CpuId(1), CpuId(2), CpuId(3)];

    fn queue(hw_queues: u16) -> QueueConfig {
        QueueConfig { cpus: 4, hw_queues, ..QueueConfig::default() }
    }

    #[test]
    fn work_that_waits_or_runs_stays_with_its_worker() {
        let mut workers = Workers::new(4);
        let one = queue(1);
        let work = Work::Lower(0);
        assert_eq!(workers.queue(work, &one, CPU[2]), Some(CPU[2]));
        assert_eq!(workers.queue(work, &one, CPU[1]), None, "the item is pending");
        assert_eq!(workers.take(CPU[2]), Some(work));
        assert_eq!(workers.queue(work, &one, CPU[1]), Some(CPU[2]), "never twice at once");
        assert_eq!(workers.take(CPU[1]), None);
        workers.end(CPU[2]);
        assert_eq!(workers.take(CPU[2]), Some(work));
        workers.end(CPU[2]);
        assert_eq!(workers.queue(work, &one, CPU[1]), Some(CPU[1]));
    }

    #[test]
    fn several_hardware_queues_stay_on_their_cpus_and_take_turns() {
        let mut workers = Workers::new(4);
        let two = queue(2);
        let mut cpus = Vec::new();
        for _ in 0..18 {
            let cpu = workers.queue(Work::Lower(1), &two, CPU[0]).unwrap();
            assert_eq!(workers.take(cpu), Some(Work::Lower(1)));
            workers.end(cpu);
            cpus.push(cpu);
        }
        assert!(cpus[..8].iter().all(|cpu| *cpu == CPU[2]));
        assert!(cpus[8..16].iter().all(|cpu| *cpu == CPU[3]));
        assert_eq!(cpus[16], CPU[2]);
    }
}
