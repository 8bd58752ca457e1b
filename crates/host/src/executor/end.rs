//! The end of an executor: its client has gone, and devices may still have operations of it.

use super::blocking::User;
use super::hctx::Hctx;
use super::{Executor, since};

impl Executor {
    /// Waits for the operations that the system has. Their results matter though no client is left:
    /// a failed flush is reported once.
    fn end_blocking(&mut self) {
        let now = since(self.epoch);
        for (user, result) in self.blocking.end() {
            match user {
                User::Sqe(_, dev, op) => {
                    self.device(dev).file.ended(op, false, result);
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
    /// The ring, the workers and the disks use the buffers until they have answered. What was
    /// plugged or waited for its time is forgotten.
    fn drop(&mut self) {
        self.end_blocking();
        self.backend.device_threads().for_each(|disk| disk.abandon(self.io_context));
        let mut cqes = Vec::new();
        while self.handed_over.count() > 0 {
            let _ = crate::poll::readable(&[self.handed_over.wake()], None);
            self.poll(&mut cqes);
        }
        self.backend.device_threads().for_each(|disk| disk.leave(self.io_context));
    }
}
