//! Shared helpers for tests of the binary: a folder for each test, volumes that open quickly, and a
//! server that is stopped at the test's end.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod home;
pub(crate) mod nbd;
pub(crate) mod screen;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

pub(crate) const PASSPHRASE: &str = "open sesame 7c1f";
/// A header without spare keyslots, so that images stay small.
pub(crate) const SMALL: [&str; 6] = [
    "--luks2-keyslots-size",
    "256K",
    "--offset",
    "1024",
    "--pbkdf=pbkdf2",
    "--pbkdf-force-iterations=1000",
];
/// Time for a refusal on a busy machine: all keys are derived, and a lock is waited for.
const REFUSAL: Duration = Duration::from_secs(120);
/// Start of its data.
pub(crate) const SMALL_DATA_OFFSET_BYTES: u64 = 512 << 10;
/// Length of its plaintext.
pub(crate) const SMALL_LEN_BYTES: usize = 1 << 20;

pub(crate) struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    pub(crate) fn new() -> Self {
        let lab = Self { dir: tempfile::tempdir().unwrap() };
        lab.write("pass", PASSPHRASE);
        lab
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    /// The binary in this folder, with empty standard input.
    pub(crate) fn blockyard<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_blockyard"));
        command.args(words).current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    pub(crate) fn run<S: AsRef<OsStr>>(&self, words: &[S]) -> Output {
        self.blockyard(words).output().unwrap()
    }

    /// Runs a command that must succeed.
    pub(crate) fn ok<S: AsRef<OsStr>>(&self, words: &[S]) -> Output {
        let output = self.run(words);
        assert!(output.status.success(), "{}", text(&output.stderr));
        output
    }

    /// Runs a command that must fail with this exit code and one error, which is returned.
    pub(crate) fn refused<S: AsRef<OsStr>>(&self, words: &[S], code: i32) -> String {
        refused(self.blockyard(words), code)
    }

    /// Runs with these bytes on standard input.
    pub(crate) fn fed<S: AsRef<OsStr>>(&self, words: &[S], input: &[u8]) -> Output {
        let mut command = self.blockyard(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let feeder = std::thread::spawn(move || {
            // A refused command does not read to the end.
            let _ = stdin.write_all(&input);
        });
        let output = child.wait_with_output().unwrap();
        feeder.join().unwrap();
        output
    }

    /// A small LUKS2 volume that the key file `pass` opens.
    pub(crate) fn volume(&self, name: &str) -> PathBuf {
        let len_bytes = SMALL_DATA_OFFSET_BYTES + SMALL_LEN_BYTES as u64;
        let size = len_bytes.to_string();
        let mut words = vec!["format", name, "--size", &size, "--key-file", "pass"];
        words.extend(SMALL);
        self.ok(&words);
        self.path(name)
    }

    /// Serves, and waits until the server reports readiness.
    pub(crate) fn serve<S: AsRef<OsStr>>(&self, words: &[S]) -> Server {
        let mut command = self.blockyard(&["serve"]);
        command.args(words);
        Server::start(command)
    }
}

pub(crate) struct Server {
    child: Child,
    stderr: BufReader<ChildStderr>,
    /// The lines up to the last "serving".
    pub(crate) said: Vec<String>,
}

impl Server {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut server = Self { child, stderr, said: Vec::new() };
        server.wait_for("serving ");
        server
    }

    /// Starts without a wait, for another form of the log.
    pub(crate) fn start_silent(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Self { child, stderr, said: Vec::new() }
    }

    /// Starts without a wait, with a pipe of the test as its standard error.
    pub(crate) fn start_on(mut command: Command, (reader, writer): (OwnedFd, OwnedFd)) -> Self {
        let child = command.stderr(writer).spawn().unwrap();
        Self { child, stderr: BufReader::new(reader.into()), said: Vec::new() }
    }

    /// Most memory that it has had, in KiB.
    pub(crate) fn peak_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    pub(crate) fn wait_for(&mut self, start: &str) {
        loop {
            let mut line = String::new();
            let len = self.stderr.read_line(&mut line).unwrap();
            assert!(len > 0, "it ended and had said {:?}", self.said);
            self.said.push(line.trim_end().to_owned());
            if line.starts_with(start) {
                return;
            }
        }
    }

    /// Waits for a line with this text, and returns it.
    pub(crate) fn wait_for_line(&mut self, part: &str) -> String {
        loop {
            let mut line = String::new();
            let len = self.stderr.read_line(&mut line).unwrap();
            assert!(len > 0, "it ended and had said {:?}", self.said);
            self.said.push(line.trim_end().to_owned());
            if line.contains(part) {
                return line.trim_end().to_owned();
            }
        }
    }

    pub(crate) fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn stop(self, signal: Signal) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.ended()
    }

    /// Stops it, and returns all its lines.
    pub(crate) fn stop_and_read(mut self, signal: Signal) -> Vec<String> {
        self.send(signal);
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        self.child.wait().unwrap();
        self.said.extend(rest.lines().map(str::to_owned));
        std::mem::take(&mut self.said)
    }

    /// Waits for its end.
    pub(crate) fn ended(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A loop device above a file, which is detached by the drop.
pub(crate) struct LoopDevice {
    pub(crate) path: PathBuf,
}

impl LoopDevice {
    /// `None` where this user cannot make one.
    pub(crate) fn attach(file: &Path) -> Option<Self> {
        Self::attach_with(file, &[])
    }

    /// With further options of losetup.
    pub(crate) fn attach_with(file: &Path, options: &[&str]) -> Option<Self> {
        let mut losetup = Command::new("losetup");
        let losetup = losetup.args(["--find", "--show"]).args(options).arg(file).output();
        let made = losetup.ok().filter(|made| made.status.success())?;
        Some(Self { path: PathBuf::from(text(&made.stdout).trim()) })
    }

    /// Claims the device as a mount does; `None` if the kernel refuses.
    pub(crate) fn claim(&self) -> Option<fs::File> {
        claimed(&self.path)
    }
}

/// Claims a block device as a mount does; `None` if the kernel refuses.
pub(crate) fn claimed(device: &Path) -> Option<fs::File> {
    let mut options = fs::File::options();
    options.read(true).custom_flags(rustix::fs::OFlags::EXCL.bits().cast_signed());
    options.open(device).ok()
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.path).status();
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Wants this exit code and exactly one error, and nothing that looks like a panic.
/// Runs a command that must fail with this exit code and one error, which is returned. One that
/// goes on, as a server does, is ended.
pub(crate) fn refused(mut command: Command, code: i32) -> String {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_child(&child);
    let (ended, end) = mpsc::channel();
    let waits = std::thread::spawn(move || ended.send(child.wait_with_output()));
    let output = end.recv_timeout(REFUSAL).unwrap_or_else(|_| {
        kill_process(pid, Signal::KILL).unwrap();
        end.recv().unwrap()
    });
    waits.join().unwrap().unwrap();
    one_error(&output.unwrap(), code)
}

pub(crate) fn one_error(output: &Output, code: i32) -> String {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    let errors: Vec<_> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{said}");
    assert!(!said.contains("panicked") && !said.contains("defect"), "{said}");
    assert!(!said.contains(PASSPHRASE), "{said}");
    errors[0].to_owned()
}

/// Bytes without a pattern, and without zeros in a row.
pub(crate) fn noise(len_bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut bytes = Vec::with_capacity(len_bytes);
    while bytes.len() < len_bytes {
        // xorshift64 (Marsaglia, "Xorshift RNGs").
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len_bytes);
    bytes
}

pub(crate) fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}
