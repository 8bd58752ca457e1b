//! `serve --config FILE`: several volumes as named exports, in TOML.
//!
//! ```toml
//! socket = "/run/blockyard/disks.sock"   # and/or: listen = "127.0.0.1:10809"
//! tls_certificates = "pki"               # with TLS; or: insecure = true
//! threads = 4                            # cipher workers
//! socket_group = "kvm"                   # who may connect: or socket_mode, socket_owner
//! pid_file = "/run/blockyard/disks.pid"
//! sandbox = "on"                         # or: require, off; more places: sandbox_allow
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
//! open = "first-use"                     # when a client asks for it; default: start
//! idle_close = 600                       # seconds without a client; it is closed then
//! aliases = { archive-idle = "idle" }    # other names, each with an I/O priority
//! vhost_user = "/run/blockyard/archive"  # socket of a virtual machine
//! ```
//!
//! Keys are the options' names with `_` for `-`. Relative paths start at the file's own folder. An
//! unknown key, a repeated name or a value of the wrong type is an error with its line number. A
//! passphrase has no place in this file; errors never quote it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use blockyard::{DirtyBitmapOptions, RateLimits, UblkOptions};
use blockyard_engine::priority::Priority;
use blockyard_host::pages::BounceChoice;
use blockyard_host::server::CONNECTIONS_MAX;
use blockyard_host::volume::{PipelineChoice, Scheduling};
use serde::Deserialize;

use crate::commands::serve::THREADS_MAX;
use crate::commands::serve::log::{LogArgs, LogFormat, LogLevel};
use crate::commands::serve::sandbox::{SandboxArgs, SandboxMode};
use crate::commands::serve::sockets::{AccessArgs, is_private, parse_mode};
use crate::commands::serve::tls::{TlsArgs, TlsMode};
use crate::disk_spec::{DiskSocket, DiskSpec};
use crate::failure::{Failure, printable};
use crate::placement::{CpuList, Numa, PlacementArgs};
use crate::scheduling::Alias;
use crate::volume_spec::VolumeSpec;

mod export;
mod rate;

use export::ExportText;
pub(crate) use rate::RateSpec;
use rate::{GroupText, groups};

/// Limit of the file's length: some thousand exports.
const CONFIG_LEN_MAX_BYTES: u64 = 1 << 20;

/// Contents of a file.
// 14 fields: one for each choice about the server, and the exports.
#[derive(Debug, Default)]
pub(crate) struct Config {
    /// Unix socket to listen on.
    pub(crate) socket: Option<PathBuf>,
    /// TCP address to listen on.
    pub(crate) listen: Option<String>,
    /// TLS of both.
    pub(crate) tls: TlsArgs,
    /// Cipher workers that volumes share.
    pub(crate) threads: Option<u16>,
    pub(crate) placement: PlacementArgs,
    /// Limit of connections.
    pub(crate) max_connections: Option<u16>,
    /// Access to the sockets.
    pub(crate) access: AccessArgs,
    /// File for the process ID.
    pub(crate) pid_file: Option<PathBuf>,
    /// Socket for commands.
    pub(crate) control: Option<PathBuf>,
    /// Address or socket for metrics.
    pub(crate) metrics: Option<String>,
    /// The log.
    pub(crate) log: LogArgs,
    /// The sandbox.
    pub(crate) sandbox: SandboxArgs,
    /// Limits that exports share.
    pub(crate) limit_groups: BTreeMap<String, RateLimits>,
    /// The exports, in the order of their names.
    pub(crate) exports: Vec<ExportSpec>,
}

/// One export: a volume under a name.
// 18 fields: one for each group of keys.
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
    /// Tracks the blocks that are written.
    pub(crate) dirty_bitmap: Option<DirtyBitmapOptions>,
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
    /// It is a disk of this machine too.
    pub(crate) ublk: Option<UblkOptions>,
    /// It is opened at its first use.
    pub(crate) first_use: Option<FirstUse>,
    /// Limit of the connections of all its names.
    pub(crate) max_connections: Option<usize>,
    /// Its text in a configuration, without limits; `None` if options describe it.
    pub(crate) text: Option<Box<ExportText>>,
}

/// An export that is opened when a client asks for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstUse {
    /// It is closed after this time without a client.
    pub(crate) idle_close: Option<Duration>,
}

impl ExportSpec {
    /// Whether both are served in the same way, regardless of their limits.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.name == other.name && self.text == other.text
    }

    /// Files of the volume, and its dirty bitmap.
    pub(crate) fn paths(&self) -> Vec<&Path> {
        let mut paths = self.volume.paths();
        paths.extend(self.dirty_bitmap.iter().map(|bitmap| bitmap.path()));
        paths
    }

    /// Its name and its other names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.name).chain(self.aliases.iter().map(|alias| &alias.name))
    }
}

// 22 fields: one for each key of the file.
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
    cpus: Option<String>,
    numa: Option<Numa>,
    max_connections: Option<u16>,
    socket_mode: Option<String>,
    socket_owner: Option<String>,
    socket_group: Option<String>,
    pid_file: Option<PathBuf>,
    control: Option<PathBuf>,
    metrics: Option<String>,
    #[serde(default)]
    log: LogText,
    sandbox: Option<SandboxMode>,
    #[serde(default)]
    sandbox_allow: Vec<PathBuf>,
    #[serde(default)]
    limit_groups: BTreeMap<String, GroupText>,
    /// Without any, there is nothing to serve.
    #[serde(default)]
    exports: BTreeMap<String, ExportText>,
}

/// The table `[log]`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LogText {
    format: Option<LogFormat>,
    level: Option<LogLevel>,
    slow_request: Option<u64>,
}

impl From<LogText> for LogArgs {
    fn from(LogText { format, level, slow_request }: LogText) -> Self {
        Self { log_format: format, log_level: level, slow_request }
    }
}

impl Config {
    /// Reads and checks a file; opens none of the volumes.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        Self::read_opened(path, File::open(path))
    }

    /// Reads and checks an opened file of this path; opens none of the volumes.
    pub(crate) fn read_opened(path: &Path, file: io::Result<File>) -> Result<Self, Failure> {
        let place = path.display().to_string();
        let unreadable = |error: &dyn fmt::Display| {
            Failure::failed(format!("cannot read the configuration {place}: {error}"))
        };
        let file = file.map_err(|error| unreadable(&error))?;
        // A device or a FIFO may have no end.
        let mut text = String::new();
        let read = file.take(CONFIG_LEN_MAX_BYTES + 1).read_to_string(&mut text);
        let len_bytes = read.map_err(|error| unreadable(&error))?;
        if len_bytes as u64 > CONFIG_LEN_MAX_BYTES {
            return Err(unreadable(&"it has more than 1 MiB"));
        }
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
        let cpus = parsed.cpus.as_deref().map(CpuList::parse).transpose();
        let cpus = cpus.map_err(|error| of_key("cpus", &error).at(place))?;
        let tls = parsed.tls(folder);
        let metrics = parsed.metrics(folder);
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
        check_ublk(&exports).map_err(|failure| failure.at(place))?;
        Ok(Self {
            socket,
            listen: parsed.listen,
            tls,
            threads: parsed.threads,
            placement: PlacementArgs { cpus, numa: parsed.numa },
            max_connections: parsed.max_connections,
            access: AccessArgs {
                socket_mode,
                socket_owner: parsed.socket_owner,
                socket_group: parsed.socket_group,
            },
            pid_file: parsed.pid_file.map(|path| folder.join(path)),
            control: parsed.control.map(|path| folder.join(path)),
            metrics,
            log: parsed.log.into(),
            sandbox: SandboxArgs {
                sandbox: parsed.sandbox,
                sandbox_allow: parsed.sandbox_allow.iter().map(|path| folder.join(path)).collect(),
            },
            limit_groups,
            exports,
        })
    }
}

impl ConfigText {
    fn tls(&self, folder: &Path) -> TlsArgs {
        // A list is a file, and a file has a folder; a name has none.
        let authz = self.tls_authz.as_ref().map(|authz| placed(authz, folder));
        TlsArgs {
            tls: self.tls,
            tls_certificates: self.tls_certificates.as_ref().map(|dir| folder.join(dir)),
            tls_verify_peer: self.tls_verify_peer,
            tls_authz: authz,
            insecure: self.insecure,
        }
    }

    fn metrics(&self, folder: &Path) -> Option<String> {
        self.metrics.as_ref().map(|place| placed(place, folder))
    }
}

/// A path, which has a `/`, from the folder of the file; another text as it is.
fn placed(text: &str, folder: &Path) -> String {
    if text.contains('/') { folder.join(text).display().to_string() } else { text.to_owned() }
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

/// A disk of this machine belongs to one volume.
fn check_ublk(exports: &[ExportSpec]) -> Result<(), Failure> {
    let mut seen = BTreeSet::new();
    for number in exports.iter().filter_map(|export| export.ublk.as_ref()?.number) {
        if !seen.insert(number) {
            return Err(Failure::failed(format!(
                "`ublk = {number}` is there twice; give each disk its own number, or `ublk = true`"
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
    let key = error.span().and_then(|span| key_before(text, &span));
    let key = key.map_or_else(String::new, |key| format!("{key}: "));
    // The parser names types of Rust.
    let message = message.replace("expected u16", "expected a whole number");
    let message = message.replace("expected u32", "expected a whole number");
    let message = message.replace("expected u64", "expected a whole number");
    let is_bare = message.starts_with("invalid type: integer") && message.ends_with("a string");
    let remedy = if is_bare { "; put it into quotes" } else { "" };
    Failure::failed(printable(&format!("{place}{position}: {key}{message}{remedy}")))
}

/// The key in front of a value: `mode` of `mode = 660`.
fn key_before<'a>(text: &'a str, value: &Range<usize>) -> Option<&'a str> {
    let line = text.get(..value.start)?.rsplit('\n').next()?;
    let (key, gap) = line.rsplit_once('=')?;
    let is_value = gap.trim_matches([' ', '\t', '[']).is_empty();
    key.trim().rsplit([' ', '\t', '{', ',']).next().filter(|key| is_value && !key.is_empty())
}

/// `:LINE:COLUMN`, counted from 1.
fn position_of(text: &str, span: &Range<usize>) -> String {
    let before = text.get(..span.start).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
    format!(":{line}:{column}")
}

#[cfg(test)]
mod tests;
