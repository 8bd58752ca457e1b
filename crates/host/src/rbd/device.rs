//! The thread of an image: passes operations of all clients to librbd, and their results back.
//!
//! ```text
//!   Data ──────────────────────── ended ──> (answered)
//!    └─ a FUA write ──> Flush ─── ended ──> (answered)
//! ```

use std::ffi::c_void;
use std::io;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use blockyard_engine::bio::{Bio, BlkStatus, Op, Sample};
use blockyard_engine::slab::Slab;
use blockyard_engine::sq::Cqe;

use super::errno_of;
use super::gateway::Gateway;
use super::image::Image;
use super::library::{Completion, ImageHandle, Operations};
use crate::device_thread::{Clients, DeviceBio, DeviceThread, Inbox, Shared};
use crate::durability::{Durability, loss_of};
use crate::file_op::{self, iovec};
use crate::poll;
use crate::stages::{self, Span, Stage, Timed};

/// A cluster without an answer for this time is reported. Ours.
const REPORT_AFTER: Duration = Duration::from_secs(10);

/// Starts the thread of the table's device with this number.
///
/// # Errors
/// The system has no more descriptors or threads.
pub(super) fn start(
    number: usize,
    image: Arc<Image>,
    durability: Arc<Durability>,
) -> io::Result<DeviceThread> {
    // Before any client can connect.
    let mut gateway = Gateway::default();
    if image.is_gateway() {
        gateway.learn(image.takeovers());
    }
    DeviceThread::start(format!("rbd/{number}"), move |inbox| {
        if image.is_gateway() {
            image.changes().tell_device(Arc::clone(&inbox));
        }
        Running::new(image, durability, inbox, gateway).run();
    })
}

/// Results of ended operations.
struct Finished {
    results: Mutex<Vec<(u32, isize)>>,
    inbox: Arc<Shared>,
}

/// The argument of a callback.
struct Ticket {
    finished: Arc<Finished>,
    index: u32,
    result_of: unsafe extern "C" fn(Completion) -> isize,
    release: unsafe extern "C" fn(Completion) -> (),
}

/// Notes the result of an operation. Runs in a thread of librbd.
///
/// # Safety
/// `argument` is a [`Ticket`] that nothing else uses, and `completion` its completion.
unsafe extern "C" fn note(completion: Completion, argument: *mut c_void) {
    // SAFETY: guaranteed by the caller; each operation has one callback.
    let ticket = unsafe { Box::from_raw(argument.cast::<Ticket>()) };
    // SAFETY: the operation of this completion has ended; it is not used afterwards.
    let result = unsafe {
        let result = (ticket.result_of)(completion);
        (ticket.release)(completion);
        result
    };
    let mut results = ticket.finished.results.lock().unwrap_or_else(PoisonError::into_inner);
    results.push((ticket.index, result));
    let is_first = results.len() == 1;
    drop(results);
    if is_first {
        ticket.finished.inbox.nudge();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Data,
    Flush,
}

/// An operation in flight.
struct Pending {
    op: DeviceBio,
    step: Step,
    since: Instant,
    /// The pieces of its memory, which librbd uses until its end.
    pieces: Vec<libc::iovec>,
    /// Memory of a check, whose bytes are not used.
    scratch: Vec<u8>,
}

/// State of the thread.
struct Running {
    image: Arc<Image>,
    operations: &'static Operations,
    /// Latch of the volume.
    durability: Arc<Durability>,
    inbox: Arc<Shared>,
    finished: Arc<Finished>,
    ops: Slab<Pending>,
    clients: Clients,
    is_stopping: bool,
    is_late: bool,
    /// Unused if the image has no other server.
    gateway: Gateway,
    /// Emptied after each use; kept for their memory.
    received: Inbox,
    results: Vec<(u32, isize)>,
}

impl Running {
    fn new(
        image: Arc<Image>,
        durability: Arc<Durability>,
        inbox: Arc<Shared>,
        gateway: Gateway,
    ) -> Self {
        let results = Mutex::new(Vec::new());
        let finished = Arc::new(Finished { results, inbox: Arc::clone(&inbox) });
        Self {
            operations: &image.library().operations,
            image,
            durability,
            inbox,
            finished,
            ops: Slab::default(),
            clients: Clients::default(),
            is_stopping: false,
            is_late: false,
            gateway,
            received: Inbox::default(),
            results: Vec::new(),
        }
    }

    fn run(&mut self) {
        loop {
            self.receive();
            self.collect();
            self.clients.answer();
            if self.is_stopping && self.ops.is_empty() {
                return;
            }
            if self.gateway.is_fenced && self.ops.is_empty() {
                self.reopen();
            }
            self.sleep();
        }
    }

    fn receive(&mut self) {
        let mut received = std::mem::take(&mut self.received);
        self.inbox.take(&mut received);
        let Inbox { joined, bios, batches, abandoned, left, nudged, ending, stopping } =
            &mut received;
        batches.clear();
        (*nudged, *ending) = (false, false);
        let has_news = self.image.changes().take() || !joined.is_empty();
        for joined in joined.drain(..) {
            self.gateway.join(joined.io_context, joined.since);
            self.clients.join(joined);
        }
        // Started operations cannot be cancelled; the time limit of the cluster ends them.
        abandoned.drain(..).for_each(|io_context| self.gateway.abandon(io_context));
        for op in bios.drain(..) {
            let index = self.ops.insert(Pending {
                op,
                step: Step::Data,
                since: Instant::now(),
                pieces: Vec::new(),
                scratch: Vec::new(),
            });
            self.issue(index);
        }
        for io_context in left.drain(..) {
            self.clients.leave(io_context);
            self.gateway.leave(io_context);
        }
        if has_news && self.image.is_gateway() {
            // For clients that connect later.
            self.gateway.learn(self.image.takeovers());
        }
        self.is_stopping |= std::mem::take(stopping);
        self.received = received;
    }

    /// Whether an operation may go to the cluster. A gateway that was fenced passes nothing on
    /// until it has opened the image again. It writes only for clients that have connected after
    /// the last takeover by another one, and wait for the answer.
    fn admit(&mut self, index: u32) -> io::Result<()> {
        if !self.image.is_gateway() {
            return Ok(());
        }
        if self.gateway.is_fenced {
            return Err(io::Error::from_raw_os_error(libc::ESHUTDOWN));
        }
        let DeviceBio { bio, client, .. } = self.ops.at(index).op;
        if matches!(bio.op, Op::Read | Op::Flush) {
            return Ok(());
        }
        self.image.admit(self.gateway.seen_by(client)?)
    }

    /// Opens the image again after another gateway has fenced this one.
    fn reopen(&mut self) {
        match self.image.reopen() {
            Ok(()) => {
                self.gateway.is_fenced = false;
                self.gateway.learn(self.image.takeovers());
                self.image.say_once("the image is open again, without its lock");
            }
            Err(problem) => {
                self.image.say_once(&format!("cannot open the image again: {problem}"));
            }
        }
    }

    /// Passes the present step of an operation to librbd.
    fn issue(&mut self, index: u32) {
        if let Err(error) = self.admit(index) {
            return self.end(index, Err(error));
        }
        if self.ops.at(index).op.bio.op == Op::Flush && self.image.is_idle_gateway() {
            return self.end(index, Ok(()));
        }
        let ticket = Box::new(Ticket {
            finished: Arc::clone(&self.finished),
            index,
            result_of: self.operations.rbd_aio_get_return_value,
            release: self.operations.rbd_aio_release,
        });
        let ticket = Box::into_raw(ticket);
        let mut completion: Completion = ptr::null_mut();
        // SAFETY: the callback takes the ticket, once.
        let made = errno_of(unsafe {
            let to = &raw mut completion;
            (self.operations.rbd_aio_create_completion)(ticket.cast(), note, to)
        });
        let pending = self.ops.at(index);
        let started = made.and_then(|()| {
            // SAFETY: the operation's memory stays until its completion, and so do its pieces.
            let started =
                unsafe { pending.start(self.operations, self.image.handle(), completion) };
            errno_of(started).inspect_err(|_| {
                // SAFETY: an operation that did not start has no callback.
                unsafe { (self.operations.rbd_aio_release)(completion) };
            })
        });
        if let Err(error) = started {
            // SAFETY: the callback will not come.
            drop(unsafe { Box::from_raw(ticket) });
            self.end(index, Err(error));
        }
    }

    /// Handles the results.
    fn collect(&mut self) {
        let mut results = std::mem::take(&mut self.results);
        {
            let mut finished = self.finished.results.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut *finished, &mut results);
        }
        for (index, result) in results.drain(..) {
            let pending = self.ops.at(index);
            let outcome = pending.outcome(result);
            let wants_flush = pending.op.bio.fua && pending.step == Step::Data;
            if wants_flush && outcome.is_ok() {
                pending.step = Step::Flush;
                self.issue(index);
            } else {
                self.end(index, outcome);
            }
        }
        self.results = results;
    }

    /// Completes an operation.
    fn end(&mut self, index: u32, outcome: io::Result<()>) {
        let Pending { op, .. } = self.ops.remove(index);
        let status = self.status(outcome);
        if let Some(loss) = loss_of(&op.bio, status, self.image.is_path()) {
            self.durability.lose(self.image.name().to_string(), loss, status);
        }
        if op.bio.origin.sample != Sample::NONE {
            // The cluster and the network count as the device.
            let span = Span { stage: Stage::Device, from: op.submitted, to: stages::now() };
            self.clients.time(op.client, Timed { sample: op.bio.origin.sample, span });
        }
        self.clients.put(op.client, Cqe { token: op.token, status }, op.borrows);
    }

    /// The status of a result. A failure that all operations share is reported once.
    fn status(&mut self, outcome: io::Result<()>) -> BlkStatus {
        let Err(error) = outcome else { return BlkStatus::Ok };
        let limit = self.image.limit().as_secs();
        let (status, said) = match error.raw_os_error() {
            Some(libc::ETIMEDOUT) => (
                BlkStatus::Transport,
                format!("the cluster did not answer within {limit} s, or is full; requests fail"),
            ),
            // `EBLOCKLISTED`.
            Some(libc::ESHUTDOWN) => {
                self.gateway.is_fenced = self.image.is_gateway();
                (
                    BlkStatus::Transport,
                    "the cluster refuses this client, because another one has fenced it; requests \
                     fail until the image is opened again"
                        .into(),
                )
            }
            Some(libc::ESTALE) => (
                BlkStatus::Transport,
                "another gateway has taken the image over; clients must connect again to write"
                    .into(),
            ),
            // The client has gone.
            Some(libc::ECANCELED) => (BlkStatus::Transport, String::new()),
            Some(libc::EROFS) => (
                BlkStatus::Transport,
                "another client has the lock of the image; writes fail".into(),
            ),
            Some(libc::ENOENT) => (BlkStatus::IoError, "the image was removed".into()),
            // librbd refuses a range behind the end, and shortens one that crosses it.
            None | Some(libc::EINVAL) if self.image.is_shorter() => (
                BlkStatus::IoError,
                "the image was made shorter; requests behind its end fail".into(),
            ),
            _ => (file_op::status(Err(error)), String::new()),
        };
        if !said.is_empty() {
            self.image.say_once(&said);
        }
        // Without another path or gateway there is no other transport.
        match status {
            BlkStatus::Transport if !self.image.is_path() && !self.image.is_gateway() => {
                BlkStatus::IoError
            }
            status => status,
        }
    }

    fn sleep(&mut self) {
        let oldest = self.ops.iter_mut().map(|(_, pending)| pending.since).min();
        let waited = oldest.map(|since| since.elapsed());
        if let Some(waited) = waited.filter(|waited| *waited >= REPORT_AFTER)
            && !self.is_late
        {
            self.is_late = true;
            self.image.say_once(&format!(
                "the cluster has not answered for {} s; requests wait up to {} s",
                waited.as_secs(),
                self.image.limit().as_secs()
            ));
        }
        if waited.is_none_or(|waited| waited < REPORT_AFTER) && std::mem::take(&mut self.is_late) {
            self.image.say_once("the cluster answers");
        }
        let until = waited.filter(|_| !self.is_late).map(|waited| REPORT_AFTER - waited);
        if poll::readable(&[Some(self.inbox.as_fd())], until).is_err() {
            std::thread::yield_now();
        }
    }
}

impl Pending {
    /// Starts its step. Negative results are error numbers.
    ///
    /// # Safety
    /// The operation's memory stays until its completion.
    unsafe fn start(
        &mut self,
        operations: &Operations,
        image: ImageHandle,
        completion: Completion,
    ) -> i32 {
        let Bio { op, sector, len, .. } = self.op.bio;
        let at = sector.bytes();
        let len_bytes = len.bytes();
        if self.step == Step::Flush || op == Op::Flush {
            // SAFETY: the image is open, and the completion is new.
            return unsafe { (operations.rbd_aio_flush)(image, completion) };
        }
        // SAFETY: guaranteed by the caller.
        unsafe { self.gather(len_bytes as usize) };
        let count = i32::try_from(self.pieces.len()).expect("a bio has few pieces");
        let pieces = self.pieces.as_ptr();
        // SAFETY: the image is open, the completion is new, and the pieces stay with the operation.
        unsafe {
            match op {
                Op::Read => (operations.rbd_aio_readv)(image, pieces, count, at, completion),
                Op::Write => (operations.rbd_aio_writev)(image, pieces, count, at, completion),
                Op::Discard => (operations.rbd_aio_discard)(image, at, len_bytes, completion),
                Op::WriteZeroes => {
                    let len = len_bytes as usize;
                    (operations.rbd_aio_write_zeroes)(image, at, len, completion, 0, 0)
                }
                Op::Flush => unreachable!("it is above"),
            }
        }
    }

    /// Collects the pieces of its memory.
    ///
    /// # Safety
    /// The operation has not completed.
    unsafe fn gather(&mut self, len_bytes: usize) {
        if !matches!(self.op.bio.op, Op::Read | Op::Write) {
            return;
        }
        let pieces = &mut self.pieces;
        if self.op.is_check {
            self.scratch.resize(len_bytes, 0);
            pieces.push(iovec(self.scratch.as_mut_ptr(), len_bytes));
            return;
        }
        // SAFETY: guaranteed by the caller.
        unsafe { self.op.memory.each(0, len_bytes, |base, len| pieces.push(iovec(base, len))) };
    }

    /// The outcome of its step. A read has the number of its bytes.
    fn outcome(&self, result: isize) -> io::Result<()> {
        let Ok(moved) = u64::try_from(result) else {
            return Err(io::Error::from_raw_os_error(result.unsigned_abs() as i32));
        };
        let Bio { op, len, .. } = self.op.bio;
        let is_short = op == Op::Read && moved < len.bytes();
        if is_short { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use blockyard_engine::bio::{IoContext, Sector};
    use blockyard_engine::buf::BufRef;
    use blockyard_engine::sq::{Owner, Token};
    use blockyard_engine::time::Nanos;

    use super::*;
    use crate::memory::Memory;

    #[test]
    fn read_with_too_few_bytes_has_failed() {
        let bio = Bio::new(Op::Read, Sector(0), Sector(16), BufRef::NONE, 0);
        let op = DeviceBio {
            bio,
            memory: Memory::NONE,
            token: Token { owner: Owner::Shard, index: 0 },
            client: IoContext(0),
            borrows: false,
            is_check: false,
            submitted: Nanos(0),
        };
        let pieces = Vec::new();
        let since = Instant::now();
        let pending = Pending { op, step: Step::Data, since, pieces, scratch: Vec::new() };
        assert!(pending.outcome(8192).is_ok());
        let short = pending.outcome(4096).unwrap_err();
        assert_eq!(short.kind(), io::ErrorKind::UnexpectedEof);
        let refused = pending.outcome(-libc::EROFS as isize).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    }
}
