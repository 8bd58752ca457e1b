//! Options for opening a volume.
//!
//! ```text
//!   Options -> read: files, header -> Locked -> unlock: key derivation -> VolumeKey
//!     -> start: ciphers, workers -> Volume
//! ```
//!
//! There are three steps because a program may act between them: after the first it may ask the
//! user; the second takes seconds and may be repeated; the third starts threads.

mod protect;
mod tokens;

use std::ops::Range;
use std::path::{Path, PathBuf};

use blockyard_crypt::bitlk;
use blockyard_crypt::kdf::KdfLimits;
use blockyard_crypt::luks::{Header, Notice, UnlockOptions};
use blockyard_crypt::luks2;
use blockyard_crypt::params::{CryptParams, VolumePart};
use blockyard_crypt::partition;
use blockyard_crypt::plain::{self, PlainKey, PlainOptions};
use blockyard_crypt::secret::SecretBytes;
use blockyard_crypt::source::HeaderSource;
use blockyard_crypt::tcrypt::{self, HiddenKey, Options as TcryptOptions};
use blockyard_engine::dm::line::MappedDevice;
use blockyard_engine::dm::registry::TargetType;
use blockyard_host::dirty_bitmap::DirtyBitmapOptions;
use blockyard_host::file::{Access, DeviceFile};
use blockyard_host::pages::BounceChoice;
use blockyard_host::process::lock_secrets;
use blockyard_host::table;
use blockyard_host::volume::{
    self as host, Composition, PipelineChoice, Scheduling, VolumeOptions,
};

use crate::error::{contained, contained_with};
use crate::keys::read_secret;
use crate::output::is_same_file;
use crate::resize::{SizeFrom, Sizing};
use crate::{Error, Key, Place, Volume};

pub use tokens::{ByToken, TokenFailure};

/// Limit of the worker threads for ciphers.
const THREADS_MAX: usize = 1024;
/// Limit of the minimum block: the longest encryption sector.
const BLOCK_BYTES_MAX: u32 = 4096;

/// Versions of LUKS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LuksVersion {
    /// LUKS1.
    Luks1,
    /// LUKS2.
    Luks2,
}

/// The format of a volume.
#[derive(Clone, Debug)]
enum Format {
    /// LUKS or BitLocker, according to the header.
    Detected,
    /// LUKS, of this version if given.
    Luks(Option<LuksVersion>),
    Plain(PlainOptions),
    /// TrueCrypt or VeraCrypt.
    Tcrypt(TcryptOptions),
    Bitlk,
    /// The text of a device-mapper table; without it the path is a file with the text.
    Table(Option<SecretBytes>),
    /// Raw data.
    Raw,
}

/// Options for opening a volume. The defaults: LUKS of either version or BitLocker, read and write,
/// through the page cache, the adaptive pipeline.
#[derive(Clone, Debug)]
pub struct Options {
    format: Format,
    place: Place,
    key: Option<Key>,
    header: Option<PathBuf>,
    header_copy: Option<luks2::Copy>,
    unlock: UnlockOptions,
    hidden: Option<HiddenKey>,
    /// Beside those of `volume`, so that [`Options::settings`] keeps them.
    targets: Vec<&'static TargetType>,
    volume: VolumeOptions,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            format: Format::Detected,
            place: Place::Whole,
            key: None,
            header: None,
            header_copy: None,
            unlock: UnlockOptions::default(),
            hidden: None,
            targets: Vec::new(),
            volume: VolumeOptions::default(),
        }
    }
}

impl Options {
    /// The secret that opens the volume.
    #[must_use]
    pub fn key(mut self, key: Key) -> Self {
        self.key = Some(key);
        self
    }

    /// Accepts only LUKS, and only this version if one is given.
    #[must_use]
    pub fn luks(mut self, version: impl Into<Option<LuksVersion>>) -> Self {
        self.format = Format::Luks(version.into());
        self
    }

    /// The volume has no header; these are its parameters.
    #[must_use]
    pub fn plain(mut self, plain: PlainOptions) -> Self {
        self.format = Format::Plain(plain);
        self
    }

    /// The volume is one of TrueCrypt or VeraCrypt. The limits are those of
    /// [`Options::kdf_limits`].
    #[must_use]
    pub fn tcrypt(mut self, tcrypt: TcryptOptions) -> Self {
        self.format = Format::Tcrypt(tcrypt);
        self
    }

    /// Protects the hidden volume in an outer volume of TrueCrypt or VeraCrypt, which is written.
    ///
    /// The first write, discard or zeroing that would change the hidden volume fails, and from then
    /// on all of them fail until the volume is closed. The hidden volume itself is not opened.
    #[must_use]
    pub fn protect_hidden(mut self, hidden: HiddenKey) -> Self {
        self.hidden = Some(hidden);
        self
    }

    /// The volume is one of BitLocker. Its key is a passphrase, a recovery key or the bytes of a
    /// startup key file; a volume with a clear key needs none.
    #[must_use]
    pub fn bitlk(mut self) -> Self {
        self.format = Format::Bitlk;
        self
    }

    /// The path is a file with the text of a device-mapper table, which names its devices and keys.
    #[must_use]
    pub fn table(mut self) -> Self {
        self.format = Format::Table(None);
        self
    }

    /// The text of a device-mapper table. The path is its name in error messages.
    #[must_use]
    pub fn table_text(mut self, text: SecretBytes) -> Self {
        self.format = Format::Table(Some(text));
        self
    }

    /// Adds a target of the program for lines of a table, under its own name.
    #[must_use]
    pub fn target(mut self, target: &'static TargetType) -> Self {
        self.targets.push(target);
        self
    }

    /// Uses the data of the file or device without encryption. Bytes after the last whole sector of
    /// 512 bytes are left out.
    #[must_use]
    pub fn raw(mut self) -> Self {
        self.format = Format::Raw;
        self
    }

    /// Sets all settings of the engine at once, in place of those from earlier calls. The targets
    /// of [`Options::target`] remain, in any order of the calls.
    #[must_use]
    pub fn settings(mut self, settings: VolumeOptions) -> Self {
        self.volume = settings;
        self
    }

    /// The volume is in this part of the file or device.
    #[must_use]
    pub fn place(mut self, place: Place) -> Self {
        self.place = place;
        self
    }

    /// Reads the LUKS header from this file. The volume itself means its own header.
    #[must_use]
    pub fn header(mut self, path: impl Into<PathBuf>) -> Self {
        self.header = Some(path.into());
        self
    }

    /// Reads only this copy of a LUKS2 header. The volume must be read-only.
    #[must_use]
    pub fn header_copy(mut self, copy: luks2::Copy) -> Self {
        self.header_copy = Some(copy);
        self
    }

    /// Tries only this keyslot.
    #[must_use]
    pub fn keyslot(mut self, keyslot: u32) -> Self {
        self.unlock.keyslot = Some(keyslot);
        self
    }

    /// Limits the memory and time that a header may demand.
    #[must_use]
    pub fn kdf_limits(mut self, limits: KdfLimits) -> Self {
        self.unlock.limits = limits;
        self
    }

    /// Refuses writes.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.volume.read_only = read_only;
        self
    }

    /// Permits writes by other programs to the same files, if they set it too.
    #[must_use]
    pub fn shared(mut self, shared: bool) -> Self {
        self.volume.shared = shared;
        self
    }

    /// Bypasses the page cache.
    #[must_use]
    pub fn direct(mut self, direct: bool) -> Self {
        self.volume.direct = direct;
        self
    }

    /// Passes TRIM to the file or device, in addition to the header's flag. It reveals the empty
    /// parts of the volume.
    #[must_use]
    pub fn allow_discards(mut self, allow_discards: bool) -> Self {
        self.volume.allow_discards = allow_discards;
        self
    }

    /// Number of worker threads for ciphers, at most 1024. The default depends on the speed of the
    /// cipher.
    #[must_use]
    pub fn workers(mut self, threads: usize) -> Self {
        self.volume.worker_threads = Some(threads);
        self
    }

    /// Placement of ciphers, and submitter of encrypted writes.
    #[must_use]
    pub fn pipeline(mut self, pipeline: PipelineChoice) -> Self {
        self.volume.pipeline = pipeline;
        self
    }

    /// Bounce memory for the ciphertext of writes.
    #[must_use]
    pub fn pages(mut self, bounce: BounceChoice) -> Self {
        self.volume.bounce = bounce;
        self
    }

    /// The request queues and elevators of the devices below.
    /// [`ElevatorSpec::parse`](crate::ElevatorSpec::parse) reads an elevator's name and tunables.
    #[must_use]
    pub fn scheduling(mut self, scheduling: Scheduling) -> Self {
        self.volume.scheduling = scheduling;
        self
    }

    /// Lets a server suspend and resume the volume, change its keys and count its requests. Each
    /// request then checks a shared word.
    #[must_use]
    pub fn controlled(mut self, controlled: bool) -> Self {
        self.volume.controlled = controlled;
        self
    }

    /// Minimum block in bytes for NBD clients, a power of two from 1 to 4096.
    #[must_use]
    pub fn minimum_block(mut self, bytes: u32) -> Self {
        self.volume.minimum_block_bytes = Some(bytes);
        self
    }

    /// Mean sampling interval in requests; zero disables sampling.
    #[must_use]
    pub fn sample_every(mut self, requests: u32) -> Self {
        self.volume.sample_every = Some(requests);
        self
    }

    /// Tracks the blocks that are written, for incremental backups of a server. The identity of the
    /// bitmap is that of a LUKS header.
    #[must_use]
    pub fn dirty_bitmap(mut self, bitmap: DirtyBitmapOptions) -> Self {
        self.volume.dirty_bitmap = Some(bitmap);
        self
    }

    /// Opens the volume: [`Options::read`], [`Locked::unlock`] and [`Locked::start`].
    ///
    /// # Errors
    /// The errors of these three; [`Error::Options`] without a required key.
    pub fn open(mut self, path: impl AsRef<Path>) -> Result<Volume, Error> {
        let (locked, key) = self.unlock(path.as_ref())?;
        locked.start(key)
    }

    /// [`Options::read`] and [`Locked::unlock`]. The options lose their key.
    pub(crate) fn unlock(&mut self, path: &Path) -> Result<(Locked, VolumeKey), Error> {
        let key = self.key.take();
        let locked = self.clone().read(path)?;
        let key = match key {
            Some(key) => locked.unlock(&key)?,
            None => locked.unlock_keyless()?,
        };
        Ok((locked, key))
    }

    /// The settings of the engine.
    pub(crate) fn engine(&self) -> &VolumeOptions {
        &self.volume
    }

    pub(crate) fn is_table(&self) -> bool {
        matches!(self.format, Format::Table(_))
    }

    /// Whether ciphers are between the volume and its file.
    pub(crate) fn has_cipher(&self) -> bool {
        !matches!(self.format, Format::Raw)
    }

    /// Opens the files and reads the header.
    ///
    /// # Errors
    /// A file cannot be opened or is in use, there is no intact header, or options exclude each
    /// other.
    pub fn read(self, path: impl AsRef<Path>) -> Result<Locked, Error> {
        contained(|| self.read_files(path.as_ref().to_owned()))
    }

    fn read_files(self, path: PathBuf) -> Result<Locked, Error> {
        lock_secrets();
        self.check(&path)?;
        let access = match (self.volume.read_only, self.volume.shared) {
            (true, _) => Access::ReadOnly,
            (false, true) => Access::Shared,
            (false, false) => Access::ReadWrite,
        };
        let open = || self.place.of(DeviceFile::open(&path, access, self.volume.direct)?);
        let kind = match &self.format {
            Format::Luks(version) => LockedKind::Luks(Box::new(self.read_luks(open()?, *version)?)),
            Format::Detected => match self.read_luks(open()?, None) {
                Err(error) if error.is_bitlocker() => self.read_bitlk(open()?)?,
                luks => LockedKind::Luks(Box::new(luks?)),
            },
            Format::Bitlk => self.read_bitlk(open()?)?,
            Format::Plain(plain) => LockedKind::Plain(open()?, plain.clone()),
            Format::Tcrypt(options) => {
                let options = TcryptOptions { limits: self.unlock.limits, ..options.clone() };
                LockedKind::Tcrypt(open()?, Box::new(options))
            }
            Format::Table(Some(text)) => LockedKind::Table(text.clone()),
            Format::Table(None) => LockedKind::Table(read_secret(&path, "table")?),
            Format::Raw => LockedKind::Raw(open()?),
        };
        let mut volume = self.volume;
        volume.targets.extend(self.targets);
        Ok(Locked { path, place: self.place, kind, hidden: self.hidden, volume })
    }

    fn check(&self, path: &Path) -> Result<(), Error> {
        if self.header.as_ref().is_some_and(|header| header.as_os_str().is_empty()) {
            return Err(Error::options(path, "`header`: the path is empty"));
        }
        let of_luks =
            self.header.is_some() || self.header_copy.is_some() || self.unlock.keyslot.is_some();
        if of_luks && !matches!(self.format, Format::Luks(_) | Format::Detected) {
            let problem = "`header`, `header_copy` and `keyslot` are options of LUKS volumes";
            return Err(Error::options(path, problem));
        }
        if self.place != Place::Whole && matches!(self.format, Format::Table(_)) {
            let problem = "`place` is for volumes; a table names its places itself";
            return Err(Error::options(path, problem));
        }
        if self.hidden.is_some() {
            self.check_protects(path)?;
        }
        if self.header_copy.is_some() && !self.volume.read_only {
            let problem = "`header_copy` needs `read_only`";
            return Err(Error::options(path, problem));
        }
        if let Some(threads) = self.volume.worker_threads.filter(|threads| *threads > THREADS_MAX) {
            let problem = format!("`worker_threads`: {threads} is more than {THREADS_MAX}");
            return Err(Error::options(path, problem));
        }
        let is_block = |bytes: &u32| bytes.is_power_of_two() && *bytes <= BLOCK_BYTES_MAX;
        if let Some(bytes) = self.volume.minimum_block_bytes.filter(|bytes| !is_block(bytes)) {
            let problem = format!(
                "`minimum_block_bytes`: {bytes} is no power of two from 1 to {BLOCK_BYTES_MAX}"
            );
            return Err(Error::options(path, problem));
        }
        Ok(())
    }

    fn read_bitlk(&self, file: DeviceFile) -> Result<LockedKind, Error> {
        let header = bitlk::Header::read(&file);
        let header = header.map_err(|error| Error::crypt(file.path(), error))?;
        Ok(LockedKind::Bitlk(file, Box::new(header), self.unlock.limits))
    }

    fn read_luks(&self, file: DeviceFile, version: Option<LuksVersion>) -> Result<Luks, Error> {
        let is_own = |header: &&PathBuf| {
            matches!(self.place, Place::Whole) && is_same_file(header, file.path())
        };
        let detached = self.header.as_ref().filter(|header| !is_own(header));
        let open = |path: &PathBuf| DeviceFile::open(path, Access::ReadOnly, false);
        let detached = detached.map(open).transpose()?;
        let source = detached.as_ref().unwrap_or(&file);
        let lock = source.lock_header_to_read()?;
        let (header, notices) = match self.header_copy {
            None => partition::read_header(source),
            Some(copy) => Header::read_copy(source, copy).map(|header| (header, Vec::new())),
        }
        .map_err(|error| Error::crypt(source.path(), error))?;
        drop(lock);
        let found = match header {
            Header::Luks1(_) => LuksVersion::Luks1,
            Header::Luks2(_) => LuksVersion::Luks2,
        };
        if let Some(wanted) = version.filter(|wanted| *wanted != found) {
            let problem = format!("this is a {found:?} volume, not {wanted:?}");
            return Err(Error::options(source.path(), problem));
        }
        Ok(Luks { file, detached, header, notices, options: self.unlock })
    }
}

/// A volume with open files and an unknown key.
#[derive(Debug)]
pub struct Locked {
    path: PathBuf,
    place: Place,
    kind: LockedKind,
    /// Secrets of the hidden volume that has to be protected.
    hidden: Option<HiddenKey>,
    volume: VolumeOptions,
}

#[derive(Debug)]
enum LockedKind {
    Luks(Box<Luks>),
    Plain(DeviceFile, PlainOptions),
    Tcrypt(DeviceFile, Box<TcryptOptions>),
    Bitlk(DeviceFile, Box<bitlk::Header>, KdfLimits),
    Table(SecretBytes),
    Raw(DeviceFile),
}

#[derive(Debug)]
struct Luks {
    file: DeviceFile,
    detached: Option<DeviceFile>,
    header: Header,
    notices: Vec<Notice>,
    options: UnlockOptions,
}

impl Locked {
    /// The LUKS header, if there is one.
    #[must_use]
    pub fn header(&self) -> Option<&Header> {
        match &self.kind {
            LockedKind::Luks(luks) => Some(&luks.header),
            _ => None,
        }
    }

    /// Damage of the header that leaves the volume usable.
    #[must_use]
    pub fn notices(&self) -> Vec<String> {
        match &self.kind {
            LockedKind::Luks(luks) => luks.notices.iter().map(Notice::to_string).collect(),
            LockedKind::Bitlk(_, header, _) => header.notices().to_vec(),
            _ => Vec::new(),
        }
    }

    /// Whether [`Locked::unlock`] uses its key: a table contains its keys, and a BitLocker volume
    /// may have a clear key.
    #[must_use]
    pub fn needs_key(&self) -> bool {
        match &self.kind {
            LockedKind::Luks(_) | LockedKind::Plain(..) | LockedKind::Tcrypt(..) => true,
            LockedKind::Bitlk(_, header, _) => !header.has_clear_key(),
            LockedKind::Table(_) | LockedKind::Raw(_) => false,
        }
    }

    /// The device-mapper devices that make up the volume, as table lines.
    ///
    /// # Errors
    /// A table is invalid, or the volume needs a missing key.
    pub fn mappings(&self, key: &VolumeKey) -> Result<Vec<MappedDevice>, Error> {
        contained_with(&self.own_targets(), || self.mapped(key))
    }

    /// Names of the program's own targets.
    fn own_targets(&self) -> Vec<&'static str> {
        self.volume.targets.iter().map(|target| target.name).collect()
    }

    fn mapped(&self, key: &VolumeKey) -> Result<Vec<MappedDevice>, Error> {
        let mapping = |file| {
            if key.0.parts.is_empty() {
                return Err(self.key_is_missing());
            }
            Ok(host::crypt_mapping(file, &key.0)?)
        };
        Ok(match &self.kind {
            LockedKind::Luks(luks) => mapping(&luks.file)?,
            LockedKind::Plain(file, _)
            | LockedKind::Tcrypt(file, _)
            | LockedKind::Bitlk(file, ..) => mapping(file)?,
            LockedKind::Table(text) => {
                let in_table = |source| Error::Table { path: self.path.clone(), source };
                let parsed = table::parse(text, &self.volume.targets);
                parsed.map_err(|error| in_table(error.into()))?
            }
            LockedKind::Raw(_) => Vec::new(),
        })
    }

    fn key_is_missing(&self) -> Error {
        Error::options(&self.path, "the volume is encrypted, and `key` is missing")
    }

    /// Derives the key of the volume. Takes seconds; may be repeated with another key.
    ///
    /// # Errors
    /// No keyslot opens, a limit forbids the derivation, or the volume needs an unsupported
    /// feature.
    pub fn unlock(&self, key: &Key) -> Result<VolumeKey, Error> {
        contained(|| self.derive(key))
    }

    /// The key of a volume for which [`Locked::needs_key`] is false. Otherwise the volume cannot be
    /// started with the result.
    ///
    /// # Errors
    /// The volume has a clear key, and is not completely encrypted or damaged.
    pub fn unlock_keyless(&self) -> Result<VolumeKey, Error> {
        match self.kind {
            LockedKind::Bitlk(..) if !self.needs_key() => self.unlock(&Key::passphrase("")),
            _ => Ok(VolumeKey::default()),
        }
    }

    fn derive(&self, key: &Key) -> Result<VolumeKey, Error> {
        let failed = |error| Error::crypt(&self.path, error);
        let params = match &self.kind {
            LockedKind::Luks(luks) => luks.params(key).map_err(failed)?,
            LockedKind::Plain(file, options) => {
                let key = match key {
                    Key::Passphrase(secret) => PlainKey::Passphrase(secret.clone()),
                    Key::File(secret) => PlainKey::KeyFile(secret.clone()),
                };
                plain::open(options, &key, file.len_bytes()).map_err(failed)?
            }
            LockedKind::Tcrypt(file, options) => {
                let opened = tcrypt::unlock(file, key.secret(), options);
                opened.and_then(|it| it.crypt_params(file.len_bytes())).map_err(failed)?
            }
            LockedKind::Bitlk(file, header, limits) => {
                let opened = header.unlock(key.secret(), limits);
                let parts = opened.and_then(|it| it.parts(file.len_bytes()));
                return Ok(VolumeKey::of(parts.map_err(failed)?));
            }
            LockedKind::Table(_) | LockedKind::Raw(_) => return Ok(VolumeKey::default()),
        };
        let key = VolumeKey::of(vec![VolumePart::Crypt(params)]);
        match &self.hidden {
            Some(hidden) => self.protected(&key, hidden),
            None => Ok(key),
        }
    }

    /// Starts the ciphers and the workers.
    ///
    /// # Errors
    /// The table is invalid, a device of it cannot be opened, or the options do not fit the volume.
    pub fn start(self, key: VolumeKey) -> Result<Volume, Error> {
        contained_with(&self.own_targets(), || self.started(key))
    }

    fn started(mut self, key: VolumeKey) -> Result<Volume, Error> {
        if let Some(bitmap) = self.volume.dirty_bitmap.take() {
            let identity =
                self.header().map_or_else(String::new, |it| format!("luks:{}", it.uuid()));
            self.volume.dirty_bitmap = Some(bitmap.identity(identity));
        }
        let size_from = self.size_from();
        let targets = self.own_targets();
        let missing = self.key_is_missing();
        if self.hidden.is_some() && key.0.protected.is_empty() {
            let problem = "`protect_hidden`: the key comes from elsewhere, without protection";
            return Err(Error::options(&self.path, problem));
        }
        let mut header = None;
        let file = match self.kind {
            LockedKind::Luks(luks) => {
                header = luks.detached;
                luks.file
            }
            LockedKind::Plain(file, _)
            | LockedKind::Tcrypt(file, _)
            | LockedKind::Bitlk(file, ..) => file,
            LockedKind::Raw(file) => {
                let host = host::Volume::from_file(file, &self.volume)?;
                return Ok(Volume::with(host, size_from, targets, None));
            }
            LockedKind::Table(text) => {
                let started = host::Volume::from_table(&text, &self.volume);
                let in_table = |source| Error::Table { path: self.path, source };
                return Ok(Volume::with(started.map_err(in_table)?, size_from, targets, None));
            }
        };
        if key.0.parts.is_empty() {
            return Err(missing);
        }
        let host = host::Volume::from_parts(file, key.0, &self.volume)?;
        Ok(Volume::with(host, size_from, targets, header))
    }

    /// The origin of the volume's size.
    fn size_from(&self) -> SizeFrom {
        let end = |file: &DeviceFile, start_bytes| SizeFrom::End {
            path: self.path.clone(),
            place: self.place.clone(),
            part_start_bytes: file.start_bytes(),
            start_bytes,
        };
        match &self.kind {
            LockedKind::Luks(luks) => {
                let header = luks.detached.as_ref().map(|file| file.path().to_owned());
                let sizing = Sizing::of(&self.path).place(self.place.clone()).header(header);
                let part_start_bytes = luks.file.start_bytes();
                SizeFrom::Header { sizing, part_start_bytes, before: Box::new(luks.header.clone()) }
            }
            LockedKind::Plain(_, PlainOptions { size_sectors: Some(_), .. }) => {
                SizeFrom::Fixed("its size was given when it was opened; open it with another one")
            }
            LockedKind::Plain(file, plain) => end(file, plain.offset_sectors.saturating_mul(512)),
            LockedKind::Raw(file) => end(file, 0),
            LockedKind::Tcrypt(..) => {
                SizeFrom::Fixed("a TrueCrypt or VeraCrypt volume has its size in its header")
            }
            LockedKind::Bitlk(..) => {
                SizeFrom::Fixed("a BitLocker volume has its size in its metadata")
            }
            LockedKind::Table(_) => {
                SizeFrom::Fixed("the lines of a table fix its size; open a table with longer lines")
            }
        }
    }
}

impl Luks {
    fn params(&self, key: &Key) -> Result<CryptParams, blockyard_crypt::Error> {
        self.params_with(key.secret(), &self.options)
    }

    fn params_with(
        &self,
        passphrase: &SecretBytes,
        options: &UnlockOptions,
    ) -> Result<CryptParams, blockyard_crypt::Error> {
        let source = self.detached.as_ref().unwrap_or(&self.file);
        let unlocked = self.header.unlock(source, passphrase, options)?;
        let is_detached = self.detached.is_some();
        self.header.crypt_params(&unlocked.volume_key, self.file.len_bytes(), is_detached)
    }
}

/// The key of a volume, derived by [`Locked::unlock`]. It is wiped when it is dropped.
#[derive(Clone, Debug, Default)]
pub struct VolumeKey(Composition);

impl VolumeKey {
    /// The key of these parts, without protected sectors.
    fn of(parts: Vec<VolumePart>) -> Self {
        Self(Composition { parts, ..Composition::default() })
    }

    /// Sectors of the volume that are never written: those of a protected hidden volume.
    #[must_use]
    pub fn protected(&self) -> &[Range<u64>] {
        &self.0.protected
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use blockyard_engine::dm::zero::ZeroSpec;

    use super::*;

    #[test]
    fn settings_keep_targets_of_the_program_in_any_order_of_the_calls() {
        static OWN: TargetType =
            TargetType { name: "own", arguments: "", parse: |_, _| Ok(Arc::new(ZeroSpec)) };
        let text = SecretBytes::copy_of(b"0 2048 own");
        let settings = VolumeOptions { minimum_block_bytes: Some(2048), ..Default::default() };
        let options = || Options::default().table_text(text.clone());
        for options in [
            options().target(&OWN).settings(settings.clone()),
            options().settings(settings.clone()).target(&OWN),
        ] {
            let volume = options.open("own").unwrap();
            assert_eq!((volume.len(), volume.minimum_block()), (1 << 20, 2048));
        }
    }
}
