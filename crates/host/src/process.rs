//! Protects the process of the keys: no core dumps, no tracing, locked memory, orderly stops.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use blockyard_crypt::secret;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::process::{
    DumpableBehavior, Pid, Resource, Rlimit, Signal, WaitOptions, getrlimit, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit, setsid, waitpid,
};

use crate::poll;
use crate::threads::signal_of_sandbox;

/// Called first in `main`: disables core files and `ptrace` by the same user, locks secrets into
/// memory, turns SIGXFSZ into the write error `EFBIG`, and keeps open descriptors from programs
/// that are started later: one of them may hold a key. Returns a warning for each failed step.
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
    lock_secrets();
    // SAFETY: ignoring a signal runs no code of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if let Err(error) = close_descriptors_on_exec() {
        warnings.push(format!("cannot keep descriptors from programs that are started: {error}"));
    }
    share_one_arena_if_address_space_is_limited();
    warnings
}

/// Marks all descriptors that this process has inherited, but the standard ones.
fn close_descriptors_on_exec() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    let last = libc::c_uint::MAX;
    // SAFETY: the call closes nothing now; it changes a flag of descriptors.
    let marked =
        unsafe { libc::syscall(libc::SYS_close_range, FIRST, last, libc::CLOSE_RANGE_CLOEXEC) };
    match marked {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A descriptor of our own for one that this process has inherited. Programs that are started get
/// neither of them: kernels before 5.11 cannot mark all inherited ones in [`harden`].
///
/// # Errors
/// No descriptor has this number, or the process has too many.
pub fn duplicate(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call touches no memory, and reports a number without a descriptor.
    let made = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call touches no memory; the number was open just now.
    unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    // SAFETY: the descriptor was made just now, and nothing else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// This process after [`fork_to_background`].
#[derive(Debug)]
pub enum Forked {
    /// The process that was started by the user; the other one does the work.
    Waiter(Waiter),
    /// The process that does the work.
    Worker(Worker),
}

/// Waits for the working process.
#[derive(Debug)]
pub struct Waiter {
    pid: Pid,
    ready: OwnedFd,
}

/// The working process.
#[derive(Debug)]
pub struct Worker {
    ready: OwnedFd,
}

/// Divides this process: one does the work, first in the foreground, where it can ask for a
/// passphrase, then in the background; the other waits until then. The worker gets SIGTERM if the
/// waiter ends before.
///
/// # Errors
/// The process has other threads already, which the worker would lack, or the system has no more
/// processes.
pub fn fork_to_background() -> io::Result<Forked> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    match fork_alone()? {
        None => {
            set_parent_process_death_signal(Some(Signal::TERM))?;
            Ok(Forked::Worker(Worker { ready: writer }))
        }
        Some(pid) => Ok(Forked::Waiter(Waiter { pid, ready: reader })),
    }
}

/// Forks a process with one thread; returns the new process, and `None` in it.
pub(crate) fn fork_alone() -> io::Result<Option<Pid>> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("the process has several threads already"));
    }
    // SAFETY: this is the only thread, as was checked, so that no lock is held by another one.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Pid::from_raw(pid)),
    }
}

/// Closes all descriptors of a forked process but the standard ones and one more.
pub(crate) fn close_all_but(kept: &OwnedFd) {
    let kept = kept.as_raw_fd().cast_unsigned();
    for (first, last) in [(3, kept - 1), (kept + 1, libc::c_uint::MAX)] {
        if first <= last {
            // SAFETY: the process has just been forked, and uses none of them.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
}

/// Ends a forked process, without the steps at the end of the one that it was forked from.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: the call runs no code of this process.
    unsafe { libc::_exit(code) }
}

impl Waiter {
    /// Waits until the worker is in the background or has ended; returns its exit code then.
    ///
    /// # Errors
    /// The system cannot wait.
    pub fn wait(self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        let len = rustix::io::retry_on_intr(|| rustix::io::read(&self.ready, &mut byte))?;
        if len > 0 {
            return Ok(None);
        }
        let status = waitpid(Some(self.pid), WaitOptions::empty())?;
        let code = status.and_then(|(_, status)| status.exit_status());
        Ok(Some(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
    }
}

impl Worker {
    /// Leaves the terminal's session. Messages still go there.
    ///
    /// # Errors
    /// `/dev/null` is missing.
    pub fn leave_session(self) -> io::Result<Detached> {
        let null = null()?;
        set_parent_process_death_signal(None)?;
        setsid()?;
        Ok(Detached { ready: self.ready, null })
    }
}

/// The working process without a terminal.
#[derive(Debug)]
pub struct Detached {
    ready: OwnedFd,
    null: OwnedFd,
}

impl Detached {
    /// Leaves the standard streams, and ends the wait of the other process. A sandbox permits it.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn is_ready(self) -> io::Result<()> {
        leave_streams_for(&self.null)?;
        rustix::io::write(&self.ready, b"r")?;
        Ok(())
    }
}

fn null() -> io::Result<OwnedFd> {
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    Ok(null.into())
}

/// Exchanges the standard streams of this process for `/dev/null`.
pub(crate) fn leave_standard_streams() -> io::Result<()> {
    leave_streams_for(&null()?)
}

fn leave_streams_for(null: &OwnedFd) -> io::Result<()> {
    rustix::stdio::dup2_stdin(null)?;
    rustix::stdio::dup2_stdout(null)?;
    rustix::stdio::dup2_stderr(null)?;
    Ok(())
}

/// Lets a program end with SIGTERM when the thread that starts it ends, for example with a killed
/// process. The program gets signals that [`StopSignal`] keeps from this process.
pub fn end_with_this_thread(command: &mut Command) {
    let unblocked = set_of(&[]);
    // SAFETY: between fork and exec two system calls are made, which allocate nothing; the set is
    // initialised.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::TERM))?;
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const unblocked, std::ptr::null_mut());
            Ok(())
        });
    }
}

/// Locks later memory of keys and passphrases, and excludes it from core dumps.
pub fn lock_secrets() {
    secret::set_protector(protect);
}

/// Limits glibc to one arena if the address space is limited (`ulimit -v`): glibc reserves 64 MiB
/// of address space for each new thread, so a few threads would exhaust the limit.
fn share_one_arena_if_address_space_is_limited() {
    #[cfg(target_env = "gnu")]
    if getrlimit(Resource::As).current.is_some() {
        // SAFETY: the call only changes the source of later allocations.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}

/// Keeps a secret out of swap and core dumps, within the user's limits. Pages are never unlocked,
/// because they may hold other secrets, and they are few.
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

/// Tells the kernel that writes of others wait for this thread and those that it starts from now
/// on, so that an allocation must not wait for such a write. Only a privileged thread may tell; for
/// others the risk stays.
pub fn flush_for_others() {
    /// Of `linux/prctl.h`.
    const PR_SET_IO_FLUSHER: i32 = 57;
    // SAFETY: the call touches no memory.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
}

/// Raises the soft limit of open descriptors to this number, or to the hard limit.
pub fn raise_descriptors(wanted: usize) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = maximum.map_or(wanted as u64, |maximum| maximum.min(wanted as u64));
    if current.is_some_and(|current| current < raised) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum });
    }
}

/// Blocks every signal in this thread, because another thread waits for stops; needed for threads
/// started before [`StopSignal::install`]. The signal of the sandbox is for all threads.
pub fn leave_signals_to_others() {
    // SAFETY: the set is initialised by sigfillset before use; blocking touches no memory of ours.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        libc::sigdelset(&raw mut set, libc::SIGBUS);
        libc::sigdelset(&raw mut set, libc::SIGSEGV);
        libc::sigdelset(&raw mut set, signal_of_sandbox());
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}

/// Calls a function with all signals blocked in this thread: threads that a library starts in it
/// inherit the mask, and leave signals to the program.
pub(crate) fn with_signals_blocked<T>(call: impl FnOnce() -> T) -> T {
    let mut before: MaybeUninit<libc::sigset_t> = MaybeUninit::uninit();
    // SAFETY: the call writes the present mask to the pointer.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), before.as_mut_ptr()) };
    leave_signals_to_others();
    let result = call();
    // SAFETY: the first call has initialised the mask.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}

/// Starts a program with the signals as this process found them, before [`harden`] and
/// [`StopSignal::install`].
pub fn with_usual_signals(program: &mut Command) -> &mut Command {
    let reset = || {
        let none = set_of(&[]);
        // SAFETY: both calls are safe between fork and exec; the set is initialised.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { program.pre_exec(reset) }
}

/// Number of a user, from the system's list; `None` if there is none of this name.
#[must_use]
pub fn user_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    with_room(|room| {
        let mut found = std::ptr::null_mut();
        // SAFETY: all-zero bytes are a valid entry to be filled; the room outlives its use here.
        unsafe {
            let mut entry: libc::passwd = std::mem::zeroed();
            let start = room.as_mut_ptr().cast();
            let len = room.len();
            let status =
                libc::getpwnam_r(name.as_ptr(), &raw mut entry, start, len, &raw mut found);
            (status, (!found.is_null()).then_some(entry.pw_uid))
        }
    })
}

/// Number of a group; see [`user_id`].
#[must_use]
pub fn group_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    with_room(|room| {
        let mut found = std::ptr::null_mut();
        // SAFETY: all-zero bytes are a valid entry to be filled; the room outlives its use here.
        unsafe {
            let mut entry: libc::group = std::mem::zeroed();
            let start = room.as_mut_ptr().cast();
            let len = room.len();
            let status =
                libc::getgrnam_r(name.as_ptr(), &raw mut entry, start, len, &raw mut found);
            (status, (!found.is_null()).then_some(entry.gr_gid))
        }
    })
}

/// Calls with more memory until it suffices: a group may have many members.
fn with_room(mut ask: impl FnMut(&mut [u8]) -> (i32, Option<u32>)) -> Option<u32> {
    const ROOM_MAX_BYTES: usize = 16 << 20;
    let mut room = vec![0; 16 << 10];
    loop {
        match ask(&mut room) {
            (libc::ERANGE, _) if room.len() < ROOM_MAX_BYTES => room.resize(room.len() * 2, 0),
            (_, found) => return found,
        }
    }
}

/// The stop of a program as a descriptor: SIGTERM, SIGINT and SIGHUP, or a call.
#[derive(Debug)]
pub struct StopSignal {
    /// A signalfd or an eventfd.
    fd: OwnedFd,
    collects_signals: bool,
    /// Waits for `fd` and another descriptor.
    either: Option<OwnedFd>,
}

impl StopSignal {
    /// Blocks the signals in this thread and its later threads, and collects them here. An ignored
    /// SIGHUP stays ignored: `nohup` keeps a process alive without its terminal.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn install() -> io::Result<Self> {
        let mut signals = vec![libc::SIGTERM, libc::SIGINT];
        if !is_ignored(libc::SIGHUP) {
            signals.push(libc::SIGHUP);
        }
        Ok(Self { fd: collect(&signals)?, collects_signals: true, either: None })
    }

    /// Like [`StopSignal::install`], for a server: SIGHUP asks it to read its configuration again,
    /// and never ends it.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn install_for_server() -> io::Result<(Self, CollectedSignal)> {
        let fd = collect(&[libc::SIGTERM, libc::SIGINT])?;
        let reload = CollectedSignal { fd: collect(&[libc::SIGHUP])? };
        Ok((Self { fd, collects_signals: true, either: None }, reload))
    }

    /// A stop by [`StopSignal::stop`], without signals.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn by_call() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self { fd: eventfd(0, flags)?, collects_signals: false, either: None })
    }

    /// Stops also when this descriptor is readable, such as that of a process that has ended.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn or_readable(self, other: &OwnedFd) -> io::Result<Self> {
        let either = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for fd in [&self.fd, other] {
            epoll::add(&either, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(Self { either: Some(either), ..self })
    }

    /// Stops the server of a [`StopSignal::by_call`].
    pub fn stop(&self) {
        if !self.collects_signals {
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Restores the default action of SIGTERM and SIGINT, so that a second one ends the process
    /// immediately. SIGHUP stays blocked: the kernel and the shell both send it for one lost
    /// terminal, and a server never ends by it.
    pub fn restore_default(&self) {
        if !self.collects_signals {
            return;
        }
        let set = set_of(&[libc::SIGTERM, libc::SIGINT]);
        // SAFETY: the set is initialised; unblocking signals touches no memory of ours.
        unsafe {
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        }
    }

    /// Consumes the signal that made the descriptor readable, if one did, so that it is not
    /// delivered again.
    pub fn take(&self) {
        let mut info = [0u8; 128];
        let _ = rustix::io::read(&self.fd, &mut info);
    }
}

/// A signal as a descriptor: SIGHUP of a server, or SIGWINCH.
#[derive(Debug)]
pub struct CollectedSignal {
    fd: OwnedFd,
}

impl CollectedSignal {
    /// SIGWINCH: the terminal has another size.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn window_size() -> io::Result<Self> {
        Ok(Self { fd: collect(&[libc::SIGWINCH])? })
    }

    /// Waits for the signal. Several signals that come before count as one.
    ///
    /// # Errors
    /// The system cannot wait.
    pub fn wait(&self) -> io::Result<()> {
        poll::readable(&[Some(self.fd.as_fd())], None)?;
        self.take();
        Ok(())
    }

    /// Consumes the signal, if it came.
    pub fn take(&self) {
        let mut info = [0u8; 128];
        let _ = rustix::io::read(&self.fd, &mut info);
    }
}

impl AsFd for CollectedSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Blocks the signals in this thread and its later threads, and collects them in a descriptor.
fn collect(signals: &[libc::c_int]) -> io::Result<OwnedFd> {
    let set = set_of(signals);
    // SAFETY: the set is initialised, and the descriptor from signalfd has no other owner.
    unsafe {
        let blocked = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        if blocked != 0 {
            return Err(io::Error::from_raw_os_error(blocked));
        }
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

fn set_of(signals: &[libc::c_int]) -> libc::sigset_t {
    // SAFETY: the set is initialised by sigemptyset before use.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for &signal in signals {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: all-zero bytes are a valid `sigaction` to be filled; without a new action the call
    // only queries.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let asked = libc::sigaction(signal, std::ptr::null(), &raw mut action);
        asked == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}

impl AsFd for StopSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.either.as_ref().unwrap_or(&self.fd).as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::FdFlags;

    use super::*;

    #[test]
    fn programs_that_are_started_get_neither_a_duplicate_nor_its_original() {
        let inherited = eventfd(0, EventfdFlags::empty()).unwrap();
        let ours = duplicate(inherited.as_raw_fd()).unwrap();
        for fd in [&inherited, &ours] {
            assert_eq!(rustix::io::fcntl_getfd(fd).unwrap(), FdFlags::CLOEXEC);
        }
    }
}
