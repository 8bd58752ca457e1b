//! The clock: the time, and the timers of threads.

use blockyard_engine::time::Nanos;

use crate::cpu::ThreadId;
use crate::heap::EventHeap;

/// A wake-up of a thread, valid for one wait.
#[derive(Debug)]
pub(super) struct Timer {
    pub(super) thread: ThreadId,
    /// Number of the thread's wait.
    pub(super) wait_number: u64,
}

/// The time and the timers of threads.
#[derive(Debug, Default)]
pub(super) struct Clock {
    pub(super) now: Nanos,
    pub(super) timers: EventHeap<Timer>,
}
