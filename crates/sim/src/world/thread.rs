//! A thread of the world, and its current operation.

use std::collections::VecDeque;
use std::ops::Range;

use blockyard_engine::bio::IoContext;
use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;
use blockyard_workload::program::{FileId, Reaped};

use super::actions::{Next, Pending};
use super::bandwidth::Traffic;
use super::in_flight::{Out, WritesUpTo};
use super::pools::PoolId;
use super::trace::{Role, Wait};
use crate::cache::ReadAhead;
use crate::cpu::CpuId;
use crate::fs::CommitStep;

/// A thread.
// 17 fields: each layer keeps its started work for the thread here.
pub(super) struct Thread {
    pub(super) kind: Kind,
    pub(super) io_context: IoContext,
    pub(super) priority: Priority,
    pub(super) doing: Doing,
    /// Bios that it has made and not submitted, because they wait for a request or are next.
    pub(super) outbox: VecDeque<Out>,
    /// Reason of its wait, if it waits.
    pub(super) waits: Option<Wait>,
    /// CPU time in user mode.
    pub(super) user: Nanos,
    /// User time, and that of checksums and random offsets, that no burst has paid for.
    pub(super) unpaid: Nanos,
    /// Offset behind its last operation, in the same file.
    pub(super) next_place: Option<(FileId, u64)>,
    pub(super) over: bool,
    /// Number of the current wait, to ignore timers of earlier ones.
    pub(super) wait_number: u64,
    /// Number of a commit's writes in flight.
    pub(super) in_flight: u32,
    /// Pages dirtied since the last check of the limits.
    pub(super) dirtied: u32,
    pub(super) read_ahead: Vec<(FileId, ReadAhead)>,
    pub(super) direct: Direct,
    /// Pending actions.
    pub(super) pending: Pending,
    /// Traffic of its next burst.
    pub(super) traffic: Traffic,
}

/// Direct operations of a thread.
#[derive(Default)]
pub(super) struct Direct {
    /// Bios of operations that wait for their `io_submit`.
    pub(super) prepared: VecDeque<Out>,
    /// In flight: id, remaining bios, result.
    pub(super) running: Vec<(u32, u32, Result<(), i32>)>,
    /// Ended and not reaped.
    pub(super) ended: Vec<Reaped>,
    /// Reaped, for the task's next call.
    pub(super) reaped: Vec<Reaped>,
}

/// Kind of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Runs a task of the program.
    Task { background: bool },
    /// Writes dirty pages back.
    Flusher,
    /// Commits transactions.
    Journal,
    /// Runs ciphers for a mapped device.
    Worker(PoolId),
    /// Runs ciphers for a server in user space.
    HostWorker,
    /// Submits encrypted writes (`dmcrypt_write`).
    Writer,
    /// Runs queues of a null device: kblockd's worker of a CPU.
    Kblockd(CpuId),
    /// Runs the softirq of a CPU that a thread has raised (`ksoftirqd`).
    Softirq(CpuId),
    /// Performs the other work of its CPU.
    Housekeeper,
}

impl Kind {
    /// Role in a trace.
    pub(super) fn role(&self) -> Role {
        match self {
            Self::Task { .. } => Role::Task,
            Self::Flusher => Role::Flusher,
            Self::Journal => Role::Journal,
            Self::Worker(_) | Self::HostWorker => Role::CryptWorker,
            Self::Writer => Role::CryptWriter,
            Self::Kblockd(cpu) => Role::Kblockd(*cpu),
            Self::Softirq(cpu) => Role::Softirq(*cpu),
            Self::Housekeeper => Role::Housekeeper,
        }
    }
}

/// Action of a thread in its turn.
pub(super) enum Turn {
    /// It runs for this time, and then has its next turn.
    Run(Nanos),
    /// It waits.
    Block(Wait),
    /// It ends.
    Exit,
}

/// Current operation of a thread.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Doing {
    /// None: it makes its next call, or looks for work.
    Next,
    /// `read` of these pages; earlier ones are done.
    Read { file: FileId, pages: Range<u64>, waited: bool },
    /// `write` to these pages; with `handle`, it is part of the running transaction.
    Write { file: FileId, pages: Range<u64>, handle: bool },
    /// Creation of a file in a directory; `handle` as before.
    Create { file: FileId, directory: u32, handle: bool },
    /// A writer after its `write`, above the limit; or a flusher with a congested queue.
    Throttled,
    /// `fsync`: its pages are being written, again if necessary.
    FsyncPages { file: FileId, again: bool, writes: WritesUpTo },
    /// `sync`: all pages are being written.
    SyncPages { writes: WritesUpTo },
    /// `fsync`, `sync`: it asks for a commit. If `data` is given, it then waits for these pages.
    FsyncAsk { data: Option<(FileId, WritesUpTo)> },
    /// `fsync`: the transaction is being committed; `data` as before.
    FsyncCommit { transaction: u64, data: Option<(FileId, WritesUpTo)> },
    /// Waits for direct operations, with an optional time limit.
    Reap { at_least: u32, at_most: u32, until: Option<Nanos> },
    /// A commit: data that must be written first. `sync`: its writes are synchronous.
    CommitData {
        files: Vec<FileId>,
        writes: WritesUpTo,
        steps: VecDeque<CommitStep>,
        transaction: u64,
        sync: bool,
    },
    /// A commit: its steps in order.
    CommitSteps { steps: VecDeque<CommitStep>, transaction: u64, sync: bool },
}

impl Thread {
    pub(super) fn new(kind: Kind, number: u32, priority: Priority) -> Self {
        Self {
            kind,
            io_context: IoContext(number + 1),
            priority,
            doing: Doing::Next,
            outbox: VecDeque::new(),
            waits: None,
            user: Nanos(0),
            unpaid: Nanos(0),
            next_place: None,
            over: false,
            wait_number: 0,
            in_flight: 0,
            dirtied: 0,
            read_ahead: Vec::new(),
            direct: Direct::default(),
            pending: Pending::default(),
            traffic: Traffic::default(),
        }
    }

    /// The kind of the next action; nothing if the thread has none, or waits for a request.
    pub(super) fn next_action(&self) -> Option<Next> {
        match &self.pending {
            Pending { issues, .. } if !issues.is_empty() => Some(Next::Issue),
            // A sleeping thread submits nothing new, and its dispatched requests must not wait for
            // it.
            Pending { parked: true, .. } => None,
            Pending { todo, .. } if !todo.is_empty() => Some(Next::Step),
            _ if !self.outbox.is_empty() => Some(Next::Bio),
            Pending { hands_over, .. } => hands_over.then_some(Next::HandOver),
        }
    }

    /// Adds a cost to the next burst.
    pub(super) fn defer_cost(&mut self, cost: Nanos) {
        self.pending.deferred = self.pending.deferred + cost;
    }

    /// Whether it, or its phase, has ended.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }
}

impl Direct {
    /// Ends a bio of an operation.
    pub(super) fn end_bio(&mut self, now: Nanos, id: u32, status: Result<(), i32>) {
        let place = self.running.iter().position(|(running, ..)| *running == id);
        let place = place.expect("the operation is running");
        let (_, left, so_far) = &mut self.running[place];
        *left -= 1;
        *so_far = so_far.and(status);
        if *left == 0 {
            let (id, _, status) = self.running.swap_remove(place);
            self.ended.push(Reaped { id, status, ended: now });
        }
    }
}
