//! The threads that answer the kernel's requests for one mount.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use fuser::{Config, Filesystem, SessionACL};
use rustix::event::{EventfdFlags, eventfd};

use crate::poll;
use crate::process::leave_signals_to_others;
use crate::threads::AbortOnPanic;

/// A running session, which ends when the file system is unmounted and no program uses it.
#[derive(Debug)]
pub struct Session {
    /// Readable when the session has ended.
    ended: Arc<OwnedFd>,
    thread: JoinHandle<io::Result<()>>,
}

impl Session {
    /// Starts the threads. A panic in the file system ends the process: the kernel would wait for
    /// the answer of a thread that is gone.
    ///
    /// # Errors
    /// The system has no more threads or descriptors.
    pub fn start(filesystem: impl Filesystem, device: OwnedFd, threads: usize) -> io::Result<Self> {
        let mut config = Config::default();
        config.n_threads = Some(threads);
        config.clone_fd = true;
        let ended = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let session = fuser::Session::from_fd(filesystem, device, SessionACL::All, config)?;
        let at_end = Arc::clone(&ended);
        let thread = std::thread::Builder::new().name("fuse".into()).spawn(move || {
            let _abort = AbortOnPanic;
            leave_signals_to_others();
            let outcome = session.run();
            let _ = rustix::io::write(&*at_end, &1u64.to_ne_bytes());
            outcome
        })?;
        Ok(Self { ended, thread })
    }

    /// Readable when the session has ended.
    #[must_use]
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Waits for the end, at most this long.
    #[must_use]
    pub fn has_ended(&self, limit: Duration) -> bool {
        poll::readable(&[Some(self.ended.as_fd())], Some(limit)).is_ok_and(|ready| ready[0])
    }

    /// The outcome of a session that has ended.
    ///
    /// # Errors
    /// A request of the kernel could not be received.
    pub fn join(self) -> io::Result<()> {
        self.thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    }
}
