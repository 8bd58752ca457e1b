//! The layers between bios and devices: one queue, or a multipath device or a table over several.
//!
//! ```text
//!   one queue        bios ─> queue ─> device
//!   requests         bios ─> stacked queue: queue ─> path ─> queue ─> device of the path
//!   bios             bios ─> shard with a multipath target ─> queue of the path ─> its device
//!   table            bios ─> shard with linear and striped targets ─> queue of the device ─> it
//! ```

use blockyard_engine::bio::{Bio, BlkStatus, Done, IoContext};
use blockyard_engine::dm::control::Suspend;
use blockyard_engine::dm::multipath::line::QueueMode;
use blockyard_engine::dm::multipath::stacked::{Answer, Dispatched, StackedConfig, StackedQueue};
use blockyard_engine::dm::multipath::{Multipath, PathId};
use blockyard_engine::mq::{Issue, QueueConfig, RequestQueue, Submitted};
use blockyard_engine::request::Tag;
use blockyard_engine::time::Nanos;

use super::paths::{Fate, Order, Path};
use super::plan::Plan;
use super::shards::ShardOverQueues;

/// The layers of a world.
pub(super) enum Below {
    One(Box<RequestQueue>),
    Requests(Box<StackedQueue>),
    Shard(Box<ShardOverQueues>),
}

impl Below {
    /// `told` is the configuration that the queue over the devices gets.
    pub(super) fn new(plan: &Plan, told: QueueConfig) -> Self {
        if let Some(devices) = &plan.devices {
            let queues = (0..devices.count).map(|_| RequestQueue::new(told, &plan.spec));
            let shard = ShardOverQueues::new(&devices.table(), queues.collect());
            return Self::Shard(Box::new(shard));
        }
        let Some(paths) = &plan.paths else {
            return Self::One(Box::new(RequestQueue::new(told, &plan.spec)));
        };
        match paths.mode {
            QueueMode::Request => {
                let elevator = plan.spec.clone();
                let stacking = paths.stacking;
                let config = StackedConfig { upper: plan.queue, elevator, lower: told, stacking };
                Self::Requests(Box::new(StackedQueue::new(config, Multipath::new(paths.spec()))))
            }
            QueueMode::Bio => {
                Self::Shard(Box::new(ShardOverQueues::multipath(paths, told, &plan.spec)))
            }
        }
    }

    pub(super) fn submit(&mut self, now: Nanos, bio: Bio) -> Submitted {
        match self {
            Self::One(queue) => queue.submit_bio(now, bio),
            Self::Requests(queue) => queue.submit_bio(now, bio),
            Self::Shard(shard) => shard.submit(now, bio),
        }
    }

    pub(super) fn plug(&mut self, io_context: IoContext) {
        match self {
            Self::One(queue) => queue.plug(io_context),
            Self::Requests(queue) => queue.plug(io_context),
            Self::Shard(_) => {}
        }
    }

    pub(super) fn unplug(&mut self, now: Nanos, io_context: IoContext) {
        match self {
            Self::One(queue) => queue.unplug(now, io_context),
            Self::Requests(queue) => queue.unplug(now, io_context),
            Self::Shard(_) => {}
        }
    }

    pub(super) fn exit_context(&mut self, now: Nanos, io_context: IoContext) {
        match self {
            Self::One(queue) => queue.exit_context(now, io_context),
            Self::Requests(queue) => queue.exit_context(now, io_context),
            Self::Shard(shard) => shard.exit_context(now, io_context),
        }
    }

    /// The requests that the devices get now.
    pub(super) fn dispatch(&mut self, now: Nanos, out: &mut Vec<(u16, Issue)>) {
        match self {
            Self::One(queue) => {
                let mut issues = Vec::new();
                queue.dispatch(now, &mut issues);
                out.extend(issues.into_iter().map(|issue| (0, issue)));
            }
            Self::Requests(queue) => {
                let mut dispatched = Vec::new();
                let mut ran = Vec::new();
                queue.dispatch(now, 0, &mut dispatched);
                for dispatched in dispatched {
                    match dispatched {
                        Dispatched::Issue { path, issue } => out.push((path.0, issue)),
                        Dispatched::Run { path, hctx } => queue.run_path(now, path, hctx, &mut ran),
                    }
                }
                for ran in ran {
                    let Dispatched::Issue { path, issue } = ran else { continue };
                    out.push((path.0, issue));
                }
            }
            Self::Shard(shard) => shard.dispatch(now, out),
        }
    }

    /// The bios that multipath has sent again: all their parts repeat.
    pub(super) fn take_resent(&mut self, out: &mut Vec<u64>) {
        if let Self::Shard(shard) = self {
            shard.take_resent(out);
        }
    }

    /// The parts of a request, in the submitters' positions.
    pub(super) fn pieces(&self, path: u16, tag: Tag) -> Vec<Bio> {
        match self {
            Self::One(queue) => queue.bios(tag).copied().collect(),
            Self::Requests(queue) => queue.bios(PathId(path), tag).copied().collect(),
            Self::Shard(shard) => shard.pieces(path, tag),
        }
    }

    pub(super) fn busy(&mut self, now: Nanos, path: u16, tag: Tag) {
        match self {
            Self::One(queue) => queue.busy(now, tag),
            Self::Requests(queue) => queue.busy(now, PathId(path), tag),
            Self::Shard(shard) => shard.queue(path).busy(now, tag),
        }
    }

    /// Completes a request. A failed path keeps the done part only if requests can be split.
    /// Returns whether a worker must run the queue, where one does.
    pub(super) fn complete(&mut self, now: Nanos, path: u16, tag: Tag, fate: Fate) -> bool {
        let Fate { status, done_sectors } = fate;
        match self {
            Self::One(queue) => queue.complete(now, tag, status),
            Self::Requests(queue) => {
                let answer = Answer { status, done_bytes: done_sectors * 512 };
                return queue.complete(now, PathId(path), tag, answer).run;
            }
            Self::Shard(shard) => shard.complete(now, path, tag, status),
        }
        true
    }

    /// Whether bios may fail for lack of a path.
    pub(super) fn fails_for_want_of_a_path(&mut self) -> bool {
        match self {
            Self::One(_) => false,
            Self::Requests(queue) => {
                let multipath = queue.multipath();
                !multipath.has_path() && !multipath.queues()
            }
            Self::Shard(shard) => shard.fails_for_want_of_a_path(),
        }
    }

    /// Checks the paths that are due; returns their number.
    pub(super) fn check(&mut self, now: Nanos, paths: &[Path], is_told: bool) -> u64 {
        let mut checks = 0;
        match self {
            Self::One(_) => {}
            Self::Requests(queue) => {
                while let Some(path) = queue.take_check(now) {
                    checks += 1;
                    if is_told {
                        queue.checked(now, path, check(&paths[usize::from(path.0)]));
                    }
                }
            }
            Self::Shard(shard) => checks = shard.check(now, paths, is_told),
        }
        checks
    }

    /// Applies an operator's order, which may be refused.
    pub(super) fn order(&mut self, now: Nanos, order: &Order) {
        let how = |flushes| if flushes { Suspend::Flush } else { Suspend::NoFlush };
        match (self, order) {
            (Self::One(_), _) => {}
            (Self::Requests(queue), Order::Message(text)) => drop(queue.message(now, text)),
            (Self::Requests(queue), Order::Suspend { flushes }) => queue.suspend(how(*flushes)),
            (Self::Requests(queue), Order::Resume) => queue.resume(),
            (Self::Shard(shard), Order::Message(text)) => shard.message(now, text),
            (Self::Shard(shard), Order::Suspend { flushes }) => shard.suspend(now, how(*flushes)),
            (Self::Shard(shard), Order::Resume) => shard.resume(now),
        }
    }

    pub(super) fn wake_at(&self) -> Option<Nanos> {
        match self {
            Self::One(queue) => queue.wake_at(),
            Self::Requests(queue) => queue.wake_at(),
            Self::Shard(shard) => shard.wake_at(),
        }
    }

    pub(super) fn timed_out(&mut self, now: Nanos, out: &mut Vec<(u16, Tag)>) {
        match self {
            Self::One(queue) => {
                let mut late = Vec::new();
                queue.timed_out(now, &mut late);
                out.extend(late.into_iter().map(|tag| (0, tag)));
            }
            Self::Requests(queue) => {
                let mut late = Vec::new();
                queue.timed_out(now, &mut late);
                out.extend(late.into_iter().map(|(path, tag)| (path.0, tag)));
            }
            Self::Shard(shard) => shard.timed_out(now, out),
        }
    }

    pub(super) fn take_done(&mut self, out: &mut Vec<Done>) {
        match self {
            Self::One(queue) => queue.take_done(out),
            Self::Requests(queue) => queue.take_done(out),
            Self::Shard(shard) => shard.take_done(out),
        }
    }

    pub(super) fn take_unparked(&mut self, out: &mut Vec<u64>) {
        match self {
            Self::One(queue) => queue.take_unparked(out),
            Self::Requests(queue) => queue.take_unparked(out),
            Self::Shard(_) => {}
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        match self {
            Self::One(queue) => queue.is_idle(),
            Self::Requests(queue) => queue.is_idle(),
            Self::Shard(shard) => shard.is_idle(),
        }
    }

    /// Requests issued to devices, merges, partly done requests, resent I/Os.
    pub(super) fn counts(&self) -> [u64; 4] {
        match self {
            Self::One(queue) => queue_counts(queue),
            Self::Requests(queue) => {
                let [_, merges, ..] = queue_counts(queue.upper());
                let counters = queue.counters();
                [counters.clones, merges, counters.partial, counters.requeued]
            }
            Self::Shard(shard) => shard.counts(),
        }
    }
}

pub(super) fn queue_counts(queue: &RequestQueue) -> [u64; 4] {
    let counters = queue.counters();
    let merges = counters.back_merges + counters.front_merges + counters.request_merges;
    [counters.issued, merges, 0, 0]
}

/// Result of a path check.
pub(super) fn check(path: &Path) -> BlkStatus {
    if path.is_up { BlkStatus::Ok } else { BlkStatus::Transport }
}
