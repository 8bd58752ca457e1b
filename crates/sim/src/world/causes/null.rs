//! Causes of the time of I/O on a null device: issuing and ending contexts, and their context
//! switches.

use crate::cpu::Switches;

/// Counters of a null device and its stacked queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NullCauses {
    /// Issued requests; bios in bio mode.
    pub issued: u64,
    /// Requests issued by kblockd's workers.
    pub issued_by_workers: u64,
    /// Requests that ended on another CPU than the submitter's.
    pub ended_elsewhere: u64,
    /// Clones on a hardware queue with another number than their original's.
    pub crossed: u64,
    /// Clones.
    pub clones: u64,
    /// Originals or requests that ended in a softirq.
    pub softirqs: u64,
    /// Requests without a tag of the path.
    pub no_tag: u64,
    /// Calls of workers, including redundant ones.
    pub calls: u64,
    /// Time of waits for the lock of the paths, in nanoseconds.
    pub lock_waits_ns: u64,
    /// Switches of kblockd's workers.
    pub workers: Switches,
    /// Switches of the softirq threads.
    pub softirq_threads: Switches,
}
