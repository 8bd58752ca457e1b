//! A null device of the world, its queue, and the queue that may be stacked on it: all that happens
//! there is what it costs, and on which CPU and in which thread it is done.
//!
//! ```text
//!   task ── bio ──> [upper queue ── clone ──>] queue ── issue ──> device, which has done it
//!                        │  a worker runs it ┘  └ a worker runs it    │
//!                        │                                            v
//!   task <── ended ── original <── here, or softirq <── request <── here, softirq, other CPU
//! ```
//! Work is done by a *context*: a thread, which runs for as long as that takes, or an interrupt,
//! which the CPU pays for. What a context does happens when its turn begins, and whom it wakes runs
//! when that has been paid for. Workers and softirq threads take one request in a turn, so that
//! others can come between.
//!
//! A softirq that is raised in a thread is run by the softirq thread of the CPU (`ksoftirqd`),
//! which has to be woken up; one that is raised in an interrupt is run when that ends
//! (`raise_softirq_irqoff`).
//!
//! What it leaves out: a softirq that a timer tick happens to run before its thread does; cache
//! lines that go from CPU to CPU; page cache, as the null device has nothing to keep.

mod execute;
#[cfg(test)]
mod tests;
mod threads;
mod workers;

use std::collections::VecDeque;

use blockyard_engine::bio::{Bio, Done, IoContext};
use blockyard_engine::dm::multipath::line::{self, GroupSpec, MultipathSpec, PathSpec};
use blockyard_engine::dm::multipath::selector::SelectorSpec;
use blockyard_engine::dm::multipath::stacked::{Dispatched, StackedConfig, StackedQueue};
use blockyard_engine::dm::multipath::{Multipath, PathId};
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::mq::{Issue, QueueConfig, RequestQueue, Submitted};
use blockyard_engine::time::Nanos;

use crate::cpu::{CpuId, ThreadId};
use crate::heap::EventHeap;

use super::super::causes::NullCauses;
use super::super::config::{NullConfig, QueueMode, StackConfig, StackCosts};
use super::super::threads::Threads;
use super::bios::Bios;
use workers::Workers;

/// The only path of a stacked queue.
const PATH: PathId = PathId(0);

/// Who does something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context {
    cpu: CpuId,
    /// A worker of kblockd.
    is_worker: bool,
    /// No thread: what it raises runs when it ends.
    is_interrupt: bool,
}

/// What a softirq has to do.
#[derive(Clone, Copy, Debug)]
enum Softirq {
    /// The device's request has ended.
    Request(Issue),
    /// The clone has, and its original ends.
    Original(Issue),
}

/// What interrupts a CPU.
#[derive(Debug)]
enum Interrupt {
    /// The timer of a request.
    Timer(CpuId, Issue),
    /// Another CPU has ended what this one submitted.
    Call(CpuId, Softirq),
}

/// The queues.
enum Queues {
    /// None: the device takes bios.
    Bios,
    /// The device's.
    One(Box<RequestQueue>),
    /// And one on it.
    Stacked(Box<StackedQueue>),
}

/// A CPU's softirq.
#[derive(Debug, Default)]
struct SoftirqOfCpu {
    thread: Option<ThreadId>,
    raised: VecDeque<Softirq>,
}

/// The device.
///
/// It has 16 fields: the null device, its queues, and the threads and interrupts that run them.
pub(in crate::world) struct Null {
    config: NullConfig,
    stack: Option<StackConfig>,
    queue: QueueConfig,
    queues: Queues,
    workers: Workers,
    softirqs: Vec<SoftirqOfCpu>,
    interrupts: EventHeap<Interrupt>,
    /// When the last CPU that took the lock of the paths gives it back.
    lock_free_at: Nanos,
    bios: Bios,
    /// Requests that the device works on.
    has: u32,
    causes: NullCauses,
    /// Bios of the bio mode that have ended.
    ended: Vec<Done>,
    /// Emptied after each use; kept for their memory.
    issues: Vec<Issue>,
    dispatched: Vec<Dispatched>,
    done: Vec<Done>,
    unparked: Vec<u64>,
}

impl Null {
    pub(super) fn new(
        config: &NullConfig,
        stack: Option<&StackConfig>,
        queue: QueueConfig,
        elevator: &ElevatorSpec,
    ) -> Self {
        let queues = match (stack, config.queue_mode) {
            (Some(stack), _) => {
                let (upper, lower, stacking) = (stack.upper, queue, stack.stacking);
                let elevator = elevator.clone();
                let config = StackedConfig { upper, elevator, lower, stacking };
                Queues::Stacked(Box::new(StackedQueue::new(config, Multipath::new(one_path()))))
            }
            (None, QueueMode::Bio) => Queues::Bios,
            (None, _) => Queues::One(Box::new(RequestQueue::new(queue, elevator))),
        };
        Self {
            config: *config,
            stack: stack.copied(),
            queue,
            queues,
            workers: Workers::new(queue.cpus),
            softirqs: (0..queue.cpus).map(|_| SoftirqOfCpu::default()).collect(),
            interrupts: EventHeap::default(),
            lock_free_at: Nanos(0),
            bios: Bios::default(),
            has: 0,
            causes: NullCauses::default(),
            ended: Vec::new(),
            issues: Vec::new(),
            dispatched: Vec::new(),
            done: Vec::new(),
            unparked: Vec::new(),
        }
    }

    /// When something happens that no thread does.
    pub(super) fn next_event(&self) -> Option<Nanos> {
        let queue = match &self.queues {
            Queues::Bios => None,
            Queues::One(queue) => queue.wake_at(),
            Queues::Stacked(queue) => queue.wake_at(),
        };
        self.interrupts.next_at().into_iter().chain(queue).min()
    }

    /// Bios that have not ended.
    pub(super) fn bios_in_flight(&self) -> usize {
        self.bios.len()
    }

    pub(super) fn is_idle(&self) -> bool {
        match &self.queues {
            Queues::Bios => true,
            Queues::One(queue) => queue.is_idle(),
            Queues::Stacked(queue) => queue.is_idle(),
        }
    }

    /// Counters, those of threads apart.
    fn counted(&self) -> NullCauses {
        match &self.queues {
            Queues::Bios | Queues::One(_) => self.causes,
            Queues::Stacked(queue) => {
                let counters = queue.counters();
                let (clones, no_tag) = (counters.clones, counters.no_tag);
                NullCauses { clones, no_tag, ..self.causes }
            }
        }
    }

    /// Of the queue that bios come to.
    pub(super) fn counters(&self) -> blockyard_engine::mq::Counters {
        match &self.queues {
            Queues::Bios => blockyard_engine::mq::Counters::default(),
            Queues::One(queue) => *queue.counters(),
            Queues::Stacked(queue) => *queue.upper().counters(),
        }
    }

    fn submit(&mut self, now: Nanos, bio: Bio) -> Submitted {
        match &mut self.queues {
            Queues::Bios => unreachable!("the caller has ended it"),
            Queues::One(queue) => queue.submit_bio(now, bio),
            Queues::Stacked(queue) => queue.submit_bio(now, bio),
        }
    }

    fn exit_context(&mut self, now: Nanos, io_context: IoContext) {
        match &mut self.queues {
            Queues::Bios => {}
            Queues::One(queue) => queue.exit_context(now, io_context),
            Queues::Stacked(queue) => queue.exit_context(now, io_context),
        }
    }

    fn take_unparked(&mut self, out: &mut Vec<u64>) {
        match &mut self.queues {
            Queues::Bios => {}
            Queues::One(queue) => queue.take_unparked(out),
            Queues::Stacked(queue) => queue.take_unparked(out),
        }
    }

    fn take_done(&mut self, out: &mut Vec<Done>) {
        out.append(&mut self.ended);
        match &mut self.queues {
            Queues::Bios => {}
            Queues::One(queue) => queue.take_done(out),
            Queues::Stacked(queue) => queue.take_done(out),
        }
    }

    /// Takes the lock of the paths `holds` times, one after the other: who comes while another CPU
    /// has it waits.
    fn lock_paths(&mut self, threads: &mut Threads<'_>, holds: u64, costs: &StackCosts) {
        for _ in 0..holds {
            let at = threads.now() + threads.spent();
            let waits = self.lock_free_at.since(at);
            self.causes.lock_waits_ns += waits.0;
            threads.spend(waits + costs.clone);
            self.lock_free_at = at + waits + costs.path_lock;
        }
    }
}

/// A line with one path and nothing else.
fn one_path() -> MultipathSpec {
    let paths = vec![PathSpec::new("null")];
    MultipathSpec {
        queue_if_no_path: false,
        pg_init_retries: 0,
        pg_init_delay_msecs: None,
        retain_attached_hw_handler: false,
        queue_mode: line::QueueMode::Request,
        init_group: 1,
        groups: vec![GroupSpec { selector: SelectorSpec::RoundRobin, paths }],
    }
}
