//! What other threads have answered to one executor: crypto workers and disks.
//!
//! Its eventfd becomes readable on the transition from none to some, and is written only then.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use blockyard_engine::sq::Cqe;
use rustix::event::{EventfdFlags, eventfd};

#[derive(Default)]
struct Unread {
    cqes: Vec<Cqe>,
    taken: Taken,
}

/// The inbox of one executor.
pub(crate) struct Answers {
    unread: Mutex<Unread>,
    ready: OwnedFd,
}

/// How many have done what they were given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) from_workers: usize,
    pub(crate) from_disks: usize,
}

impl Answers {
    pub(crate) fn new() -> std::io::Result<Arc<Self>> {
        let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { unread: Mutex::default(), ready }))
    }

    /// A worker is done. Without an answer it has passed the operation on to a disk.
    pub(crate) fn push_worked(&self, cqe: Option<Cqe>) {
        self.push(|unread| {
            unread.cqes.extend(cqe);
            unread.taken.from_workers += 1;
        });
    }

    /// The answers of a disk, all that it has.
    pub(crate) fn push_disk(&self, cqes: &mut Vec<Cqe>) {
        self.push(|unread| {
            unread.taken.from_disks += cqes.len();
            unread.cqes.append(cqes);
        });
    }

    fn push(&self, put: impl FnOnce(&mut Unread)) {
        let mut unread = self.unread.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = unread.taken == Taken::default();
        put(&mut unread);
        if was_empty {
            let _ = rustix::io::write(&self.ready, &1u64.to_ne_bytes());
        }
    }

    /// Moves the answers to the end of `out`.
    pub(crate) fn take(&self, out: &mut Vec<Cqe>) -> Taken {
        let mut unread = self.unread.lock().unwrap_or_else(PoisonError::into_inner);
        if unread.taken != Taken::default() {
            let mut count = [0u8; 8];
            let _ = rustix::io::read(&self.ready, &mut count);
            out.append(&mut unread.cqes);
        }
        std::mem::take(&mut unread.taken)
    }

    /// Readable while there are answers.
    pub(crate) fn ready(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}
