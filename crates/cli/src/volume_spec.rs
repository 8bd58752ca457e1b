//! A volume in the form of the command line or a configuration, and the steps to open it.
//!
//! ```text
//! options or TOML -> VolumeSpec -> prepare: header, passphrase -> Prepared
//! -> unlock: key derivation -> Unlocked -> start: ciphers, workers -> Volume
//! ```
//!
//! There are three steps because a server works between them: the first may ask the user, the
//! second takes seconds and starts threads of argon2, the third starts workers; and signals must be
//! blocked before any thread starts.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use blockyard::Error;
use blockyard::header;
use blockyard::keys::{KeyFile, TokenChoice, read_secret};
use blockyard::{
    ByToken, Header, HiddenKey, KdfLimits, Key, Locked, Options, Place, TcryptKind, TcryptOptions,
    Volume, VolumeKey,
};
use blockyard_crypt::luks2;
use blockyard_crypt::plain::PlainOptions;
use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::dm::line::{MAPPER_FOLDER, MappedDevice};
use blockyard_host::table;
use blockyard_host::volume::VolumeOptions;

use crate::args::{PlainArgs, TcryptArgs, VolumeType};
use crate::failure::{Failure, printable, shown};
use crate::key::{KeyInput, KeySource, StdinUse, stdin_is_taken};
use crate::output::say;

/// Tries for a passphrase; cryptsetup's default.
const TRIES: u32 = 3;
/// The part of a keyfile of TrueCrypt and VeraCrypt that counts.
const TCRYPT_KEYFILE_LEN_BYTES: usize = 1 << 20;

/// Description of a volume.
#[derive(Debug)]
pub(crate) struct VolumeSpec {
    /// The image, device or table file.
    pub(crate) path: PathBuf,
    /// The part of it that holds the volume.
    pub(crate) place: Place,
    /// Its format.
    pub(crate) kind: VolumeFormat,
    /// Source of its passphrase or key.
    pub(crate) key: KeyInput,
    /// Bypass the page cache.
    pub(crate) direct: bool,
}

/// The format of a volume.
#[derive(Debug)]
pub(crate) enum VolumeFormat {
    /// LUKS1 or LUKS2.
    Luks(LuksSpec),
    /// dm-crypt without a header.
    Plain(PlainSpec),
    /// TrueCrypt or VeraCrypt.
    Tcrypt(TcryptSpec),
    /// BitLocker, with the limits of its key derivations.
    Bitlk(KdfLimits),
    /// The text of a device-mapper table.
    Table,
}

/// Parameters of a LUKS volume.
#[derive(Debug, Default)]
pub(crate) struct LuksSpec {
    /// Accept this version only.
    pub(crate) version: Option<LuksVersion>,
    /// Accept BitLocker too, according to the header.
    pub(crate) or_bitlk: bool,
    /// Detached header.
    pub(crate) header: Option<PathBuf>,
    /// Use this copy of a LUKS2 header only, without writing.
    pub(crate) header_copy: Option<luks2::Copy>,
    /// Try this keyslot only.
    pub(crate) key_slot: Option<u32>,
    /// Limit of the key derivation's memory.
    pub(crate) max_kdf_memory_bytes: Option<u64>,
    /// Limit of the key derivation's time.
    pub(crate) max_kdf_seconds: Option<u64>,
    /// Its tokens, if no key is given.
    pub(crate) tokens: TokenUse,
}

/// Use of tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenUse {
    /// None is tried.
    pub(crate) never: bool,
    /// No passphrase is asked for.
    pub(crate) only: bool,
    /// The tokens to try.
    pub(crate) choice: TokenChoice,
}

/// Versions of LUKS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LuksVersion {
    /// LUKS1.
    Luks1,
    /// LUKS2.
    Luks2,
}

/// Parameters of a TrueCrypt or VeraCrypt volume.
#[derive(Debug, Default)]
pub(crate) struct TcryptSpec {
    /// The volume that the passphrase is for.
    pub(crate) kind: TcryptKind,
    /// Use the backup of the header.
    pub(crate) backup: bool,
    /// VeraCrypt's PIM.
    pub(crate) pim: Option<u32>,
    /// Keyfiles beside the passphrase.
    pub(crate) keyfiles: Vec<PathBuf>,
    /// Limits of the key derivations.
    pub(crate) limits: KdfLimits,
    /// The hidden volume in it that is to be protected.
    pub(crate) hidden: Option<HiddenSpec>,
}

/// A hidden volume that is to be protected.
#[derive(Debug)]
pub(crate) struct HiddenSpec {
    /// Source of its passphrase.
    pub(crate) key: KeyInput,
    /// Its PIM.
    pub(crate) pim: Option<u32>,
    /// Its keyfiles.
    pub(crate) keyfiles: Vec<PathBuf>,
}

/// Parameters of a plain volume, which has no header.
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

impl VolumeFormat {
    /// The part of the disk that `--partition` and `--offset` name. The offset of a plain volume is
    /// one of its parameters.
    pub(crate) fn place(
        &self,
        partition: Option<&str>,
        offset_sectors: Option<u64>,
    ) -> Result<Place, Failure> {
        match (self, partition, offset_sectors) {
            (Self::Table, Some(_), _) | (Self::Table, None, Some(_)) => Err(Failure::failed(
                "--partition and --offset are for volumes; a table names its places itself",
            )),
            (Self::Luks(_) | Self::Tcrypt(_) | Self::Bitlk(_), Some(_), Some(_)) => {
                Err(Failure::failed("give either --partition or --offset"))
            }
            (Self::Luks(_) | Self::Tcrypt(_) | Self::Bitlk(_), None, Some(sectors)) => {
                sectors.checked_mul(512).map(Place::Offset).ok_or_else(|| {
                    Failure::failed(format!("--offset {sectors} is past any disk's end"))
                })
            }
            (_, Some(name), _) => Ok(Place::Partition(name.to_owned())),
            (_, None, _) => Ok(Place::Whole),
        }
    }

    /// Combines `--type` and its options.
    pub(crate) fn new(
        kind: Option<VolumeType>,
        luks: LuksSpec,
        plain: &PlainArgs,
        tcrypt: &TcryptArgs,
    ) -> Result<Self, Failure> {
        if kind != Some(VolumeType::Tcrypt)
            && let Some(option) = tcrypt.first_given()
        {
            return Err(Failure::failed(format!("{option} is for --type tcrypt")));
        }
        if matches!(kind, Some(VolumeType::Plain | VolumeType::Tcrypt | VolumeType::Bitlk))
            && luks.tokens.is_asked_for()
        {
            return Err(Failure::failed(
                "--token-only, --token-id and --token-type are for LUKS2; other volumes have no \
                 tokens",
            ));
        }
        let version = match kind {
            None | Some(VolumeType::Luks) => None,
            Some(VolumeType::Luks1) => Some(LuksVersion::Luks1),
            Some(VolumeType::Luks2) => Some(LuksVersion::Luks2),
            Some(kind) => return Self::other(kind, &luks, plain, tcrypt),
        };
        match plain.first_given_but_offset() {
            None => {
                let or_bitlk = kind.is_none() && !luks.tokens.is_asked_for();
                Ok(Self::Luks(LuksSpec { version, or_bitlk, ..luks }))
            }
            Some(option) => Err(Failure::failed(format!(
                "{option} is for --type plain: a LUKS volume has it in its header"
            ))),
        }
    }

    /// A volume of another format than LUKS.
    fn other(
        kind: VolumeType,
        luks: &LuksSpec,
        plain: &PlainArgs,
        tcrypt: &TcryptArgs,
    ) -> Result<Self, Failure> {
        if luks.header.is_some() || luks.header_copy.is_some() || luks.key_slot.is_some() {
            return Err(Failure::failed(
                "--header, --header-copy and --key-slot are for LUKS; other volumes have none of \
                 them",
            ));
        }
        if kind == VolumeType::Plain {
            return plain.spec().map(Self::Plain);
        }
        if let Some(option) = plain.first_given_but_offset() {
            let name =
                if kind == VolumeType::Bitlk { "BitLocker" } else { "TrueCrypt or VeraCrypt" };
            return Err(Failure::failed(format!(
                "{option} is for --type plain: the header of a volume of {name} says it"
            )));
        }
        Ok(match kind {
            VolumeType::Bitlk => Self::Bitlk(luks.limits()),
            _ => Self::Tcrypt(tcrypt.spec(luks.limits())?),
        })
    }
}

/// A volume after reading its header, with a passphrase that may be wrong.
pub(crate) struct Prepared {
    options: Options,
    locked: Locked,
    key: Option<Key>,
    /// The key of the volume, if a token has given it.
    opened: Option<VolumeKey>,
    /// The hidden volume to protect.
    hidden: Option<HiddenKey>,
    /// For another try.
    input: KeyInput,
    /// For another try with the hidden volume.
    hidden_input: Option<KeyInput>,
    stdin_use: StdinUse,
    place: String,
    /// A wrong passphrase is an error, unlike that of a plain volume.
    detects_wrong_key: bool,
}

/// An unlocked volume.
pub(crate) struct Unlocked {
    /// For opening it again with other settings.
    #[cfg_attr(not(feature = "lab"), expect(dead_code, reason = "only `tune` opens it again"))]
    pub(crate) options: Options,
    pub(crate) locked: Locked,
    pub(crate) key: VolumeKey,
}

impl VolumeSpec {
    /// Opens the files, reads the header, and gets the passphrase. `settings` decide about write
    /// access.
    pub(crate) fn prepare(
        &self,
        settings: VolumeOptions,
        stdin_use: StdinUse,
    ) -> Result<Prepared, Failure> {
        let place = self.path.display().to_string();
        let options = self.options(settings)?;
        let locked = options.clone().read(&self.path)?;
        for notice in locked.notices() {
            say(&format!("warning: {}: {}", self.header_path(), printable(&notice)));
        }
        let mut opened = None;
        let key = match &self.kind {
            VolumeFormat::Luks(_) | VolumeFormat::Bitlk(_) if !locked.needs_key() => None,
            VolumeFormat::Luks(luks) => {
                let version = locked.header().map_or(Ok(()), |header| luks.check_version(header));
                version.map_err(|failure| failure.at(self.header_path()))?;
                if self.key.source == KeySource::Ask && locked.header().is_some() {
                    opened = luks.tokens.open(&locked, &place)?;
                }
                match opened {
                    Some(_) => None,
                    None => Some(Key::Passphrase(self.key.read(&place, stdin_use)?)),
                }
            }
            VolumeFormat::Tcrypt(_) | VolumeFormat::Bitlk(_) => {
                Some(Key::Passphrase(self.key.read(&place, stdin_use)?))
            }
            VolumeFormat::Plain(plain) => Some(plain.key(&self.key, &place, stdin_use)?),
            VolumeFormat::Table => None,
        };
        let hidden = match &self.kind {
            VolumeFormat::Tcrypt(TcryptSpec { hidden: Some(hidden), .. }) => Some(hidden),
            _ => None,
        };
        let hidden_input = hidden.map(|hidden| hidden.key.clone());
        let hidden = hidden.map(|hidden| hidden.read(&place, stdin_use)).transpose()?;
        let detects_wrong_key = !matches!(self.kind, VolumeFormat::Plain(_) | VolumeFormat::Table);
        let input = self.key.clone();
        Ok(Prepared {
            options,
            locked,
            key,
            opened,
            hidden,
            input,
            hidden_input,
            stdin_use,
            place,
            detects_wrong_key,
        })
    }

    /// All steps together; `raw` opens the file without encryption.
    pub(crate) fn open(&self, settings: VolumeOptions, raw: bool) -> Result<Volume, Failure> {
        if raw {
            let options = Volume::options().settings(settings).place(self.place.clone());
            Ok(options.raw().open(&self.path)?)
        } else {
            self.prepare(settings, StdinUse::Free)?.unlock()?.start()
        }
    }

    /// The library's options for this volume.
    fn options(&self, settings: VolumeOptions) -> Result<Options, Failure> {
        let is_written = !settings.read_only;
        let options = Volume::options()
            .settings(VolumeOptions { direct: self.direct, ..settings })
            .place(self.place.clone());
        Ok(match &self.kind {
            VolumeFormat::Luks(luks) => luks.options(options, is_written)?,
            VolumeFormat::Plain(plain) => options.plain(plain.options()),
            VolumeFormat::Tcrypt(tcrypt) => tcrypt.options(options, is_written)?,
            VolumeFormat::Bitlk(limits) => options.kdf_limits(*limits).bitlk(),
            VolumeFormat::Table => options.table_text(read_table(&self.path)?),
        })
    }

    fn header_path(&self) -> impl std::fmt::Display {
        let header = match &self.kind {
            VolumeFormat::Luks(luks) => luks.header.as_ref(),
            VolumeFormat::Plain(_)
            | VolumeFormat::Tcrypt(_)
            | VolumeFormat::Bitlk(_)
            | VolumeFormat::Table => None,
        };
        header.unwrap_or(&self.path).display()
    }
}

impl TokenUse {
    /// Whether a person asks for tokens, which only LUKS2 has.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.only || self.choice != TokenChoice::default()
    }

    /// The key from the first token that opens the volume. Others are named in warnings.
    fn open(&self, locked: &Locked, place: &str) -> Result<Option<VolumeKey>, Failure> {
        if self.never {
            return Ok(None);
        }
        let ByToken { key, failures } = locked.unlock_by_token(&self.choice)?;
        for failure in &failures {
            say(&format!("warning: {place}: {}", shown(failure)));
        }
        if key.is_none() && self.only {
            return Err(Failure::no_permission(format!(
                "{place}: no token opens the volume, and --token-only asks for no passphrase"
            )));
        }
        Ok(key)
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
                "this is a {} volume, but --type is {}",
                found.name(),
                wanted.name()
            ))),
            _ => Ok(()),
        }
    }

    fn limits(&self) -> KdfLimits {
        let mut limits = KdfLimits::default();
        if let Some(len_bytes) = self.max_kdf_memory_bytes {
            limits.memory_kib_max = len_bytes / 1024;
        }
        if let Some(seconds) = self.max_kdf_seconds {
            limits.seconds_max = seconds;
        }
        limits
    }

    fn options(&self, options: Options, is_written: bool) -> Result<Options, Failure> {
        if self.header_copy.is_some() && is_written {
            return Err(Failure::failed(
                "--header-copy is for a look at a volume: with serve it needs --read-only (in a \
                 configuration, `header_copy` needs `read_only = true`), and no command may write \
                 with it",
            ));
        }
        let mut options = options.kdf_limits(self.limits());
        if !self.or_bitlk {
            options = options.luks(None);
        }
        if let Some(path) = &self.header {
            options = options.header(path);
        }
        if let Some(copy) = self.header_copy {
            options = options.header_copy(copy);
        }
        if let Some(keyslot) = self.key_slot {
            options = options.keyslot(keyslot);
        }
        Ok(options)
    }
}

impl TcryptSpec {
    fn options(&self, options: Options, is_written: bool) -> Result<Options, Failure> {
        if self.hidden.is_some() && self.kind != TcryptKind::Normal {
            return Err(Failure::failed(
                "--protect-hidden is for the outer volume; leave it out to open the hidden volume \
                 or a system",
            ));
        }
        if self.hidden.is_some() && !is_written {
            return Err(Failure::failed(
                "--protect-hidden is for a volume that is written: with --read-only, and in a \
                 command that only reads, nothing can change the hidden volume",
            ));
        }
        let keyfiles = contents(&self.keyfiles)?;
        let kind = self.kind;
        let backup = self.backup;
        let pim = self.pim;
        let tcrypt = TcryptOptions { kind, backup, pim, keyfiles, ..TcryptOptions::default() };
        Ok(options.kdf_limits(self.limits).tcrypt(tcrypt))
    }
}

impl TcryptSpec {
    /// Files with secrets beside the passphrase.
    fn paths(&self) -> Vec<&Path> {
        let hidden = self.hidden.as_ref();
        let of_hidden = hidden.into_iter().flat_map(|hidden| &hidden.keyfiles);
        let keyfiles = self.keyfiles.iter().chain(of_hidden).map(PathBuf::as_path);
        keyfiles.chain(hidden.and_then(|hidden| hidden.key.path())).collect()
    }
}

impl HiddenSpec {
    /// Reads its secrets.
    fn read(&self, place: &str, stdin_use: StdinUse) -> Result<HiddenKey, Failure> {
        let what = hidden_in(place);
        if self.key.has_no_source(stdin_use) {
            return Err(stdin_is_taken(&what, "--protect-hidden-key-file FILE"));
        }
        let passphrase = self.key.read(&what, stdin_use)?;
        Ok(HiddenKey { passphrase, pim: self.pim, keyfiles: contents(&self.keyfiles)? })
    }
}

/// The hidden volume in questions and errors.
fn hidden_in(place: &str) -> String {
    format!("the hidden volume in {place}")
}

/// The contents of keyfiles, as far as they count.
fn contents(keyfiles: &[PathBuf]) -> Result<Vec<SecretBytes>, Failure> {
    let content = |path: &PathBuf| {
        let file = KeyFile::from(path.clone());
        Ok(file.read_at_most(TCRYPT_KEYFILE_LEN_BYTES)?)
    };
    keyfiles.iter().map(content).collect()
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
    fn key(&self, key: &KeyInput, place: &str, stdin_use: StdinUse) -> Result<Key, Failure> {
        match key.source {
            KeySource::Ask | KeySource::Stdin | KeySource::Command(_) if self.hash.is_none() => {
                Err(Failure::failed(format!(
                    "{place}: --hash is missing: it names the hash that derives the key from the \
                     passphrase; --hash plain takes the passphrase itself"
                )))
            }
            KeySource::Ask | KeySource::Stdin | KeySource::Command(_) => {
                Ok(Key::Passphrase(key.read(place, stdin_use)?))
            }
            KeySource::File(_) | KeySource::Descriptor(_) | KeySource::Credential(_) => {
                if self.hash.is_some() {
                    say("warning: --hash is ignored: a key file is the key itself");
                }
                let key_len_bytes = self.key_size_bits as usize / 8;
                Ok(Key::File(key.read_at_most(place, stdin_use, key_len_bytes)?))
            }
        }
    }

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
    /// Derives the key. At a terminal, the user may try again.
    pub(crate) fn unlock(mut self) -> Result<Unlocked, Failure> {
        let options = self.options;
        let locked = self.locked;
        let Some(mut key) = self.key.take() else {
            let key = match self.opened {
                Some(key) => key,
                None => locked.unlock_keyless()?,
            };
            return Ok(Unlocked { options, locked, key });
        };
        let asks = self.input.asks_a_person(self.stdin_use) && self.detects_wrong_key;
        let mut tries = Tries { left: if asks { TRIES } else { 1 } };
        let opened = loop {
            match locked.unlock(&key) {
                Ok(opened) => break opened,
                Err(error) => tries.again(error)?,
            }
            key = Key::Passphrase(self.input.read(&self.place, self.stdin_use)?);
        };
        let (Some(mut hidden), Some(input)) = (self.hidden, self.hidden_input) else {
            return Ok(Unlocked { options, locked, key: opened });
        };
        let mut tries = Tries { left: if input.asks_a_person(self.stdin_use) { TRIES } else { 1 } };
        loop {
            match locked.protect_hidden(&opened, &hidden) {
                Ok(key) => return Ok(Unlocked { options, locked, key }),
                Err(error) => tries.again(error)?,
            }
            hidden.passphrase = input.read(&hidden_in(&self.place), self.stdin_use)?;
        }
    }
}

/// The tries of a person for a passphrase.
struct Tries {
    left: u32,
}

impl Tries {
    /// Says that the passphrase is wrong; fails with the error if no try is left.
    fn again(&mut self, error: Error) -> Result<(), Failure> {
        if !error.is_wrong_key() || self.left <= 1 {
            return Err(error.into());
        }
        self.left -= 1;
        say(&format!("{}; try again", shown(&error)));
        Ok(())
    }
}

impl Unlocked {
    /// Sectors that are never written.
    pub(crate) fn protected(&self) -> &[Range<u64>] {
        self.key.protected()
    }

    /// The volume, ready for reads and writes.
    pub(crate) fn start(self) -> Result<Volume, Failure> {
        Ok(self.locked.start(self.key)?)
    }
}

impl VolumeSpec {
    /// The files that requests or commands write: image or device, detached header.
    pub(crate) fn disks(&self) -> Vec<&Path> {
        let header = match &self.kind {
            VolumeFormat::Table => return Vec::new(),
            VolumeFormat::Luks(luks) => luks.header.as_deref(),
            VolumeFormat::Plain(_) | VolumeFormat::Tcrypt(_) | VolumeFormat::Bitlk(_) => None,
        };
        std::iter::once(self.path.as_path()).chain(header).collect()
    }

    /// Whether the key is asked for at each opening: nothing else gives it.
    pub(crate) fn asks_for_key(&self) -> bool {
        match (&self.key.source, &self.kind) {
            (KeySource::Stdin | KeySource::Descriptor(_), _) => true,
            (KeySource::Ask, VolumeFormat::Table) => false,
            (KeySource::Ask, VolumeFormat::Luks(luks)) => !luks.tokens.only,
            (KeySource::Ask, _) => true,
            _ => false,
        }
    }

    /// Whether a token may give the key.
    pub(crate) fn may_use_tokens(&self) -> bool {
        match &self.kind {
            VolumeFormat::Luks(luks) => self.key.source == KeySource::Ask && !luks.tokens.never,
            _ => false,
        }
    }

    /// The disks that are opened with the volume, those of a table too. They change with its file.
    pub(crate) fn disks_to_open(&self) -> Result<Vec<PathBuf>, Failure> {
        let Some(path) = self.table() else {
            return Ok(self.disks().into_iter().map(Path::to_owned).collect());
        };
        let failed = |problem: String| Failure::failed(problem).at(path.display());
        // A pipe has its text once, and could keep the server waiting.
        let metadata = path.metadata().map_err(|error| failed(error.to_string()))?;
        if !metadata.is_file() {
            return Err(failed("the table is no regular file".into()));
        }
        let mapped = table::parse(&read_table(path)?, &[]);
        Ok(disks_of(&mapped.map_err(|error| failed(error.to_string()))?))
    }

    /// The file of a table.
    pub(crate) fn table(&self) -> Option<&Path> {
        matches!(self.kind, VolumeFormat::Table).then_some(&self.path)
    }

    /// Files of the volume: image, device or table, detached header, key file.
    pub(crate) fn paths(&self) -> Vec<&Path> {
        let header = match &self.kind {
            VolumeFormat::Luks(luks) => luks.header.as_deref(),
            VolumeFormat::Plain(_)
            | VolumeFormat::Tcrypt(_)
            | VolumeFormat::Bitlk(_)
            | VolumeFormat::Table => None,
        };
        let key = self.key.path();
        let of_tcrypt = match &self.kind {
            VolumeFormat::Tcrypt(tcrypt) => tcrypt.paths(),
            VolumeFormat::Luks(_)
            | VolumeFormat::Plain(_)
            | VolumeFormat::Bitlk(_)
            | VolumeFormat::Table => Vec::new(),
        };
        let named = [Some(self.path.as_path()), header, key].into_iter().flatten();
        named.chain(of_tcrypt).collect()
    }
}

/// The disks of a table: all that is no earlier device of it.
fn disks_of(mapped: &[MappedDevice]) -> Vec<PathBuf> {
    let mut disks = BTreeSet::new();
    for (place, device) in mapped.iter().enumerate() {
        let is_mapped = |path: &str| {
            let name = path.strip_prefix(MAPPER_FOLDER);
            name.is_some_and(|name| mapped[..place].iter().any(|earlier| earlier.name == name))
        };
        for line in &device.lines {
            disks.extend(line.needs().paths().filter(|path| !is_mapped(path)).map(PathBuf::from));
        }
    }
    disks.into_iter().collect()
}

/// The text of a table; it contains keys.
pub(crate) fn read_table(path: &Path) -> Result<SecretBytes, Failure> {
    let text = read_secret(path, "table")?;
    if text.as_slice().iter().all(u8::is_ascii_whitespace) {
        return Err(Failure::failed(format!(
            "the table {} is empty; it needs lines of START LENGTH TARGET ARGUMENTS",
            path.display()
        )));
    }
    Ok(text)
}

/// Warns before the header of a device is changed, if it cannot be locked against cryptsetup.
pub(crate) fn warn_without_lock(path: &Path, place: &Place) {
    warn_of_lock(path, header::lock_warning(path, place).as_deref());
}

pub(crate) fn warn_of_lock(path: &Path, warning: Option<&str>) {
    if let Some(warning) = warning {
        say(&format!("warning: {}: {warning}", path.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_of_a_table_are_all_that_is_no_earlier_device_of_it() {
        let text = "low: 0 8 linear low 0\ntop: 0 4 linear /dev/mapper/low 0\n\
                    top: 4 4 linear /dev/mapper/other 0\n";
        let mapped = table::parse(&SecretBytes::copy_of(text.as_bytes()), &[]).unwrap();
        assert_eq!(disks_of(&mapped), ["/dev/mapper/other", "low"].map(PathBuf::from));
    }
}
