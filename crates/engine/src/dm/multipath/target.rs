//! `multipath` for bios: a part goes to a path, and to another one after a path failure.
//!
//! ```text
//! map ─ choose ─> path ─────> answered ─ good, or an error of the disk ─────────> it ends so
//!          │        ^            └─ an error of the path ─> choose again
//!          │        └── a path is reinstated
//!          ├─> no path: it parks ─ fail_if_no_path, or suspended ─> it fails
//!          └─> no path: it fails
//! ```
//! A write is retried from its original buffer, so the buffer stays the submitter's until the part
//! ends: writes count as parked ([`Target::parked`]) as long as a retry is possible. A flush goes
//! to one path, because all paths lead to one disk with one cache.
//!
//! *Checks* ([`super::check`]): a timeout is pending while a check is planned, then a
//! [`SqeOp::Check`]. The world does the check: it connects if necessary, and reads a sector into
//! its own memory, because a target has none.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

use super::line::MultipathSpec;
use super::requests::RequestTarget;
use super::{Choice, Ended, Multipath, PathId, PathIo};
use crate::bio::{BlkStatus, Op, Origin, Sector};
use crate::dm::control::{MessageError, Suspend, TargetControl};
use crate::dm::multipath::stacked::StackedConfig;
use crate::dm::table::{Flushes, Reserve, TargetFacts, TargetSpec};
use crate::dm::{Mapped, Part, Target, TargetCx};
use crate::slab::Slab;
use crate::sq::{DevId, Owner, Sqe, SqeOp, Token};
use crate::time::Nanos;

/// A line with its devices open.
#[derive(Clone, Debug)]
pub struct MultipathTargetSpec {
    /// The line.
    pub multipath: MultipathSpec,
    /// Devices of the paths, in the order of the line.
    pub devs: Vec<DevId>,
    /// Configuration of the queue over the paths' queues, if requests choose the paths
    /// ([`super::requests`]).
    pub requests: Option<StackedConfig>,
}

impl TargetSpec for MultipathTargetSpec {
    fn facts(&self) -> TargetFacts {
        TargetFacts {
            reads_clock: true,
            waits: true,
            has_control: true,
            paths: self.devs.clone(),
            elevator: self.requests.as_ref().map(|queue| queue.elevator.clone()),
            ..TargetFacts::new(Flushes::Mapped)
        }
    }

    fn build(&self, number: u16, _: Reserve) -> Box<dyn Target> {
        match self.requests {
            Some(_) => Box::new(RequestTarget::new(self.clone(), number)),
            None => Box::new(MultipathTarget::new(self.clone(), number)),
        }
    }
}

/// Purpose of an SQE.
#[derive(Debug)]
enum Pending {
    Part(Part, PathIo),
    Check(PathId),
    /// A timeout that ends at this time, for a check.
    Timer(Nanos),
}

/// The bio-based multipath target.
#[derive(Debug)]
pub struct MultipathTarget {
    multipath: Multipath,
    devs: Vec<DevId>,
    /// Its number in the table.
    number: u16,
    /// SQEs without a CQE.
    pending: Slab<Pending>,
    /// Number of parts in flight at a path.
    started: usize,
    /// Number of writes among them.
    started_writes: usize,
    /// Parts without a path, in the order of arrival.
    parked: VecDeque<Part>,
    /// The earliest pending timeout. Later ones stay pending and have no effect.
    timer: Option<Nanos>,
}

impl MultipathTarget {
    /// Creates the target of a line.
    #[must_use]
    pub fn new(spec: MultipathTargetSpec, number: u16) -> Self {
        let MultipathTargetSpec { multipath, devs, requests } = spec;
        assert!(requests.is_none(), "requests have a target of their own");
        assert_eq!(multipath.paths().count(), devs.len(), "each path has its device");
        Self {
            multipath: Multipath::new(multipath),
            devs,
            number,
            pending: Slab::default(),
            started: 0,
            started_writes: 0,
            parked: VecDeque::new(),
            timer: None,
        }
    }

    /// Sends a part to a path, if there is one.
    fn send(&mut self, part: Part, cx: &mut TargetCx<'_>) -> Choice {
        let len_bytes = part.len.bytes();
        let choice = self.multipath.choose(cx.now, part.origin.cpu, len_bytes);
        if let Choice::Path(path) = choice {
            let io = self.multipath.started(cx.now, path, len_bytes);
            self.started += 1;
            self.started_writes += usize::from(part.op == Op::Write);
            let op = part.at(self.devs[usize::from(path.0)], part.sector);
            self.push(Pending::Part(part, io), op, part.origin, cx);
        }
        choice
    }

    fn push(&mut self, pending: Pending, op: SqeOp, origin: Origin, cx: &mut TargetCx<'_>) {
        let index = self.pending.insert(pending);
        let token = Token { owner: Owner::Target(self.number), index };
        cx.push(Sqe { token, op, linked: false, origin });
    }

    /// Handles the completion of a part at its path.
    fn answered(&mut self, part: Part, io: PathIo, status: BlkStatus, cx: &mut TargetCx<'_>) {
        self.started -= 1;
        self.started_writes -= usize::from(part.op == Op::Write);
        if self.multipath.ended(cx.now, io, status) == Ended::Up {
            return cx.end(part.index, status);
        }
        match self.send(part, cx) {
            Choice::Path(_) => {}
            Choice::Queue => self.parked.push_back(part),
            Choice::Fail => unreachable!("it was told to try again"),
        }
    }

    /// Retries parts without a path, which may have one now or may no longer wait.
    fn unpark(&mut self, cx: &mut TargetCx<'_>) {
        while let Some(part) = self.parked.pop_front() {
            match self.send(part, cx) {
                Choice::Path(_) => {}
                Choice::Queue => return self.parked.push_front(part),
                Choice::Fail => cx.end(part.index, BlkStatus::IoError),
            }
        }
    }

    /// Starts the checks that are due, and the timeout for the next one.
    fn check(&mut self, now: Nanos, cx: &mut TargetCx<'_>) {
        while let Some(path) = self.multipath.take_check(now) {
            let op = SqeOp::Check { dev: self.devs[usize::from(path.0)] };
            self.push(Pending::Check(path), op, Origin::default(), cx);
        }
        if let Some(at) = self.multipath.next_check()
            && self.timer.is_none_or(|timer| at < timer)
        {
            self.timer = Some(at);
            let op = SqeOp::Timeout { after: at.since(cx.now) };
            self.push(Pending::Timer(at), op, Origin::default(), cx);
        }
    }
}

impl Target for MultipathTarget {
    fn map(&mut self, part: Part, cx: &mut TargetCx<'_>) -> Mapped {
        match self.send(part, cx) {
            Choice::Path(_) => Mapped::Submitted,
            Choice::Queue => {
                self.parked.push_back(part);
                Mapped::Submitted
            }
            Choice::Fail => Mapped::Ended(BlkStatus::IoError),
        }
    }

    fn on_cqe(&mut self, index: u32, status: BlkStatus, cx: &mut TargetCx<'_>) {
        let now = match self.pending.remove(index) {
            Pending::Part(part, io) => {
                self.answered(part, io, status, cx);
                cx.now
            }
            Pending::Check(path) => {
                self.multipath.checked(cx.now, path, status);
                self.unpark(cx);
                cx.now
            }
            Pending::Timer(at) => {
                if self.timer == Some(at) {
                    self.timer = None;
                }
                // A timeout may be ahead of the world's clock.
                cx.now.max(at)
            }
        };
        self.check(now, cx);
    }

    fn max_io(&self, _: Op, _: Sector) -> Sector {
        Sector(u64::MAX)
    }

    fn parked(&self) -> usize {
        self.parked.len() + self.started_writes
    }

    fn is_idle(&self) -> bool {
        self.started == 0 && self.parked.is_empty()
    }

    fn control(&mut self) -> Option<&mut dyn TargetControl> {
        Some(self)
    }
}

impl TargetControl for MultipathTarget {
    fn message(&mut self, text: &str, cx: &mut TargetCx<'_>) -> Result<(), MessageError> {
        self.multipath.message(cx.now, text)?;
        self.unpark(cx);
        self.check(cx.now, cx);
        Ok(())
    }

    fn info(&self) -> String {
        self.multipath.info()
    }

    fn table(&self) -> String {
        self.multipath.table()
    }

    fn suspend(&mut self, how: Suspend, cx: &mut TargetCx<'_>) {
        self.multipath.suspend(how);
        self.unpark(cx);
    }

    fn resume(&mut self, cx: &mut TargetCx<'_>) {
        self.multipath.resume();
        self.unpark(cx);
    }
}

#[cfg(test)]
mod tests;
