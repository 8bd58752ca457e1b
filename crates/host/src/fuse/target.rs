//! Checks of a mount point.

use std::fs::{self, FileType};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::fusermount::real;
use super::{Mount, Mounts};
use crate::Error;

/// A suitable mount point, as a canonical path.
#[derive(Clone, Debug)]
pub enum Target {
    /// An empty directory.
    Directory(PathBuf),
    /// A regular file.
    File(PathBuf),
}

impl Target {
    /// Checks a path.
    ///
    /// # Errors
    /// The path is missing, a mount point, a directory with content, or neither a directory nor a
    /// regular file; or a mount at the path has lost its server.
    pub fn check(path: &Path) -> Result<Self, Error> {
        let wrong = |problem: String| Error::parameter(path.display(), problem);
        let failed = |error: io::Error| {
            if is_disconnected(&error) {
                return wrong(format!(
                    "the program that served this mount has ended; `blockyard umount {}` removes \
                     it",
                    path.display()
                ));
            }
            if let Some(mount) = dead_mount(path, &error) {
                return wrong(format!(
                    "a mount ({}) is here already, and it answers with errors ({error}): its \
                     program has failed; `blockyard umount {}` ends it",
                    mount.kind,
                    path.display()
                ));
            }
            if error.kind() == io::ErrorKind::NotFound {
                return wrong(format!(
                    "the mount point is missing; `mkdir {}` makes it",
                    path.display()
                ));
            }
            Error::io(path, "use it as a mount point", error)
        };
        let status = fs::metadata(path).map_err(failed)?;
        let canonical = path.canonicalize().map_err(failed)?;
        if let Some(mount) =
            Mounts::open().and_then(|mut all| all.at(&canonical)).map_err(failed)?
        {
            return Err(wrong(format!(
                "something ({}) is mounted here already; unmount it first, or choose another place",
                mount.kind
            )));
        }
        if status.is_dir() {
            let mut entries = fs::read_dir(&canonical).map_err(failed)?;
            return match entries.next() {
                None => Ok(Self::Directory(canonical)),
                Some(_) => Err(wrong(
                    "the directory is not empty, and a mount would hide its files; choose an empty \
                     one"
                    .into(),
                )),
            };
        }
        if status.is_file() {
            return Ok(Self::File(canonical));
        }
        Err(wrong(format!(
            "this is {}; a mount point is an empty directory or a regular file",
            kind_of(status.file_type())
        )))
    }

    /// The mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Directory(path) | Self::File(path) => path,
        }
    }
}

/// The mount of FUSE at a path whose metadata cannot be read. Its driver may live on without the
/// volume, and then answers with errors of its own choice.
fn dead_mount(path: &Path, error: &io::Error) -> Option<Mount> {
    if !is_dead(error) {
        return None;
    }
    let mount = Mounts::open().and_then(|mut all| all.at(&real(path)?)).ok()??;
    mount.kind.starts_with("fuse").then_some(mount)
}

/// Whether the error of a mount point's metadata means that its mount is of no use any more. A
/// mount of another user refuses them.
#[must_use]
pub fn is_dead(error: &io::Error) -> bool {
    error.kind() != io::ErrorKind::PermissionDenied
}

/// Whether the error is that of a mount whose server has ended.
#[must_use]
pub fn is_disconnected(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error())
}

fn kind_of(kind: FileType) -> &'static str {
    if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_block_device() {
        "a block device"
    } else {
        "a character device"
    }
}
