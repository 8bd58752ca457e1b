//! Landlock for every thread of this process. The kernel limits only the calling thread (Linux 7.0
//! can do all), so each thread is interrupted by a signal, whose handler makes the call, one thread
//! after another.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::poll;
use crate::threads::{signal_of_sandbox, this_thread};

/// Limit for one thread. A thread waits in the kernel at most for a disk.
const PATIENCE: Duration = Duration::from_secs(30);
/// A thread may end before it takes the signal; then nothing answers.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// `PF_IO_WORKER` of the kernel's `sched.h`: a thread of io_uring, which runs no code of a process.
const PF_IO_WORKER: u64 = 0x10;
/// The order is open.
const PENDING: i32 = -1;

/// The rules; negative: none.
static RULESET: AtomicI32 = AtomicI32::new(-1);
/// The event that ends the wait.
static ANSWERED: AtomicI32 = AtomicI32::new(-1);
/// Error of the thread, or zero.
static OUTCOME: AtomicI32 = AtomicI32::new(0);

/// Takes new privileges from every thread, and limits it by these rules.
pub(super) fn restrict(ruleset: Option<&OwnedFd>) -> Result<(), String> {
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let event = event.map_err(|error| format!("there is no event: {error}"))?;
    RULESET.store(ruleset.map_or(-1, AsRawFd::as_raw_fd), Ordering::SeqCst);
    ANSWERED.store(event.as_raw_fd(), Ordering::SeqCst);
    let handler: extern "C" fn(i32) = on_signal;
    set_action(&action(handler as usize));
    let limited = restrict_each(&event);
    // A late signal would end the process.
    set_action(&action(libc::SIG_IGN));
    RULESET.store(-1, Ordering::SeqCst);
    ANSWERED.store(-1, Ordering::SeqCst);
    limited
}

/// New threads of a limited thread are limited; those of others are found in the next round.
fn restrict_each(event: &OwnedFd) -> Result<(), String> {
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
                restrict_other(thread, event)?;
            }
            done.insert(thread);
        }
    }
}

fn restrict_other(thread: u32, event: &OwnedFd) -> Result<(), String> {
    let start = Instant::now();
    OUTCOME.store(PENDING, Ordering::SeqCst);
    // SAFETY: the call touches no memory; the signal's handler is installed.
    let sent =
        unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, signal_of_sandbox()) };
    if sent != 0 {
        // It has ended.
        return Ok(());
    }
    loop {
        let waited = poll::readable(&[Some(event.as_fd())], Some(LOOK_AGAIN));
        waited.map_err(|error| format!("the wait for a thread failed: {error}"))?;
        match OUTCOME.load(Ordering::SeqCst) {
            PENDING if !exists(thread) => return Ok(()),
            PENDING if start.elapsed() > PATIENCE => {
                return Err(format!("thread {thread} does not take its limits"));
            }
            PENDING => {}
            outcome => {
                let _ = rustix::io::read(event, &mut [0u8; 8]);
                return match error_of(outcome) {
                    None => Ok(()),
                    Some(error) => Err(format!("the kernel refuses a thread: {error}")),
                };
            }
        }
    }
}

extern "C" fn on_signal(_: i32) {
    // SAFETY: only the thread's own errno is read and written; the event is open until the thread
    // that waits for it has the outcome, and eight bytes are readable.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        OUTCOME.store(restrict_this_thread(), Ordering::SeqCst);
        let one = 1u64;
        libc::write(ANSWERED.load(Ordering::SeqCst), (&raw const one).cast(), 8);
        *errno = before;
    }
}

/// Runs in a handler too: it allocates nothing and takes no lock. Returns an error number or zero.
fn restrict_this_thread() -> i32 {
    let ruleset = RULESET.load(Ordering::SeqCst);
    // SAFETY: both calls touch no memory of this process.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || ruleset >= 0 && libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0) != 0
        {
            return *libc::__errno_location();
        }
    }
    0
}

fn error_of(outcome: i32) -> Option<io::Error> {
    (outcome != 0).then(|| io::Error::from_raw_os_error(outcome))
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

fn exists(thread: u32) -> bool {
    fs::exists(format!("/proc/self/task/{thread}")).unwrap_or(false)
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
    use std::sync::mpsc::channel;

    use super::*;

    /// The test runs itself again as a child process, which loses privileges for good.
    #[test]
    fn threads_lose_new_privileges_on_a_kernel_without_any_other_part() {
        const IS_CHILD: &str = "BLOCKYARD_TEST_NO_NEW_PRIVILEGES";
        let name = "sandbox::every_thread::tests::\
                    threads_lose_new_privileges_on_a_kernel_without_any_other_part";
        if std::env::var_os(IS_CHILD).is_none() {
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            let output = child.args([name, "--exact"]).env(IS_CHILD, "1").output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let (start, started) = channel();
        let older = std::thread::spawn(move || {
            crate::process::leave_signals_to_others();
            started.recv().unwrap();
            fs::read_to_string("/proc/thread-self/status").unwrap()
        });
        restrict(None).unwrap();
        start.send(()).unwrap();
        let facts = older.join().unwrap();
        assert!(facts.contains("\nNoNewPrivs:\t1\n"), "{facts}");
    }
}
