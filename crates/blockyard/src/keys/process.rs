//! A process whose standard output is a secret: bounded in length and time.
//!
//! The output goes from the pipe into locked memory. Input is a file in memory, so a process that
//! does not read cannot block this one. A process that is not waited for to its end is killed, with
//! all processes of its group.
//!
//! The output ends with the process, even if a process that it has started keeps the pipe: a script
//! may start an agent. What is in the pipe then is read, and the agent lives on.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::time::{Duration, Instant};

use blockyard_crypt::secret::SecretBytes;
use blockyard_host::broker::{Broker, Started};
use blockyard_host::sandbox;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpgrp, kill_process, kill_process_group, pidfd_open,
};
use rustix::termios::tcgetpgrp;

use super::Collected;

/// The part of standard error that is kept for a message: its end.
const MESSAGE_LEN_MAX_BYTES: usize = 4096;

/// Use of the standard error of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Messages {
    /// Standard error is that of this process. The program may ask a person there.
    Shown,
    /// Its end becomes a part of the error.
    Kept,
}

/// A failed process.
#[derive(Debug)]
pub(super) enum ProcessError {
    /// It cannot be started.
    Start(io::Error),
    /// Its output cannot be read.
    Read(io::Error),
    /// Its output is longer than a key can be.
    Long,
    /// It did not end in time.
    Time(Duration),
    /// The sandbox permits no programs.
    Sandboxed,
    /// This process ends, and starts no programs any more.
    Stopped,
    /// It ended with an error: exit code or signal, and the last line of its messages.
    Failed(String),
}

impl std::fmt::Display for ProcessError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Start(error) => write!(f, "it cannot be started: {error}"),
            Self::Read(error) => write!(f, "its output cannot be read: {error}"),
            Self::Long => f.write_str("its output is longer than a key of 8 MiB"),
            Self::Time(limit) => {
                write!(f, "it did not end within {} seconds, and was killed", limit.as_secs_f32())
            }
            Self::Sandboxed => f.write_str("the sandbox of this process permits no programs"),
            Self::Stopped => f.write_str("it was killed, because this process ends"),
            Self::Failed(how) => f.write_str(how),
        }
    }
}

/// Programs that run for a key.
static PROGRAMS: Mutex<Programs> = Mutex::new(Programs { have_stopped: false, groups: Vec::new() });

struct Programs {
    have_stopped: bool,
    /// Each program, and whether it leads a process group.
    groups: Vec<(Pid, bool)>,
}

fn programs() -> MutexGuard<'static, Programs> {
    PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Limit for the start of a program that is under way when the process ends: the file of a program
/// may be on a server that does not answer. A usual start takes milliseconds.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// Kills all programs that run for a key, and starts no more. For the end of a process: a program
/// that hangs would delay it, or outlive it.
///
/// A start that hangs does not delay the end by more than some seconds. Its program is killed as
/// soon as it is started, if this process still lives.
pub fn stop_programs() {
    let (done, stopped) = mpsc::channel();
    let stop = move || {
        stop_each();
        let _ = done.send(());
    };
    match std::thread::Builder::new().name("stop-programs".into()).spawn(stop) {
        Ok(_) => drop(stopped.recv_timeout(STOP_LIMIT)),
        // Without a thread, the wait has no limit.
        Err(_) => stop_each(),
    }
}

fn stop_each() {
    let mut programs = programs();
    programs.have_stopped = true;
    programs.groups.iter().for_each(|(pid, has_group)| kill(*pid, *has_group));
    if let Some(broker) = OUTSIDE.get().and_then(|outside| outside.broker.upgrade()) {
        let _ = broker.kill_program();
    }
}

/// The process outside of the sandbox that starts commands of keys.
static OUTSIDE: OnceLock<Outside> = OnceLock::new();

struct Outside {
    broker: Weak<Broker>,
    /// Words of the commands that it knows, by their numbers.
    commands: Vec<Vec<String>>,
}

/// Lets a process outside of the sandbox start these commands, and no others. Call it before the
/// broker is sealed, and once.
///
/// # Errors
/// A command is too long, or the broker has ended.
pub(super) fn start_outside(broker: &Arc<Broker>, commands: Vec<Vec<String>>) -> io::Result<()> {
    commands.iter().try_for_each(|words| broker.add_program(words))?;
    OUTSIDE.get_or_init(|| Outside { broker: Arc::downgrade(broker), commands });
    Ok(())
}

/// The process outside that knows a command, and its number there.
fn outside(words: &[String]) -> Option<(Arc<Broker>, u32)> {
    let outside = OUTSIDE.get()?;
    let number = outside.commands.iter().position(|known| known == words)?;
    Some((outside.broker.upgrade()?, u32::try_from(number).ok()?))
}

fn is_sandboxed() -> bool {
    sandbox::parts().is_some_and(|parts| parts.seccomp)
}

/// Whether a command can be started: in a sandbox, only those that are known outside.
pub(super) fn is_startable(words: &[String]) -> bool {
    !is_sandboxed() || outside(words).is_some()
}

/// The standard output of a command, in or outside of the sandbox.
pub(super) fn output_of_words(
    words: &[String],
    time_limit: Duration,
) -> Result<SecretBytes, ProcessError> {
    let (program, arguments) = words.split_first().expect("checked: there is a program");
    match outside(words).filter(|_| is_sandboxed()) {
        Some((broker, number)) => {
            // The process outside runs one program at a time.
            static TURN: Mutex<()> = Mutex::new(());
            let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
            Running::start_outside(broker, number, time_limit)?.output()
        }
        None => {
            let mut command = Command::new(program);
            output_of(command.args(arguments), &[], Messages::Shown, time_limit)
        }
    }
}

/// Kills a program that was not waited for, so that it and its group have their number still.
fn kill(pid: Pid, has_group: bool) {
    if has_group {
        let _ = kill_process_group(pid, Signal::KILL);
    }
    let _ = kill_process(pid, Signal::KILL);
}

/// Runs a command with this standard input, and returns its standard output.
pub(super) fn output_of(
    command: &mut Command,
    input: &[u8],
    messages: Messages,
    time_limit: Duration,
) -> Result<SecretBytes, ProcessError> {
    let stdin = if input.is_empty() {
        Stdio::null()
    } else {
        file_in_memory(input).map_err(ProcessError::Start)?.into()
    };
    let stderr = match messages {
        Messages::Shown => Stdio::inherit(),
        Messages::Kept => Stdio::piped(),
    };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(stderr);
    let has_group = messages == Messages::Kept || !is_in_foreground();
    if has_group {
        command.process_group(0);
    }
    Running::start(command, has_group, time_limit)?.output()
}

/// Whether a person at the terminal of this process types for its group. A process of another group
/// would be stopped when it reads from the terminal (as with `timeout(1)` without `--foreground`).
fn is_in_foreground() -> bool {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open("/dev/tty", flags, Mode::empty())
        .and_then(tcgetpgrp)
        .is_ok_and(|foreground| foreground == getpgrp())
}

/// A file without a name, positioned at its start.
fn file_in_memory(bytes: &[u8]) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("input", MemfdFlags::CLOEXEC)?;
    let mut written = 0;
    while written < bytes.len() {
        written += rustix::io::pwrite(&file, &bytes[written..], written as u64)?;
    }
    Ok(file)
}

/// A started process. It is killed when this is dropped early.
struct Running {
    process: Process,
    /// Readable when the process has ended.
    end: OwnedFd,
    output: Option<OwnedFd>,
    messages: Option<OwnedFd>,
    deadline: Instant,
    time_limit: Duration,
    /// Its status has been taken, so its number may be another's.
    is_over: bool,
}

enum Process {
    Child {
        child: Child,
        /// Whether the child leads a process group. A program in the foreground of a terminal does
        /// not: in a group of its own it could not read from the terminal.
        has_group: bool,
    },
    /// Of a process outside of the sandbox.
    Outside(Arc<Broker>),
}

/// A descriptor that may be read or has ended.
#[derive(Clone, Copy)]
enum Ready {
    Output,
    Messages,
    End,
}

impl Running {
    fn start(
        command: &mut Command,
        has_group: bool,
        time_limit: Duration,
    ) -> Result<Self, ProcessError> {
        if is_sandboxed() {
            return Err(ProcessError::Sandboxed);
        }
        let mut programs = programs();
        if programs.have_stopped {
            return Err(ProcessError::Stopped);
        }
        let mut child = command.spawn().map_err(ProcessError::Start)?;
        let pid = Pid::from_child(&child);
        let end = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(end) => end,
            Err(errno) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(ProcessError::Start(errno.into()));
            }
        };
        programs.groups.push((pid, has_group));
        drop(programs);
        let output = child.stdout.take().map(OwnedFd::from);
        let messages = child.stderr.take().map(OwnedFd::from);
        let deadline = Instant::now() + time_limit;
        let process = Process::Child { child, has_group };
        Ok(Self { process, end, output, messages, deadline, time_limit, is_over: false })
    }

    /// Lets the process outside of the sandbox start a program that it knows by this number.
    fn start_outside(
        broker: Arc<Broker>,
        number: u32,
        time_limit: Duration,
    ) -> Result<Self, ProcessError> {
        // Locked for the start, so that a stop kills its program.
        let programs = programs();
        if programs.have_stopped {
            return Err(ProcessError::Stopped);
        }
        let Started { output, end } = broker.start(number).map_err(ProcessError::Start)?;
        drop(programs);
        let deadline = Instant::now() + time_limit;
        let process = Process::Outside(broker);
        let output = Some(output);
        Ok(Self { process, end, output, messages: None, deadline, time_limit, is_over: false })
    }

    /// The output of the process until its end.
    fn output(mut self) -> Result<SecretBytes, ProcessError> {
        let mut secret = Collected::new();
        let mut message = Vec::new();
        let mut has_ended = false;
        while let Some(ready) = self.wait(has_ended)? {
            match ready {
                Ready::Output => self.read_output(&mut secret)?,
                Ready::Messages => self.read_messages(&mut message),
                Ready::End => has_ended = true,
            }
        }
        let (status, was_stopped) = self.wait_for_end();
        match status {
            Ok(status) if status.success() => Ok(secret.into_secret()),
            _ if was_stopped => Err(ProcessError::Stopped),
            Ok(status) => Err(ProcessError::Failed(described(status, &message))),
            Err(error) => Err(ProcessError::Read(error)),
        }
    }

    /// Takes the status of a process that has ended or was killed, and whether all were killed.
    fn wait_for_end(&mut self) -> (io::Result<ExitStatus>, bool) {
        self.is_over = true;
        let status = match &mut self.process {
            Process::Child { child, .. } => {
                let pid = Pid::from_child(child);
                programs().groups.retain(|(one, _)| *one != pid);
                // Without the lock: a killed process may wait for a file system; a stop must not.
                child.wait()
            }
            Process::Outside(broker) => broker.program_status().map(ExitStatus::from_raw),
        };
        (status, programs().have_stopped)
    }

    /// Waits for the first of: messages, output, the end. `None`: nothing is left of a process that
    /// has ended.
    fn wait(&self, has_ended: bool) -> Result<Option<Ready>, ProcessError> {
        let messages = self.messages.iter().map(|fd| (Ready::Messages, fd));
        let output = self.output.iter().map(|fd| (Ready::Output, fd));
        let end = (!has_ended).then_some((Ready::End, &self.end));
        let waits: Vec<_> = messages.chain(output).chain(end).collect();
        let mut fds: Vec<_> = waits
            .iter()
            .map(|(_, fd)| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN))
            .collect();
        loop {
            // Looked at each time: a process that floods is always ready.
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ProcessError::Time(self.time_limit));
            }
            let longest = if has_ended { Duration::ZERO } else { left };
            let timeout = Timespec::try_from(longest).map_err(|_| ProcessError::Time(left))?;
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) if has_ended => return Ok(None),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => break,
                Err(errno) => return Err(ProcessError::Read(errno.into())),
            }
        }
        let ready = fds.iter().position(|fd| !fd.revents().is_empty());
        Ok(ready.map(|at| waits[at].0))
    }

    fn read_output(&mut self, into: &mut Collected) -> Result<(), ProcessError> {
        let Some(output) = &self.output else { return Ok(()) };
        let room = into.room().ok_or(ProcessError::Long)?;
        match rustix::io::read(output, room) {
            Ok(0) => self.output = None,
            Ok(count) => into.len_bytes += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(ProcessError::Read(errno.into())),
        }
        Ok(())
    }

    fn read_messages(&mut self, into: &mut Vec<u8>) {
        let Some(messages) = &self.messages else { return };
        let mut chunk = [0; MESSAGE_LEN_MAX_BYTES];
        match rustix::io::read(messages, &mut chunk) {
            Ok(count) if count > 0 => {
                into.extend_from_slice(&chunk[..count]);
                let excess = into.len().saturating_sub(MESSAGE_LEN_MAX_BYTES);
                into.drain(..excess);
            }
            Err(Errno::INTR) => {}
            _ => self.messages = None,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        match &self.process {
            Process::Child { child, has_group } => kill(Pid::from_child(child), *has_group),
            Process::Outside(broker) => drop(broker.kill_program()),
        }
        let _ = self.wait_for_end();
    }
}

/// `exit code 3: last line of its messages`.
fn described(status: ExitStatus, message: &[u8]) -> String {
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with exit code {code}"),
        (None, signal) => format!("it was ended by signal {}", signal.unwrap_or(0)),
    };
    let message = String::from_utf8_lossy(message);
    match message.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => format!("{how}: {}", line.trim()),
        None => how,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::PathBuf;

    use rustix::fs::{CWD, FileType};
    use tempfile::TempDir;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn run(script: &str, input: &[u8], limit: Duration) -> Result<Vec<u8>, String> {
        output_of(&mut shell(script), input, Messages::Kept, limit)
            .map(|secret| secret.as_slice().to_vec())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn process_gets_its_input_and_returns_its_output() {
        assert_eq!(run("cat", b"a\0b\n", LONG), Ok(b"a\0b\n".to_vec()));
        assert_eq!(run("exec <&-; printf x", &[7; 1 << 20], LONG), Ok(b"x".to_vec()));
        assert_eq!(run("cat", b"", LONG), Ok(Vec::new()));
    }

    #[test]
    fn failed_process_is_named_with_its_code_and_last_message() {
        let failed = run("echo secret; echo one >&2; echo two >&2; exit 3", b"", LONG);
        assert_eq!(failed.unwrap_err(), "it ended with exit code 3: two");
        assert_eq!(run("kill -9 $$", b"", LONG).unwrap_err(), "it was ended by signal 9");
        let missing = output_of(&mut Command::new("/no/such"), b"", Messages::Kept, LONG);
        assert!(matches!(missing, Err(ProcessError::Start(_))));
    }

    #[test]
    fn process_that_floods_is_ended() {
        assert!(run("cat /dev/zero", b"", LONG).unwrap_err().contains("8 MiB"));
        let flood = "head -c 10000000 /dev/zero >&2; printf x";
        assert_eq!(run(flood, b"", LONG), Ok(b"x".to_vec()));
    }

    fn named_pipe(folder: &TempDir) -> PathBuf {
        let path = folder.path().join("pipe");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        path
    }

    #[test]
    fn output_ends_with_the_process_though_an_agent_keeps_the_pipe() {
        let folder = tempfile::tempdir().unwrap();
        let path = named_pipe(&folder);
        // The agents end when this is closed.
        let _open = File::options().read(true).write(true).open(&path).unwrap();
        let agent = format!("exec 3<{}; cat <&3 &", path.display());
        for messages in [Messages::Kept, Messages::Shown] {
            let mut command = shell(&format!("{agent} printf x"));
            assert_eq!(output_of(&mut command, b"", messages, LONG).unwrap().as_slice(), b"x");
        }
        let failed = run(&format!("{agent} echo no >&2; exit 3"), b"", LONG);
        assert_eq!(failed.unwrap_err(), "it ended with exit code 3: no");
    }

    #[test]
    fn processes_that_a_killed_process_has_started_are_killed_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = named_pipe(&folder);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let pipe = rustix::fs::open(&path, flags, Mode::empty()).unwrap();
        let script = format!("exec 3>{}; sleep 1000 & exec cat /dev/zero", path.display());
        assert!(run(&script, b"", LONG).unwrap_err().contains("8 MiB"));
        // The named pipe hangs up when its last writer has ended.
        let mut fds = [PollFd::new(&pipe, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&Timespec::try_from(LONG).unwrap())), Ok(1));
        assert!(fds[0].revents().contains(PollFlags::HUP));
    }

    #[test]
    fn process_that_hangs_is_killed() {
        let short = Duration::from_millis(50);
        let flood = "exec cat /dev/zero >&2";
        for script in ["exec sleep 1000", "exec >&-; exec sleep 1000", flood] {
            assert!(run(script, b"", short).unwrap_err().contains("did not end"), "{script}");
        }
    }
}
