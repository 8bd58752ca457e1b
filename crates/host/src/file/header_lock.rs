//! The lock that cryptsetup takes on a header, shared for reading and exclusive for writing
//! (`lib/utils_device_locking.c`).
//!
//! On a regular file it is `flock(2)`. On a block device it is `flock` on the separate file
//! `/run/cryptsetup/L_MAJ:MIN`, which its last holder removes. A file and the loop devices over it
//! have separate locks, and so do a disk and its partition; all that apply are taken, that of the
//! file first. Without access to the folder, `flock` on the device itself keeps out
//! other programs of ours, and not cryptsetup. With access it is taken too, if it is free.
//! cryptsetup does not see the OFD lock of an open volume.
//!
//! On some file systems `flock` may lock all bytes of the file, for the same owner as the OFD lock
//! does ([`may_lock_bytes`]). Then it conflicts with the OFD lock of another open file, it changes
//! the OFD lock of its own one, and its release would release that.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, FlockOperation, fadvise, fdatasync, flock, fstatfs, major, minor};

use super::exclusive::patiently;
use super::under::{self, Found, Place};
use super::{DeviceFile, FileId, sysfs};
use crate::Error;

/// Folder of cryptsetup's locks of block devices.
pub const LOCK_FOLDER: &str = "/run/cryptsetup";

/// A lock on a header; the drop releases it.
#[derive(Debug, Default)]
pub struct HeaderLock {
    held: Vec<Held>,
    /// Devices whose lock files are among them.
    devices: Vec<u64>,
    /// Reason why a part of the lock could not be taken.
    warning: Option<String>,
}

/// A locked file.
#[derive(Debug)]
struct Held {
    file: File,
    /// Lock file of a device, removed with the lock.
    lock_file: Option<PathBuf>,
    /// The lock ends with the last descriptor of the open file, not with this value.
    stays: bool,
}

impl Held {
    fn of(file: File) -> Self {
        Self { file, lock_file: None, stays: false }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Like cryptsetup, the last holder removes the file. A waiter that then gets the lock finds
        // the name gone and creates a new file.
        if let Some(path) = &self.lock_file
            && flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_ok()
            && is_same_file(&self.file, path)
        {
            let _ = fs::remove_file(path);
        }
        if !self.stays {
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

/// Purpose of the lock; readers share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Reading,
    Writing,
}

impl HeaderLock {
    /// Takes the lock for reading the header at a place of an open file or device; waits up to a
    /// second. Without the permission for the lock, without locks, or where it would conflict with
    /// the lock of a served volume, writers are not excluded.
    ///
    /// # Errors
    /// Another program writes the header.
    pub fn to_read(file: &File, path: &Path, start_bytes: u64) -> Result<Self, Error> {
        Self::reading(file, path, start_bytes, &[])
    }

    fn reading(file: &File, path: &Path, start_bytes: u64, own: &[File]) -> Result<Self, Error> {
        match Self::new(file, path, start_bytes, Purpose::Reading, own) {
            Err(Error::Io { .. }) => Self::none(),
            // Perhaps it is the lock of a served volume.
            Err(Error::HeaderLocked { .. }) if may_lock_bytes(file) => Self::none(),
            outcome => outcome,
        }
    }

    /// Takes the lock for writing the header at a place of an open file or device; waits up to a
    /// second. The volume may be served meanwhile, because its data is not locked; but not where
    /// both are one lock.
    ///
    /// # Errors
    /// Another program holds the lock.
    pub fn to_write(file: &File, path: &Path, start_bytes: u64) -> Result<Self, Error> {
        Self::new(file, path, start_bytes, Purpose::Writing, &[])
    }

    /// The warning of [`HeaderLock::to_write`], whose locks are taken for a moment: the writer that
    /// follows reports one that is still busy.
    #[must_use]
    pub fn warning_for(file: &File, start_bytes: u64) -> Option<String> {
        let mut lock = Self::default();
        let _ = lock.take(file, start_bytes, Purpose::Writing, &[]);
        lock.warning.take()
    }

    /// Takes the lock for reading on another open file, if that is possible beside the lock of this
    /// program's device.
    fn beside(path: &Path) -> Self {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok();
        let shared = |file: &File| flock(file, FlockOperation::NonBlockingLockShared).is_ok();
        let held = file.filter(shared).map(Held::of);
        Self { held: held.into_iter().collect(), ..Self::default() }
    }

    fn none() -> Result<Self, Error> {
        Ok(Self::default())
    }

    /// `own`: the locked open files under a loop device that this program uses.
    fn new(
        file: &File,
        path: &Path,
        start_bytes: u64,
        purpose: Purpose,
        own: &[File],
    ) -> Result<Self, Error> {
        let mut lock = Self::default();
        match lock.take(file, start_bytes, purpose, own) {
            Ok(()) => Ok(lock),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(Error::HeaderLocked { path: path.display().to_string() })
            }
            Err(error) => Err(Error::io(path, "lock its header", error)),
        }
    }

    /// Takes the locks of what is under an open file or device, of itself, and of the loop devices
    /// over it. Every writer of one header begins with the lowest, which is the same for all.
    fn take(
        &mut self,
        file: &File,
        start_bytes: u64,
        purpose: Purpose,
        own: &[File],
    ) -> io::Result<()> {
        if file.metadata()?.file_type().is_block_device() {
            self.take_under(file, start_bytes, purpose, own)?;
            self.take_of_device(file, start_bytes, Path::new(LOCK_FOLDER), purpose)
        } else {
            self.take_of_file(file, start_bytes, purpose, own)
        }
    }

    /// Takes the lock of a regular file, and those of the loop devices over it.
    fn take_of_file(
        &mut self,
        file: &File,
        start_bytes: u64,
        purpose: Purpose,
        own: &[File],
    ) -> io::Result<()> {
        let id = FileId::of(&file.metadata()?);
        let is_same = |own: &&File| own.metadata().is_ok_and(|own| FileId::of(&own) == id);
        let own = own.iter().find(is_same).filter(|own| may_lock_bytes(own));
        // An own descriptor: the lock belongs to an open file and is released with it.
        let held = match (purpose, own) {
            // A user of a loop device has locked its part of the file. Where both may be one lock,
            // a writer takes it on that open file.
            (Purpose::Writing, Some(own)) => {
                let file = own.try_clone()?;
                lock_patiently(&file, purpose)?;
                Some(Held { file, lock_file: None, stays: true })
            }
            (Purpose::Reading, Some(_)) => {
                let file = file.try_clone()?;
                let shared = flock(&file, FlockOperation::NonBlockingLockShared);
                shared.is_ok().then(|| Held::of(file))
            }
            (_, None) => {
                let file = file.try_clone()?;
                lock_patiently(&file, purpose)?;
                Some(Held::of(file))
            }
        };
        self.held.extend(held);
        forget_cache(file, purpose == Purpose::Writing);
        self.take_over(file, start_bytes, purpose)
    }

    /// Takes the lock of the file or device under a loop device.
    fn take_under(
        &mut self,
        device: &File,
        start_bytes: u64,
        purpose: Purpose,
        own: &[File],
    ) -> io::Result<()> {
        match under::find(device, purpose == Purpose::Writing) {
            Found::Nothing => Ok(()),
            Found::Open(under) => {
                let start_bytes = under.start_bytes.saturating_add(start_bytes);
                let taken = self.take(&under.file, start_bytes, purpose, own);
                forget_cache(&under.file, purpose == Purpose::Writing);
                match taken {
                    // Perhaps it is the lock of a served volume.
                    Err(_) if purpose == Purpose::Reading && may_lock_bytes(&under.file) => Ok(()),
                    taken => taken,
                }
            }
            Found::Unreachable(reason) => {
                self.warn(&format!(
                    "no lock of the file under this loop device ({reason}): see to it that no \
                     program writes this header by the name of the file meanwhile"
                ));
                Ok(())
            }
        }
    }

    /// Takes the locks of the loop devices over a place of a file or device, and of their
    /// partitions, as cryptsetup does that uses them. Usually only root may.
    fn take_over(&mut self, file: &File, start_bytes: u64, purpose: Purpose) -> io::Result<()> {
        let place = Place::of(file, start_bytes..start_bytes.saturating_add(1));
        for Place { device, .. } in under::over(place.into_iter().collect()) {
            match self.take_lock_file(Path::new(LOCK_FOLDER), device, purpose) {
                Err(error) if is_forbidden(&error) => {
                    self.warn(&format!(
                        "no lock of the loop devices over this file ({error}): see to it that \
                         cryptsetup does not write this header by their names meanwhile"
                    ));
                    break;
                }
                taken => taken?,
            }
        }
        Ok(())
    }

    /// Takes the lock file of a device, once.
    fn take_lock_file(&mut self, folder: &Path, device: u64, purpose: Purpose) -> io::Result<()> {
        if !self.devices.contains(&device) {
            self.held.push(lock_device(folder, device, purpose)?);
            self.devices.push(device);
        }
        Ok(())
    }

    fn warn(&mut self, warning: &str) {
        let text = self.warning.get_or_insert_default();
        text.push_str(if text.is_empty() { "" } else { "; " });
        text.push_str(warning);
    }

    /// Takes the locks of a block device, of its partition at this place, and of the loop devices
    /// over it.
    fn take_of_device(
        &mut self,
        file: &File,
        start_bytes: u64,
        folder: &Path,
        purpose: Purpose,
    ) -> io::Result<()> {
        let device = file.metadata()?.rdev();
        match self.take_lock_file(folder, device, purpose) {
            Err(error) if is_forbidden(&error) => {
                self.warn(&format!(
                    "no lock in {} ({error}): see to it that cryptsetup does not write this header \
                     meanwhile",
                    folder.display()
                ));
                self.take_node(file, purpose)?;
            }
            taken => {
                taken?;
                self.take_node_too(file, purpose)?;
            }
        }
        if let Some(partition) = sysfs::partition_at(device, start_bytes) {
            match self.take_lock_file(folder, partition.device, purpose) {
                // There is a warning already.
                Err(error) if is_forbidden(&error) => {}
                taken => taken?,
            }
        }
        self.take_over(file, start_bytes, purpose)
    }

    /// Takes the lock of the device itself beside that in the folder, against users without access
    /// to the folder. It is no refusal if another program has it: `udevadm lock` holds it for the
    /// program that it runs.
    fn take_node_too(&mut self, file: &File, purpose: Purpose) -> io::Result<()> {
        match (self.take_node(file, purpose), purpose) {
            (Err(error), Purpose::Writing) if error.kind() == io::ErrorKind::WouldBlock => {
                self.warn(
                    "another program has locked this device with flock: if that is not udevadm \
                     lock, see to it that it does not write this header meanwhile",
                );
                Ok(())
            }
            (Err(_), Purpose::Reading) => Ok(()),
            (taken, _) => taken,
        }
    }

    /// Takes `flock` on the device itself, as a user without access to the folder does.
    fn take_node(&mut self, file: &File, purpose: Purpose) -> io::Result<()> {
        let file = file.try_clone()?;
        lock_patiently(&file, purpose)?;
        self.held.push(Held::of(file));
        Ok(())
    }

    /// Warning for a person who is about to write.
    #[must_use]
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }
}

impl DeviceFile {
    /// Takes cryptsetup's lock for writing the header of this device; waits up to a second. A
    /// remote disk has none. Where it may be one lock with that of the device, it is held until the
    /// device is closed.
    ///
    /// # Errors
    /// Another program holds the lock.
    pub fn lock_header(&self) -> Result<HeaderLock, Error> {
        let Some(file) = self.local() else { return HeaderLock::none() };
        let own = &self.files_under[..];
        let mut lock =
            HeaderLock::new(file, &self.path, self.start_bytes(), Purpose::Writing, own)?;
        let stays = may_lock_bytes(file);
        lock.held.iter_mut().for_each(|held| held.stays |= stays);
        Ok(lock)
    }

    /// Like [`HeaderLock::to_read`], for this device.
    ///
    /// # Errors
    /// Another program writes the header.
    pub fn lock_header_to_read(&self) -> Result<HeaderLock, Error> {
        match self.local() {
            None => HeaderLock::none(),
            Some(file) if may_lock_bytes(file) => Ok(HeaderLock::beside(&self.path)),
            Some(file) => {
                HeaderLock::reading(file, &self.path, self.start_bytes(), &self.files_under)
            }
        }
    }
}

/// Whether `flock` may be a lock of bytes on the file system of this file, as `fcntl` takes them:
/// NFS (`fs/nfs/file.c`), FUSE, if its program passes locks on as GlusterFS does
/// (`fs/fuse/file.c`), SMB (`fs/smb/client/file.c`) and 9p (`fs/9p/vfs_file.c`). Numbers of
/// `linux/magic.h`.
pub(super) fn may_lock_bytes(file: &File) -> bool {
    const NFS: u64 = 0x6969;
    const FUSE: u64 = 0x6573_5546;
    const SMB: [u64; 2] = [0xff53_4d42, 0xfe53_4d42];
    const V9FS: u64 = 0x0102_1997;
    let Ok(found) = fstatfs(file) else { return false };
    let magic = found.f_type as u64 & u64::from(u32::MAX);
    [NFS, FUSE, V9FS].contains(&magic) || SMB.contains(&magic)
}

/// Drops the cached pages of a file or device where another name of it may have written since: on
/// network file systems by another mount, and on devices, because a loop device reads another one
/// through its page cache. A loop device shares the cache of a local file, so nothing is dropped
/// there. A writer first writes out what is dirty: a dirty page stays, and so does the large folio
/// around it. Pages that a program has mapped stay too.
pub(super) fn forget_cache(file: &File, writes: bool) {
    let is_device = file.metadata().is_ok_and(|found| found.file_type().is_block_device());
    if is_device || may_lock_bytes(file) {
        if writes {
            let _ = fdatasync(file);
        }
        let _ = fadvise(file, 0, None, Advice::DontNeed);
    }
}

fn is_forbidden(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied
            | io::ErrorKind::NotFound
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::ReadOnlyFilesystem
    )
}

/// Waits as long as for the lock of a volume: cryptsetup holds this lock only while it reads or
/// writes.
fn lock_patiently(file: &File, purpose: Purpose) -> io::Result<()> {
    let operation = match purpose {
        Purpose::Reading => FlockOperation::NonBlockingLockShared,
        Purpose::Writing => FlockOperation::NonBlockingLockExclusive,
    };
    patiently(|| Ok(flock(file, operation)?))
}

/// The lock of a block device.
fn lock_device(folder: &Path, device: u64, purpose: Purpose) -> io::Result<Held> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(of_lock_file(folder, &error));
        }
        _ => {}
    }
    let path = folder.join(format!("L_{}:{}", major(device), minor(device)));
    loop {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .map_err(|error| of_lock_file(&path, &error))?;
        lock_patiently(&file, purpose)?;
        // The previous holder may have removed the file; then this lock protects nothing.
        if is_same_file(&file, &path) {
            return Ok(Held { file, lock_file: Some(path), stays: false });
        }
    }
}

fn of_lock_file(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn is_same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::Access;

    #[test]
    fn lock_of_a_device_is_a_file_that_goes_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("cryptsetup");
        let device = rustix::fs::makedev(7, 4);
        let path = folder.join("L_7:4");
        let held = lock_device(&folder, device, Purpose::Writing).unwrap();
        assert!(path.exists());
        for purpose in [Purpose::Writing, Purpose::Reading] {
            let refused = lock_device(&folder, device, purpose).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        }
        lock_device(&folder, rustix::fs::makedev(7, 5), Purpose::Writing).unwrap();
        drop(held);
        assert!(!path.exists());
        let reads = [Purpose::Reading; 2].map(|read| lock_device(&folder, device, read).unwrap());
        assert!(lock_device(&folder, device, Purpose::Writing).is_err());
        let [first, last] = reads;
        drop(first);
        assert!(path.exists(), "a reader is left");
        assert!(lock_device(&folder, device, Purpose::Writing).is_err());
        drop(last);
        assert!(!path.exists());
    }

    #[test]
    fn device_without_a_folder_for_locks_is_locked_itself_with_a_warning() {
        let node = tempfile::NamedTempFile::new().unwrap();
        let take = |purpose| {
            let file = File::open(node.path()).unwrap();
            let mut lock = HeaderLock::default();
            lock.take_of_device(&file, 0, Path::new("/proc/missing"), purpose)?;
            io::Result::Ok(lock)
        };
        let held = take(Purpose::Writing).unwrap();
        assert!(held.warning().unwrap().starts_with("no lock in /proc/missing"));
        for purpose in [Purpose::Writing, Purpose::Reading] {
            assert_eq!(take(purpose).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
        drop(held);
        let _readers = [Purpose::Reading; 2].map(|purpose| take(purpose).unwrap());
        assert!(take(Purpose::Writing).is_err());
    }

    #[test]
    fn lock_of_a_file_keeps_out_who_holds_flock_and_ends_with_its_value() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let other = File::open(file.path()).unwrap();
        let device = DeviceFile::open(file.path(), Access::ReadWrite, false).unwrap();
        flock(&other, FlockOperation::LockShared).unwrap();
        assert!(matches!(device.lock_header(), Err(Error::HeaderLocked { .. })));
        flock(&other, FlockOperation::Unlock).unwrap();
        let lock = device.lock_header().unwrap();
        assert!(flock(&other, FlockOperation::NonBlockingLockShared).is_err());
        drop(lock);
        flock(&other, FlockOperation::NonBlockingLockShared).unwrap();
        // Readers share the lock.
        let lock = device.lock_header_to_read().unwrap();
        drop(lock);
        flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(matches!(device.lock_header_to_read(), Err(Error::HeaderLocked { .. })));
    }
}
