//! The file or device under a loop device.
//!
//! sysfs has the name that it had when the loop device was made. Another file may have this name
//! now, or the name is one of another mount namespace. So the number of what is opened by the name
//! must be that of the loop device (`LOOP_GET_STATUS64` of loop(4)).

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::sysfs::{self, Loop, Partition};

/// A file or device whose bytes a loop device shows.
#[derive(Debug)]
pub(super) struct Under {
    /// A regular file or a block device, open for this use alone.
    pub(super) file: File,
    /// Start in it of what the device shows, in bytes.
    pub(super) start_bytes: u64,
    /// Length of what the device shows, in bytes; zero: to the end.
    pub(super) len_bytes: u64,
}

impl Under {
    /// The place in it of a part of the device. The end is at most that of what the device shows.
    pub(super) fn place_of(&self, part: &Range<u64>) -> Range<u64> {
        let end = match self.len_bytes {
            0 => u64::MAX,
            len => self.start_bytes.saturating_add(len),
        };
        let place = |at: u64| self.start_bytes.saturating_add(at).min(end);
        place(part.start)..place(part.end)
    }
}

/// A look under a file or device.
#[derive(Debug)]
pub(super) enum Found {
    /// It is no loop device, and no partition of one.
    Nothing,
    Open(Under),
    /// The reason why it cannot be had.
    Unreachable(String),
}

/// Opens what is under a loop device or a partition of one; for writing too, if that is wanted and
/// permitted.
pub(super) fn find(device: &File, writes: bool) -> Found {
    let is_block_device = |found: &fs::Metadata| found.file_type().is_block_device();
    let Some(metadata) = device.metadata().ok().filter(is_block_device) else {
        return Found::Nothing;
    };
    let Ok(status) = LoopStatus::of(device) else { return Found::Nothing };
    let Some((path, partition)) = sysfs::backing_file(metadata.rdev()) else {
        return Found::Unreachable("sysfs does not name it".into());
    };
    match open(&path, writes) {
        Ok(file) if status.is_of(&file) => {
            let (start_bytes, len_bytes) = match partition {
                None => (status.start_bytes, status.len_bytes),
                Some(bytes) => {
                    (status.start_bytes.saturating_add(bytes.start), bytes.end - bytes.start)
                }
            };
            Found::Open(Under { file, start_bytes, len_bytes })
        }
        Ok(_) => Found::Unreachable(format!("another file has its name {} now", path.display())),
        Err(error) => Found::Unreachable(format!("{}: {error}", path.display())),
    }
}

/// A name that leads to a FIFO or a terminal by now must not hold up the opening.
fn open(path: &Path, writes: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let written = writes.then(|| options.clone().write(true).open(path));
    let file = match written {
        Some(Ok(file)) => file,
        _ => options.open(path)?,
    };
    let file_type = file.metadata()?.file_type();
    if file_type.is_file() || file_type.is_block_device() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a file nor a block device"))
    }
}

/// `struct loop_info64` of `linux/loop.h`, as far as it is used.
struct LoopStatus {
    device: u64,
    inode: u64,
    /// Of a device under it: its number.
    number: u64,
    start_bytes: u64,
    len_bytes: u64,
}

impl LoopStatus {
    /// The status of a loop device; an error for any other device.
    fn of(device: &File) -> io::Result<Self> {
        let mut info = [0_u64; LOOP_INFO_BYTES / size_of::<u64>()];
        // SAFETY: LOOP_GET_STATUS64 writes a `loop_info64` of these bytes to the pointer, which
        // outlives the call. Other drivers do not know the number.
        let asked =
            unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64 as _, info.as_mut_ptr()) };
        match (asked, info) {
            (0, [device, inode, number, start_bytes, len_bytes, ..]) => {
                Ok(Self { device, inode, number, start_bytes, len_bytes })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether this file is under it, or this device by any of its nodes.
    fn is_of(&self, file: &File) -> bool {
        file.metadata().is_ok_and(|it| {
            if it.file_type().is_block_device() {
                it.rdev() == self.number
            } else {
                (it.dev(), it.ino()) == (self.device, self.inode)
            }
        })
    }
}

/// `linux/loop.h`.
const LOOP_GET_STATUS64: u64 = 0x4c05;
/// Size of `loop_info64`.
const LOOP_INFO_BYTES: usize = 232;

/// A part of a file or device.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) path: PathBuf,
    /// Number of the device; zero of a file.
    pub(super) device: u64,
    pub(super) bytes: Range<u64>,
}

impl Place {
    pub(super) fn of(file: &File, bytes: Range<u64>) -> Option<Self> {
        let device = file.metadata().ok()?.rdev();
        // A device may be open by another node than that of its name.
        let path = sysfs::name_of(device).or_else(|| name_of(file))?;
        Some(Self { path, device, bytes })
    }
}

/// The loop devices that show one of these places, those over them, and the partitions of all of
/// them there, without order. They are known by the name of the file when they were made: the
/// question for its number waits for its file system, which may be one that hangs.
pub(super) fn over(of: Vec<Place>) -> Vec<Place> {
    let mut places = of;
    let partitions: Vec<_> = places.iter().flat_map(in_partitions).collect();
    places.extend(partitions);
    let loops = sysfs::loops();
    let mut found: Vec<Place> = Vec::new();
    while let Some(place) = places.pop() {
        for Loop { device, path, bytes, .. } in loops.iter().filter(|it| it.over == place.path) {
            let is_new = found.iter().all(|known| known.device != *device);
            let shown = inside(bytes, &place.bytes).filter(|_| is_new);
            let Some(bytes) = shown else { continue };
            let shown = Place { path: path.clone(), device: *device, bytes };
            let partitions = in_partitions(&shown);
            let more: Vec<_> = std::iter::once(shown).chain(partitions).collect();
            found.extend_from_slice(&more);
            places.extend(more);
        }
    }
    found
}

/// The partitions of a disk at a place, and the place in each.
pub(super) fn in_partitions(disk: &Place) -> Vec<Place> {
    let partitions = sysfs::partitions(disk.device).into_iter();
    let at = partitions.filter_map(|Partition { device, path, bytes }| {
        Some(Place { path, device, bytes: inside(&bytes, &disk.bytes)? })
    });
    at.collect()
}

/// A place of a disk within one of its parts, counted from the start of this part.
fn inside(part: &Range<u64>, place: &Range<u64>) -> Option<Range<u64>> {
    let [start, end] = [part.start.max(place.start), part.end.min(place.end)];
    (start < end).then(|| start - part.start..end - part.start)
}

/// The present name of an open file.
fn name_of(file: &File) -> Option<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}
