//! A queue over queues: request-based multipath (`drivers/md/dm-rq.c`, `dm-mpath.c`).
//!
//! Bios come to the upper [`RequestQueue`], which merges and schedules. Each request that it
//! dispatches chooses a path and goes as a *clone* to the queue of that path, which does not.
//!
//! ```text
//!            upper queue                    path's queue
//!   bio ─> merge, elevator ─ dispatch ─ path? ─ clone ─> tag? ─> device
//!     ^      ^         ^                  │                │       │
//!     │      │         └───────────<──────┴─── no, busy ───┴───<───┤ busy
//!     │      │         └ requeued <─ the path failed, or a rest <──┤
//!     └──────┴──────── ends <─ done, or an error of the disk <─────┘
//! ```
//! *Busy* is the upper queue's matter: a request that its path does not take goes back there, and
//! what waits behind it goes on merging. *No path*: nothing is dispatched while the line says
//! `queue_if_no_path`; else requests end with an error.
//!
//! *Done in part*: a path did the first sectors of a clone, and failed or stopped. The bios in them
//! end well at once, and the rest is requeued, for whatever path takes it. A rest of the data of a
//! flush sequence ends with the sequence. All paths lead to one disk with one cache, so a flush
//! goes to any of them, and what one path wrote another one makes stable.
//!
//! Which context does what is data ([`Stacking`]): the struct has no threads. A world gives each
//! [`Dispatched::Issue`] to the device of its path, lets a worker call [`StackedQueue::run_path`]
//! for each [`Dispatched::Run`], and calls [`StackedQueue::complete`] in the context that
//! [`Stacking::complete_by`] names. After each event that could have changed something, and at
//! [`StackedQueue::wake_at`], it dispatches.

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

/// What is to be done for a request that was dispatched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispatched {
    /// The device of this path gets a clone: [`StackedQueue::complete`] follows, or
    /// [`StackedQueue::busy`].
    Issue {
        /// The path.
        path: PathId,
        /// The clone.
        issue: Issue,
    },
    /// A clone waits at this hardware queue for a worker, which calls [`StackedQueue::run_path`].
    /// It is not said again before that was called.
    Run {
        /// The path.
        path: PathId,
        /// Which of its hardware queues.
        hctx: u16,
    },
}

/// What the device of a path says of a clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// How it went.
    pub status: BlkStatus,
    /// The bytes from its first on that are done. Fewer than all with a good status: the path
    /// stopped there, and the rest is asked for again.
    pub done_bytes: u64,
}

impl Answer {
    /// All of it is done.
    #[must_use]
    pub fn done(issue: &Issue) -> Self {
        Self { status: BlkStatus::Ok, done_bytes: issue.len.bytes() }
    }

    /// Nothing of it is.
    #[must_use]
    pub fn failed(status: BlkStatus) -> Self {
        Self { status, done_bytes: 0 }
    }
}

/// What became of an original.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Original {
    /// All of its bios have ended.
    Ended,
    /// It, or its rest, is in the upper queue again.
    Requeued,
}

/// What follows from the end of a clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// What became of its original.
    pub original: Original,
    /// A worker (kblockd) is to run the queue: [`StackedQueue::dispatch`]. Because something waits,
    /// or because [`Stacking::run_on_completion`] says so.
    pub run: bool,
}

/// What has happened so far. The queues count for themselves: [`StackedQueue::upper`],
/// [`StackedQueue::lower`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackedCounters {
    /// Clones that were made.
    pub clones: u64,
    /// Requests that went back because their path had no tag for them.
    pub no_tag: u64,
    /// Requests that went back because the device of their path was busy.
    pub busy: u64,
    /// Requests of which a path did a part only.
    pub partial: u64,
    /// Requests, or rests, that were requeued.
    pub requeued: u64,
    /// Requests that ended because there was no path.
    pub no_path: u64,
    /// [`Dispatched::Run`]: workers asked for.
    pub runs: u64,
}

/// The queue of a path.
struct PathQueue {
    queue: RequestQueue,
    /// By hardware queue: a worker was asked for and has not come.
    called: Vec<bool>,
}

/// A queue over queues.
pub struct StackedQueue {
    config: StackedConfig,
    upper: RequestQueue,
    paths: Vec<PathQueue>,
    multipath: Multipath,
    /// What the path of an issued request was told, by the request's tag.
    ios: Vec<Option<PathIo>>,
    /// Emptied after each use; kept for their memory.
    issues: Vec<Issue>,
    late: Vec<Tag>,
    counters: StackedCounters,
}

impl StackedQueue {
    /// A queue over the paths of a line.
    ///
    /// # Panics
    /// When the lower queues would not take what the upper one gives them: limits, cache or FUA
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

    /// Takes a bio, as [`RequestQueue::submit_bio`].
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

    /// Dispatches as much as the paths take now, in order. `cpu` is the one that does it: a clone
    /// belongs to it, whoever submitted the original (`blk_mq_alloc_request`).
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

    /// No path is left and requests wait for one: in the elevator, where they go on merging.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        !self.multipath.has_path() && self.multipath.queues()
    }

    /// A request finds its path (`multipath_clone_and_map`).
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

    /// A clone goes into the queue of its path (`blk_insert_cloned_request`).
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

    /// A hardware queue of a path is run, or a worker is called to do it.
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

    /// Clones that a device was too busy for may go now.
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

    /// What a worker does that was asked for by [`Dispatched::Run`].
    pub fn run_path(&mut self, now: Nanos, path: PathId, hctx: u16, out: &mut Vec<Dispatched>) {
        let PathQueue { queue, called } = &mut self.paths[usize::from(path.0)];
        called[usize::from(hctx)] = false;
        queue.run_hctx(now, hctx, &mut self.issues);
        out.extend(self.issues.drain(..).map(|issue| Dispatched::Issue { path, issue }));
    }

    /// The bios of a clone that is at its device, in the order of their sectors; as
    /// [`RequestQueue::bios`].
    ///
    /// # Panics
    /// When the device does not have a clone of this tag.
    pub fn bios(&self, path: PathId, tag: Tag) -> impl Iterator<Item = &Bio> {
        self.upper.bios(self.lower(path).above(tag))
    }

    /// The device of a path was too busy for a clone (`BLK_STS_RESOURCE`). The upper queue has the
    /// request back; a clone that was queued stays queued.
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
        // As the kernel: the selector hears of an end (`multipath_release_clone`).
        let io = self.take_io(above);
        self.multipath.ended(now, io, BlkStatus::Ok);
        self.upper.busy(now, above);
    }

    /// The device of a path has ended a clone (`dm_softirq_done`, `multipath_end_io`).
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

    /// The good first part of an original ends; its rest ends, too, or is requeued.
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

    /// The bios that have ended, in order.
    pub fn take_done(&mut self, out: &mut Vec<Done>) {
        self.upper.take_done(out);
    }

    /// As [`RequestQueue::take_unparked`].
    pub fn take_unparked(&mut self, out: &mut Vec<u64>) {
        self.upper.take_unparked(out);
    }
}

/// An answer, as it is believed.
#[derive(Clone, Copy)]
struct Did {
    status: BlkStatus,
    /// The first sectors, which are done.
    done: Sector,
    /// They are all there are.
    all: bool,
}

impl Did {
    /// A path that did nothing and says that it went well has failed; one that did everything and
    /// says that it failed did nothing.
    fn of(answer: Answer, len: Sector) -> Self {
        let Answer { status, done_bytes } = answer;
        let done = Sector::holding(done_bytes);
        let (well, all) = (status == BlkStatus::Ok, done >= len);
        match (well, all) {
            (true, true) => Self { status, done: len, all },
            (true, false) if done == Sector(0) => Self { status: BlkStatus::IoError, done, all },
            (_, false) => Self { status, done, all },
            (false, true) => Self { status, done: Sector(0), all: false },
        }
    }
}
