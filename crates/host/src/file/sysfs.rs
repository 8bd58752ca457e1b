//! Places of a block device in other devices and files, as sysfs has them: a partition in its disk,
//! a loop device in its file.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{major, makedev, minor};

/// The part of a file that a loop device, or a partition of one, shows.
#[derive(Debug)]
pub(super) struct Under {
    /// The file.
    pub(super) path: PathBuf,
    /// Start of the part, in bytes.
    pub(super) start_bytes: u64,
    /// Length of the part, in bytes; zero: to the end of the file.
    pub(super) len_bytes: u64,
}

/// The file under a loop device or a partition of one.
pub(super) fn under_loop(device: u64) -> Option<Under> {
    let node = folder(device);
    let is_partition = node.join("partition").exists();
    let disk = if is_partition { node.join("..") } else { node.clone() };
    let path = fs::read_to_string(disk.join("loop/backing_file")).ok()?;
    let path = PathBuf::from(path.strip_suffix('\n').unwrap_or(&path));
    if !fs::metadata(&path).is_ok_and(|metadata| metadata.is_file()) {
        return None;
    }
    let loop_start_bytes = number(&disk.join("loop/offset"))?;
    Some(if is_partition {
        let start_bytes = loop_start_bytes + number(&node.join("start"))? * 512;
        Under { path, start_bytes, len_bytes: number(&node.join("size"))? * 512 }
    } else {
        let len_bytes = number(&disk.join("loop/sizelimit"))?;
        Under { path, start_bytes: loop_start_bytes, len_bytes }
    })
}

/// The folders of sysfs that describe a block device, and the file under a loop device.
pub(super) fn behind(device: u64) -> Vec<PathBuf> {
    let node = fs::canonicalize(folder(device)).ok();
    let disk = node.as_ref().filter(|node| node.join("partition").exists());
    let disk = disk.and_then(|node| node.parent()).map(Path::to_path_buf);
    let under = under_loop(device).map(|under| under.path);
    [node, disk, under].into_iter().flatten().collect()
}

/// The partition of a disk that contains a byte, as a device of its own.
pub(super) fn partition_at(disk: u64, at_bytes: u64) -> Option<u64> {
    let entries = fs::read_dir(folder(disk)).ok()?;
    entries.flatten().find_map(|entry| {
        let node = entry.path();
        let start = number(&node.join("start"))?;
        let end = start + number(&node.join("size"))?;
        let is_here = node.join("partition").exists() && (start..end).contains(&(at_bytes / 512));
        let text = fs::read_to_string(node.join("dev")).ok().filter(|_| is_here)?;
        let (major, minor) = text.trim_end().split_once(':')?;
        Some(makedev(major.parse().ok()?, minor.parse().ok()?))
    })
}

fn folder(device: u64) -> PathBuf {
    format!("/sys/dev/block/{}:{}", major(device), minor(device)).into()
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim_end().parse().ok()
}
