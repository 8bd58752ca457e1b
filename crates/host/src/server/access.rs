//! Access to the files of Unix sockets.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

const NOT_ALLOWED: &str = "only root gives a socket to another user, and a group must be one of \
                           the groups of this user";

/// Mode, owner and group of the files of Unix sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketAccess {
    /// Permissions, at most `0o777`. A connection needs write permission.
    pub mode: u32,
    /// User to whom the file is given.
    pub owner: Option<u32>,
    /// Group to which the file is given.
    pub group: Option<u32>,
}

impl Default for SocketAccess {
    /// Only the owner of this process may connect.
    fn default() -> Self {
        Self { mode: 0o600, owner: None, group: None }
    }
}

impl SocketAccess {
    /// Sets them for a socket that does not listen yet, so that nobody can connect meanwhile.
    pub(super) fn give(&self, path: &Path) -> io::Result<()> {
        if *self == Self::default() {
            return Ok(());
        }
        // Through a descriptor: another file may have taken the name, perhaps a link.
        let file = rustix::fs::open(
            path,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let facts = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(facts.st_mode) != FileType::Socket {
            return Err(io::Error::other("another program has replaced it"));
        }
        let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::chmod(itself, Mode::from_raw_mode(self.mode))?;
        if self.owner.is_some() || self.group.is_some() {
            let owner = self.owner.map(Uid::from_raw);
            let group = self.group.map(Gid::from_raw);
            let given = rustix::fs::chownat(&file, "", owner, group, AtFlags::EMPTY_PATH);
            given.map_err(|errno| match errno {
                Errno::PERM => io::Error::other(NOT_ALLOWED),
                errno => errno.into(),
            })?;
        }
        Ok(())
    }
}
