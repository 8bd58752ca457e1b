//! Ends a mount of another process.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use blockyard_host::fuse::{self, LastUse, is_dead, is_disconnected};

use super::{door, mount_at, places};
use crate::Error;
use crate::error::contained;

/// Unmounts a volume and returns when its process has flushed it. `lazy` unmounts even if programs
/// use the mount. A mount whose process was killed is removed.
///
/// # Errors
/// Nothing is mounted there, or not by Blockyard; programs use it ([`Error::MountBusy`]); or the
/// flush failed.
pub fn unmount(place: &Path, lazy: bool) -> Result<LastUse, Error> {
    contained(|| {
        let place = mounted(place)?;
        let Some(mount) = mount_at(&place)? else {
            // The driver of a killed process has unmounted it, but the plaintext may remain.
            if places::sweep().contains(&place) {
                return Ok(LastUse::Closed);
            }
            return Err(Error::mount(&place, "nothing is mounted here"));
        };
        if let Some(last_use) = door::ask(&place, &mount.device, lazy)? {
            return Ok(last_use);
        }
        let was_driven = places::sweep().contains(&place);
        if !mount.is_ours() && !was_driven && !places::is_driven(&mount) {
            let or_hidden = if mount.kind.starts_with("fuse") {
                ", or is that of a session with another XDG_RUNTIME_DIR"
            } else {
                ""
            };
            let problem = format!(
                "this mount ({}) is not Blockyard's{or_hidden}; `fusermount3 -u` or `umount` ends \
                 it",
                mount.kind
            );
            return Err(Error::mount(&place, problem));
        }
        // A process that lives is asked in the runtime directory of its session. Another session
        // does not take its mount away from under programs.
        let is_dead = std::fs::metadata(&place).is_err_and(|error| is_dead(&error));
        let unmounted = fuse::unmount(&mount, lazy || is_dead || was_driven);
        // The driver of a killed process unmounts too, perhaps at this moment.
        if mount_at(&place)?.is_some() {
            unmounted?;
        }
        Ok(LastUse::Closed)
    })
}

/// The canonical path of the mount that a path means: its mount point, or the plaintext as a file
/// in it. A mount point is not touched, because its process may have ended or be stopped.
fn mounted(place: &Path) -> Result<PathBuf, Error> {
    let failed = |error: io::Error| Error::file(place, error);
    let absolute = std::path::absolute(place).map_err(failed)?;
    let folder = absolute.parent().unwrap_or(Path::new("/"));
    let name = absolute.file_name().unwrap_or(OsStr::new(""));
    // The folder may be a mount too.
    let above = folder.parent().and_then(|above| above.canonicalize().ok());
    let inside = above.and_then(|above| folder.file_name().map(|last| above.join(last)));
    if let Some(inside) = inside
        && let Some(mount) = mount_at(&inside)?
        && name.to_str().is_some_and(|name| mount.has_file(name))
    {
        return Ok(inside);
    }
    let untouched = folder.canonicalize().map_err(failed)?.join(name);
    if mount_at(&untouched)?.is_some() {
        return Ok(untouched);
    }
    match place.canonicalize() {
        Err(error) if is_disconnected(&error) => Ok(untouched),
        result => result.map_err(failed),
    }
}
