//! A volume as the command line or a configuration describes it, and how it is opened.
//!
//! ```text
//!   options or TOML -> VolumeSpec -> prepare: header, passphrase -> Prepared
//!     -> unlock: key derivation -> Unlocked -> into_volume: cipher, workers -> Volume
//! ```
//!
//! These are three steps because a server has things to do between them: the first may ask a
//! person, the second takes seconds and starts threads of argon2, the third starts workers; and
//! no thread may exist before signals are taken care of.

use std::fs;
use std::path::{Path, PathBuf};

use blockyard_crypt::Error as CryptError;
use blockyard_crypt::kdf::KdfLimits;
use blockyard_crypt::luks::{Header, UnlockOptions};
use blockyard_crypt::luks2;
use blockyard_crypt::params::CryptParams;
use blockyard_crypt::plain::{self, PlainKey, PlainOptions};
use blockyard_crypt::secret::SecretBytes;
use blockyard_crypt::source::HeaderSource;
use blockyard_host::file::{Access, DeviceFile, FileId, HeaderLock};
use blockyard_host::volume::{Volume, VolumeOptions};

use crate::args::{PlainArgs, VolumeType};
use crate::failure::{Failure, printable};
use crate::key::{KeyInput, KeySource, StdinUse, read_secret_file};
use crate::output::say;

/// How often a person may try; cryptsetup's default.
const TRIES: u32 = 3;

/// A volume that can be opened.
#[derive(Debug)]
pub(crate) struct VolumeSpec {
    /// The image, device or table file.
    pub(crate) path: PathBuf,
    /// What it is.
    pub(crate) kind: Kind,
    /// Where its passphrase or key comes from.
    pub(crate) key: KeyInput,
    /// Bypass the page cache.
    pub(crate) direct: bool,
}

/// What a path holds.
#[derive(Debug)]
pub(crate) enum Kind {
    /// LUKS1 or LUKS2.
    Luks(LuksSpec),
    /// dm-crypt without a header.
    Plain(PlainSpec),
    /// The text of a device-mapper table.
    Table,
}

/// How a LUKS volume is opened.
#[derive(Debug, Default)]
pub(crate) struct LuksSpec {
    /// The only version that is accepted, if one is named.
    pub(crate) version: Option<LuksVersion>,
    /// Detached header.
    pub(crate) header: Option<PathBuf>,
    /// The only copy of a LUKS2 header that is looked at; nothing is written then.
    pub(crate) header_copy: Option<luks2::Copy>,
    /// The only keyslot that is tried.
    pub(crate) key_slot: Option<u32>,
    /// Limit of the key derivation's memory.
    pub(crate) max_kdf_memory_bytes: Option<u64>,
    /// Limit of the key derivation's time.
    pub(crate) max_kdf_seconds: Option<u64>,
}

/// Versions of LUKS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LuksVersion {
    /// LUKS1.
    Luks1,
    /// LUKS2.
    Luks2,
}

/// What the header of a plain volume would say, if it had one.
#[derive(Debug)]
pub(crate) struct PlainSpec {
    /// `--cipher`.
    pub(crate) cipher: String,
    /// `--key-size`.
    pub(crate) key_size_bits: u32,
    /// `--hash`.
    pub(crate) hash: Option<String>,
    /// `--offset`.
    pub(crate) offset_sectors: u64,
    /// `--skip`.
    pub(crate) skip_sectors: u64,
    /// `--size`.
    pub(crate) len_sectors: Option<u64>,
    /// `--sector-size`.
    pub(crate) sector_size_bytes: u32,
    /// `--iv-large-sectors`.
    pub(crate) iv_large_sectors: bool,
}

impl Kind {
    /// What `--type` and its options say together.
    pub(crate) fn new(
        kind: VolumeType,
        luks: LuksSpec,
        plain: &PlainArgs,
    ) -> Result<Self, Failure> {
        let version = match kind {
            VolumeType::Luks => None,
            VolumeType::Luks1 => Some(LuksVersion::Luks1),
            VolumeType::Luks2 => Some(LuksVersion::Luks2),
            VolumeType::Plain
                if luks.header.is_some()
                    || luks.header_copy.is_some()
                    || luks.key_slot.is_some() =>
            {
                return Err(Failure::failed(
                    "--header, --header-copy and --key-slot are for LUKS; a plain volume has none \
                     of them",
                ));
            }
            VolumeType::Plain => return plain.spec().map(Self::Plain),
        };
        match plain.first_given() {
            None => Ok(Self::Luks(LuksSpec { version, ..luks })),
            Some(option) => Err(Failure::failed(format!(
                "{option} is for --type plain: the header of a LUKS volume says it itself"
            ))),
        }
    }
}

/// A volume whose passphrase is known and whose key is not yet derived.
pub(crate) enum Prepared {
    /// LUKS.
    Luks(Box<PreparedLuks>),
    /// Plain: the key is derived in no time.
    Plain(DeviceFile, PlainOptions, PlainKey),
    /// A table says its keys itself.
    Table(PathBuf, SecretBytes),
}

/// A LUKS volume whose passphrase is known, or is thought to be.
pub(crate) struct PreparedLuks {
    path: PathBuf,
    file: DeviceFile,
    detached_header: Option<DeviceFile>,
    header: Header,
    options: UnlockOptions,
    passphrase: SecretBytes,
    key: KeyInput,
    stdin_use: StdinUse,
}

/// A volume whose key is known.
pub(crate) enum Unlocked {
    /// One dm-crypt mapping.
    Crypt(DeviceFile, CryptParams),
    /// A table.
    Table(PathBuf, SecretBytes),
}

impl VolumeSpec {
    /// Opens the files, reads the header, and gets the passphrase.
    pub(crate) fn prepare(&self, access: Access, stdin_use: StdinUse) -> Result<Prepared, Failure> {
        match &self.kind {
            Kind::Luks(luks) => self.prepare_luks(luks, access, stdin_use),
            Kind::Plain(plain) => self.prepare_plain(plain, access, stdin_use),
            Kind::Table => Ok(Prepared::Table(self.path.clone(), read_table(&self.path)?)),
        }
    }

    fn prepare_luks(
        &self,
        luks: &LuksSpec,
        access: Access,
        stdin_use: StdinUse,
    ) -> Result<Prepared, Failure> {
        if luks.header_copy.is_some() && access.writes() {
            return Err(Failure::failed(
                "--header-copy is for a look at a volume: with serve it needs --read-only, and no \
                 command may write with it",
            ));
        }
        let file = DeviceFile::open(&self.path, access, self.direct)?;
        let open_header = |path: &PathBuf| DeviceFile::open(path, Access::ReadOnly, false);
        let detached_header = luks.header.as_ref().map(open_header).transpose()?;
        let header_path = luks.header.as_ref().unwrap_or(&self.path).display();
        let source = detached_header.as_ref().unwrap_or(&file);
        let (header, notices) = match luks.header_copy {
            None => Header::read(source),
            Some(copy) => Header::read_copy(source, copy).map(|header| (header, Vec::new())),
        }
        .map_err(|error| Failure::from(error).at(&header_path))?;
        for notice in notices {
            say(&format!("warning: {header_path}: {}", printable(&notice.to_string())));
        }
        luks.check_version(&header).map_err(|failure| failure.at(&header_path))?;
        let passphrase = self.key.read(&self.path.display().to_string(), stdin_use)?;
        Ok(Prepared::Luks(Box::new(PreparedLuks {
            path: self.path.clone(),
            file,
            detached_header,
            header,
            options: luks.unlock_options(),
            passphrase,
            key: self.key.clone(),
            stdin_use,
        })))
    }

    fn prepare_plain(
        &self,
        plain: &PlainSpec,
        access: Access,
        stdin_use: StdinUse,
    ) -> Result<Prepared, Failure> {
        let file = DeviceFile::open(&self.path, access, self.direct)?;
        let place = self.path.display().to_string();
        let key = match self.key.source {
            KeySource::Ask | KeySource::Stdin if plain.hash.is_none() => {
                return Err(Failure::failed(format!(
                    "{place}: say with --hash how the passphrase becomes the key; --hash plain \
                     takes it as it is"
                )));
            }
            KeySource::Ask | KeySource::Stdin => {
                PlainKey::Passphrase(self.key.read(&place, stdin_use)?)
            }
            KeySource::File(_) | KeySource::Descriptor(_) => {
                if plain.hash.is_some() {
                    say("warning: --hash is ignored: a key file is the key itself");
                }
                let key_len_bytes = plain.key_size_bits as usize / 8;
                PlainKey::KeyFile(self.key.read_at_most(&place, stdin_use, key_len_bytes)?)
            }
        };
        Ok(Prepared::Plain(file, plain.options(), key))
    }
}

impl LuksSpec {
    fn check_version(&self, header: &Header) -> Result<(), Failure> {
        let found = match header {
            Header::Luks1(_) => LuksVersion::Luks1,
            Header::Luks2(_) => LuksVersion::Luks2,
        };
        match self.version {
            Some(wanted) if wanted != found => Err(Failure::wrong_device(format!(
                "this is a {} volume, but --type {} was asked for",
                found.name(),
                wanted.name()
            ))),
            _ => Ok(()),
        }
    }

    fn unlock_options(&self) -> UnlockOptions {
        let mut limits = KdfLimits::default();
        if let Some(len_bytes) = self.max_kdf_memory_bytes {
            limits.memory_kib_max = len_bytes / 1024;
        }
        if let Some(seconds) = self.max_kdf_seconds {
            limits.seconds_max = seconds;
        }
        UnlockOptions { keyslot: self.key_slot, limits }
    }
}

impl LuksVersion {
    fn name(self) -> &'static str {
        match self {
            Self::Luks1 => "luks1",
            Self::Luks2 => "luks2",
        }
    }
}

impl PlainSpec {
    fn options(&self) -> PlainOptions {
        PlainOptions {
            cipher: self.cipher.clone(),
            key_size_bits: self.key_size_bits,
            hash: self.hash.clone(),
            offset_sectors: self.offset_sectors,
            skip_sectors: self.skip_sectors,
            size_sectors: self.len_sectors,
            sector_size_bytes: self.sector_size_bytes,
            iv_large_sectors: self.iv_large_sectors,
            allow_discards: false,
        }
    }
}

impl Prepared {
    /// Derives the key. A person at the terminal may try again.
    pub(crate) fn unlock(self) -> Result<Unlocked, Failure> {
        match self {
            Self::Luks(luks) => luks.unlock(),
            Self::Plain(file, options, key) => {
                let params = plain::open(&options, &key, file.len_bytes())
                    .map_err(|error| Failure::from(error).at(file.path().display()))?;
                Ok(Unlocked::Crypt(file, params))
            }
            Self::Table(path, text) => Ok(Unlocked::Table(path, text)),
        }
    }
}

impl PreparedLuks {
    fn unlock(mut self) -> Result<Unlocked, Failure> {
        let place = self.path.display().to_string();
        let mut tries_left = if self.key.asks_a_person(self.stdin_use) { TRIES } else { 1 };
        let unlocked = loop {
            let source = self.detached_header.as_ref().unwrap_or(&self.file);
            match self.header.unlock(source, &self.passphrase, &self.options) {
                Ok(unlocked) => break unlocked,
                Err(error @ CryptError::WrongPassphrase { .. }) if tries_left > 1 => {
                    tries_left -= 1;
                    say(&format!("{place}: {error}; try again"));
                    self.passphrase = self.key.read(&place, self.stdin_use)?;
                }
                Err(error) => return Err(Failure::from(error).at(&place)),
            }
        };
        let detached = self.detached_header.is_some();
        let params = self
            .header
            .crypt_params(&unlocked.volume_key, self.file.len_bytes(), detached)
            .map_err(|error| Failure::from(error).at(&place))?;
        Ok(Unlocked::Crypt(self.file, params))
    }
}

impl Unlocked {
    /// The mapping, ready for reads and writes.
    pub(crate) fn into_volume(self, options: &VolumeOptions) -> Result<Volume, Failure> {
        match self {
            Self::Crypt(file, params) => {
                Volume::from_crypt(file, &params, options).map_err(Failure::from)
            }
            Self::Table(path, text) => Volume::from_table(&text, options)
                .map_err(|error| Failure::from(error).at(path.display())),
        }
    }
}

impl VolumeSpec {
    /// The files that it is opened from: image, device or table, detached header, key file.
    pub(crate) fn paths(&self) -> Vec<&Path> {
        let header = match &self.kind {
            Kind::Luks(luks) => luks.header.as_deref(),
            Kind::Plain(_) | Kind::Table => None,
        };
        let key = match &self.key.source {
            KeySource::File(path) => Some(path.as_path()),
            KeySource::Ask | KeySource::Stdin | KeySource::Descriptor(_) => None,
        };
        [Some(self.path.as_path()), header, key].into_iter().flatten().collect()
    }
}

/// The text of a table; it holds keys.
pub(crate) fn read_table(path: &Path) -> Result<SecretBytes, Failure> {
    let text = read_secret_file(path, "table")?;
    if text.as_slice().iter().all(u8::is_ascii_whitespace) {
        return Err(Failure::failed(format!(
            "the table {} is empty; it needs lines of START LENGTH TARGET ARGUMENTS",
            path.display()
        )));
    }
    Ok(text)
}

/// The lock that cryptsetup takes on a header that is about to be written.
pub(crate) fn locked_header(device: &DeviceFile) -> Result<HeaderLock, Failure> {
    let lock = device.lock_header()?;
    if let Some(warning) = lock.warning() {
        say(&format!("warning: {}: {warning}", device.path().display()));
    }
    Ok(lock)
}

/// Whether two names lead to one file.
pub(crate) fn is_same_file(one: &Path, other: &Path) -> bool {
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => FileId::of(&one) == FileId::of(&other),
        _ => false,
    }
}
