//! Whether a part of the device under a loop device is in use: mounted, claimed by another device,
//! or open in another program of ours.
//!
//! A writer tries the kernel's claims (`bd_may_claim` of `block/bdev.c`) for a moment. They are
//! not held, because other loop devices may show other parts. The claim of a disk is refused while
//! one of its partitions is claimed, and that of a partition while its whole disk is. So a refusal
//! of the disk is no reason if the partitions in the part are free, and another one is the cause.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use super::exclusive::{is_locked, is_shared, is_taken, patiently};
use super::sysfs::{self, Partition};
use super::{Access, FileId};

/// The device that is in use in this part of the device `below`: itself, or a partition.
pub(super) fn taken(below: &File, part: &Range<u64>, access: Access) -> Option<PathBuf> {
    let device = below.metadata().ok().filter(|found| found.file_type().is_block_device())?;
    let name = PathBuf::from(format!("/proc/self/fd/{}", below.as_raw_fd()));
    let claims = |path: &Path, number| patiently(|| claim(path, number, access));
    if !access.writes() || claims(&name, device.rdev()).is_ok() {
        return None;
    }
    let partitions = sysfs::partitions(device.rdev());
    let overlaps = |bytes: &Range<u64>| bytes.start < part.end && part.start < bytes.end;
    let (shown, others): (Vec<_>, Vec<_>) =
        partitions.into_iter().partition(|partition| overlaps(&partition.bytes));
    // Also one that this user may not open, or that has no node, may be in use.
    let is_free = |partition: &Partition| claims(&partition.path, partition.device).is_ok();
    if let Some(used) = shown.iter().find(|partition| !is_free(partition)) {
        return Some(used.path.clone());
    }
    // A free partition has a disk that is not in use as a whole.
    let is_explained = !shown.is_empty() || others.iter().any(|other| explains(other, access));
    (!is_explained).then(|| fs::read_link(&name).unwrap_or(name))
}

/// Whether a partition shows that its disk is not in use as a whole: it is free, or in use itself.
fn explains(partition: &Partition, access: Access) -> bool {
    let Partition { device, path, .. } = partition;
    let is_free = claim(path, *device, access).is_ok();
    is_free || is_mounted(*device) || sysfs::has_holders(*device) || is_open_in_ours(path, *device)
}

/// Claims the device of this number for a moment; programs that share it share its claim.
fn claim(path: &Path, number: u64, access: Access) -> io::Result<()> {
    let claimed = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path);
    match claimed {
        Err(error) if is_taken(&error) && access == Access::Shared => {
            if is_shared(&opened(path, number)?)? { Ok(()) } else { Err(error) }
        }
        claimed => claimed.and_then(|file| has_number(&file, number)),
    }
}

/// Opens the node of the device of this number.
fn opened(path: &Path, number: u64) -> io::Result<File> {
    let file = File::open(path)?;
    has_number(&file, number)?;
    Ok(file)
}

fn has_number(file: &File, number: u64) -> io::Result<()> {
    let is_same = FileId::of(&file.metadata()?) == FileId::of_device(number);
    if is_same { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Whether this mount namespace has a file system on the device.
fn is_mounted(device: u64) -> bool {
    let number = format!("{}:{}", major(device), minor(device));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|mount| mount.split(' ').nth(2) == Some(&number))
}

/// Whether a program of ours has the device open, or another one that locks it likewise.
fn is_open_in_ours(path: &Path, device: u64) -> bool {
    opened(path, device).is_ok_and(|file| is_locked(&file))
}
