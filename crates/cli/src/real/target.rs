//! What a program runs on: memory, a file or a block device, cut into the program's files.
//!
//! A file that was not there is removed afterwards. What is there is overwritten only if the user
//! says that it may be; a block device that somebody else has claimed (a mounted file system),
//! never.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blockyard_crypt::params::{CryptFlags, CryptParams};
use blockyard_crypt::secret::SecretBytes;
use blockyard_crypt::source::HeaderSource;
use blockyard_host::file::{Access, DeviceFile};
use blockyard_host::volume::{PipelineChoice, Scheduling, Volume, VolumeOptions};
use rustix::fs::OFlags;

use crate::failure::Failure;
use crate::size::human_size;

/// The program's files start at multiples of this.
const REGION_BYTES: u64 = 4096;

/// On what, and through which queue.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) place: Place,
    /// What is there may be overwritten.
    pub(crate) may_destroy: bool,
    pub(crate) scheduling: Scheduling,
    /// It is encrypted, and the cipher runs there; else it is as it is.
    pub(crate) pipeline: Option<PipelineChoice>,
}

/// Where the bytes go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Memory that is given back afterwards; as much as the program's files need, or this much.
    Memory { len_bytes: Option<u64> },
    /// Nowhere: the target `null` with these arguments, as long as the program's files; or requests
    /// over it as the one path of a multipath line.
    Null { args: String, is_stacked: bool },
    /// A file or block device. A file that is not there, or empty, gets the length that the
    /// program's files need.
    Path(PathBuf),
}

/// A part of the target that is one of the program's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) start_bytes: u64,
    pub(crate) len_bytes: u64,
}

/// A target in use.
pub(crate) struct Opened {
    pub(crate) volume: Arc<Volume>,
    /// By the number of the program's file.
    pub(crate) regions: Vec<Region>,
    /// What a program wants to be there before is written first.
    pub(crate) lays_out: bool,
    /// Dropped after the volume.
    _claim: Claim,
}

impl Target {
    /// Opens it for files of these lengths.
    pub(crate) fn open(&self, file_lens_bytes: &[u64]) -> Result<Opened, Failure> {
        let (regions, needed_bytes) = regions(file_lens_bytes)?;
        let (file, claim) = match &self.place {
            Place::Null { args, is_stacked } => {
                let table = null_table(args, *is_stacked, needed_bytes.div_ceil(512));
                let volume = Arc::new(self.of_table(&table)?);
                // Nothing is kept.
                return Ok(Opened { volume, regions, lays_out: false, _claim: Claim::Nothing });
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
                // What was made goes by its descriptors alone from here on: however the run ends,
                // by Ctrl-C too, nothing is left.
                (file, claim.without_name())
            }
        };
        let scheduling = self.scheduling.clone();
        let pipeline = self.pipeline.unwrap_or_default();
        let options = VolumeOptions { scheduling, pipeline, ..VolumeOptions::default() };
        let volume = match self.pipeline {
            None => Volume::from_file(file, &options)?,
            Some(_) => Volume::from_crypt(file, &any_key()?, &options)?,
        };
        Ok(Opened { volume: Arc::new(volume), regions, lays_out: true, _claim: claim })
    }

    fn of_table(&self, table: &str) -> Result<Volume, Failure> {
        let options =
            VolumeOptions { scheduling: self.scheduling.clone(), ..VolumeOptions::default() };
        Ok(Volume::from_table(&SecretBytes::copy_of(table.as_bytes()), &options)?)
    }
}

impl Place {
    /// In a report.
    pub(crate) fn describe(&self) -> String {
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

impl Opened {
    /// A volume that is the program's only file.
    pub(crate) fn whole(volume: &Arc<Volume>) -> Self {
        let regions = vec![Region { start_bytes: 0, len_bytes: volume.size_bytes() }];
        Self { volume: Arc::clone(volume), regions, lays_out: false, _claim: Claim::Nothing }
    }
}

/// AES-XTS under a key that nobody knows and that is gone afterwards.
fn any_key() -> Result<CryptParams, Failure> {
    let mut key = SecretBytes::zeroed(64);
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(key.as_mut_slice()));
    read.map_err(|error| Failure::failed(format!("/dev/urandom: cannot read a key: {error}")))?;
    Ok(CryptParams {
        cipher: "aes-xts-plain64".into(),
        key,
        iv_offset_sectors: 0,
        data_offset_sectors: 0,
        len_sectors: None,
        sector_size_bytes: 512,
        iv_large_sectors: false,
        flags: CryptFlags::default(),
    })
}

/// The files one behind the other, and the end of the last.
fn regions(file_lens_bytes: &[u64]) -> Result<(Vec<Region>, u64), Failure> {
    let mut end = Some(0u64);
    let mut regions = Vec::new();
    for &len_bytes in file_lens_bytes {
        regions.push(Region { start_bytes: end.unwrap_or(0), len_bytes });
        let whole = len_bytes.checked_next_multiple_of(REGION_BYTES);
        end = end.zip(whole).and_then(|(end, whole)| end.checked_add(whole));
    }
    let end = end.filter(|end| *end > 0 && *end <= i64::MAX as u64);
    let problem = || Failure::failed("the jobs' files are empty, or longer than any disk");
    Ok((regions, end.ok_or_else(problem)?))
}

fn check_fits(place: &str, len_bytes: u64, needed_bytes: u64) -> Result<(), Failure> {
    if len_bytes >= needed_bytes {
        return Ok(());
    }
    Err(Failure::wrong_device(format!(
        "{place}: has {} ({len_bytes} bytes), but the jobs' files need {} ({needed_bytes} bytes); \
         take a larger target, or make the jobs' files smaller",
        human_size(len_bytes),
        human_size(needed_bytes)
    )))
}

/// Memory that is full brings other programs to their end, not this one.
pub(super) fn check_available(len_bytes: u64, available_bytes: Option<u64>) -> Result<(), Failure> {
    match available_bytes {
        Some(available) if len_bytes > available => Err(Failure::wrong_device(format!(
            "memory: the jobs' files need {} ({len_bytes} bytes), and {} are available; make them \
             smaller, or run on a file or device",
            human_size(len_bytes),
            human_size(available)
        ))),
        _ => Ok(()),
    }
}

/// Memory that can be had without swapping (`MemAvailable`), if the system says so.
pub(super) fn available_bytes() -> Option<u64> {
    meminfo_bytes("MemAvailable:")
}

/// All memory there is, if the system says so.
pub(super) fn memory_bytes() -> Option<u64> {
    meminfo_bytes("MemTotal:")
}

fn meminfo_bytes(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What is held, and undone at the end.
enum Claim {
    Nothing,
    /// An exclusive descriptor of a block device: nobody can mount it meanwhile.
    Device {
        _exclusive: File,
    },
    /// The file was not there.
    Made(PathBuf),
    /// The file was empty.
    Lengthened(File),
}

impl Claim {
    fn of(path: &Path, may_destroy: bool, needed_bytes: u64) -> Result<Self, Failure> {
        let failed = |verb: &str, error: &io::Error| {
            Failure::wrong_device(format!("{}: cannot {verb}: {error}", path.display()))
        };
        let refuse = |problem: &str| Err(Failure::busy(format!("{}: {problem}", path.display())));
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
            if !may_destroy {
                return refuse(
                    "is a block device, and the jobs would overwrite it; say --destroy if nothing \
                     on it is needed any more",
                );
            }
            let exclusive = OFlags::EXCL.bits().cast_signed();
            let opened = OpenOptions::new().read(true).custom_flags(exclusive).open(path);
            return match opened {
                Ok(file) => Ok(Self::Device { _exclusive: file }),
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    refuse("is in use: mounted, swap, or part of another device; stop that first")
                }
                Err(error) => Err(failed("open", &error)),
            };
        }
        if !file_type.is_file() {
            let problem = format!("{}: is neither a file nor a block device", path.display());
            return Err(Failure::wrong_device(problem));
        }
        if metadata.len() == 0 {
            let file = OpenOptions::new().write(true).open(path);
            let file = file.map_err(|error| failed("open", &error))?;
            file.set_len(needed_bytes).map_err(|error| failed("lengthen", &error))?;
            return Ok(Self::Lengthened(file));
        }
        match may_destroy {
            true => Ok(Self::Nothing),
            false => refuse(
                "has something in it, and the jobs would overwrite it; name a file that is not \
                 there, or say --destroy if nothing in it is needed any more",
            ),
        }
    }
}

impl Claim {
    /// Takes the name of a file that was made from its folder.
    fn without_name(self) -> Self {
        if matches!(self, Self::Made(_)) { Self::Nothing } else { self }
    }
}

impl Drop for Claim {
    /// What cannot be undone stays: it is only room.
    fn drop(&mut self) {
        match self {
            Self::Nothing | Self::Device { .. } => {}
            Self::Made(path) => drop(std::fs::remove_file(path)),
            Self::Lengthened(file) => drop(file.set_len(0)),
        }
    }
}
