//! Control of a stacked queue besides the data path: policy, timeouts, counters.

use alloc::string::String;
use alloc::vec::Vec;

use super::{StackedConfig, StackedCounters, StackedQueue};
use crate::bio::BlkStatus;
use crate::dm::control::{MessageError, Suspend};
use crate::dm::multipath::{Multipath, PathId};
use crate::mq::RequestQueue;
use crate::request::Tag;
use crate::time::Nanos;

impl StackedQueue {
    /// Time at which [`StackedQueue::dispatch`], [`StackedQueue::timed_out`] and
    /// [`StackedQueue::take_check`] must be called at the latest.
    #[must_use]
    pub fn wake_at(&self) -> Option<Nanos> {
        let upper = if self.is_stalled() { None } else { self.upper.wake_at() };
        let lower = self.paths.iter().filter_map(|path| path.queue.wake_at()).min();
        [upper, lower, self.multipath.next_check()].into_iter().flatten().min()
    }

    /// The clones that have been at their devices for longer than the timeout of the lower queues,
    /// each once per timeout. They stay there until they are completed.
    pub fn timed_out(&mut self, now: Nanos, out: &mut Vec<(PathId, Tag)>) {
        for (path, lower) in self.multipath.paths().zip(&mut self.paths) {
            lower.queue.timed_out(now, &mut self.late);
            out.extend(self.late.drain(..).map(|tag| (path, tag)));
        }
    }

    /// As [`Multipath::take_check`].
    pub fn take_check(&mut self, now: Nanos) -> Option<PathId> {
        self.multipath.take_check(now)
    }

    /// As [`Multipath::checked`]; requests that waited for a path may go now.
    pub fn checked(&mut self, now: Nanos, path: PathId, status: BlkStatus) {
        self.multipath.checked(now, path, status);
        self.upper.retry();
    }

    /// As [`Multipath::message`]; requests that waited for a path may go now, or fail.
    ///
    /// # Errors
    /// As there; the queue is unchanged then.
    pub fn message(&mut self, now: Nanos, text: &str) -> Result<(), MessageError> {
        self.multipath.message(now, text)?;
        self.upper.retry();
        Ok(())
    }

    /// As [`Multipath::suspend`].
    pub fn suspend(&mut self, how: Suspend) {
        self.multipath.suspend(how);
        self.upper.retry();
    }

    /// As [`Multipath::resume`].
    pub fn resume(&mut self) {
        self.multipath.resume();
        self.upper.retry();
    }

    /// The status line (`STATUSTYPE_INFO`).
    #[must_use]
    pub fn info(&self) -> String {
        self.multipath.info()
    }

    /// The current arguments of the line (`STATUSTYPE_TABLE`).
    #[must_use]
    pub fn table(&self) -> String {
        self.multipath.table()
    }

    /// The multipath policy.
    #[must_use]
    pub fn multipath(&self) -> &Multipath {
        &self.multipath
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &StackedConfig {
        &self.config
    }

    /// The queue for bios.
    #[must_use]
    pub fn upper(&self) -> &RequestQueue {
        &self.upper
    }

    /// The queue of a path.
    #[must_use]
    pub fn lower(&self, path: PathId) -> &RequestQueue {
        &self.paths[usize::from(path.0)].queue
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &StackedCounters {
        &self.counters
    }

    /// Whether all bios have ended, and no clone is left.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let idle = self.upper.is_idle();
        let clones = self.paths.iter().any(|path| !path.queue.is_idle());
        assert!(!idle || !clones, "a clone has an original");
        idle
    }
}
