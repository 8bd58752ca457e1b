//! Landlock for every thread of this process. The kernel limits only the calling thread (Linux 7.0
//! can do all), so each thread is interrupted by a signal, whose handler makes the call, one thread
//! after another.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::Timespec;

use crate::threads::{signal_of_sandbox, this_thread};

/// Limit for one thread. A thread waits in the kernel at most for a disk.
const PATIENCE: Duration = Duration::from_secs(30);
/// A thread may end before it takes the signal; then nothing answers. No event tells
/// either that a full queue of signals has room.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// `PF_IO_WORKER` of the kernel's `sched.h`: a thread of io_uring, which runs no code of a process.
const PF_IO_WORKER: u64 = 0x10;
/// The order is open.
const PENDING: u32 = u32::MAX;

/// The rules; negative: none.
static RULESET: AtomicI32 = AtomicI32::new(-1);
/// Error of the thread, or zero. The wait is a futex of this word: a descriptor could be closed,
/// and its number taken by another file, before a slow handler writes to it.
static OUTCOME: AtomicU32 = AtomicU32::new(0);

/// Takes new privileges from every thread, and limits it by these rules.
pub(super) fn restrict(ruleset: Option<&OwnedFd>) -> Result<(), String> {
    restrict_within(ruleset, PATIENCE)
}

fn restrict_within(ruleset: Option<&OwnedFd>, patience: Duration) -> Result<(), String> {
    RULESET.store(ruleset.map_or(-1, AsRawFd::as_raw_fd), Ordering::SeqCst);
    let handler: extern "C" fn(i32) = on_signal;
    set_action(&action(handler as usize));
    let limited = restrict_each(patience);
    // A late signal would end the process.
    set_action(&action(libc::SIG_IGN));
    RULESET.store(-1, Ordering::SeqCst);
    limited
}

/// New threads of a limited thread are limited; those of others are found in the next round.
fn restrict_each(patience: Duration) -> Result<(), String> {
    let own = this_thread();
    if let Some(error) = error_of(restrict_this_thread()) {
        return Err(format!("the kernel refuses: {error}"));
    }
    let mut done = BTreeSet::from([own]);
    loop {
        let new: Vec<u32> =
            threads()?.into_iter().filter(|thread| !done.contains(thread)).collect();
        if new.is_empty() {
            return Ok(());
        }
        for thread in new {
            if !is_of_ring(thread) {
                restrict_other(thread, patience)?;
            }
            done.insert(thread);
        }
    }
}

fn restrict_other(thread: u32, patience: Duration) -> Result<(), String> {
    let start = Instant::now();
    OUTCOME.store(PENDING, Ordering::SeqCst);
    loop {
        match signal(thread) {
            Ok(()) => break,
            // It has ended.
            Err(Errno::SRCH) => return Ok(()),
            Err(Errno::AGAIN) if start.elapsed() < patience => std::thread::sleep(LOOK_AGAIN),
            Err(Errno::AGAIN) => {
                return Err(format!(
                    "thread {thread} gets no signal, because the limit of pending signals is \
                     reached; raise it (`prlimit --sigpending`, `LimitSIGPENDING=` of a unit)"
                ));
            }
            Err(error) => return Err(format!("thread {thread} gets no signal: {error}")),
        }
    }
    loop {
        match OUTCOME.load(Ordering::SeqCst) {
            PENDING if !exists(thread) => return Ok(()),
            PENDING if start.elapsed() > patience => {
                return Err(format!("thread {thread} does not take its limits"));
            }
            PENDING => wait_for_outcome(),
            outcome => {
                return match error_of(outcome) {
                    None => Ok(()),
                    Some(error) => Err(format!("the kernel refuses a thread: {error}")),
                };
            }
        }
    }
}

fn signal(thread: u32) -> Result<(), Errno> {
    // SAFETY: the call touches no memory; the signal's handler is installed.
    let sent =
        unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, signal_of_sandbox()) };
    if sent == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// Returns early too: the caller looks at the word.
fn wait_for_outcome() {
    let limit = Timespec { tv_sec: 0, tv_nsec: LOOK_AGAIN.subsec_nanos().into() };
    let _ = futex::wait(&OUTCOME, futex::Flags::PRIVATE, PENDING, Some(&limit));
}

extern "C" fn on_signal(_: i32) {
    // SAFETY: only the thread's own errno is read and written. All else that the handler touches
    // are static words, which outlive a handler that runs late.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        OUTCOME.store(restrict_this_thread(), Ordering::SeqCst);
        let _ = futex::wake(&OUTCOME, futex::Flags::PRIVATE, 1);
        *errno = before;
    }
}

/// Runs in a handler too: it allocates nothing and takes no lock. Returns an error number or zero.
fn restrict_this_thread() -> u32 {
    let ruleset = RULESET.load(Ordering::SeqCst);
    // SAFETY: both calls touch no memory of this process.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || ruleset >= 0 && libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0) != 0
        {
            return (*libc::__errno_location()).cast_unsigned();
        }
    }
    0
}

fn error_of(outcome: u32) -> Option<io::Error> {
    (outcome != 0).then(|| io::Error::from_raw_os_error(outcome.cast_signed()))
}

fn action(handler: usize) -> libc::sigaction {
    // SAFETY: all-zero bytes are a valid action, and the set is initialised.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = libc::SA_RESTART;
        libc::sigemptyset(&raw mut action.sa_mask);
        action
    }
}

fn set_action(action: &libc::sigaction) {
    // SAFETY: the action is initialised, and its handler is safe in a signal.
    unsafe { libc::sigaction(signal_of_sandbox(), action, std::ptr::null_mut()) };
}

fn threads() -> Result<Vec<u32>, String> {
    let entries = fs::read_dir("/proc/self/task");
    let entries = entries.map_err(|error| format!("threads cannot be listed: /proc: {error}"))?;
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    Ok(entries.flatten().filter_map(number).collect())
}

/// In doubt it does, so that no thread is left out.
fn exists(thread: u32) -> bool {
    fs::exists(format!("/proc/self/task/{thread}")).unwrap_or(true)
}

/// Whether it is a thread of the kernel for a ring.
fn is_of_ring(thread: u32) -> bool {
    let facts = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    // The name may hold blanks and brackets. The flags are the seventh field behind it.
    let behind = facts.rsplit_once(')').map_or("", |(_, behind)| behind);
    let flags = behind.split_whitespace().nth(6).and_then(|flags| flags.parse().ok());
    flags.is_some_and(|flags: u64| flags & PF_IO_WORKER != 0)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread::JoinHandle;

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;

    /// Runs a test again as a child process, which loses privileges for good. False in the child.
    fn is_parent(test: &str) -> bool {
        const IS_CHILD: &str = "BLOCKYARD_TEST_NO_NEW_PRIVILEGES";
        if std::env::var_os(IS_CHILD).is_some() {
            return false;
        }
        let name = format!("sandbox::every_thread::tests::{test}");
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child.args([&name, "--exact"]).env(IS_CHILD, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        true
    }

    /// A thread from before the sandbox, which tells its state at its end.
    fn older_thread() -> (Sender<()>, JoinHandle<String>) {
        let (start, started) = channel();
        let older = std::thread::spawn(move || {
            crate::process::leave_signals_to_others();
            started.recv().unwrap();
            fs::read_to_string("/proc/thread-self/status").unwrap()
        });
        (start, older)
    }

    #[test]
    fn threads_lose_new_privileges_on_a_kernel_without_any_other_part() {
        if is_parent("threads_lose_new_privileges_on_a_kernel_without_any_other_part") {
            return;
        }
        let (start, older) = older_thread();
        restrict(None).unwrap();
        start.send(()).unwrap();
        let facts = older.join().unwrap();
        assert!(facts.contains("\nNoNewPrivs:\t1\n"), "{facts}");
    }

    #[test]
    fn full_queue_of_signals_leaves_no_thread_out() {
        if is_parent("full_queue_of_signals_leaves_no_thread_out") {
            return;
        }
        let (start, older) = older_thread();
        let before = getrlimit(Resource::Sigpending);
        setrlimit(Resource::Sigpending, Rlimit { current: Some(0), ..before }).unwrap();
        let patience = LOOK_AGAIN * 3;
        let since = Instant::now();
        let problem = restrict_within(None, patience).unwrap_err();
        assert!(problem.contains("limit of pending signals"), "{problem}");
        assert!(since.elapsed() >= patience, "tried again");
        setrlimit(Resource::Sigpending, before).unwrap();
        restrict(None).unwrap();
        start.send(()).unwrap();
        let facts = older.join().unwrap();
        assert!(facts.contains("\nNoNewPrivs:\t1\n"), "{facts}");
    }
}
