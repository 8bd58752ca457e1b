//! A volume as one regular file, by FUSE.
//!
//! ```text
//! kernel ─ /dev/fuse, one descriptor a thread (crate `fuser`)
//!          └─ file.rs: requests ─ pool.rs: one client, and so one shard, for each thread ─ driver
//! ```
//! I/O is direct: the page cache keeps plaintext only for mappings of the file. The process must
//! not touch the file itself, because its own threads would have to answer.

mod file;
mod fusermount;
mod mountinfo;
mod pool;
mod session;
mod target;

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::log::{Event, Kind};
use crate::volume::Volume;

use file::VolumeFile;
use pool::Pool;

pub use fusermount::{
    Appearance, Channel, check_machine, fork_broker, mount, mount_at, unmount, unmount_outside,
};
pub use mountinfo::{Mount, Mounts, SOURCE};
pub use session::Session;
pub use target::{Target, is_dead, is_disconnected};

/// Limit of a session's threads.
pub const THREADS_MAX: usize = 64;

/// Appearance of the file, and its threads.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// Name of the file in a directory, and in the list of mounts.
    pub name: String,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permissions that the file does not have.
    pub umask: u32,
    /// Number of threads, from 1 to [`THREADS_MAX`].
    pub threads: usize,
    /// The part of the volume that is the file.
    pub range: Range<u64>,
    /// Lets the kernel pass requests of other users; the permissions still hold.
    pub others: bool,
}

/// A mounted file.
#[derive(Debug)]
pub struct FileMount {
    target: Target,
    mount: Mount,
    name: String,
    pool: Arc<Pool>,
    session: Session,
}

/// State of a file's users when its mount ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastUse {
    /// No program has the file open.
    Closed,
    /// A program still has the file open; its further I/O fails.
    StillOpen,
}

impl FileMount {
    /// Mounts a volume as a file: in an empty directory, or over a regular file, which may be the
    /// volume's own image.
    ///
    /// # Errors
    /// The target is unsuitable, or FUSE is not available.
    pub fn new(volume: &Arc<Volume>, target: Target, options: &FileOptions) -> Result<Self, Error> {
        let of_target = |error: io::Error| Error::io(target.path(), "mount a volume", error);
        let threads = options.threads.clamp(1, THREADS_MAX);
        let pool = Arc::new(Pool::new(volume, threads)?);
        let file = VolumeFile::new(volume, Arc::clone(&pool), &target, options);
        let appearance = Appearance {
            name: &options.name,
            read_only: volume.read_only(),
            others: options.others,
        };
        let Channel { device, mount } = mount(target.path(), appearance)?;
        let session = Session::start(file, device, threads).map_err(|error| {
            let _ = unmount(&mount, true);
            of_target(error)
        })?;
        Ok(Self { target, mount, name: options.name.clone(), pool, session })
    }

    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        match &self.target {
            Target::Directory(path) => path.join(&self.name),
            Target::File(path) => path.clone(),
        }
    }

    /// Number of threads that serve it.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// The mount.
    #[must_use]
    pub fn mount(&self) -> &Mount {
        &self.mount
    }

    /// Readable when the file was unmounted and no program has it open.
    #[must_use]
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.session.ended()
    }

    /// Unmounts the file, completes its requests and flushes the volume.
    ///
    /// # Errors
    /// The flush failed, now or before: acknowledged writes may be lost.
    pub fn end(self) -> Result<LastUse, Error> {
        let place = self.target.path();
        if !self.session.has_ended(Duration::ZERO)
            && let Err(busy) = unmount(&self.mount, false)
            && !self.session.has_ended(Duration::ZERO)
            && unmount(&self.mount, true).is_err()
        {
            Event::new(Kind::Warning)
                .say(format_args!("{}: cannot unmount it: {busy}", place.display()));
        }
        // The kernel ends a session without users at once.
        let last_use = if self.session.has_ended(SESSION_END) {
            self.session.join().map(|()| LastUse::Closed)
        } else {
            Ok(LastUse::StillOpen)
        };
        // Also after a failure of the session: acknowledged writes are in the volume.
        self.pool.close_and_flush().map_err(|error| Error::io(place, "flush", error))?;
        last_use.map_err(|error| Error::io(place, "serve it by FUSE", error))
    }
}

/// Limit for the kernel to end a session after its unmount, on a busy machine.
pub const SESSION_END: Duration = Duration::from_secs(2);
