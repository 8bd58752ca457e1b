//! What happens in a world, as it happens. The hash over all of it is the identity of a run.

use blockyard_engine::bio::{BlkStatus, Op};
use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;

use crate::cpu::{CpuId, ThreadId};

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Pages that are being read.
    Pages,
    /// Its writes, at the end of `fsync`.
    Writes,
    /// A commit of the journal.
    Commit,
    /// Dirty pages to become fewer.
    DirtyLimit,
    /// A free request.
    Request,
    /// Direct operations.
    Direct,
    /// Time to pass.
    Sleep,
    /// Work: a flusher or the journal has nothing to do.
    Work,
    /// The end of the phase.
    Exit,
}

/// Whose thread it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The program's.
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
    /// Does what its CPU has to do beside.
    Housekeeper,
}

impl Role {
    /// What goes into the hash.
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

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// There is a new thread.
    Spawn {
        /// Who.
        thread: ThreadId,
        /// What it is for.
        role: Role,
    },
    /// A CPU goes over to a thread.
    Switch {
        /// Where.
        cpu: CpuId,
        /// To whom.
        thread: ThreadId,
    },
    /// A thread stops running.
    Block {
        /// Who.
        thread: ThreadId,
        /// For what.
        on: Wait,
    },
    /// A thread can run again.
    Wake {
        /// Who.
        thread: ThreadId,
    },
    /// A bio enters the queue.
    Submit {
        /// Given back in [`Event::End`].
        bio: u64,
        /// By whom.
        thread: ThreadId,
        /// What.
        op: Op,
        /// From where.
        sector: u64,
        /// How many.
        sectors: u32,
        /// Somebody waits for it.
        sync: bool,
        /// On stable storage before it ends.
        fua: bool,
        /// What ended before is on stable storage before it starts.
        preflush: bool,
        /// How urgent.
        priority: Priority,
    },
    /// The device gets a request.
    Issue {
        /// Its tag.
        tag: u32,
        /// What.
        op: Op,
        /// From where.
        sector: u64,
        /// How many.
        sectors: u32,
        /// Requests that the device has, with this one.
        in_flight: u32,
    },
    /// The device has done a request.
    Complete {
        /// Its tag.
        tag: u32,
    },
    /// A bio has ended.
    End {
        /// As it was submitted.
        bio: u64,
        /// How.
        status: BlkStatus,
    },
}

/// Sees everything that happens. `()` sees nothing.
pub trait Observer {
    /// Something has happened.
    fn event(&mut self, at: Nanos, event: &Event);
}

impl Observer for () {
    fn event(&mut self, _: Nanos, _: &Event) {}
}

/// The observer of a world, behind the hash that every run has.
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

/// An event as numbers: its kind with the small fields, and the two large ones.
fn words(event: &Event) -> (u64, u64, u64) {
    match *event {
        Event::Switch { cpu, thread } => (0, u64::from(cpu.0), u64::from(thread.0)),
        Event::Block { thread, on } => (1, u64::from(thread.0), on as u64),
        Event::Wake { thread } => (2, u64::from(thread.0), 0),
        // What else a bio says shows in what comes of it; hashes of earlier versions stay the same.
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
