//! Frees a thread from a descriptor of a front end.
//!
//! Such descriptors are made non-blocking, but the flag belongs to both ends: a front end may take
//! it back, and then a write to a full event descriptor waits for good. A signal with an empty
//! handler ends the wait.

use std::os::unix::thread::JoinHandleExt;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

static INSTALL: Once = Once::new();

/// A signal that no other part of this process uses.
fn number() -> i32 {
    libc::SIGRTMIN() + 3
}

/// Whether a thread may wait in a descriptor of its front end.
#[derive(Debug, Default)]
pub(super) struct Foreign(AtomicBool);

impl Foreign {
    /// Uses such a descriptor. An interrupted call fails with `EINTR`.
    pub(super) fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        self.0.store(true, Ordering::SeqCst);
        let result = call();
        self.0.store(false, Ordering::SeqCst);
        result
    }

    /// Interrupts the call if there is one. The thread may be just before or behind it, so that
    /// this is repeated until the thread ends.
    pub(super) fn interrupt<T>(&self, thread: &JoinHandle<T>) {
        if self.0.load(Ordering::SeqCst) {
            // SAFETY: the thread is not joined while its handle exists, and the handler is empty.
            unsafe { libc::pthread_kill(thread.as_pthread_t() as libc::pthread_t, number()) };
        }
    }
}

/// Prepares this thread for interrupts.
pub(super) fn allow() {
    INSTALL.call_once(|| {
        // SAFETY: the action is fully initialised, and its handler does nothing. Without
        // SA_RESTART, so that a call ends.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let handler: extern "C" fn(i32) = ignore;
            action.sa_sigaction = handler as usize;
            libc::sigemptyset(&raw mut action.sa_mask);
            libc::sigaction(number(), &raw const action, std::ptr::null_mut());
        }
    });
    // SAFETY: the set is initialised before its use.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, number());
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
    }
}

extern "C" fn ignore(_: i32) {}
