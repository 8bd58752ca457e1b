//! The slice of the active queue: begin, run, end.
//!
//! ```text
//!   begin      first completion                  now >= end, or empty and not waited for,
//!     │  seek        │        slice              or preempted, or quota used
//!     ├──────────────┼─────────────────────────┤
//!     └ overdue first└ the clock starts         └ the rest of a preempted slice advances the
//!                                                 next one; an overrun delays it
//! ```

use super::Cfq;
use super::queue::CfqqId;
use super::service::signed;
use crate::bio::IoContext;
use crate::request::{RequestId, Requests};
use crate::time::Nanos;

/// A slice.
#[derive(Debug)]
pub(super) struct Slice {
    pub(super) queue: CfqqId,
    /// Submitter to idle for: that of the first dispatched request.
    pub(super) io_context: Option<IoContext>,
    /// Start (the end of the first request) and end of the slice. Until then the clock stands.
    pub(super) start: Nanos,
    pub(super) end: Option<Nanos>,
    /// Number of dispatched requests.
    pub(super) dispatched: u32,
    /// End of idling; nothing is dispatched before, unless a request comes.
    pub(super) idle_until: Option<Nanos>,
}

impl Slice {
    pub(super) fn is_used(&self, now: Nanos) -> bool {
        self.end.is_some_and(|end| now >= end)
    }
}

impl Cfq {
    /// Starts the slice of a queue.
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

    /// The overdue request, looked up at the start of a slice only: otherwise a slow disk would
    /// seek from one overdue request to the next (`cfq_check_fifo`).
    pub(super) fn overdue_request(&self, now: Nanos, id: CfqqId) -> Option<RequestId> {
        let slice = self.active.as_ref().expect("a queue is active");
        let oldest = self.queue(id).waiting.oldest().filter(|_| slice.dispatched == 0)?;
        (now >= self.entry(oldest).deadline).then_some(oldest)
    }

    /// Takes a request for dispatch.
    pub(super) fn take(&mut self, request: RequestId, requests: &Requests) {
        let rq = &requests[request];
        let slice = self.active.as_mut().expect("a queue is active");
        slice.io_context.get_or_insert(rq.origin.io_context);
        slice.dispatched += 1;
        let queue = self.queues.at(slice.queue.0);
        // The slice and its queue; the list, the tree and the next request.
        self.visits.visit(4);
        self.visits.search(queue.waiting.len());
        queue.waiting.remove(request, requests, self.settings.backward);
        queue.dispatched += 1;
        self.waiting -= 1;
        self.in_flight[usize::from(rq.sync)] += 1;
        self.last_position = rq.end();
    }

    /// Ends the slice if the quota is used up: while others wait, writeback has a number of
    /// requests per slice, and the idle class one.
    pub(super) fn end_slice_by_quota(&mut self, now: Nanos, id: CfqqId) {
        let queue = self.queue(id);
        let dispatched = self.active.as_ref().map_or(0, |slice| slice.dispatched);
        let quota = self.settings.async_quota(queue.priority.level);
        let is_over = queue.is_idle_class() || (!queue.sync && dispatched >= quota);
        if is_over && self.service.busy > 1 {
            self.expire_slice(now, false);
        }
    }

    /// Handles the end of a request of the active queue (the second half of
    /// `cfq_completed_request`). In 2.6.30 there is no idling after a request with `REQ_NOIDLE`;
    /// later the flag counts in [`Cfq::note_request`].
    pub(super) fn active_completed(&mut self, now: Nanos, id: CfqqId, noidle: bool) {
        // The slice, and the rules of idling.
        self.visits.visit(3);
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
        } else if queue.sync
            && queue.is_empty()
            && (self.settings.service_trees || !noidle)
            && self.close_cooperator(now, id).is_none()
        {
            self.start_idling(now);
        }
    }

    /// Ends the slice. After a preemption the rest is credited to the next slice. An overrun is
    /// debited, at most one slice, because a queue without competitors may have been active for
    /// hours. A slice without a dispatch does not count: the queue keeps its place. (The limit and
    /// the place are our choice; the kernel sorts that queue in anew, with a whole slice left.)
    pub(super) fn expire_slice(&mut self, now: Nanos, taken_away: bool) {
        let Some(slice) = self.active.take() else { return };
        self.visits.visit(2);
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
