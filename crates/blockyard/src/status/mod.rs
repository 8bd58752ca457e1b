//! The status of a server as a type.
//!
//! ```text
//!   volume ─ snapshot ─> VolumeStatus ─┬─> Status ─ JSON ─ control socket ─> Status: status, top
//!                                      ├─> metrics
//!                                      └─> doctor
//! ```
//! Counters and times are totals since the volume was opened. The difference between two statuses
//! describes the time between them ([`Activity::limit_since`], [`Requests::shares_since`]).
//!
//! ```
//! let text = r#"{"max_connections": 16, "io_uring": "restricted", "devices": []}"#;
//! let status = blockyard::Status::parse(text.as_bytes())?;
//! assert_eq!(status.max_connections, 16);
//! # Ok::<(), blockyard::Error>(())
//! ```

mod requests;
mod snapshot;

use std::fmt;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::limit::Limit;

pub use requests::{ErrorClasses, KindRequests, Requests, Shares, StageTimes, Times};

/// The status of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Limit of connections with an open export.
    pub max_connections: u64,
    /// Capability of io_uring in the server's process.
    pub io_uring: Rings,
    /// The sandbox of the server's process; `None` without one.
    pub sandbox: Option<Sandbox>,
    /// The server's program.
    pub build: Build,
    /// The server's process.
    pub process: Process,
    /// The part of the machine that it uses.
    pub placement: Placement,
    /// The served volumes, in the order of their exports.
    pub devices: Vec<VolumeStatus>,
    /// Names of the exports that are closed until their next use.
    pub closed: Vec<String>,
}

/// The build of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Build {
    /// Version.
    pub version: String,
    /// Commit of its source; `unknown` for a source without one.
    pub commit: String,
    /// Compiled features.
    pub features: Vec<String>,
}

/// Resources of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    /// Start in seconds since 1970.
    pub started_at_unix_s: u64,
    /// CPU time of all threads.
    pub cpu_ns: u64,
    /// Memory in use, without swapped pages.
    pub resident_bytes: u64,
    /// Open descriptors.
    pub open_descriptors: u64,
    /// Limit of open descriptors; `None` if there is none.
    pub max_descriptors: Option<u64>,
}

/// The part of the machine that a process uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Placement {
    /// CPUs that the process may use, as a list: `0-3,8`.
    pub cpus: String,
    /// CPUs whose time the cgroup's quota permits, if they are fewer.
    pub quota_cpus: Option<u64>,
    /// The preferred NUMA node of its memory, if there is one.
    pub memory_node: Option<u16>,
}

/// Capability of io_uring in a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rings {
    /// Rings can be restricted to the data path.
    #[default]
    Restricted,
    /// The kernel cannot restrict rings (Linux 5.10 can).
    Unrestricted,
    /// The system has no rings; plain system calls do their work.
    Unavailable,
}

/// Parts of a sandbox that hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sandbox {
    /// Version of the kernel's Landlock, which limits files, TCP and signals.
    pub landlock: Option<u32>,
    /// System calls are limited.
    pub seccomp: bool,
    /// Programs with the rights of another user give no such rights.
    pub no_new_privileges: bool,
}

/// Limits that exports of a volume share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExportLimits {
    /// Names of the exports; exports of other volumes may share the limits too.
    pub exports: Vec<String>,
    /// Name of the group of exports that share them; `None` without one.
    pub group: Option<String>,
    /// Requests per second.
    pub iops: Option<NonZeroU64>,
    /// Bytes per second.
    pub bytes_per_s: Option<NonZeroU64>,
    /// Time whose unused tokens are kept.
    pub burst_ns: u64,
}

/// The status of a volume.
// 16 fields: one for each member of the JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumeStatus {
    /// Export names.
    pub exports: Vec<String>,
    /// Size for clients that connect now.
    pub size_bytes: u64,
    /// Whether requests are executed.
    pub state: State,
    /// Whether every crypt line has its key.
    pub key: KeyState,
    /// The failure after which flushes and writes fail.
    pub loss: Option<Loss>,
    /// NBD servers without a connection.
    pub lost_servers: Vec<LostServer>,
    /// The write to protected sectors after which writes fail.
    pub refused_write: Option<RefusedWrite>,
    /// Its dirty bitmap; `None` without one.
    pub dirty_bitmap: Option<DirtyBitmap>,
    /// Limits of the rate of its exports.
    pub limits: Vec<ExportLimits>,
    /// Table lines, like `dmsetup table`, with keys hidden.
    pub table: Vec<String>,
    /// Status lines, like `dmsetup status`.
    pub status: Vec<String>,
    /// Paths of the multipath lines.
    pub paths: Paths,
    /// The distinct pipelines of the crypt lines.
    pub pipelines: Vec<String>,
    /// The crypt lines with the adaptive pipeline.
    pub adaptive: Vec<Adaptive>,
    /// Requests and errors.
    #[serde(flatten)]
    pub counts: Counts,
    /// Times of requests, use of threads, and the resulting limit.
    #[serde(flatten)]
    pub activity: Activity,
}

/// The blocks that were written since the last backup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DirtyBitmap {
    /// Name for clients.
    pub name: String,
    /// Length of a block.
    pub granularity_bytes: u32,
    /// Bytes of dirty blocks: those that the next backup copies.
    pub dirty_bytes: u64,
    /// Bytes of the backup that runs; `None` without one.
    pub frozen_bytes: Option<u64>,
    /// Number of the backup that runs.
    pub backup: Option<String>,
}

/// Paths of all multipath lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Paths {
    /// Number.
    pub total: u64,
    /// Number of failed ones, as the connection sees it that has lost most.
    pub failed: u64,
}

/// Whether requests are executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Requests are executed.
    #[default]
    Active,
    /// Requests wait for a resume.
    Suspended,
}

/// Whether the volume has its keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyState {
    /// Every crypt line has its key.
    #[default]
    Valid,
    /// A crypt line has no key: I/O fails until it has one.
    Wiped,
}

/// The first failure that may have lost acknowledged writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Loss {
    /// The file, device or server.
    pub device: String,
    /// Failed operation.
    pub problem: String,
    /// Seconds since 1970.
    pub at_unix_s: u64,
    /// Error of failing flushes and writes.
    pub status: String,
}

/// An NBD server without a connection: requests wait for it, or fail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LostServer {
    /// Its export, as a URI.
    pub server: String,
    /// It is one of several paths to a disk.
    pub is_path: bool,
    /// Start of the outage in seconds since 1970.
    pub since_unix_s: u64,
}

/// The first write to protected sectors, for example those of a hidden volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RefusedWrite {
    /// Its first sector.
    pub sector: u64,
    /// Its length.
    pub sectors: u64,
    /// Seconds since 1970.
    pub at_unix_s: u64,
}

impl fmt::Display for RefusedWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.sector.saturating_add(self.sectors.saturating_sub(1));
        write!(
            f,
            "a write to sectors {} to {last} would have changed protected sectors, so all writes \
             to this line of the table fail until the volume is closed",
            self.sector
        )
    }
}

/// Parameters of a crypt line with the adaptive pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Adaptive {
    /// Measured time of the cipher for [`Adaptive::part_bytes`].
    pub cipher_ns: u64,
    /// Length of the measured part.
    pub part_bytes: u64,
    /// Estimated cost of a hand-over to a worker and back.
    pub hand_over_ns: u64,
    /// Minimum length that goes to workers if CPUs are idle; `None` without workers.
    pub fan_out_min_bytes: Option<u32>,
    /// The device below is rotational, so writes are sorted.
    pub seeks: bool,
}

/// Requests and errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Placement of ciphers.
    pub ciphers: Ciphers,
    /// Reads.
    pub reads: Bios,
    /// Writes.
    pub writes: Bios,
    /// Flushes, discards and zeroes.
    pub other_bios: u64,
    /// Bios that failed.
    pub errors: u64,
    /// Bios waiting for a resume now.
    pub held_bios: u64,
    /// Parts waiting for a buffer, a delay or a path now.
    pub parked_parts: u64,
    /// Current number of connections.
    pub connections: u64,
    /// Current number of bios in flight.
    pub in_flight: u64,
}

/// Placement of ciphers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ciphers {
    /// Parts on the connection's thread.
    pub inline: Parts,
    /// Parts on workers.
    pub fanned_out: Parts,
    /// Parts sorted by a writing thread.
    pub sorted: Parts,
}

/// Parts of bios.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Parts {
    /// Number.
    pub parts: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Bios.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bios {
    /// Number.
    pub bios: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Times of requests, use of threads, and the resulting limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Activity {
    /// Requests by kind and stage.
    pub requests: Requests,
    /// Threads by their work.
    pub threads: Vec<Threads>,
    /// The limit since the volume was opened; `None` without requests.
    pub limit: Option<Limit>,
}

/// Resource usage of threads with the same work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Threads {
    /// Their work.
    #[serde(rename = "threads")]
    pub work: Work,
    /// Current number.
    pub count: u64,
    /// CPU time.
    pub cpu_ns: u64,
    /// Time in a run queue.
    pub runnable_ns: u64,
    /// Voluntary context switches.
    pub voluntary_switches: u64,
    /// Involuntary context switches.
    pub involuntary_switches: u64,
    /// Number of the pool: volumes with the same number share the threads and these figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<u64>,
}

/// Work of threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// Threads of connections: they receive, run inline ciphers, submit and reply, and take turns
    /// as the writing thread.
    #[default]
    Connections,
    /// Workers: they run ciphers for others.
    Workers,
    /// Threads of devices: elevators, rings, and connections to NBD servers.
    Disks,
}

impl Work {
    /// Name in JSON, tables and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Workers => "workers",
            Self::Disks => "disks",
        }
    }
}

impl Build {
    /// That of this library.
    #[must_use]
    pub fn of_library() -> Self {
        let parts =
            ["fuse", "io_uring", "landlock", "nbd", "rbd", "seccomp", "tls", "ublk", "vhost-user"];
        let canaries = blockyard_host::HAS_CANARIES.then_some("canaries");
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: "unknown".to_owned(),
            features: parts.into_iter().chain(canaries).map(str::to_owned).collect(),
        }
    }
}

impl State {
    /// Name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Suspended => "suspended",
        }
    }
}

impl KeyState {
    /// Name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Wiped => "wiped",
        }
    }
}

impl Status {
    /// Parses a status from JSON. Missing members are zero or empty; unknown members are ignored.
    ///
    /// # Errors
    /// [`Error::Json`]: the text is not the JSON of a status.
    pub fn parse(json: &[u8]) -> Result<Self, Error> {
        Ok(serde_json::from_slice(json)?)
    }

    /// Each volume with its earlier status, matched by its exports.
    pub fn with_earlier<'a>(
        &'a self,
        earlier: &'a Self,
    ) -> impl Iterator<Item = (&'a VolumeStatus, Option<&'a VolumeStatus>)> {
        self.devices.iter().map(|device| {
            let same = |other: &&VolumeStatus| other.exports == device.exports;
            (device, earlier.devices.iter().find(same))
        })
    }
}

impl Activity {
    /// The limit since `earlier`; `None` without requests. [`Activity::default`] stands for the
    /// opening of the volume.
    #[must_use]
    pub fn limit_since(&self, earlier: &Self) -> Option<Limit> {
        let figures = |work: Work| {
            let now = self.threads_of(work);
            let before = earlier.threads_of(work);
            let running_ns =
                since(now.cpu_ns, before.cpu_ns) + since(now.runnable_ns, before.runnable_ns);
            (now.count, running_ns)
        };
        let (_, connections_ns) = figures(Work::Connections);
        let workers = self.threads_of(Work::Workers).count;
        let now = &self.requests;
        let before = &earlier.requests;
        let connected_ns = since(now.connected_ns, before.connected_ns).max(1.0);
        let occupied_ns = since(now.occupied_ns, before.occupied_ns).max(1.0);
        let mut load = now.load_since(before);
        load.connections_run = (connections_ns / connected_ns).min(1.0);
        load.workers = workers;
        let workers_ns = since(now.workers_busy_ns, before.workers_busy_ns);
        load.workers_run = (workers_ns / (occupied_ns * workers.max(1) as f64)).min(1.0);
        load.limit()
    }

    /// The threads with this work; zeroes without any.
    #[must_use]
    pub fn threads_of(&self, work: Work) -> Threads {
        let found = self.threads.iter().find(|threads| threads.work == work);
        found.copied().unwrap_or(Threads { work, ..Threads::default() })
    }
}

/// Growth of a counter.
fn since(now: u64, before: u64) -> f64 {
    now.saturating_sub(before) as f64
}

#[cfg(test)]
mod tests;
