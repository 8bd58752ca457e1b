//! Operations that would block: they go to a ring, or the thread that waits for them does them.
//!
//! ```text
//! start ─ awaited, and nothing else is in flight ─> held ── wait ──> one system call
//!   │                                                │ another comes, or nobody waits
//!   └──────────────────────> ring <─────────────────┘
//! ```
//! A ring is for many at a time, and for a thread that has something else to do meanwhile. One
//! whose submitter waits for nothing else is a plain call: the thread then sleeps in the device's
//! name, and not for a completion that another thread's interrupt has to bring.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};

use blockyard_engine::bio::Op;
use blockyard_engine::request::Tag;
use blockyard_engine::sq::{DevId, Token};

use crate::file_op::FileOp;
use crate::ring::Ring;
use crate::sync_io;

/// Whose answer a completion is.
#[derive(Clone, Copy)]
pub(super) enum User {
    /// To an SQE, as it is: what it is, and on which device.
    Sqe(Token, DevId, Op),
    /// To a request of this executor's queue for the device.
    Request(DevId, Tag),
}

/// The ring of an executor, and the one operation that may do without.
#[derive(Default)]
pub(super) struct Blocking {
    ring: Option<Ring<User>>,
    /// What the ring may read and write.
    files: Vec<RawFd>,
    /// The system refused a ring: everything is done with plain calls.
    without_ring: bool,
    /// What is started next is waited for, and nothing else is done meanwhile.
    is_awaited: bool,
    held: Option<FileOp<User>>,
    /// That of `held`, and its own until it has ended.
    memory: Vec<libc::iovec>,
    /// What was held, once it has been done.
    ended: Option<(User, io::Result<()>)>,
}

// SAFETY: the pointers in `memory` are only passed on to the kernel; what they point to belongs to
// the operation.
unsafe impl Send for Blocking {}

impl Blocking {
    /// For operations on these files.
    pub(super) fn new(files: Vec<RawFd>) -> Self {
        Self { files, ..Self::default() }
    }

    /// Whether the submitter waits for what is started from now on, with nothing else to do. If it
    /// does not, what was held goes to the ring.
    pub(super) fn set_awaited(&mut self, is_awaited: bool) {
        self.is_awaited = is_awaited;
        if !is_awaited && self.held.is_some() {
            self.let_go();
            self.submit();
        }
    }

    /// Whether the submitter waits for the next operation and for nothing else.
    pub(super) fn is_alone(&self) -> bool {
        self.is_awaited && self.in_flight() == 0
    }

    /// Takes an operation; [`Blocking::submit`] starts it. `Some` if it has already ended, because
    /// there is no ring.
    ///
    /// # Safety
    /// The memory stays valid, and unaliased by Rust references, until the operation is answered or
    /// this is dropped.
    pub(super) unsafe fn start(
        &mut self,
        op: FileOp<User>,
        memory: &[libc::iovec],
    ) -> Option<io::Result<()>> {
        // Lazily: a connection to a file in memory needs none.
        if self.ring.is_none() && !self.without_ring {
            self.ring = Ring::new(0, self.files.clone()).ok();
            self.without_ring = self.ring.is_none();
        }
        let is_alone = self.is_alone();
        self.let_go();
        self.memory.clear();
        self.memory.extend_from_slice(memory);
        if self.without_ring {
            // SAFETY: as the caller promises.
            return Some(unsafe { sync_io::execute(op.fd, op.kind, &mut self.memory) });
        }
        self.held = Some(op);
        if !is_alone {
            self.let_go();
        }
        None
    }

    /// What is held is not waited for, or not alone.
    fn let_go(&mut self) {
        if let (Some(op), Some(ring)) = (self.held.take(), &mut self.ring) {
            // SAFETY: as the caller of `start` has promised.
            unsafe { ring.push(op, &self.memory) };
        }
    }

    /// Starts what the ring was given.
    pub(super) fn submit(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.submit();
        }
    }

    /// Waits until something has ended, if something is in flight, and says so. Meanwhile nothing
    /// else wakes this thread.
    pub(super) fn wait(&mut self) -> bool {
        if let Some(op) = self.held.take() {
            // SAFETY: as the caller of `start` has promised.
            let result = unsafe { sync_io::execute(op.fd, op.kind, &mut self.memory) };
            self.ended = Some((op.user, result));
            return true;
        }
        let ring = self.ring.as_mut().filter(|ring| ring.in_flight() > 0);
        ring.map(Ring::wait).is_some()
    }

    /// Moves what has ended to the end of `out`.
    pub(super) fn take(&mut self, out: &mut Vec<(User, io::Result<()>)>) {
        out.extend(self.ended.take());
        if let Some(ring) = self.ring.as_mut().filter(|ring| ring.in_flight() > 0) {
            ring.take(out);
        }
    }

    /// Waits for everything that the system has been given; how it ended. What is held was not.
    pub(super) fn end(&mut self) -> Vec<(User, io::Result<()>)> {
        self.held = None;
        let mut ended = Vec::from_iter(self.ended.take());
        while let Some(ring) = self.ring.as_mut().filter(|ring| ring.in_flight() > 0) {
            ring.wait();
            ring.take(&mut ended);
        }
        ended
    }

    /// How many operations have not been taken.
    pub(super) fn in_flight(&self) -> usize {
        let without_ring = usize::from(self.held.is_some()) + usize::from(self.ended.is_some());
        without_ring + self.ring.as_ref().map_or(0, Ring::in_flight)
    }

    /// What becomes readable when the ring has something.
    pub(super) fn ready(&self) -> Option<BorrowedFd<'_>> {
        self.ring.as_ref().filter(|ring| ring.in_flight() > 0).map(AsFd::as_fd)
    }
}
