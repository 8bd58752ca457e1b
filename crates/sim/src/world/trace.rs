//! Events of a world. The hash of all events identifies a run.

use blockyard_engine::bio::{BlkStatus, Op};
use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;

use crate::cpu::{CpuId, ThreadId};

/// Reason of a thread's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Pages under read.
    Pages,
    /// Its writes, at the end of `fsync`.
    Writes,
    /// A commit of the journal.
    Commit,
    /// Fewer dirty pages.
    DirtyLimit,
    /// A free request.
    Request,
    /// Direct operations.
    Direct,
    /// A sleep.
    Sleep,
    /// Work of a flusher, the journal or a worker.
    Work,
    /// The end of the phase.
    Exit,
    /// A handle of the journal, the end of all handles, or copies that the journal is writing.
    Journal,
}

/// Role of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A task of the program.
    Task,
    /// Writes dirty pages back.
    Flusher,
    /// Commits transactions.
    Journal,
    /// Runs ciphers.
    CryptWorker,
    /// Submits encrypted writes.
    CryptWriter,
    /// Runs queues: kblockd's worker of this CPU.
    Kblockd(CpuId),
    /// Runs the softirq of this CPU.
    Softirq(CpuId),
    /// Performs the other work of its CPU.
    Housekeeper,
}

impl Role {
    /// Number for the hash.
    fn word(self) -> u64 {
        match self {
            Self::Task => 0,
            Self::Flusher => 1,
            Self::Journal => 2,
            Self::CryptWorker => 3,
            Self::CryptWriter => 4,
            Self::Kblockd(cpu) => 5 | u64::from(cpu.0) << 8,
            Self::Softirq(cpu) => 6 | u64::from(cpu.0) << 8,
            Self::Housekeeper => 7,
        }
    }
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A new thread.
    Spawn {
        /// Thread.
        thread: ThreadId,
        /// Role.
        role: Role,
    },
    /// A CPU switches to a thread.
    Switch {
        /// CPU.
        cpu: CpuId,
        /// Thread.
        thread: ThreadId,
    },
    /// A thread stops running.
    Block {
        /// Thread.
        thread: ThreadId,
        /// Reason.
        on: Wait,
    },
    /// A thread becomes runnable.
    Wake {
        /// Thread.
        thread: ThreadId,
    },
    /// A bio enters the queue.
    Submit {
        /// Number of the bio, also in [`Event::End`].
        bio: u64,
        /// Submitter.
        thread: ThreadId,
        /// Operation.
        op: Op,
        /// First sector.
        sector: u64,
        /// Number of sectors.
        sectors: u32,
        /// `REQ_SYNC`.
        sync: bool,
        /// FUA.
        fua: bool,
        /// Preflush.
        preflush: bool,
        /// Priority.
        priority: Priority,
    },
    /// A request is issued to the device.
    Issue {
        /// Tag.
        tag: u32,
        /// Operation.
        op: Op,
        /// First sector.
        sector: u64,
        /// Number of sectors.
        sectors: u32,
        /// Number of requests at the device, including this one.
        in_flight: u32,
    },
    /// The device has completed a request.
    Complete {
        /// Tag.
        tag: u32,
    },
    /// A bio has ended.
    End {
        /// Number of the bio.
        bio: u64,
        /// Status.
        status: BlkStatus,
    },
}

/// Receives every event. `()` ignores them.
pub trait Observer {
    /// Receives an event.
    fn event(&mut self, at: Nanos, event: &Event);
}

impl Observer for () {
    fn event(&mut self, _: Nanos, _: &Event) {}
}

/// The observer of a world, and the hash of the run.
pub(super) struct Trace<'a> {
    observer: &'a mut dyn Observer,
    hash: u64,
}

impl<'a> Trace<'a> {
    pub(super) fn new(observer: &'a mut dyn Observer) -> Self {
        Self { observer, hash: 0xcbf2_9ce4_8422_2325 }
    }

    pub(super) fn event(&mut self, at: Nanos, event: Event) {
        let (kind, a, b) = words(&event);
        for word in [at.0, kind, a, b] {
            self.hash = (self.hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        self.observer.event(at, &event);
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }
}

/// An event as numbers: its kind with the small fields, and two large fields.
fn words(event: &Event) -> (u64, u64, u64) {
    match *event {
        Event::Switch { cpu, thread } => (0, u64::from(cpu.0), u64::from(thread.0)),
        Event::Block { thread, on } => (1, u64::from(thread.0), on as u64),
        Event::Wake { thread } => (2, u64::from(thread.0), 0),
        // Other fields of a bio show in later events; this keeps hashes of earlier versions.
        Event::Submit { bio, thread, op, sector, sectors, sync, .. } => {
            let small = 3 | (op as u64) << 8 | u64::from(sync) << 16 | u64::from(thread.0) << 32;
            (small, bio, sector ^ u64::from(sectors) << 44)
        }
        Event::Issue { tag, op, sector, sectors, in_flight } => {
            let small = 4 | (op as u64) << 8 | u64::from(tag) << 32;
            (small, sector, u64::from(sectors) << 32 | u64::from(in_flight))
        }
        Event::Complete { tag } => (5, u64::from(tag), 0),
        Event::End { bio, status } => (6, bio, status as u64),
        Event::Spawn { thread, role } => (7, u64::from(thread.0), role.word()),
    }
}
