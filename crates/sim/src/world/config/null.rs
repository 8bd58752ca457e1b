//! What a null device of the world is like, and the queue that may be stacked on it. Names are
//! those of null_blk's parameters, and of dm-mq's.

use blockyard_engine::dm::multipath::stacked::Stacking;
use blockyard_engine::mq::QueueConfig;
use blockyard_engine::mq::complete::RqAffinity;
use blockyard_engine::time::Nanos;

/// A null device (`drivers/block/null_blk`).
#[derive(Clone, Copy, Debug)]
pub struct NullConfig {
    /// Sectors that it has.
    pub sectors: u64,
    /// What it takes: bios, or requests of which queue.
    pub queue_mode: QueueMode,
    /// How it says that a request is done.
    pub irqmode: IrqMode,
    /// With the timer: after how long.
    pub completion: Nanos,
    /// Hardware queues (null_blk calls them `submit_queues`).
    pub hw_queues: u16,
    /// Requests that each of them takes.
    pub hw_queue_depth: u32,
    /// Where a request ends that was submitted elsewhere.
    pub rq_affinity: RqAffinity,
    /// Since when a single queue takes the softirq.
    pub completion_rule: CompletionRule,
    /// To end a request and its bio.
    pub end: Nanos,
}

/// `queue_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueMode {
    /// 0: bios, which end where they are submitted.
    Bio,
    /// 1: requests of the old single queue; `blk_complete_request` ends them in a softirq.
    Rq,
    /// 2: requests of a multi-queue.
    Mq,
}

/// `irqmode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqMode {
    /// 0: the driver ends the request at once, itself.
    None,
    /// 1: it has the block layer complete it, at once, as if an interrupt had said so.
    Softirq,
    /// 2: a timer interrupts the CPU that issued it.
    Timer,
}

/// What the block layer does with a completion on the right CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionRule {
    /// It calls the driver at once, however many queues there are (Linux 4.5).
    Inline,
    /// With one hardware queue it raises the softirq (since 2018).
    SoftirqIfSingle,
}

/// A queue on the null device's: request-based device mapper with one path.
#[derive(Clone, Copy, Debug)]
pub struct StackConfig {
    /// The upper queue.
    pub upper: QueueConfig,
    /// The kernel's way.
    pub stacking: Stacking,
    /// Who is to run the upper queue because a clone has ended looks whether something waits there
    /// first, and calls no worker if nothing does (`blk_mq_run_hw_queues` until 2018).
    pub run_looks_first: bool,
    /// What it costs.
    pub costs: StackCosts,
}

/// What a stacked queue costs, on top of the queue below.
#[derive(Clone, Copy, Debug)]
pub struct StackCosts {
    /// A request of the upper queue, from its bio to its dispatch.
    pub request: Nanos,
    /// To choose a path, and to make the clone and insert it.
    pub clone: Nanos,
    /// Of it, under the lock of the paths: one CPU at a time.
    pub path_lock: Nanos,
    /// To end the original, behind the end of the clone.
    pub end: Nanos,
    /// To put an item on a work queue; waking its worker is extra.
    pub queue_work: Nanos,
}
