//! A queue over queues: request-based multipath (`drivers/md/dm-rq.c`, `dm-mpath.c`).
//!
//! Bios go to the upper [`RequestQueue`], which merges and schedules. Each dispatched request gets
//! a path and goes as a *clone* to the queue of that path, which does not schedule.
//!
//! ```text
//!            upper queue                    path's queue
//!   bio ─> merge, elevator ─ dispatch ─ path? ─ clone ─> tag? ─> device
//!     ^      ^         ^                  │                │       │
//!     │      │         └───────────<──────┴─── no, busy ───┴───<───┤ busy
//!     │      │         └ requeued <─ the path failed, or a rest <──┤
//!     └──────┴──────── ends <─ done, or an error of the disk <─────┘
//! ```
//! *Busy*: a request that its path refuses goes back to the upper queue, and later requests go on
//! merging there. *No path*: nothing is dispatched while the line says `queue_if_no_path`;
//! otherwise requests end with an error.
//!
//! *Partial completion*: a path did the first sectors of a clone, and failed or stopped. The bios
//! in them end successfully at once, and the rest is requeued, for any path. A rest of the data of
//! a flush sequence ends with the sequence. All paths lead to one disk with one cache, so a flush
//! goes to any of them and makes stable what was written through another.
//!
//! Executing contexts are data ([`Stacking`]): the struct has no threads. A world gives each
//! [`Dispatched::Issue`] to the device of its path, lets a worker call [`StackedQueue::run_path`]
//! for each [`Dispatched::Run`], and calls [`StackedQueue::complete`] in the context of
//! [`Stacking::complete_by`]. It dispatches after each event that could enable it, and at
//! [`StackedQueue::wake_at`].

mod config;
mod control;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;

pub use config::{CloneInsert, CompleteBy, RunBy, StackedConfig, Stacking};

use super::{Choice, Ended, Multipath, PathId, PathIo};
use crate::bio::{Bio, BlkStatus, Done, IoContext, Sector};
use crate::elevator::{ElevatorSpec, none};
use crate::mq::stack::EndedClone;
use crate::mq::{Busy, Issue, RequestQueue, Submitted};
use crate::request::Tag;
use crate::time::Nanos;

/// Action for a dispatched request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispatched {
    /// The device of this path gets a clone: [`StackedQueue::complete`] or [`StackedQueue::busy`]
    /// follows.
    Issue {
        /// The path.
        path: PathId,
        /// The clone.
        issue: Issue,
    },
    /// A clone waits at this hardware queue for a worker, which calls [`StackedQueue::run_path`].
    /// The action is not repeated before that call.
    Run {
        /// The path.
        path: PathId,
        /// The hardware queue.
        hctx: u16,
    },
}

/// A device's answer to a clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Status.
    pub status: BlkStatus,
    /// Number of completed bytes, from the first on. Fewer than all with a good status: the path
    /// stopped there, and the rest is requested again.
    pub done_bytes: u64,
}

impl Answer {
    /// The answer for a fully completed clone.
    #[must_use]
    pub fn done(issue: &Issue) -> Self {
        Self { status: BlkStatus::Ok, done_bytes: issue.len.bytes() }
    }

    /// The answer for a failed clone without completed bytes.
    #[must_use]
    pub fn failed(status: BlkStatus) -> Self {
        Self { status, done_bytes: 0 }
    }
}

/// State of an original after its clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Original {
    /// All of its bios have ended.
    Ended,
    /// The original, or its rest, is in the upper queue again.
    Requeued,
}

/// Consequence of a clone's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// State of the original.
    pub original: Original,
    /// Whether a worker (kblockd) must run the queue ([`StackedQueue::dispatch`]): because requests
    /// wait, or because of [`Stacking::run_on_completion`].
    pub run: bool,
}

/// Counters of the stacking. The queues have their own: [`StackedQueue::upper`],
/// [`StackedQueue::lower`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackedCounters {
    /// Created clones.
    pub clones: u64,
    /// Requests returned because their path had no tag.
    pub no_tag: u64,
    /// Requests returned because the device of their path was busy.
    pub busy: u64,
    /// Requests that a path completed partly.
    pub partial: u64,
    /// Requeued requests and rests.
    pub requeued: u64,
    /// Requests that failed because there was no path.
    pub no_path: u64,
    /// Requested workers ([`Dispatched::Run`]).
    pub runs: u64,
}

/// The queue of a path.
struct PathQueue {
    queue: RequestQueue,
    /// By hardware queue: whether a requested worker has not run yet.
    called: Vec<bool>,
}

/// A queue over the queues of the paths.
pub struct StackedQueue {
    config: StackedConfig,
    upper: RequestQueue,
    paths: Vec<PathQueue>,
    multipath: Multipath,
    /// I/O of the multipath policy for each issued request, by tag.
    ios: Vec<Option<PathIo>>,
    /// Scratch buffer, kept for its memory.
    issues: Vec<Issue>,
    late: Vec<Tag>,
    counters: StackedCounters,
}

impl StackedQueue {
    /// Creates a queue over the paths of a line.
    ///
    /// # Panics
    /// When the lower queues would not accept the requests of the upper one: limits, cache or FUA
    /// differ.
    #[must_use]
    pub fn new(mut config: StackedConfig, multipath: Multipath) -> Self {
        config.check();
        config.upper.timeout = None;
        let tags = usize::from(config.upper.hw_queues) * config.upper.queue_depth as usize;
        let lower = || PathQueue {
            queue: RequestQueue::new(config.lower, &ElevatorSpec::of(&none::NONE)),
            called: alloc::vec![false; usize::from(config.lower.hw_queues)],
        };
        Self {
            upper: RequestQueue::new(config.upper, &config.elevator),
            paths: multipath.paths().map(|_| lower()).collect(),
            multipath,
            ios: core::iter::repeat_n(None, tags).collect(),
            issues: Vec::new(),
            late: Vec::new(),
            counters: StackedCounters::default(),
            config,
        }
    }

    /// Submits a bio, as [`RequestQueue::submit_bio`].
    pub fn submit_bio(&mut self, now: Nanos, bio: Bio) -> Submitted {
        self.upper.submit_bio(now, bio)
    }

    /// As [`RequestQueue::plug`].
    pub fn plug(&mut self, io_context: IoContext) {
        self.upper.plug(io_context);
    }

    /// As [`RequestQueue::unplug`].
    pub fn unplug(&mut self, now: Nanos, io_context: IoContext) {
        self.upper.unplug(now, io_context);
    }

    /// As [`RequestQueue::exit_context`].
    pub fn exit_context(&mut self, now: Nanos, io_context: IoContext) {
        self.upper.exit_context(now, io_context);
    }

    /// Dispatches as many requests as the paths take now, in order. `cpu` is the dispatching CPU: a
    /// clone belongs to it, regardless of the original's submitter (`blk_mq_alloc_request`).
    pub fn dispatch(&mut self, now: Nanos, cpu: u16, out: &mut Vec<Dispatched>) {
        if self.config.stacking.insert != CloneInsert::Direct {
            self.run_paths(now, out);
        }
        while !self.is_stalled() {
            self.upper.dispatch_at_most(now, 1, &mut self.issues);
            let Some(issue) = self.issues.pop() else { return };
            self.map(now, cpu, &issue, out);
        }
    }

    /// Whether no path is live and requests wait for one: in the elevator, where they go on
    /// merging.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        !self.multipath.has_path() && self.multipath.queues()
    }

    /// Chooses a request's path (`multipath_clone_and_map`).
    fn map(&mut self, now: Nanos, cpu: u16, original: &Issue, out: &mut Vec<Dispatched>) {
        let len_bytes = original.len.bytes();
        let path = match self.multipath.choose(now, cpu, len_bytes) {
            Choice::Path(path) => path,
            Choice::Queue => unreachable!("nothing is dispatched while there is no path"),
            Choice::Fail => {
                self.counters.no_path += 1;
                return self.upper.complete(now, original.tag, BlkStatus::IoError);
            }
        };
        let mut clone = *original;
        clone.origin.cpu = cpu;
        if self.insert(now, path, &clone, out) == Err(Busy) {
            self.counters.no_tag += 1;
            return self.upper.busy(now, original.tag);
        }
        self.counters.clones += 1;
        let io = self.multipath.started(now, path, len_bytes);
        let before = self.io(original.tag).replace(io);
        assert!(before.is_none(), "a request has one clone");
    }

    /// Inserts a clone into the queue of its path (`blk_insert_cloned_request`).
    fn insert(
        &mut self,
        now: Nanos,
        path: PathId,
        clone: &Issue,
        out: &mut Vec<Dispatched>,
    ) -> Result<(), Busy> {
        let lower = &mut self.paths[usize::from(path.0)].queue;
        match self.config.stacking.insert {
            CloneInsert::Direct => {
                let issue = lower.issue_directly(now, clone)?;
                out.push(Dispatched::Issue { path, issue });
            }
            CloneInsert::Queued(by) => {
                let hctx = lower.insert_clone(now, clone)?;
                self.run_hctx(now, (path, hctx), by, out);
            }
        }
        Ok(())
    }

    /// Runs a hardware queue of a path, or requests a worker for it.
    fn run_hctx(
        &mut self,
        now: Nanos,
        (path, hctx): (PathId, u16),
        by: RunBy,
        out: &mut Vec<Dispatched>,
    ) {
        if by == RunBy::Caller {
            return self.run_path(now, path, hctx, out);
        }
        let called = &mut self.paths[usize::from(path.0)].called[usize::from(hctx)];
        if !core::mem::replace(called, true) {
            self.counters.runs += 1;
            out.push(Dispatched::Run { path, hctx });
        }
    }

    /// Retries clones that a busy device refused.
    fn run_paths(&mut self, now: Nanos, out: &mut Vec<Dispatched>) {
        let CloneInsert::Queued(by) = self.config.stacking.insert else { return };
        for path in self.multipath.paths() {
            let hctxs = 0..self.config.lower.hw_queues;
            for hctx in hctxs {
                if self.paths[usize::from(path.0)].queue.is_runnable(now, hctx) {
                    self.run_hctx(now, (path, hctx), by, out);
                }
            }
        }
    }

    /// Runs a hardware queue in the worker of a [`Dispatched::Run`].
    pub fn run_path(&mut self, now: Nanos, path: PathId, hctx: u16, out: &mut Vec<Dispatched>) {
        let PathQueue { queue, called } = &mut self.paths[usize::from(path.0)];
        called[usize::from(hctx)] = false;
        queue.run_hctx(now, hctx, &mut self.issues);
        out.extend(self.issues.drain(..).map(|issue| Dispatched::Issue { path, issue }));
    }

    /// Bios of a clone at its device, in sector order; as [`RequestQueue::bios`].
    ///
    /// # Panics
    /// When the device does not have a clone of this tag.
    pub fn bios(&self, path: PathId, tag: Tag) -> impl Iterator<Item = &Bio> {
        self.upper.bios(self.lower(path).above(tag))
    }

    /// Handles a clone that the device of its path refused (`BLK_STS_RESOURCE`). The upper queue
    /// gets the request back; a queued clone stays queued.
    ///
    /// # Panics
    /// When the device does not have a clone of this tag.
    pub fn busy(&mut self, now: Nanos, path: PathId, tag: Tag) {
        self.counters.busy += 1;
        let lower = &mut self.paths[usize::from(path.0)].queue;
        if self.config.stacking.insert != CloneInsert::Direct {
            return lower.busy(now, tag);
        }
        let EndedClone { above, .. } = lower.end_clone(now, tag);
        // As in the kernel, the selector is notified of an end (`multipath_release_clone`).
        let io = self.take_io(above);
        self.multipath.ended(now, io, BlkStatus::Ok);
        self.upper.busy(now, above);
    }

    /// Handles the end of a clone (`dm_softirq_done`, `multipath_end_io`).
    ///
    /// # Panics
    /// When the device does not have a clone of this tag: a completion came twice.
    pub fn complete(&mut self, now: Nanos, path: PathId, tag: Tag, answer: Answer) -> Completed {
        let lower = &mut self.paths[usize::from(path.0)].queue;
        let EndedClone { above, len } = lower.end_clone(now, tag);
        let has_clones = lower.has_work();
        let io = self.take_io(above);
        assert!(io.path == path, "a clone ends on its path");
        let did = Did::of(answer, len);
        let ended = self.multipath.ended(now, io, did.status);
        let original = self.end_original(now, above, did, ended);
        let run = self.config.stacking.run_on_completion || has_clones || self.upper.has_work();
        Completed { original, run }
    }

    /// Completes the good first part of an original; its rest ends, too, or is requeued.
    fn end_original(&mut self, now: Nanos, tag: Tag, did: Did, ended: Ended) -> Original {
        let Did { status, done, all } = did;
        if all {
            self.upper.complete(now, tag, BlkStatus::Ok);
            return Original::Ended;
        }
        if done > Sector(0) {
            self.counters.partial += 1;
            self.upper.advance(tag, done);
        }
        if status != BlkStatus::Ok && ended == Ended::Up {
            self.upper.complete(now, tag, status);
            return Original::Ended;
        }
        self.counters.requeued += 1;
        self.upper.requeue(now, tag);
        self.upper.retry();
        Original::Requeued
    }

    fn io(&mut self, tag: Tag) -> &mut Option<PathIo> {
        let first = usize::from(tag.hctx) * self.config.upper.queue_depth as usize;
        &mut self.ios[first + tag.index as usize]
    }

    fn take_io(&mut self, tag: Tag) -> PathIo {
        self.io(tag).take().expect("a request that has a clone has a path")
    }

    /// Moves the ended bios to `out`, in order.
    pub fn take_done(&mut self, out: &mut Vec<Done>) {
        self.upper.take_done(out);
    }

    /// As [`RequestQueue::take_unparked`].
    pub fn take_unparked(&mut self, out: &mut Vec<u64>) {
        self.upper.take_unparked(out);
    }
}

/// A checked answer.
#[derive(Clone, Copy)]
struct Did {
    status: BlkStatus,
    /// Number of completed first sectors.
    done: Sector,
    /// Whether all sectors are completed.
    all: bool,
}

impl Did {
    /// Corrects contradictory answers: success without any completed sector is a failure, and
    /// failure with all sectors completed counts as none completed.
    fn of(answer: Answer, len: Sector) -> Self {
        let Answer { status, done_bytes } = answer;
        let done = Sector::holding(done_bytes);
        let well = status == BlkStatus::Ok;
        let all = done >= len;
        match (well, all) {
            (true, true) => Self { status, done: len, all },
            (true, false) if done == Sector(0) => Self { status: BlkStatus::IoError, done, all },
            (_, false) => Self { status, done, all },
            (false, true) => Self { status, done: Sector(0), all: false },
        }
    }
}
