//! The sandbox: what this process may do after its start-up, in case a client takes it over.
//!
//! ```text
//! files and sockets are open ─> rings in reserve ─> every thread: no new privileges, Landlock
//! ─> every thread: seccomp ─> first client
//! ```
//! * *Landlock* limits files to the named places, TCP to the ports of named servers, and signals
//!   and abstract sockets to this process (`files`). It belongs to a thread, so that all threads
//!   take it (`every_thread`).
//! * *seccomp* limits system calls (`calls`).
//! * *io_uring* passes by seccomp: so the rings are made before, restricted to the data path, and
//!   no thread may make another one (`ring`).
//!
//! Descriptors that are open keep their rights. The kernel lifts none of this again.

mod calls;
mod every_thread;
mod files;

use std::fmt;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::nbd::uri::{Server, Uri};
use crate::tls::Credentials;
use crate::{Error, cpus, file, ring};

pub use calls::Network;
pub use files::{Place, Reach};

/// The sandbox of this process.
static STARTED: OnceLock<Started> = OnceLock::new();

/// Files by which the C library finds the address of a host.
const RESOLVER: [&str; 7] = [
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/protocols",
];

struct Started {
    parts: Parts,
    /// Descriptors of the places: a rule of `/proc/PID` holds while the kernel keeps the inode.
    _places: Vec<OwnedFd>,
}

/// Uses that the process still has.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Files and folders that it opens by name.
    pub places: Vec<Place>,
    /// Servers that it connects to.
    pub network: Network,
    /// Rings of connections and queues at a time.
    pub rings: usize,
}

impl Needs {
    /// Of every process: its own facts.
    #[must_use]
    pub fn of_process() -> Self {
        Self { places: vec![Place::new("/proc/self", Reach::Read)], ..Self::default() }
    }

    /// Adds a use of a file or folder, which may be missing.
    pub fn add(&mut self, path: impl Into<PathBuf>, reach: Reach) {
        self.places.push(Place::new(path, reach));
    }

    /// Adds what is opened again when a volume follows its file or header.
    pub fn follows(&mut self, path: &Path) {
        self.add(path, Reach::Read);
        let behind = file::behind(path);
        if !behind.is_empty() {
            self.add(file::LOCK_FOLDER, Reach::Locks);
        }
        behind.into_iter().for_each(|path| self.add(path, Reach::Read));
    }

    /// Adds what opening a volume reads: the machine's memory, the limits of its group, and facts
    /// about block devices. A volume that is opened later must lie in a permitted place.
    pub fn opens_volumes(&mut self) {
        for path in ["/proc/meminfo", "/sys/fs/cgroup", "/sys/dev/block", "/sys/devices"] {
            self.add(path, Reach::Read);
        }
        self.add(file::LOCK_FOLDER, Reach::Locks);
    }

    /// Adds connections to a server: its address, names and certificates.
    pub fn connects_to(&mut self, uri: &Uri) {
        match &uri.server {
            Server::Unix(path) => {
                self.network.unix = true;
                self.add(folder_of(path), Reach::Connect);
            }
            Server::Tcp(host, port) => {
                self.network.tcp_ports.insert(*port);
                if host.parse::<IpAddr>().is_err() && !self.network.names {
                    self.network.names = true;
                    let files = RESOLVER.iter().map(PathBuf::from);
                    files.chain(resolver_folder()).for_each(|path| self.add(path, Reach::Read));
                }
            }
        }
        let Some(tls) = &uri.tls else { return };
        // A missing folder is an error of the connection.
        let folder = tls.certificates.clone().or_else(|| {
            Credentials::of_default_dir().ok().map(|credentials| credentials.dir().to_owned())
        });
        folder.into_iter().for_each(|folder| self.add(folder, Reach::Read));
    }
}

/// The folder of the file behind `/etc/resolv.conf`, which is replaced when the network changes.
fn resolver_folder() -> Option<PathBuf> {
    let file = std::fs::canonicalize("/etc/resolv.conf").ok()?;
    file.parent().filter(|folder| *folder != Path::new("/etc")).map(Path::to_owned)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Parts of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Version of Landlock, which limits files, TCP and signals.
    pub landlock: Option<u32>,
    /// System calls are limited.
    pub seccomp: bool,
}

impl Parts {
    /// The parts that the kernel has.
    #[must_use]
    pub fn of_kernel() -> Self {
        Self { landlock: files::version(), seccomp: calls::is_supported() }
    }

    /// The parts that do not hold, as a sentence; `None` if all hold.
    #[must_use]
    pub fn missing(&self) -> Option<&'static str> {
        match self {
            Self { landlock: Some(_), seccomp: true } => None,
            Self { landlock: None, seccomp: true } => {
                Some("files are not limited: this kernel has no Landlock (Linux 5.13)")
            }
            Self { landlock: Some(_), seccomp: false } => {
                Some("system calls are not limited: this kernel has no seccomp filters")
            }
            Self { landlock: None, seccomp: false } => Some(
                "neither files nor system calls are limited: this kernel has no Landlock (Linux \
                 5.13) and no seccomp filters",
            ),
        }
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.landlock {
            Some(version) => write!(f, "Landlock {version}")?,
            None => f.write_str("no Landlock")?,
        }
        f.write_str(if self.seccomp { ", seccomp" } else { ", no seccomp" })?;
        f.write_str(", no new privileges")
    }
}

/// The parts that hold in this process; `None` before [`start`].
pub fn parts() -> Option<Parts> {
    STARTED.get().map(|started| started.parts)
}

/// Whether the sandbox, and not the file's owner, is the reason that a file cannot be written.
/// Landlock does not change the answer of `access(2)`.
#[must_use]
pub fn hinders_writing(path: &Path) -> bool {
    let is_permitted = match access(path, Access::WRITE_OK) {
        Err(Errno::NOENT) => access(folder_of(path), Access::WRITE_OK | Access::EXEC_OK).is_ok(),
        permitted => permitted.is_ok(),
    };
    limits_files() && is_permitted
}

/// Whether the sandbox, and not the file's owner, is the reason that a file cannot be read. False
/// for a FIFO, a socket or a character device: opening one may wait, or take what is written.
#[must_use]
pub fn hinders_reading(path: &Path) -> bool {
    let is_refused = |error: io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    let opens_without_effect = std::fs::metadata(path).is_ok_and(|facts| {
        let kind = facts.file_type();
        kind.is_file() || kind.is_dir() || kind.is_block_device()
    });
    // A FIFO may have taken the name.
    let open = || File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    limits_files()
        && opens_without_effect
        && access(path, Access::READ_OK).is_ok()
        && open().is_err_and(is_refused)
}

fn limits_files() -> bool {
    parts().is_some_and(|parts| parts.landlock.is_some())
}

/// Limits all threads of this process, for good. Parts that the kernel does not have are left out.
///
/// # Errors
/// A place cannot be opened; a thread does not answer; the kernel refuses. The process may be
/// limited in part then, and must end.
pub fn start(needs: &Needs) -> Result<Parts, Error> {
    cpus::look();
    let parts = Parts::of_kernel();
    let ruleset = parts.landlock.map(|_| files::ruleset(&needs.places, &needs.network));
    let (ruleset, places) = ruleset.transpose()?.unzip();
    if parts.seccomp {
        ring::reserve(needs.rings);
    }
    every_thread::restrict(ruleset.as_ref()).map_err(|problem| failed(&problem))?;
    if parts.seccomp {
        calls::limit(&needs.network).map_err(|problem| failed(&problem))?;
    }
    let started = Started { parts, _places: places.unwrap_or_default() };
    STARTED.set(started).map_err(|_| failed("it has started before"))?;
    Ok(parts)
}

fn failed(problem: &str) -> Error {
    Error::Parameter { of: "sandbox".into(), problem: problem.to_owned() }
}
