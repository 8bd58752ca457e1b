//! Why I/O on a null device took as long as it did: who issued it, who ended it, and who was
//! switched to for it.

use crate::cpu::Switches;

/// Counters of a null device and of what is stacked on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NullCauses {
    /// Requests that the device was given; bios in its bio mode.
    pub issued: u64,
    /// Of them, by kblockd's workers.
    pub issued_by_workers: u64,
    /// Ended on another CPU than the one that submitted.
    pub ended_elsewhere: u64,
    /// Clones whose hardware queue has another number than their original's.
    pub crossed: u64,
    /// Clones.
    pub clones: u64,
    /// Originals, or requests, that ended in a softirq.
    pub softirqs: u64,
    /// Requests that the path had no tag for.
    pub no_tag: u64,
    /// Workers that were called, though one might have been on its way.
    pub calls: u64,
    /// Time that CPUs waited for the lock of the paths, in nanoseconds.
    pub lock_waits_ns: u64,
    /// Of kblockd's workers, all of them.
    pub workers: Switches,
    /// Of the threads that run softirqs.
    pub softirq_threads: Switches,
}
