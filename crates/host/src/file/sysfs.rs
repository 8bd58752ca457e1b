//! Places of a block device in other devices and files, as sysfs has them: a partition in its disk,
//! a loop device in its file.

use std::ffi::OsString;
use std::fs;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, makedev, minor};

/// A partition of a disk.
#[derive(Debug)]
pub(super) struct Partition {
    /// Number of its device.
    pub(super) device: u64,
    /// Name of its device.
    pub(super) path: PathBuf,
    /// Place in the disk.
    pub(super) bytes: Range<u64>,
}

/// The name of the file or device under a loop device, or under that of a partition, whose place in
/// bytes is told too.
pub(super) fn backing_file(device: u64) -> Option<(PathBuf, Option<Range<u64>>)> {
    let node = folder(device);
    let is_partition = node.join("partition").exists();
    let disk = if is_partition { node.join("..") } else { node.clone() };
    let path = name_in(&disk)?;
    if !is_partition {
        return Some((path, None));
    }
    Some((path, Some(place_in(&node)?)))
}

/// The place of a partition in its disk, in bytes.
fn place_in(partition: &Path) -> Option<Range<u64>> {
    let start = number(&partition.join("start"))?.checked_mul(512)?;
    let len = number(&partition.join("size"))?.checked_mul(512)?;
    Some(start..start.checked_add(len)?)
}

/// The name in the folder of a loop device.
fn name_in(disk: &Path) -> Option<PathBuf> {
    let mut name = fs::read(disk.join("loop/backing_file")).ok()?;
    name.pop_if(|last| *last == b'\n');
    Some(OsString::from_vec(name).into())
}

/// A loop device.
#[derive(Debug)]
pub(super) struct Loop {
    /// Its number.
    pub(super) device: u64,
    /// Its name.
    pub(super) path: PathBuf,
    /// The name by which it was made.
    pub(super) over: PathBuf,
    /// Place of what it shows, in bytes of its file.
    pub(super) bytes: Range<u64>,
}

/// All loop devices that show something.
pub(super) fn loops() -> Vec<Loop> {
    let Ok(entries) = fs::read_dir("/sys/block") else { return Vec::new() };
    let described = entries.flatten().map(|entry| entry.path()).filter_map(|node| {
        let over = name_in(&node)?;
        let start = number(&node.join("loop/offset"))?;
        let end = match number(&node.join("loop/sizelimit"))? {
            0 => u64::MAX,
            len => start.saturating_add(len),
        };
        Some(Loop { device: device_in(&node)?, path: device_path(&node)?, over, bytes: start..end })
    });
    described.collect()
}

/// The name of a device.
pub(super) fn name_of(device: u64) -> Option<PathBuf> {
    device_path(&fs::canonicalize(folder(device)).ok()?)
}

/// The name of the device of a folder: sysfs writes `!` for a slash.
fn device_path(node: &Path) -> Option<PathBuf> {
    let name = node.file_name()?.to_str()?.replace('!', "/");
    Some(Path::new("/dev").join(name))
}

/// Loop devices on loop devices that are followed: a name of another mount namespace may lead
/// round in a circle here.
const DEPTH_MAX: usize = 8;

/// The folders of sysfs that describe a block device, and all that is under a loop device.
pub(super) fn behind(device: u64) -> Vec<PathBuf> {
    let mut places = Vec::new();
    let mut next = Some(device);
    for _ in 0..DEPTH_MAX {
        let Some(device) = next.take() else { break };
        let node = fs::canonicalize(folder(device)).ok();
        let disk = node.as_ref().filter(|node| node.join("partition").exists());
        let disk = disk.and_then(|node| node.parent()).map(Path::to_path_buf);
        let under = backing_file(device).map(|(path, _)| path);
        let found = under.as_ref().and_then(|path| fs::metadata(path).ok());
        let device_under = found.filter(|found| found.file_type().is_block_device());
        next = device_under.map(|found| found.rdev());
        places.extend([node, disk, under].into_iter().flatten());
    }
    places
}

/// The partition of a disk that contains a byte, as a device of its own.
pub(super) fn partition_at(disk: u64, at_bytes: u64) -> Option<Partition> {
    partitions(disk).into_iter().find(|partition| partition.bytes.contains(&at_bytes))
}

/// The partitions of a disk that are devices of their own.
pub(super) fn partitions(disk: u64) -> Vec<Partition> {
    let Ok(entries) = fs::read_dir(folder(disk)) else { return Vec::new() };
    let described = entries.flatten().filter_map(|entry| {
        let node = entry.path();
        let bytes = place_in(&node)?;
        let is_partition = node.join("partition").exists();
        let partition = Partition { device: device_in(&node)?, path: device_path(&node)?, bytes };
        is_partition.then_some(partition)
    });
    described.collect()
}

/// The disk of a partition, as [`Partition`]; the place is that of the partition in it.
pub(super) fn disk_of(partition: u64) -> Option<Partition> {
    let node = fs::canonicalize(folder(partition)).ok()?;
    let disk = node.parent().filter(|_| node.join("partition").exists())?;
    Some(Partition { device: device_in(disk)?, path: device_path(disk)?, bytes: place_in(&node)? })
}

/// Whether the device takes no writes.
pub(super) fn is_read_only(device: u64) -> bool {
    number(&folder(device).join("ro")) == Some(1)
}

/// Whether another device lies on this one: device-mapper, md.
pub(super) fn has_holders(device: u64) -> bool {
    fs::read_dir(folder(device).join("holders")).is_ok_and(|mut holders| holders.next().is_some())
}

/// The number of the device of a folder.
fn device_in(node: &Path) -> Option<u64> {
    let text = fs::read_to_string(node.join("dev")).ok()?;
    let (major, minor) = text.trim_end().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn folder(device: u64) -> PathBuf {
    format!("/sys/dev/block/{}:{}", major(device), minor(device)).into()
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim_end().parse().ok()
}
