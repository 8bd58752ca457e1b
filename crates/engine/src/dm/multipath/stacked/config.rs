//! Configuration of a stacked queue: its two kinds of queues, and its kernel variant.
//!
//! The mail of 2016 (Snitzer, "dm: fix excessive dm-mq context switching") is about three places
//! where request-based device mapper used a worker or a softirq for each I/O. Each of them is a
//! field here, and can be restored separately:
//!
//! | field of [`Stacking`] | before | the patch | after | today |
//! |---|---|---|---|---|
//! | `insert` | queued, worker | `blk-core.c`: `async` false | queued, caller | direct |
//! | `run_on_completion` | yes | `dm.c`, `rq_completed`: fix (1) | no | no |
//! | `complete_by` | softirq | `dm.c`, `dm_complete_request`: fix (2) | here | here |

use crate::elevator::ElevatorSpec;
use crate::mq::QueueConfig;

/// Executing context; a world charges the cost of a context switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunBy {
    /// The caller.
    Caller,
    /// A worker (kblockd), which must be woken up.
    Worker,
}

/// Insertion of a clone into the queue of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloneInsert {
    /// Directly to the device, past the lists. If the device is busy, the queue above gets the
    /// request back (commit 396eaf21ee17 of 2018).
    Direct,
    /// Into a list of its hardware queue, which is run then (`blk_mq_insert_request`, with `async`
    /// by the worker). If the device is busy, the clone waits there.
    Queued(RunBy),
}

/// Context in which the original of an ended clone ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompleteBy {
    /// The context of the clone's end (`blk_mq_complete_request`).
    Here,
    /// A softirq, raised for it (`blk_complete_request`). The clone keeps its tag until then.
    Softirq,
}

/// The kernel variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stacking {
    /// Insertion of clones. The mail: `blk_insert_cloned_request` inserted with `async`, "which
    /// forced the use of kblockd"; its patch does not.
    pub insert: CloneInsert,
    /// Whether a worker runs the hardware queues of the upper queue at the end of every original,
    /// even if no request waits there. The mail's fix (1) stops that.
    pub run_on_completion: bool,
    /// Context in which an original ends. The mail's fix (2), "much more important than (1)". A
    /// world must call [`StackedQueue::complete`](super::StackedQueue::complete) in that context.
    pub complete_by: CompleteBy,
}

impl Stacking {
    /// Linux 4.5, before the mail's patch.
    pub const BEFORE: Self = Self {
        insert: CloneInsert::Queued(RunBy::Worker),
        run_on_completion: true,
        complete_by: CompleteBy::Softirq,
    };

    /// With the mail's patch.
    pub const AFTER: Self = Self {
        insert: CloneInsert::Queued(RunBy::Caller),
        run_on_completion: false,
        complete_by: CompleteBy::Here,
    };

    /// Linux today.
    pub const TODAY: Self = Self { insert: CloneInsert::Direct, ..Self::AFTER };
}

/// Configuration of a stacked queue.
#[derive(Clone, Debug)]
pub struct StackedConfig {
    /// The queue for bios. It has no timeout: the paths have.
    pub upper: QueueConfig,
    /// Its elevator.
    pub elevator: ElevatorSpec,
    /// The queue of each path. It accepts all requests of the upper one, and has no elevator,
    /// because clones would bypass it.
    pub lower: QueueConfig,
    /// The kernel variant.
    pub stacking: Stacking,
}

impl StackedConfig {
    /// # Panics
    /// When the lower queues would not accept the requests of the upper one.
    pub(super) fn check(&self) {
        let Self { upper, lower, .. } = self;
        assert!(upper.limits.max_sectors <= lower.limits.max_sectors, "a clone is as long");
        assert!(upper.limits.max_segments <= lower.limits.max_segments, "and has as many pieces");
        assert!(upper.write_cache == lower.write_cache, "the disk has a cache or not");
        assert!(upper.fua == lower.fua, "the upper queue would have to make it of flushes");
    }
}
