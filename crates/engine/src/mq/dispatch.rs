//! Dispatch: from a waiting request to the device, and back (`blk_mq_sched_dispatch_requests`,
//! `blk_mq_dispatch_rq_list`, `blk_mq_end_request`).
//!
//! A hardware queue serves its dispatch list first. The elevator is asked only while that list is
//! empty: requests for a busy device stay in the elevator, where they can still be merged and
//! passed. If a request's hardware queue has no tag while another one's has, the request goes to
//! its dispatch list and stops the requests to the elevator; that rule is our choice.

use alloc::vec::Vec;

use super::hctx::RESOURCE_DELAY;
use super::{Issue, RequestQueue};
use crate::bio::BlkStatus;
use crate::request::{RequestId, Stage, Tag};
use crate::time::Nanos;

impl RequestQueue {
    /// Dispatches as many requests as the device takes now, in order.
    pub fn dispatch(&mut self, now: Nanos, out: &mut Vec<Issue>) {
        self.dispatch_at_most(now, usize::MAX, out);
    }

    /// Dispatches at most `count` requests. The rest may go on merging.
    pub fn dispatch_at_most(&mut self, now: Nanos, count: usize, out: &mut Vec<Issue>) {
        self.now = now;
        // Most calls follow a completion and find an empty queue.
        if self.waiting == 0 && self.held == 0 && self.queue_plug.is_none() && !self.flush.waits() {
            return;
        }
        let full = out.len().saturating_add(count);
        if self.queue_plug.is_some_and(|until| until <= now) {
            self.unplug_queue();
        }
        self.kick_flush(now);
        if self.held > 0 {
            let first = self.first_held;
            let count = self.hctxs.len();
            for hctx in (first..first + count).map(|number| number % count) {
                self.dispatch_held(now, hctx, full, out);
                if out.len() >= full {
                    // The hardware queues may share a device below, so the first one rotates.
                    self.first_held = (hctx + 1) % count;
                    break;
                }
            }
        }
        if self.queue_plug.is_some() {
            return;
        }
        if self.elevator.is_some() {
            self.dispatch_elevator(now, full, out);
        } else {
            (0..self.hctxs.len()).for_each(|hctx| self.dispatch_software(now, hctx, full, out));
        }
    }

    /// Dispatches from a hardware queue's dispatch list, until there are `full` requests in all.
    pub(super) fn dispatch_held(
        &mut self,
        now: Nanos,
        number: usize,
        full: usize,
        out: &mut Vec<Issue>,
    ) {
        if self.hctxs[number].is_resting(now) {
            return;
        }
        self.hctxs[number].retry_at = None;
        while out.len() < full
            && let Some(id) = self.hctxs[number].dispatch.front()
            && self.take_driver_tag(id)
        {
            self.hctxs[number].dispatch.remove(&mut self.requests, id);
            self.held -= 1;
            self.issue(now, id, out);
        }
    }

    fn dispatch_elevator(&mut self, now: Nanos, full: usize, out: &mut Vec<Issue>) {
        let tick = self.tick(now);
        while out.len() < full && self.waiting > 0 && self.asks_elevator() {
            let elevator = self.elevator.as_mut().expect("this is its dispatch");
            let Some(id) = elevator.dispatch(tick, &self.requests) else { return };
            assert!(self.requests[id].stage == Stage::Waiting, "an elevator gives what it got");
            self.leave(id);
            if self.take_driver_tag(id) {
                self.issue(now, id, out);
            } else {
                self.hold(id);
            }
        }
    }

    /// Whether the device takes requests from outside the dispatch lists.
    pub(super) fn asks_elevator(&self) -> bool {
        self.held == 0 && self.hctxs.iter().any(|hctx| hctx.tags.is_free())
    }

    /// Dispatches from software queues in CPU order (`blk_mq_flush_busy_ctxs`), or in rotation for
    /// a device with a dispatch limit (`blk_mq_do_dispatch_ctx`).
    fn dispatch_software(&mut self, now: Nanos, number: usize, full: usize, out: &mut Vec<Issue>) {
        if !self.hctxs[number].dispatch.is_empty() {
            return;
        }
        while out.len() < full
            && let Some((queue, id)) = self.hctxs[number].software.next()
            && self.take_driver_tag(id)
        {
            self.hctxs[number].software.pop(&mut self.requests, queue);
            self.leave(id);
            self.issue(now, id, out);
            if out.len() >= full {
                self.hctxs[number].software.rotate_behind(queue);
            }
        }
    }

    /// Removes a request from the waiting ones: it cannot be merged any more.
    fn leave(&mut self, id: RequestId) {
        self.hash.remove(&mut self.requests, id);
        self.requests.visit(1);
        if self.last_merge == Some(id) {
            self.last_merge = None;
        }
        self.waiting -= 1;
        self.requests.at(id).stage = Stage::Held;
    }

    fn take_driver_tag(&mut self, id: RequestId) -> bool {
        let request = self.requests.at(id);
        if request.tag.is_none() {
            request.tag = self.hctxs[usize::from(request.hctx)].tags.take();
        }
        request.tag.is_some()
    }

    /// Issues a request with a driver tag.
    fn issue(&mut self, now: Nanos, id: RequestId, out: &mut Vec<Issue>) {
        out.push(self.issued_request(now, id));
    }

    /// The issued form of a request, for [`RequestQueue::dispatch`].
    pub(super) fn issued_request(&mut self, now: Nanos, id: RequestId) -> Issue {
        let request = self.requests.at(id);
        assert!(request.stage == Stage::Held, "a request is issued once");
        request.stage = Stage::Issued;
        let index = request.tag.expect("a request that is issued has a tag");
        let tag = Tag { hctx: request.hctx, index };
        let issue = Issue {
            tag,
            op: request.op,
            sector: request.sector,
            len: request.len,
            fua: request.fua,
            origin: request.origin,
            segments: request.segments,
        };
        self.hctxs[usize::from(tag.hctx)].tags.issue(index, id);
        self.start_timeout(now, id);
        self.counters.issued += 1;
        issue
    }

    /// Handles a refusal by the device (`BLK_STS_RESOURCE`): the request is offered again before
    /// anything else, after the next completion or after 3 ms.
    ///
    /// # Panics
    /// When the device does not have a request of this tag.
    pub fn busy(&mut self, now: Nanos, tag: Tag) {
        self.requeue(now, tag);
        self.hctxs[usize::from(tag.hctx)].retry_at = Some(now + RESOURCE_DELAY);
    }

    /// Returns a request, which the next dispatch offers again before anything else
    /// (`blk_mq_requeue_request`).
    ///
    /// # Panics
    /// When the device does not have a request of this tag.
    pub fn requeue(&mut self, now: Nanos, tag: Tag) {
        self.now = now;
        let id = self.take_back(tag);
        self.counters.requeued += 1;
        let tick = self.tick(now);
        if self.requests[id].in_elevator {
            let elevator = self.elevator.as_mut().expect("it was in the elevator");
            elevator.requeued(tick, &self.requests, id);
        }
        self.hold(id);
    }

    /// Puts a request on the dispatch list of its hardware queue.
    pub(super) fn hold(&mut self, id: RequestId) {
        let request = self.requests.at(id);
        request.stage = Stage::Held;
        let hctx = usize::from(request.hctx);
        self.hctxs[hctx].dispatch.push_back(&mut self.requests, id);
        self.held += 1;
    }

    /// Completes a request as a whole. For a partial completion, call `RequestQueue::advance`,
    /// and [`RequestQueue::requeue`] for the rest.
    ///
    /// # Panics
    /// When the device does not have a request of this tag: a completion came twice.
    pub fn complete(&mut self, now: Nanos, tag: Tag, status: BlkStatus) {
        self.now = now;
        let id = self.take_back(tag);
        self.requests.at(id).stage = Stage::Held;
        if self.flush.is_running(id) {
            self.flush_ended(now, status);
        } else {
            self.request_ended(now, id, status);
        }
        self.has_ended(now);
    }

    /// Handles a completion: the device can take more.
    pub(super) fn has_ended(&mut self, now: Nanos) {
        self.retry();
        self.unplug_queue();
        self.grant_waiters(now);
    }

    /// Allows an immediate retry of refused requests.
    pub fn retry(&mut self) {
        if self.held > 0 {
            self.hctxs.iter_mut().for_each(|hctx| hctx.retry_at = None);
        }
    }

    fn request_ended(&mut self, now: Nanos, id: RequestId, status: BlkStatus) {
        if self.requests[id].in_elevator {
            let tick = self.tick(now);
            let elevator = self.elevator.as_mut().expect("it was in the elevator");
            elevator.completed(tick, &self.requests, id);
            self.requests.at(id).in_elevator = false;
        }
        if self.requests[id].is_flush_data() {
            self.flush_data_ended(now, id, status);
        } else {
            self.end_request(id, status);
        }
    }

    /// Takes a tag back from the device. Without an elevator the tag stays with its request.
    pub(super) fn take_back(&mut self, tag: Tag) -> RequestId {
        let tags = &mut self.hctxs[usize::from(tag.hctx)].tags;
        let id = tags.end(tag.index);
        if !self.allocates_tags {
            tags.put(tag.index);
            self.requests.at(id).tag = None;
        }
        self.stop_timeout(id);
        id
    }
}
