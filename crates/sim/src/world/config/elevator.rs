//! Costs of a queue's elevator, and its lock.

use blockyard_engine::time::Nanos;

/// CPU time of an elevator's work on a request: look-up for a merge, insertion, dispatch and
/// completion. The engine counts the steps
/// ([`RequestQueue::steps`](blockyard_engine::mq::RequestQueue::steps)).
#[derive(Clone, Copy, Debug, Default)]
pub struct ElevatorCosts {
    /// A step: a visit of a list, of a queue, or of one level of a tree. Zero: all work is free,
    /// and no lock is waited for.
    pub step: Nanos,
    /// The lock under which the work is done.
    pub lock: ElevatorLock,
    /// Additional time of work that has waited for the lock, whose cache line comes from another
    /// CPU while others ask for it.
    pub contended: Nanos,
}

/// Lock of an elevator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ElevatorLock {
    /// None: all CPUs work at the same time.
    #[default]
    None,
    /// A single one (`queue_lock`, `dd->lock`, `bfqd->lock`).
    Queue,
    /// A lock for each hardware queue (`hctx->lock`).
    HardwareQueue,
    /// A single one that nobody waits for, as in the patches for mq-deadline of January 2024: new
    /// requests go to a list with a short lock, and the CPU that dispatches takes them from there;
    /// others leave the dispatch to it, and skip look-ups for merges. For a null device only.
    Deferred,
}
