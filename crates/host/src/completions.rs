//! Completions from other threads to one executor: crypto workers and disks.
//!
//! The eventfd is written only if the executor is about to sleep and has asked for it. An executor
//! that finds the completions by polling makes no system call.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use blockyard_engine::sq::Cqe;
use blockyard_engine::time::Nanos;
use rustix::event::{EventfdFlags, eventfd};

use crate::stages::{Timed, now};

#[derive(Default)]
struct Unread {
    cqes: Vec<Cqe>,
    timed: Vec<Timed>,
    taken: Taken,
    /// The executor sleeps or is about to.
    wanted: bool,
    /// The eventfd is readable.
    signalled: bool,
}

/// The inbox of one executor.
pub(crate) struct CompletionQueue {
    unread: Mutex<Unread>,
    /// Whether there are completions, changed under the lock, for an executor that spins.
    has_unread: AtomicBool,
    ready: OwnedFd,
}

/// Number of workers' jobs done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) from_workers: usize,
    pub(crate) from_devices: usize,
    /// Number of device operations that had borrowed their memory.
    pub(crate) borrowed: usize,
}

impl CompletionQueue {
    pub(crate) fn new() -> std::io::Result<Arc<Self>> {
        let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { unread: Mutex::default(), has_unread: AtomicBool::new(false), ready }))
    }

    /// Adds the completions of a worker's job of some operations; it passed the missing ones on to
    /// a disk. `cqes` and `timed` are empty afterwards.
    pub(crate) fn push_worked(
        &self,
        cqes: &mut Vec<Cqe>,
        operations: usize,
        timed: &mut Vec<Timed>,
    ) {
        self.push(|unread| {
            unread.timed.append(timed);
            unread.cqes.append(cqes);
            unread.taken.from_workers += operations;
        });
    }

    /// Adds completions of a disk; `borrowed` of them are for operations that borrowed memory.
    pub(crate) fn push_device(&self, cqes: &mut Vec<Cqe>, timed: &mut Vec<Timed>, borrowed: usize) {
        self.push(|unread| {
            unread.timed.append(timed);
            unread.taken.from_devices += cqes.len();
            unread.taken.borrowed += borrowed;
            unread.cqes.append(cqes);
        });
    }

    fn push(&self, put: impl FnOnce(&mut Unread)) {
        let mut unread = self.unread.lock().unwrap_or_else(PoisonError::into_inner);
        put(&mut unread);
        self.has_unread.store(true, Ordering::Relaxed);
        if unread.wanted {
            self.signal(&mut unread);
        }
    }

    fn signal(&self, unread: &mut Unread) {
        (unread.wanted, unread.signalled) = (false, true);
        let _ = rustix::io::write(&self.ready, &1u64.to_ne_bytes());
    }

    /// Moves the completions to the end of `out`, and their timings to the end of `timed`.
    pub(crate) fn take(&self, out: &mut Vec<Cqe>, timed: &mut Vec<Timed>) -> Taken {
        let mut unread = self.unread.lock().unwrap_or_else(PoisonError::into_inner);
        unread.wanted = false;
        self.has_unread.store(false, Ordering::Relaxed);
        if std::mem::take(&mut unread.signalled) {
            let mut count = [0u8; 8];
            let _ = rustix::io::read(&self.ready, &mut count);
        }
        out.append(&mut unread.cqes);
        timed.append(&mut unread.timed);
        std::mem::take(&mut unread.taken)
    }

    /// Waits this long for completions without sleep; returns whether there are some.
    pub(crate) fn spin(&self, time: Nanos) -> bool {
        let until = now() + time;
        while !self.has_unread.load(Ordering::Relaxed) {
            if now() >= until {
                return false;
            }
            std::hint::spin_loop();
        }
        true
    }

    /// Readable while there are completions, until the next [`CompletionQueue::take`]. Call it
    /// before each sleep.
    pub(crate) fn ready(&self) -> BorrowedFd<'_> {
        let mut unread = self.unread.lock().unwrap_or_else(PoisonError::into_inner);
        if unread.taken == Taken::default() {
            unread.wanted = true;
        } else if !unread.signalled {
            self.signal(&mut unread);
        }
        self.ready.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::poll::readable;

    fn is_readable(completions: &CompletionQueue) -> bool {
        readable(&[Some(completions.ready.as_fd())], Some(Duration::ZERO)).unwrap()[0]
    }

    #[test]
    fn only_who_asked_before_sleeping_is_woken() {
        let completions = CompletionQueue::new().unwrap();
        completions.push_worked(&mut Vec::new(), 1, &mut Vec::new());
        assert!(!is_readable(&completions), "nobody sleeps");
        assert_eq!(completions.take(&mut Vec::new(), &mut Vec::new()).from_workers, 1);
        completions.ready();
        completions.push_worked(&mut Vec::new(), 1, &mut Vec::new());
        completions.push_worked(&mut Vec::new(), 1, &mut Vec::new());
        assert!(is_readable(&completions));
        assert_eq!(completions.take(&mut Vec::new(), &mut Vec::new()).from_workers, 2);
        assert!(!is_readable(&completions));
    }

    #[test]
    fn who_asks_after_the_answer_does_not_sleep() {
        let completions = CompletionQueue::new().unwrap();
        completions.push_worked(&mut Vec::new(), 1, &mut Vec::new());
        completions.ready();
        assert!(is_readable(&completions));
    }
}
