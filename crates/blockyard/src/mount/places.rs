//! Files of a mount outside of it, in a folder that only this user may enter.
//!
//! ```text
//! $XDG_RUNTIME_DIR/blockyard/
//!   mount-0:45       socket of the process that serves the mount with this device number
//!   volume-AbC123/   private directory of a mount with a driver; locked while its process lives
//!     volume/        the mounted plaintext
//!     said           output of the driver
//!     target         the mount point of the driver
//! ```

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use blockyard_host::fuse;
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;

use crate::Error;

/// Start of the names of private directories.
const PRIVATE: &str = "volume-";
/// Name of the mount point of the plaintext.
const VOLUME: &str = "volume";
/// Start of the name of the folder.
const FOLDER: &str = "blockyard";
/// Start of the names of sockets.
const SOCKET: &str = "mount-";

/// The folder, which is created if it is missing.
pub(super) fn folder() -> Result<PathBuf, Error> {
    let uid = geteuid().as_raw();
    let of_session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let usual = if uid == 0 { "/run".into() } else { PathBuf::from(format!("/run/user/{uid}")) };
    let is_own = |path: &PathBuf| fs::metadata(path).is_ok_and(|it| it.is_dir() && it.uid() == uid);
    let folder = match of_session.into_iter().chain([usual]).find(is_own) {
        Some(runtime) => runtime.join(FOLDER),
        None => std::env::temp_dir().join(format!("{FOLDER}-{uid}")),
    };
    let failed = |error| Error::file(&folder, error);
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    let found = fs::symlink_metadata(&folder).map_err(failed)?;
    if found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0 {
        return Ok(folder);
    }
    let problem = "this must be a directory that only you can enter (mode 0700); remove it, or set \
                   XDG_RUNTIME_DIR to a directory of yours";
    Err(Error::mount(&folder, problem))
}

/// The socket of the mount with this device number.
pub(super) fn socket(device: &str) -> Result<PathBuf, Error> {
    Ok(folder()?.join(format!("{SOCKET}{device}")))
}

/// The private directory of a mount with a driver. The drop removes it.
#[derive(Debug)]
pub(super) struct PrivateDirectory {
    path: PathBuf,
    /// Holds the lock.
    _lock: File,
}

impl PrivateDirectory {
    pub(super) fn new(target: &Path) -> Result<Self, Error> {
        let folder = folder()?;
        let failed = |error| Error::file(&folder, error);
        let made = tempfile::Builder::new().prefix(PRIVATE).tempdir_in(&folder).map_err(failed)?;
        let lock = File::open(made.path()).map_err(failed)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|errno| failed(errno.into()))?;
        let private = Self { path: made.keep(), _lock: lock };
        fs::write(private.path.join("target"), target.as_os_str().as_bytes()).map_err(failed)?;
        fs::create_dir(private.volume()).map_err(failed)?;
        Ok(private)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Mount point of the plaintext.
    pub(super) fn volume(&self) -> PathBuf {
        self.path.join(VOLUME)
    }

    /// File with the output of the driver.
    pub(super) fn said(&self) -> PathBuf {
        self.path.join("said")
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Whether a mount shows files of a plaintext in a private directory, perhaps in that of another
/// session. Its source is the plaintext.
pub(super) fn is_driven(mount: &fuse::Mount) -> bool {
    let mut above = Path::new(&mount.source).ancestors().skip(1).map(Path::file_name);
    let mut next = || above.next().flatten().and_then(OsStr::to_str).unwrap_or_default();
    mount.kind.starts_with("fuse")
        && next() == VOLUME
        && next().starts_with(PRIVATE)
        && next().starts_with(FOLDER)
}

/// Removes a private directory whose mount is gone. Each name is known, so that nothing below a
/// mount can be meant. While the plaintext is mounted, the directory stays for [`sweep`].
fn remove(path: &Path) {
    if fs::remove_dir(path.join(VOLUME)).is_err_and(|error| error.kind() != ErrorKind::NotFound) {
        return;
    }
    for file in ["said", "target"] {
        let _ = fs::remove_file(path.join(file));
    }
    let _ = fs::remove_dir(path);
}

/// Removes what processes have left behind that were killed; returns the mount points of their
/// drivers.
pub(super) fn sweep() -> Vec<PathBuf> {
    let entries = folder().ok().and_then(|folder| fs::read_dir(folder).ok());
    let mut targets = Vec::new();
    for path in entries.into_iter().flatten().flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(PRIVATE) {
            targets.extend(remove_abandoned(&path));
        } else if name.starts_with(SOCKET) && is_deaf(&path) {
            let _ = fs::remove_file(&path);
        }
    }
    targets
}

/// Removes the private directory of a process that has ended; returns its mount point.
fn remove_abandoned(path: &Path) -> Option<PathBuf> {
    let lock = File::open(path).ok()?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
    let target = fs::read(path.join("target")).ok();
    // Without a mount there is nothing to do.
    if let Ok(Some(mount)) = fuse::mount_at(&path.join(VOLUME)) {
        let _ = fuse::unmount(&mount, true);
    }
    remove(path);
    target.map(|target| PathBuf::from(OsStr::from_bytes(&target)))
}

/// Whether no process listens at a socket.
fn is_deaf(path: &Path) -> bool {
    let refusal = UnixStream::connect(path).err().map(|error| error.kind());
    refusal == Some(ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driven_mount_is_known_by_its_source_in_each_session() {
        let known = |kind: &str, source: &str| {
            let (kind, source) = (kind.to_owned(), source.to_owned());
            is_driven(&fuse::Mount { device: "0:45".into(), point: "/mnt".into(), kind, source })
        };
        assert!(known("fuse.ext4", "/run/user/7/blockyard/volume-Ab12/volume/home"));
        assert!(known("fuseblk", "/tmp/blockyard-7/volume-Ab12/volume/home"));
        assert!(!known("ext4", "/run/user/7/blockyard/volume-Ab12/volume/home"));
        for source in ["/dev/loop0", "fuse2fs", "/home/blockyard/volume/home", ""] {
            assert!(!known("fuse.ext4", source), "{source}");
        }
    }
}
