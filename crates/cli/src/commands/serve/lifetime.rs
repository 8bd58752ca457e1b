//! How long the server lives, and how other programs see it: the command that it serves, its
//! parent, the file with its process ID.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};

use blockyard_host::process::with_usual_signals;
use clap::{Args, ValueHint};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getppid, kill_process, pidfd_open, set_parent_process_death_signal,
    test_kill_process,
};

use tempfile::NamedTempFile;

use crate::failure::Failure;
use crate::nbd::{Server, Uri};
use crate::output::{InUse, Output};

/// Longest content of a file with a process ID.
const PID_TEXT_MAX_BYTES: u64 = 16;
const HELD: &str = "belongs to a running server; choose another path";

/// Options for programs that start the server.
#[derive(Args, Debug)]
pub(crate) struct LifetimeArgs {
    /// Run a shell command when ready, and end with it
    ///
    /// The command has the variables $uri, $unixsocket, $port and $exportname, as with nbdkit. Its
    /// exit code becomes that of the server. A signal that stops the server also ends the command.
    /// Without a socket, the server listens on a private one, as with `--socket -`.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) run: Option<String>,

    /// Stop when the program ends that started the server
    #[arg(long)]
    exit_with_parent: bool,

    /// Write the process ID into a file when the server is ready; the file is removed at its end
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) pid_file: Option<PathBuf>,
}

impl LifetimeArgs {
    /// Asks for SIGTERM at the end of the parent, if that is wanted. Call it first: a parent that
    /// ends before is not noticed.
    pub(super) fn follow_parent(&self) -> Result<(), Failure> {
        if !self.exit_with_parent {
            return Ok(());
        }
        let parent = getppid();
        set_parent_process_death_signal(Some(Signal::TERM))
            .map_err(|error| Failure::failed(format!("--exit-with-parent: {error}")))?;
        // It may have ended between the two calls, and then there is no signal.
        if getppid() == parent {
            return Ok(());
        }
        Err(Failure::failed("--exit-with-parent: the parent has ended already"))
    }
}

/// The command of `--run`.
pub(super) struct Running {
    child: Child,
    /// Readable when it has ended.
    pub(super) end: OwnedFd,
}

impl Running {
    /// Starts the command, with an export, its URI and its servers as variables.
    pub(super) fn start(
        command: &str,
        export: &str,
        uri: Option<Uri>,
        servers: &[Server],
    ) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::failed(format!("--run: cannot start sh: {error}"));
        let socket = servers.iter().find_map(|server| match server {
            Server::Unix(path) => Some(path.clone()),
            Server::Tcp(..) => None,
        });
        let port = servers.iter().find_map(|server| match server {
            Server::Tcp(_, port) => Some(port.to_string()),
            Server::Unix(_) => None,
        });
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", command]).env("exportname", export);
        shell
            .env("uri", uri.map_or_else(String::new, |uri| uri.to_string()))
            .env("port", port.unwrap_or_default());
        shell.env("unixsocket", socket.unwrap_or_default());
        let mut child = with_usual_signals(&mut shell).spawn().map_err(failed)?;
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(end) => Ok(Self { child, end }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(failed(error.into()))
            }
        }
    }

    /// Asks the command to end, if it has not.
    pub(super) fn terminate(&self) {
        // Until it is waited for, its number is not used again.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
    }

    /// Waits for the end of the command, if that can be expected: only the process outside of the
    /// sandbox can end it.
    pub(super) fn exit_code(mut self, is_told: bool) -> Result<ExitCode, Failure> {
        let status = if is_told { self.child.wait().map(Some) } else { self.child.try_wait() };
        let status = status.map_err(|error| Failure::failed(format!("--run: {error}")))?;
        let status = status.ok_or_else(|| {
            Failure::failed(format!(
                "--run: the process that ends the command has ended, and the command still runs \
                 (process {})",
                self.child.id()
            ))
        })?;
        Ok(ExitCode::from(code(status)))
    }
}

/// The code by which shells tell of an end.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// A written file with the process ID, which goes with this value.
pub(super) struct PidFile {
    path: PathBuf,
    text: String,
    /// Locked, as qemu-nbd does, so that no other server takes the path.
    _file: File,
}

/// Whether a running server has locked the file. Another user may lock it too, and a number may be
/// that of a new process; but hardly both.
fn is_held(path: &Path) -> bool {
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let flags = flags.bits().cast_signed();
    let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(path) else {
        return false;
    };
    let mut text = String::new();
    let read = (&file).take(PID_TEXT_MAX_BYTES).read_to_string(&mut text);
    let pid = read.ok().and_then(|_| Pid::from_raw(text.trim().parse().ok()?));
    let is_locked = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    is_locked && pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

impl PidFile {
    /// Checks that the file holds nothing else and can be written, which it tries.
    pub(super) fn check(path: &Path, in_use: &InUse) -> Result<(), Failure> {
        let option = || format!("--pid-file {}", path.display());
        let failed = |problem: &str| Failure::failed(problem).at(option());
        match fs::symlink_metadata(path) {
            Err(_) => {}
            Ok(found) if !found.is_file() => {
                return Err(failed("exists and is no file; choose another path"));
            }
            Ok(found) => {
                if is_held(path) {
                    return Err(Failure::busy(HELD).at(option()));
                }
                let is_short = found.len() <= PID_TEXT_MAX_BYTES;
                let text = if is_short { fs::read_to_string(path).ok() } else { None };
                let is_number =
                    |text: String| text.trim().bytes().all(|byte| byte.is_ascii_digit());
                if !text.is_some_and(is_number) {
                    return Err(failed("exists and holds no process ID; choose another path"));
                }
                Output::new(path, true).check(in_use).map_err(Failure::from)?;
            }
        }
        // Rights do not tell everything: some file systems take no file.
        let unwritable = |error: io::Error| failed(&format!("cannot be written: {error}"));
        beside(path, "").map(drop).map_err(unwritable)
    }

    /// Writes the file. It appears with its content.
    pub(super) fn write(path: &Path) -> Result<Self, Failure> {
        let wrong = |problem: String| {
            Failure::failed(format!("--pid-file: cannot write {}: {problem}", path.display()))
        };
        // The server's own sockets may have appeared here since the check.
        if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(wrong("it exists and is no file; choose another path".into()));
        }
        if is_held(path) {
            return Err(Failure::busy(HELD).at(format_args!("--pid-file {}", path.display())));
        }
        let text = format!("{}\n", std::process::id());
        let new = beside(path, &text).map_err(|error| wrong(error.to_string()))?;
        // Some file systems have no locks.
        let _ = new.as_file().try_lock();
        let file = new.persist(path).map_err(|error| wrong(error.error.to_string()))?;
        Ok(Self { path: path.to_owned(), text, _file: file })
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Another server may have written it since.
        if fs::read_to_string(&self.path).is_ok_and(|text| text == self.text) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A new file in the folder of a file, with its content. No other user knows its name before, and
/// links are not followed: the folder may be of another user.
fn beside(path: &Path, text: &str) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let new = tempfile::Builder::new()
        .prefix(".pid")
        .permissions(fs::Permissions::from_mode(0o644))
        .tempfile_in(folder.unwrap_or(Path::new(".")));
    // The crate names the new file, whose name means nothing to anyone.
    let mut new = new.map_err(|error| {
        let text = error.to_string();
        let problem = text.split(" at path ").next().unwrap_or(&text);
        io::Error::new(error.kind(), problem)
    })?;
    new.write_all(text.as_bytes())?;
    Ok(new)
}
