//! Blocking operations: they go to a ring, or the waiting thread makes a system call.
//!
//! ```text
//! start ─ awaited, and nothing else is in flight ─> held ── wait ──> one system call
//!   │                                                │ another comes, or nobody waits
//!   └──────────────────────> ring <─────────────────┘
//! ```
//! A ring serves many operations at a time, and threads with other work. A lone synchronous
//! operation is one blocking system call: the thread then sleeps for the device itself, without a
//! completion through another thread's interrupt.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};

use blockyard_engine::bio::{Op, Sector};
use blockyard_engine::request::Tag;
use blockyard_engine::sq::{DevId, Token};

use crate::file_op::FileOp;
use crate::ring::Ring;
use crate::sync_io;

/// Destination of a completion.
#[derive(Clone, Copy)]
pub(super) enum User {
    /// An SQE: token, device and operation.
    Sqe(Token, DevId, Op, Sector),
    /// A request of this executor's queue for the device.
    Request(DevId, Tag),
}

/// The ring of an executor, and the one operation that may bypass it.
#[derive(Default)]
pub(super) struct Blocking {
    ring: Option<Ring<User>>,
    /// Files of the ring.
    files: Vec<RawFd>,
    /// The system refused a ring; all operations are plain calls.
    without_ring: bool,
    /// The submitter waits for the next operation, with nothing else to do.
    is_awaited: bool,
    held: Option<FileOp<User>>,
    /// Memory of `held`, valid until it has ended.
    memory: Vec<libc::iovec>,
    /// Result of the held operation.
    ended: Option<(User, io::Result<()>)>,
}

// SAFETY: the pointers in `memory` are only passed to the kernel; the operation owns the memory
// behind them.
unsafe impl Send for Blocking {}

impl Blocking {
    /// For operations on these files.
    pub(super) fn new(files: Vec<RawFd>) -> Self {
        Self { files, ..Self::default() }
    }

    /// Sets whether the submitter waits for the following operations, with nothing else to do. If
    /// not, a held operation goes to the ring.
    pub(super) fn set_awaited(&mut self, is_awaited: bool) {
        self.is_awaited = is_awaited;
        if !is_awaited && self.held.is_some() {
            self.let_go();
            self.submit();
        }
    }

    /// Whether the submitter waits only for the next operation.
    pub(super) fn is_alone(&self) -> bool {
        self.is_awaited && self.in_flight() == 0
    }

    /// Accepts an operation; [`Blocking::submit`] starts it. `Some` if it has already ended, for
    /// lack of a ring.
    ///
    /// # Safety
    /// The memory stays valid, and unaliased by Rust references, until the operation is answered or
    /// this is dropped.
    pub(super) unsafe fn start(
        &mut self,
        op: FileOp<User>,
        memory: &[libc::iovec],
    ) -> Option<io::Result<()>> {
        // Created on first use: a connection to a file in memory needs no ring.
        if self.ring.is_none() && !self.without_ring {
            self.ring = Ring::new(0, self.files.clone()).ok();
            self.without_ring = self.ring.is_none();
        }
        let is_alone = self.is_alone();
        self.let_go();
        self.memory.clear();
        self.memory.extend_from_slice(memory);
        if self.without_ring {
            // SAFETY: guaranteed by the caller.
            return Some(unsafe { sync_io::execute(op.fd, op.kind, &mut self.memory) });
        }
        self.held = Some(op);
        if !is_alone {
            self.let_go();
        }
        None
    }

    /// Passes the held operation to the ring, because the submitter does not wait for it alone.
    fn let_go(&mut self) {
        if let (Some(op), Some(ring)) = (self.held.take(), &mut self.ring) {
            // SAFETY: guaranteed by the caller of `start`.
            unsafe { ring.push(op, &self.memory) };
        }
    }

    /// Starts the operations of the ring.
    pub(super) fn submit(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.submit();
        }
    }

    /// Waits until an operation has ended, if any is in flight; returns whether it waited. Nothing
    /// else wakes this thread meanwhile.
    pub(super) fn wait(&mut self) -> bool {
        if let Some(op) = self.held.take() {
            // SAFETY: guaranteed by the caller of `start`.
            let result = unsafe { sync_io::execute(op.fd, op.kind, &mut self.memory) };
            self.ended = Some((op.user, result));
            return true;
        }
        let ring = self.ring.as_mut().filter(|ring| ring.in_flight() > 0);
        ring.map(Ring::wait).is_some()
    }

    /// Moves ended operations to the end of `out`.
    pub(super) fn take(&mut self, out: &mut Vec<(User, io::Result<()>)>) {
        out.extend(self.ended.take());
        if let Some(ring) = self.ring.as_mut().filter(|ring| ring.in_flight() > 0) {
            ring.take(out);
        }
    }

    /// Waits for all operations at the system; returns their results. A held operation was never
    /// started.
    pub(super) fn end(&mut self) -> Vec<(User, io::Result<()>)> {
        self.held = None;
        let mut ended = Vec::from_iter(self.ended.take());
        while let Some(ring) = self.ring.as_mut().filter(|ring| ring.in_flight() > 0) {
            ring.wait();
            ring.take(&mut ended);
        }
        ended
    }

    /// Number of operations in flight.
    pub(super) fn in_flight(&self) -> usize {
        let without_ring = usize::from(self.held.is_some()) + usize::from(self.ended.is_some());
        without_ring + self.ring.as_ref().map_or(0, Ring::in_flight)
    }

    /// Descriptor that becomes readable when the ring has completions.
    pub(super) fn ready(&self) -> Option<BorrowedFd<'_>> {
        self.ring.as_ref().filter(|ring| ring.in_flight() > 0).map(AsFd::as_fd)
    }
}
