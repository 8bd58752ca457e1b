//! What a stacked queue is told: its two kinds of queues, and which kernel's way it goes.
//!
//! The mail of 2016 (Snitzer, "dm: fix excessive dm-mq context switching") is about three places
//! where request-based device mapper went through a worker or a softirq for each I/O. Each of them
//! is a field, so that each can be put back by itself:
//!
//! | field of [`Stacking`] | before | the patch | after | today |
//! |---|---|---|---|---|
//! | `insert` | queued, worker | `blk-core.c`: `async` false | queued, caller | direct |
//! | `run_on_completion` | yes | `dm.c`, `rq_completed`: fix (1) | no | no |
//! | `complete_by` | softirq | `dm.c`, `dm_complete_request`: fix (2) | here | here |

use crate::elevator::ElevatorSpec;
use crate::mq::QueueConfig;

/// Who does something: where it costs a context switch, a world charges it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunBy {
    /// Whoever called.
    Caller,
    /// A worker (kblockd), which has to be woken up.
    Worker,
}

/// How a clone gets into the queue of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloneInsert {
    /// Past its lists, straight to the device. If that is busy the queue above has the request back
    /// (commit 396eaf21ee17 of 2018).
    Direct,
    /// Into a list of its hardware queue, which is run then (`blk_mq_insert_request` with `async`
    /// for the worker). If the device is busy the clone waits there.
    Queued(RunBy),
}

/// In which context the original of an ended clone ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompleteBy {
    /// Where the clone ended (`blk_mq_complete_request`).
    Here,
    /// In a softirq, which is raised for it (`blk_complete_request`). The clone keeps its tag as
    /// long.
    Softirq,
}

/// The kernel's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stacking {
    /// How a clone gets into the queue of its path. The mail: `blk_insert_cloned_request` inserted
    /// with `async`, "which forced the use of kblockd"; its patch does not.
    pub insert: CloneInsert,
    /// A worker runs the hardware queues of the upper queue whenever an original ends, whether
    /// something waits there or not. The mail's fix (1) stops that.
    pub run_on_completion: bool,
    /// The context in which an original ends. The mail's fix (2), "much more important than (1)".
    /// A world that is to honour it calls [`StackedQueue::complete`](super::StackedQueue::complete)
    /// in that context.
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

    /// As it is today.
    pub const TODAY: Self = Self { insert: CloneInsert::Direct, ..Self::AFTER };
}

/// A stacked queue.
#[derive(Clone, Debug)]
pub struct StackedConfig {
    /// The queue that bios come to. It has no timeout: the paths have.
    pub upper: QueueConfig,
    /// Its elevator.
    pub elevator: ElevatorSpec,
    /// The queue of each path. It takes whatever the upper one dispatches, and has no elevator:
    /// clones would go past it.
    pub lower: QueueConfig,
    /// The kernel's way.
    pub stacking: Stacking,
}

impl StackedConfig {
    /// # Panics
    /// When the lower queues would not take what the upper one gives them.
    pub(super) fn check(&self) {
        let Self { upper, lower, .. } = self;
        assert!(upper.limits.max_sectors <= lower.limits.max_sectors, "a clone is as long");
        assert!(upper.limits.max_segments <= lower.limits.max_segments, "and has as many pieces");
        assert!(upper.write_cache == lower.write_cache, "the disk has a cache or not");
        assert!(upper.fua == lower.fua, "the upper queue would have to make it of flushes");
    }
}
