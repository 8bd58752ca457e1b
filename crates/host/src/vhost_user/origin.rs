//! Whether a process of this machine answers for a descriptor of a front end.
//!
//! A process that serves a file system (FUSE) may stop to answer. A thread that asks for a file's
//! type, touches its mapped pages, or closes it, then waits for good, and no signal but SIGKILL
//! ends that. So this is found out without a question to the file system: by properties that the
//! kernel itself keeps.
//!
//! Servers of network file systems may be silent too. Their files are taken: a mount of them is a
//! decision of the administrator, and FUSE mounts are made by any user.

use std::fs::{read, read_link, read_to_string};
use std::os::fd::{AsRawFd, OwnedFd};

/// Whether it is a file of FUSE, or of a mount that this process cannot see.
pub(super) fn is_foreign(fd: &OwnedFd) -> bool {
    // Memory of tmpfs and hugetlbfs alone has seals.
    let is_ours = rustix::fs::fcntl_get_seals(fd).is_ok()
        || has_no_file(fd)
        || mounted_as(fd).is_some_and(|kind| !is_fuse(&kind));
    !is_ours
}

/// Whether it is a pipe, a socket or an event, which no file system has.
fn has_no_file(fd: &OwnedFd) -> bool {
    let name = read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap_or_default();
    let name = name.to_string_lossy();
    // The name of a file is its path, which starts with a slash.
    ["pipe:[", "socket:[", "anon_inode:"].iter().any(|start| name.starts_with(start))
}

/// Type of the file system, by its mount: proc(5). `None` for that of another mount namespace.
fn mounted_as(fd: &OwnedFd) -> Option<String> {
    let facts = read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    let id = facts.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
    // The kernel escapes blanks in paths, and no bytes that are not UTF-8.
    let mounts = read("/proc/self/mountinfo").ok()?;
    type_of_mount(&String::from_utf8_lossy(&mounts), id)
}

fn type_of_mount(mounts: &str, id: &str) -> Option<String> {
    let mount = mounts.lines().find(|line| line.split(' ').next() == Some(id))?;
    // A dash ends the optional fields; blanks in paths are escaped.
    let (_, kind) = mount.split_once(" - ")?;
    kind.split(' ').next().map(str::to_owned)
}

fn is_fuse(kind: &str) -> bool {
    kind == "fuse" || kind == "fuseblk" || kind.starts_with("fuse.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_of_a_mount_is_found_behind_its_optional_fields() {
        let mounts = "22 1 0:20 / / rw,noatime shared:1 master:2 - ext4 /dev/vda rw\n\
                      220 22 0:52 / /mnt/a\\040-\\040b rw - fuse.sshfs host: rw\n";
        assert_eq!(type_of_mount(mounts, "22").as_deref(), Some("ext4"));
        assert_eq!(type_of_mount(mounts, "220").as_deref(), Some("fuse.sshfs"));
        assert_eq!(type_of_mount(mounts, "2"), None);
        let kinds = ["fuse", "fuseblk", "fuse.sshfs", "fusectl", "ext4"].map(is_fuse);
        assert_eq!(kinds, [true, true, true, false, false]);
    }
}
