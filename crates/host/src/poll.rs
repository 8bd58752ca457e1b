//! `poll(2)` on a few descriptors.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Waits until a descriptor is readable or hung up; returns the ready ones. `None` entries are
/// never ready. Without a limit the wait is unbounded.
///
/// # Errors
/// The system is out of memory. Interruptions are retried.
pub(crate) fn readable<const N: usize>(
    fds: &[Option<BorrowedFd<'_>>; N],
    limit: Option<Duration>,
) -> io::Result<[bool; N]> {
    let polled = fds.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
    let mut polled: Vec<PollFd<'_>> = polled.collect();
    wait(&mut polled, limit)?;
    let mut answers = polled.iter().map(is_ready);
    Ok(fds.map(|fd| fd.is_some() && answers.next() == Some(true)))
}

/// Waits until a descriptor has a requested event, an error, or is hung up; returns the ready ones
/// in order. Without a limit the wait is unbounded.
///
/// # Errors
/// See [`readable`].
pub(crate) fn ready_among(
    fds: &[(BorrowedFd<'_>, PollFlags)],
    limit: Option<Duration>,
) -> io::Result<Vec<bool>> {
    let polled = fds.iter().map(|(fd, events)| PollFd::from_borrowed_fd(*fd, *events));
    let mut polled: Vec<PollFd<'_>> = polled.collect();
    wait(&mut polled, limit)?;
    Ok(polled.iter().map(is_ready).collect())
}

/// Waits until a descriptor is readable, hung up, or, if requested, writable.
///
/// # Errors
/// See [`readable`].
pub(crate) fn ready_of(fds: &[(BorrowedFd<'_>, bool)], limit: Option<Duration>) -> io::Result<()> {
    let flags = |writable| if writable { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let polled = fds.iter().map(|(fd, writable)| PollFd::from_borrowed_fd(*fd, flags(*writable)));
    wait(&mut polled.collect::<Vec<_>>(), limit)
}

/// After an interruption no descriptor is ready.
fn wait(polled: &mut [PollFd<'_>], limit: Option<Duration>) -> io::Result<()> {
    match poll(polled, limit.map(timespec).as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn is_ready(fd: &PollFd<'_>) -> bool {
    !fd.revents().is_empty()
}

/// Waits until the first descriptor is writable or hung up, or another one is readable.
///
/// # Errors
/// See [`readable`].
pub(crate) fn writable(
    fd: BorrowedFd<'_>,
    others: &[Option<BorrowedFd<'_>>],
    limit: Option<Duration>,
) -> io::Result<()> {
    let mut polled = vec![PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    let others = others.iter().flatten();
    polled.extend(others.map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
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
