//! Configuration of a simulated world.

mod bandwidth;
mod elevator;
mod interrupts;
mod mapped;
mod null;
mod raid;
mod workqueue;

use blockyard_engine::bio::Sector;
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::mq::QueueConfig;
use blockyard_engine::throttle::Limits;
use blockyard_engine::time::Nanos;
use blockyard_workload::random::Random;

use crate::cache::CacheConfig;
use crate::cpu::{Costs, Topology};
use crate::device::Device;
use crate::device::cluster::{Cluster, ClusterConfig};
use crate::device::disk::{Disk, DiskConfig};
use crate::device::flash::{Flash, FlashConfig};
use crate::device::memory::{Memory, MemoryConfig};
use crate::fs::FsConfig;

pub use bandwidth::BandwidthConfig;
pub use elevator::{ElevatorCosts, ElevatorLock};
pub use interrupts::InterruptConfig;
pub use mapped::{Below, Cryptd, MappedConfig, MappedCosts, PagesConfig};
pub use null::{CompletionRule, IrqMode, NullConfig, QueueMode, StackConfig, StackCosts};
pub use raid::RaidConfig;
pub use workqueue::{ActiveLimit, SHARD_CORES, Scope, Workqueue};

/// A world, from the top down.
// 20 fields: one for each layer that an experiment may set.
#[derive(Clone, Debug)]
pub struct Config {
    /// Sockets and CPUs.
    pub topology: Topology,
    /// CPU costs.
    pub costs: Costs,
    /// Further costs of calls.
    pub call_costs: CallCosts,
    /// Rates of memory; `None`: no limit.
    pub bandwidth: Option<BandwidthConfig>,
    /// Page cache.
    pub cache: CacheConfig,
    /// Write-back threads.
    pub write_back: WriteBack,
    /// File system; `None`: file 0 is the device itself.
    pub fs: Option<FsConfig>,
    /// Longest bio of buffered I/O in sectors. The queue merges further.
    pub bio_sectors: u32,
    /// Write-back by `fsync`, and by a commit for which somebody waits, is synchronous
    /// (`WRITE_SYNC`); otherwise asynchronous, like a flusher's.
    pub sync_flags: bool,
    /// Other work of the CPUs, if any.
    pub housekeeping: Option<Housekeeping>,
    /// Limits of the rate, in front of the crypt target or the queue.
    pub limits: Limits,
    /// A crypt target above the queue.
    pub mapped: Option<MappedConfig>,
    /// A stacked queue on a null device.
    pub stack: Option<StackConfig>,
    /// The queue.
    pub queue: QueueConfig,
    /// Its elevator.
    pub elevator: ElevatorSpec,
    /// Costs of the elevator.
    pub elevator_costs: ElevatorCosts,
    /// Device below the queue.
    pub device: DeviceConfig,
    /// Several of these devices, each with such a queue, as members of a RAID.
    pub raid: Option<RaidConfig>,
    /// Interrupts of the device.
    pub interrupts: InterruptConfig,
    /// Seed of the world's random numbers; programs have their own.
    pub seed: u64,
}

impl Config {
    /// Size of the device, or of the RAID, in sectors.
    #[must_use]
    pub fn sectors(&self) -> u64 {
        let device = self.device.sectors();
        self.raid.map_or(device, |raid| raid.sectors(device))
    }

    /// Number of devices.
    pub(super) fn members(&self) -> u16 {
        self.raid.map_or(1, |raid| raid.members)
    }
}

/// Costs of calls that only some programs make.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallCosts {
    /// A direct write more than a direct read: locks, times of the file, the page cache's copies,
    /// accounting.
    pub direct_write: Nanos,
    /// Each of its pages.
    pub direct_write_page: Nanos,
    /// Creation of a file in a directory: look-up of the name, the inode, the entry.
    pub create: Nanos,
    /// A checksum of a program, per KiB of its data.
    pub verify_kib: Nanos,
    /// A program's choice of an offset that does not follow its last operation: random numbers, and
    /// the map of the blocks that it has had.
    pub random_offset: Nanos,
}

/// Periodic other work of a CPU: ticks, timers, other threads.
#[derive(Clone, Copy, Debug)]
pub struct Housekeeping {
    /// Interval on each CPU.
    pub every: Nanos,
    /// Duration.
    pub takes: Nanos,
}

/// Write-back of dirty pages (`mm/page-writeback.c`).
#[derive(Clone, Copy, Debug)]
pub struct WriteBack {
    /// Threads (`pdflush` had 2 to 8; one a device since 2.6.32).
    pub flushers: u32,
    /// Whether a writer above the dirty limit writes back itself (until 3.1) instead of waiting.
    pub writers_write: bool,
    /// Number of pages after which a writer checks the limits. If it writes back itself, it takes
    /// half as many again.
    pub writer_pages: u32,
    /// Pages of a file that a flusher writes back before the next file (`MAX_WRITEBACK_PAGES`:
    /// 1024).
    pub flusher_pages: u32,
    /// Order of the two waits of `fsync`.
    pub fsync: FsyncOrder,
}

/// Order of the two waits of `fsync`, after it has submitted the file's dirty pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsyncOrder {
    /// The data, then the commit (`file_write_and_wait_range`; since 2.6.35).
    DataFirst,
    /// The commit, then the data: both are in the queue together (`vfs_fsync` to 2.6.34 calls
    /// `filemap_fdatawrite`, the file system's `fsync`, and `filemap_fdatawait`).
    CommitFirst,
}

/// A device model.
#[derive(Clone, Debug)]
pub enum DeviceConfig {
    /// Spinning disk.
    Disk(DiskConfig),
    /// SD card or SSD.
    Flash(FlashConfig),
    /// Replicated object storage.
    Cluster(ClusterConfig),
    /// RAM disk (`brd`).
    Memory(RamConfig),
    /// Null device with the queues and completions of null_blk.
    Null(NullConfig),
}

/// A RAM disk: the issuing context copies, without an interrupt.
#[derive(Clone, Copy, Debug)]
pub struct RamConfig {
    /// Size in sectors.
    pub sectors: u64,
    /// Cost per request.
    pub command: Nanos,
    /// Cost per sector.
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

    /// Hardware queues behind the request queue. A null device has queues of its own.
    pub(super) fn hw_queues(&self) -> u16 {
        if let Self::Flash(flash) = self { flash.queues.count } else { 1 }
    }

    /// Size in sectors.
    #[must_use]
    pub fn sectors(&self) -> u64 {
        match self {
            Self::Disk(config) => config.geometry.sectors(),
            Self::Flash(config) => config.sectors,
            Self::Cluster(config) => config.sectors,
            Self::Memory(config) => config.sectors,
            Self::Null(config) => config.sectors,
        }
    }

    /// An idle device, which is this member of a RAID. Members differ in what is random: the
    /// angles of the platters, and the commands that are slow.
    #[must_use]
    pub fn build(&self, member: u16, seed: u64) -> Box<dyn Device> {
        match self {
            Self::Disk(config) => {
                let mut config = config.clone();
                if member > 0 {
                    let mut random = Random::new(seed, 0xa11 + u64::from(member));
                    config.geometry.turn(Nanos(random.below(config.geometry.revolution.0)));
                }
                Box::new(Disk::new(config))
            }
            Self::Flash(config) => Box::new(Flash::of_member(*config, member)),
            Self::Cluster(config) => Box::new(Cluster::new(*config)),
            // CPUs do their work; the device behind the queue is unused.
            Self::Memory(RamConfig { sectors, .. }) | Self::Null(NullConfig { sectors, .. }) => {
                let command = Nanos(0);
                let sector = Nanos(0);
                let lanes = 1;
                Box::new(Memory::new(MemoryConfig { sectors: *sectors, command, sector, lanes }))
            }
        }
    }
}
