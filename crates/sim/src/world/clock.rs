//! The clock: the time, and when threads are woken by it.

use blockyard_engine::time::Nanos;

use crate::cpu::ThreadId;
use crate::heap::EventHeap;

/// A thread is to be woken up, if it still waits for the same.
#[derive(Debug)]
pub(super) struct Timer {
    pub(super) thread: ThreadId,
    /// Counts the waits of the thread.
    pub(super) wait_number: u64,
}

/// The time, and the timers of threads.
#[derive(Debug, Default)]
pub(super) struct Clock {
    pub(super) now: Nanos,
    pub(super) timers: EventHeap<Timer>,
}
