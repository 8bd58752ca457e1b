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
mod target;

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use fuser::{Config, Session, SessionACL};
use rustix::event::{EventfdFlags, eventfd};

use crate::Error;
use crate::log::{Event, Kind};
use crate::poll;
use crate::process::leave_signals_to_others;
use crate::threads::AbortOnPanic;
use crate::volume::Volume;

use file::VolumeFile;
use pool::Pool;

pub use fusermount::{check_machine, unmount};
pub use mountinfo::{Mount, Mounts, SOURCE};
pub use target::{Target, is_disconnected};

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
    name: String,
    pool: Arc<Pool>,
    /// Readable when the session has ended.
    ended: Arc<OwnedFd>,
    session: JoinHandle<io::Result<()>>,
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
        let ended = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| of_target(e.into()))?);
        let device = fusermount::mount(&target, options, volume.read_only())?;
        let mut config = Config::default();
        config.n_threads = Some(threads);
        config.clone_fd = true;
        let session = Session::from_fd(file, device, SessionACL::All, config)
            .and_then(|session| {
                let ended = Arc::clone(&ended);
                std::thread::Builder::new().name("fuse".into()).spawn(move || {
                    let _abort = AbortOnPanic;
                    leave_signals_to_others();
                    let outcome = session.run();
                    let _ = rustix::io::write(&*ended, &1u64.to_ne_bytes());
                    outcome
                })
            })
            .map_err(|error| {
                let _ = unmount(target.path(), true);
                of_target(error)
            })?;
        Ok(Self { target, name: options.name.clone(), pool, ended, session })
    }

    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        match &self.target {
            Target::Directory(path) => path.join(&self.name),
            Target::File(path) => path.clone(),
        }
    }

    /// The mount point.
    #[must_use]
    pub fn target(&self) -> &Path {
        self.target.path()
    }

    /// Readable when the file was unmounted and no program has it open.
    #[must_use]
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Unmounts the file, completes its requests and flushes the volume.
    ///
    /// # Errors
    /// The flush failed, now or before: acknowledged writes may be lost.
    pub fn end(self) -> Result<LastUse, Error> {
        let place = self.target.path();
        if !self.has_ended(Duration::ZERO)
            && let Err(busy) = unmount(place, false)
            && !self.has_ended(Duration::ZERO)
            && unmount(place, true).is_err()
        {
            Event::new(Kind::Warning)
                .say(format_args!("{}: cannot unmount it: {busy}", place.display()));
        }
        // The kernel ends a session without users at once.
        let last_use = if self.has_ended(SESSION_END) {
            let outcome = self.session.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
            outcome.map(|()| LastUse::Closed)
        } else {
            Ok(LastUse::StillOpen)
        };
        // Also after a failure of the session: acknowledged writes are in the volume.
        self.pool.close_and_flush().map_err(|error| Error::io(place, "flush", error))?;
        last_use.map_err(|error| Error::io(place, "serve it by FUSE", error))
    }

    fn has_ended(&self, limit: Duration) -> bool {
        poll::readable(&[Some(self.ended.as_fd())], Some(limit)).is_ok_and(|ready| ready[0])
    }
}

/// Limit for the kernel to end a session after its unmount, on a busy machine.
const SESSION_END: Duration = Duration::from_secs(2);
