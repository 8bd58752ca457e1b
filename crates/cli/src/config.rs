//! `serve --config FILE`: several volumes as named exports, in TOML.
//!
//! ```toml
//! socket = "/run/blockyard/disks.sock"   # and/or: listen = "127.0.0.1:10809"
//! tls_certificates = "pki"               # with TLS; or: insecure = true
//! threads = 4                            # cipher workers of each volume
//! socket_group = "kvm"                   # who may connect: or socket_mode, socket_owner
//! pid_file = "/run/blockyard/disks.pid"
//!
//! [exports.home]                         # name of the export
//! volume = "home.img"                    # or: table = "home.table"
//! key_file = "keys/home"                 # or key_fd, key_command, key_credential;
//!                                        # default: asked for at the terminal
//!
//! [exports.archive]
//! volume = "archive.img"
//! type = "luks2"
//! header = "archive.header"
//! key_file = "keys/archive"
//! read_only = true
//! elevator = "deadline,fifo_batch=8"     # order of its I/O
//! ioprio = "be:4"
//! iops_limit = 500                       # of all its clients; bps_limit and burst too
//! aliases = { archive-idle = "idle" }    # other names, each with an I/O priority
//! vhost_user = "/run/blockyard/archive"  # socket of a virtual machine
//! ```
//!
//! Keys are the options' names with `_` for `-`. Relative paths start at the file's own folder. An
//! unknown key, a repeated name or a value of the wrong type is an error with its line number. A
//! passphrase has no place in this file; errors never quote it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::num::NonZeroU64;
use std::ops::Range;
use std::path::{Path, PathBuf};

use blockyard::DeviceOptions;
use blockyard::RateLimits;
use blockyard::keys::{KeyCommand, TokenChoice};
use blockyard_crypt::luks2;
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::priority::Priority;
use blockyard_host::pages::BounceChoice;
use blockyard_host::server::{CONNECTIONS_MAX, QUEUES_USUAL, RING_LEN_MAX};
use blockyard_host::volume::{PipelineChoice, Scheduling};
use serde::Deserialize;

use crate::args::{PlainArgs, ProtectArgs, TcryptArgs, VolumeType};
use crate::commands::serve::THREADS_MAX;
use crate::commands::serve::sockets::{AccessArgs, is_private, parse_mode};
use crate::commands::serve::tls::{TlsArgs, TlsMode};
use crate::disk_spec::{DiskSocket, DiskSpec, checked_num_queues, checked_queue_size, disk_name};
use crate::failure::{Failure, printable};
use crate::key::{KeyInput, KeySource};
use crate::scheduling::{Alias, checked_max_sectors, checked_minimum_block, checked_queue_depth};
use crate::size::parse_size;
use crate::volume_spec::{LuksSpec, TokenUse, VolumeFormat, VolumeSpec};

mod rate;

pub(crate) use rate::RateSpec;
use rate::{GroupText, groups};

/// Limit of the file's length: some thousand exports.
const CONFIG_LEN_MAX_BYTES: u64 = 1 << 20;

/// Contents of a file.
#[derive(Debug)]
pub(crate) struct Config {
    /// Unix socket to listen on.
    pub(crate) socket: Option<PathBuf>,
    /// TCP address to listen on.
    pub(crate) listen: Option<String>,
    /// TLS of both.
    pub(crate) tls: TlsArgs,
    /// Cipher workers of each volume.
    pub(crate) threads: Option<u16>,
    /// Limit of connections.
    pub(crate) max_connections: Option<u16>,
    /// Access to the sockets.
    pub(crate) access: AccessArgs,
    /// File for the process ID.
    pub(crate) pid_file: Option<PathBuf>,
    /// Limits that exports share.
    pub(crate) limit_groups: BTreeMap<String, RateLimits>,
    /// The exports, in the order of their names.
    pub(crate) exports: Vec<ExportSpec>,
}

/// One export: a volume under a name.
// 13 fields: one for each group of keys.
#[derive(Debug)]
pub(crate) struct ExportSpec {
    /// Name for clients.
    pub(crate) name: String,
    /// The volume.
    pub(crate) volume: VolumeSpec,
    /// Clients may not write.
    pub(crate) read_only: bool,
    /// Other servers may write too.
    pub(crate) shared: bool,
    /// TRIM is passed down.
    pub(crate) allow_discards: bool,
    /// Minimum block size of clients, if chosen.
    pub(crate) minimum_block_bytes: Option<u32>,
    /// Order of its requests.
    pub(crate) scheduling: Scheduling,
    /// Placement of its ciphers.
    pub(crate) pipeline: PipelineChoice,
    /// Bounce memory of its writes.
    pub(crate) bounce: BounceChoice,
    /// I/O priority of clients that open it by this name.
    pub(crate) priority: Priority,
    /// Limits of the rate, with its other names.
    pub(crate) rate: RateSpec,
    /// Its other names.
    pub(crate) aliases: Vec<Alias>,
    /// It is a disk of a virtual machine too.
    pub(crate) disk: Option<DiskSpec>,
}

// 15 fields: one for each key of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigText {
    socket: Option<PathBuf>,
    listen: Option<String>,
    tls: Option<TlsMode>,
    tls_certificates: Option<PathBuf>,
    #[serde(default)]
    tls_verify_peer: bool,
    tls_authz: Option<String>,
    #[serde(default)]
    insecure: bool,
    threads: Option<u16>,
    max_connections: Option<u16>,
    socket_mode: Option<String>,
    socket_owner: Option<String>,
    socket_group: Option<String>,
    pid_file: Option<PathBuf>,
    #[serde(default)]
    limit_groups: BTreeMap<String, GroupText>,
    exports: BTreeMap<String, ExportText>,
}

// 56 fields: one for each key of an export. serde cannot refuse unknown keys, and name the line of
// a wrong value, in flattened parts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportText {
    volume: Option<PathBuf>,
    table: Option<PathBuf>,
    partition: Option<String>,
    #[serde(rename = "type")]
    kind: Option<TypeText>,
    header: Option<PathBuf>,
    header_copy: Option<HeaderCopyText>,
    key_slot: Option<u32>,
    max_kdf_memory: Option<SizeText>,
    max_kdf_time: Option<u64>,
    key_file: Option<PathBuf>,
    keyfile_offset: Option<SizeText>,
    keyfile_size: Option<SizeText>,
    key_fd: Option<i32>,
    key_command: Option<String>,
    key_credential: Option<String>,
    #[serde(default)]
    no_token: bool,
    #[serde(default)]
    token_only: bool,
    token_id: Option<u32>,
    token_type: Option<String>,
    #[serde(default)]
    read_only: bool,
    #[serde(default)]
    shared: bool,
    #[serde(default)]
    allow_discards: bool,
    minimum_block: Option<u32>,
    #[serde(default)]
    direct: bool,
    elevator: Option<String>,
    queue_depth: Option<u32>,
    max_sectors: Option<u32>,
    pipeline: Option<String>,
    pages: Option<String>,
    ioprio: Option<String>,
    iops_limit: Option<NonZeroU64>,
    bps_limit: Option<SizeText>,
    burst: Option<String>,
    limit_group: Option<String>,
    #[serde(default)]
    aliases: BTreeMap<String, String>,
    vhost_user: Option<PathBuf>,
    num_queues: Option<u16>,
    queue_size: Option<u16>,
    poll: Option<String>,
    cipher: Option<String>,
    key_size: Option<u32>,
    hash: Option<String>,
    offset: Option<u64>,
    skip: Option<u64>,
    size: Option<u64>,
    sector_size: Option<u32>,
    #[serde(default)]
    iv_large_sectors: bool,
    #[serde(default)]
    tcrypt_hidden: bool,
    #[serde(default)]
    tcrypt_system: bool,
    #[serde(default)]
    tcrypt_backup: bool,
    #[serde(default)]
    tcrypt_keyfiles: Vec<PathBuf>,
    veracrypt_pim: Option<u32>,
    #[serde(default)]
    protect_hidden: bool,
    protect_hidden_key_file: Option<PathBuf>,
    #[serde(default)]
    protect_hidden_tcrypt_keyfiles: Vec<PathBuf>,
    protect_hidden_veracrypt_pim: Option<u32>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum TypeText {
    Luks,
    Luks1,
    Luks2,
    Tcrypt,
    Bitlk,
    Plain,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum HeaderCopyText {
    Primary,
    Secondary,
}

/// A size as a number of bytes or as text with a suffix.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum SizeText {
    Bytes(u64),
    Text(String),
}

impl Config {
    /// Reads and checks a file; opens none of the volumes.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let place = path.display().to_string();
        let unreadable = |error: &dyn fmt::Display| {
            Failure::failed(format!("cannot read the configuration {place}: {error}"))
        };
        let len_bytes = fs::metadata(path).map_err(|error| unreadable(&error))?.len();
        if len_bytes > CONFIG_LEN_MAX_BYTES {
            return Err(unreadable(&format!("it has {len_bytes} bytes, more than 1 MiB")));
        }
        let text = fs::read_to_string(path).map_err(|error| unreadable(&error))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::parse(&text, folder, &place)
    }

    fn parse(text: &str, folder: &Path, place: &str) -> Result<Self, Failure> {
        let parsed: ConfigText =
            toml::from_str(text).map_err(|error| explained(&error, text, place))?;
        if parsed.exports.is_empty() {
            return Err(Failure::failed(format!(
                "{place}: nothing to serve; each volume is a table [exports.NAME]"
            )));
        }
        if let Some(threads) = parsed.threads.filter(|&threads| i64::from(threads) > THREADS_MAX) {
            return Err(Failure::failed(format!(
                "{place}: threads = {threads} is more than {THREADS_MAX}"
            )));
        }
        let connections = parsed.max_connections.unwrap_or(1);
        if !(1..=CONNECTIONS_MAX).contains(&usize::from(connections)) {
            return Err(Failure::failed(format!(
                "{place}: max_connections = {connections}; it must be 1 to {CONNECTIONS_MAX}"
            )));
        }
        let socket_mode = parsed.socket_mode.as_deref().map(parse_mode).transpose();
        let socket_mode = socket_mode.map_err(|error| of_key("socket_mode", &error).at(place))?;
        let mut exports = Vec::with_capacity(parsed.exports.len());
        for (name, export) in parsed.exports {
            let at = format!("{place}: exports.{}", printable(&name));
            check_export_name(&name).map_err(|failure| failure.at(&at))?;
            exports.push(export.spec(name, folder).map_err(|failure| failure.at(&at))?);
        }
        let limit_groups = groups(&parsed.limit_groups, &exports, place)?;
        check_names(&exports).map_err(|failure| failure.at(place))?;
        let socket = parsed
            .socket
            .map(|socket| if is_private(&socket) { socket } else { folder.join(socket) });
        check_sockets(socket.as_deref(), &exports).map_err(|failure| failure.at(place))?;
        let tls = TlsArgs {
            tls: parsed.tls,
            tls_certificates: parsed.tls_certificates.map(|dir| folder.join(dir)),
            tls_verify_peer: parsed.tls_verify_peer,
            // A list is a file, and a file has a folder; a name has none.
            tls_authz: parsed.tls_authz.map(|authz| {
                let is_file = authz.contains('/');
                if is_file { folder.join(authz).display().to_string() } else { authz }
            }),
            insecure: parsed.insecure,
        };
        Ok(Self {
            socket,
            listen: parsed.listen,
            tls,
            threads: parsed.threads,
            max_connections: parsed.max_connections,
            access: AccessArgs {
                socket_mode,
                socket_owner: parsed.socket_owner,
                socket_group: parsed.socket_group,
            },
            pid_file: parsed.pid_file.map(|path| folder.join(path)),
            limit_groups,
            exports,
        })
    }
}

impl ExportText {
    fn spec(self, name: String, folder: &Path) -> Result<ExportSpec, Failure> {
        let (path, is_table) = match (&self.volume, &self.table) {
            (Some(volume), None) => (folder.join(volume), false),
            (None, Some(table)) => (folder.join(table), true),
            _ => return Err(Failure::failed("give either `volume` or `table`")),
        };
        let kind = if is_table { self.table_kind(folder)? } else { self.volume_kind(folder)? };
        let key = self.key(folder)?;
        let place = kind.place(self.partition.as_deref(), self.offset)?;
        let minimum_block = self.minimum_block.map(checked_minimum_block).transpose();
        let rate = self.rate()?;
        let disk = self.disk(folder, disk_name(&name, &path))?;
        Ok(ExportSpec {
            name,
            volume: VolumeSpec { path, place, kind, key, direct: self.direct },
            read_only: self.read_only,
            shared: self.shared,
            allow_discards: self.allow_discards,
            minimum_block_bytes: minimum_block.map_err(|error| of_key("minimum_block", &error))?,
            scheduling: self.scheduling()?,
            pipeline: self.pipeline()?,
            bounce: self.bounce()?,
            priority: self.priority()?,
            rate,
            aliases: self.aliases()?,
            disk,
        })
    }

    fn disk(&self, folder: &Path, name: String) -> Result<Option<DiskSpec>, Failure> {
        let Some(path) = &self.vhost_user else {
            if self.num_queues.is_some() || self.queue_size.is_some() || self.poll.is_some() {
                return Err(Failure::failed(
                    "`num_queues`, `queue_size` and `poll` are for a disk of a virtual machine; \
                     name its socket with `vhost_user`",
                ));
            }
            return Ok(None);
        };
        let queues = checked_num_queues(self.num_queues.unwrap_or(QUEUES_USUAL));
        let queues = queues.map_err(|error| of_key("num_queues", &error))?;
        let ring_len_max = checked_queue_size(self.queue_size.unwrap_or(RING_LEN_MAX));
        let ring_len_max = ring_len_max.map_err(|error| of_key("queue_size", &error))?;
        let polling = self.poll.as_deref().map(str::parse).transpose();
        let polling = polling.map_err(|error: String| of_key("poll", &error))?.unwrap_or_default();
        let options = DeviceOptions { name, queues, ring_len_max, polling };
        Ok(Some(DiskSpec { socket: DiskSocket::Path(folder.join(path)), options }))
    }

    fn scheduling(&self) -> Result<Scheduling, Failure> {
        let default = Scheduling::default();
        let elevator = self.elevator.as_deref().map(ElevatorSpec::parse).transpose();
        let queue_depth = self.queue_depth.map(checked_queue_depth).transpose();
        let max_sectors = self.max_sectors.map(checked_max_sectors).transpose();
        Ok(Scheduling {
            elevator: elevator.map_err(|error| of_key("elevator", &error))?,
            queue_depth: queue_depth.map_err(|error| of_key("queue_depth", &error))?,
            max_sectors: max_sectors
                .map_err(|error| of_key("max_sectors", &error))?
                .unwrap_or(default.max_sectors),
        })
    }

    fn pipeline(&self) -> Result<PipelineChoice, Failure> {
        let pipeline = self.pipeline.as_deref().map(PipelineChoice::parse).transpose();
        Ok(pipeline.map_err(|error| of_key("pipeline", &error))?.unwrap_or_default())
    }

    fn bounce(&self) -> Result<BounceChoice, Failure> {
        let bounce = self.pages.as_deref().map(BounceChoice::parse).transpose();
        Ok(bounce.map_err(|error| of_key("pages", &error))?.unwrap_or_default())
    }

    fn priority(&self) -> Result<Priority, Failure> {
        let priority = self.ioprio.as_deref().map(Priority::parse).transpose();
        Ok(priority.map_err(|error| of_key("ioprio", &error))?.unwrap_or_default())
    }

    fn aliases(&self) -> Result<Vec<Alias>, Failure> {
        let alias = |(name, priority): (&String, &String)| {
            let place = format!("aliases.{}", printable(name));
            Alias::new(name, priority).map_err(|error| of_key(&place, &error))
        };
        self.aliases.iter().map(alias).collect()
    }

    fn table_kind(&self, folder: &Path) -> Result<VolumeFormat, Failure> {
        let luks_or_key = self.header.is_some()
            || self.header_copy.is_some()
            || self.key_slot.is_some()
            || self.key_file.is_some()
            || self.key_fd.is_some()
            || self.key_command.is_some()
            || self.key_credential.is_some()
            || self.tokens().is_asked_for()
            || self.cipher.is_some();
        if luks_or_key {
            return Err(Failure::failed(
                "a `table` says its ciphers and keys itself; remove header, header_copy, key_slot, \
                 key_file, key_fd, key_command, key_credential, the token's keys and cipher",
            ));
        }
        if let Some(option) = self.tcrypt(folder).first_given() {
            return Err(Failure::failed(format!(
                "{option} is for type = \"tcrypt\", and a `table` has no type; remove it"
            )));
        }
        Ok(VolumeFormat::Table)
    }

    fn volume_kind(&self, folder: &Path) -> Result<VolumeFormat, Failure> {
        let plain = PlainArgs {
            cipher: self.cipher.clone(),
            key_size: self.key_size,
            hash: self.hash.clone(),
            offset: self.offset,
            skip: self.skip,
            size: self.size,
            sector_size: self.sector_size,
            iv_large_sectors: self.iv_large_sectors,
        };
        let luks = LuksSpec {
            version: None,
            or_bitlk: false,
            header: self.header.as_ref().map(|header| folder.join(header)),
            header_copy: self.header_copy.map(|copy| match copy {
                HeaderCopyText::Primary => luks2::Copy::Primary,
                HeaderCopyText::Secondary => luks2::Copy::Secondary,
            }),
            key_slot: self.key_slot,
            max_kdf_memory_bytes: self.max_kdf_memory.as_ref().map(SizeText::bytes).transpose()?,
            max_kdf_seconds: self.max_kdf_time,
            tokens: self.tokens(),
        };
        VolumeFormat::new(self.kind.map(Into::into), luks, &plain, &self.tcrypt(folder))
    }

    fn tcrypt(&self, folder: &Path) -> TcryptArgs {
        let all = |paths: &[PathBuf]| paths.iter().map(|path| folder.join(path)).collect();
        TcryptArgs {
            tcrypt_hidden: self.tcrypt_hidden,
            tcrypt_system: self.tcrypt_system,
            tcrypt_backup: self.tcrypt_backup,
            tcrypt_keyfile: all(&self.tcrypt_keyfiles),
            veracrypt_pim: self.veracrypt_pim,
            protect: ProtectArgs {
                protect_hidden: self.protect_hidden,
                protect_hidden_key_file: self
                    .protect_hidden_key_file
                    .as_ref()
                    .map(|path| folder.join(path)),
                protect_hidden_tcrypt_keyfile: all(&self.protect_hidden_tcrypt_keyfiles),
                protect_hidden_veracrypt_pim: self.protect_hidden_veracrypt_pim,
            },
        }
    }

    fn tokens(&self) -> TokenUse {
        let choice = TokenChoice { number: self.token_id, kind: self.token_type.clone() };
        TokenUse { never: self.no_token, only: self.token_only, choice }
    }

    fn key(&self, folder: &Path) -> Result<KeyInput, Failure> {
        let command = self.key_command.as_deref().map(KeyCommand::parse).transpose();
        let command = command.map_err(|error| of_key("key_command", &Failure::from(error)))?;
        if command.is_some() && (self.keyfile_offset.is_some() || self.keyfile_size.is_some()) {
            return Err(Failure::failed(
                "`keyfile_offset` and `keyfile_size` are for a key file; the output of \
                 `key_command` is used whole",
            ));
        }
        let given = [
            self.key_file.as_ref().map(|path| KeySource::File(folder.join(path))),
            self.key_fd.map(KeySource::Descriptor),
            command.map(KeySource::Command),
            self.key_credential.clone().map(KeySource::Credential),
        ];
        let mut given = given.into_iter().flatten();
        let source = given.next().unwrap_or(KeySource::Ask);
        if given.next().is_some() {
            return Err(Failure::failed(
                "give only one of `key_file`, `key_fd`, `key_command` and `key_credential`",
            ));
        }
        let tokens = self.tokens();
        if tokens.never && tokens.is_asked_for() {
            return Err(Failure::failed(
                "`no_token` tries no token; remove it or `token_only`, `token_id` and `token_type`",
            ));
        }
        if source != KeySource::Ask && tokens.is_asked_for() {
            return Err(Failure::failed(
                "`token_only`, `token_id` and `token_type` are for an export without another \
                 source of its key",
            ));
        }
        let offset_bytes = self.keyfile_offset.as_ref().map_or(Ok(0), SizeText::bytes)?;
        let len_bytes = self.keyfile_size.as_ref().map(SizeText::bytes).transpose()?;
        Ok(KeyInput { source, offset_bytes, len_bytes })
    }
}

impl From<TypeText> for VolumeType {
    fn from(text: TypeText) -> Self {
        match text {
            TypeText::Luks => Self::Luks,
            TypeText::Luks1 => Self::Luks1,
            TypeText::Luks2 => Self::Luks2,
            TypeText::Tcrypt => Self::Tcrypt,
            TypeText::Bitlk => Self::Bitlk,
            TypeText::Plain => Self::Plain,
        }
    }
}

impl SizeText {
    fn bytes(&self) -> Result<u64, Failure> {
        match self {
            Self::Bytes(len_bytes) => Ok(*len_bytes),
            Self::Text(text) => {
                parse_size(text).map_err(|error| Failure::failed(format!("{text:?}: {error}")))
            }
        }
    }
}

/// Checks that NBD can carry this name.
pub(crate) fn check_export_name(name: &str) -> Result<(), Failure> {
    const NAME_LEN_MAX_BYTES: usize = 4096;
    if name.len() > NAME_LEN_MAX_BYTES {
        return Err(Failure::failed(format!(
            "this export name has {} bytes, and NBD carries at most {NAME_LEN_MAX_BYTES}",
            name.len()
        )));
    }
    if name.contains('\0') {
        return Err(Failure::failed("an export name cannot hold a NUL character"));
    }
    Ok(())
}

/// Exports and aliases share one list of names.
pub(crate) fn check_names(exports: &[ExportSpec]) -> Result<(), Failure> {
    let mut seen = BTreeSet::new();
    let names = exports.iter().flat_map(|export| {
        let aliases = export.aliases.iter().map(|alias| &alias.name);
        std::iter::once(&export.name).chain(aliases)
    });
    for name in names {
        if !seen.insert(name) {
            return Err(Failure::failed(format!(
                "two exports or aliases have the name {name:?}; give each its own"
            )));
        }
    }
    Ok(())
}

/// A socket belongs to one volume, and to one protocol.
fn check_sockets(nbd: Option<&Path>, exports: &[ExportSpec]) -> Result<(), Failure> {
    let disks = exports.iter().filter_map(|export| export.disk.as_ref());
    let mut seen = BTreeSet::new();
    let paths = disks.filter_map(|disk| match &disk.socket {
        DiskSocket::Path(path) => Some(path.as_path()),
        DiskSocket::Inherited(..) => None,
    });
    for path in paths.chain(nbd) {
        if !seen.insert(path) {
            return Err(Failure::failed(format!(
                "the socket {} is named twice; give each `vhost_user` its own path",
                path.display()
            )));
        }
    }
    Ok(())
}

/// An invalid value of a key.
fn of_key(key: &str, error: &dyn fmt::Display) -> Failure {
    Failure::failed(printable(&format!("{key}: {error}")))
}

/// The parser's error with its place, but without the quoted line: it may be a secret.
fn explained(error: &toml::de::Error, text: &str, place: &str) -> Failure {
    let position = error.span().map_or_else(String::new, |span| position_of(text, &span));
    let message = error.message();
    let misplaced_secret = ["passphrase", "password", "key", "secret"]
        .iter()
        .any(|word| message.starts_with(&format!("unknown field `{word}`")));
    if misplaced_secret {
        return Failure::failed(format!(
            "{place}{position}: a passphrase or key has no place in this file; put it into a file \
             of its own and name it with `key_file`"
        ));
    }
    Failure::failed(format!("{place}{position}: {}", printable(message)))
}

/// `:LINE:COLUMN`, counted from 1.
fn position_of(text: &str, span: &Range<usize>) -> String {
    let before = text.get(..span.start).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
    format!(":{line}:{column}")
}

#[cfg(test)]
mod tests {
    use blockyard::Polling;

    use super::*;

    fn parse(text: &str) -> Result<Config, Failure> {
        Config::parse(text, Path::new("/etc/yard"), "disks.toml")
    }

    fn refusal(text: &str) -> String {
        parse(text).unwrap_err().message
    }

    #[test]
    fn config_with_relative_paths_starts_at_its_own_folder() {
        let config = parse(
            "socket = 'disks.sock'\nthreads = 3\n\
             [exports.home]\nvolume = 'home.img'\nkey_file = 'keys/home'\nkeyfile_size = '4K'\n\
             [exports.\"\"]\nvolume = '/srv/raw'\ntype = 'plain'\ncipher = 'aes-xts-plain64'\n\
             key_size = 512\nkey_fd = 3\nread_only = true\n",
        )
        .unwrap();
        assert_eq!(config.socket.as_deref(), Some(Path::new("/etc/yard/disks.sock")));
        assert_eq!(config.threads, Some(3));
        let names: Vec<_> = config.exports.iter().map(|export| export.name.as_str()).collect();
        assert_eq!(names, ["", "home"]);
        let home = &config.exports[1].volume;
        assert_eq!(home.path, Path::new("/etc/yard/home.img"));
        assert_eq!(home.key.source, KeySource::File("/etc/yard/keys/home".into()));
        assert_eq!(home.key.len_bytes, Some(4096));
        let raw = &config.exports[0];
        assert_eq!(raw.volume.path, Path::new("/srv/raw"));
        assert_eq!(raw.volume.key.source, KeySource::Descriptor(3));
        assert!(raw.read_only && matches!(raw.volume.kind, VolumeFormat::Plain(_)));
    }

    #[test]
    fn config_with_scheduling_has_what_the_options_have() {
        let config = parse(
            "[exports.home]\nvolume = 'a'\nelevator = 'noop'\nqueue_depth = 4\n\
             max_sectors = 1024\npipeline = 'linux'\npages = 'compound'\nioprio = 'be:2'\n\
             [exports.home.aliases]\nhome-rt = 'rt:0'\nhome-idle = 'idle'\n\
             [exports.raw]\nvolume = 'b'\n",
        )
        .unwrap();
        let home = &config.exports[0];
        assert_eq!(home.scheduling.elevator, Some(ElevatorSpec::parse("noop").unwrap()));
        assert_eq!((home.scheduling.queue_depth, home.scheduling.max_sectors), (Some(4), 1024));
        assert_eq!(home.priority, Priority::best_effort(2));
        assert_eq!(home.pipeline, PipelineChoice::Linux);
        assert!(
            matches!(home.bounce, BounceChoice::Pages(spec) if spec.allocator.name == "compound")
        );
        let aliases: Vec<_> = home.aliases.iter().map(|alias| alias.name.as_str()).collect();
        assert_eq!(aliases, ["home-idle", "home-rt"]);
        assert_eq!(home.aliases[1].priority, Priority::real_time(0));
        let raw = &config.exports[1];
        assert_eq!(raw.scheduling, Scheduling::default());
        assert!(raw.priority == Priority::default() && raw.aliases.is_empty());
    }

    #[test]
    fn config_with_an_alias_that_is_taken_names_it() {
        for text in [
            "[exports.home]\nvolume='a'\naliases={home='idle'}\n",
            "[exports.a]\nvolume='a'\naliases={home='idle'}\n[exports.home]\nvolume='b'\n",
            "[exports.a]\nvolume='a'\naliases={home='idle'}\n\
             [exports.b]\nvolume='b'\naliases={home='rt'}\n",
        ] {
            let message = refusal(text);
            assert!(
                message.starts_with("disks.toml: ") && message.contains("\"home\""),
                "{message}"
            );
        }
    }

    #[test]
    fn config_with_disks_has_what_the_options_have() {
        let config = parse(
            "[exports.home]\nvolume = 'a'\nvhost_user = 'v'\nnum_queues = 4\nqueue_size = 128\n\
             poll = 'always'\n\
             [exports.\"\"]\nvolume = 'b.img'\nvhost_user = '/run/w'\n",
        )
        .unwrap();
        let disks: Vec<_> = config.exports.iter().flat_map(|export| &export.disk).collect();
        let sockets: Vec<_> = disks.iter().map(|disk| disk.socket.to_string()).collect();
        assert_eq!(sockets, ["vhost-user socket /run/w", "vhost-user socket /etc/yard/v"]);
        let usual = DeviceOptions { name: "b.img".into(), ..DeviceOptions::default() };
        let polling = Polling::Always;
        let home = DeviceOptions { name: "home".into(), queues: 4, ring_len_max: 128, polling };
        assert_eq!([&disks[0].options, &disks[1].options], [&usual, &home]);
    }

    #[test]
    fn config_with_a_socket_twice_names_it() {
        for text in [
            "socket='v'\n[exports.a]\nvolume='a'\nvhost_user='/etc/yard/v'\n",
            "[exports.a]\nvolume='a'\nvhost_user='v'\n\
             [exports.b]\nvolume='b'\nvhost_user='v'\n",
        ] {
            let message = refusal(text);
            assert!(message.starts_with("disks.toml: the socket /etc/yard/v is"), "{message}");
        }
    }

    #[test]
    fn config_of_the_documentation_is_one() {
        let page = include_str!("../../../docs/cli/config.md");
        let example = page.split("```toml").nth(1).and_then(|rest| rest.split("```").next());
        let config = parse(example.unwrap()).unwrap();
        let names: Vec<_> = config.exports.iter().map(|export| export.name.as_str()).collect();
        assert_eq!(names, ["archive", "home", "scratch", "two disks in one"]);
        assert!(matches!(config.exports[3].volume.kind, VolumeFormat::Table));
    }

    #[test]
    fn config_with_an_unknown_key_names_it_and_its_line() {
        let message = refusal("[exports.home]\nvolume = 'a'\nkeyfile = 'b'\n");
        assert!(message.starts_with("disks.toml:3:1: "), "{message}");
        assert!(message.contains("`keyfile`") && message.contains("`key_file`"), "{message}");
    }

    #[test]
    fn config_with_a_name_twice_names_it_and_its_line() {
        let message =
            refusal("[exports.home]\nvolume = 'a'\n[exports.disk]\nvolume = 'b'\n[exports.home]\n");
        assert!(message.starts_with("disks.toml:5:"), "{message}");
        assert!(message.contains("duplicate"), "{message}");
    }

    #[test]
    fn config_with_a_passphrase_is_refused_without_repeating_it() {
        for key in ["passphrase", "password", "key", "secret"] {
            let message = refusal(&format!("[exports.home]\nvolume = 'a'\n{key} = 'hunter2'\n"));
            assert!(message.starts_with("disks.toml:3:1: "), "{message}");
            assert!(message.contains("key_file"), "{message}");
            assert!(!message.contains("hunter2"), "{message}");
        }
        let message = refusal("[exports.home]\nvolume = 'a'\npassphrase = 'hunter2\n");
        assert!(!message.contains("hunter2"), "{message}");
    }

    #[test]
    fn config_with_contradictions_names_the_export() {
        for (text, word) in [
            ("[exports.home]\n", "`volume` or `table`"),
            ("[exports.home]\nvolume='a'\ntable='b'\n", "`volume` or `table`"),
            ("[exports.home]\nvolume='a'\nkey_file='b'\nkey_fd=3\n", "`key_file`, `key_fd`"),
            ("[exports.home]\nvolume='a'\nkey_command='\"b'\n", "key_command: --key-command"),
            ("[exports.home]\nvolume='a'\nkey_command='b'\nkeyfile_size=3\n", "used whole"),
            ("[exports.home]\nvolume='a'\nkey_file='b'\ntoken_only=true\n", "`token_only`"),
            ("[exports.home]\nvolume='a'\nno_token=true\ntoken_only=true\n", "`no_token`"),
            (
                "[exports.home]\nvolume='a'\ntype='plain'\ncipher='a'\nkey_size=8\ntoken_id=1\n",
                "--token-only",
            ),
            ("[exports.home]\ntable='a'\nkey_file='b'\n", "key_file"),
            ("[exports.home]\nvolume='a'\nskip=3\n", "--skip"),
            ("[exports.home]\nvolume='a'\ntype='plain'\n", "--cipher"),
            ("[exports.home]\nvolume='a'\nkeyfile_size='4X'\n", "4X"),
            ("[exports.home]\nvolume='a'\nelevator='none,a=1'\n", "elevator: none: \"a\""),
            ("[exports.home]\nvolume='a'\nqueue_depth=0\n", "queue_depth: a queue depth"),
            ("[exports.home]\nvolume='a'\nmax_sectors=9\n", "max_sectors: the longest"),
            ("[exports.home]\nvolume='a'\nioprio='high'\n", "ioprio: \"high\" is no"),
            ("[exports.home]\nvolume='a'\npipeline='H'\n", "pipelines are adaptive, linux, A"),
            ("[exports.home]\nvolume='a'\npages='bulk'\n", "all-or-nothing; or none, or slots"),
            ("[exports.home]\nvolume='a'\naliases={''='rt'}\n", "an alias cannot be empty"),
            ("[exports.home]\nvolume='a'\nqueue_size=64\n", "`vhost_user`"),
            ("[exports.home]\nvolume='a'\npoll='auto'\n", "`vhost_user`"),
            ("[exports.home]\nvolume='a'\nvhost_user='v'\npoll='on'\n", "poll: a queue polls"),
            ("[exports.home]\nvolume='a'\nvhost_user='v'\nnum_queues=0\n", "num_queues: a disk"),
            ("[exports.home]\nvolume='a'\nvhost_user='v'\nqueue_size=48\n", "queue_size: a"),
        ] {
            let message = refusal(text);
            assert!(message.starts_with("disks.toml: exports.home: "), "{message}");
            assert!(message.contains(word), "{message}");
        }
    }

    #[test]
    fn config_with_nothing_to_serve_is_refused() {
        assert!(refusal("exports = {}").contains("nothing to serve"));
        assert!(refusal("socket = 'a'").contains("exports"));
        assert!(refusal("threads = 5000\n[exports.a]\nvolume = 'a'").contains("5000"));
        assert!(refusal("max_connections = 0\n[exports.a]\nvolume = 'a'").contains("1 to 1024"));
    }

    #[test]
    fn export_names_that_nbd_cannot_carry_are_refused() {
        assert!(check_export_name(&"n".repeat(4096)).is_ok());
        assert!(check_export_name(&"n".repeat(4097)).is_err());
        assert!(check_export_name("a\0b").is_err());
    }
}
