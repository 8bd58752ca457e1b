//! The turn of the active queue: begun, run through, ended.
//!
//! ```text
//!   begin      first completion                  now >= end, or empty and not waited for,
//!     │  seek        │        slice              or preempted, or quota used
//!     ├──────────────┼─────────────────────────┤
//!     └ overdue first└ the clock starts         └ what is left brings the next turn nearer, if it
//!                                                 was taken away; what was too much defers it
//! ```

use super::Cfq;
use super::queue::CfqqId;
use super::service::signed;
use crate::bio::IoContext;
use crate::request::{RequestId, Requests};
use crate::time::Nanos;

/// A turn.
#[derive(Debug)]
pub(super) struct Slice {
    pub(super) queue: CfqqId,
    /// Who is waited for: the submitter of the first request that was dispatched.
    pub(super) io_context: Option<IoContext>,
    /// When its first request ended, and when it is over. Until then the clock stands.
    pub(super) start: Nanos,
    pub(super) end: Option<Nanos>,
    /// Requests dispatched.
    pub(super) dispatched: u32,
    /// Nothing is dispatched before, in the hope of the next request.
    pub(super) idle_until: Option<Nanos>,
}

impl Slice {
    pub(super) fn is_used(&self, now: Nanos) -> bool {
        self.end.is_some_and(|end| now >= end)
    }
}

impl Cfq {
    /// A queue gets the disk.
    pub(super) fn begin_slice(&mut self, now: Nanos, id: CfqqId) {
        debug_assert!(self.active.is_none() && !self.queue(id).is_empty());
        self.active = Some(Slice {
            queue: id,
            io_context: None,
            start: now,
            end: None,
            dispatched: 0,
            idle_until: None,
        });
        self.update_position(id);
    }

    /// The request that must not wait any longer, looked for at the beginning of a slice only:
    /// otherwise a disk that is too slow would do nothing but seek from one to the next
    /// (`cfq_check_fifo`).
    pub(super) fn overdue_request(&self, now: Nanos, id: CfqqId) -> Option<RequestId> {
        let slice = self.active.as_ref().expect("a queue is active");
        let oldest = self.queue(id).oldest().filter(|_| slice.dispatched == 0)?;
        (now >= self.entry(oldest).deadline).then_some(oldest)
    }

    /// A request goes to the device.
    pub(super) fn take(&mut self, request: RequestId, requests: &Requests) {
        let rq = &requests[request];
        let slice = self.active.as_mut().expect("a queue is active");
        slice.io_context.get_or_insert(rq.origin.io_context);
        slice.dispatched += 1;
        let queue = self.queues.at(slice.queue.0);
        queue.remove(request, requests, &self.settings);
        queue.dispatched += 1;
        self.waiting -= 1;
        self.in_flight[usize::from(rq.sync)] += 1;
        self.last_position = rq.end();
    }

    /// While others wait, writeback has so many requests a turn, and the idle class one.
    pub(super) fn end_slice_by_quota(&mut self, now: Nanos, id: CfqqId) {
        let queue = self.queue(id);
        let dispatched = self.active.as_ref().map_or(0, |slice| slice.dispatched);
        let quota = self.settings.async_quota(queue.priority.level);
        let is_over = queue.is_idle_class() || (!queue.sync && dispatched >= quota);
        if is_over && self.service.busy > 1 {
            self.expire_slice(now, false);
        }
    }

    /// A request of the active queue ended (the second half of `cfq_completed_request`).
    pub(super) fn active_completed(&mut self, now: Nanos, id: CfqqId) {
        if self.active.as_ref().is_some_and(|slice| slice.end.is_none()) {
            let length = self.scaled_slice(id);
            let slice = self.active.as_mut().expect("a queue is active");
            slice.start = now;
            slice.end = Some(now + length);
        }
        let queue = self.queue(id);
        let is_used = self.active.as_ref().is_some_and(|slice| slice.is_used(now));
        if is_used || queue.is_idle_class() {
            self.expire_slice(now, true);
        } else if queue.is_abandoned() && queue.is_empty() && queue.dispatched == 0 {
            self.expire_slice(now, false);
        } else if queue.sync && queue.is_empty() && self.close_cooperator(now, id).is_none() {
            self.start_idling(now);
        }
    }

    /// The turn is over. If it was taken away, the rest is for the next one; an overrun counts
    /// against it, at most one slice: a queue that nobody wanted to replace may have been active
    /// for hours. One that dispatched nothing was no turn: the queue keeps its place. (The limit
    /// and the place are ours; the kernel sorts that queue in anew, with a whole slice left.)
    pub(super) fn expire_slice(&mut self, now: Nanos, taken_away: bool) {
        let Some(slice) = self.active.take() else { return };
        let id = slice.queue;
        let had_turn = slice.dispatched > 0;
        if taken_away && had_turn {
            let length = match slice.end {
                Some(end) => signed(end - slice.start),
                None => signed(self.scaled_slice(id)),
            };
            let rest = slice.end.map_or(length, |end| signed(end) - signed(now));
            self.queues.at(id.0).residual_ns = rest.max(-length);
        }
        let queue = self.queues.at(id.0);
        if queue.shared && queue.is_seeky() {
            queue.split = true;
        }
        if queue.is_empty() {
            self.remove_busy(id);
            self.free_if_unused(id);
            return;
        }
        if had_turn {
            self.resort(now, id);
        }
        self.update_position(id);
    }
}
