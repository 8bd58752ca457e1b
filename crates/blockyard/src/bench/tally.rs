//! The I/O that tasks have started so far, for a thread that watches them.
//!
//! Each task counts for itself, in a separate cache line; only the sum is shared.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use blockyard_engine::bio::Op;

/// The I/O that the tasks of a program have started so far. Any thread may read it.
#[derive(Debug, Default)]
pub struct Tally {
    tasks: Mutex<Vec<Arc<TaskTally>>>,
}

/// Counts of one task, written only by its thread.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct TaskTally {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
}

/// A snapshot of a [`Tally`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TallySnapshot {
    /// Reads.
    pub reads: u64,
    /// Bytes of reads.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes of writes.
    pub written_bytes: u64,
}

impl Tally {
    /// The counts of a new task.
    pub(super) fn task(&self) -> Arc<TaskTally> {
        let task = Arc::<TaskTally>::default();
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&task));
        task
    }

    /// The sum of all tasks.
    #[must_use]
    pub fn snapshot(&self) -> TallySnapshot {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = |part: fn(&TaskTally) -> &AtomicU64| {
            tasks.iter().map(|task| part(task).load(Ordering::Relaxed)).sum()
        };
        TallySnapshot {
            reads: sum(|task| &task.reads),
            read_bytes: sum(|task| &task.read_bytes),
            writes: sum(|task| &task.writes),
            written_bytes: sum(|task| &task.written_bytes),
        }
    }
}

impl TaskTally {
    pub(super) fn add(&self, op: Op, len_bytes: u64) {
        let (count, bytes) = match op {
            Op::Read => (&self.reads, &self.read_bytes),
            Op::Write => (&self.writes, &self.written_bytes),
            _ => return,
        };
        let add = |number: &AtomicU64, more: u64| {
            number.store(number.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        };
        add(count, 1);
        add(bytes, len_bytes);
    }
}
