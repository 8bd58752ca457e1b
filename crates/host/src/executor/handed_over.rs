//! Operations on other threads: workers and the threads of devices.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use blockyard_engine::sq::Cqe;

use crate::completions::CompletionQueue;
use crate::stages::{Samples, Timed};
use crate::workers::spin_time;

/// The operations of one executor on other threads, and their completions.
pub(super) struct HandedOver {
    /// `None` without other threads.
    pub(super) completions: Option<Arc<CompletionQueue>>,
    pub(super) to_workers: usize,
    pub(super) to_devices: usize,
    /// Number of writes to devices, plugged or sent, that read the front end's memory.
    pub(super) borrowed: usize,
    /// Emptied after each use; kept for its memory.
    timed: Vec<Timed>,
}

impl HandedOver {
    pub(super) fn new(has_threads: bool) -> io::Result<Self> {
        let completions = if has_threads { Some(CompletionQueue::new()?) } else { None };
        Ok(Self { completions, to_workers: 0, to_devices: 0, borrowed: 0, timed: Vec::new() })
    }

    /// Number of operations in flight.
    pub(super) fn count(&self) -> usize {
        self.to_workers + self.to_devices
    }

    /// Moves completions to the end of `cqes`.
    pub(super) fn take(&mut self, cqes: &mut Vec<Cqe>, samples: &mut Samples) {
        let Some(completions) = self.completions.as_ref().filter(|_| self.count() > 0) else {
            return;
        };
        let taken = completions.take(cqes, &mut self.timed);
        samples.add_all(&mut self.timed);
        self.to_workers -= taken.from_workers;
        self.to_devices -= taken.from_devices;
        self.borrowed -= taken.borrowed;
    }

    /// Waits a moment for completions without sleep; returns whether there are some.
    pub(super) fn spin(&self) -> bool {
        self.completions.as_ref().is_some_and(|completions| completions.spin(spin_time()))
    }

    /// Descriptor that becomes readable when there are completions.
    pub(super) fn wake(&self) -> Option<BorrowedFd<'_>> {
        let completions = self.completions.as_ref().filter(|_| self.count() > 0);
        completions.map(|completions| completions.ready())
    }
}
