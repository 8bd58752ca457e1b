//! Operations in flight, and their requests.
//!
//! ```text
//!   Data ──────────────── all requests answered ──> (answered)
//!    ^ └─ a FUA write, and the server has no FUA ──> Flush ──> (answered)
//!    └──────────── a connection was lost ─────────────┘
//! ```
//! An operation longer than a request becomes several. It completes, or restarts, only when no
//! connection has a request of it, because requests use its memory.

use std::sync::Arc;
use std::time::Instant;

use blockyard_engine::bio::{Bio, BlkStatus, IoContext, Op};
use blockyard_engine::slab::Slab;
use blockyard_protocol::nbd::client::{Refusal, Remote, Request};
use blockyard_protocol::nbd::{Command, Errno};

use super::unflushed::Unflushed;
use crate::canary::{Canary, is_planted};
use crate::device_thread::DeviceBio;
use crate::memory::{Memory, ZEROS};

/// Longest range of one trim or zero request, which must not exceed the server's time limit. Ours.
const RANGE_MAX_BYTES: u64 = 128 << 20;
/// An operation fails after this number of lost connections, because it may be their cause: some
/// servers close the connection instead of reporting an error. Ours: a server may be restarted
/// twice meanwhile.
const LOSSES_MAX: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Data,
    Flush,
}

/// An operation in flight.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) op: DeviceBio,
    stage: Stage,
    /// Bytes with requests, in this stage.
    issued_bytes: u64,
    /// All requests of this stage have been made.
    is_issued: bool,
    /// Uses by connections: requests without reply, and unsent payloads.
    uses: u32,
    /// The first error.
    status: BlkStatus,
    /// A connection with a request of it was lost.
    is_lost: bool,
    /// Number of such connections. Connections older than the last loss do not count, because a
    /// server that ends loses all its connections.
    losses: u8,
    lost_at: Option<Instant>,
    /// Its client is about to end.
    is_abandoned: bool,
    /// It waits for a connection that accepts its next request.
    pub(super) is_queued: bool,
}

/// A request for a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Issue {
    pub(super) request: Request,
    /// Offset in the operation.
    pub(super) start_bytes: u64,
    pub(super) payload: Payload,
}

/// Payload of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payload {
    None,
    /// A range of the operation's memory.
    Memory {
        memory: Memory,
        skip_bytes: usize,
        len_bytes: usize,
    },
    Zeros {
        len_bytes: usize,
    },
}

impl Payload {
    pub(super) fn len_bytes(&self) -> usize {
        match *self {
            Self::None => 0,
            Self::Memory { len_bytes, .. } | Self::Zeros { len_bytes } => len_bytes,
        }
    }
}

/// Next step of an operation that no connection uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It has requests in flight.
    Wait,
    /// It needs another request: a flush after its data.
    Issue,
    /// A connection was lost: retry or give up.
    Lost,
    /// It completes with this status.
    Answer(BlkStatus),
}

impl Pending {
    fn new(op: DeviceBio) -> Self {
        Self {
            op,
            stage: Stage::Data,
            issued_bytes: 0,
            is_issued: false,
            uses: 0,
            status: BlkStatus::Ok,
            is_lost: false,
            losses: 0,
            lost_at: None,
            is_abandoned: false,
            is_queued: false,
        }
    }

    /// Whether its uncertain state after a loss matters: it changes data.
    pub(super) fn changes_data(&self) -> bool {
        match self.op.bio.op {
            Op::Write | Op::Discard | Op::WriteZeroes => self.stage == Stage::Data,
            Op::Read | Op::Flush => false,
        }
    }

    /// The next request that it needs from such an export.
    pub(super) fn issue(&mut self, remote: &Remote) -> Option<Issue> {
        if self.is_issued || self.is_lost || self.status != BlkStatus::Ok {
            return None;
        }
        let DeviceBio { bio: Bio { op, sector, len, fua, .. }, memory, .. } = self.op;
        let flush = Issue { request: Request::FLUSH, start_bytes: 0, payload: Payload::None };
        let command = match (self.stage, op) {
            (Stage::Flush, _) | (_, Op::Flush) => {
                self.is_issued = true;
                // A server without flushes writes through.
                let is_sent = remote.can_flush && !is_planted(Canary::RemoteFlush);
                return is_sent.then_some(flush);
            }
            (_, Op::Read) => Command::Read,
            (_, Op::Write) => Command::Write,
            // The server does not support this hint.
            (_, Op::Discard) if !remote.can_trim => {
                self.is_issued = true;
                return None;
            }
            (_, Op::Discard) => Command::Trim,
            (_, Op::WriteZeroes) if remote.can_write_zeroes => Command::WriteZeroes,
            (_, Op::WriteZeroes) => Command::Write,
        };
        let max_bytes = match (op, command) {
            (Op::WriteZeroes, Command::Write) => ZEROS.len() as u64,
            (Op::Discard | Op::WriteZeroes, _) => RANGE_MAX_BYTES,
            _ => u64::MAX,
        };
        let start_bytes = self.issued_bytes;
        let left_bytes = len.bytes() - start_bytes;
        let len_bytes = left_bytes.min(max_bytes).min(remote.len_max_bytes(command));
        self.issued_bytes += len_bytes;
        self.is_issued = self.issued_bytes == len.bytes();
        let at = sector.bytes() + start_bytes;
        let payload = match (op, command) {
            (Op::Write, _) => {
                let skip_bytes = start_bytes as usize;
                let len_bytes = len_bytes as usize;
                Payload::Memory { memory, skip_bytes, len_bytes }
            }
            (_, Command::Write) => Payload::Zeros { len_bytes: len_bytes as usize },
            _ => Payload::None,
        };
        let fua = fua && remote.can_fua && op != Op::Read && !is_planted(Canary::RemoteFua);
        let request = Request { fua, ..Request::new(command, at..at + len_bytes) };
        Some(Issue { request, start_bytes, payload })
    }

    /// The next step. `needs_flush`: the server needs a flush to make a write stable.
    pub(super) fn next(&mut self, needs_flush: bool) -> Next {
        if self.uses > 0 {
            return Next::Wait;
        }
        if self.is_lost {
            return Next::Lost;
        }
        if self.status != BlkStatus::Ok {
            return Next::Answer(self.status);
        }
        if !self.is_issued {
            return Next::Wait;
        }
        if self.stage == Stage::Data
            && needs_flush
            && self.op.bio.fua
            && self.op.bio.op != Op::Flush
        {
            (self.stage, self.is_issued) = (Stage::Flush, false);
            return Next::Issue;
        }
        Next::Answer(BlkStatus::Ok)
    }

    /// Restarts a lost operation.
    pub(super) fn begin_again(&mut self) {
        assert_eq!(self.uses, 0, "a connection that uses its memory could still change data");
        let Self { is_queued, losses, lost_at, .. } = *self;
        *self = Self { is_queued, losses, lost_at, ..Self::new(self.op) };
    }

    /// Whether a lost connection had a request of it, which may be the cause.
    pub(super) fn is_suspect(&self) -> bool {
        self.losses > 0
    }

    /// Whether it has reached the limit of losses.
    pub(super) fn is_given_up(&self) -> bool {
        self.losses >= LOSSES_MAX
    }

    /// Notes a lost connection with a request of it, or a missing connection.
    pub(super) fn lose(&mut self) {
        self.is_lost = true;
    }

    /// Notes that a connection refused a request of it before sending.
    pub(super) fn refuse(&mut self, refusal: &Refusal) {
        match refusal {
            Refusal::NotOpen | Refusal::Closing => self.is_lost = true,
            _ if self.status == BlkStatus::Ok => self.status = BlkStatus::Invalid,
            _ => {}
        }
    }

    /// Whether a connection has a request or unsent payload of it.
    pub(super) fn is_used(&self) -> bool {
        self.uses > 0
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.is_abandoned
    }
}

/// All operations in flight, and the unflushed writes.
#[derive(Debug)]
pub(super) struct Ops {
    pending: Slab<Pending>,
    pub(super) unflushed: Arc<Unflushed>,
}

impl Ops {
    pub(super) fn new(unflushed: Arc<Unflushed>) -> Self {
        Self { pending: Slab::default(), unflushed }
    }

    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn insert(&mut self, op: DeviceBio) -> u32 {
        self.pending.insert(Pending::new(op))
    }

    pub(super) fn remove(&mut self, index: u32) -> DeviceBio {
        let pending = self.pending.remove(index);
        assert_eq!(pending.uses, 0, "no connection uses a completed operation");
        pending.op
    }

    pub(super) fn at(&mut self, index: u32) -> &mut Pending {
        self.pending.at(index)
    }

    pub(super) fn get(&self, index: u32) -> &Pending {
        self.pending.get(index)
    }

    /// Notes that a connection has a request or payload of it.
    pub(super) fn use_begins(&mut self, index: u32) {
        self.pending.at(index).uses += 1;
    }

    /// Ends a use. An operation without uses is moved to `unused`.
    pub(super) fn use_ends(&mut self, index: u32, unused: &mut Vec<u32>) {
        let uses = &mut self.pending.at(index).uses;
        *uses = uses.checked_sub(1).expect("each use ends once");
        if *uses == 0 {
            unused.push(index);
        }
    }

    /// Handles the reply to a request, on a connection made at `made`.
    pub(super) fn replied(&mut self, index: u32, made: Instant, result: Result<(), Errno>) {
        let pending = self.pending.at(index);
        match result {
            Ok(()) => {}
            // It counts, because a server may reply so to each attempt.
            Err(Errno::Shutdown) => self.lost(index, made),
            Err(error) if pending.status == BlkStatus::Ok => pending.status = status_of(error),
            Err(_) => {}
        }
    }

    /// Notes the loss of a connection made at `made` that had a request of it.
    pub(super) fn lost(&mut self, index: u32, made: Instant) {
        let pending = self.pending.at(index);
        // Several requests lost with one connection count once.
        let is_new = pending.lost_at.is_none_or(|at| made > at);
        pending.losses += u8::from(!pending.is_lost && is_new);
        pending.lost_at = Some(Instant::now());
        pending.lose();
    }

    /// Lists the operations of a client that is about to end.
    pub(super) fn abandon(&mut self, client: IoContext, to: &mut Vec<u32>) {
        for (index, pending) in self.pending.iter_mut() {
            if pending.op.client == client {
                pending.is_abandoned = true;
                to.push(index);
            }
        }
    }
}

/// The status of a server's error. `EIO` is an error of its disk (RFD 5, 5): another path would
/// report it too.
fn status_of(error: Errno) -> BlkStatus {
    match error {
        Errno::Io | Errno::Perm => BlkStatus::Medium,
        Errno::NoSpc => BlkStatus::NoSpace,
        Errno::Inval | Errno::Overflow => BlkStatus::Invalid,
        Errno::NotSup => BlkStatus::NotSupported,
        // A later attempt, or another path, may succeed.
        Errno::NoMem => BlkStatus::IoError,
        Errno::Shutdown => BlkStatus::Transport,
    }
}
