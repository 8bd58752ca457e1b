//! B-WF2Q+: shares of the device in proportion to weights, with budgets in place of packets.
//!
//! A virtual clock runs `1 / sum of the weights` for each served sector. A queue has a virtual
//! start, and a finish: the start plus its budget over its weight. It is *eligible* from its start
//! on: an ideal device that serves all queues at once would have begun with this budget. The next
//! queue is the eligible one with the least finish.
//!
//! ```text
//!                        virtual time
//!                             v
//!   A   |-------------------->|            eligible, finish soonest: next
//!   B        |----------------|----->      eligible
//!   C                         |   |-->     not yet eligible, though it finishes before B
//! ```
//!
//! After its turn a queue starts anew where its *received* service ends, so what it did not use of
//! its budget is not charged. A queue without requests keeps its weight in the sum until the clock
//! reaches its finish. Until then, an empty queue cannot gain by coming back.
//!
//! Time is `u128` and never wraps. The kernel keeps the eligible queues in a tree of finishes that
//! is augmented by starts. Here, two ordered sets do that: the eligible queues by finish, the
//! others by start.
//!
//! **Bound** (worst-case fairness): in any interval in which a queue of weight `w` always has
//! requests, it receives at least `w / W` of all service, less
//!
//! ```text
//!   2 · B + w / W · (the largest budget)       B: its largest budget; W: the sum of all weights
//! ```
//!
//! The papers have one B, because they look at the ends of turns only: the interval may begin right
//! after a turn that was early, and end right before one that is late.

use alloc::collections::{BTreeMap, BTreeSet};

use super::queue::BfqqId;

/// Fraction bits of the virtual time.
const SHIFT: u32 = 22;

/// A virtual point in time: sectors per unit of weight.
type Virtual = u128;

/// The timestamps of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entity {
    start: Virtual,
    finish: Virtual,
    /// Order of insertion, which decides between equal timestamps.
    sequence: u64,
    pub(super) weight: u64,
    /// Sectors that the queue may dispatch in a turn, and those of this turn.
    pub(super) budget: u64,
    pub(super) service: u64,
}

impl Entity {
    pub(super) fn budget_left(&self) -> u64 {
        self.budget.saturating_sub(self.service)
    }

    /// Drops the timestamps: they are those of another class.
    pub(super) fn finish_at_once(&mut self) {
        self.start = 0;
        self.finish = 0;
    }
}

/// The time that `sectors` take under a weight.
fn virtual_length(sectors: u64, weight: u64) -> Virtual {
    Virtual::from((sectors << SHIFT) / weight)
}

/// The queues of one class (`bfq_service_tree`).
#[derive(Debug, Default)]
pub(super) struct ServiceTree {
    now: Virtual,
    /// Weights of all queues in the sets, and of the one in service.
    weights: u64,
    insertions: u64,
    /// Eligible queues, by finish.
    eligible: BTreeSet<(Virtual, u64, BfqqId)>,
    /// Queues that are not yet eligible, by start, with their finish.
    later: BTreeMap<(Virtual, u64), (Virtual, BfqqId)>,
    /// Weights of queues that have left, by finish. They are forgotten at that time.
    departed: BTreeMap<(Virtual, u64), u64>,
}

impl ServiceTree {
    /// Adds a queue that was empty. `resumes` is the factor of its weight if it continues the turn
    /// that it lost for lack of a request: it then starts where its service ended, even in the
    /// past. Its finish is moved up to the present, or by that factor less: a queue would otherwise
    /// be ahead of all others for long.
    pub(super) fn enter(
        &mut self,
        id: BfqqId,
        entity: &mut Entity,
        weight: u64,
        resumes: Option<u64>,
    ) {
        let resumes = resumes.filter(|_| self.now > entity.finish);
        let start = if resumes.is_some() { entity.finish } else { self.now };
        entity.start = match self.departed.remove(&(entity.finish, entity.sequence)) {
            Some(weight) => {
                self.weights -= weight;
                start.max(entity.finish)
            }
            None => start,
        };
        entity.weight = weight;
        self.weights += weight;
        entity.finish = entity.start + virtual_length(entity.budget, weight);
        if let Some(factor) = resumes
            && self.now > entity.finish
        {
            let late = (self.now - entity.finish) / Virtual::from(factor);
            entity.start += late;
            entity.finish += late;
        }
        self.insert(id, entity);
    }

    /// Adds the queue in service again, after its turn.
    pub(super) fn enter_again(&mut self, id: BfqqId, entity: &mut Entity, weight: u64) {
        entity.start += virtual_length(entity.service, entity.weight);
        self.reweigh(entity, weight);
        entity.finish = entity.start + virtual_length(entity.budget, weight);
        self.insert(id, entity);
    }

    fn insert(&mut self, id: BfqqId, entity: &mut Entity) {
        entity.sequence = self.insertions;
        self.insertions += 1;
        if entity.start <= self.now {
            self.eligible.insert((entity.finish, entity.sequence, id));
        } else {
            self.later.insert((entity.start, entity.sequence), (entity.finish, id));
        }
    }

    /// Removes the queue in service, which is empty.
    pub(super) fn leave(&mut self, entity: &mut Entity) {
        entity.finish = entity.start + virtual_length(entity.service, entity.weight);
        if entity.finish > self.now {
            self.departed.insert((entity.finish, entity.sequence), entity.weight);
        } else {
            self.weights -= entity.weight;
        }
    }

    /// Removes what the tree knows of a queue that has left: it comes back in another class.
    pub(super) fn forget(&mut self, entity: &Entity) {
        let weight = self.departed.remove(&(entity.finish, entity.sequence));
        self.weights -= weight.unwrap_or(0);
    }

    /// Removes the queue in service, which goes to another class.
    pub(super) fn emigrate(&mut self, entity: &Entity) {
        self.weights -= entity.weight;
    }

    /// Changes the weight of the queue in service.
    pub(super) fn reweigh(&mut self, entity: &mut Entity, weight: u64) {
        self.weights = self.weights - entity.weight + weight;
        entity.weight = weight;
    }

    /// Counts service of the queue in service.
    pub(super) fn served(&mut self, entity: &mut Entity, sectors: u64) {
        entity.service += sectors;
        self.advance(self.now + virtual_length(sectors, self.weights));
    }

    fn advance(&mut self, now: Virtual) {
        self.now = now;
        while let Some(first) = self.later.first_entry() {
            if first.key().0 > now {
                break;
            }
            let ((_, sequence), (finish, id)) = first.remove_entry();
            self.eligible.insert((finish, sequence, id));
        }
        while let Some(first) = self.departed.first_entry() {
            if first.key().0 > now {
                break;
            }
            self.weights -= first.remove();
        }
    }

    /// Removes the next queue, which is in service now. The clock jumps forward if no queue is
    /// eligible.
    pub(super) fn next(&mut self) -> Option<BfqqId> {
        if self.eligible.is_empty() {
            let (start, _) = *self.later.first_key_value()?.0;
            self.advance(start);
        }
        self.eligible.pop_first().map(|(_, _, id)| id)
    }

    /// Whether no queue waits for its turn.
    pub(super) fn is_empty(&self) -> bool {
        self.eligible.is_empty() && self.later.is_empty()
    }

    /// Sum of the weights of waiting and departed queues, and of the one in service.
    #[cfg(test)]
    pub(super) fn weights(&self) -> u64 {
        self.weights
    }

    /// Number of waiting queues.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.eligible.len() + self.later.len()
    }
}
