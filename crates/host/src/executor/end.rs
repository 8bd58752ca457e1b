//! Drop of an executor: its client has gone, and devices may still have operations.

use std::time::Duration;

use super::blocking::User;
use super::hctx::Hctx;
use super::{Executor, since};

impl Executor {
    /// Waits for operations at the system. Their results matter even without a client: the system
    /// reports a failed flush once.
    fn end_blocking(&mut self) {
        let now = since(self.epoch);
        for (user, result) in self.blocking.end() {
            match user {
                User::Sqe(_, dev, op, sector) => {
                    self.device(dev).file.ended(op, sector, false, result);
                }
                User::Request(dev, tag) => {
                    if let Hctx::Own { queue, .. } = &mut self.hctxs[usize::from(dev.0)] {
                        queue.complete(now, tag, result);
                    }
                }
            }
        }
    }
}

/// Pause between two looks for what workers have passed on. Ours: short for a person.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

impl Drop for Executor {
    /// The ring, the workers and the disks use the buffers until completion. Plugged and timed
    /// operations are discarded.
    fn drop(&mut self) {
        self.end_blocking();
        let mut cqes = Vec::new();
        loop {
            // Again and again: a worker may just have passed on what it had encrypted, and a lost
            // server would hold it up.
            self.backend.device_threads().for_each(|disk| disk.abandon(self.io_context));
            if self.handed_over.count() == 0 {
                break;
            }
            // No worker may be awake for its jobs.
            if !self.help(true) {
                let _ = crate::poll::readable(&[self.handed_over.wake()], Some(LOOK_AGAIN));
            }
            self.poll(&mut cqes);
        }
        self.backend.device_threads().for_each(|disk| disk.leave(self.io_context));
    }
}
