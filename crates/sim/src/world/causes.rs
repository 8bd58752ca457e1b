//! What a run was like: when it ended, and the causes of the time that it took.

mod crypt;
mod null;

use blockyard_engine::mq;
use blockyard_engine::time::Nanos;

use crate::device::disk::DiskCounters;

pub use crypt::{CryptCauses, Spread};
pub use null::NullCauses;

/// What a run was like.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// When the last phase ended.
    pub ended: Nanos,
    /// The CPUs, and how long all of them together were busy until then.
    pub cpus: u16,
    /// In threads, switches and interrupts, whoever they were for.
    pub cpu_busy: Nanos,
    /// Of everything that happened, in order: two runs of one configuration have the same.
    pub trace_hash: u64,
    /// Causes, beside times.
    pub causes: Causes,
}

/// Why a run took as long as it did.
///
/// It has 16 fields: each is one cause that the lab prints.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Causes {
    /// Of the queue.
    pub queue: mq::Counters,
    /// Of a spinning disk.
    pub disk: Option<DiskCounters>,
    /// Sectors that the device was given.
    pub issued_sectors: u64,
    /// Write requests that it was given, and their sectors.
    pub write_requests: u64,
    /// Of them.
    pub write_sectors: u64,
    /// Write requests with bios of several io-contexts.
    pub mixed_write_requests: u64,
    /// Of a mapped device.
    pub crypt: Option<CryptCauses>,
    /// Of a null device.
    pub null: Option<NullCauses>,
    /// Time in which the device had nothing although bios waited: the elevator idled.
    pub idle_waiting: Nanos,
    /// Bytes that were in queue and device when a synchronous bio came, all together.
    pub bytes_ahead_of_sync: u64,
    /// Synchronous bios.
    pub sync_bios: u64,
    /// Requests that ended on another CPU than the device interrupted.
    pub ended_by_call: u64,
    /// CPUs that went over to another thread.
    pub switches: u64,
    /// Threads that were woken up.
    pub wake_ups: u64,
    /// Pages that reads found without waiting.
    pub page_hits: u64,
    /// Pages that were read.
    pub page_lookups: u64,
}
