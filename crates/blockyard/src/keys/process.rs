//! A process whose standard output is a secret: bounded in length and time.
//!
//! The output goes from the pipe into locked memory. Input is a file in memory, so a process that
//! does not read cannot block this one. A process that is not waited for to its end is killed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use blockyard_crypt::secret::SecretBytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::Collected;

/// The part of standard error that is kept for a message: its end.
const MESSAGE_LEN_MAX_BYTES: usize = 4096;

/// Use of the standard error of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Messages {
    /// It is that of this process.
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
    Running::start(command, time_limit)?.output()
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
    /// Readable when the process has ended.
    end: OwnedFd,
    output: Option<OwnedFd>,
    messages: Option<OwnedFd>,
    deadline: Instant,
    time_limit: Duration,
}

/// A descriptor that may be read or has ended.
#[derive(Clone, Copy)]
enum Ready {
    Output,
    Messages,
    End,
}

impl Running {
    fn start(command: &mut Command, time_limit: Duration) -> Result<Self, ProcessError> {
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
        Ok(Self { child, end, output, messages, deadline, time_limit })
    }

    /// Waits for the end of the process and of its output.
    fn output(mut self) -> Result<SecretBytes, ProcessError> {
        let mut secret = Collected::new();
        let mut message = Vec::new();
        let mut status = None;
        while status.is_none() || self.output.is_some() {
            match self.wait(status.is_none())? {
                Ready::Output => self.read_output(&mut secret)?,
                Ready::Messages => self.read_messages(&mut message),
                Ready::End => status = Some(self.child.wait().map_err(ProcessError::Read)?),
            }
        }
        match status {
            Some(status) if status.success() => Ok(secret.into_secret()),
            Some(status) => Err(ProcessError::Failed(described(status, &message))),
            None => unreachable!("the loop ends with a status"),
        }
    }

    /// Waits for the first of: messages, output, the end. Messages come first, so that those of a
    /// process that has ended are read.
    fn wait(&self, for_end: bool) -> Result<Ready, ProcessError> {
        let messages = self.messages.iter().map(|fd| (Ready::Messages, fd));
        let output = self.output.iter().map(|fd| (Ready::Output, fd));
        let end = for_end.then_some((Ready::End, &self.end));
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
            let timeout = Timespec::try_from(left).map_err(|_| ProcessError::Time(left))?;
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => break,
                Err(errno) => return Err(ProcessError::Read(errno.into())),
            }
        }
        let ready = fds.iter().position(|fd| !fd.revents().is_empty());
        Ok(waits[ready.expect("poll has counted one")].0)
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
        // Without effect on a process that has been waited for.
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

    #[test]
    fn process_that_hangs_is_killed() {
        let short = Duration::from_millis(50);
        let flood = "exec cat /dev/zero >&2";
        for script in ["exec sleep 1000", "exec >&-; exec sleep 1000", flood] {
            assert!(run(script, b"", short).unwrap_err().contains("did not end"), "{script}");
        }
    }
}
