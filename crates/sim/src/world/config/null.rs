//! Configuration of a null device and of its stacked queue. Names are those of null_blk's and
//! dm-mq's parameters.

use blockyard_engine::dm::multipath::stacked::Stacking;
use blockyard_engine::mq::QueueConfig;
use blockyard_engine::mq::complete::RqAffinity;
use blockyard_engine::time::Nanos;

/// A null device (`drivers/block/null_blk`).
#[derive(Clone, Copy, Debug)]
pub struct NullConfig {
    /// Size in sectors.
    pub sectors: u64,
    /// Interface: bios, or requests of a queue.
    pub queue_mode: QueueMode,
    /// Completion mode.
    pub irqmode: IrqMode,
    /// Delay of the timer mode.
    pub completion: Nanos,
    /// Hardware queues (null_blk calls them `submit_queues`).
    pub hw_queues: u16,
    /// Depth of each hardware queue.
    pub hw_queue_depth: u32,
    /// Affinity of completions.
    pub rq_affinity: RqAffinity,
    /// Completion rule of a single queue.
    pub completion_rule: CompletionRule,
    /// Cost of the end of a request and its bio.
    pub end: Nanos,
}

/// `queue_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueMode {
    /// 0: bios, which end on submission.
    Bio,
    /// 1: requests of the old single queue; `blk_complete_request` ends them in a softirq.
    Rq,
    /// 2: requests of a multi-queue.
    Mq,
}

/// `irqmode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqMode {
    /// 0: the driver ends the request directly.
    None,
    /// 1: the block layer completes it immediately, as after an interrupt.
    Softirq,
    /// 2: a timer interrupts the issuing CPU.
    Timer,
}

/// Handling of a completion on the right CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionRule {
    /// It calls the driver directly, with any number of queues (Linux 4.5).
    Inline,
    /// With one hardware queue it raises the softirq (since 2018).
    SoftirqIfSingle,
}

/// A queue on the null device's: request-based device mapper with one path.
#[derive(Clone, Copy, Debug)]
pub struct StackConfig {
    /// The upper queue.
    pub upper: QueueConfig,
    /// Variant of the kernel's stacking.
    pub stacking: Stacking,
    /// Whether a completion checks for waiting requests before it calls a worker
    /// (`blk_mq_run_hw_queues` until 2018).
    pub run_looks_first: bool,
    /// Costs.
    pub costs: StackCosts,
}

/// Costs of a stacked queue, in addition to the queue below.
#[derive(Clone, Copy, Debug)]
pub struct StackCosts {
    /// A request of the upper queue, from its bio to its dispatch.
    pub request: Nanos,
    /// Selection of a path, and construction and insertion of the clone.
    pub clone: Nanos,
    /// Part of it under the lock of the paths: one CPU at a time.
    pub path_lock: Nanos,
    /// End of the original, after the end of the clone.
    pub end: Nanos,
    /// Queueing of a work item; the worker's wake-up is extra.
    pub queue_work: Nanos,
}
