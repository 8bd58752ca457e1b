//! Preemption of the active queue by a new request (`cfq_should_preempt`).
//!
//! ```text
//!   active queue             new request                              preempts
//!   any                      idle class                               no
//!   idle class               any other                                yes
//!   real time                not real time                            no
//!   asynchronous             synchronous                              yes
//!   slice used up            any                                      yes
//!   noidle, empty            noidle, and these two are all            yes
//!   not real time            real time                                yes
//!   empty, not waited for    any                                      yes, with service trees
//!   waited for               at most 4 MiB from the head              yes
//!   else                                                              no
//! ```
//!
//! The kernel has one more rule, for metadata, which our requests do not mark. One rule is our own:
//! if another queue of the class is overdue by `starved_after`, no request of this class preempts.
//! Otherwise alternating queues could pass a third one forever.

use super::Cfq;
use super::queue::{Cfqq, CfqqId};
use super::service::{WorkloadType, signed};
use crate::priority::PriorityClass;
use crate::request::Request;
use crate::time::Nanos;

impl Cfq {
    /// Whether the new `request` of the queue `id` preempts.
    pub(super) fn should_preempt(&self, now: Nanos, id: CfqqId, request: &Request) -> bool {
        let Some(slice) = &self.active else { return false };
        let active = self.queue(slice.queue);
        let new = self.queue(id);
        let is_real_time = |class| class == PriorityClass::RealTime;
        let active_is_rt = is_real_time(active.priority.class);
        let new_is_rt = is_real_time(new.priority.class);
        if new.is_idle_class() {
            return false;
        }
        if active.is_idle_class() {
            return true;
        }
        if active_is_rt != new_is_rt {
            return new_is_rt;
        }
        let both_noidle = self.service.serves(WorkloadType::SyncNoidle)
            && self.kind(new) == WorkloadType::SyncNoidle
            && new.place.is_some_and(|place| self.service.tree_len(place) == 2);
        let preempts = (request.sync && !active.sync)
            || slice.is_used(now)
            || (active.is_empty() && (both_noidle || self.gives_way_when_empty(active)))
            || (slice.idle_until.is_some() && self.is_close(request.sector));
        preempts && !self.is_anyone_starved(now, new.priority.class)
    }

    /// Whether a new request preempts this empty active queue. The rule dates from 3.x: among
    /// random readers, the one with the next request passes all others.
    fn gives_way_when_empty(&self, active: &Cfqq) -> bool {
        self.settings.service_trees && !self.should_idle(active)
    }

    /// Ends the active queue's slice, keeps its rest for later, and starts a slice of this queue
    /// (`cfq_preempt_queue`).
    pub(super) fn preempt(&mut self, now: Nanos, id: CfqqId) {
        let active = self.active.as_ref().expect("a queue is active").queue;
        let other_type = self.kind(self.queue(active)) != self.kind(self.queue(id));
        self.expire_slice(now, true);
        if other_type {
            self.service.end_workload();
        }
        self.resort_to_front(now, id);
    }

    /// Whether a queue of this class is overdue by `starved_after`. The active queue counts until
    /// its first dispatch.
    pub(super) fn is_anyone_starved(&self, now: Nanos, class: PriorityClass) -> bool {
        let Some(limit) = self.settings.starved_after else { return false };
        let served = self.active.as_ref().filter(|slice| slice.dispatched > 0);
        let mut keys = self.service.first_waiting(class, served.map(|slice| slice.queue));
        keys.any(|key| key.saturating_add(signed(limit)) <= signed(now))
    }
}
