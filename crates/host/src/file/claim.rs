//! Whether a part of the device under a loop device is in use: mounted, claimed by another device,
//! or open in another program of ours.
//!
//! A writer tries the kernel's claims (`bd_may_claim` of `block/bdev.c`) for a moment. They are
//! not held, because other loop devices may show other parts. The claim of a disk is refused while
//! one of its partitions is claimed, and that of a partition while its whole disk is. So a refusal
//! of the disk is no reason if the partitions in the part are free, and another one is the cause.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use super::Access;
use super::exclusive::{is_locked, is_shared, is_taken, patiently};
use super::names::{are_visibly_used, opened};
use super::sysfs::{self, Partition};

/// The device that is in use in this part of the device `below`: itself, or a partition.
pub(super) fn taken(below: &File, part: &Range<u64>, access: Access) -> Option<PathBuf> {
    let device = below.metadata().ok().filter(|found| found.file_type().is_block_device())?;
    if !access.writes() {
        return None;
    }
    let below = Below { name: format!("/proc/self/fd/{}", below.as_raw_fd()).into(), device };
    let mut used = None;
    let _ = patiently(|| {
        used = below.used_in(part, access);
        if used.is_some() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    });
    used
}

/// A device under a loop device.
struct Below {
    /// A name of the open device.
    name: PathBuf,
    device: fs::Metadata,
}

impl Below {
    fn used_in(&self, part: &Range<u64>, access: Access) -> Option<PathBuf> {
        let overlaps = |bytes: &Range<u64>| bytes.start < part.end && part.start < bytes.end;
        let (shown, others): (Vec<_>, Vec<_>) = sysfs::partitions(self.device.rdev())
            .into_iter()
            .partition(|partition| overlaps(&partition.bytes));
        // The claim of a disk that is shared may have ended with the first of those who share it.
        let used =
            shown.iter().find(|part| is_visibly_used(part.device) || is_locked_in(part, access));
        if let Some(used) = used {
            return Some(used.path.clone());
        }
        if claim(&self.name, self.device.rdev(), access).is_ok() {
            return None;
        }
        // Also one that this user may not open, or that has no node, may be in use.
        let is_free = |part: &&Partition| claim(&part.path, part.device, access).is_ok();
        if let Some(used) = shown.iter().find(|part| !is_free(part)) {
            return Some(used.path.clone());
        }
        // A free partition, or one in use, has a disk that is not in use as a whole. A lock shows
        // nothing: it is no claim.
        let explains = |part: &Partition| is_free(&part) || is_visibly_used(part.device);
        let is_explained = !shown.is_empty() || others.iter().any(explains);
        (!is_explained).then(|| fs::read_link(&self.name).unwrap_or_else(|_| self.name.clone()))
    }
}

/// Claims the device of this number for a moment; programs that share it share its claim.
fn claim(path: &Path, number: u64, access: Access) -> io::Result<()> {
    match opened(path, number, libc::O_EXCL) {
        Err(error) if is_taken(&error) && access == Access::Shared => {
            let is_ours = is_shared(&opened(path, number, 0)?)? && !are_visibly_used(number);
            if is_ours { Ok(()) } else { Err(error) }
        }
        claimed => claimed.map(drop),
    }
}

/// Whether this mount namespace has a file system on the partition, or another device lies on it.
pub(super) fn is_visibly_used(device: u64) -> bool {
    let number = format!("{}:{}", major(device), minor(device));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let is_mounted = mounts.lines().any(|mount| mount.split(' ').nth(2) == Some(&number));
    is_mounted || sysfs::has_holders(device)
}

/// Whether a program of ours uses the partition by another name, so that this use is excluded.
fn is_locked_in(partition: &Partition, access: Access) -> bool {
    let file = opened(&partition.path, partition.device, 0);
    file.is_ok_and(|file| is_locked(&file, access))
}
