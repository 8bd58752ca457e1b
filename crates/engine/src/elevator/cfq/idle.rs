//! Idling: waiting for the next request of the active queue, and the conditions for it.
//!
//! A process that reads a file sends its next request shortly after the last one ended, and close
//! to it. Serving another queue meanwhile costs two seeks. So nothing is dispatched for up to
//! `slice_idle`. Idling pays only if the next request usually comes in time (*think time*) and
//! close by (*seekiness*), by measurement:
//!
//! ```text
//!        complete      idle ......      insert: think time 3 ms <= slice_idle
//!   ────────┴──────────────────────────────┴──> dispatched, no seek
//! ```
//!
//! A random reader alone is not worth idling. The last one of its service tree is, on behalf of
//! all: otherwise every pause between them would admit another tree's seeks. Before service trees
//! the rule was different: on a device without queueing a random reader was idled for too, but at
//! most 2 ms. It stays in its file for a slice, where seeks are short.

use super::Cfq;
use super::context::{Arrival, ContextId};
use super::queue::{Cfqq, CfqqId};
use super::tunables::Settings;
use crate::bio::IoContext;
use crate::request::{Request, RequestId, Requests};
use crate::time::Nanos;

/// Idling for a random reader before service trees (`CFQ_MIN_TT`).
const SEEKER_IDLE: Nanos = Nanos::from_ms(2);

impl Cfq {
    /// Whether the device queues and has no head: then idling gains nothing.
    fn seeks_are_free(&self) -> bool {
        !self.settings.rotational && self.hardware.queues()
    }

    /// Updates think time and seekiness with a new request, and from these the queue's idle window
    /// (`cfq_update_idle_window`).
    pub(super) fn note_request(&mut self, now: Nanos, arrival: Arrival, requests: &Requests) {
        let Arrival { queue: id, request, thinks_long, .. } = arrival;
        let Settings { slice_idle, rotational, service_trees, .. } = self.settings;
        let seeks_count = service_trees || self.hardware.queues();
        let queue = self.queues.at(id.0);
        queue.note_request(&requests[request], rotational);
        if !queue.sync {
            return;
        }
        let place = queue.place.expect("a queue with a request has a place");
        self.service.think_time(place.tree).came(now, slice_idle);
        if queue.is_idle_class() {
            return;
        }
        let announces_end = |next: RequestId| service_trees && says_noidle(&requests[next]);
        if queue.waiting.next().is_some_and(announces_end)
            || slice_idle == Nanos(0)
            || (queue.is_seeky() && !queue.deep && seeks_count)
        {
            queue.idle_window = false;
        } else if let Some(thinks_long) = thinks_long {
            queue.idle_window = !thinks_long;
        }
    }

    /// Notes the end of a synchronous request, the start of its submitter's think time.
    pub(super) fn note_end(
        &mut self,
        now: Nanos,
        id: CfqqId,
        submitter: Option<(ContextId, IoContext)>,
    ) {
        let context = submitter.and_then(|(id, name)| self.contexts.submitter(id, name));
        if let Some(context) = context {
            context.think.ended(now);
        }
        let queue = self.queue(id);
        let tree = queue.place.map_or_else(|| self.tree(queue), |place| place.tree);
        self.service.think_time(tree).ended(now);
    }

    /// Whether to idle for the queue's next request (`cfq_should_idle`).
    pub(super) fn should_idle(&self, queue: &Cfqq) -> bool {
        let slice_idle = self.settings.slice_idle;
        if slice_idle == Nanos(0) || queue.is_idle_class() {
            return false;
        }
        if queue.idle_window && !self.seeks_are_free() {
            return true;
        }
        // The last queue of its tree idles on behalf of the tree.
        let Some(place) = queue.place.filter(|_| self.settings.service_trees) else { return false };
        let think = self.service.tree_think(place);
        queue.sync && self.service.is_alone(place) && think.is_longer_than(slice_idle) != Some(true)
    }

    /// Starts idling, if it pays, when the active queue is empty and its last request has ended
    /// (`cfq_arm_slice_timer`).
    pub(super) fn start_idling(&mut self, now: Nanos) {
        let slice = self.active.as_ref().expect("a queue is active");
        let queue = self.queue(slice.queue);
        let Some(context) = slice.io_context.and_then(|context| self.contexts.get(context)) else {
            return; // its submitter has exited
        };
        if self.seeks_are_free() || !self.should_idle(queue) || queue.dispatched > 0 {
            return;
        }
        let rest = slice.end.map_or(Nanos(0), |end| end.since(now));
        if context.think.is_longer_than(rest) == Some(true) {
            return;
        }
        let Settings { service_trees, slice_idle, .. } = self.settings;
        let is_seeker = !service_trees && queue.is_seeky();
        let until = now + if is_seeker { slice_idle.min(SEEKER_IDLE) } else { slice_idle };
        self.active.as_mut().expect("a queue is active").idle_until = Some(until);
    }

    /// Ends idling whose time is over (`cfq_idle_slice_timer`). A request in the same tick is too
    /// late.
    pub(super) fn end_idling(&mut self, now: Nanos) {
        let Some(slice) = &self.active else { return };
        if slice.idle_until.is_none_or(|until| now < until) {
            return;
        }
        if !slice.is_used(now) {
            self.queues.at(slice.queue.0).deep = false;
        }
        self.expire_slice(now, false);
    }

    /// Cancels idling for a seeky queue that counted as deep: the device serves it faster than its
    /// submitter sends, so it is no longer deep.
    #[inline]
    pub(super) fn give_up_deep(&mut self, now: Nanos) {
        if !self.settings.service_trees {
            return;
        }
        let slice = self.active.as_ref().expect("a queue is active");
        let queue = self.queues.at(slice.queue.0);
        let half_left = || slice.end.is_none_or(|end| end.since(now) > now.since(slice.start));
        if queue.idle_window && queue.is_seeky() && half_left() {
            queue.deep = false;
            queue.idle_window = false;
        }
    }
}

/// Whether the submitter announces no further request (`REQ_NOIDLE`). `WRITE_FUA` has the flag.
fn says_noidle(request: &Request) -> bool {
    request.origin.noidle || request.fua
}
