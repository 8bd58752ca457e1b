//! Makes LUKS2 volumes, in new files or over existing ones.
//!
//! ```
//! use blockyard::format::FormatOptions;
//! use blockyard::{Key, Volume};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let image = folder.path().join("home.img");
//! # let cheap = FormatOptions {
//! #     pbkdf_iterations: Some(4), pbkdf_memory_kib: Some(32), ..FormatOptions::default()
//! # };
//! # #[cfg(any())]
//! let cheap = FormatOptions::default();
//! let key = Key::passphrase("correct horse");
//! let options = FormatOptions { size_bytes: Some(64 << 20), label: "home".into(), ..cheap };
//! options.format(&image, &key)?;
//! let volume = Volume::options().key(key).open(&image)?;
//! assert_eq!(volume.len(), 48 << 20, "16 MiB are for the header");
//! # Ok(())
//! # }
//! ```
//!
//! [`FormatOptions::format`] refuses to destroy data. A program that asks the user calls its steps:
//! [`FormatOptions::open`], [`Unformatted::content`], [`Unformatted::format`].

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use blockyard_crypt::Error as CryptError;
use blockyard_crypt::cipher::CipherSpec;
use blockyard_crypt::format::{self, Detached, FormatOptions as HeaderOptions};
use blockyard_crypt::hash::HashAlgorithm;
use blockyard_crypt::luks::{HEADER_LEN_MAX_BYTES, Header};
use blockyard_crypt::source::HeaderSource;
use blockyard_host::file::{Access, DeviceFile, HeaderLock};
use blockyard_host::remote::is_remote;
use rustix::fs::SeekFrom;

use crate::cost::Cost;
pub use crate::cost::Pbkdf;
use crate::error::contained;
use crate::output::is_same_file;
use crate::size::human_size;
use crate::sparse::is_zero;
use crate::{Error, Key, Place};

mod created;

use created::Created;

/// Length of a new header file, less the length of its two copies of the metadata.
const DETACHED_KEYSLOTS_BYTES: u64 = (16 << 20) - (32 << 10);
/// Iterations of the digest without a benchmark; it protects a random key.
const DIGEST_ITERATIONS_MIN: u32 = 1000;
/// Signatures lie in front of it: that of Btrfs is in the block at 64 KiB.
const START_BYTES: u64 = 128 << 10;
/// Bytes of one read in the search for data.
const PIECE_BYTES: usize = 1 << 20;

/// Options of a new volume. The defaults are cryptsetup's, except the sector size: LUKS2,
/// aes-xts-plain64 with a 512-bit key, sectors of 4096 bytes, and argon2id adjusted to two seconds.
// 19 fields: one for each choice about a new volume; callers set them by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatOptions {
    /// Creates the file with this size, or extends it to this size. `None`: the file or device
    /// exists and keeps its size.
    pub size_bytes: Option<u64>,
    /// The part of an existing file or device that is formatted.
    pub place: Place,
    /// The file or device of a detached header. A missing file is created.
    pub header: Option<PathBuf>,
    /// Cipher of the data, for example `aes-xts-plain64`.
    pub cipher: String,
    /// Length of the volume key.
    pub key_size_bits: u32,
    /// Encryption sector size, 512 to 4096. `None`: 4096, or 512 if the data area is no multiple of
    /// 4096 bytes.
    pub sector_size_bytes: Option<u32>,
    /// Hash of the anti-forensic split, the digest and PBKDF2, for example `sha256`.
    pub hash: String,
    /// Key derivation function of the keyslot.
    pub pbkdf: Pbkdf,
    /// Duration of one derivation on this machine, in milliseconds: 1 to 600 000.
    pub pbkdf_target_ms: u64,
    /// Limit of argon2's memory. `None`: 1 GiB, and at most half of the machine's.
    pub pbkdf_memory_kib: Option<u32>,
    /// Threads of argon2. `None`: one for each CPU, at most 4.
    pub pbkdf_threads: Option<u32>,
    /// Iterations of PBKDF2 or passes of argon2. `None`: measured.
    pub pbkdf_iterations: Option<u32>,
    /// Label, as `blkid` shows it; empty for none.
    pub label: String,
    /// Subsystem label; empty for none.
    pub subsystem: String,
    /// UUID. `None`: a random one.
    pub uuid: Option<String>,
    /// Length of each copy of the metadata, 16 KiB to 4 MiB.
    pub metadata_len_bytes: u64,
    /// Length of the keyslots area. `None`: all space before the data.
    pub keyslots_len_bytes: Option<u64>,
    /// Start of the data. `None`: 16 MiB, or 0 with a detached header.
    pub data_offset_bytes: Option<u64>,
    /// Lets [`FormatOptions::format`] destroy data.
    pub replace: bool,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self {
            size_bytes: None,
            place: Place::Whole,
            header: None,
            cipher: "aes-xts-plain64".into(),
            key_size_bits: 512,
            sector_size_bytes: None,
            hash: "sha256".into(),
            pbkdf: Pbkdf::default(),
            pbkdf_target_ms: 2000,
            pbkdf_memory_kib: None,
            pbkdf_threads: None,
            pbkdf_iterations: None,
            label: String::new(),
            subsystem: String::new(),
            uuid: None,
            metadata_len_bytes: 16 << 10,
            keyslots_len_bytes: None,
            data_offset_bytes: None,
            replace: false,
        }
    }
}

/// Error of making a volume.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// A field has a wrong value.
    #[error("`{field}`: {problem}")]
    Field {
        /// Its name.
        field: &'static str,
        /// The problem, and the valid values.
        problem: String,
    },
    /// [`FormatOptions::header`] is the volume.
    #[error("`header` names the volume itself; leave it out")]
    HeaderIsVolume,
    /// PBKDF2 takes no memory and no threads.
    #[error("`pbkdf_memory_kib` and `pbkdf_threads` are for argon2; PBKDF2 has neither")]
    NotArgon2,
    /// [`FormatOptions::size_bytes`] of an export of an NBD server.
    #[error("`size_bytes` creates a file; a disk on a server has its own")]
    SizeOfExport,
    /// [`FormatOptions::size_bytes`] of a device or a folder.
    #[error(
        "`size_bytes` creates a file, but {path} exists and is not a file; leave `size_bytes` out",
        path = .0.display()
    )]
    SizeOfDevice(PathBuf),
    /// The file is longer than [`FormatOptions::size_bytes`].
    #[error(
        "{path} has {len_bytes} bytes, and `size_bytes` {size_bytes} would cut it off; leave \
         `size_bytes` out or remove the file first",
        path = .path.display()
    )]
    Shorter {
        /// The file.
        path: PathBuf,
        /// Its length.
        len_bytes: u64,
        /// [`FormatOptions::size_bytes`].
        size_bytes: u64,
    },
    /// The file or device cannot be opened, and `size_bytes` is not set.
    #[error("cannot open {path}: {source}; `size_bytes` creates a file", path = .path.display())]
    Open {
        /// The file or device.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file cannot be created.
    #[error(
        "cannot create {path} with {size}: {source}",
        path = .path.display(),
        size = human_size(*.size_bytes)
    )]
    Create {
        /// The file.
        path: PathBuf,
        /// Its length.
        size_bytes: u64,
        /// Error of the system.
        source: io::Error,
    },
    /// The file cannot be extended to [`FormatOptions::size_bytes`].
    #[error("cannot extend {path} to {size_bytes} bytes: {source}", path = .path.display())]
    Extend {
        /// The file.
        path: PathBuf,
        /// Its new length.
        size_bytes: u64,
        /// Error of the system.
        source: io::Error,
    },
    /// The file or device cannot be searched for data.
    #[error("cannot read {path}: {problem}", path = .path.display())]
    Read {
        /// The file or device.
        path: PathBuf,
        /// Error of the system or the server.
        problem: String,
    },
    /// Another program has written to the file or device, or replaced it.
    #[error(
        "{path}: another program has written to it or replaced it while this one waited for an \
         answer; nothing was formatted: look at it and try again",
        path = .0.display()
    )]
    Changed(PathBuf),
    /// The file or device has data, and [`FormatOptions::replace`] is false.
    #[error(
        "{path} holds data, which formatting destroys; `replace` is false",
        path = .path.display()
    )]
    WouldDestroy {
        /// The file or device.
        path: PathBuf,
        /// The data.
        content: Content,
    },
    /// The passphrase is empty.
    #[error("an empty passphrase protects nothing; choose another")]
    EmptyPassphrase,
}

/// Content that formatting destroys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A LUKS1 volume.
    Luks1,
    /// A LUKS2 volume.
    Luks2,
    /// A LUKS header that is damaged or not supported.
    DamagedLuks,
    /// Another format, by its name, for example `an ext4 file system`.
    Other(&'static str),
    /// A block device, whose data is not inspected.
    Device,
    /// Bytes that are not zero.
    Data,
}

/// A new volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Formatted {
    /// Length of the file or device.
    pub size_bytes: u64,
    /// The chosen sector size.
    pub sector_size_bytes: u32,
}

impl FormatOptions {
    /// Makes a volume. A new file gets its name when the volume is complete.
    ///
    /// # Errors
    /// [`FormatError::WouldDestroy`] if there is data and [`FormatOptions::replace`] is false;
    /// otherwise see [`FormatOptions::open`] and [`Unformatted::format`].
    pub fn format(&self, path: impl AsRef<Path>, key: &Key) -> Result<Formatted, Error> {
        let unformatted = self.open(path)?;
        if !self.replace
            && let Some(content) = unformatted.content(&mut |_, _| ())?
        {
            let path = unformatted.path().to_owned();
            return Err(FormatError::WouldDestroy { path, content }.into());
        }
        unformatted.format(key)
    }

    /// Checks the options, creates and locks the files. No byte of an existing file changes.
    ///
    /// # Errors
    /// Options are wrong or exclude each other, or a file cannot be opened or created, or is in
    /// use.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Unformatted, Error> {
        contained(|| self.open_files(path.as_ref()))
    }

    fn open_files(&self, path: &Path) -> Result<Unformatted, Error> {
        let mut options = self.header_options()?;
        self.check_header(path)?;
        if let Some(size_bytes) = self.size_bytes.filter(|size| i64::try_from(*size).is_err()) {
            let problem = format!("{size_bytes} is more than the 2^63 - 1 bytes of a file");
            return Err(wrong("size_bytes", &problem).into());
        }
        let mut created = Created::default();
        let data_path = self.ensure_file(path, &mut created)?;
        let data = self.place.of(DeviceFile::open(&data_path, Access::ReadWrite, false)?)?;
        let data_len_bytes = self.len_with(&data)?;
        if self.header.is_none() && options.data_offset_bytes.is_none() {
            options.data_offset_bytes = striped_offset(data.stripe_period_bytes());
        }
        let (device, data) = match &self.header {
            None => (data, None),
            Some(header) => {
                let header_path = if header.exists() {
                    header.clone()
                } else {
                    created.add(header, self.header_len_bytes())?
                };
                let device = DeviceFile::open(&header_path, Access::ReadWrite, false)?;
                options.detached = Some(Detached { data_device_len_bytes: Some(data_len_bytes) });
                (device, Some(data))
            }
        };
        options.sector_size_bytes = self
            .sector_size_bytes
            .unwrap_or_else(|| default_sector_size(data_len_bytes, options.data_offset_bytes));
        let lock = Some(device.lock_header()?);
        let path = self.header.as_deref().unwrap_or(path).to_owned();
        Ok(Unformatted { created, path, device, data, data_len_bytes, options, lock, seen: None })
    }

    /// Refuses a header path that is empty or names the volume, which may be missing yet.
    fn check_header(&self, path: &Path) -> Result<(), FormatError> {
        let Some(header) = &self.header else { return Ok(()) };
        if header.as_os_str().is_empty() {
            return Err(wrong("header", &"the path is empty"));
        }
        if is_same_file(header, path) || is_same_new_file(header, path) {
            Err(FormatError::HeaderIsVolume)
        } else {
            Ok(())
        }
    }

    fn header_options(&self) -> Result<HeaderOptions, FormatError> {
        CipherSpec::parse(&self.cipher).map_err(|error| wrong("cipher", &error))?;
        let hash = HashAlgorithm::parse(&self.hash).map_err(|error| wrong("hash", &error))?;
        Ok(HeaderOptions {
            cipher: self.cipher.clone(),
            key_size_bits: self.key_size_bits,
            hash,
            digest_iterations: self.pbkdf_iterations.map(|_| DIGEST_ITERATIONS_MIN),
            label: self.label.clone(),
            subsystem: self.subsystem.clone(),
            uuid: self.uuid.clone(),
            metadata_len_bytes: self.metadata_len_bytes,
            keyslots_len_bytes: self.keyslots_len_bytes,
            data_offset_bytes: self.data_offset_bytes,
            ..HeaderOptions::new(self.cost().measured(hash)?)
        })
    }

    fn cost(&self) -> Cost {
        Cost {
            pbkdf: self.pbkdf,
            target_ms: self.pbkdf_target_ms,
            memory_kib: self.pbkdf_memory_kib,
            threads: self.pbkdf_threads,
            iterations: self.pbkdf_iterations,
        }
    }

    /// Length of a new file for a detached header.
    fn header_len_bytes(&self) -> u64 {
        let keyslots_bytes = self.keyslots_len_bytes.unwrap_or(DETACHED_KEYSLOTS_BYTES);
        let areas_bytes = self.metadata_len_bytes.saturating_mul(2).saturating_add(keyslots_bytes);
        areas_bytes.max(self.data_offset_bytes.unwrap_or(0)).min(HEADER_LEN_MAX_BYTES)
    }

    /// Creates the file if it is missing and a size is given. Returns its present name.
    fn ensure_file(&self, path: &Path, created: &mut Created) -> Result<PathBuf, FormatError> {
        if is_remote(path) {
            return match self.size_bytes {
                None => Ok(path.to_owned()),
                Some(_) => Err(FormatError::SizeOfExport),
            };
        }
        let metadata = match (fs::metadata(path), self.size_bytes) {
            (Ok(metadata), _) => metadata,
            (Err(error), Some(size_bytes)) if error.kind() == io::ErrorKind::NotFound => {
                return created.add(path, size_bytes);
            }
            (Err(source), _) => return Err(FormatError::Open { path: path.to_owned(), source }),
        };
        if self.size_bytes.is_some() && (!metadata.is_file() || self.place != Place::Whole) {
            Err(FormatError::SizeOfDevice(path.to_owned()))
        } else {
            Ok(path.to_owned())
        }
    }

    /// The future length of the file. It is extended once overwriting is permitted, and never
    /// truncated.
    fn len_with(&self, file: &DeviceFile) -> Result<u64, FormatError> {
        let path = file.path().to_owned();
        let len_bytes = file.len_bytes();
        match self.size_bytes {
            Some(size_bytes) if size_bytes < len_bytes => {
                Err(FormatError::Shorter { path, len_bytes, size_bytes })
            }
            size_bytes => Ok(size_bytes.unwrap_or(len_bytes)),
        }
    }
}

/// Open and locked files for a new volume. When dropped, it removes files that were created for it.
#[derive(Debug)]
pub struct Unformatted {
    created: Created,
    /// Name of the file of the header.
    path: PathBuf,
    /// File of the header, perhaps with a temporary name.
    device: DeviceFile,
    /// Whether the header is detached.
    data: Option<DeviceFile>,
    data_len_bytes: u64,
    options: HeaderOptions,
    /// `None` while a person is asked.
    lock: Option<HeaderLock>,
    /// The start of the disk when the lock was given back; `None` if it cannot be read.
    seen: Option<Vec<u8>>,
}

impl Unformatted {
    /// The file or device of the header.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The reason if the header is not locked against other programs.
    #[must_use]
    pub fn lock_warning(&self) -> Option<&str> {
        self.lock.as_ref()?.warning()
    }

    /// Gives the lock of the header back, so that other programs need not wait for a person.
    /// [`Unformatted::format`] takes it again.
    pub fn release(&mut self) {
        self.seen = self.start();
        self.lock = None;
    }

    /// Takes the lock again.
    fn lock_again(&mut self) -> Result<(), Error> {
        if self.lock.is_none() {
            self.lock = Some(self.device.lock_header()?);
            let mut files = self.data.iter().chain([&self.device]);
            let are_named = files.all(DeviceFile::is_what_its_name_leads_to);
            if self.start() != self.seen || !are_named {
                return Err(FormatError::Changed(self.path.clone()).into());
            }
        }
        Ok(())
    }

    /// The bytes in which volumes and file systems have their signatures.
    fn start(&self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; START_BYTES.min(self.device.len_bytes()) as usize];
        self.device.read_at(0, &mut bytes).ok().map(|()| bytes)
    }

    /// Searches for data that formatting destroys, except zeros. A disk on a server may be read as
    /// a whole: `progress` receives the numbers of completed bytes and of all bytes.
    ///
    /// # Errors
    /// [`FormatError::Read`].
    pub fn content(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Option<Content>, Error> {
        contained(|| Ok(content(&self.device, progress)?))
    }

    /// Searches for data behind a detached header. Formatting keeps these bytes, but a new header
    /// cannot decrypt them.
    ///
    /// # Errors
    /// [`FormatError::Read`].
    pub fn data_content(
        &self,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Option<Content>, Error> {
        let Some(data) = &self.data else { return Ok(None) };
        contained(|| Ok(content(data, progress)?))
    }

    /// Makes the volume, with the key in keyslot 0. All headers and keyslots of earlier volumes are
    /// wiped. The call takes as long as a few derivations of the key.
    ///
    /// # Errors
    /// The passphrase is empty, an option does not fit the device, memory is short, or writing
    /// fails.
    pub fn format(mut self, key: &Key) -> Result<Formatted, Error> {
        contained(|| {
            if key.secret().is_empty() {
                return Err(FormatError::EmptyPassphrase.into());
            }
            self.lock_again()?;
            let data = self.data.as_ref().unwrap_or(&self.device);
            let before_bytes = data.len_bytes();
            if let Err(error) = self.write(key) {
                let data = self.data.as_mut().unwrap_or(&mut self.device);
                if data.len_bytes() > before_bytes {
                    // The error says more than one of the restored length would.
                    let _ = data.set_len(before_bytes);
                }
                return Err(error);
            }
            self.created.complete()?;
            Ok(Formatted {
                size_bytes: self.data_len_bytes,
                sector_size_bytes: self.options.sector_size_bytes,
            })
        })
    }
}

impl Unformatted {
    /// Extends the file, and writes the header.
    fn write(&mut self, key: &Key) -> Result<(), Error> {
        let data = self.data.as_mut().unwrap_or(&mut self.device);
        if self.data_len_bytes > data.len_bytes() {
            let size_bytes = self.data_len_bytes;
            data.set_len(size_bytes).map_err(|source| FormatError::Extend {
                path: data.path().to_owned(),
                size_bytes,
                source,
            })?;
        }
        let written = format::format(&mut self.device, key.secret(), &self.options);
        written.map(drop).map_err(|error| Error::crypt(&self.path, error))
    }
}

/// Data of a file or device, except zeros.
fn content(
    device: &DeviceFile,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Option<Content>, FormatError> {
    match Header::read(device) {
        Ok((Header::Luks1(_), _)) => return Ok(Some(Content::Luks1)),
        Ok((Header::Luks2(_), _)) => return Ok(Some(Content::Luks2)),
        Err(CryptError::OtherFormat(signature) | CryptError::Reused(signature)) => {
            return Ok(Some(Content::Other(signature.name)));
        }
        Err(CryptError::NotLuks | CryptError::Read { .. }) => {}
        Err(_) => return Ok(Some(Content::DamagedLuks)),
    }
    if is_remote(device.path()) {
        let found = remote_has_data(device, progress)?;
        return Ok(found.then_some(Content::Data));
    }
    let failed = |error: io::Error| cannot_read(device.path(), &error);
    let file = File::open(device.path()).map_err(failed)?;
    if file.metadata().map_err(failed)?.file_type().is_block_device() {
        return Ok(Some(Content::Device));
    }
    let start = device.start_bytes();
    let part = start..start + device.len_bytes();
    Ok(has_data(&file, &part).map_err(failed)?.then_some(Content::Data))
}

pub(crate) fn wrong(field: &'static str, problem: &impl ToString) -> FormatError {
    FormatError::Field { field, problem: problem.to_string() }
}

fn cannot_read(path: &Path, problem: &impl ToString) -> FormatError {
    FormatError::Read { path: path.to_owned(), problem: problem.to_string() }
}

/// True if two names of missing files lead to one file.
fn is_same_new_file(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| {
        let folder = path.parent()?;
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        Some((folder.canonicalize().ok()?, path.file_name()?.to_owned()))
    };
    place(one).is_some_and(|one| Some(one) == place(other))
}

/// The start of the data on an image of a Ceph cluster, if the default start does not suit: librbd
/// opens an encrypted image only if its data starts at a multiple of the stripe period.
fn striped_offset(stripe_period_bytes: u64) -> Option<u64> {
    let usual = format::DATA_OFFSET_BYTES;
    let fits = usual.is_multiple_of(stripe_period_bytes);
    (!fits).then(|| usual.next_multiple_of(stripe_period_bytes))
}

/// The default sector size by cryptsetup's rule. Unless an offset is given, the data start at a
/// whole MiB.
fn default_sector_size(device_len_bytes: u64, data_offset_bytes: Option<u64>) -> u32 {
    let fits = |number: u64| number.is_multiple_of(4096);
    if fits(data_offset_bytes.unwrap_or(0)) && fits(device_len_bytes) { 4096 } else { 512 }
}

/// True if an export has nonzero data: ranges that its server does not report as zeros are read, up
/// to the first nonzero byte.
fn remote_has_data(
    device: &DeviceFile,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<bool, FormatError> {
    let len_bytes = device.len_bytes();
    let mut progress = |done_bytes| progress(done_bytes, len_bytes);
    let mut at_bytes = 0;
    progress(0);
    while at_bytes < len_bytes {
        let mut runs = device.remote_runs(at_bytes, len_bytes - at_bytes);
        if runs.is_empty() {
            runs = vec![(len_bytes - at_bytes, false)];
        }
        for (run_bytes, is_zero) in runs {
            let end_bytes = len_bytes.min(at_bytes + run_bytes);
            if !is_zero && remote_range_has_data(device, at_bytes..end_bytes, &mut progress)? {
                return Ok(true);
            }
            at_bytes = end_bytes;
            progress(at_bytes);
        }
    }
    Ok(false)
}

fn remote_range_has_data(
    device: &DeviceFile,
    range: Range<u64>,
    progress: &mut dyn FnMut(u64),
) -> Result<bool, FormatError> {
    let mut buffer = vec![0u8; PIECE_BYTES];
    let mut at_bytes = range.start;
    while at_bytes < range.end {
        let left_bytes = usize::try_from(range.end - at_bytes).unwrap_or(usize::MAX);
        let piece = &mut buffer[..left_bytes.min(PIECE_BYTES)];
        device.read_at(at_bytes, piece).map_err(|error| cannot_read(device.path(), &error))?;
        if !is_zero(piece) {
            return Ok(true);
        }
        at_bytes += piece.len() as u64;
        progress(at_bytes);
    }
    Ok(false)
}

/// True if a file has nonzero data in this range; holes are not read.
fn has_data(file: &File, range: &Range<u64>) -> io::Result<bool> {
    let mut buffer = vec![0u8; PIECE_BYTES];
    let mut at_bytes = range.start;
    loop {
        at_bytes = match rustix::fs::seek(file, SeekFrom::Data(at_bytes)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        };
        let left = usize::try_from(range.end.saturating_sub(at_bytes)).unwrap_or(usize::MAX);
        let piece_len = left.min(buffer.len());
        let count = rustix::io::pread(file, &mut buffer[..piece_len], at_bytes)?;
        if count == 0 {
            return Ok(false);
        }
        if !is_zero(&buffer[..count]) {
            return Ok(true);
        }
        at_bytes += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn sector_size_is_4096_where_offset_and_length_are_multiples_of_it() {
        assert_eq!(default_sector_size(1 << 30, None), 4096);
        assert_eq!(default_sector_size((1 << 30) + 512, None), 512);
        assert_eq!(default_sector_size((1 << 30) + 100, None), 512);
        assert_eq!(default_sector_size(1 << 30, Some(512)), 512);
        assert_eq!(default_sector_size(1 << 30, Some(1 << 20)), 4096);
    }

    #[test]
    fn header_that_is_empty_or_the_new_volume_is_refused_before_a_file_is_created() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).unwrap();
        let with = |header: PathBuf| {
            let options = FormatOptions { size_bytes: Some(32 << 20), ..FormatOptions::default() };
            let refused = FormatOptions { header: Some(header), ..options }.open(&path);
            assert!(!path.exists());
            refused.unwrap_err()
        };
        for same in [path.clone(), dir.path().join("link/disk"), dir.path().join("./disk")] {
            let error = with(same);
            assert!(matches!(error, Error::Format(FormatError::HeaderIsVolume)), "{error}");
        }
        assert!(with(PathBuf::new()).to_string().starts_with("`header`: the path is empty"));
    }

    #[test]
    fn volume_that_changes_or_is_replaced_while_a_person_is_asked_is_not_formatted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let key = Key::passphrase("pass");
        let quick = || FormatOptions {
            pbkdf: Pbkdf::Pbkdf2,
            pbkdf_iterations: Some(1000),
            ..FormatOptions::default()
        };
        let formatted = |change: &dyn Fn()| {
            fs::write(&path, vec![0; 32 << 20]).unwrap();
            let mut unformatted = quick().open(&path).unwrap();
            unformatted.release();
            change();
            unformatted.format(&key).map(drop)
        };
        formatted(&|| ()).unwrap();
        let refused = |change: &dyn Fn()| {
            let error = formatted(change).unwrap_err();
            assert!(matches!(error, Error::Format(FormatError::Changed(_))), "{error}");
        };
        refused(&|| {
            let file = File::options().write(true).open(&path).unwrap();
            file.write_all_at(b"other data", 0).unwrap();
        });
        let replace = || {
            let copy = dir.path().join("copy");
            fs::copy(&path, &copy).unwrap();
            fs::rename(copy, &path).unwrap();
        };
        refused(&replace);
        // The data of a detached header.
        let header = Some(dir.path().join("header"));
        let mut unformatted = FormatOptions { header, ..quick() }.open(&path).unwrap();
        unformatted.release();
        replace();
        let error = unformatted.format(&key).unwrap_err();
        assert!(matches!(error, Error::Format(FormatError::Changed(_))), "{error}");
    }

    #[test]
    fn costs_and_sizes_out_of_range_are_refused_by_their_fields() {
        let dir = tempfile::tempdir().unwrap();
        let good = || FormatOptions { size_bytes: Some(32 << 20), ..FormatOptions::default() };
        let pbkdf2 = || FormatOptions { pbkdf: Pbkdf::Pbkdf2, ..good() };
        for (options, field) in [
            (FormatOptions { size_bytes: Some(u64::MAX), ..good() }, "`size_bytes`"),
            (FormatOptions { pbkdf_iterations: Some(3), ..good() }, "`pbkdf_iterations`"),
            (FormatOptions { pbkdf_iterations: Some(999), ..pbkdf2() }, "`pbkdf_iterations`"),
            (FormatOptions { pbkdf_memory_kib: Some(31), ..good() }, "`pbkdf_memory_kib`"),
            (FormatOptions { pbkdf_threads: Some(0), ..good() }, "`pbkdf_threads`"),
            (FormatOptions { pbkdf_threads: Some(5), ..good() }, "`pbkdf_threads`"),
        ] {
            let path = dir.path().join("disk");
            let problem = options.open(&path).unwrap_err().to_string();
            assert!(problem.starts_with(&format!("{field}: ")), "{problem}");
            assert!(!path.exists());
        }
    }

    #[test]
    fn file_is_not_longer_after_a_failure() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(20 << 20).unwrap();
        let options = FormatOptions {
            size_bytes: Some(40 << 20),
            keyslots_len_bytes: Some(1),
            data_offset_bytes: Some(16 << 20),
            replace: true,
            ..FormatOptions::default()
        };
        let failed = options.format(file.path(), &Key::passphrase("a")).unwrap_err();
        assert!(failed.to_string().contains("keyslots_len_bytes"), "{failed}");
        assert_eq!(file.as_file().metadata().unwrap().len(), 20 << 20);
    }

    #[test]
    fn derivations_that_protect_nothing_or_never_end_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for (pbkdf_target_ms, is_valid) in
            [(0, false), (1, true), (600_000, true), (600_001, false), (u64::MAX, false)]
        {
            let options = FormatOptions {
                size_bytes: Some(32 << 20),
                pbkdf: Pbkdf::Pbkdf2,
                pbkdf_target_ms,
                ..FormatOptions::default()
            };
            let opened = options.open(dir.path().join("disk"));
            assert_eq!(opened.is_ok(), is_valid, "{pbkdf_target_ms}");
        }
    }

    #[test]
    fn holes_and_zeros_are_no_data() {
        let file = tempfile::tempfile().unwrap();
        let all = 0..u64::MAX;
        assert!(!has_data(&file, &all).unwrap());
        file.set_len(8 << 20).unwrap();
        assert!(!has_data(&file, &all).unwrap());
        file.write_all_at(&[0u8; 9000], 1 << 20).unwrap();
        assert!(!has_data(&file, &all).unwrap());
        file.write_all_at(&[1], 5 << 20).unwrap();
        assert!(has_data(&file, &all).unwrap());
        let at = 5 << 20;
        for (range, wanted) in [(0..at, false), (at..at + 1, true), (at + 1..8 << 20, false)] {
            assert_eq!(has_data(&file, &range).unwrap(), wanted, "{range:?}");
        }
    }
}
