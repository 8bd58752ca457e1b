//! Devices of the checks. The numbers are ours, close to manuals of 2008, and equal for all checks.

use blockyard_engine::time::Nanos;

use crate::device::disk::geometry::{Geometry, SeekTimes};
use crate::device::disk::{Disk, DiskConfig, Policy};
use crate::device::flash::{EraseBlocks, Flash, FlashConfig, PageTypes, Queues, Slow};
use crate::device::memory::{Memory, MemoryConfig};

const US: u64 = 1_000;

/// End of the positions on the disk, 250 GB; the disk is a little larger.
pub(super) const DISK_END: u64 = 488_000_000;
/// End of the positions on the card and in memory: 8 GiB.
pub(super) const CARD_END: u64 = 16 << 20;

/// A desktop drive of 7200 rpm with 8 MiB of cache, and a depth of one command, so that only the
/// elevator sorts.
pub(super) fn desktop_disk() -> Disk {
    disk(16 << 10)
}

/// This drive without a write cache.
pub(super) fn write_through_disk() -> Disk {
    disk(0)
}

fn disk(write_cache_sectors: u32) -> Disk {
    let seek = SeekTimes {
        track_to_track: Nanos(800 * US),
        average: Nanos(8_500 * US),
        full_stroke: Nanos(17_000 * US),
        head_switch: Nanos(700 * US),
        write_settle: Nanos(500 * US),
    };
    Disk::new(DiskConfig {
        geometry: Geometry::even(Nanos(8_333 * US), 4, DISK_END, (1_260, 630), seek),
        overhead: Nanos(100 * US),
        overlaps_overhead: false,
        bus_sector: Nanos(1_700),
        queue_depth: 1,
        policy: Policy::InOrder,
        write_cache_sectors,
        destage_after: Nanos::from_ms(20),
        read_ahead_sectors: 4 << 10,
    })
}

/// An SD card: one command at a time, pages of 16 KiB, erase blocks of 4 MiB.
pub(super) fn sd_card() -> Flash {
    Flash::new(FlashConfig {
        sectors: CARD_END,
        page_sectors: 32,
        channels: 1,
        read_page: Nanos(900 * US),
        program_page: Nanos(1_800 * US),
        overhead: Nanos(300 * US),
        bus_sector: Nanos(25 * US),
        bus_write_sector: None,
        bus_command: Nanos(0),
        queue_depth: 1,
        blocks: Some(EraseBlocks { sectors: 8 << 10, open: 2, close: Nanos(150_000 * US) }),
        collection: None,
        write_buffer_sectors: 0,
        queues: Queues::default(),
        page_types: PageTypes::default(),
        slow: Slow::default(),
    })
}

/// A device with a constant time per command.
pub(super) fn even_device(command: Nanos) -> Memory {
    Memory::new(MemoryConfig { sectors: DISK_END, command, sector: Nanos(0), lanes: 1 })
}
