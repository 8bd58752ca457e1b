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
use std::time::{Duration, Instant};

use blockyard_crypt::secret::SecretBytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpgrp, kill_process_group, pidfd_open};
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
            Self::Failed(how) => f.write_str(how),
        }
    }
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
    child: Child,
    /// Whether the child leads a process group. A program in the foreground of a terminal does not:
    /// in a group of its own it could not read from the terminal.
    has_group: bool,
    /// Readable when the process has ended.
    end: OwnedFd,
    output: Option<OwnedFd>,
    messages: Option<OwnedFd>,
    deadline: Instant,
    time_limit: Duration,
    /// Its status has been taken, so its number may be another's.
    is_over: bool,
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
        let mut child = command.spawn().map_err(ProcessError::Start)?;
        let opened = Pid::from_raw(child.id().cast_signed())
            .ok_or(Errno::SRCH)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
        let end = match opened {
            Ok(end) => end,
            Err(errno) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(ProcessError::Start(errno.into()));
            }
        };
        let output = child.stdout.take().map(OwnedFd::from);
        let messages = child.stderr.take().map(OwnedFd::from);
        let deadline = Instant::now() + time_limit;
        let is_over = false;
        Ok(Self { child, has_group, end, output, messages, deadline, time_limit, is_over })
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
        let status = self.child.wait().map_err(ProcessError::Read)?;
        self.is_over = true;
        if status.success() {
            Ok(secret.into_secret())
        } else {
            Err(ProcessError::Failed(described(status, &message)))
        }
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
        // The group keeps its number until the process is waited for.
        if self.has_group
            && let Some(group) = Pid::from_raw(self.child.id().cast_signed())
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
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
