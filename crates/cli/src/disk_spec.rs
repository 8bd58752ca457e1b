//! The disk that a volume is for a virtual machine, or for this one.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use blockyard::DeviceOptions;
use blockyard_host::server::{QUEUES_MAX, RING_LEN_MAX, inherited_unix_socket};

use crate::failure::Failure;

/// A socket for virtual machines.
#[derive(Debug)]
pub(crate) enum DiskSocket {
    /// A path at which the server makes the socket.
    Path(PathBuf),
    /// The number of a listening descriptor that was passed.
    Inherited(i32, OwnedFd),
}

impl DiskSocket {
    /// A socket that was passed.
    pub(crate) fn inherited(number: i32) -> Result<Self, Failure> {
        let socket = inherited_unix_socket(number);
        let socket = socket.map_err(|error| Failure::failed(format!("--fd: {error}")))?;
        Ok(Self::Inherited(number, socket))
    }
}

impl fmt::Display for DiskSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "vhost-user socket {}", path.display()),
            Self::Inherited(number, _) => write!(f, "vhost-user descriptor {number}"),
        }
    }
}

/// A disk for a virtual machine, from options or a configuration file.
#[derive(Debug)]
pub(crate) struct DiskSpec {
    pub(crate) socket: DiskSocket,
    /// Its queues.
    pub(crate) options: DeviceOptions,
}

/// Name of a disk in its virtual machine: that of its export, or else of its file.
pub(crate) fn disk_name(export: &str, volume: &Path) -> String {
    let file = volume.file_name().unwrap_or_default();
    if export.is_empty() { file.to_string_lossy().into_owned() } else { export.to_owned() }
}

pub(crate) fn checked_num_queues(queues: u16) -> Result<u16, String> {
    let fits = (1..=QUEUES_MAX).contains(&queues);
    fits.then_some(queues).ok_or_else(|| format!("a disk has 1 to {QUEUES_MAX} queues"))
}

pub(crate) fn checked_queue_size(size: u16) -> Result<u16, String> {
    let fits = size.is_power_of_two() && size <= RING_LEN_MAX;
    fits.then_some(size)
        .ok_or_else(|| format!("a queue has a power of two of entries, at most {RING_LEN_MAX}"))
}
