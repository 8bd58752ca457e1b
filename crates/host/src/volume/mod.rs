//! An open volume: a dm table over devices and ciphers, shared by all connections.

mod builder;
pub mod control;
mod crypt_mapping;
mod devices;
mod flush;
mod identity;
mod mapped;
mod observed;
mod options;
mod placement;
mod resize;
mod targets;

use std::num::NonZeroU64;
use std::sync::OnceLock;

use blockyard_engine::bio::Sector;
use blockyard_engine::dm::DeviceArea;
use blockyard_engine::dm::table::{Table, TableExtent};
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::elevator::none::NONE;
use rustix::fs::Advice;

use crate::dirty_bitmap::{DirtyBitmapStatus, Runs};
use crate::driver::Parts;
use crate::file::{BackingKind, FileId, extents};
use crate::nbd::uri::Uri;
use crate::remote::RemoteDisk;
use crate::write_log::WriteLog;

use control::{Described, Keys};
pub use crypt_mapping::{Composition, crypt_mapping};
pub use observed::Backing;
pub use options::{PipelineChoice, Scheduling, VolumeOptions};
pub use resize::Resized;

/// An open volume.
pub struct Volume {
    /// Parts shared by its drivers.
    pub(crate) parts: Parts,
    keys: Keys,
    described: Described,
    /// Copy from the table, which may be long, because each request reads it.
    sector_size_bytes: u32,
    minimum_block_bytes: u32,
    read_only: bool,
    can_discard: bool,
    is_synchronous: bool,
    fans_out_pieces: bool,
    /// Its files, read at its opening: a later look could wait for a disk that does not answer.
    file_ids: Vec<FileId>,
    /// Why the volume cannot be suspended.
    suspend_refusal: OnceLock<&'static str>,
    /// Descriptions of the ciphers, each after a comma.
    ciphers: String,
}

/// The local files and block devices with a volume's content, and its logs.
fn content_ids(parts: &Parts) -> impl Iterator<Item = FileId> {
    let devices = parts.backend.devices.iter().filter_map(|device| device.file.id());
    devices.chain(parts.backend.logs.iter().filter_map(WriteLog::file_id))
}

impl Volume {
    /// Length of the plaintext for new connections. It may grow ([`Volume::grow`]).
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.parts.table.len_bytes()
    }

    /// Alignment of requests.
    #[must_use]
    pub fn sector_size_bytes(&self) -> u32 {
        self.sector_size_bytes
    }

    /// Whether the volume is read-only.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Whether TRIM is passed down.
    #[must_use]
    pub fn can_discard(&self) -> bool {
        self.can_discard
    }

    /// Whether zeroing is faster than writing zeroes everywhere: without a cipher, and without a
    /// log that stores them in full.
    #[must_use]
    pub fn can_fast_zero(&self) -> bool {
        self.parts.backend.ciphers.is_empty() && self.parts.backend.logs.is_empty()
    }

    /// Whether another server of the disk below may go on in place of this one.
    pub(crate) fn is_gateway(&self) -> bool {
        let mut devices = self.parts.backend.devices.iter();
        devices.any(|device| device.file.remote().is_some_and(RemoteDisk::is_gateway))
    }

    /// One-line description without secrets.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("{} bytes{}", self.size_bytes(), self.ciphers)
    }

    /// The distinct elevators of the devices below and of multipath lines, as on the command line.
    #[must_use]
    pub fn elevator(&self) -> String {
        let devices = self.parts.backend.devices.iter().filter(|device| !device.is_path);
        let devices = devices.map(|device| &device.elevator);
        let table = self.parts.table.get();
        let lines = table.layers().flat_map(Table::extents);
        let lines = lines.filter_map(|line| line.facts().elevator.as_ref());
        let mut names: Vec<String> = Vec::new();
        for name in devices.chain(lines).map(ElevatorSpec::to_string) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if names.is_empty() { NONE.name.into() } else { names.join(" and ") }
    }

    /// The minimum block for clients' reads and writes.
    ///
    /// A change of a part of a sector is read, changed and written back. A power cut may tear that
    /// write at 512 bytes, a disk's sector: with XTS, CTR, ECB and LRW the sector's other bytes
    /// survive, because cipher blocks are independent. CBC propagates a change to the end of the
    /// sector, Adiantum and the elephant diffuser to all of it: stable neighbours would become
    /// garbage. dm-crypt's logical block is the sector for this reason.
    #[must_use]
    pub fn minimum_block_bytes(&self) -> u32 {
        self.minimum_block_bytes
    }

    /// The local files and block devices of the volume, its logs, and its dirty bitmap.
    #[must_use]
    pub fn file_ids(&self) -> &[FileId] {
        &self.file_ids
    }

    /// State of its dirty bitmap; `None` without one.
    #[must_use]
    pub fn dirty_bitmap(&self) -> Option<DirtyBitmapStatus> {
        self.parts.dirty.as_ref().map(|dirty| dirty.status())
    }

    /// Name of its dirty bitmap; `None` without one.
    pub(crate) fn dirty_bitmap_name(&self) -> Option<&str> {
        self.parts.dirty.as_ref().map(|dirty| dirty.name())
    }

    /// Runs of clean and dirty bytes; without a bitmap all bytes are dirty.
    pub(crate) fn dirty_runs(&self, offset_bytes: u64, len_bytes: u64, count_max: usize) -> Runs {
        let runs = self.parts.dirty.as_ref();
        let runs = runs.map(|dirty| dirty.runs(offset_bytes, len_bytes, count_max));
        runs.unwrap_or_else(|| vec![(len_bytes, true)])
    }

    /// The servers of its devices.
    pub fn servers(&self) -> impl Iterator<Item = &Uri> {
        self.remote_disks().filter_map(RemoteDisk::uri)
    }

    /// Whether it has an image of a Ceph cluster.
    #[must_use]
    pub fn has_image(&self) -> bool {
        self.remote_disks().any(|disk| disk.uri().is_none())
    }

    fn remote_disks(&self) -> impl Iterator<Item = &RemoteDisk> {
        self.parts.backend.devices.iter().filter_map(|device| device.file.remote())
    }

    /// Whether its connections use rings.
    #[must_use]
    pub fn uses_rings(&self) -> bool {
        let is_in_memory = |kind| matches!(kind, BackingKind::Tmpfs | BackingKind::Remote);
        self.parts.backend.devices.iter().any(|device| !is_in_memory(device.file.kind()))
    }

    /// Prefetches a range into the page cache.
    pub(crate) fn will_need(&self, offset_bytes: u64, len_bytes: u64) {
        let end_bytes = offset_bytes + len_bytes;
        for extent in self.parts.table.get().extents() {
            let first = extent.start.bytes();
            let past = (extent.start + extent.len).bytes();
            let from = first.max(offset_bytes);
            let to = past.min(end_bytes);
            let on_file = extent.facts().window.filter(|area| area.dev.below().is_none());
            let Some(DeviceArea { dev, start }) = on_file else { continue };
            if from < to {
                let Some(file) = self.parts.backend.devices[usize::from(dev.0)].file.local() else {
                    continue;
                };
                let at = start.bytes() + from - first;
                let len = NonZeroU64::new(to - from);
                let _ = rustix::fs::fadvise(file, at, len, Advice::WillNeed);
            }
        }
    }

    /// Whether every piece of a connection ends on its own thread without waiting, if it stays
    /// inline (`Driver::stay_inline`).
    pub(crate) fn is_synchronous(&self) -> bool {
        self.is_synchronous
    }

    /// Whether workers also get the pieces of a connection, not only longer bios.
    pub(crate) fn fans_out_pieces(&self) -> bool {
        self.fans_out_pieces
    }

    /// Length of the run at `offset_bytes`, at most `len_bytes`, and whether it is a hole that
    /// reads as zeroes. Encrypted ranges have no holes: a hole decrypts to noise.
    pub(crate) fn run_at(&self, offset_bytes: u64, len_bytes: u64) -> (u64, bool) {
        let sector = Sector::holding(offset_bytes);
        let at = |extent: &&TableExtent| extent.start + extent.len > sector;
        let table = self.parts.table.get();
        let extent = table.extents().iter().find(at).expect("the range is in the volume");
        let len_bytes = len_bytes.min((extent.start + extent.len).bytes() - offset_bytes);
        match (extent.facts().reads_zeros, extent.facts().plain_window()) {
            (true, _) => (len_bytes, true),
            (false, Some(DeviceArea { dev, start })) if dev.below().is_none() => {
                let lower = start.bytes() + offset_bytes - extent.start.bytes();
                match self.parts.backend.devices[usize::from(dev.0)].file.local() {
                    Some(file) => extents::run_at(file, lower, len_bytes),
                    None => (len_bytes, false),
                }
            }
            _ => (len_bytes, false),
        }
    }
}
