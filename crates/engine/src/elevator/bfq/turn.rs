//! The turn of the queue in service: begin, run, end, and the budget of the next turn.
//!
//! ```text
//!   reason of the end     next budget                      because
//!   exhausted             × 4, up to the largest           it makes good use of it
//!   timeout               × 2, up to the largest           slow, though perhaps not by its fault
//!   idled too long        - 4/32 of the largest; × 2       it needs less; its requests are
//!                         with requests in flight          still in flight
//!   no more requests      what it has used                 exactly as much as it needs
//!   preempted             as before
//! ```
//!
//! The least budget is 1/32 of the largest. Raised queues have 2/32, asynchronous ones the largest.

use super::Bfq;
use super::queue::{Bfqq, BfqqId, is_seek};
use super::raise::PAUSE;
use super::tunables::Settings;

use crate::request::{RequestId, Requests};
use crate::time::Nanos;

/// Weight of level 4. A client of another weight is not raised.
const DEFAULT_WEIGHT: u64 = 40;
/// Turn that is too short to tell whether a queue is slow.
const SHORT_TURN: Nanos = Nanos::from_ms(1);
/// Turn that is long enough to tell that.
const LONG_TURN: Nanos = Nanos::from_ms(20);
/// Time charged for a short turn on a device without a head (`BFQ_MIN_TT`).
const SHORT_TURN_CHARGE: Nanos = Nanos::from_ms(2);

/// The queue in service.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) queue: BfqqId,
    began: Nanos,
    /// Time at which the budget should be used up.
    pub(super) timeout: Nanos,
    /// Number of dispatched requests.
    pub(super) dispatched: u32,
    pub(super) idle: Option<Idle>,
}

/// Idling for the queue in service: nothing is dispatched, unless a request comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Idle {
    pub(super) since: Nanos,
    pub(super) until: Nanos,
}

/// Reason for the end of a turn (`enum bfqq_expiration`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Exhausted,
    Timeout,
    TooIdle,
    NoMoreRequests,
    Preempted,
}

impl Bfq {
    /// Starts the turn of a queue.
    pub(super) fn begin_turn(&mut self, now: Nanos, id: BfqqId) {
        debug_assert!(self.turn.is_none() && !self.queue(id).waiting.is_empty());
        let queue = self.queue(id);
        // Soft real-time clients ask for little: more time would have no effect.
        let is_interactive = !queue.raising.is_soft_real_time();
        let factor = if is_interactive { queue.raising.factor() } else { 1 };
        let timeout = now + Nanos(self.settings.timeout.0 * factor);
        self.turn = Some(Turn { queue: id, began: now, timeout, dispatched: 0, idle: None });
    }

    /// The overdue request, looked up at the start of a turn only (`bfq_check_fifo`).
    pub(super) fn overdue_request(&self, now: Nanos, id: BfqqId) -> Option<RequestId> {
        let turn = self.turn.as_ref().expect("a queue is in service");
        let oldest = self.queue(id).waiting.oldest().filter(|_| turn.dispatched == 0)?;
        (now >= self.entry(oldest).deadline).then_some(oldest)
    }

    /// Takes a request of the queue in service for dispatch.
    pub(super) fn take(&mut self, now: Nanos, request: RequestId, requests: &Requests) {
        let rq = &requests[request];
        let turn = self.turn.as_mut().expect("a queue is in service");
        let id = turn.queue;
        turn.dispatched += 1;
        turn.idle = None;
        let sectors = self.charge(self.queue(id), rq);
        let rotational = self.settings.rotational;
        let seeks = is_seek(self.last_position, rq, rotational);
        self.rate.dispatched(now, rq.len.0, seeks, self.in_flight);
        self.last_position = Some(rq.end());
        self.waiting -= 1;
        self.in_flight += 1;
        let queue = self.queues.at(id.0);
        // The turn, the rate, the charge and the weight; the list, the tree and the next request.
        self.visits.visit(6);
        self.visits.search(queue.waiting.len());
        queue.waiting.remove(request, requests, self.settings.backward);
        queue.dispatched += 1;
        self.classes.served(queue, sectors);
        let was_raised = queue.raising.is_raised();
        queue.raising.served(now, sectors, self.rate.raising());
        if was_raised && !queue.raising.is_raised() {
            self.raised_busy -= 1;
            self.weights.update(queue);
        }
        if queue.weight() != queue.entity.weight {
            self.classes.reweigh(queue);
        }
        // The idle class gives the device back after each request.
        if queue.is_idle_class() && self.classes.busy() > 1 {
            self.end_turn(now, requests, Ended::Exhausted);
        }
    }

    /// Whether the turn may end because its time is over. A queue that is idled for stays if it has
    /// used two thirds of its budget: its timestamps would suffer.
    pub(super) fn may_end_for_timeout(&self, now: Nanos, turn: &Turn) -> bool {
        let entity = &self.queue(turn.queue).entity;
        let has_much_left = entity.budget_left() >= entity.budget / 3;
        (turn.idle.is_none() || has_much_left) && now >= turn.timeout
    }

    /// Ends idling because a request has come, and the turn if its time is over.
    pub(super) fn end_waiting_for(&mut self, now: Nanos, requests: &Requests, id: BfqqId) {
        let turn = self.turn.as_mut().filter(|turn| turn.queue == id);
        let Some(turn) = turn else { return };
        if turn.idle.take().is_some() && now >= turn.timeout {
            self.end_turn(now, requests, Ended::Timeout);
        }
    }

    /// Ends the turn (`bfq_bfqq_expire`).
    pub(super) fn end_turn(&mut self, now: Nanos, requests: &Requests, reason: Ended) {
        self.end_turn_at(now, now, requests, reason);
    }

    /// Ends the turn after idling in vain, which does not count as its time.
    pub(super) fn end_turn_after_idling(&mut self, idle: Idle, requests: &Requests, reason: Ended) {
        self.end_turn_at(idle.until, idle.since, requests, reason);
    }

    fn end_turn_at(&mut self, now: Nanos, worked_until: Nanos, requests: &Requests, reason: Ended) {
        let turn = self.turn.take().expect("a queue is in service");
        let id = turn.queue;
        // Its time, its budget, its weight and its class, where it enters or leaves a tree.
        self.visits.visit(4);
        self.visits.search(self.classes.busy() as usize);
        self.charge_time(id, worked_until.since(turn.began), reason);
        self.renew_budget(id, requests, reason);
        let slice_idle = self.settings.slice_idle;
        let queue = self.queues.at(id.0);
        let Bfqq { entity, pattern, .. } = queue;
        if reason == Ended::TooIdle && entity.service * 5 <= entity.budget {
            pattern.is_io_bound = false;
        }
        if !queue.waiting.is_empty() {
            self.classes.enter_again(id, queue);
            self.weights.update(queue);
            queue.entity.service = 0;
            return;
        }
        queue.raising.emptied(now, queue.dispatched, slice_idle);
        self.raised_busy -= u32::from(queue.raising.is_raised());
        self.classes.leave(queue);
        queue.awaits_request = !matches!(reason, Ended::Timeout | Ended::Exhausted);
        if queue.dispatched == 0 {
            queue.idle_since = Some(now);
            self.weights.remove(queue);
        }
        self.free_if_finished(id);
    }

    /// Charges a slow queue, and one that has not used its time, for the time of the turn, as if it
    /// had been served at the peak rate (`bfq_bfqq_charge_time`).
    fn charge_time(&mut self, id: BfqqId, time: Nanos, reason: Ended) {
        let largest = self.largest_budget();
        let Settings { timeout, slice_idle, rotational, .. } = self.settings;
        let queue = self.queues.at(id.0);
        let entity = &mut queue.entity;
        let (is_slow, time) = if time < SHORT_TURN {
            let charge = if rotational { slice_idle } else { SHORT_TURN_CHARGE };
            (queue.pattern.is_seeky(), charge)
        } else if time > LONG_TURN {
            (entity.service < largest / 2, time)
        } else {
            (queue.pattern.is_seeky(), time)
        };
        let is_slow = queue.sync && is_slow;
        let wasted = reason == Ended::Timeout && entity.budget_left() >= entity.budget / 3;
        if queue.raising.is_raised() || !(is_slow || wasted) {
            return;
        }
        let share = u128::from(largest) * u128::from(time.min(timeout).0);
        let sectors = u64::try_from(share / u128::from(timeout.0)).unwrap_or(largest);
        let more = sectors.saturating_sub(entity.service);
        entity.budget = entity.budget.max(sectors);
        self.classes.served(queue, more);
    }

    /// Computes the budget of the next turn (`__bfq_bfqq_recalc_budget`).
    fn renew_budget(&mut self, id: BfqqId, requests: &Requests, reason: Ended) {
        let largest = self.largest_budget();
        let least = self.least_budget();
        let queue = self.queue(id);
        let before = queue.max_budget;
        let budget = if queue.raising.is_raised() {
            2 * least
        } else if !queue.sync {
            largest
        } else {
            match reason {
                Ended::Exhausted => before * 4,
                Ended::Timeout => before * 2,
                Ended::TooIdle if queue.dispatched > 0 => before * 2,
                Ended::TooIdle if before > 5 * least => before - 4 * least,
                Ended::TooIdle => least,
                Ended::NoMoreRequests => queue.entity.service.max(least),
                Ended::Preempted => before,
            }
        };
        let budget = budget.min(largest);
        let next = queue.waiting.next().map(|next| self.charge(queue, &requests[next]));
        let queue = self.queues.at(id.0);
        queue.max_budget = budget;
        if let Some(charge) = next {
            queue.entity.budget = budget.max(charge);
        }
    }

    /// Adds a queue that has got a request (`bfq_bfqq_handle_idle_busy_switch`).
    pub(super) fn become_busy(&mut self, now: Nanos, requests: &Requests, id: BfqqId) {
        let in_time = self
            .queue(id)
            .pattern
            .last_completion
            .is_none_or(|last| now <= last + Nanos(3 * self.settings.slice_idle.0));
        // Its budget, its weight and its class, the tree that it enters and the one that it left.
        self.visits.visit(4);
        self.visits.search(self.classes.busy() as usize);
        self.visits.search(self.classes.busy() as usize);
        let queue = self.queue(id);
        let left = queue.entity.budget_left();
        let resumes = queue.awaits_request && in_time && left > 0;
        let next = queue.waiting.next().expect("a request has come");
        let charge = self.charge(queue, &requests[next]);
        let queue = self.queues.at(id.0);
        queue.entity.budget =
            if resumes { left.min(queue.max_budget) } else { queue.max_budget.max(charge) };
        queue.entity.service = 0;
        queue.awaits_request = false;
        queue.pattern.resumed(in_time);
        self.raise(now, id);
        let queue = self.queues.at(id.0);
        queue.raising.begin_batch(now);
        self.classes.enter(id, queue, resumes);
        self.weights.update(queue);
        self.raised_busy += u32::from(queue.raising.is_raised());
        if self.is_to_preempt(id, resumes) {
            self.end_turn(now, requests, Ended::Preempted);
        }
    }

    /// Raises the weight of a queue that begins a batch, if it looks interactive or soft real time.
    fn raise(&mut self, now: Nanos, id: BfqqId) {
        let least = self.least_budget();
        let queue = self.queues.at(id.0);
        let may_begin = queue.dispatched == 0 && queue.own_weight() == DEFAULT_WEIGHT;
        if !self.settings.low_latency || !queue.sync || !may_begin {
            return;
        }
        let is_interactive = queue.idle_since.is_none_or(|since| now > since + PAUSE);
        let is_soft_real_time =
            !queue.pattern.is_totally_seeky() && queue.raising.may_be_soft_real_time(now);
        if !is_interactive && !is_soft_real_time {
            return;
        }
        if !queue.raising.is_raised() {
            queue.entity.budget = queue.entity.budget.min(2 * least);
        }
        queue.raising.raise(now, is_interactive, self.rate.raising());
    }

    /// Ends the soft real-time period of a queue whose last 32 requests were seeks.
    pub(super) fn end_raising_of_seeker(&mut self, id: BfqqId) {
        let queue = self.queues.at(id.0);
        if !queue.pattern.is_totally_seeky() || !queue.raising.is_soft_real_time() {
            return;
        }
        queue.raising.end_soft_real_time();
        if queue.is_busy {
            self.raised_busy -= 1;
            self.weights.update(queue);
        }
    }

    /// Whether a queue that has become busy takes the device: it continues a turn that it lost for
    /// lack of a request, or it is more urgent than the queue in service.
    fn is_to_preempt(&self, id: BfqqId, resumes: bool) -> bool {
        let Some(turn) = &self.turn else { return false };
        let active = self.queue(turn.queue);
        let queue = self.queue(id);
        let is_as_raised = queue.raising.factor() >= active.raising.factor();
        (resumes && is_as_raised)
            || queue.class < active.class
            || (queue.class == active.class && queue.entity.weight > active.entity.weight)
    }
}
