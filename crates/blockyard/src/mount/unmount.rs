//! Ends a mount of another process.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use blockyard_host::fuse::{self, LastUse, is_disconnected};

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
        let place = canonical(place).map_err(|error| Error::file(place, error))?;
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
        if !mount.is_ours() && !was_driven {
            let problem = format!(
                "this mount ({}) is not Blockyard's; `fusermount3 -u` or `umount` ends it",
                mount.kind
            );
            return Err(Error::mount(&place, problem));
        }
        // A process that lives is asked in the runtime directory of its session. Another session
        // does not take its mount away from under programs.
        let is_dead = std::fs::metadata(&place).is_err_and(|error| is_disconnected(&error));
        let unmounted = fuse::unmount(&place, lazy || is_dead || was_driven);
        // The driver of a killed process unmounts too, perhaps at this moment.
        if mount_at(&place)?.is_some() {
            unmounted?;
        }
        Ok(LastUse::Closed)
    })
}

/// The canonical path, also of a mount whose process has ended.
fn canonical(place: &Path) -> io::Result<PathBuf> {
    match place.canonicalize() {
        Err(error) if is_disconnected(&error) => {
            let absolute = std::path::absolute(place)?;
            let folder = absolute.parent().unwrap_or(Path::new("/")).canonicalize()?;
            Ok(folder.join(absolute.file_name().unwrap_or(OsStr::new(""))))
        }
        result => result,
    }
}
