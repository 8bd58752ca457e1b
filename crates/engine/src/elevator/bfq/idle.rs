//! Idling: waiting for the next request of the queue in service, and the conditions for it.
//!
//! Idling has two purposes. It raises *throughput* on a disk that seeks, when a sequential client
//! asks again soon. And it keeps *shares*: a client with one request at a time has an empty queue
//! after each, so without idling all such clients would alternate, whatever their weights. While
//! all active queues have equal weights, alternating is right, and bfq does not idle for shares.

use super::Bfq;
use super::queue::Bfqq;
use super::turn::{Ended, Idle};
use crate::request::Requests;
use crate::time::Nanos;

/// Idling for a client that seeks, among equals (`BFQ_MIN_TT`).
const SEEKER_IDLE: Nanos = Nanos::from_ms(2);
/// Least idling for a raised queue.
const RAISED_IDLE: Nanos = Nanos::from_ms(20);
/// Requests in flight from others that make a raised queue wait for its turn to be over.
const OTHERS_IN_FLIGHT: u32 = 4;

/// Number of active queues by level. Raised queues do not count, because their weight changes soon
/// (`queue_weights_tree`).
#[derive(Debug, Default)]
pub(super) struct Weights {
    by_level: [u32; 8],
}

impl Weights {
    /// Counts a queue that has become busy, or has got another level or factor.
    pub(super) fn update(&mut self, queue: &mut Bfqq) {
        self.remove(queue);
        if !queue.raising.is_raised() {
            self.by_level[usize::from(queue.priority.level)] += 1;
            queue.counted = Some(queue.priority.level);
        }
    }

    /// Removes a queue that has no requests any more.
    pub(super) fn remove(&mut self, queue: &mut Bfqq) {
        if let Some(level) = queue.counted.take() {
            self.by_level[usize::from(level)] -= 1;
        }
    }

    /// Whether the weights differ, and the queue does not have the least of them.
    fn favour(&self, queue: &Bfqq) -> bool {
        let levels = || (0..).zip(self.by_level).filter(|(_, count)| *count > 0);
        let least_urgent = levels().last().map(|(level, _)| level);
        levels().count() > 1 && (queue.counted.is_none() || queue.counted != least_urgent)
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> u32 {
        self.by_level.iter().sum()
    }
}

impl Bfq {
    /// Whether a queue is to get more than others, or several classes are busy
    /// (`bfq_asymmetric_scenario`).
    pub(super) fn is_asymmetric(&self, queue: &Bfqq) -> bool {
        self.classes.are_several() || self.weights.favour(queue)
    }

    /// Whether to idle for the queue's next request (`bfq_better_to_idle`).
    pub(super) fn should_idle(&self, queue: &Bfqq) -> bool {
        if !queue.is_used() {
            return false;
        }
        if self.settings.strict_guarantees {
            return true;
        }
        if self.settings.slice_idle == Nanos(0) || !queue.sync || queue.is_idle_class() {
            return false;
        }
        self.raises_throughput(queue) || self.keeps_share(queue)
    }

    /// Whether idling raises the throughput. While a raised queue waits, nobody else is idled for.
    fn raises_throughput(&self, queue: &Bfqq) -> bool {
        let pattern = &queue.pattern;
        let is_stream = !pattern.is_seeky() && pattern.is_io_bound && pattern.thinks_briefly;
        let simple_disk = self.settings.rotational && !self.hardware.queues();
        let gains =
            simple_disk || ((self.settings.rotational || !self.hardware.queues()) && is_stream);
        gains && self.raised_busy == 0
    }

    /// Whether the queue would lose its share without idling.
    fn keeps_share(&self, queue: &Bfqq) -> bool {
        let is_disturbed = self.raised_busy < self.classes.busy()
            || self.in_flight >= queue.dispatched + OTHERS_IN_FLIGHT;
        (queue.raising.is_raised() && is_disturbed) || self.is_asymmetric(queue)
    }

    /// Starts idling for the queue in service (`bfq_arm_slice_timer`).
    fn start_idling(&mut self, now: Nanos) {
        let turn = self.turn.as_ref().expect("a queue is in service");
        let queue = self.queue(turn.queue);
        let slice_idle = self.settings.slice_idle;
        let is_raised = queue.raising.is_raised();
        let time = if is_raised {
            slice_idle.max(RAISED_IDLE)
        } else if queue.pattern.is_seeky() && !self.is_asymmetric(queue) {
            slice_idle.min(SEEKER_IDLE)
        } else {
            slice_idle
        };
        self.turn.as_mut().expect("a queue is in service").idle =
            Some(Idle { since: now, until: now + time });
    }

    /// Ends idling whose time is over, at that time (`bfq_idle_slice_timer`).
    pub(super) fn end_idling(&mut self, now: Nanos, requests: &Requests) {
        let idle = self.turn.as_mut().and_then(|turn| turn.idle.take_if(|idle| idle.until <= now));
        let Some(idle) = idle else { return };
        let turn = self.turn.as_ref().expect("a queue is in service");
        let reason = if turn.timeout <= idle.until { Ended::Timeout } else { Ended::TooIdle };
        self.end_turn_after_idling(idle, requests, reason);
    }

    /// Handles the end of a request of the queue in service (the second half of
    /// `bfq_completed_request`).
    pub(super) fn completed_in_service(&mut self, now: Nanos, requests: &Requests) {
        let turn = self.turn.as_ref().expect("a queue is in service");
        let queue = self.queue(turn.queue);
        let is_empty = queue.waiting.is_empty();
        if is_empty && self.should_idle(queue) {
            if queue.dispatched == 0 {
                self.start_idling(now);
            }
        } else if self.may_end_for_timeout(now, turn) {
            self.end_turn(now, requests, Ended::Timeout);
        } else if is_empty {
            self.end_turn(now, requests, Ended::NoMoreRequests);
        }
    }
}
