//! A null device of the world, its queue, and an optional stacked queue: the model covers the
//! costs, CPUs and threads of the work.
//!
//! ```text
//!   task ── bio ──> [upper queue ── clone ──>] queue ── issue ──> device, which has done it
//!                        │  a worker runs it ┘  └ a worker runs it    │
//!                        │                                            v
//!   task <── ended ── original <── here, or softirq <── request <── here, softirq, other CPU
//! ```
//! A *context* works: a thread, which runs for the cost of the work, or an interrupt, which the CPU
//! pays for. Work takes effect at the start of the turn; woken threads run when it is paid for.
//! Workers and softirq threads handle one request per turn, so that others can run in between.
//!
//! A softirq raised in a thread runs in the CPU's softirq thread (`ksoftirqd`), which must be
//! woken; a softirq raised in an interrupt runs at its end (`raise_softirq_irqoff`).
//!
//! Left out: softirqs that a timer tick runs before their thread; cache line transfers between
//! CPUs; the page cache, because the null device stores nothing.

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

use super::super::causes::{ElevatorCounters, NullCauses};
use super::super::config::{NullConfig, QueueMode, StackConfig, StackCosts};
use super::super::threads::Threads;
use super::bios::Bios;
use super::elevator::{ElevatorWork, Turn as ElevatorTurn};
use workers::Workers;

/// The only path of a stacked queue.
const PATH: PathId = PathId(0);

/// The context of work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context {
    cpu: CpuId,
    /// A worker of kblockd.
    is_worker: bool,
    /// An interrupt: its softirqs run at its end.
    is_interrupt: bool,
}

/// Work of a softirq.
#[derive(Clone, Copy, Debug)]
enum Softirq {
    /// Ends the device's request.
    Request(Issue),
    /// Ends the original of an ended clone.
    Original(Issue),
}

/// An interrupt of a CPU.
#[derive(Debug)]
enum Interrupt {
    /// The timer of a request.
    Timer(CpuId, Issue),
    /// Another CPU has ended a request submitted on this one.
    Call(CpuId, Softirq),
    /// This CPU goes on with its dispatch.
    Dispatch(CpuId),
}

/// The queues.
enum Queues {
    /// No queue: the device accepts bios.
    Bios,
    /// The device's queue.
    One(Box<RequestQueue>),
    /// The device's queue and a stacked one.
    Stacked(Box<StackedQueue>),
}

/// Softirq of a CPU.
#[derive(Debug, Default)]
struct SoftirqOfCpu {
    thread: Option<ThreadId>,
    raised: VecDeque<Softirq>,
}

/// The device.
// 17 fields: the null device, its queues, and the threads and interrupts that run them.
pub(in crate::world) struct Null {
    config: NullConfig,
    stack: Option<StackConfig>,
    queue: QueueConfig,
    queues: Queues,
    /// Work of the elevator, which is that of the upper queue if there is one.
    work: ElevatorWork,
    workers: Workers,
    softirqs: Vec<SoftirqOfCpu>,
    interrupts: EventHeap<Interrupt>,
    /// Time at which the lock of the paths is released.
    lock_free_at: Nanos,
    bios: Bios,
    /// Number of requests at the device.
    at_device: u32,
    causes: NullCauses,
    /// Ended bios of bio mode.
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
        (elevator, work): (&ElevatorSpec, ElevatorWork),
    ) -> Self {
        let queues = match (stack, config.queue_mode) {
            (Some(stack), _) => {
                let upper = stack.upper;
                let lower = queue;
                let stacking = stack.stacking;
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
            work,
            workers: Workers::new(queue.cpus),
            softirqs: (0..queue.cpus).map(|_| SoftirqOfCpu::default()).collect(),
            interrupts: EventHeap::default(),
            lock_free_at: Nanos(0),
            bios: Bios::default(),
            at_device: 0,
            causes: NullCauses::default(),
            ended: Vec::new(),
            issues: Vec::new(),
            dispatched: Vec::new(),
            done: Vec::new(),
            unparked: Vec::new(),
        }
    }

    /// Time of the next event outside threads.
    pub(super) fn next_event(&self) -> Option<Nanos> {
        let queue = match &self.queues {
            Queues::Bios => None,
            Queues::One(queue) => queue.wake_at(),
            Queues::Stacked(queue) => queue.wake_at(),
        };
        // While another CPU dispatches, the queue has to wait.
        let queue = queue.map(|at| at.max(self.work.deferred_until()));
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

    /// Counters, without those of threads.
    fn counted(&self) -> NullCauses {
        match &self.queues {
            Queues::Bios | Queues::One(_) => self.causes,
            Queues::Stacked(queue) => {
                let counters = queue.counters();
                let clones = counters.clones;
                let no_tag = counters.no_tag;
                NullCauses { clones, no_tag, ..self.causes }
            }
        }
    }

    /// Counters of the queue that receives bios.
    pub(super) fn counters(&self) -> blockyard_engine::mq::Counters {
        match &self.queues {
            Queues::Bios => blockyard_engine::mq::Counters::default(),
            Queues::One(queue) => *queue.counters(),
            Queues::Stacked(queue) => *queue.upper().counters(),
        }
    }

    pub(super) fn elevator_counters(&self) -> ElevatorCounters {
        self.work.counters()
    }

    /// The context pays for the elevator's work since the last call.
    fn pay_elevator(&mut self, threads: &mut Threads<'_>, cpu: CpuId) {
        let Some((steps, hctx)) = self.steps(cpu) else { return };
        let cost = self.work.take(steps, threads.now() + threads.spent(), hctx);
        threads.spend(cost);
    }

    /// The context pays for the elevator's work on a completion.
    fn pay_completion(&mut self, threads: &mut Threads<'_>, cpu: CpuId) {
        let Some((steps, hctx)) = self.steps(cpu) else { return };
        let cost = self.work.complete(steps, threads.now() + threads.spent(), hctx);
        threads.spend(cost);
    }

    /// Steps of the queue that receives bios, and its hardware queue of a CPU.
    fn steps(&self, cpu: CpuId) -> Option<(u64, u16)> {
        match &self.queues {
            Queues::Bios => None,
            Queues::One(queue) => Some((queue.steps(), self.queue.hctx_of(cpu.0))),
            Queues::Stacked(queue) => {
                let upper = self.stack.map_or(0, |stack| stack.upper.hctx_of(cpu.0));
                Some((queue.upper().steps(), upper))
            }
        }
    }

    /// Whether this CPU dispatches from the device's only queue now.
    fn dispatches(&mut self, threads: &mut Threads<'_>, cpu: CpuId) -> bool {
        let Queues::One(queue) = &self.queues else { return false };
        let cost = self.work.add(queue.steps(), threads.now() + threads.spent());
        threads.spend(cost);
        let at = threads.now() + threads.spent();
        match self.work.turn(at, cpu) {
            ElevatorTurn::Dispatch => true,
            ElevatorTurn::Leave => false,
            ElevatorTurn::Call(holder, until) => {
                self.interrupts.schedule(until, Interrupt::Dispatch(holder));
                false
            }
        }
    }

    fn submit(&mut self, at: Nanos, now: Nanos, bio: Bio) -> Submitted {
        match &mut self.queues {
            Queues::Bios => unreachable!("the caller has ended it"),
            Queues::One(queue) => {
                queue.skip_merge_lookups(self.work.skips_merges(at));
                queue.submit_bio(now, bio)
            }
            Queues::Stacked(queue) => queue.submit_bio(now, bio),
        }
    }

    fn plug(&mut self, io_context: IoContext) {
        match &mut self.queues {
            Queues::Bios => {}
            Queues::One(queue) => queue.plug(io_context),
            Queues::Stacked(queue) => queue.plug(io_context),
        }
    }

    fn unplug(&mut self, now: Nanos, io_context: IoContext) {
        match &mut self.queues {
            Queues::Bios => {}
            Queues::One(queue) => queue.unplug(now, io_context),
            Queues::Stacked(queue) => queue.unplug(now, io_context),
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

    /// Takes the lock of the paths `holds` times in sequence; waits while another CPU holds it.
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

/// A line with a single path.
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
