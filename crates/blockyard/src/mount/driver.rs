//! The process of a file system's driver.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use blockyard_host::broker::Broker;
use blockyard_host::fuse::{self, Mounts};
use blockyard_host::process::{StopSignal, end_with_this_thread};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getegid, geteuid, pidfd_open, pidfd_send_signal};

use super::drivers::DriverProgram;
use super::mount_at;
use crate::file_system::FileSystem;
use crate::{Error, Volume};

/// Wait for the end of a driver whose mount has gone, before a signal asks for it.
const END_LIMIT: Duration = Duration::from_secs(2);
/// Wait after the signal: the driver may have much to write back. A stopped driver is continued.
const WRITE_BACK_LIMIT: Duration = Duration::from_secs(120);

/// Owner and permissions of all files, for file systems that have none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) umask: Option<u32>,
}

/// The order for a driver.
pub(super) struct Order<'a> {
    pub(super) driver: &'static DriverProgram,
    pub(super) program: &'a Path,
    /// The plaintext.
    pub(super) file: &'a Path,
    pub(super) directory: &'a Path,
    /// File for its output.
    pub(super) said: &'a Path,
    pub(super) read_only: bool,
    pub(super) owner: Owner,
}

/// A running driver.
#[derive(Debug)]
pub(super) struct Driver {
    name: &'static str,
    child: Child,
    pidfd: OwnedFd,
    said: PathBuf,
    is_told: bool,
    /// The process outside of the sandbox, which sends the signals.
    outside: Option<Arc<Broker>>,
}

/// Refuses an owner for a file system that has owners itself.
pub(super) fn check_owner(
    system: FileSystem,
    driver: &DriverProgram,
    volume: &Volume,
    owner: Owner,
) -> Result<(), Error> {
    let is_given = owner.uid.is_some() || owner.gid.is_some() || owner.umask.is_some();
    if is_given && !driver.takes_owner {
        let problem = format!(
            "`uid`, `gid` and `umask` are for file systems without owners; {} has its own",
            system.name()
        );
        return Err(Error::contents(volume, problem));
    }
    Ok(())
}

impl Driver {
    /// Starts a driver, and returns when its mount is there.
    pub(super) fn start(order: &Order<'_>, stop: &StopSignal) -> Result<Self, Error> {
        let program = order.driver;
        let wrong = |problem: String| Error::mount(order.directory, problem);
        let mut mounts = Mounts::open().map_err(|error| wrong(error.to_string()))?;
        let output = File::create(order.said).map_err(|error| Error::file(order.said, error))?;
        let errors = output.try_clone().map_err(|error| Error::file(order.said, error))?;
        let mut command = Command::new(order.program);
        command.args(program.words);
        let options = options(program, order).join(",");
        if !options.is_empty() {
            command.args(["-o", &options]);
        }
        command.arg(order.file).arg(order.directory);
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        // A Ctrl-C in the terminal is for the supervisor, which ends everything in order.
        command.process_group(0);
        end_with_this_thread(&mut command);
        let mut child = command
            .spawn()
            .map_err(|error| wrong(format!("cannot start {}: {error}", program.name)))?;
        let pid = Pid::from_child(&child);
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(errno) => {
                // It may not have mounted yet. Its number is its own until it is waited for.
                let _ = child.kill();
                let _ = child.wait();
                if matches!(mount_at(order.directory), Ok(Some(_))) {
                    let _ = fuse::unmount(order.directory, true);
                }
                return Err(wrong(format!("cannot watch {}: {errno}", program.name)));
            }
        };
        let name = program.name;
        let said = order.said.to_path_buf();
        let mut driver = Self { name, child, pidfd, said, is_told: false, outside: None };
        match driver.wait_for_mount(&mut mounts, order.directory, stop) {
            Ok(()) => Ok(driver),
            Err(error) => {
                driver.tell(Signal::TERM);
                let _ = driver.child.wait();
                Err(error)
            }
        }
    }

    /// The descriptor of its process.
    pub(super) fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Lets a process outside of the sandbox send the signals.
    pub(super) fn is_signalled_by(&mut self, broker: Arc<Broker>) {
        self.outside = Some(broker);
    }

    /// Name of the program.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    fn wait_for_mount(
        &mut self,
        mounts: &mut Mounts,
        directory: &Path,
        stop: &StopSignal,
    ) -> Result<(), Error> {
        let wrong = |problem: String| Error::mount(directory, problem);
        loop {
            if mounts.at(directory).map_err(|error| wrong(error.to_string()))?.is_some() {
                return Ok(());
            }
            let mut fds = [
                PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.pidfd.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(mounts.changed(), PollFlags::PRI),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(wrong(errno.to_string())),
            }
            if !fds[0].revents().is_empty() {
                return Err(wrong("a signal ended the wait for the driver".into()));
            }
            if !fds[1].revents().is_empty() {
                let status = self.child.wait().map_err(|error| wrong(error.to_string()))?;
                return Err(wrong(self.failure(status)));
            }
        }
    }

    /// The end of the driver as a sentence, with the last line of its output.
    fn failure(&self, status: ExitStatus) -> String {
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("has ended with exit code {code}"),
            (None, Some(signal)) => format!("was ended by signal {signal}"),
            (None, None) => "has ended".to_owned(),
        };
        let said = fs::read(&self.said).unwrap_or_default();
        let said = String::from_utf8_lossy(&said).into_owned();
        let lines: Vec<_> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let said = lines.last().map(|line| line.strip_prefix("error: ").unwrap_or(line));
        let said = said.map_or_else(String::new, |line| format!(": {line}"));
        format!("the driver {} {how}{said}", self.name)
    }

    /// Unmounts the place and ends the driver.
    pub(super) fn end(mut self, place: &Path) -> Result<(), Error> {
        let was_running = !self.has_ended(Duration::ZERO);
        // Also the mount of a driver that was killed.
        if mount_at(place)?.is_some_and(|mount| mount.kind.starts_with("fuse")) {
            let unmounted = fuse::unmount(place, true);
            // Another program may have been faster.
            if mount_at(place)?.is_some() {
                unmounted?;
            }
        }
        if was_running && !self.has_ended(END_LIMIT) {
            // Programs use the mount. The drivers write back and end on this signal.
            self.tell(Signal::TERM);
            if !self.has_ended(WRITE_BACK_LIMIT) {
                self.tell(Signal::KILL);
            }
        }
        let status = self.child.wait().map_err(|error| Error::mount(place, error.to_string()))?;
        let was_ended_by_us = self.is_told && status.signal() != Some(Signal::KILL.as_raw());
        if status.success() || was_ended_by_us {
            return Ok(());
        }
        Err(Error::mount(place, self.failure(status)))
    }

    fn tell(&mut self, signal: Signal) {
        self.is_told = true;
        // A stopped driver would see the signal only when it is continued.
        for signal in [signal, Signal::CONT] {
            // It may have ended meanwhile.
            match &self.outside {
                None => drop(pidfd_send_signal(&self.pidfd, signal)),
                Some(broker) => drop(broker.signal(signal)),
            }
        }
    }

    fn has_ended(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut fds = [PollFd::from_borrowed_fd(self.pidfd.as_fd(), PollFlags::IN)];
            match poll(&mut fds, Some(&left)) {
                Err(Errno::INTR) => {}
                ready => return ready.is_ok_and(|ready| ready > 0),
            }
        }
    }
}

impl AsFd for Driver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

fn options(program: &DriverProgram, order: &Order<'_>) -> Vec<String> {
    let of_user = if geteuid().is_root() { &[] } else { program.of_user };
    let fixed = program.options.iter().chain(of_user).map(|&word| word.to_owned());
    let access = order.read_only.then(|| "ro".to_owned());
    let Owner { uid, gid, umask } = order.owner;
    // Without these, ntfs-3g gives access to all users of the machine.
    let owner = program.takes_owner.then(|| {
        format!(
            "uid={},gid={},umask={:o}",
            uid.unwrap_or_else(|| geteuid().as_raw()),
            gid.unwrap_or_else(|| getegid().as_raw()),
            umask.unwrap_or(0o077)
        )
    });
    fixed.chain(access).chain(owner).collect()
}
