//! A queue driven by hand: the check submits requests, and the hand is a device that takes one at a
//! time and completes it when it takes the next. The order shows the elevator's decisions.

use blockyard_engine::bio::{Bio, BlkStatus, Op, Origin, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::elevator::{ElevatorSpec, Generation};
use blockyard_engine::mq::{Issue, QueueConfig, RequestQueue};
use blockyard_engine::priority::{Priority, PriorityClass};
use blockyard_engine::request::Tag;
use blockyard_engine::time::Nanos;

/// Sectors of a request: 4 KiB.
pub(super) const SECTORS: u64 = 8;

/// Kind of a request for an elevator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) op: Op,
    /// `REQ_SYNC`. Reads are always synchronous.
    pub(super) sync: bool,
    pub(super) priority: Priority,
}

/// A best-effort read.
pub(super) const READ: Kind = Kind { op: Op::Read, sync: true, priority: BEST_EFFORT };
/// A real-time read.
pub(super) const RT_READ: Kind = Kind { priority: Priority::real_time(4), ..READ };
/// An asynchronous write.
pub(super) const ASYNC_WRITE: Kind = Kind { op: Op::Write, sync: false, priority: BEST_EFFORT };
/// A synchronous write.
pub(super) const SYNC_WRITE: Kind = Kind { sync: true, ..ASYNC_WRITE };

const BEST_EFFORT: Priority = Priority::best_effort(4);

impl Kind {
    /// Three classes times read, synchronous write, asynchronous write.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let classes = [Priority::real_time(4), BEST_EFFORT, Priority::IDLE];
        let ops = [READ, SYNC_WRITE, ASYNC_WRITE];
        classes
            .into_iter()
            .flat_map(move |priority| ops.into_iter().map(move |kind| Self { priority, ..kind }))
    }

    /// Name, for example `rt read` or `idle async write`.
    pub(super) fn name(self) -> String {
        let class = match self.priority.class {
            PriorityClass::RealTime => "rt",
            PriorityClass::BestEffort => "be",
            PriorityClass::Idle => "idle",
        };
        let op = match (self.op, self.sync) {
            (Op::Read, _) => "read",
            (_, true) => "sync write",
            (_, false) => "async write",
        };
        format!("{class} {op}")
    }

    /// A bio of this kind.
    pub(super) fn bio(self, sector: u64, sectors: u64, user: u64) -> Bio {
        let len_bytes = u32::try_from(Sector(sectors).bytes()).expect("a bio of a few MiB");
        let origin = Origin { priority: self.priority, sync: self.sync, ..Origin::default() };
        let buf = BufRef::zeros(len_bytes);
        Bio { origin, ..Bio::new(self.op, Sector(sector), Sector(sectors), buf, user) }
    }
}

/// A queue of 2009 in front of a device with a depth of one, so that the elevator determines the
/// order.
pub(super) fn queue_of_one(rotational: bool, nr_requests: u32) -> QueueConfig {
    let usual = QueueConfig::of(Generation::Single);
    QueueConfig { queue_depth: 1, nr_requests, rotational, ..usual }
}

/// The elevator of a check.
pub(super) fn elevator(text: &str) -> ElevatorSpec {
    ElevatorSpec::parse(text).expect("checks name existing elevators and tunables")
}

/// The queue and the request at the hand.
pub(super) struct Hand {
    queue: RequestQueue,
    holds: Option<Tag>,
    issues: Vec<Issue>,
}

impl Hand {
    /// An empty queue of a rotational device.
    pub(super) fn new(elevator_text: &str) -> Self {
        // More requests than a check makes, so that none waits before the elevator.
        let config = queue_of_one(true, 4096);
        let queue = RequestQueue::new(config, &elevator(elevator_text));
        Self { queue, holds: None, issues: Vec::new() }
    }

    /// Submits a request of 4 KiB.
    pub(super) fn ask(&mut self, at: Nanos, kind: Kind, sector: u64) {
        self.queue.submit_bio(at, kind.bio(sector, SECTORS, 0));
    }

    /// Completes the held request and takes the next; returns its first sector.
    pub(super) fn next(&mut self, at: Nanos) -> Option<u64> {
        if let Some(tag) = self.holds.take() {
            self.queue.complete(at, tag, BlkStatus::Ok);
        }
        self.queue.dispatch(at, &mut self.issues);
        let issue = self.issues.pop()?;
        assert!(self.issues.is_empty(), "a device of depth one gets one");
        self.holds = Some(issue.tag);
        Some(issue.sector.0)
    }
}
