//! Drop of an executor: its client has gone, and devices may still have operations.

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

impl Drop for Executor {
    /// The ring, the workers and the disks use the buffers until completion. Plugged and timed
    /// operations are discarded.
    fn drop(&mut self) {
        self.end_blocking();
        self.backend.device_threads().for_each(|disk| disk.abandon(self.io_context));
        let mut cqes = Vec::new();
        while self.handed_over.count() > 0 {
            // No worker may be awake for its jobs.
            if !self.help(true) {
                let _ = crate::poll::readable(&[self.handed_over.wake()], None);
            }
            self.poll(&mut cqes);
        }
        self.backend.device_threads().for_each(|disk| disk.leave(self.io_context));
    }
}
