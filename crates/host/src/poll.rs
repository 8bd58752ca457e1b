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
    let waited: Vec<_> = fds.iter().flatten().map(|fd| (*fd, PollFlags::IN)).collect();
    let mut answers = ready_among(&waited, limit)?.into_iter();
    Ok(fds.map(|fd| fd.is_some() && answers.next() == Some(true)))
}

/// Waits until one of the descriptors has one of its events, an error, or is hung up, and says
/// which have, in their order. Without a time limit it waits for ever.
///
/// # Errors
/// As [`readable`].
pub(crate) fn ready_among(
    fds: &[(BorrowedFd<'_>, PollFlags)],
    limit: Option<Duration>,
) -> io::Result<Vec<bool>> {
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|(fd, events)| PollFd::from_borrowed_fd(*fd, *events)).collect();
    match poll(&mut polled, limit.map(timespec).as_ref()) {
        Ok(_) => Ok(polled.iter().map(|fd| !fd.revents().is_empty()).collect()),
        Err(rustix::io::Errno::INTR) => Ok(vec![false; fds.len()]),
        Err(error) => Err(error.into()),
    }
}

/// Waits until one of the descriptors is readable, hung up, or, if it is asked for, writable.
///
/// # Errors
/// As [`readable`].
pub(crate) fn ready_of(fds: &[(BorrowedFd<'_>, bool)], limit: Option<Duration>) -> io::Result<()> {
    let flags = |writable| if writable { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let waited: Vec<_> = fds.iter().map(|(fd, writable)| (*fd, flags(*writable))).collect();
    ready_among(&waited, limit).map(drop)
}

fn timespec(limit: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    }
}
