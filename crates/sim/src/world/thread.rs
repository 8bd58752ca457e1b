//! A thread of the world, and what it is in the middle of.

use std::collections::VecDeque;
use std::ops::Range;

use blockyard_engine::bio::{IoContext, Op};
use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;
use blockyard_workload::program::{FileId, Reaped};

use super::deeds::Pending;
use super::dm::PoolId;
use super::trace::{Role, Wait};
use crate::cache::ReadAhead;
use crate::cpu::CpuId;

/// A thread.
pub(super) struct Thread<T> {
    pub(super) kind: Kind<T>,
    pub(super) io_context: IoContext,
    pub(super) priority: Priority,
    pub(super) doing: Doing,
    /// Bios that it has made and not submitted: the queue had no request, or it comes to it next.
    pub(super) outbox: VecDeque<Out>,
    /// What it waits for, if it does.
    pub(super) waits: Option<Wait>,
    /// CPU time of the program itself.
    pub(super) user: Nanos,
    pub(super) over: bool,
    /// Wake-ups by time that came for an earlier wait are told from that of the present one.
    pub(super) wait_number: u64,
    /// A commit's writes that have not ended.
    pub(super) in_flight: u32,
    /// Pages it has made dirty since it last looked at the limits.
    pub(super) dirtied: u32,
    pub(super) read_ahead: Vec<(FileId, ReadAhead)>,
    pub(super) direct: Direct,
    /// What it has to do for what it has submitted.
    pub(super) pending: Pending,
}

/// Direct operations of a thread.
#[derive(Default)]
pub(super) struct Direct {
    /// Submitted and not ended: number, and bios left.
    pub(super) running: Vec<(u32, u32, Result<(), i32>)>,
    /// Ended and not reaped.
    pub(super) ended: Vec<Reaped>,
}

/// Whose thread it is.
pub(super) enum Kind<T> {
    /// The program's, with what its last call returned; the task is gone after its phase.
    Task { task: Option<T>, status: Result<(), i32>, reaped: Vec<Reaped>, background: bool },
    /// Writes dirty pages back.
    Flusher,
    /// Commits transactions.
    Journal,
    /// Runs ciphers for a mapped device.
    Worker(PoolId),
    /// Submits encrypted writes (`dmcrypt_write`).
    Writer,
    /// Runs queues of a null device: kblockd's worker of a CPU.
    Kblockd(CpuId),
    /// Runs the softirq of a CPU that a thread has raised (`ksoftirqd`).
    Softirq(CpuId),
    /// Does what the CPU has to do beside.
    Housekeeper,
}

impl<T> Kind<T> {
    /// As a trace has it.
    pub(super) fn role(&self) -> Role {
        match self {
            Self::Task { .. } => Role::Task,
            Self::Flusher => Role::Flusher,
            Self::Journal => Role::Journal,
            Self::Worker(_) => Role::CryptWorker,
            Self::Writer => Role::CryptWriter,
            Self::Kblockd(cpu) => Role::Kblockd(*cpu),
            Self::Softirq(cpu) => Role::Softirq(*cpu),
            Self::Housekeeper => Role::Housekeeper,
        }
    }
}

/// What a thread is in the middle of.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Doing {
    /// Nothing: it makes its next call, or looks for work.
    Next,
    /// `read` of these pages; the ones before are done.
    Read { file: FileId, pages: Range<u64>, waited: bool },
    /// `write` to these pages.
    Write { file: FileId, pages: Range<u64> },
    /// `write` has been done, and the writer is above the limit. A flusher: the queue is congested.
    Throttled,
    /// `fsync`: its pages are being written; once more, if need be.
    FsyncPages { file: FileId, again: bool, writes: WritesUpTo },
    /// `fsync`: the transaction is being committed.
    FsyncCommit { transaction: u64 },
    /// Waits for direct operations, no longer than until a time if there is one.
    Reap { at_least: u32, at_most: u32, until: Option<Nanos> },
    /// A commit: data that has to be there first.
    CommitData { files: Vec<FileId>, writes: WritesUpTo, steps: VecDeque<Step>, transaction: u64 },
    /// A commit: its steps, one after the other.
    CommitSteps { steps: VecDeque<Step>, transaction: u64 },
}

/// Write-back that was submitted before a moment: what comes later is not waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WritesUpTo(pub(super) u64);

/// A step of a commit.
pub(super) type Step = crate::fs::CommitStep;

/// A bio to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Out {
    pub(super) op: Op,
    pub(super) sector: u64,
    pub(super) sectors: u32,
    pub(super) sync: bool,
    pub(super) preflush: bool,
    pub(super) fua: bool,
    pub(super) purpose: Purpose,
}

/// What a bio is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Purpose {
    /// Pages come into memory.
    Pages { file: FileId, page: u64, pages: u64 },
    /// Pages are written back.
    WriteBack { file: FileId, page: u64, pages: u64, number: u64 },
    /// Part of a commit.
    Commit,
    /// Part of a direct operation.
    Direct { id: u32 },
}

/// A bio in the queue or the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub(super) thread: u32,
    pub(super) purpose: Purpose,
    pub(super) bytes: u64,
}

impl<T> Thread<T> {
    pub(super) fn new(kind: Kind<T>, number: u32, priority: Priority) -> Self {
        Self {
            kind,
            io_context: IoContext(number + 1),
            priority,
            doing: Doing::Next,
            outbox: VecDeque::new(),
            waits: None,
            user: Nanos(0),
            over: false,
            wait_number: 0,
            in_flight: 0,
            dirtied: 0,
            read_ahead: Vec::new(),
            direct: Direct::default(),
            pending: Pending::default(),
        }
    }

    /// It has ended, or its phase has.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }
}

impl Direct {
    /// A bio of an operation has ended.
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
