//! The process of a file system's driver.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use blockyard_host::broker::{Broker, start_driver};
use blockyard_host::fuse::{self, Mount, Mounts};
use blockyard_host::process::StopSignal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, getegid, geteuid, pidfd_send_signal};

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
    /// The process that starts it.
    pub(super) broker: Option<&'a Arc<Broker>>,
}

/// A running driver.
#[derive(Debug)]
pub(super) struct Driver {
    name: &'static str,
    parent: Parent,
    pidfd: OwnedFd,
    said: PathBuf,
    place: PathBuf,
    /// `None` before it is there.
    mount: Option<Mount>,
    is_told: bool,
    /// The broker sends the signals too.
    is_signalled_outside: bool,
}

/// The parent of a driver.
#[derive(Debug)]
enum Parent {
    /// This process.
    Own(Child),
    /// The process outside of the sandbox.
    Broker(Arc<Broker>),
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
        let words = words(order);
        let started = match order.broker {
            Some(broker) => {
                let pidfd = broker.start_driver(&words, &output);
                pidfd.map(|pidfd| (Parent::Broker(Arc::clone(broker)), pidfd))
            }
            None => {
                let started = start_driver(&words, output.into());
                started.map(|(child, pidfd)| (Parent::Own(child), pidfd))
            }
        };
        let (parent, pidfd) = started.map_err(|error| {
            // A driver that cannot be watched is killed. Its mount may be there already.
            if let Ok(Some(mount)) = mount_at(order.directory) {
                let _ = fuse::unmount(&mount, true);
            }
            wrong(format!("cannot start {}: {error}", program.name))
        })?;
        let name = program.name;
        let said = order.said.to_path_buf();
        let place = order.directory.to_path_buf();
        let mut driver = Self {
            name,
            parent,
            pidfd,
            said,
            place,
            mount: None,
            is_told: false,
            is_signalled_outside: false,
        };
        match driver.wait_for_mount(&mut mounts, order.directory, stop) {
            Ok(()) => Ok(driver),
            Err(error) => {
                driver.tell(Signal::TERM);
                let _ = driver.wait();
                Err(error)
            }
        }
    }

    /// The descriptor of its process.
    pub(super) fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Lets the broker send the signals, if it has started the driver.
    pub(super) fn signal_outside(&mut self) {
        self.is_signalled_outside = true;
    }

    /// The process outside of the sandbox.
    pub(super) fn broker(&self) -> Option<&Arc<Broker>> {
        match &self.parent {
            Parent::Own(_) => None,
            Parent::Broker(broker) => Some(broker),
        }
    }

    fn has_lost_its_broker(&self) -> bool {
        self.broker().is_some_and(|broker| broker.has_ended())
    }

    /// Waits for the end.
    fn wait(&mut self) -> io::Result<ExitStatus> {
        match &mut self.parent {
            Parent::Own(child) => child.wait(),
            Parent::Broker(broker) => {
                let mut fds = [PollFd::from_borrowed_fd(self.pidfd.as_fd(), PollFlags::IN)];
                rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
                broker.driver_status()
            }
        }
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
            self.mount = mounts.at(directory).map_err(|error| wrong(error.to_string()))?;
            if self.mount.is_some() {
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
                let status = self.wait().map_err(|error| wrong(error.to_string()))?;
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
        // The file that the driver names has gone with the mount.
        let remedy = if said.contains("fsck") {
            " (`blockyard mount --as-file` shows the plaintext as a file, which fsck can repair)"
        } else {
            ""
        };
        format!("the driver {} {how}{said}{remedy}", self.name)
    }

    /// Unmounts its mount and ends the driver.
    pub(super) fn end(mut self) -> Result<(), Error> {
        let was_running = !self.has_ended(Duration::ZERO);
        // The kernel has told the driver to end then, and this process may not unmount.
        let is_alone = self.has_lost_its_broker();
        let unmounted = if is_alone { Ok(()) } else { self.unmount() };
        let end_limit = if is_alone || unmounted.is_err() { Duration::ZERO } else { END_LIMIT };
        if was_running && !self.has_ended(end_limit) {
            // Programs use the mount. The drivers write back and end on this signal.
            self.tell(Signal::TERM);
            if !self.has_lost_its_broker() && !self.has_ended(WRITE_BACK_LIMIT) {
                self.tell(Signal::KILL);
            }
        }
        if is_alone {
            // Its status went with the broker. The error for the user is that of the broker.
            return Ok(());
        }
        if self.has_lost_its_broker() {
            // It has passed on no signal. Its own end, or ours, ends the driver.
            let problem = format!("the process that ends the driver {} does not answer", self.name);
            return Err(Error::mount(&self.place, problem));
        }
        let status = self.wait().map_err(|error| Error::mount(&self.place, error.to_string()))?;
        let was_ended_by_us = self.is_told && status.signal() != Some(Signal::KILL.as_raw());
        if status.success() || was_ended_by_us {
            // The driver may have unmounted it now.
            return if self.is_mounted()? { unmounted } else { Ok(()) };
        }
        Err(Error::mount(&self.place, self.failure(status)))
    }

    /// Unmounts the mount, also that of a driver that was killed.
    fn unmount(&self) -> Result<(), Error> {
        let Some(mount) = self.mount.as_ref().filter(|mount| mount.kind.starts_with("fuse")) else {
            return Ok(());
        };
        let unmounted = fuse::unmount(mount, true);
        // Another program may have been faster.
        if self.is_mounted()? { Ok(unmounted?) } else { Ok(()) }
    }

    /// Whether its mount is there, perhaps under that of another program, or below another name.
    fn is_mounted(&self) -> Result<bool, Error> {
        let Some(mount) = &self.mount else { return Ok(false) };
        let all = Mounts::open().and_then(|mut mounts| mounts.read());
        let all = all.map_err(|error| Error::mount(&self.place, error.to_string()))?;
        Ok(all.iter().any(|one| one.shows_the_same(mount)))
    }

    fn tell(&mut self, signal: Signal) {
        self.is_told = true;
        // A stopped driver would see the signal only when it is continued.
        for signal in [signal, Signal::CONT] {
            // It may have ended meanwhile.
            match &self.parent {
                Parent::Broker(broker) if self.is_signalled_outside => {
                    drop(broker.signal(signal));
                }
                _ => drop(pidfd_send_signal(&self.pidfd, signal)),
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

/// The program and its arguments.
fn words(order: &Order<'_>) -> Vec<OsString> {
    let mut words = vec![order.program.into()];
    words.extend(order.driver.words.iter().map(OsString::from));
    let options = options(order.driver, order).join(",");
    if !options.is_empty() {
        words.extend(["-o".into(), options.into()]);
    }
    words.extend([order.file.into(), order.directory.into()]);
    words
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
