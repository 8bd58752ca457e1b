//! Cooperators: submitters that read adjacent sectors alternately, and are faster as one.
//!
//! If the active queue is empty and another queue's next request is close to the head, that queue
//! gets the disk at once, and the two are merged. Their submitters follow with their next requests;
//! if the shared queue becomes seeky, it is split again.
//!
//! ```text
//!   A: 0+8     16+8     32+8          A ─┐
//!   B:     8+8     24+8       ==>     B ─┴─> one queue: 0 8 16 24 32, no idling in between
//! ```

use super::Cfq;
use super::queue::{Cfqq, CfqqId};
use crate::bio::{IoContext, Sector};
use crate::priority::PriorityClass;
use crate::request::RequestId;
use crate::time::Nanos;

/// Greatest distance of close requests: 4 MiB (`CFQQ_CLOSE_THR`).
const CLOSE_SECTORS: u64 = 8192;

/// Cooperation never crosses the border of the real-time class.
fn same_class(one: &Cfqq, other: &Cfqq) -> bool {
    let is_real_time = |queue: &Cfqq| queue.priority.class == PriorityClass::RealTime;
    is_real_time(one) == is_real_time(other)
}

/// Id of a queue in the position trees, whose entries are request ids.
fn in_tree(id: CfqqId) -> RequestId {
    RequestId(id.0)
}

impl Cfq {
    /// Whether the sector is close to the head (`cfq_rq_close`).
    pub(super) fn is_close(&self, sector: Sector) -> bool {
        self.last_position.0.abs_diff(sector.0) <= CLOSE_SECTORS
    }

    /// Updates a queue's entry for the search of cooperators: by level, at the sector of its next
    /// request. Queues that never cooperate, empty queues and the active queue have no entry.
    pub(super) fn update_position(&mut self, id: CfqqId) {
        let is_active = self.active.as_ref().is_some_and(|slice| slice.queue == id);
        let queue = self.queues.at(id.0);
        let is_findable = queue.sync && !queue.is_idle_class() && !is_active && !queue.is_empty();
        let wanted = is_findable.then_some((queue.priority.level, queue.waiting.next_sector()));
        let before = core::mem::replace(&mut queue.position, wanted);
        if before == wanted {
            return;
        }
        if let Some((level, _)) = before {
            self.visits.search(self.positions[usize::from(level)].len());
            self.positions[usize::from(level)].remove(in_tree(id));
        }
        if let Some((level, sector)) = wanted {
            self.positions[usize::from(level)].insert(in_tree(id), sector);
            self.visits.search(self.positions[usize::from(level)].len());
        }
    }

    /// Another queue of the same level with a next request close to the head
    /// (`cfq_close_cooperator`).
    #[inline]
    pub(super) fn close_cooperator(&self, now: Nanos, id: CfqqId) -> Option<CfqqId> {
        let queue = self.queue(id);
        if queue.is_idle_class() || !queue.sync || queue.is_seeky() || self.service.busy == 1 {
            return None;
        }
        if !self.settings.service_trees {
            return None; // in 2.6.30-rc2 the function existed, but always returned none
        }
        self.search_cooperator(now, queue)
    }

    fn search_cooperator(&self, now: Nanos, queue: &Cfqq) -> Option<CfqqId> {
        let positions = &self.positions[usize::from(queue.priority.level)];
        let head = self.last_position;
        let ahead = positions.first_from(head);
        let behind = || positions.last_before(head);
        let is_close =
            |found: &RequestId| self.is_close(self.queue(CfqqId(found.0)).waiting.next_sector());
        let other = ahead.filter(is_close).or_else(|| behind().filter(is_close))?;
        let other = CfqqId(other.0);
        let found = self.queue(other);
        let fits = !found.is_seeky() && same_class(queue, found);
        // An endless chain of cooperators would starve queues with distant requests.
        (fits && !self.is_anyone_starved(now, queue.priority.class)).then_some(other)
    }

    /// Prepares the merge of two queues: the one with fewer submitters will follow into the other
    /// (`cfq_setup_merge`).
    pub(super) fn setup_merge(&mut self, id: CfqqId, other: CfqqId) {
        let submitters = |queue: &Cfqq| queue.users + queue.pending_users;
        if self.queue(id).merge_into.is_some() || self.queue(other).is_abandoned() {
            return;
        }
        let mut other = other;
        while let Some(further) = self.queue(other).merge_into {
            if further == id {
                return; // the other queue is already set to merge into this one
            }
            other = further;
        }
        let ours = submitters(self.queue(id));
        let theirs = submitters(self.queue(other));
        if ours == 0 || theirs == 0 {
            return;
        }
        let (from, into, moving) =
            if theirs >= ours { (id, other, ours) } else { (other, id, theirs) };
        self.queues.at(from.0).merge_into = Some(into);
        self.queues.at(into.0).pending_users += moving;
    }

    /// Queue of a submitter's next request after `id`: another one after a merge, a new one
    /// (`None`) after a split.
    pub(super) fn follow(&mut self, io_context: IoContext, id: CfqqId) -> Option<CfqqId> {
        let queue = self.queues.at(id.0);
        if queue.shared && queue.split {
            if queue.users + queue.pending_users > 1 {
                self.leave(id);
                self.free_if_unused(id);
                return None;
            }
            queue.shared = false;
            queue.split = false;
        }
        let Some(into) = queue.merge_into else { return Some(id) };
        queue.users -= 1;
        self.forget_merge_if_empty(id);
        let target = self.queues.at(into.0);
        target.pending_users -= 1;
        target.shared = true;
        self.join(io_context, into);
        self.free_if_unused(id);
        Some(into)
    }

    /// Removes a submitter from a queue, and from the queues that it was to be merged into.
    pub(super) fn leave(&mut self, id: CfqqId) {
        let mut further = self.queue(id).merge_into;
        self.queues.at(id.0).users -= 1;
        self.forget_merge_if_empty(id);
        while let Some(into) = further {
            let queue = self.queues.at(into.0);
            queue.pending_users -= 1;
            further = queue.merge_into;
            self.forget_merge_if_empty(into);
            self.free_if_unused(into);
        }
    }

    /// Cancels the merge of a queue without submitters.
    fn forget_merge_if_empty(&mut self, id: CfqqId) {
        let queue = self.queues.at(id.0);
        if queue.is_abandoned() {
            queue.merge_into = None;
        }
    }
}
