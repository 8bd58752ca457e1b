//! The disk that a volume is for a virtual machine.

use std::path::{Path, PathBuf};

use blockyard::DeviceOptions;
use blockyard_host::server::{QUEUES_MAX, RING_LEN_MAX};

/// A disk for a virtual machine, from options or a configuration file.
#[derive(Debug)]
pub(crate) struct DiskSpec {
    /// Its socket.
    pub(crate) path: PathBuf,
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
