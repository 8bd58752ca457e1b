//! Files of a server on a disk that it serves itself.
//!
//! A server that is killed leaves its disks waiting ([`blockyard::Server::ublk`]). The next one
//! would wait for itself if it needed a file of such a disk before it serves it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use blockyard_host::fuse::{Mount, Mounts};
use rustix::fs::{major, minor};

use super::ServeArgs;
use super::at_export;
use super::steps::find_step;
use crate::config::ExportSpec;
use crate::failure::Failure;

/// Checks that no file of an export is reached through a file system of a disk of these exports.
/// Touches no file of such a file system, which would wait.
pub(super) fn check(args: &ServeArgs, exports: &[ExportSpec]) -> Result<(), Failure> {
    let disks: Vec<_> =
        exports.iter().filter_map(|spec| disk_of(spec.ublk.as_ref()?.number?)).collect();
    if disks.is_empty() {
        return Ok(());
    }
    // Without /proc nothing is known, as without the disks.
    let mounts = Mounts::open().and_then(|mut mounts| mounts.read()).unwrap_or_default();
    for spec in exports {
        for path in spec.paths() {
            let Some(disk) = own_disk(path, &mounts, &disks) else { continue };
            let failure = Failure::failed(format!(
                "{} is reached through a file system of {}, a disk of this server, which would \
                 wait for itself after a kill: serve the volume by a server of its own, or move \
                 the file",
                path.display(),
                disk.path
            ));
            return Err(at_export(args, spec, failure));
        }
    }
    Ok(())
}

/// A disk of this server that is there.
struct OwnDisk {
    path: String,
    /// Major and minor number, as in the list of mounts.
    device: String,
}

fn disk_of(number: u32) -> Option<OwnDisk> {
    let path = format!("/dev/ublkb{number}");
    let device = fs::metadata(&path).ok()?.rdev();
    Some(OwnDisk { path, device: format!("{}:{}", major(device), minor(device)) })
}

/// The disk below the path, or below a link on the way. No step is taken on the disk.
fn own_disk<'a>(path: &Path, mounts: &[Mount], disks: &'a [OwnDisk]) -> Option<&'a OwnDisk> {
    find_step(path, |step| disk_below(step, mounts, disks))
}

fn disk_below<'a>(at: &Path, mounts: &[Mount], disks: &'a [OwnDisk]) -> Option<&'a OwnDisk> {
    // A later mount covers an earlier one, and those below its point.
    let mount = mounts.iter().rfind(|mount| at.starts_with(&mount.point))?;
    disks.iter().find(|disk| disk.device == mount.device)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(device: &str, point: &Path) -> Mount {
        let kind = "ext4".into();
        Mount { device: device.into(), point: point.into(), kind, source: "disk".into() }
    }

    #[test]
    fn file_on_an_own_disk_is_found_also_behind_links_and_mounts() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let point = root.join("fs");
        fs::create_dir_all(point.join("other")).unwrap();
        std::os::unix::fs::symlink("fs/sub", root.join("link")).unwrap();
        std::os::unix::fs::symlink(root.join("link"), root.join("second")).unwrap();
        std::os::unix::fs::symlink("loop", root.join("loop")).unwrap();
        let disks = [OwnDisk { path: "/dev/ublkb3".into(), device: "259:1".into() }];
        let of =
            |mounts: &[Mount], name: &str| own_disk(&root.join(name), mounts, &disks).is_some();
        let root_mount = mount("8:1", Path::new("/"));
        let mounts =
            [root_mount.clone(), mount("259:1", &point), mount("8:2", &point.join("other"))];
        for name in ["fs", "fs/b", "link", "link/b", "second/b", "fs/../b", "fs/other/b"] {
            assert!(of(&mounts, name), "{name}");
        }
        for name in ["b", "fs2", "loop/b"] {
            assert!(!of(&mounts, name), "{name}");
        }
        let covered = [root_mount, mount("259:1", &point), mount("8:2", &root)];
        assert!(!of(&covered, "fs/b"), "a mount above covers it");
    }
}
