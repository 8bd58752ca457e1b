//! What a mapped device of the world is made of, and what it costs.

use blockyard_engine::dm::crypt::pipeline::Choice;
use blockyard_engine::pages::{AllocatorSpec, Sizes};
use blockyard_engine::time::Nanos;

use crate::memory::MemoryConfig;

/// A crypt target between those who submit and the queue.
#[derive(Clone, Debug)]
pub struct MappedConfig {
    /// Where the cipher runs, and who submits.
    pub pipeline: Choice,
    /// Bios are cut to so many sectors before they reach the target, as the loop target of 2013
    /// does, which maps blocks of a file system; none are not cut.
    pub bio_sectors: Option<u32>,
    /// What is cut keeps the io-context of its submitter (`bio_associate_current` survives the
    /// split).
    pub keeps_context: bool,
    /// What is below the target.
    pub below: Below,
    /// Pages for the ciphertext; none: there is room, and it costs nothing.
    pub pages: Option<PagesConfig>,
    /// What it costs.
    pub costs: MappedCosts,
}

/// What is below the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    /// The request queue and its device.
    Queue,
    /// Nothing that has a queue: who submits does the rest at once. `zero` takes no time, a ram
    /// disk that of the copy.
    Memory {
        /// Of the copy.
        ns_per_kib: u64,
    },
}

/// Who allocates pages, and what memory is like.
#[derive(Clone, Debug)]
pub struct PagesConfig {
    /// Who.
    pub allocator: AllocatorSpec,
    /// Reserve and limit.
    pub sizes: Sizes,
    /// Memory, whole and free.
    pub memory: MemoryConfig,
    /// So many of a thousand ranges of 2^order pages are split by a page of somebody else's.
    pub fragmented: Option<(u8, u32)>,
    /// Before each bio others take memory, or give it back, until so many pages can be had.
    pub usable_pages: Option<u32>,
}

/// What the target's work costs a CPU.
#[derive(Clone, Copy, Debug)]
pub struct MappedCosts {
    /// The cipher, for each KiB.
    pub cipher_kib: Nanos,
    /// It takes up to so many percent more or less: what caches and interrupts do to it.
    pub jitter_percent: u32,
    /// More of it, in percent, on another socket than where the data is.
    pub remote_percent: u32,
    /// To take a part in, and to end it.
    pub part: Nanos,
    /// To put a work item on a queue; waking a worker is extra.
    pub queue_work: Nanos,
    /// To give a write to the thread, and for it to take it out again.
    pub batch: Nanos,
    /// More of it when the batch is sorted.
    pub sort: Nanos,
}
