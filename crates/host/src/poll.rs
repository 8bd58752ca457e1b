//! `poll(2)` on a few descriptors.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Waits until one of the descriptors is readable or hung up, and says which are. `None` entries
/// are never ready. Without a time limit it waits for ever.
///
/// # Errors
/// Only when the system is out of memory: interruptions are waited out.
pub(crate) fn readable<const N: usize>(
    fds: &[Option<BorrowedFd<'_>>; N],
    limit: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut ready = [false; N];
    ready.copy_from_slice(&readable_of(fds, limit)?);
    Ok(ready)
}

/// As [`readable`], for any number of descriptors.
///
/// # Errors
/// As [`readable`].
pub(crate) fn readable_of(
    fds: &[Option<BorrowedFd<'_>>],
    limit: Option<Duration>,
) -> io::Result<Vec<bool>> {
    let polled = fds.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
    let mut polled: Vec<PollFd<'_>> = polled.collect();
    match poll(&mut polled, limit.map(timespec).as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut answers = polled.iter().map(|fd| !fd.revents().is_empty());
    let ready = |fd: &Option<BorrowedFd<'_>>| fd.is_some() && answers.next() == Some(true);
    Ok(fds.iter().map(ready).collect())
}

/// Waits until one of the descriptors is readable, hung up, or, if it is asked for, writable.
///
/// # Errors
/// As [`readable`].
pub(crate) fn ready_of(fds: &[(BorrowedFd<'_>, bool)], limit: Option<Duration>) -> io::Result<()> {
    let flags = |writable| if writable { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|(fd, writable)| PollFd::from_borrowed_fd(*fd, flags(*writable))).collect();
    match poll(&mut polled, limit.map(timespec).as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn timespec(limit: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    }
}
