//! Results of a run: its end, and the causes of its duration.

mod crypt;
mod null;

use blockyard_engine::mq;
use blockyard_engine::time::Nanos;

use crate::device::disk::DiskCounters;

pub use crypt::{CryptCauses, Spread};
pub use null::NullCauses;

/// Result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// End of the last phase.
    pub ended: Nanos,
    /// Number of CPUs.
    pub cpus: u16,
    /// Busy time of all CPUs until then: threads, switches and interrupts.
    pub cpu_busy: Nanos,
    /// Hash of all events in order; equal for equal configurations.
    pub trace_hash: u64,
    /// Causes of the times.
    pub causes: Causes,
}

/// Times of an elevator's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ElevatorCounters {
    /// CPU time of the work.
    pub busy: Nanos,
    /// CPU time of waits for the lock.
    pub lock_waits: Nanos,
    /// Number of these waits.
    pub waiters: u64,
}

impl ElevatorCounters {
    /// Adds those of another queue.
    pub(super) fn add(&mut self, other: &Self) {
        self.busy = self.busy + other.busy;
        self.lock_waits = self.lock_waits + other.lock_waits;
        self.waiters += other.waiters;
    }
}

impl Causes {
    /// Adds the counters of a queue.
    pub(super) fn add_queue(&mut self, other: &mq::Counters) {
        let queue = &mut self.queue;
        queue.bios += other.bios;
        queue.back_merges += other.back_merges;
        queue.front_merges += other.front_merges;
        queue.request_merges += other.request_merges;
        queue.issued += other.issued;
        queue.requeued += other.requeued;
        queue.parked += other.parked;
        queue.flushes += other.flushes;
    }
}

/// Traffic of a memory whose rate is limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryCauses {
    /// Bytes of ciphers, copies and DMA.
    pub bytes: u64,
    /// CPU time in which threads waited for memory.
    pub waited: Nanos,
}

/// Causes of a run's time.
// 18 fields: each is one cause that the lab prints.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Causes {
    /// Counters of the queue.
    pub queue: mq::Counters,
    /// Times of the elevator's work.
    pub elevator: ElevatorCounters,
    /// Counters of a spinning disk.
    pub disk: Option<DiskCounters>,
    /// Issued sectors.
    pub issued_sectors: u64,
    /// Issued write requests.
    pub write_requests: u64,
    /// Their sectors.
    pub write_sectors: u64,
    /// Write requests with bios of several io-contexts.
    pub mixed_write_requests: u64,
    /// Causes of a mapped device.
    pub crypt: Option<CryptCauses>,
    /// Causes of a null device.
    pub null: Option<NullCauses>,
    /// Traffic of the memory, if its rate is limited.
    pub memory: Option<MemoryCauses>,
    /// Time in which the device was idle although bios waited, because the elevator idled.
    pub idle_waiting: Nanos,
    /// Sum, over synchronous bios, of the bytes in queue and device at their submission.
    pub bytes_ahead_of_sync: u64,
    /// Synchronous bios.
    pub sync_bios: u64,
    /// Requests completed on another CPU than the interrupted one.
    pub ended_by_call: u64,
    /// Switches of CPUs to another thread.
    pub switches: u64,
    /// Wake-ups of threads.
    pub wake_ups: u64,
    /// Pages found in memory by reads.
    pub page_hits: u64,
    /// Pages looked up by reads.
    pub page_lookups: u64,
}
