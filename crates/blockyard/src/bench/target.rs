//! The target of a program: memory, a file or a block device, divided into the program's files.
//!
//! A created file is removed afterwards. Data is overwritten only if [`Target::may_destroy`] allows
//! it; a block device in use (a mounted file system), never.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use blockyard_crypt::params::CryptParams;
use blockyard_crypt::secret::SecretBytes;
use blockyard_crypt::source::HeaderSource;
use blockyard_host::file::{Access, DeviceFile};
use blockyard_host::volume::{self as host, PipelineChoice, Scheduling, VolumeOptions};

use crate::size::human_size;
use crate::{Error, Volume};

/// The program's files start at multiples of this.
const REGION_BYTES: u64 = 4096;

/// Why the volume of a workload keeps its size.
const WHY_FIXED: &str = "a workload relies on its size";

/// A disk made for one run of a program.
#[derive(Clone, Debug)]
pub struct Target {
    /// Place of the data.
    pub place: Place,
    /// Permission to overwrite data of the file or block device.
    pub may_destroy: bool,
    /// Queue and elevator above it.
    pub scheduling: Scheduling,
    /// Pipeline of a crypt target with a random key; `None` means no encryption.
    pub pipeline: Option<PipelineChoice>,
}

/// Place of the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Memory, released afterwards; as long as the program's files, or of this length.
    Memory {
        /// Its length.
        len_bytes: Option<u64>,
    },
    /// The target `null`, which stores nothing, as long as the program's files.
    Null {
        /// Arguments of the table line.
        args: String,
        /// Requests reach it through a multipath line with one path.
        is_stacked: bool,
    },
    /// A file or block device. A missing or empty file gets the length of the program's files.
    Path(PathBuf),
}

/// A part of the target that is one of the program's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Region {
    pub(super) start_bytes: u64,
    pub(super) len_bytes: u64,
}

/// The program's files on a volume.
pub(super) struct Files {
    /// Regions by number of the file.
    pub(super) regions: Vec<Region>,
    /// [`Call::Layout`](blockyard_workload::program::Call::Layout) writes the file.
    pub(super) lays_out: bool,
    /// Calls that change a file fail.
    pub(super) read_only: bool,
}

/// A target in use.
pub(super) struct Opened {
    pub(super) volume: Volume,
    pub(super) files: Files,
    /// Dropped after the volume.
    _claim: Claim,
}

impl Target {
    /// Opens the target for files of these lengths.
    pub(super) fn open(&self, file_lens_bytes: &[u64]) -> Result<Opened, Error> {
        let (regions, needed_bytes) = regions(file_lens_bytes)?;
        let (file, claim) = match &self.place {
            Place::Null { args, is_stacked } => {
                let table = null_table(args, *is_stacked, needed_bytes.div_ceil(512));
                let settings = self.settings();
                // Nothing is stored.
                let files = Files { regions, lays_out: false, read_only: false };
                return Ok(Opened {
                    volume: of_table(&table, &settings)?,
                    files,
                    _claim: Claim::Nothing,
                });
            }
            Place::Memory { len_bytes } => {
                let len_bytes = len_bytes.unwrap_or(needed_bytes);
                check_fits("memory", len_bytes, needed_bytes)?;
                check_available(len_bytes, available_bytes())?;
                (DeviceFile::in_memory(len_bytes)?, Claim::Nothing)
            }
            Place::Path(path) => {
                let claim = Claim::of(path, self.may_destroy, needed_bytes)?;
                let file = DeviceFile::open(path, Access::ReadWrite, true)?.as_device();
                check_fits(&path.display().to_string(), file.len_bytes(), needed_bytes)?;
                // A created file has no name from here on, so that nothing is left after any end of
                // the run, including Ctrl-C.
                (file, claim.without_name())
            }
        };
        let settings = self.settings();
        let volume = match self.pipeline {
            None => host::Volume::from_file(file, &settings)?,
            Some(_) => host::Volume::from_crypt(file, &any_key()?, &settings)?,
        };
        let files = Files { regions, lays_out: true, read_only: false };
        Ok(Opened { volume: Volume::of_fixed_size(volume, WHY_FIXED), files, _claim: claim })
    }

    fn settings(&self) -> VolumeOptions {
        let scheduling = self.scheduling.clone();
        let pipeline = self.pipeline.unwrap_or_default();
        VolumeOptions { scheduling, pipeline, ..VolumeOptions::default() }
    }
}

/// The volume of a device-mapper table.
pub(super) fn of_table(table: &str, settings: &VolumeOptions) -> Result<Volume, Error> {
    let text = SecretBytes::copy_of(table.as_bytes());
    Ok(Volume::of_fixed_size(host::Volume::from_table(&text, settings)?, WHY_FIXED))
}

impl Place {
    /// One line for a report.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Memory { .. } => "memory".into(),
            Self::Null { args, is_stacked: false } => format!("null {args}"),
            Self::Null { args, is_stacked: true } => {
                format!("multipath, queue_mode mq, over null {args}")
            }
            Self::Path(path) => path.display().to_string(),
        }
    }
}

fn null_table(args: &str, is_stacked: bool, sectors: u64) -> String {
    let null = format!("0 {sectors} null {args}");
    if !is_stacked {
        return null;
    }
    let line = "multipath 2 queue_mode mq 0 1 1 service-time 0 1 0 /dev/mapper/disk";
    format!("disk: {null}\nstack: 0 {sectors} {line}")
}

impl Files {
    /// A volume as the program's only file.
    pub(super) fn whole(volume: &Volume) -> Self {
        let regions = vec![Region { start_bytes: 0, len_bytes: volume.len() }];
        Self { regions, lays_out: false, read_only: volume.is_read_only() }
    }
}

/// AES-XTS with a random key that is never stored.
fn any_key() -> Result<CryptParams, Error> {
    let mut key = SecretBytes::zeroed(64);
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(key.as_mut_slice()));
    read.map_err(|error| Error::file(Path::new("/dev/urandom"), error))?;
    Ok(CryptParams::new("aes-xts-plain64", key))
}

/// The regions of the files in order, and the end of the last.
fn regions(file_lens_bytes: &[u64]) -> Result<(Vec<Region>, u64), Error> {
    let mut end = Some(0u64);
    let mut regions = Vec::new();
    for &len_bytes in file_lens_bytes {
        regions.push(Region { start_bytes: end.unwrap_or(0), len_bytes });
        let whole = len_bytes.checked_next_multiple_of(REGION_BYTES);
        end = end.zip(whole).and_then(|(end, whole)| end.checked_add(whole));
    }
    let end = end.filter(|end| *end > 0 && *end <= i64::MAX as u64);
    let problem = "the jobs' files are empty, or longer than any disk";
    Ok((regions, end.ok_or_else(|| Error::Workload(problem.into()))?))
}

fn check_fits(place: &str, len_bytes: u64, needed_bytes: u64) -> Result<(), Error> {
    if len_bytes >= needed_bytes {
        return Ok(());
    }
    let problem = format!(
        "has {} ({len_bytes} bytes), but the jobs' files need {} ({needed_bytes} bytes); take a \
         larger target, or make the jobs' files smaller",
        human_size(len_bytes),
        human_size(needed_bytes)
    );
    Err(Error::place(&place, problem))
}

/// Refuses more memory than is available, because the system would kill other programs.
pub(super) fn check_available(len_bytes: u64, available_bytes: Option<u64>) -> Result<(), Error> {
    match available_bytes {
        Some(available) if len_bytes > available => {
            let problem = format!(
                "the jobs' files need {} ({len_bytes} bytes), and {} are available; make them \
                 smaller, or run on a file or device",
                human_size(len_bytes),
                human_size(available)
            );
            Err(Error::place(&"memory", problem))
        }
        _ => Ok(()),
    }
}

/// Memory available without swapping (`MemAvailable`), if the system reports it.
pub(super) fn available_bytes() -> Option<u64> {
    meminfo_bytes("MemAvailable:")
}

/// Total memory, if the system reports it.
pub(super) fn memory_bytes() -> Option<u64> {
    meminfo_bytes("MemTotal:")
}

fn meminfo_bytes(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// A claim of the place, released by the drop.
enum Claim {
    Nothing,
    /// A created file.
    Made(PathBuf),
    /// A file that was empty.
    Lengthened(File),
}

impl Claim {
    fn of(path: &Path, may_destroy: bool, needed_bytes: u64) -> Result<Self, Error> {
        let failed = |verb: &str, error: &io::Error| {
            Error::place(&path.display(), format!("cannot {verb}: {error}"))
        };
        let would_overwrite = || Err(Error::WouldOverwrite { path: path.to_owned() });
        let metadata = match std::fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = OpenOptions::new().write(true).create_new(true).open(path);
                let made = made.map_err(|error| failed("create", &error))?;
                let claim = Self::Made(path.to_owned());
                made.set_len(needed_bytes).map_err(|error| failed("lengthen", &error))?;
                return Ok(claim);
            }
            Err(error) => return Err(failed("look at", &error)),
        };
        let file_type = metadata.file_type();
        if file_type.is_block_device() {
            return if may_destroy { Ok(Self::Nothing) } else { would_overwrite() };
        }
        if !file_type.is_file() {
            let problem = "is neither a file nor a block device";
            return Err(Error::place(&path.display(), problem));
        }
        if metadata.len() == 0 {
            let file = OpenOptions::new().write(true).open(path);
            let file = file.map_err(|error| failed("open", &error))?;
            file.set_len(needed_bytes).map_err(|error| failed("lengthen", &error))?;
            return Ok(Self::Lengthened(file));
        }
        if may_destroy { Ok(Self::Nothing) } else { would_overwrite() }
    }
}

impl Claim {
    /// Removes the name of a created file.
    fn without_name(self) -> Self {
        if matches!(self, Self::Made(_)) { Self::Nothing } else { self }
    }
}

impl Drop for Claim {
    /// If this fails, only an allocated file is left.
    fn drop(&mut self) {
        match self {
            Self::Nothing => {}
            Self::Made(path) => drop(std::fs::remove_file(path)),
            Self::Lengthened(file) => drop(file.set_len(0)),
        }
    }
}
