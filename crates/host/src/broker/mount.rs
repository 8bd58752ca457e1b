//! The end of a mount: what its process may not do in the sandbox.
//!
//! The places of the mount and its driver are fixed before the seal, as the files of a server are.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::process::{Signal, pidfd_send_signal};

use super::{Broker, LEAVE_TERMINAL, PLACE, SIGNAL, UNMOUNT};

/// Unmounts a place, perhaps although programs use it.
pub type Unmount = fn(&Path, bool) -> io::Result<()>;

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

    /// Names a place that [`Broker::unmount`] may unmount later. Numbers count from 0.
    ///
    /// # Errors
    /// The broker has ended, or is sealed.
    pub fn add_place(&self, place: &Path) -> io::Result<()> {
        self.ask(&[&[PLACE], place.as_os_str().as_bytes()].concat(), None).map(drop)
    }

    /// Unmounts the place of this number.
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

/// The places that may be unmounted.
pub(super) struct Places {
    known: Vec<PathBuf>,
    unmount: Option<Unmount>,
}

impl Places {
    pub(super) fn new(unmount: Option<Unmount>) -> Self {
        Self { known: Vec::new(), unmount }
    }

    pub(super) fn add(&mut self, place: &[u8]) {
        self.known.push(PathBuf::from(OsStr::from_bytes(place)));
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
            (Some(place), Some(unmount)) => unmount(place, lazy != 0),
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
        let mut places = Places::new(Some(|place, lazy| {
            Err(io::Error::other(format!("{} {lazy}", place.display())))
        }));
        places.add(b"/a/b");
        let said = |request: &[u8]| places.unmount(request).unwrap_err().to_string();
        assert_eq!(said(&[&[1][..], &0_u32.to_ne_bytes()].concat()), "/a/b true");
        assert_eq!(said(&[&[0][..], &0_u32.to_ne_bytes()].concat()), "/a/b false");
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
