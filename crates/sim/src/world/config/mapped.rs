//! Configuration and costs of a mapped device of the world.

use blockyard_engine::dm::crypt::pipeline::Choice;
use blockyard_engine::pages::{AllocatorSpec, Sizes};
use blockyard_engine::time::Nanos;

use crate::memory::MemoryConfig;

/// A crypt target between submitters and queue.
#[derive(Clone, Debug)]
pub struct MappedConfig {
    /// Placement of the cipher, and submitter.
    pub pipeline: Choice,
    /// Workers and writing thread have a nice value of -20 (`high_priority`).
    pub high_priority: bool,
    /// Bios are split to this length before the target, like by the loop target of 2013, which maps
    /// blocks of a file system. `None`: not split.
    pub bio_sectors: Option<u32>,
    /// Split bios keep the io-context of their submitter (`bio_associate_current` survives the
    /// split).
    pub keeps_context: bool,
    /// Device below the target.
    pub below: Below,
    /// Pages for the ciphertext; `None`: unlimited and free.
    pub pages: Option<PagesConfig>,
    /// Costs.
    pub costs: MappedCosts,
}

/// Device below the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    /// The request queue and its device.
    Queue,
    /// A device without a queue: the submitter completes I/O itself. `zero` takes no time, a RAM
    /// disk the time of the copy.
    Memory {
        /// Time of the copy.
        ns_per_kib: u64,
    },
}

/// Page allocator and state of memory.
#[derive(Clone, Debug)]
pub struct PagesConfig {
    /// Allocator.
    pub allocator: AllocatorSpec,
    /// Reserve and limit.
    pub sizes: Sizes,
    /// Memory, initially free.
    pub memory: MemoryConfig,
    /// Fragmentation: order, and per mille of ranges of 2^order pages with a pinned page.
    pub fragmented: Option<(u8, u32)>,
    /// Before each bio other users take or return memory until this many pages are available.
    pub usable_pages: Option<u32>,
}

/// CPU costs of the target.
#[derive(Clone, Copy, Debug)]
pub struct MappedCosts {
    /// Cipher, per KiB.
    pub cipher_kib: Nanos,
    /// Random variation of the cipher in percent, for caches and interrupts.
    pub jitter_percent: u32,
    /// Additional cipher time in percent on another socket than the data's.
    pub remote_percent: u32,
    /// Start and end of a part.
    pub part: Nanos,
    /// Queueing a work item; the worker's wake-up is extra.
    pub queue_work: Nanos,
    /// Passing a write to the thread, and taking it.
    pub batch: Nanos,
    /// Additional cost in a sorted batch.
    pub sort: Nanos,
}
