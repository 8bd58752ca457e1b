//! What a simulated world is made of.

mod interrupts;
mod mapped;
mod null;

use blockyard_engine::bio::Sector;
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::mq::QueueConfig;
use blockyard_engine::time::Nanos;

use crate::cache::CacheConfig;
use crate::cpu::{Costs, Topology};
use crate::device::Device;
use crate::device::disk::{Disk, DiskConfig};
use crate::device::flash::{Flash, FlashConfig};
use crate::device::memory::{Memory, MemoryConfig};
use crate::fs::FsConfig;

pub use interrupts::InterruptConfig;
pub use mapped::{Below, MappedConfig, MappedCosts, PagesConfig};
pub use null::{CompletionRule, IrqMode, NullConfig, QueueMode, StackConfig, StackCosts};

/// A world, from the top down.
///
/// It has 15 fields: one for each layer that an experiment may set.
#[derive(Clone, Debug)]
pub struct Config {
    /// Sockets and CPUs.
    pub topology: Topology,
    /// What everything costs a CPU.
    pub costs: Costs,
    /// Memory for file pages, and when they are written back.
    pub cache: CacheConfig,
    /// Who writes them back.
    pub write_back: WriteBack,
    /// The file system; none means that file 0 is the device itself.
    pub fs: Option<FsConfig>,
    /// Longest bio of buffered I/O in sectors. The queue merges them further.
    pub bio_sectors: u32,
    /// Write-back of `fsync` and the journal is synchronous (`WRITE_SYNC`). Off, it is what a
    /// flusher writes: asynchronous.
    pub sync_flags: bool,
    /// Other work of the CPUs, if there is any.
    pub housekeeping: Option<Housekeeping>,
    /// A crypt target above the queue.
    pub mapped: Option<MappedConfig>,
    /// A queue on that of a null device.
    pub stack: Option<StackConfig>,
    /// The queue.
    pub queue: QueueConfig,
    /// Its elevator.
    pub elevator: ElevatorSpec,
    /// What is below it.
    pub device: DeviceConfig,
    /// Whom that interrupts.
    pub interrupts: InterruptConfig,
    /// Of everything random in the world; programs have their own.
    pub seed: u64,
}

/// What a CPU has to do beside: ticks, timers, threads of others. It comes again and again.
#[derive(Clone, Copy, Debug)]
pub struct Housekeeping {
    /// From one time to the next, on each CPU.
    pub every: Nanos,
    /// How long it takes.
    pub takes: Nanos,
}

/// Who writes dirty pages back (`mm/page-writeback.c`).
#[derive(Clone, Copy, Debug)]
pub struct WriteBack {
    /// Threads (`pdflush` had 2 to 8; one a device since 2.6.32).
    pub flushers: u32,
    /// A writer above the dirty limit writes back itself (until 3.1); else it waits.
    pub writers_write: bool,
    /// After how many pages of its own a writer looks at the limits. If it writes back itself, it
    /// does half as many again.
    pub writer_pages: u32,
    /// Pages of a file that a flusher writes back before it goes to the next
    /// (`MAX_WRITEBACK_PAGES`: 1024).
    pub flusher_pages: u32,
}

/// A device model.
#[derive(Clone, Debug)]
pub enum DeviceConfig {
    /// Spinning.
    Disk(DiskConfig),
    /// SD card or SSD.
    Flash(FlashConfig),
    /// Ram (`brd`).
    Memory(RamConfig),
    /// Null, with queues and completions as null_blk has them.
    Null(NullConfig),
}

/// Memory as a device: who gives it a request copies, and no interrupt says so.
#[derive(Clone, Copy, Debug)]
pub struct RamConfig {
    /// Sectors that it has.
    pub sectors: u64,
    /// For each request.
    pub command: Nanos,
    /// For each sector.
    pub sector: Nanos,
}

impl RamConfig {
    pub(super) fn copy(&self, len: Sector) -> Nanos {
        self.command + Nanos(self.sector.0 * len.0)
    }
}

impl DeviceConfig {
    pub(super) fn is_memory(&self) -> bool {
        matches!(self, Self::Memory(_))
    }

    /// How many sectors it has.
    #[must_use]
    pub fn sectors(&self) -> u64 {
        match self {
            Self::Disk(config) => config.geometry.sectors(),
            Self::Flash(config) => config.sectors,
            Self::Memory(config) => config.sectors,
            Self::Null(config) => config.sectors,
        }
    }

    /// The device, at rest.
    #[must_use]
    pub fn build(&self) -> Box<dyn Device> {
        match self {
            Self::Disk(config) => Box::new(Disk::new(config.clone())),
            Self::Flash(config) => Box::new(Flash::new(*config)),
            // CPUs do what these do: what is behind the queue is never asked.
            Self::Memory(RamConfig { sectors, .. }) | Self::Null(NullConfig { sectors, .. }) => {
                let (command, sector, lanes) = (Nanos(0), Nanos(0), 1);
                Box::new(Memory::new(MemoryConfig { sectors: *sectors, command, sector, lanes }))
            }
        }
    }
}
