//! A signal ends the jobs early, not the command, which prints the measurements so far.

use std::io::pipe;
use std::os::fd::{AsFd, BorrowedFd};

use blockyard_host::process::StopSignal;
use blockyard_workload::fio::Stopper;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::failure::Failure;

/// Runs a function that SIGINT, SIGTERM and SIGHUP stop; returns whether one did. A second SIGINT
/// or SIGTERM ends the process.
pub(super) fn stoppable<R>(
    stopper: &Stopper,
    work: impl FnOnce() -> R,
) -> Result<(R, bool), Failure> {
    let failed = |error| Failure::failed(format!("cannot wait for signals: {error}"));
    let signal = StopSignal::install().map_err(failed)?;
    let (over, working) = pipe().map_err(failed)?;
    let outcome = std::thread::scope(|scope| {
        let working = working; // dropped here in any case, which ends the watch
        let watch = scope.spawn(|| {
            let came = comes_first(signal.as_fd(), over.as_fd());
            if came {
                signal.take();
                signal.restore_default();
                stopper.stop();
                // Only an idle thread can take the second signal.
                comes_first(over.as_fd(), over.as_fd());
            }
            came
        });
        let result = work();
        drop(working);
        (result, watch.join().unwrap_or(false))
    });
    signal.restore_default();
    Ok(outcome)
}

/// Waits for one of two descriptors; true if the first is ready first.
fn comes_first(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    loop {
        let mut fds = [one, other].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut fds, None) {
            Err(Errno::INTR) => {}
            _ => return !fds[0].revents().is_empty(),
        }
    }
}
