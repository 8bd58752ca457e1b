//! Exclusive use of a file or block device, from its opening until it is closed.
//!
//! Programs of ours exclude each other by a lock of the open file description; qemu honours it too,
//! and it does not conflict with `cryptsetup luksDump`, which uses `flock`.
//!
//! On a block device, a writer also holds the kernel's exclusive claim (`O_EXCL`). The kernel
//! refuses it while the device, its whole disk or a partition of it is mounted, is swap or belongs
//! to another device, and it refuses all of these while the claim is held. The claim belongs to one
//! descriptor; other descriptors of the file need none. Programs that share a device
//! ([`Access::Shared`]) share the claim of the first.
//!
//! A loop device and its file are one storage with two names. So a user of the device also locks
//! its part of the file, if it may open the file.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use super::names::are_visibly_used;
use super::under::{self, Found};
use super::{Access, claim, names};
use crate::{Error, log};

/// A disk that is merely busy finishes its operations within this time.
const PATIENCE: Duration = Duration::from_secs(1);
/// The byte of a block device that only [`Access::Shared`] locks for reading.
const SHARED_BYTE: libc::off_t = libc::off_t::MAX;
/// From here on, the bytes of a block device are locked only by writers: no device is so long.
const MARKS: libc::off_t = 1 << 62;

/// Opens and locks a file or block device.
pub(super) fn open(path: &Path, access: Access, is_block_device: bool) -> Result<File, Error> {
    let file = patiently(|| try_open(path, access, is_block_device && access.writes()));
    let file = file.map_err(|error| {
        let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
        if is_denied && access.writes() && File::open(path).is_ok() {
            let problem = "cannot open it for writing: this user may only read it; serve and mount \
                           open it with `read_only`";
            return Error::parameter(path.display(), problem);
        }
        refused(path, "open", error)
    })?;
    patiently(|| try_lock(&file, access, is_block_device))
        .map_err(|error| refused(path, "lock", error))?;
    keep_out_other_names(path, &file, &(0..u64::MAX), access)?;
    Ok(file)
}

/// Locks what is under an open loop device: its part of the file, and of each device between them.
/// A writer is warned where that cannot be done.
pub(super) fn lock_under(path: &Path, device: &File, access: Access) -> Result<Vec<File>, Error> {
    let mut locked = Vec::new();
    let mut part = 0..u64::MAX;
    if access.writes() {
        names::settle(path, device, &part);
    }
    let mut found = under::find(device, access.writes());
    while let Found::Open(below) = found {
        part = below.place_of(&part);
        if let Some(taken) = claim::taken(&below.file, &part, access) {
            return Err(used_on(path, &taken));
        }
        match patiently(|| lock_part(&below.file, &part, access)) {
            Err(error) if is_taken(&error) => return Err(refused(path, "lock its file", error)),
            Ok(false) => warn(path, "this user may only read it"),
            // The other errors come from a file system without locks.
            _ => {}
        }
        keep_out_other_names(path, &below.file, &part, access)?;
        if access.writes() {
            names::settle(path, &below.file, &part);
        }
        found = under::find(&below.file, access.writes());
        locked.push(below.file);
    }
    if let Found::Unreachable(reason) = found
        && access.writes()
    {
        warn(path, &reason);
    }
    Ok(locked)
}

/// Checks that no program of ours writes this part of a device by the name of a partition or of the
/// disk. The own lock comes before, so of two that begin at once one sees the other.
fn keep_out_other_names(
    path: &Path,
    device: &File,
    part: &Range<u64>,
    access: Access,
) -> Result<(), Error> {
    if !access.writes() {
        return Ok(());
    }
    let mut written = None;
    let _ = patiently(|| {
        written = names::written(device, part, access);
        if written.is_some() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    });
    match written {
        Some(name) => Err(used_on(path, &name)),
        None => Ok(()),
    }
}

/// The name that excludes the use of this path.
fn used_on(path: &Path, name: &Path) -> Error {
    Error::InUse { path: format!("{} (on {})", path.display(), name.display()) }
}

fn warn(path: &Path, reason: &str) {
    log::Event::new(log::Kind::Warning).say(format_args!(
        "{}: no lock of the file under this loop device ({reason}): see to it that no program \
         opens the volume by the name of the file meanwhile",
        path.display()
    ));
}

/// Locks a part of what is under a loop device. Returns false if a writer has the lock of a reader:
/// the file is open for reading only.
fn lock_part(file: &File, part: &Range<u64>, access: Access) -> io::Result<bool> {
    let mut range = range_of(part, lock_type(access));
    let is_block_device = file.metadata()?.file_type().is_block_device();
    if range.l_len == 0 && is_block_device {
        // The rest is not ours: see `Access::Shared`.
        range.l_len = (MARKS - range.l_start).max(1);
    }
    if is_block_device && access == Access::Shared {
        set_lock(file, &mark_of(part, libc::F_RDLCK))?;
    }
    match set_lock(file, &range) {
        // This lock keeps out those who may write to the file.
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => {
            range.l_type = libc::F_RDLCK as i16;
            set_lock(file, &range).map(|()| false)
        }
        locked => locked.map(|()| true),
    }
}

fn refused(path: &Path, action: &'static str, error: io::Error) -> Error {
    if is_taken(&error) {
        Error::InUse { path: path.display().to_string() }
    } else {
        Error::io(path, action, error)
    }
}

/// Retries for a while what another program prevents: the claim and the lock of a killed server
/// stay until the kernel has ended its last operation, which no event announces.
pub(super) fn patiently<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(error) if is_taken(&error) && start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(10));
            }
            outcome => return outcome,
        }
    }
}

/// Whether another program has the claim or the lock.
pub(super) fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy)
}

fn try_open(path: &Path, access: Access, claims: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(access.writes());
    if !claims {
        return options.open(path);
    }
    let claimed = options.clone().custom_flags(libc::O_EXCL).open(path);
    match claimed {
        // Opened only to read: a close after writing makes udev look at the device.
        Err(error) if is_taken(&error) && access == Access::Shared => {
            // The claim ends with the first of those who share; a mount may have come since.
            let device = File::open(path)?;
            let is_ours = is_shared(&device)? && !are_visibly_used(device.metadata()?.rdev());
            if is_ours { options.open(path) } else { Err(error) }
        }
        outcome => outcome,
    }
}

/// The locks of what is under a loop device that is overwritten.
#[derive(Debug, Default)]
pub struct OutputLock {
    _below: Vec<File>,
}

/// Locks a file for overwriting like a volume: until it is closed, and under a loop device until
/// the value is dropped. `None` if another program holds a lock. File systems without locks permit
/// everything.
#[must_use]
pub fn lock_output(file: &File, path: &Path) -> Option<OutputLock> {
    let locked = try_lock(file, Access::ReadWrite, false);
    if locked.is_err_and(|error| is_taken(&error)) {
        return None;
    }
    keep_out_other_names(path, file, &(0..u64::MAX), Access::ReadWrite).ok()?;
    let below = lock_under(path, file, Access::ReadWrite).ok()?;
    Some(OutputLock { _below: below })
}

fn try_lock(file: &File, access: Access, is_block_device: bool) -> io::Result<()> {
    let mut range = whole_file(lock_type(access));
    if is_block_device && access == Access::ReadOnly {
        range.l_len = MARKS;
    }
    set_lock(file, &range)
}

fn lock_type(access: Access) -> libc::c_int {
    match access {
        Access::ReadOnly | Access::Shared => libc::F_RDLCK,
        Access::ReadWrite => libc::F_WRLCK,
    }
}

fn set_lock(file: &File, range: &libc::flock) -> io::Result<()> {
    // SAFETY: F_OFD_SETLK reads a `flock` from the pointer, which outlives the call.
    let locked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const *range) };
    if locked == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    // POSIX permits either for a lock that another program holds.
    let is_held = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES));
    Err(if is_held { io::ErrorKind::WouldBlock.into() } else { error })
}

/// Whether another descriptor has the block device open with [`Access::Shared`].
pub(super) fn is_shared(file: &File) -> io::Result<bool> {
    let mut range = whole_file(libc::F_WRLCK);
    (range.l_start, range.l_len) = (SHARED_BYTE, 1);
    Ok(lock_against(file, range)? == libc::F_RDLCK)
}

/// Whether another descriptor has the lock of a writer on a part of the device that excludes this
/// access.
pub(super) fn is_written(device: &File, part: &Range<u64>, access: Access) -> bool {
    let found = |range| lock_against(device, range).unwrap_or(libc::F_UNLCK);
    let is_shared = || found(mark_of(part, libc::F_WRLCK)) != libc::F_UNLCK;
    found(range_of(part, libc::F_RDLCK)) == libc::F_WRLCK
        || access == Access::ReadWrite && is_shared()
}

/// The lock beside a place of a block device by which [`Access::Shared`] differs from a reader: as
/// far behind the mark's start as the place behind that of the device.
fn mark_of(part: &Range<u64>, lock_type: libc::c_int) -> libc::flock {
    let at = |bytes: u64| MARKS.saturating_add_unsigned(bytes);
    let mut range = whole_file(lock_type);
    range.l_start = at(part.start);
    range.l_len = at(part.end) - range.l_start;
    range
}

/// Whether another descriptor has a lock that excludes this access.
pub(super) fn is_locked(file: &File, access: Access) -> bool {
    let range = whole_file(lock_type(access));
    lock_against(file, range).is_ok_and(|found| found != libc::F_UNLCK)
}

/// The type of a lock that excludes this one, or [`libc::F_UNLCK`].
fn lock_against(file: &File, mut range: libc::flock) -> io::Result<libc::c_int> {
    // SAFETY: F_OFD_GETLK reads and writes a `flock` at the pointer, which outlives the call.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut range) };
    match asked {
        0 => Ok(range.l_type.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A lock of this type on a part.
fn range_of(part: &Range<u64>, lock_type: libc::c_int) -> libc::flock {
    let mut range = whole_file(lock_type);
    // A place behind the longest file locks nothing that is there.
    range.l_start = part.start.try_into().unwrap_or(libc::off_t::MAX);
    // Zero is a range without an end.
    range.l_len = (part.end - part.start).try_into().unwrap_or(0);
    range
}

/// A lock of this type on the whole file.
fn whole_file(lock_type: libc::c_int) -> libc::flock {
    // SAFETY: all-zero bytes are a valid `flock`: the whole file from its start, and pid 0 as
    // required.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = lock_type as i16;
    range
}
