//! Configuration and costs of a mapped device of the world.

use blockyard_engine::dm::crypt::pipeline::Choice;
use blockyard_engine::pages::{AllocatorSpec, Sizes};
use blockyard_engine::time::Nanos;

use crate::cache::PAGE_BYTES;
use crate::memory::MemoryConfig;

use super::workqueue::Workqueue;

/// A crypt target between submitters and queue.
#[derive(Clone, Debug)]
pub struct MappedConfig {
    /// Placement of the cipher, and submitter.
    pub pipeline: Choice,
    /// Time of a hand-over to a sleeping worker and back, as `adaptive` measures it at the start.
    pub hand_over: Nanos,
    /// Workers and writing thread have a nice value of -20 (`high_priority`).
    pub high_priority: bool,
    /// The workqueue of ciphers that no CPU is bound to.
    pub workqueue: Workqueue,
    /// Bios are split to this length before the target, like by the loop target of 2013, which maps
    /// blocks of a file system. `None`: not split.
    pub bio_sectors: Option<u32>,
    /// Split bios keep the io-context of their submitter (`bio_associate_current` survives the
    /// split).
    pub keeps_context: bool,
    /// Sector of the cipher (`sector_size`), which is a request to it.
    pub sector_bytes: u32,
    /// Ciphers that cryptd runs.
    pub cryptd: Cryptd,
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

/// Ciphers that cryptd runs: a thread of each CPU, to which a context hands them over
/// (`crypto/cryptd.c`, `crypto/simd.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cryptd {
    /// None.
    Never,
    /// Ciphers of an interrupt that finds one on its CPU: the vector registers are in use
    /// (`crypto_simd_usable`).
    Busy,
    /// All: the cipher is asynchronous.
    Always,
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
// 14 fields: each is a cost that an experiment may set.
#[derive(Clone, Copy, Debug)]
pub struct MappedCosts {
    /// Encryption, per KiB.
    pub encrypt_kib: Nanos,
    /// Decryption, per KiB.
    pub decrypt_kib: Nanos,
    /// Random variation of the time of the bytes in percent, for caches and interrupts.
    pub jitter_percent: u32,
    /// Additional time of the bytes in percent on another socket than the data's.
    pub remote_percent: u32,
    /// Additional time of the bytes in percent on another L3 cache of the data's socket.
    pub other_l3_percent: u32,
    /// Request to the cipher, one for each sector: its set-up, IV and calls.
    pub sector: Nanos,
    /// Begin and end of the use of vector registers in each of these requests
    /// (`kernel_fpu_begin`).
    pub fpu: Nanos,
    /// Start of a part, and its end as far as the cipher's context sees to it.
    pub part: Nanos,
    /// End of a bio, paid by the context that ends it: a write's below the target (`crypt_endio`),
    /// a read's after its cipher. It frees the target's memory and completes the operation.
    pub end: Nanos,
    /// Additional cost for each page of that bio, which is freed or unpinned.
    pub end_page: Nanos,
    /// Queueing a work item, or a request for cryptd; the worker's wake-up is extra.
    pub queue_work: Nanos,
    /// The cache lines of a pool's queue move to another CPU, which puts an item or takes one. The
    /// lock of the queue is held, and other CPUs spin.
    pub queue_lines: Nanos,
    /// Passing a write to the thread, and taking it.
    pub batch: Nanos,
    /// Additional cost in a sorted batch.
    pub sort: Nanos,
}

impl MappedCosts {
    /// Cost of the requests to the cipher for a part, without that of its bytes.
    pub(in crate::world) fn requests(&self, sectors: u64) -> Nanos {
        Nanos((self.sector.0 + self.fpu.0) * sectors)
    }

    /// Cost of the end of a bio of this length.
    pub(in crate::world) fn end_of(&self, len_bytes: u64) -> Nanos {
        self.end + Nanos(self.end_page.0 * len_bytes.div_ceil(PAGE_BYTES))
    }
}
