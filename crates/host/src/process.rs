//! The process around the keys: no core dumps, no tracing by others, locked memory, orderly stops.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use blockyard_crypt::secret;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// First thing in `main`: no core file, no `ptrace` by the same user, secrets locked into memory.
/// Returns what could not be done, in plain words.
#[must_use]
pub fn harden() -> Vec<String> {
    let mut warnings = Vec::new();
    let no_core = Rlimit { current: Some(0), maximum: Some(0) };
    if let Err(error) = setrlimit(Resource::Core, no_core) {
        warnings.push(format!("cannot forbid core dumps: {error}"));
    }
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        warnings.push(format!("cannot forbid tracing of this process: {error}"));
    }
    secret::set_protector(protect);
    warnings
}

/// Keeps a secret out of swap and core dumps, as far as the limits of the user allow. Pages are not
/// unlocked again: a neighbour may hold another secret, and they are few.
fn protect(memory: &[u8]) {
    const PAGE: usize = 4096;
    let start = memory.as_ptr() as usize & !(PAGE - 1);
    let end = (memory.as_ptr() as usize + memory.len()).next_multiple_of(PAGE);
    // SAFETY: the rounded range covers pages that hold `memory`; locking them and leaving them out
    // of dumps changes no contents. A failure (RLIMIT_MEMLOCK) leaves them as they were.
    unsafe {
        libc::mlock(start as *const _, end - start);
        libc::madvise(start as *mut _, end - start, libc::MADV_DONTDUMP);
    }
}

/// Blocks every signal in this thread: a stop is for the thread that waits for it, even if this one
/// was started before [`StopSignal::install`].
pub(crate) fn leave_signals_to_others() {
    // SAFETY: the set is initialised by sigfillset before use; blocking touches no memory of ours.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        libc::sigdelset(&raw mut set, libc::SIGBUS);
        libc::sigdelset(&raw mut set, libc::SIGSEGV);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}

/// SIGTERM and SIGINT as something to wait for.
#[derive(Debug)]
pub struct StopSignal {
    fd: OwnedFd,
}

impl StopSignal {
    /// Blocks both signals in this thread and those it starts, and collects them here.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn install() -> io::Result<Self> {
        // SAFETY: the set is initialised by sigemptyset before use, and the descriptor that
        // signalfd returns is owned by nobody else.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            libc::sigaddset(&raw mut set, libc::SIGINT);
            let blocked =
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            if blocked != 0 {
                return Err(io::Error::from_raw_os_error(blocked));
            }
            let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self { fd: OwnedFd::from_raw_fd(fd) })
        }
    }

    /// Lets the signals do what they do by default again: a second one ends the process at once.
    pub fn restore_default(&self) {
        // SAFETY: as in `install`; unblocking signals touches no memory of ours.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            libc::sigaddset(&raw mut set, libc::SIGINT);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        }
    }

    /// Takes the signal that made the descriptor readable, so that it is not delivered again.
    pub fn take(&self) {
        let mut info = [0u8; 128];
        let _ = rustix::io::read(&self.fd, &mut info);
    }
}

impl AsFd for StopSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
