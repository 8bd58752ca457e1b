//! Opens a volume: collects devices, ciphers and extents, and builds its parts.

use std::fs::File;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use blockyard_crypt::params::{CryptParams, VolumePart};
use blockyard_crypt::secret::SecretBytes;
use blockyard_crypt::source::HeaderSource;
use blockyard_engine::bio::Sector;
use blockyard_engine::dm::DeviceArea;
use blockyard_engine::dm::line::{Line, MappedDevice};
use blockyard_engine::dm::linear::{LINEAR, Linear};
use blockyard_engine::dm::table::{Table, TableExtent};
use blockyard_engine::sq::DevId;

use super::control::{Described, Keys};
use super::crypt_mapping::{Composition, crypt_devices};
use super::identity;
use super::mapped::Mapped;
use super::placement::Placement;
use super::{Volume, VolumeOptions, content_ids};
use crate::Error;
use crate::backend::{Backend, Device};
use crate::dirty_bitmap::{DirtyBitmap, Tracked};
use crate::driver::{BounceBudget, Parts};
use crate::durability::Durability;
use crate::file::{Access, BackingKind, DeviceFile};
use crate::gate::Gate;
use crate::loaded_table::LoadedTable;
use crate::nbd::Unflushed;
use crate::pages::BounceChoice;
use crate::ranges::VolumeRanges;
use crate::stages::{BusyTime, EVERY_QUEUED, EVERY_SYNCHRONOUS, StageStats};
use crate::submitter::new_io_context;
use crate::table;

/// Length that a disk writes atomically.
const DISK_UNIT_BYTES: u32 = 512;

impl Volume {
    /// The volume that `params` describes on `file` or its part.
    ///
    /// # Errors
    /// The cipher is not supported, the key does not fit, or the file is too short.
    pub fn from_crypt(
        file: DeviceFile,
        params: &CryptParams,
        options: &VolumeOptions,
    ) -> Result<Self, Error> {
        let parts = vec![VolumePart::Crypt(params.clone())];
        Self::from_parts(file, Composition { parts, ..Composition::default() }, options)
    }

    /// The volume of these parts of `file` or its part.
    ///
    /// # Errors
    /// The cipher is not supported, the key does not fit, or the file is too short.
    pub fn from_parts(
        file: DeviceFile,
        mut composition: Composition,
        options: &VolumeOptions,
    ) -> Result<Self, Error> {
        for part in &mut composition.parts {
            if let VolumePart::Crypt(params) = part {
                params.flags.allow_discards |= options.allow_discards;
            }
        }
        let mut builder = Builder::new(options);
        let devices = crypt_devices(&file, &composition)?;
        builder.describe(&devices, identity::digest_of_crypt(&file, &composition)?);
        let (lowest, above) = devices.split_first().expect("the parts are a device");
        let needs: Vec<_> = lowest.lines.iter().flat_map(|line| line.needs().devices).collect();
        let dev = builder.add_device(file.whole(), &needs)?;
        builder.extents = builder.extents_on(lowest, dev)?;
        for device in above {
            let extents = std::mem::take(&mut builder.extents);
            builder.below.push(Table::new(extents));
            let dev = DevId::mapped(builder.below.len() - 1);
            builder.extents = builder.extents_on(device, dev)?;
        }
        builder.build()
    }

    /// The file itself or its part, without a cipher. Clients must align their buffers for direct
    /// I/O, so this is for clients in this process (`local::Client`).
    ///
    /// # Errors
    /// The file has no sector, or cannot have the elevator.
    pub fn from_file(file: DeviceFile, options: &VolumeOptions) -> Result<Self, Error> {
        let len = Sector::holding(file.len_bytes());
        if len == Sector(0) {
            return Err(Error::volume(file.path(), "is empty"));
        }
        let mut builder = Builder::new(options);
        let start = Sector::holding(file.start_bytes());
        let file = file.whole();
        let mapping = |dev: String| {
            let arguments = Arc::new(Linear { area: DeviceArea { dev, start } });
            let line = Line { start: 0, len: len.0, target: &LINEAR, arguments };
            MappedDevice { name: String::new(), lines: vec![line] }
        };
        let digest = identity::digest(&[mapping(identity::device_name(&file))]);
        builder.describe(&[mapping(file.path().display().to_string())], digest);
        let dev = builder.add_device(file, &[])?;
        let target = Arc::new(Linear { area: DeviceArea { dev, start } });
        builder.extents.push(TableExtent::new(Sector(0), len, target));
        builder.build()
    }

    /// The volume of a dm table ([`table::parse`]), with its devices opened.
    ///
    /// # Errors
    /// A line is invalid, or a device cannot be opened or is too short.
    pub fn from_table(text: &SecretBytes, options: &VolumeOptions) -> Result<Self, Error> {
        let mappings = table::parse(text, &options.targets)?;
        let mut builder = Builder::new(options);
        builder.describe(&mappings, identity::digest(&mappings));
        builder.mappings(&mappings)?;
        builder.build()
    }
}

/// Collects devices, ciphers and extents.
pub(super) struct Builder<'a> {
    pub(super) options: &'a VolumeOptions,
    pub(super) backend: Backend,
    pub(super) described: Described,
    pub(super) durability: Arc<Durability>,
    /// Count of the paths of the current multipath line.
    pub(super) unflushed_of_paths: Option<Arc<Unflushed>>,
    /// Mapped devices below: facts for the lines above, and their tables.
    pub(super) mapped: Vec<Mapped>,
    pub(super) below: Vec<Table>,
    pub(super) extents: Vec<TableExtent>,
    /// Descriptions of the ciphers.
    pub(super) names: Vec<String>,
    pub(super) can_discard: bool,
    pub(super) placement: Placement,
    /// A partly written sector must not be read.
    pub(super) tears_sectors: bool,
}

impl<'a> Builder<'a> {
    fn new(options: &'a VolumeOptions) -> Self {
        Self {
            options,
            backend: Backend::default(),
            described: Described::default(),
            durability: Arc::default(),
            unflushed_of_paths: None,
            mapped: Vec::new(),
            below: Vec::new(),
            extents: Vec::new(),
            names: Vec::new(),
            can_discard: true,
            placement: Placement::default(),
            tears_sectors: false,
        }
    }

    /// Describes the table.
    fn describe(&mut self, devices: &[MappedDevice], digest: [u8; 32]) {
        self.described.digest = digest;
        self.described.table = devices.iter().map(MappedDevice::without_keys).collect();
        self.described.targets = devices.iter().map(MappedDevice::targets).collect();
    }

    /// The lines of a device that is on one other device.
    fn extents_on(
        &mut self,
        mapping: &MappedDevice,
        dev: DevId,
    ) -> Result<Vec<TableExtent>, Error> {
        let mut extents = Vec::new();
        for line in &mapping.lines {
            let devs = line.needs().devices.iter().map(|_| dev).collect();
            let target = self.target_on(line, devs)?;
            extents.push(TableExtent::new(Sector(line.start), Sector(line.len), target));
        }
        Ok(extents)
    }

    fn read_only(&self) -> bool {
        let not_writable = |device: &Device| device.file.access() == Access::ReadOnly;
        self.options.read_only || self.backend.devices.iter().any(not_writable)
    }

    /// Whether every piece of a connection ends on its own thread.
    fn is_synchronous(&self, table: &Table) -> bool {
        let is_tmpfs = |device: &Device| device.file.kind() == BackingKind::Tmpfs;
        !self.placement.fans_out_pieces
            && !table.waits()
            && matches!(self.options.bounce, BounceChoice::Fastest)
            && self.backend.devices.iter().all(is_tmpfs)
    }

    /// The minimum block of clients ([`Volume::minimum_block_bytes`]).
    fn minimum_block_bytes(&self, sector_size_bytes: u32) -> u32 {
        let tears = self.tears_sectors && sector_size_bytes > DISK_UNIT_BYTES;
        let usual = if tears { sector_size_bytes } else { 1 };
        self.options.minimum_block_bytes.unwrap_or(usual)
    }

    /// The gate; `None` if shards receive no orders. A multipath line needs it even without
    /// control: at the end of the server no bio may wait for a path.
    fn gate(&self, table: &Table) -> Option<Arc<Gate>> {
        let mut extents = table.layers().flat_map(Table::extents);
        let has_control = extents.any(|extent| extent.facts().has_control);
        let is_controlled = self.options.controlled;
        (is_controlled || has_control).then(|| Arc::new(Gate::new(is_controlled)))
    }

    fn build(mut self) -> Result<Volume, Error> {
        let read_only = self.read_only();
        let extents = std::mem::take(&mut self.extents);
        let table = Table::new(extents).over(std::mem::take(&mut self.below));
        let ciphers = self.names.iter().map(|name| format!(", {name}")).collect();
        let sector_size_bytes = table.sector_size_bytes();
        let minimum_block_bytes = self.minimum_block_bytes(sector_size_bytes);
        let is_synchronous = self.is_synchronous(&table);
        let usual = if is_synchronous { EVERY_SYNCHRONOUS } else { EVERY_QUEUED };
        let sample_every = self.options.sample_every.unwrap_or(usual);
        let can_discard = self.can_discard && !refuses_discards(&table) && !read_only;
        let keys = Keys::all_valid(self.backend.ciphers.len());
        let gate = self.gate(&table);
        let ranges = (!read_only).then(|| Arc::new(VolumeRanges::new(self.tears_sectors)));
        let dirty = self.dirty_bitmap(table.len().bytes(), ranges.as_ref())?;
        let workers = self.placement.workers();
        let workers_busy = workers.clone().map(|workers| {
            let read: BusyTime = Box::new(move || workers.busy_time());
            read
        });
        let parts = Parts {
            bounce: Arc::new(BounceBudget::new(self.options.bounce, &table)),
            table: LoadedTable::new(table),
            backend: Arc::new(self.backend),
            stage_stats: Arc::new(StageStats::new(sample_every, workers_busy)),
            workers,
            asks_load_from: self.placement.asks_load_from,
            batches_from_bytes: self.placement.batches_from_bytes,
            writer: new_io_context(),
            ranges,
            gate,
            dirty,
            durability: self.durability,
            switch: Arc::default(),
            opened: Instant::now(),
        };
        let bitmap = parts.dirty.iter().filter_map(|dirty| dirty.file_id());
        let file_ids = content_ids(&parts).chain(bitmap).collect();
        Ok(Volume {
            parts,
            keys,
            described: self.described,
            sector_size_bytes,
            minimum_block_bytes,
            read_only,
            can_discard,
            is_synchronous,
            fans_out_pieces: self.placement.fans_out_pieces,
            file_ids,
            suspend_refusal: OnceLock::new(),
            ciphers,
        })
    }

    fn dirty_bitmap(
        &self,
        size_bytes: u64,
        ranges: Option<&Arc<VolumeRanges>>,
    ) -> Result<Option<Arc<DirtyBitmap>>, Error> {
        let Some(options) = &self.options.dirty_bitmap else { return Ok(None) };
        if self.options.shared {
            let problem = "a dirty bitmap does not see the writes of other servers; open the \
                           volume without `shared`";
            return Err(Error::parameter(options.path().display(), problem));
        }
        let tracked = Tracked {
            size_bytes,
            ranges: ranges.cloned(),
            durability: Arc::clone(&self.durability),
            content: self.image_files()?,
        };
        DirtyBitmap::open(options, tracked).map(|it| Some(Arc::new(it)))
    }

    /// Descriptors of the image files below. Block devices and servers have none.
    fn image_files(&self) -> Result<Vec<File>, Error> {
        let files = self.backend.devices.iter().filter_map(|device| device.file.image());
        files.collect()
    }
}

fn refuses_discards(table: &Table) -> bool {
    let mut extents = table.layers().flat_map(Table::extents);
    extents.any(|extent| extent.facts().refuses_discards)
}

pub(super) fn dev_id(index: usize) -> DevId {
    DevId(u16::try_from(index).expect("a table has few lines"))
}
