//! The driver of FAT: a process of its own, as other drivers are, so that foreign bytes are read
//! where no key is.
//!
//! ```text
//! kernel ─ session.rs: requests ─ nodes.rs: files by number ─ crate::fat ─ file of the plaintext
//! ```

mod nodes;
mod session;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use blockyard_host::fuse::{self, Appearance, SESSION_END, Session, Target};
use blockyard_host::process::StopSignal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{getegid, geteuid};
use std::os::fd::AsFd;

use crate::Error;
use crate::error::contained;
use crate::fat::{Disk, Fat, Storage};

use nodes::Nodes;
use session::FatSession;

/// Longest time that appended bytes wait in memory: that of the kernel's own
/// `vm.dirty_writeback_centisecs`.
const WRITING_INTERVAL: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Appearance of the files, which have no owners and permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatOptions {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permissions that the files do not have.
    pub umask: u32,
    /// Refuse writes.
    pub read_only: bool,
}

/// The file of the plaintext.
struct Plaintext {
    file: File,
    len_bytes: u64,
}

impl Storage for Plaintext {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write_at(&mut self, data: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Mounts the FAT file system in a file on a directory, and serves it until it is unmounted or a
/// signal arrives. This is the process that [`Volume::mount_files`](crate::Volume::mount_files)
/// starts for FAT, as the command [`FAT_DRIVER`](super::FAT_DRIVER) of the program `blockyard`.
///
/// # Errors
/// The file has no FAT file system, the directory is refused, or the last changes could not be
/// written.
pub fn drive_fat(
    path: &Path,
    directory: &Path,
    options: &FatOptions,
    stop: &StopSignal,
) -> Result<(), Error> {
    contained(|| {
        let failed = |error: io::Error| Error::mount(path, format!("cannot use FAT: {error}"));
        let file = File::options().read(true).write(!options.read_only).open(path);
        let file = file.map_err(failed)?;
        let len_bytes = file.metadata().map_err(failed)?.len();
        let disk = Disk::new(Box::new(Plaintext { file, len_bytes }));
        let nodes = Nodes::new(Fat::open(disk).map_err(failed)?, options.read_only);
        let nodes = Arc::new(Mutex::new(nodes.map_err(failed)?));
        let target = Target::check(directory)?;
        let own = (geteuid().as_raw(), getegid().as_raw());
        let appearance = Appearance {
            // No file of a plaintext has this name by chance.
            name: "driver-of-FAT",
            read_only: options.read_only,
            others: (options.uid, options.gid) != own || options.umask & 0o077 != 0o077,
        };
        let fuse::Channel { device, mount } = fuse::mount(target.path(), appearance)?;
        let filesystem = FatSession::new(Arc::clone(&nodes), *options);
        let session = Session::start(filesystem, device, 1).map_err(|error| {
            let _ = fuse::unmount(&mount, true);
            failed(error)
        })?;
        wait(&session, stop, &nodes).map_err(failed)?;
        if !session.has_ended(Duration::ZERO) {
            let _ = fuse::unmount(&mount, true);
            // Programs may keep the session; their requests fail from now on.
            let _ = session.has_ended(SESSION_END);
        }
        let mut nodes = nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.finish().map_err(failed)
    })
}

/// Waits for the end of the session, or a signal. Meanwhile, waiting bytes are written from time
/// to time: the kernel tells a driver of FUSE nothing of `sync` and `syncfs`.
fn wait(session: &Session, stop: &StopSignal, nodes: &Mutex<Nodes>) -> io::Result<()> {
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(session.ended(), PollFlags::IN),
        ];
        match poll(&mut fds, Some(&WRITING_INTERVAL)) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(0) => {
                let mut nodes = nodes.lock().unwrap_or_else(PoisonError::into_inner);
                nodes.settle_all();
                // After a failure, the disk refuses all later changes, and so reports it.
                let _ = nodes.commit();
            }
            ready => return Ok(ready.map(|_| ())?),
        }
    }
}
