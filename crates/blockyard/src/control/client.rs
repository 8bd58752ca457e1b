//! The client's side of the control socket.

use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use blockyard_crypt::secret::SecretBytes;
use blockyard_host::dirty_bitmap::{BackupId, BackupStep};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::de::DeserializeOwned;

use super::{BackupAnswer, Done, Refusal, Refused, Reloaded, Resumed};
use crate::rate::RateLimits;
use crate::recorder::{Recorded, TraceFile};
use crate::resize::Resized;
use crate::status::{Loss, Status};

/// Limit of a reply; usually a few lines per volume.
const REPLY_BYTES_MAX: usize = 16 << 20;
/// Length of one read.
const PIECE_BYTES: usize = 64 << 10;
/// Default of [`Control::timeout`]: twice the server's limit of a suspend.
const TIMEOUT: Duration = Duration::from_secs(60);
/// A longer limit is none.
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// A running server, through its control socket.
///
/// `export` names a volume; it may be empty if the server has one volume only. A call waits for the
/// server's reply until [`Control::timeout`].
///
/// ```no_run
/// let status = blockyard::Control::at("home.ctl").status()?;
/// for volume in &status.devices {
///     println!("{:?}: {} bios in flight", volume.exports, volume.counts.in_flight);
/// }
/// # Ok::<(), blockyard::ControlError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Control {
    socket: PathBuf,
    timeout: Duration,
}

/// Error of a command to a running server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// No server listens on the control socket.
    #[error("{socket}: cannot {action}: {source}", socket = .socket.display())]
    Io {
        /// Socket.
        socket: PathBuf,
        /// Failed system call or step.
        action: &'static str,
        /// Error of the system.
        source: io::Error,
    },
    /// The server did not reply in time.
    #[error(
        "{socket}: no reply within {timeout:?}; is the server stopped?",
        socket = .socket.display()
    )]
    Timeout {
        /// Socket.
        socket: PathBuf,
        /// [`Control::timeout`].
        timeout: Duration,
    },
    /// The server has closed the connection without a reply.
    #[error(
        "{socket}: the server has closed the connection without a reply; it may have ended",
        socket = .socket.display()
    )]
    NoReply {
        /// Socket.
        socket: PathBuf,
    },
    /// The reply does not come from a control socket.
    #[error("{socket}: this is no control socket", socket = .socket.display())]
    NoControlSocket {
        /// Socket.
        socket: PathBuf,
    },
    /// The server refuses the command.
    #[error("{socket}: {name}: {problem}", socket = .socket.display())]
    Refused {
        /// Socket.
        socket: PathBuf,
        /// The kernel's name of the error, from errno(3).
        name: String,
        /// Cause.
        problem: String,
    },
    /// A field cannot be sent.
    #[error("`{field}`: {problem}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// Cause.
        problem: &'static str,
    },
}

impl Control {
    /// A server by its control socket; nothing is sent yet.
    #[must_use]
    pub fn at(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into(), timeout: TIMEOUT }
    }

    /// Limit of each call, at most a year; the default is one minute. A suspend may take half a
    /// minute, because it waits for the I/O in flight.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.min(TIMEOUT_MAX);
        self
    }

    /// Path of the socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Status of the server.
    ///
    /// # Errors
    /// The server does not answer, or the answer is no status.
    pub fn status(&self) -> Result<Status, ControlError> {
        self.ask(b"status\n")
    }

    /// Makes the I/O of a volume wait, and returns when the I/O in flight has ended.
    ///
    /// # Errors
    /// The server does not answer or refuses; the volume then continues.
    pub fn suspend(&self, export: &str) -> Result<(), ControlError> {
        self.done(&format!("suspend {}\n", name(export)?))
    }

    /// Continues the I/O of a volume. With `accept_loss`, flushes and writes work again after a
    /// failure; otherwise they continue to fail, and the failure is returned.
    ///
    /// # Errors
    /// The server does not answer or refuses.
    pub fn resume(&self, export: &str, accept_loss: bool) -> Result<Option<Loss>, ControlError> {
        let command = if accept_loss { "resume-accepting-loss" } else { "resume" };
        let resumed: Resumed = self.ask(format!("{command} {}\n", name(export)?).as_bytes())?;
        Ok(resumed.loss)
    }

    /// Extends a volume to the size that its header and its file or device have now. Clients that
    /// connect from then on see it.
    ///
    /// # Errors
    /// The server does not answer or refuses: the volume would shrink, or cannot follow.
    pub fn resize(&self, export: &str) -> Result<Resized, ControlError> {
        self.ask(format!("resize {}\n", name(export)?).as_bytes())
    }

    /// Changes the limits of the rate of an export, for requests that have not started. Exports of
    /// a group have the new ones too.
    ///
    /// # Errors
    /// The server does not answer or refuses.
    pub fn limit(&self, export: &str, limits: RateLimits) -> Result<(), ControlError> {
        let burst_ns = u64::try_from(limits.burst.as_nanos()).unwrap_or(u64::MAX);
        self.limit_with(export, limits, &burst_ns.to_string())
    }

    fn limit_with(
        &self,
        export: &str,
        limits: RateLimits,
        burst: &str,
    ) -> Result<(), ControlError> {
        let per_s = |limit: Option<NonZeroU64>| limit.map_or(0, NonZeroU64::get);
        let RateLimits { iops, bytes_per_s, .. } = limits;
        let numbers = format!("{} {} {burst}", per_s(iops), per_s(bytes_per_s));
        self.done(&format!("limit {numbers} {}\n", name(export)?))
    }

    /// Takes a step of a backup of a volume with a dirty bitmap; returns its number.
    ///
    /// # Errors
    /// The server does not answer or refuses: there is no bitmap, a backup runs already, or another
    /// one than that to end.
    pub fn backup(&self, export: &str, step: BackupStep) -> Result<BackupId, ControlError> {
        let id = match step {
            BackupStep::Freeze => String::new(),
            BackupStep::Done(id) | BackupStep::Failed(id) => format!("{id} "),
        };
        let command = format!("backup {} {id}{}\n", step.name(), name(export)?);
        let answer: BackupAnswer = self.ask(command.as_bytes())?;
        let wrong = |_| ControlError::NoControlSocket { socket: self.socket.clone() };
        answer.backup.parse().map_err(wrong)
    }

    /// Like [`Control::limit`], with the burst that the export has now.
    ///
    /// # Errors
    /// See [`Control::limit`].
    pub fn limit_keeping_burst(
        &self,
        export: &str,
        limits: RateLimits,
    ) -> Result<(), ControlError> {
        self.limit_with(export, limits, "-")
    }

    /// Sends a message to the line at a sector of the volume, whose target has a control path:
    /// multipath, or a target of the program.
    ///
    /// # Errors
    /// The server does not answer or refuses.
    pub fn message(&self, export: &str, sector: u64, words: &[&str]) -> Result<(), ControlError> {
        let is_wrong = |word: &&str| word.is_empty() || word.contains(char::is_whitespace);
        if words.is_empty() || words.iter().any(is_wrong) {
            let problem = "a message has one word at least, and its words have no blanks";
            return Err(ControlError::Field { field: "words", problem });
        }
        let count = words.len();
        let text = words.join(" ");
        self.done(&format!("message {sector} {count} {text} {}\n", name(export)?))
    }

    /// Wipes the key of the crypt line at a sector of a suspended volume.
    ///
    /// # Errors
    /// The server does not answer or refuses.
    pub fn wipe_key(&self, export: &str, sector: u64) -> Result<(), ControlError> {
        self.done(&format!("key-wipe {sector} {}\n", name(export)?))
    }

    /// Sets the key of the crypt line at a sector of a suspended volume, given as hex digits.
    ///
    /// # Errors
    /// The server does not answer or refuses.
    pub fn set_key(
        &self,
        export: &str,
        sector: u64,
        digits: &SecretBytes,
    ) -> Result<(), ControlError> {
        let digits = digits.as_slice();
        if digits.is_empty() || digits.iter().any(u8::is_ascii_whitespace) {
            let problem = "the key is not one word of hex digits";
            return Err(ControlError::Field { field: "digits", problem });
        }
        let head = format!("key-set {sector} ");
        let tail = format!(" {}\n", name(export)?);
        let mut line = SecretBytes::zeroed(head.len() + digits.len() + tail.len());
        let (start, rest) = line.as_mut_slice().split_at_mut(head.len());
        let (middle, end) = rest.split_at_mut(digits.len());
        start.copy_from_slice(head.as_bytes());
        middle.copy_from_slice(digits);
        end.copy_from_slice(tail.as_bytes());
        self.ask::<Done>(line.as_slice()).map(drop)
    }

    /// Starts to record a volume into a file of the server's machine.
    ///
    /// # Errors
    /// The server does not answer or refuses.
    pub fn start_trace(&self, export: &str, to: &TraceFile) -> Result<(), ControlError> {
        self.done(&trace_line(export, to)?)
    }

    /// Lets the server read its configuration again, and waits until exports have come and gone.
    ///
    /// # Errors
    /// The server does not answer or refuses: the configuration is wrong, or a new export cannot be
    /// opened.
    pub fn reload(&self) -> Result<Reloaded, ControlError> {
        self.ask(b"reload\n")
    }

    /// Closes an export that opens at its next use, which wipes its keys. Its clients get the
    /// replies to what the server has received, and are disconnected.
    ///
    /// # Errors
    /// The server does not answer or refuses: the export opens with the server. Or the flush
    /// failed.
    pub fn forget(&self, export: &str) -> Result<(), ControlError> {
        self.done(&format!("forget {}\n", name(export)?))
    }

    /// Ends the recording of a volume.
    ///
    /// # Errors
    /// The server does not answer or refuses.
    pub fn stop_trace(&self, export: &str) -> Result<Recorded, ControlError> {
        self.ask(format!("trace-stop {}\n", name(export)?).as_bytes())
    }

    fn done(&self, line: &str) -> Result<(), ControlError> {
        self.ask::<Done>(line.as_bytes()).map(drop)
    }

    /// Sends a line and waits for the reply.
    fn ask<T: DeserializeOwned>(&self, line: &[u8]) -> Result<T, ControlError> {
        let socket = || self.socket.clone();
        if self.socket.as_os_str().is_empty() {
            return Err(ControlError::Field { field: "socket", problem: "the path is empty" });
        }
        let failed = |action| {
            move |source: io::Error| match source.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    ControlError::Timeout { socket: socket(), timeout: self.timeout }
                }
                _ => ControlError::Io { socket: socket(), action, source },
            }
        };
        let until = Instant::now() + self.timeout;
        let mut stream = connect(&self.socket, until).map_err(failed("connect"))?;
        stream.write_all(line).map_err(failed("send"))?;
        let reply = receive(&mut stream, until).map_err(failed("receive"))?;
        if reply.is_empty() {
            return Err(ControlError::NoReply { socket: socket() });
        }
        if let Ok(Refused { error: Refusal { name, problem } }) = serde_json::from_slice(&reply) {
            return Err(ControlError::Refused { socket: socket(), name, problem });
        }
        serde_json::from_slice(&reply)
            .map_err(|_| ControlError::NoControlSocket { socket: socket() })
    }
}

/// Connects and sets the time limit of a send. A connect waits while the server's queue of clients
/// is full.
fn connect(socket: &Path, until: Instant) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_timeout(&fd, Timeout::Send, Some(time_left(until)?))?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(socket)?)?;
    Ok(fd.into())
}

/// Receives up to the end of the connection or [`REPLY_BYTES_MAX`].
fn receive(stream: &mut UnixStream, until: Instant) -> io::Result<Vec<u8>> {
    let mut reply = Vec::new();
    let mut piece = vec![0; PIECE_BYTES];
    while reply.len() < REPLY_BYTES_MAX {
        stream.set_read_timeout(Some(time_left(until)?))?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(len) => reply.extend(&piece[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(reply)
}

fn time_left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// An export name as the rest of a line.
fn name(export: &str) -> Result<&str, ControlError> {
    if export.contains('\n') {
        Err(ControlError::Field {
            field: "export",
            problem: "a name with a newline cannot be sent",
        })
    } else {
        Ok(export)
    }
}

fn trace_line(export: &str, to: &TraceFile) -> Result<String, ControlError> {
    let path = to.path.to_str().filter(|path| !path.contains('\n'));
    let path = path.ok_or(ControlError::Field {
        field: "path",
        problem: "a name that is not UTF-8, or has a newline, cannot be sent",
    })?;
    let limit_ms = to.limit.map_or(0, |limit| limit.as_millis());
    let how = if to.replace { "replace" } else { "new" };
    Ok(format!("trace-start {limit_ms} {how} {} {path} {}\n", path.len(), name(export)?))
}

#[cfg(test)]
mod tests {
    use std::io::BufRead;

    use super::*;

    #[test]
    fn path_is_sent_with_its_length() {
        let to = |path: &str| TraceFile { path: path.into(), replace: true, limit: None };
        let line = trace_line("my disk", &to("/a b")).unwrap();
        assert_eq!(line, "trace-start 0 replace 4 /a b my disk\n");
        assert!(trace_line("", &to("/a\nb")).is_err());
        assert!(trace_line("my\ndisk", &to("/a b")).is_err());
    }

    #[test]
    fn mute_server_is_given_up_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mute.ctl");
        let _mute = std::os::unix::net::UnixListener::bind(&path).unwrap();
        for timeout in [Duration::ZERO, Duration::from_millis(50)] {
            let error = Control::at(&path).timeout(timeout).status().unwrap_err();
            assert!(matches!(error, ControlError::Timeout { .. }), "{error}");
            assert!(error.to_string().contains("mute.ctl"), "{error}");
        }
        let error = Control::at("").status().unwrap_err();
        assert_eq!(error.to_string(), "`socket`: the path is empty");
    }

    #[test]
    fn server_that_ends_without_a_reply_is_no_other_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ends.ctl");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            for reply in [&b""[..], b"NBDMAGIC", br#"{"execute":1}"#] {
                let (mut stream, _) = listener.accept().unwrap();
                // Unread bytes would reset the connection.
                io::BufReader::new(&stream).read_line(&mut String::new()).unwrap();
                stream.write_all(reply).unwrap();
            }
        });
        let control = Control::at(&path);
        assert!(matches!(control.reload().unwrap_err(), ControlError::NoReply { .. }));
        assert!(matches!(control.reload().unwrap_err(), ControlError::NoControlSocket { .. }));
        assert!(matches!(control.forget("").unwrap_err(), ControlError::NoControlSocket { .. }));
        server.join().unwrap();
    }

    #[test]
    fn message_without_words_is_not_sent() {
        let server = Control::at("/nonexistent/control");
        for words in [&[][..], &[""], &["fail_path", "a b"]] {
            let refused = server.message("", 0, words).unwrap_err();
            assert!(matches!(refused, ControlError::Field { field: "words", .. }), "{refused}");
        }
    }
}
