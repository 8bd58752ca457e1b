//! Other names of a device: its partitions, its disk, and the loop devices over all of them.
//!
//! Each has a lock and a page cache of its own. So a writer looks for a writer by another name, and
//! it writes out what an earlier one, perhaps killed, has left in the cache of another name: the
//! kernel would write that over newer data later.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::claim::is_visibly_used;
use super::exclusive::is_written;
use super::header_lock::forget_cache;
use super::under::{self, Place};
use super::{Access, FileId, sysfs};
use crate::log;

/// The partition of this device, or its disk, that another program of ours writes at this place.
pub(super) fn written(device: &File, part: &Range<u64>, access: Access) -> Option<PathBuf> {
    let place = Place::of(device, part.clone()).filter(|place| place.device != 0)?;
    let is_written = |other: &Place| {
        let device = opened(&other.path, other.device, 0);
        device.is_ok_and(|device| is_written(&device, &other.bytes, access))
    };
    near(&place).into_iter().find(is_written).map(|other| other.path)
}

/// Writes out what the caches of other names of this part of a file or device hold, and drops it. A
/// warning names a loop device over the file that cannot be opened; `shown` is the volume's name.
pub(super) fn settle(shown: &Path, file: &File, part: &Range<u64>) {
    let Some(place) = Place::of(file, part.clone()) else { return };
    let is_file = place.device == 0;
    let near = near(&place);
    let over = under::over(std::iter::once(place).chain(near.clone()).collect());
    for Place { path, device, .. } in near.into_iter().chain(over) {
        match opened(&path, device, 0) {
            // Not asked needlessly: a loop device of this name in another mount namespace waits for
            // its own file system, which may hang.
            Ok(device) => forget_cache(&device, has_unwritten(&device)),
            Err(error) if is_file && !sysfs::is_read_only(device) => {
                log::Event::new(log::Kind::Warning).say(format_args!(
                    "{}: the loop device {} over a file of this name cannot be opened ({error}): \
                     see to it that no program uses it meanwhile",
                    shown.display(),
                    path.display()
                ));
            }
            Err(_) => {}
        }
    }
}

/// Whether the cache of a device may have pages that are not written out. Linux cannot tell before
/// 6.5.
fn has_unwritten(device: &File) -> bool {
    let all = [0_u64; 2];
    let mut pages = [0_u64; CACHESTAT_WORDS];
    // SAFETY: cachestat(2) reads the two words of a range, whose length zero means the rest of the
    // file, and writes five words.
    let told = unsafe {
        libc::syscall(CACHESTAT, device.as_raw_fd(), all.as_ptr(), pages.as_mut_ptr(), 0)
    };
    let [_cached, dirty, under_write_back, ..] = pages;
    told != 0 || dirty + under_write_back > 0
}

/// Number of cachestat(2) on all architectures.
const CACHESTAT: libc::c_long = 451;
/// Length of `struct cachestat` of `linux/mman.h`.
const CACHESTAT_WORDS: usize = 5;

/// Whether the system visibly uses the device, a partition of it or its disk.
pub(super) fn are_visibly_used(device: u64) -> bool {
    let place = Place { path: PathBuf::new(), device, bytes: 0..u64::MAX };
    let near = near(&place).into_iter().map(|near| near.device);
    std::iter::once(device).chain(near).any(is_visibly_used)
}

/// The partitions of the device at this place, and its disk.
fn near(place: &Place) -> Vec<Place> {
    under::in_partitions(place).into_iter().chain(in_disk(place)).collect()
}

/// The place of a partition in its disk.
fn in_disk(partition: &Place) -> Option<Place> {
    let disk = sysfs::disk_of(partition.device)?;
    let at = |bytes: u64| disk.bytes.start.saturating_add(bytes).min(disk.bytes.end);
    let bytes = at(partition.bytes.start)..at(partition.bytes.end);
    Some(Place { path: disk.path, device: disk.device, bytes })
}

/// Opens the node of the device of this number. A name that leads to a FIFO must not hold it up.
pub(super) fn opened(path: &Path, number: u64, flags: libc::c_int) -> io::Result<File> {
    let flags = flags | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let is_same = FileId::of(&file.metadata()?) == FileId::of_device(number);
    if is_same { Ok(file) } else { Err(io::ErrorKind::NotFound.into()) }
}
