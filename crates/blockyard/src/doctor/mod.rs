//! Findings about a machine, a volume or a running server: data or secrets at risk, lost time.
//!
//! ```
//! use blockyard::doctor::{self, Severity, Subject};
//!
//! for finding in doctor::machine() {
//!     assert_eq!(finding.subject, Subject::Machine);
//!     if finding.severity == Severity::Risky {
//!         println!("{:?}", finding.fact);
//!     }
//! }
//! ```
//!
//! A [`Finding`] is data: the program provides the words. No call asks for a passphrase, locks a
//! volume or changes anything. Rules use the text of `/proc` and `/sys`, headers and statuses, so
//! that tests can describe any machine.

mod file;
mod header;
mod machine;
mod server;
mod serving;

use std::path::{Path, PathBuf};
use std::time::Duration;

use blockyard_crypt::Error as CryptError;
use blockyard_crypt::luks::Notice;
use blockyard_crypt::signature::Signature;
use blockyard_host::cpus;
use blockyard_host::remote::is_remote;

use crate::error::contained;
use crate::limit::Limit;
use crate::status::{Loss, LostServer, RefusedWrite};
use crate::tls::{Flaw, names};
use crate::{Control, Error, Place, memory};

pub use serving::Serving;

/// Severity of a finding; the worst is the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Data or secrets can be lost.
    Risky,
    /// It costs time.
    Slow,
    /// A setting that others choose differently.
    Note,
}

/// The subject of a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// This machine.
    Machine,
    /// A file, a block device, a header or a configuration.
    Path(PathBuf),
    /// A server, by its control socket.
    Server(PathBuf),
    /// An export of a server.
    Export {
        /// The control socket of the server.
        socket: PathBuf,
        /// The first name of the export.
        name: String,
    },
}

/// A finding.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Severity.
    pub severity: Severity,
    /// Its subject.
    pub subject: Subject,
    /// The fact.
    pub fact: Fact,
}

/// A fact that costs time or puts data or secrets at risk.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Fact {
    /// The CPU has no AES instructions.
    NoAesInstructions,
    /// Frequency governors that may take the bursts of encryption for idleness.
    Governor {
        /// CPUs with such a governor.
        cpus: usize,
        /// Their governors, each once.
        governors: Vec<String>,
    },
    /// The machine has several NUMA nodes.
    Nodes {
        /// Their number.
        nodes: usize,
    },
    /// The quota of the control group is below the number of CPUs.
    Quota {
        /// CPUs whose time it permits.
        quota_cpus: usize,
        /// CPUs that may be used.
        cpus: usize,
    },
    /// The limit of locked memory is low, and there is swap.
    LockedMemory {
        /// The limit.
        limit_bytes: u64,
    },
    /// Ordinary users may not use io_uring.
    IoUringDisabled,
    /// Other users can read a file.
    Readable {
        /// The content of the file.
        secret: Secret,
        /// All users, or those of the file's group.
        by_all: bool,
    },
    /// TLS refuses a certificate.
    Certificate(Flaw),
    /// The file system cannot make holes in a file.
    NoHoles,
    /// The file system around a file.
    FileSystem(FileSystem),
    /// A sparse file may grow beyond the free space.
    Sparse {
        /// Length of the file.
        len_bytes: u64,
        /// Bytes of the file without a block.
        missing_bytes: u64,
        /// Free bytes of the file system.
        free_bytes: u64,
    },
    /// I/O goes through the page cache.
    PageCache,
    /// The queue of a block device holds few requests.
    FewRequests {
        /// Name of the disk in `/sys/block`.
        disk: String,
        /// `nr_requests`.
        nr_requests: u64,
        /// A better value.
        advised: u64,
    },
    /// The queue of a block device splits long requests.
    ShortRequests {
        /// Name of the disk in `/sys/block`.
        disk: String,
        /// `max_sectors_kb`.
        max_kib: u64,
        /// A better value.
        advised_kib: u64,
    },
    /// A block device takes no TRIM.
    TrimUnsupported {
        /// Name of the disk in `/sys/block`.
        disk: String,
    },
    /// TRIM is switched off in the queue of a block device.
    TrimDisabled {
        /// Name of the disk in `/sys/block`.
        disk: String,
        /// `discard_max_hw_bytes`.
        max_bytes: u64,
    },
    /// Encryption sectors of 512 bytes.
    SmallSectors {
        /// The volume is LUKS1.
        is_luks1: bool,
    },
    /// A cipher that gives data away.
    WeakCipher {
        /// Its name in the header.
        cipher: String,
        /// The weakness.
        weakness: Weakness,
    },
    /// A cipher without CPU instructions.
    SlowCipher {
        /// Its name in the header.
        cipher: String,
    },
    /// A header without keyslots.
    NoKeyslot,
    /// A keyslot whose argon2 needs more memory than there is.
    KeyslotMemory {
        /// The number of the keyslot.
        keyslot: String,
        /// Memory of the derivation.
        needed_bytes: u64,
        /// Memory that this process may have.
        available_bytes: u64,
    },
    /// A keyslot with few iterations of PBKDF2.
    KeyslotIterations {
        /// The number of the keyslot.
        keyslot: String,
        /// Iterations.
        iterations: u64,
        /// The volume is LUKS1.
        is_luks1: bool,
    },
    /// The protection of a BitLocker volume is suspended: its key stands in its metadata.
    ClearKey,
    /// The header does not let TRIM pass.
    NoTrim,
    /// One copy of a LUKS2 header is damaged or outdated.
    Header(Notice),
    /// A disk has another use now, and the secondary header of an older LUKS2 volume.
    OldHeader(Signature),
    /// A file or device without a LUKS header.
    NoHeader {
        /// The format that was found.
        other: Option<Signature>,
    },
    /// A disk without a LUKS header, whose partitions have one.
    InPartition {
        /// Their numbers, at least one.
        partitions: Vec<u32>,
    },
    /// A server listens on an address of the network.
    OpenAddress {
        /// `HOST:PORT`.
        address: String,
    },
    /// More cipher workers than CPUs.
    Workers {
        /// Cipher workers.
        threads: usize,
        /// CPUs.
        cpus: usize,
    },
    /// A server takes no more connections.
    ConnectionsTaken {
        /// Its limit.
        max: u64,
    },
    /// Acknowledged writes may be lost.
    Lost(Loss),
    /// A server below the volume has no connection.
    ServerLost(LostServer),
    /// A write to protected sectors was refused, so all writes to its line fail.
    WriteRefused(RefusedWrite),
    /// Requests have failed since the volume was opened.
    Errors {
        /// Their number.
        requests: u64,
        /// Those of them that failed because the connection to a device was lost.
        transport: u64,
    },
    /// Requests wait for a resume.
    Suspended {
        /// Their number.
        requests: u64,
    },
    /// The key of a volume is wiped.
    KeyWiped,
    /// Parts of requests wait for a path of a multipath line.
    PathMissing {
        /// Their number.
        parts: u64,
    },
    /// Parts of requests wait for a buffer.
    BuffersTaken {
        /// Their number.
        parts: u64,
    },
    /// The limit of a volume's rate.
    Limited {
        /// The limit.
        limit: Limit,
        /// Between the two statuses of the server, or since its start.
        is_now: bool,
    },
    /// Too few connections: each has a thread of its own, which limits the rate while CPUs are
    /// idle.
    FewConnections {
        /// Mean number of connections.
        connections: f64,
        /// Mean number of requests in flight of each.
        in_flight: f64,
        /// Mean number of idle CPUs.
        idle_cpus: f64,
        /// The limit.
        limit: Limit,
    },
}

/// The content of a file that only its owner should read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secret {
    /// A volume: a reader can try passphrases.
    Volume,
    /// A key.
    Key,
}

/// A file system that is slow or risky below a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// Copies on write.
    Btrfs,
    /// Copies the whole file on the first write.
    Overlay,
    /// Memory.
    Tmpfs,
    /// A network file system, by its name.
    Network(&'static str),
}

/// A weakness of a cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weakness {
    /// No encryption.
    Null,
    /// ECB: equal sectors are equal in the ciphertext.
    Ecb,
    /// CBC with predictable IVs.
    PlainIv,
}

impl Finding {
    pub(crate) fn new(subject: Subject, fact: Fact) -> Self {
        Self { severity: fact.severity(), subject, fact }
    }

    pub(crate) fn at(path: &Path, fact: Fact) -> Self {
        Self::new(Subject::Path(path.to_owned()), fact)
    }
}

impl Fact {
    fn severity(&self) -> Severity {
        match self {
            Self::LockedMemory { .. }
            | Self::Readable { .. }
            | Self::FileSystem(FileSystem::Tmpfs | FileSystem::Network(_))
            | Self::Sparse { .. }
            | Self::WeakCipher { .. }
            | Self::NoKeyslot
            | Self::ClearKey
            | Self::KeyslotMemory { .. }
            | Self::KeyslotIterations { .. }
            | Self::Header(_)
            | Self::OldHeader(_)
            | Self::OpenAddress { .. }
            | Self::Certificate(_)
            | Self::Lost(_)
            | Self::ServerLost(_)
            | Self::WriteRefused(_)
            | Self::Errors { .. } => Severity::Risky,
            Self::NoAesInstructions
            | Self::Governor { .. }
            | Self::IoUringDisabled
            | Self::FileSystem(FileSystem::Btrfs | FileSystem::Overlay)
            | Self::FewRequests { .. }
            | Self::ShortRequests { .. }
            | Self::SmallSectors { .. }
            | Self::SlowCipher { .. }
            | Self::Workers { .. }
            | Self::ConnectionsTaken { .. }
            | Self::Suspended { .. }
            | Self::KeyWiped
            | Self::PathMissing { .. }
            | Self::BuffersTaken { .. }
            | Self::FewConnections { .. } => Severity::Slow,
            Self::Nodes { .. }
            | Self::Quota { .. }
            | Self::NoHoles
            | Self::PageCache
            | Self::TrimUnsupported { .. }
            | Self::TrimDisabled { .. }
            | Self::NoTrim
            | Self::NoHeader { .. }
            | Self::InPartition { .. }
            | Self::Limited { .. } => Severity::Note,
        }
    }
}

/// Whether TRIM reaches the file or device below a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trim {
    /// Never: a read-only export, for example.
    Never,
    /// According to the header.
    #[default]
    HeaderDecides,
    /// Always ([`Options::allow_discards`](crate::Options::allow_discards)).
    Passed,
}

/// A volume to check.
#[derive(Clone, Copy, Debug)]
pub struct Checked<'a> {
    /// Its file or block device.
    pub path: &'a Path,
    /// The part of it that holds the volume.
    pub place: &'a Place,
    /// Its detached header.
    pub header: Option<&'a Path>,
    /// It has a LUKS header. A plain volume and a table have none.
    pub is_luks: bool,
    /// Whether TRIM is passed down.
    pub trim: Trim,
}

/// Checks this machine: cipher instructions, clock, nodes, quota, locked memory, io_uring.
#[must_use]
pub fn machine() -> Vec<Finding> {
    let mut findings = machine::findings(Path::new("/"));
    let cpus = cpus::allowed().len();
    let quota = cpus::quota().map(|quota_cpus| Fact::Quota { quota_cpus, cpus });
    findings.extend(quota.map(|fact| Finding::new(Subject::Machine, fact)));
    findings
}

/// Checks a volume: the place of its file, and its header.
///
/// # Errors
/// [`Error::Place`] if the file cannot be inspected, [`Error::Remote`] if the volume is on an NBD
/// server, [`Error::Crypt`] if the header has an unknown version or no intact copy.
pub fn volume(checked: &Checked<'_>) -> Result<Vec<Finding>, Error> {
    contained(|| of_volume(checked))
}

fn of_volume(checked: &Checked<'_>) -> Result<Vec<Finding>, Error> {
    let Checked { path, place, header, is_luks, trim } = *checked;
    if is_remote(path) {
        return Err(Error::Remote { path: path.to_owned() });
    }
    if let Err(error) = path.metadata() {
        return Err(Error::place(&path.display(), format!("cannot be checked: {error}")));
    }
    let root = Path::new("/");
    let mut findings = file::findings(root, path, trim != Trim::Never);
    let (header, place) = header.map_or((path, place), |header| (header, &Place::Whole));
    match crate::header::read(header, place, None) {
        Ok((found, notices)) => {
            findings.extend(notices.into_iter().map(|one| Finding::at(header, Fact::Header(one))));
            let memory_bytes = memory::limit_bytes(root);
            let lacks_trim = trim == Trim::default();
            findings.extend(header::findings(header, &found.info(), memory_bytes, lacks_trim));
        }
        Err(Error::Crypt { source: CryptError::Reused(signature), .. }) => {
            findings.push(Finding::at(header, Fact::OldHeader(signature)));
        }
        Err(Error::Crypt { source: CryptError::NotLuks, .. }) => {
            let fact = Fact::NoHeader { other: None };
            findings.extend(is_luks.then(|| Finding::at(header, fact)));
        }
        Err(Error::Crypt { source: CryptError::InPartition { partitions }, .. }) => {
            let fact = Fact::InPartition { partitions };
            findings.extend(is_luks.then(|| Finding::at(header, fact)));
        }
        Err(error) if error.is_bitlocker() => {
            let found = crate::header::read_bitlk(header, place)?;
            findings.extend(found.has_clear_key().then(|| Finding::at(header, Fact::ClearKey)));
        }
        Err(Error::Crypt { source: CryptError::OtherFormat(signature), .. }) => {
            let fact = Fact::NoHeader { other: Some(signature) };
            findings.extend(is_luks.then(|| Finding::at(header, fact)));
        }
        Err(error) => return Err(error),
    }
    Ok(findings)
}

/// Checks a running server twice through its control socket, after this time.
///
/// # Errors
/// The server does not answer.
pub fn server(control: &Control, between: Duration) -> Result<Vec<Finding>, Error> {
    contained(|| {
        let root = Path::new("/");
        let before = control.status()?;
        let then = machine::Ticks::now(root);
        std::thread::sleep(between);
        let now = control.status()?;
        let idle_cpus = machine::Ticks::now(root).idle_cpus(then, cpus());
        let socket = control.socket();
        Ok(server::findings(&server::Looks { socket, now: &now, before: &before, idle_cpus }))
    })
}

/// Checks the certificates and keys of a directory for TLS.
///
/// # Errors
/// The directory has no certificate, or a file is damaged.
pub fn tls(dir: &Path) -> Result<Vec<Finding>, Error> {
    let certificates = crate::tls::show(dir)?;
    let flaws = certificates.into_iter().flat_map(|certificate| {
        let path = certificate.path;
        let facts = certificate.flaws.into_iter().map(Fact::Certificate);
        facts.map(move |fact| Finding::at(&path, fact))
    });
    let keys = [names::CA_KEY, names::SERVER_KEY, names::CLIENT_KEY].map(|name| dir.join(name));
    let keys = keys.iter().filter_map(|path| serving::key_file(path));
    Ok(flaws.chain(keys).collect())
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
