//! Executes the calls of a task, all as direct I/O of the given length.
//!
//! | call | execution |
//! |---|---|
//! | `Read`, `Write` | direct I/O of the touched pages; the task waits |
//! | `Fsync` | a flush; written data is already at the device |
//! | `Submit`, `Commit`, `Reap`, `ReapBefore` | unchanged |
//! | `Layout` | writes the file once, because reading holes costs nothing; a volume stays unchanged
//! |
//! | `Create`, `Open`, `Close` | no effect: each file is a part of the target |
//! | `Priority` | sets the priority of the client's later requests |
//! | `Sleep` | real |
//! | `Usage` | resource usage of the task's thread ([`usage_of_this_thread`]) |
//!
//! A buffered write is marked like the kernel's write-back: asynchronous, unless its task flushes
//! often. A direct write is synchronous.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use blockyard_engine::bio::{BlkStatus, Done, Op};
use blockyard_engine::time::Nanos;
use blockyard_host::local::{Bytes, Client, Marks, Request};
use blockyard_workload::program::{
    Call, Content, DirectOp, FileId, Interface, Reaped, Returned, Task, Usage,
};

use super::gate::{Clock, Gate};
use super::tally::TaskTally;
use super::target::{Files, Region};

/// Buffered I/O consists of whole pages.
const PAGE_BYTES: u64 = 4096;
/// Length of each write of [`Call::Layout`].
const LAYOUT_BYTES: u64 = 1 << 20;
/// Error numbers of Linux.
const EIO: i32 = 5;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const EOPNOTSUPP: i32 = 95;

/// A failed call.
#[derive(Clone, Debug)]
pub(super) struct FailedCall {
    pub(super) call: Call,
    pub(super) error: i32,
}

/// The usage of this thread for a program.
fn usage_of_this_thread() -> Usage {
    let used = blockyard_host::usage::Usage::of_this_thread();
    let blockyard_host::usage::Usage { user, system, voluntary, involuntary } = used;
    Usage { user, system, switches: voluntary + involuntary, voluntary, involuntary }
}

/// A running task.
pub(super) struct Worker<'a> {
    pub(super) client: Client,
    pub(super) files: &'a Files,
    pub(super) clock: Clock,
    pub(super) gate: &'a Gate,
    /// Background tasks run beside the others, and are stopped after their end.
    pub(super) is_background: bool,
    pub(super) tally: Arc<TaskTally>,
    /// The first failed call, unless the task counts failures.
    pub(super) failed: Option<FailedCall>,
    /// Ended requests that were not reaped.
    pub(super) done: VecDeque<Done>,
    /// Emptied after each use; kept for its memory.
    pub(super) reaped: Vec<Reaped>,
    /// Time of the last clock reading.
    pub(super) now: Nanos,
    /// Number of submit and reap calls per clock reading, and the rest until the next.
    pub(super) calls_per_look: u32,
    pub(super) stale: u32,
}

impl Worker<'_> {
    /// Runs the task to its end; returns the end.
    pub(super) fn run<T: Task>(&mut self, task: &mut T) -> Nanos {
        let Some(started) = self.gate.wait_for_start() else { return self.clock.now() };
        let goes_nowhere = task.interface() == Interface::Nowhere;
        self.calls_per_look = task.calls_per_look();
        let mut now = started;
        let mut status = Ok(());
        let mut usage = Usage::default();
        loop {
            let call = task.next(now, &Returned { status, reaped: &self.reaped, usage });
            self.reaped.clear();
            if matches!(call, Call::Exit) || (self.is_background && self.gate.is_stopped()) {
                break;
            }
            if matches!(call, Call::Usage) {
                usage = usage_of_this_thread();
            }
            status =
                if goes_nowhere { self.answer(call) } else { self.execute(call, task.content()) };
            if let Err(error) = status {
                self.failed.get_or_insert(FailedCall { call, error });
            }
            now = match call {
                // The clock was read when the requests had ended.
                Call::Reap { .. } => self.now,
                Call::Submit { .. } | Call::Commit => self.glance(),
                _ => self.look(),
            };
        }
        let ended = now;
        if task.counts_errors() {
            self.failed = None;
        }
        // A stopped task waits too, because the device uses the memory in flight.
        self.client.wait(self.client.in_flight(), &mut self.done);
        self.done.clear();
        ended
    }

    fn execute(&mut self, call: Call, content: Option<&mut dyn Content>) -> Result<(), i32> {
        // A read of the task may end during any call, and is verified then.
        let mut known = Known(content);
        match call {
            Call::Create(file)
            | Call::CreateIn { file, .. }
            | Call::Open(file)
            | Call::Close(file) => self.region(file).map(|_| ()),
            Call::MakeDirectories(_) => Ok(()),
            Call::Read { file, offset_bytes, len_bytes } => {
                self.transfer(Op::Read, (file, offset_bytes), len_bytes, &mut known)
            }
            Call::Write { file, offset_bytes, len_bytes } => {
                self.transfer(Op::Write, (file, offset_bytes), len_bytes, &mut known)
            }
            Call::Fsync(_) | Call::Sync => self.wait_for(self.request(Op::Flush, 0, 0), &mut known),
            Call::Layout { file, .. } if !self.files.lays_out => self.region(file).map(|_| ()),
            Call::Layout { file, len_bytes } => self.lay_out(file, len_bytes, &mut known),
            Call::Submit { id, file, op, offset_bytes, len_bytes, more } => {
                if more {
                    self.client.plug();
                }
                let direct = self.direct(id, file, op, (offset_bytes, len_bytes));
                let started = direct.map(|request| self.start(request, &mut known));
                if !more {
                    self.client.unplug();
                }
                started
            }
            Call::Commit => {
                self.client.unplug();
                Ok(())
            }
            Call::Reap { at_least, at_most } => {
                self.reap(at_least, at_most, &mut known);
                Ok(())
            }
            Call::ReapBefore(until) => {
                let left = Duration::from_nanos(until.since(self.clock.now()).0);
                self.client.wait_bytes_for(left, &mut self.done, &mut known);
                self.reap(0, u32::MAX, &mut known);
                Ok(())
            }
            Call::Sleep(pause) => {
                self.gate.sleep(pause, self.is_background);
                Ok(())
            }
            Call::Priority(priority) => {
                self.client.set_priority(priority);
                Ok(())
            }
            Call::Usage => Ok(()),
            Call::Exit => unreachable!("handled by the caller"),
        }
    }

    fn look(&mut self) -> Nanos {
        self.now = self.clock.now();
        self.now
    }

    /// Reads the clock once per several calls: a reading costs a tenth of a request on an immediate
    /// device.
    fn glance(&mut self) -> Nanos {
        match self.stale {
            0 => {
                self.stale = self.calls_per_look - 1;
                self.look()
            }
            _ => {
                self.stale -= 1;
                self.now
            }
        }
    }

    /// The result of a call without I/O.
    fn answer(&mut self, call: Call) -> Result<(), i32> {
        match call {
            Call::Submit { id, .. } => {
                self.done.push_back(Done { user: id.into(), status: BlkStatus::Ok });
                Ok(())
            }
            Call::Reap { at_most, .. } => {
                let ended = self.glance();
                let most = self.done.len().min(at_most as usize);
                let reaped = |done: Done| Reaped {
                    id: u32::try_from(done.user).expect("a task numbers them so"),
                    status: Ok(()),
                    ended,
                };
                self.reaped.extend(self.done.drain(..most).map(reaped));
                Ok(())
            }
            Call::Sleep(_) => self.execute(call, None),
            _ => Ok(()),
        }
    }

    fn region(&self, file: FileId) -> Result<Region, i32> {
        self.files.regions.get(file.0 as usize).copied().ok_or(EINVAL)
    }

    /// The position of a file's range on the target.
    fn place(&self, file: FileId, offset_bytes: u64, len_bytes: u64) -> Result<u64, i32> {
        let region = self.region(file)?;
        let end = offset_bytes.checked_add(len_bytes).filter(|end| *end <= region.len_bytes);
        end.map(|_| region.start_bytes + offset_bytes).ok_or(ENOSPC)
    }

    fn request(&self, op: Op, offset_bytes: u64, len_bytes: u64) -> Request {
        Request { user: u64::MAX, op, offset_bytes, len_bytes, sync: false }
    }

    fn check_permitted(&self, op: Op) -> Result<(), i32> {
        let is_permitted = !self.files.read_only || matches!(op, Op::Read | Op::Flush);
        if is_permitted { Ok(()) } else { Err(EROFS) }
    }

    /// Executes a buffered call on the touched pages.
    fn transfer(
        &mut self,
        op: Op,
        (file, at): (FileId, u64),
        len_bytes: u64,
        known: &mut Known<'_>,
    ) -> Result<(), i32> {
        if len_bytes == 0 {
            return Ok(());
        }
        self.check_permitted(op)?;
        let place = self.place(file, at, len_bytes)?;
        let first = place - place % PAGE_BYTES;
        let end = (place + len_bytes).next_multiple_of(PAGE_BYTES);
        self.tally.add(op, end - first);
        self.wait_for(self.request(op, first, end - first), known)
    }

    /// Submits a request and waits for it; other ended requests are kept for the next reap.
    fn wait_for(&mut self, request: Request, known: &mut Known<'_>) -> Result<(), i32> {
        self.client.submit_bytes(request, known);
        loop {
            let own = self.done.iter().position(|done| done.user == request.user);
            if let Some(own) = own.and_then(|own| self.done.remove(own)) {
                return error_of(own.status);
            }
            self.client.wait_bytes(1, &mut self.done, known);
        }
    }

    fn lay_out(&mut self, file: FileId, len_bytes: u64, known: &mut Known<'_>) -> Result<(), i32> {
        let start = self.place(file, 0, len_bytes)?;
        let len_bytes = len_bytes.next_multiple_of(PAGE_BYTES);
        for done in (0..len_bytes).step_by(LAYOUT_BYTES as usize) {
            let len_bytes = LAYOUT_BYTES.min(len_bytes - done);
            self.wait_for(self.request(Op::Write, start + done, len_bytes), known)?;
        }
        Ok(())
    }

    fn direct(
        &self,
        id: u32,
        file: FileId,
        op: DirectOp,
        (offset_bytes, len_bytes): (u64, u64),
    ) -> Result<(Request, Marks), i32> {
        let place = self.place(file, offset_bytes, len_bytes)?;
        if let DirectOp::Bio { op, sync, fua, preflush } = op {
            self.check_permitted(op)?;
            let request = Request { user: id.into(), op, offset_bytes: place, len_bytes, sync };
            return Ok((request, Marks { fua, preflush }));
        }
        let (op, offset_bytes, sync) = match op {
            DirectOp::Read => (Op::Read, place, false),
            DirectOp::Write => (Op::Write, place, true),
            DirectOp::Flush => (Op::Flush, 0, false),
            DirectOp::Discard => (Op::Discard, place, true),
            DirectOp::Bio { .. } => unreachable!("handled above"),
        };
        self.check_permitted(op)?;
        let request = Request { user: id.into(), op, offset_bytes, len_bytes, sync };
        Ok((request, Marks::default()))
    }

    fn start(&mut self, (request, marks): (Request, Marks), known: &mut Known<'_>) {
        self.tally.add(request.op, request.len_bytes);
        match known.0 {
            Some(_) => self.client.submit_bytes(request, known),
            None => self.client.submit_marked(request, marks),
        }
    }

    fn reap(&mut self, at_least: u32, at_most: u32, known: &mut Known<'_>) {
        let missing = (at_least as usize).saturating_sub(self.done.len());
        let missing = missing.min(self.client.in_flight());
        // Ended requests are taken before the next poll, so that many in flight need one poll.
        if missing > 0 || self.done.is_empty() {
            self.client.wait_bytes(missing, &mut self.done, known);
        }
        let ended = self.glance();
        for Done { user, status } in self.done.drain(..self.done.len().min(at_most as usize)) {
            let id = u32::try_from(user).expect("a call waits for the others itself");
            let status = error_of(status);
            if let Err(error) = status {
                let call = Call::Reap { at_least, at_most };
                self.failed.get_or_insert(FailedCall { call, error });
            }
            self.reaped.push(Reaped { id, status, ended });
        }
    }
}

/// The data of a task's requests for its client, if the task provides it.
struct Known<'a>(Option<&'a mut dyn Content>);

impl Known<'_> {
    /// Only a task's submitted requests have ids; those of blocking calls do not.
    fn id(user: u64) -> Option<u32> {
        u32::try_from(user).ok()
    }
}

impl Bytes for Known<'_> {
    fn fill(&mut self, user: u64, bytes: &mut [u8]) {
        if let (Some(content), Some(id)) = (&mut self.0, Self::id(user)) {
            content.fill(id, bytes);
        }
    }

    fn check(&mut self, user: u64, bytes: &[u8]) {
        if let (Some(content), Some(id)) = (&mut self.0, Self::id(user)) {
            content.check(id, bytes);
        }
    }
}

fn error_of(status: BlkStatus) -> Result<(), i32> {
    match status {
        BlkStatus::Ok => Ok(()),
        BlkStatus::NotSupported => Err(EOPNOTSUPP),
        BlkStatus::NoSpace => Err(ENOSPC),
        BlkStatus::Invalid => Err(EINVAL),
        BlkStatus::Transport | BlkStatus::Medium | BlkStatus::IoError => Err(EIO),
    }
}
