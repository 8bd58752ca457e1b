//! An open volume: its files, its ciphers and its dm table, shared by all connections.

use std::fmt::Write as _;
use std::num::{NonZeroU64, NonZeroUsize};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Instant;

use blockyard_crypt::cipher::SectorCipher;
use blockyard_crypt::params::{CryptFlags, CryptParams};
use blockyard_crypt::secret::SecretBytes;
use blockyard_crypt::source::HeaderSource;
use blockyard_engine::bio::{IoContext, Sector};
use blockyard_engine::dm::Leg;
use blockyard_engine::dm::crypt::CryptSpec;
use blockyard_engine::dm::crypt::pipeline::{Adaptive, Choice, PRESETS, Pipeline, Preset};
use blockyard_engine::dm::line::{self, Line, LineTarget, MappedDevice};
use blockyard_engine::dm::multipath::line::QueueMode;
use blockyard_engine::dm::table::{Table, TableExtent, TargetSpec};
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::elevator::none::NONE;
use blockyard_engine::mq::{Limits, QueueConfig};
use blockyard_engine::sq::{CipherId, DevId, Place};
use blockyard_engine::time::Nanos;
use rustix::fs::Advice;

use crate::Error;
use crate::device_thread::DeviceThread;
use crate::disk::{self, DeviceQueue, default_elevator};
use crate::durability::Durability;
use crate::file::mapping::Mapping;
use crate::file::{Access, DeviceFile, Facts, FileId, Kind, extents};
use crate::nbd::Unflushed;
use crate::pages::BounceChoice;
use crate::recording::Switch;
use crate::stages::{EVERY_QUEUED, EVERY_SYNCHRONOUS, StageStats};
use crate::submitter::new_io_context;
use crate::workers::{Crew, Workers};
use crate::write_log::WriteLog;

/// What a hand-over to a worker and back costs when it comes alone: 4 to 20 µs each way were
/// measured (`cargo x bench engine` prints what workers are worth on a machine). What takes the
/// cipher less, and comes alone, stays where it is.
const HAND_OVER_NS: u64 = 40_000;
/// A cipher that is faster than a hand-over even for so much needs no worker.
const FAN_OUT_MAX_BYTES: u64 = 512 << 10;
/// Parts are at least this long where it matters: what is read or written in one piece.
const PART_BYTES: u64 = 64 << 10;

/// What stands between a volume and its devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Scheduling {
    /// Which request a device gets next; `None` chooses by what the device is.
    pub elevator: Option<ElevatorSpec>,
    /// Requests with a device at a time; with `none`, of each connection. `None` is 32 for an
    /// elevator, as a disk with native command queueing takes and few enough to leave it a choice,
    /// and with `none` 128, as many as buffers of a connection can ask for twice over.
    pub queue_depth: Option<u32>,
    /// A request is not made longer by merging, and longer ones are split.
    pub max_sectors: u32,
}

impl Scheduling {
    /// What `queue_depth` may be: as much as a ring can hold.
    pub const QUEUE_DEPTHS: RangeInclusive<u32> = 1..=1024;
    /// What `max_sectors` may be, in steps of a page.
    pub const MAX_SECTORS: RangeInclusive<u32> = 8..=65_528;

    /// What is wrong with it.
    fn problem(&self) -> Option<String> {
        let (depths, sectors) = (Self::QUEUE_DEPTHS, Self::MAX_SECTORS);
        if let Some(depth) = self.queue_depth.filter(|depth| !depths.contains(depth)) {
            return Some(format!(
                "the queue depth is {depth}; it must be {} to {}",
                depths.start(),
                depths.end()
            ));
        }
        // A request is cut at whole encryption sectors, of 4096 bytes at most.
        (!sectors.contains(&self.max_sectors) || !self.max_sectors.is_multiple_of(8)).then(|| {
            format!(
                "the longest request has {} sectors; it must be a multiple of 8, {} to {}",
                self.max_sectors,
                sectors.start(),
                sectors.end()
            )
        })
    }
}

impl Default for Scheduling {
    /// 512 KiB. Decryption starts when a request has ended: at Linux's 1280 KiB, sequential reads
    /// of a direct file had 0.68 of their speed, because disk and cipher took turns; at 64 KiB
    /// writes had 0.81.
    fn default() -> Self {
        Self { elevator: None, queue_depth: None, max_sectors: 1024 }
    }
}

/// Where ciphers run, who submits encrypted writes, in which order and in whose name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PipelineChoice {
    /// Decided by what comes at once, and by what cipher and hand-over cost here.
    #[default]
    Adaptive,
    /// What Linux makes of the volume's own flags, or of the table line's options.
    Linux,
    /// This one.
    Fixed(Pipeline),
}

impl PipelineChoice {
    /// Those that have a name, each with one line about it.
    pub fn named() -> impl Iterator<Item = (&'static str, &'static str, Self)> {
        let ours = [
            (
                "adaptive",
                "small parts at once, long ones by workers if the cipher is slow",
                Self::Adaptive,
            ),
            ("linux", "what Linux makes of the volume's flags or the table's options", Self::Linux),
        ];
        let preset = |preset: &Preset| (preset.name, preset.about, Self::Fixed(preset.pipeline));
        ours.into_iter().chain(PRESETS.iter().map(preset))
    }

    /// The one with this name.
    ///
    /// # Errors
    /// The names that there are.
    pub fn parse(name: &str) -> Result<Self, String> {
        let found = Self::named().find(|(known, ..)| *known == name);
        found.map(|(.., choice)| choice).ok_or_else(|| {
            let names: Vec<&str> = Self::named().map(|(name, ..)| name).collect();
            format!("{name:?} is no pipeline; there are {}", names.join(", "))
        })
    }
}

/// How to open a volume.
#[derive(Clone, Debug, Default)]
pub struct VolumeOptions {
    /// Nothing may be written.
    pub read_only: bool,
    /// Others may write to the same files, if they say so too.
    pub shared: bool,
    /// Bypass the page cache for regular files too.
    pub direct: bool,
    /// Pass TRIM down, besides what the header says.
    pub allow_discards: bool,
    /// Crypto workers beside the connections' own threads. Zero refuses pipelines that hand ciphers
    /// over. `None` measures the cipher: a slow one gets a worker for each other core.
    pub worker_threads: Option<usize>,
    /// Where ciphers run, and who submits.
    pub pipeline: PipelineChoice,
    /// What writes are encrypted into.
    pub bounce: BounceChoice,
    /// Queues and elevators of the devices below.
    pub scheduling: Scheduling,
    /// The unit that clients are told to read and write in. `None` is one byte, or the sector of a
    /// cipher whose sectors a torn change would garble as a whole.
    pub minimum_block_bytes: Option<u32>,
    /// It can be suspended, and its keys changed ([`Volume::suspend`]).
    pub controlled: bool,
    /// Time is kept of one request of so many ([`crate::stages`]); zero keeps none. `None` is as
    /// many as cost nothing that anybody would notice.
    pub sample_every: Option<u32>,
}

/// A file below, its mapping if it has one, and what lies in front of it.
pub(crate) struct Device {
    pub(crate) file: Arc<DeviceFile>,
    pub(crate) mapping: Option<Mapping>,
    pub(crate) queue: DeviceQueue,
    elevator: ElevatorSpec,
    /// It is one of several ways to one disk.
    is_path: bool,
}

impl Device {
    /// The thread of an elevator, or of the connection to a server.
    pub(crate) fn disk(&self) -> Option<&DeviceThread> {
        match &self.queue {
            DeviceQueue::Shared(disk) => Some(disk),
            DeviceQueue::Bypassed | DeviceQueue::PerConnection(_) => None,
        }
    }

    fn has_queue(&self) -> bool {
        !matches!(self.queue, DeviceQueue::Bypassed)
    }
}

/// What a disk writes whole or not at all.
const DISK_UNIT_BYTES: u32 = 512;

/// A volume that is open, until it is dropped.
pub struct Volume {
    pub(crate) devices: Vec<Device>,
    pub(crate) ciphers: Vec<KeyedCipher>,
    pub(crate) logs: Vec<WriteLog>,
    pub(crate) table: Table,
    /// Of the table, which may be long: each request asks.
    sector_size_bytes: u32,
    pub(crate) bounce: BounceChoice,
    /// How many shards take pages; they share a budget.
    pub(crate) page_clients: AtomicU32,
    pub(crate) workers: Option<Arc<Workers>>,
    /// Workers get the pieces of a connection too, and not only what is longer.
    pub(crate) fans_out_pieces: bool,
    /// Where the ciphers of longer bios run depends on what else goes on; `None` if of none.
    pub(crate) asks_load_from: Option<Sector>,
    /// The io-context of the thread that submits encrypted writes: connections take turns at it.
    pub(crate) writer: IoContext,
    /// Of its writes in flight.
    pub(crate) ranges: Arc<VolumeRanges>,
    /// While a part of a sector is written, no part of it can be read.
    pub(crate) tears_sectors: bool,
    minimum_block_bytes: Option<u32>,
    /// `None` if nobody has anything to tell it.
    pub(crate) gate: Option<Arc<Gate>>,
    /// Whether acknowledged writes can still be made stable.
    pub(crate) durability: Arc<Durability>,
    /// Whether somebody records what comes.
    pub(crate) switch: Arc<Switch>,
    is_controlled: bool,
    keys: Keys,
    described: Described,
    read_only: bool,
    can_discard: bool,
    is_synchronous: bool,
    description: String,
    opened: Instant,
    pub(crate) stage_stats: Arc<StageStats>,
}

impl Volume {
    /// The volume that `params` describes on `file`.
    ///
    /// # Errors
    /// When the cipher is not supported, the key does not fit, or the file is too short.
    pub fn from_crypt(
        file: DeviceFile,
        params: &CryptParams,
        options: &VolumeOptions,
    ) -> Result<Self, Error> {
        let len = crypt_len(&file, params)?;
        let mut params = params.clone();
        params.flags.allow_discards |= options.allow_discards;
        let mut builder = Builder::new(options);
        builder.describe(&[crypt_device(&file, &params, len)]);
        let uses = [Use::Crypt(params.data_offset_sectors, params.sector_size_bytes)];
        let dev = builder.add_device(file, &uses)?;
        let target = builder.crypt(dev, &params)?;
        builder.extents.push(TableExtent { start: Sector(0), len: Sector(len), target });
        Ok(builder.build())
    }

    /// The file as it is, without a cipher. The buffers of its clients must be aligned as direct
    /// I/O wants it: this is for clients in this process ([`crate::local`]).
    ///
    /// # Errors
    /// When the file has no sector, or cannot have the elevator.
    pub fn from_file(file: DeviceFile, options: &VolumeOptions) -> Result<Self, Error> {
        let len = Sector::holding(file.len_bytes());
        if len == Sector(0) {
            return Err(Error::volume(file.path(), "is empty"));
        }
        let mut builder = Builder::new(options);
        let device = file.path().display().to_string();
        let line = Line { start: 0, len: len.0, target: LineTarget::Linear { device, start: 0 } };
        builder.describe(&[MappedDevice { name: String::new(), lines: vec![line] }]);
        let dev = builder.add_device(file, &[])?;
        let target = TargetSpec::Linear { dev, start: Sector(0) };
        builder.extents.push(TableExtent { start: Sector(0), len, target });
        Ok(builder.build())
    }

    /// The volume of a dm table (see [`line`]). Its devices are opened here.
    ///
    /// # Errors
    /// When a line is wrong or a device cannot be opened or is too short.
    pub fn from_table(text: &SecretBytes, options: &VolumeOptions) -> Result<Self, Error> {
        let mappings = line::parse(line::text_of(text)?)?;
        let mut builder = Builder::new(options);
        builder.describe(&mappings);
        builder.mappings(&mappings)?;
        Ok(builder.build())
    }

    /// Length of the plaintext.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.table.len().bytes()
    }

    /// What a request should be aligned to.
    #[must_use]
    pub fn sector_size_bytes(&self) -> u32 {
        self.sector_size_bytes
    }

    /// Whether nothing may be written.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Whether TRIM is passed down.
    #[must_use]
    pub fn can_discard(&self) -> bool {
        self.can_discard
    }

    /// Whether zeroing is faster than writing zeros everywhere: there is no cipher, and no log that
    /// has them in full.
    #[must_use]
    pub fn can_fast_zero(&self) -> bool {
        self.ciphers.is_empty() && self.logs.is_empty()
    }

    /// One line for people, without secrets.
    #[must_use]
    pub fn describe(&self) -> &str {
        &self.description
    }

    /// The elevators of the devices below and of the multipath lines that have one, each once, as
    /// on the command line.
    #[must_use]
    pub fn elevator(&self) -> String {
        let devices = self.devices.iter().filter(|device| !device.is_path);
        let devices = devices.map(|device| &device.elevator);
        let lines = self.table.layers().flat_map(Table::extents);
        let lines = lines.filter_map(|line| match &line.target {
            TargetSpec::Multipath(spec) => Some(&spec.requests.as_ref()?.elevator),
            _ => None,
        });
        let mut names: Vec<String> = Vec::new();
        for name in devices.chain(lines).map(ElevatorSpec::to_string) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if names.is_empty() { NONE.name.into() } else { names.join(" and ") }
    }

    /// Time since it was opened: the clock of all its shards.
    pub(crate) fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// The threads of devices that have one.
    pub(crate) fn disks(&self) -> impl Iterator<Item = &DeviceThread> {
        self.devices.iter().filter_map(Device::disk)
    }

    /// The unit that clients should read and write in.
    ///
    /// A change of part of a sector is read, changed and written back. A power cut may tear that
    /// write at 512 bytes, the unit of a disk: with XTS, CTR, ECB and LRW other bytes of the sector
    /// keep what they had, since each cipher block stands alone. CBC carries a change on to the end
    /// of the sector, Adiantum and the elephant diffuser to all of it: there neighbours that were
    /// stable would be garbage. dm-crypt's logical block is the sector for the same reason.
    #[must_use]
    pub fn minimum_block_bytes(&self) -> u32 {
        let tears = self.tears_sectors && self.sector_size_bytes > DISK_UNIT_BYTES;
        let usual = if tears { self.sector_size_bytes } else { 1 };
        self.minimum_block_bytes.unwrap_or(usual)
    }

    /// The files and block devices of this machine that it lies on, and the logs that it writes.
    #[must_use]
    pub fn file_ids(&self) -> Vec<FileId> {
        let devices = self.devices.iter().filter_map(|device| device.file.id());
        devices.chain(self.logs.iter().filter_map(WriteLog::file_id)).collect()
    }

    /// A range will be read soon: what the page cache lacks of it is fetched.
    pub(crate) fn will_need(&self, offset_bytes: u64, len_bytes: u64) {
        let end_bytes = offset_bytes + len_bytes;
        for extent in self.table.extents() {
            let (first, past) = (extent.start.bytes(), (extent.start + extent.len).bytes());
            let (from, to) = (first.max(offset_bytes), past.min(end_bytes));
            let leg = match &extent.target {
                TargetSpec::Crypt(spec) => Some(Leg { dev: spec.dev, start: spec.start }),
                other => other.window(),
            };
            let on_file = leg.filter(|leg| leg.dev.below().is_none());
            let Some(Leg { dev, start }) = on_file else { continue };
            if from < to {
                let Some(file) = self.devices[usize::from(dev.0)].file.local() else { continue };
                let (at, len) = (start.bytes() + from - first, NonZeroU64::new(to - from));
                let _ = rustix::fs::fadvise(file, at, len, Advice::WillNeed);
            }
        }
    }

    /// Whether every piece that a connection reads or writes ends on its own thread, without
    /// waiting, if it stays inline ([`crate::driver::Driver::stay_inline`]).
    pub(crate) fn is_synchronous(&self) -> bool {
        self.is_synchronous
    }

    /// Length of the run at `offset_bytes`, at most `len_bytes`, and whether it is a hole that
    /// reads as zeros. What lies behind a cipher is never a hole: it decrypts to noise.
    pub(crate) fn run_at(&self, offset_bytes: u64, len_bytes: u64) -> (u64, bool) {
        let sector = Sector::holding(offset_bytes);
        let at = |extent: &&TableExtent| extent.start + extent.len > sector;
        let extent = self.table.extents().iter().find(at).expect("the range is in the volume");
        let len_bytes = len_bytes.min((extent.start + extent.len).bytes() - offset_bytes);
        match (&extent.target, extent.target.window()) {
            (TargetSpec::Zero, _) => (len_bytes, true),
            (_, Some(Leg { dev, start })) if dev.below().is_none() => {
                let lower = start.bytes() + offset_bytes - extent.start.bytes();
                match self.devices[usize::from(dev.0)].file.local() {
                    Some(file) => extents::run_at(file, lower, len_bytes),
                    None => (len_bytes, false),
                }
            }
            _ => (len_bytes, false),
        }
    }
}

/// What a line of the table does with a device.
#[derive(Clone, Copy)]
enum Use {
    /// Passes the client's buffers down, whose addresses direct I/O would refuse: every target but
    /// crypt.
    Linear,
    /// The same, as one of several ways to one disk. Where requests choose the way, the line has
    /// the elevator.
    Path(QueueMode),
    /// Ciphertext that starts at this sector, in sectors of this many bytes.
    Crypt(u64, u32),
}

fn is_none(elevator: &ElevatorSpec) -> bool {
    std::ptr::eq(elevator.elevator, &NONE)
}

/// The file with direct I/O on or off, and its elevator: the one that was asked for, or, if none
/// was, the usual one for such a device as far as it can have one.
fn scheduled(
    file: DeviceFile,
    uses: &[Use],
    scheduling: &Scheduling,
) -> Result<(DeviceFile, ElevatorSpec), Error> {
    let is_below = uses.iter().any(|using| matches!(using, Use::Path(QueueMode::Request)));
    let asked = scheduling.elevator.as_ref().filter(|elevator| !is_none(elevator) && !is_below);
    let file = match (asked, file.kind()) {
        (Some(_), Kind::Cached) => file.with_direct()?,
        _ => file,
    };
    match (asked, misfit(&file, uses)) {
        (Some(elevator), Some(problem)) => Err(Error::volume(
            file.path(),
            format!("elevator {} cannot be used: {problem}", elevator.elevator.name),
        )),
        (Some(elevator), None) => Ok((file, elevator.clone())),
        (None, Some(_)) => Ok((file.without_direct()?, ElevatorSpec::of(&NONE))),
        (None, None) if scheduling.elevator.is_some() || file.kind() != Kind::Direct => {
            Ok((file, ElevatorSpec::of(&NONE)))
        }
        (None, None) => {
            let Facts { rotational, kernel_scheduler } = file.facts();
            let elevator = default_elevator(rotational, kernel_scheduler.as_deref());
            Ok((file, elevator))
        }
    }
}

/// Why the device has no direct I/O, which every elevator needs, and what to do.
fn misfit(file: &DeviceFile, uses: &[Use]) -> Option<String> {
    if file.kind() == Kind::Tmpfs {
        return Some(
            "a file in memory (tmpfs) has no requests to order; leave --elevator out".into(),
        );
    }
    if file.kind() == Kind::Remote {
        return Some("its server puts requests in order; leave --elevator out".into());
    }
    uses.iter().find_map(|using| match *using {
        Use::Linear | Use::Path(_) => Some(
            "only a crypt line has buffers of its own: any other passes those of clients down as \
             they are, and the direct I/O that an elevator needs refuses them; leave --elevator \
             out, or put the crypt lines into a volume of their own"
                .into(),
        ),
        Use::Crypt(start, size_bytes) if !file.direct_fits(start, size_bytes) => Some(format!(
            "its data starts at sector {start}, in sectors of {size_bytes} bytes, but the direct \
             I/O that an elevator needs goes in units of {} bytes there; leave --elevator out, or \
             move the data to a multiple of that",
            file.direct_unit_bytes()
        )),
        Use::Crypt(..) => None,
    })
}

pub mod control;
mod crypt_mapping;
mod flush;
pub(crate) mod gate;
mod keyed;
mod mapped;
mod observed;
pub(crate) mod ranges;
mod targets;

use control::{AdaptiveStatus, Described, Keys};
pub use crypt_mapping::crypt_mapping;
use crypt_mapping::{crypt_device, crypt_len};
use gate::Gate;
use keyed::KeyedCipher;
use mapped::Mapped;
pub use observed::Backing;
use ranges::VolumeRanges;

/// Collects devices, ciphers and extents.
struct Builder<'a> {
    options: &'a VolumeOptions,
    devices: Vec<Device>,
    ciphers: Vec<KeyedCipher>,
    described: Described,
    logs: Vec<WriteLog>,
    durability: Arc<Durability>,
    /// Of the paths of the multipath line that is being made.
    unflushed_of_paths: Option<Arc<Unflushed>>,
    /// Mapped devices below: what lines above know of them, and the tables of those that have one.
    mapped: Vec<Mapped>,
    below: Vec<Table>,
    extents: Vec<TableExtent>,
    names: Vec<String>,
    can_discard: bool,
    crew: Crew,
    fans_out_pieces: bool,
    asks_load_from: Option<Sector>,
    tears_sectors: bool,
}

impl<'a> Builder<'a> {
    fn new(options: &'a VolumeOptions) -> Self {
        Self {
            options,
            devices: Vec::new(),
            ciphers: Vec::new(),
            described: Described::default(),
            logs: Vec::new(),
            durability: Arc::default(),
            unflushed_of_paths: None,
            mapped: Vec::new(),
            below: Vec::new(),
            extents: Vec::new(),
            names: Vec::new(),
            can_discard: true,
            crew: Crew::default(),
            fans_out_pieces: false,
            asks_load_from: None,
            tears_sectors: false,
        }
    }

    /// What is shown of the table.
    fn describe(&mut self, devices: &[MappedDevice]) {
        self.described.table = devices.iter().map(MappedDevice::without_keys).collect();
        self.described.targets = devices.iter().map(MappedDevice::targets).collect();
    }

    fn read_only(&self) -> bool {
        let not_writable = |device: &Device| device.file.access() == Access::ReadOnly;
        self.options.read_only || self.devices.iter().any(not_writable)
    }

    fn add_device(&mut self, file: DeviceFile, uses: &[Use]) -> Result<DevId, Error> {
        let writable = file.access().writes() && !self.options.read_only;
        if let Some(problem) = self.options.scheduling.problem() {
            return Err(Error::volume(file.path(), problem));
        }
        let (file, elevator) = scheduled(file, uses, &self.options.scheduling)?;
        let mapping = match file.kind() {
            Kind::Tmpfs => Mapping::new(file.file(), file.len_bytes(), writable),
            Kind::Cached | Kind::Direct | Kind::Remote => None,
        };
        if let Some(remote) = file.remote() {
            self.can_discard &= remote.can_trim();
        }
        let is_path = uses.iter().any(|using| matches!(using, Use::Path(_)));
        let file = Arc::new(file.watched_by(&self.durability, is_path));
        let number = self.devices.len();
        let queue = self.queue(number, &file, &elevator)?;
        self.devices.push(Device { file, mapping, queue, elevator, is_path });
        Ok(dev_id(number))
    }

    fn queue(
        &self,
        number: usize,
        file: &Arc<DeviceFile>,
        elevator: &ElevatorSpec,
    ) -> Result<DeviceQueue, Error> {
        if let Some(remote) = file.remote() {
            let unflushed = self.unflushed_of_paths.clone().unwrap_or_default();
            let disk = remote.start(number, Arc::clone(&self.durability), unflushed);
            let failed = |error| Error::io(file.path(), "start a thread for", error);
            return disk.map(DeviceQueue::Shared).map_err(failed);
        }
        if file.kind() != Kind::Direct {
            return Ok(DeviceQueue::Bypassed);
        }
        let queue_depth = self.queue_depth(elevator);
        let config = self.queue_config(elevator, queue_depth, file.facts().rotational);
        if is_none(elevator) {
            return Ok(DeviceQueue::PerConnection(config));
        }
        let config = QueueConfig { timeout: Some(disk::TIMEOUT), ..config };
        let disk = disk::thread::start(number, Arc::clone(file), config, elevator)
            .map_err(|error| Error::io(file.path(), "start a thread for", error))?;
        Ok(DeviceQueue::Shared(disk))
    }

    /// How many requests a device has at a time.
    fn queue_depth(&self, elevator: &ElevatorSpec) -> u32 {
        let usual = if is_none(elevator) { 128 } else { 32 };
        self.options.scheduling.queue_depth.unwrap_or(usual)
    }

    fn queue_config(
        &self,
        elevator: &ElevatorSpec,
        queue_depth: u32,
        rotational: bool,
    ) -> QueueConfig {
        let usual = QueueConfig::of(elevator.elevator.generation);
        QueueConfig {
            queue_depth,
            nr_requests: QueueConfig::usual_nr_requests(usual.generation, queue_depth),
            limits: Limits { max_sectors: self.options.scheduling.max_sectors, ..usual.limits },
            rotational,
            write_cache: true,
            fua: true,
            ..usual
        }
    }

    fn crypt(&mut self, dev: DevId, params: &CryptParams) -> Result<TargetSpec, Error> {
        let cipher = KeyedCipher::new(params)?;
        self.names.push(format!(
            "{}{}, {}-bit key, {}-byte sectors",
            params.cipher,
            if cipher.is_table_based() { " (table-based)" } else { "" },
            params.key.len() * 8,
            params.sector_size_bytes
        ));
        let allow_discards = params.flags.allow_discards || self.options.allow_discards;
        self.can_discard &= allow_discards;
        self.tears_sectors |= !ranges::is_local(&params.cipher);
        let pipeline = self.pipeline(dev, &cipher, &params.flags)?;
        let cipher_id = CipherId(dev_id(self.ciphers.len()).0);
        self.ciphers.push(cipher);
        Ok(TargetSpec::Crypt(CryptSpec {
            dev,
            start: Sector(params.data_offset_sectors),
            iv_offset: params.iv_offset_sectors,
            sector_size_bytes: params.sector_size_bytes,
            cipher: cipher_id,
            allow_discards,
            fuses_cipher: matches!(self.options.bounce, BounceChoice::Fastest)
                && dev.below().is_none()
                && fuses(&self.devices[usize::from(dev.0)]),
            pipeline,
        }))
    }

    /// Where the cipher runs and who submits; sees to it that there are workers for it.
    fn pipeline(
        &mut self,
        dev: DevId,
        cipher: &SectorCipher,
        flags: &CryptFlags,
    ) -> Result<Choice, Error> {
        let threads = self.options.worker_threads;
        let fixed = match self.options.pipeline {
            PipelineChoice::Adaptive => None,
            PipelineChoice::Linux => Some(Pipeline::from_options(flags)),
            PipelineChoice::Fixed(pipeline) => Some(pipeline),
        };
        if let Some(pipeline) = fixed {
            let runs = |place| pipeline.read == place || pipeline.write == place;
            if runs(Place::Unbound) {
                if threads == Some(0) {
                    let problem = "this pipeline hands ciphers to them, and there are to be none; \
                                   allow one (--threads 1), or take --pipeline inline";
                    return Err(Error::parameter("cipher workers", problem));
                }
                self.crew.unbound = self.crew.unbound.max(threads.unwrap_or_else(cores));
            }
            self.crew.bound |= runs(Place::SameCpu);
            self.fans_out_pieces |= runs(Place::Unbound) || runs(Place::SameCpu);
            return Ok(Choice::Fixed(pipeline));
        }
        let cipher_ns = measured_ns(cipher);
        let pays_from_bytes = (HAND_OVER_NS * PART_BYTES / cipher_ns).next_multiple_of(4096);
        let pays = pays_from_bytes <= FAN_OUT_MAX_BYTES;
        let workers = threads.unwrap_or(if pays { cores().saturating_sub(1) } else { 0 });
        self.crew.unbound = self.crew.unbound.max(workers);
        // Somebody who asks for workers gets them.
        let least =
            if threads.is_some() { pays_from_bytes.min(PART_BYTES) } else { pays_from_bytes };
        self.fans_out_pieces |= workers > 0 && least <= PART_BYTES;
        let fan_out_min_bytes = (workers > 0).then_some(least as u32);
        let device = dev.below().is_none().then(|| &self.devices[usize::from(dev.0)]);
        let queues = device.is_none_or(Device::has_queue);
        // What goes into the page cache the kernel sorts when it writes it back.
        let seeks = device.is_some_and(|device| queues && device.file.facts().rotational);
        let (part_bytes, hand_over_ns) = (PART_BYTES, HAND_OVER_NS);
        self.described.adaptive.push(AdaptiveStatus {
            cipher_ns,
            part_bytes,
            hand_over_ns,
            fan_out_min_bytes,
            seeks,
        });
        let adaptive = Adaptive { fan_out_min_bytes, seeks, queues };
        let asks_from = adaptive.asks_load_from_bytes().map(Sector::holding);
        self.asks_load_from = self.asks_load_from.into_iter().chain(asks_from).min();
        Ok(Choice::Adaptive(adaptive))
    }

    fn build(self) -> Volume {
        let read_only = self.read_only();
        let table = Table::new(self.extents).over(self.below);
        let mut description = format!("{} bytes", table.len().bytes());
        for name in &self.names {
            let _ = write!(description, ", {name}");
        }
        let keys = Keys::all_valid(self.ciphers.len());
        let is_multipath = |extent: &TableExtent| matches!(extent.target, TargetSpec::Multipath(_));
        let has_multipath = table.layers().flat_map(Table::extents).any(is_multipath);
        let inline = !self.fans_out_pieces
            && !table.waits()
            && matches!(self.options.bounce, BounceChoice::Fastest);
        let is_synchronous =
            inline && self.devices.iter().all(|device| device.file.kind() == Kind::Tmpfs);
        let usual = if is_synchronous { EVERY_SYNCHRONOUS } else { EVERY_QUEUED };
        let every = self.options.sample_every.unwrap_or(usual);
        Volume {
            devices: self.devices,
            ciphers: self.ciphers,
            logs: self.logs,
            sector_size_bytes: table.sector_size_bytes(),
            table,
            bounce: self.options.bounce,
            page_clients: AtomicU32::new(0),
            workers: (self.crew != Crew::default()).then(|| Workers::start(self.crew)),
            fans_out_pieces: self.fans_out_pieces,
            asks_load_from: self.asks_load_from,
            writer: new_io_context(),
            ranges: Arc::default(),
            tears_sectors: self.tears_sectors,
            minimum_block_bytes: self.options.minimum_block_bytes,
            // Without control too: at the end of the server nothing waits for a path any more.
            gate: (self.options.controlled || has_multipath).then(Arc::default),
            durability: self.durability,
            switch: Arc::default(),
            is_controlled: self.options.controlled,
            keys,
            described: self.described,
            read_only,
            can_discard: self.can_discard && !read_only,
            is_synchronous,
            description,
            opened: Instant::now(),
            stage_stats: Arc::new(StageStats::new(every)),
        }
    }
}

/// What the cipher takes for [`PART_BYTES`]: the shortest of a few runs, since the others were
/// interrupted.
fn measured_ns(cipher: &SectorCipher) -> u64 {
    let mut part = vec![0; PART_BYTES as usize];
    let mut measure = || {
        let start = Instant::now();
        cipher.encrypt_in_place(&mut part, 0);
        start.elapsed().as_nanos().max(1) as u64
    };
    (0..5).map(|_| measure()).min().unwrap_or(1)
}

/// Whether a cipher can run straight into and out of its pages.
fn fuses(device: &Device) -> bool {
    device.file.kind() == Kind::Tmpfs
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

fn dev_id(index: usize) -> DevId {
    DevId(u16::try_from(index).expect("a table has few lines"))
}
