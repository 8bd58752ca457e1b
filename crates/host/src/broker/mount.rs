//! The end of a mount: what its process may not do in the sandbox.
//!
//! The places of the mount and its driver are fixed before the seal, as the files of a server are.
//!
//! The driver is a child of the broker. The kernel so ends it in order when the broker is killed,
//! even together with the process of the mount.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{
    Broker, DRIVER, DRIVER_STATUS, LEAVE_TERMINAL, PLACE, SIGNAL, UNMOUNT, packet_of_words,
};
use crate::process::end_with_this_thread;

/// Unmounts a mount, perhaps although programs use it.
pub type Unmount = fn(&MountedPlace, bool) -> io::Result<()>;

/// The place of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountedPlace {
    /// Major and minor number of its device. Another mount at the place has another number.
    pub device: String,
    /// Mount point.
    pub point: PathBuf,
}

/// Signals for a driver: it ends, and a stopped one goes on.
const SIGNALS: [Signal; 3] = [Signal::TERM, Signal::KILL, Signal::CONT];

impl Broker {
    /// Like [`Broker::fork`], for a mount.
    ///
    /// # Errors
    /// See [`Broker::fork`].
    pub fn fork_for_mount(unmount: Unmount) -> io::Result<Self> {
        Self::fork_with(None, Some(unmount))
    }

    /// Names a mount that [`Broker::unmount`] may unmount later. Numbers count from 0.
    ///
    /// # Errors
    /// The broker has ended, or is sealed.
    pub fn add_mount(&self, mount: &MountedPlace) -> io::Result<()> {
        let place = mount.point.as_os_str().as_bytes();
        self.ask(&[&[PLACE], mount.device.as_bytes(), &[0], place].concat(), None).map(drop)
    }

    /// Starts the driver of the mount, by its words, and with a file for its output. Returns a
    /// descriptor of its process.
    ///
    /// # Errors
    /// The words are too long, the driver cannot be started, or the broker has ended or is sealed.
    pub fn start_driver(&self, words: &[OsString], output: &File) -> io::Result<OwnedFd> {
        let packet = packet_of_words(DRIVER, words.iter().map(|word| word.as_bytes()))?;
        let reply = self.ask(&packet, Some(output.as_fd()))?;
        reply.fds.into_iter().next().ok_or_else(|| ErrorKind::BrokenPipe.into())
    }

    /// The status of the driver, once it has ended.
    ///
    /// # Errors
    /// It runs, or none was started; or the broker has ended.
    pub fn driver_status(&self) -> io::Result<ExitStatus> {
        self.ask(&[DRIVER_STATUS], None).map(|reply| ExitStatus::from_raw(reply.number))
    }

    /// Unmounts the mount of this number.
    ///
    /// # Errors
    /// It is in use or not mounted, or the broker has ended.
    pub fn unmount(&self, number: u32, lazy: bool) -> io::Result<()> {
        let packet = [&[UNMOUNT, u8::from(lazy)][..], &number.to_ne_bytes()].concat();
        self.ask(&packet, None).map(drop)
    }

    /// Sends SIGTERM, SIGKILL or SIGCONT to the sealed command, if it runs.
    ///
    /// # Errors
    /// It is another signal, or the broker has ended.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let packet = [&[SIGNAL][..], &signal.as_raw().to_ne_bytes()].concat();
        self.ask(&packet, None).map(drop)
    }

    /// Lets the broker leave its terminal, with the process that goes to the background.
    ///
    /// # Errors
    /// `/dev/null` is missing, or the broker has ended.
    pub fn leave_terminal(&self) -> io::Result<()> {
        self.ask(&[LEAVE_TERMINAL], None).map(drop)
    }
}

/// Starts the driver of a mount, by its words, as a child of this thread, with whose end it ends.
/// Returns a descriptor of its process too.
///
/// # Errors
/// The program cannot be started or watched.
pub fn start_driver(words: &[OsString], output: OwnedFd) -> io::Result<(Child, OwnedFd)> {
    let (program, arguments) = words.split_first().ok_or(ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    let errors = output.try_clone()?;
    command.args(arguments).stdin(Stdio::null()).stdout(output).stderr(errors);
    // A Ctrl-C in the terminal is for the supervisor, which ends everything in order.
    command.process_group(0);
    end_with_this_thread(&mut command);
    let mut child = command.spawn()?;
    match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
        Ok(pidfd) => Ok((child, pidfd)),
        Err(errno) => {
            // Its number is its own until it is waited for.
            let _ = child.kill();
            let _ = child.wait();
            Err(errno.into())
        }
    }
}

/// The mounts that may be unmounted, and the driver.
pub(super) struct Places {
    known: Vec<MountedPlace>,
    unmount: Option<Unmount>,
    driver: Option<Child>,
}

impl Places {
    pub(super) fn new(unmount: Option<Unmount>) -> Self {
        Self { known: Vec::new(), unmount, driver: None }
    }

    /// Adds a mount: its device number, a zero byte, its place.
    pub(super) fn add(&mut self, mount: &[u8]) -> io::Result<()> {
        let at = mount.iter().position(|byte| *byte == 0).ok_or(ErrorKind::InvalidInput)?;
        let device = String::from_utf8_lossy(&mount[..at]).into_owned();
        self.known.push(MountedPlace { device, point: OsStr::from_bytes(&mount[at + 1..]).into() });
        Ok(())
    }

    /// Starts the driver by its words, each with a zero byte at its end.
    pub(super) fn start_driver(&mut self, words: &[u8], output: OwnedFd) -> io::Result<OwnedFd> {
        if self.driver.is_some() {
            return Err(ErrorKind::ResourceBusy.into());
        }
        let words = words.strip_suffix(&[0]).unwrap_or(words).split(|byte| *byte == 0);
        let words: Vec<_> = words.map(|word| OsStr::from_bytes(word).to_owned()).collect();
        let (child, pidfd) = start_driver(&words, output)?;
        self.driver = Some(child);
        Ok(pidfd)
    }

    pub(super) fn driver_status(&mut self) -> io::Result<i32> {
        let driver = self.driver.as_mut().ok_or(ErrorKind::NotFound)?;
        // A wait would keep the broker from its other work.
        Ok(driver.try_wait()?.ok_or(ErrorKind::WouldBlock)?.into_raw())
    }

    /// Ends the driver of a process that was killed: Landlock keeps the signal of the kernel, which
    /// counts as that process's, from it.
    pub(super) fn end(&self, driver: Option<&OwnedFd>) {
        if self.unmount.is_some() {
            for signal in [Signal::TERM, Signal::CONT] {
                let _ = driver.map(|driver| pidfd_send_signal(driver, signal));
            }
        }
    }

    /// The request is a byte, whether programs may use the place, and a number.
    pub(super) fn unmount(&self, request: &[u8]) -> io::Result<()> {
        let [lazy, a, b, c, d] = *request else { return Err(ErrorKind::InvalidInput.into()) };
        let number = u32::from_ne_bytes([a, b, c, d]) as usize;
        match (self.known.get(number), self.unmount) {
            (Some(mount), Some(unmount)) => unmount(mount, lazy != 0),
            _ => Err(ErrorKind::NotFound.into()),
        }
    }
}

/// Sends a signal to the driver.
pub(super) fn signal(driver: Option<&OwnedFd>, number: &[u8]) -> io::Result<()> {
    let number: [u8; 4] = number.try_into().map_err(|_| ErrorKind::InvalidInput)?;
    let number = i32::from_ne_bytes(number);
    let signal = SIGNALS.into_iter().find(|signal| signal.as_raw() == number);
    let signal = signal.ok_or(ErrorKind::InvalidInput)?;
    // It may have ended.
    let _ = driver.map(|driver| pidfd_send_signal(driver, signal));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_places_are_unmounted() {
        let mut places = Places::new(Some(|mount, lazy| {
            let MountedPlace { device, point } = mount;
            Err(io::Error::other(format!("{} {device} {lazy}", point.display())))
        }));
        places.add(b"0:45\0/a/b").unwrap();
        assert!(places.add(b"/a/b").is_err());
        let said = |request: &[u8]| places.unmount(request).unwrap_err().to_string();
        assert_eq!(said(&[&[1][..], &0_u32.to_ne_bytes()].concat()), "/a/b 0:45 true");
        assert_eq!(said(&[&[0][..], &0_u32.to_ne_bytes()].concat()), "/a/b 0:45 false");
        assert!(said(&[&[0][..], &1_u32.to_ne_bytes()].concat()).contains("not found"));
        assert!(said(b"/").contains("invalid"));
    }

    #[test]
    fn driver_gets_no_other_signals() {
        for signal in SIGNALS {
            signal_of(signal).unwrap();
        }
        assert!(signal_of(Signal::USR1).is_err());
    }

    fn signal_of(number: Signal) -> io::Result<()> {
        signal(None, &number.as_raw().to_ne_bytes())
    }
}
