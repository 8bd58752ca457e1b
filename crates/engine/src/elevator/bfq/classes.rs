//! The three classes: real time before best effort before idle, each with its own tree. The idle
//! class gets a turn after 200 ms without one, so that it does not starve.

use super::queue::{Bfqq, BfqqId};
use super::wf2q::ServiceTree;
use crate::priority::PriorityClass;
use crate::time::Nanos;

/// Time after which the idle class gets a turn (`BFQ_CL_IDLE_TIMEOUT`).
const IDLE_CLASS_TIMEOUT: Nanos = Nanos::from_ms(200);

/// Queues with requests, and the one in service, by class.
#[derive(Debug, Default)]
pub(super) struct Classes {
    trees: [ServiceTree; 3],
    busy: [u32; 3],
    /// Time at which the idle class last could have had a turn of its own.
    idle_class_at: Nanos,
}

fn place(class: PriorityClass) -> usize {
    class as usize
}

impl Classes {
    /// Number of queues with requests, and of the one in service.
    pub(super) fn busy(&self) -> u32 {
        self.busy.iter().sum()
    }

    /// Whether queues of several classes are busy.
    pub(super) fn are_several(&self) -> bool {
        self.busy.iter().filter(|busy| **busy > 0).count() > 1
    }

    /// Adds a queue that was empty. It `resumes` its last turn, or starts anew. Its class is from
    /// now on that of its last request.
    pub(super) fn enter(&mut self, id: BfqqId, queue: &mut Bfqq, resumes: bool) {
        let class = queue.priority.class;
        let weight = queue.weight();
        let resumes = resumes.then_some(queue.raising.factor());
        if queue.class == class {
            self.trees[place(class)].enter(id, &mut queue.entity, weight, resumes);
        } else {
            self.trees[place(queue.class)].forget(&queue.entity);
            queue.entity.finish_at_once();
            self.trees[place(class)].enter(id, &mut queue.entity, weight, None);
        }
        queue.class = class;
        queue.is_busy = true;
        self.busy[place(class)] += 1;
    }

    /// Adds the queue in service again, after its turn, in the class of its last request.
    pub(super) fn enter_again(&mut self, id: BfqqId, queue: &mut Bfqq) {
        let class = queue.priority.class;
        let weight = queue.weight();
        if queue.class == class {
            self.trees[place(class)].enter_again(id, &mut queue.entity, weight);
            return;
        }
        self.trees[place(queue.class)].emigrate(&queue.entity);
        queue.entity.finish_at_once();
        self.trees[place(class)].enter(id, &mut queue.entity, weight, None);
        self.busy[place(queue.class)] -= 1;
        self.busy[place(class)] += 1;
        queue.class = class;
    }

    /// Removes the queue in service, which is empty.
    pub(super) fn leave(&mut self, queue: &mut Bfqq) {
        self.trees[place(queue.class)].leave(&mut queue.entity);
        queue.is_busy = false;
        self.busy[place(queue.class)] -= 1;
    }

    /// Counts service of the queue in service.
    pub(super) fn served(&mut self, queue: &mut Bfqq, sectors: u64) {
        self.trees[place(queue.class)].served(&mut queue.entity, sectors);
    }

    /// Applies the factor of the queue in service to its weight.
    pub(super) fn reweigh(&mut self, queue: &mut Bfqq) {
        let weight = queue.weight();
        self.trees[place(queue.class)].reweigh(&mut queue.entity, weight);
    }

    /// Removes the next queue, which is in service now (`bfq_lookup_next_entity`).
    pub(super) fn next(&mut self, now: Nanos) -> Option<BfqqId> {
        let idle = place(PriorityClass::Idle);
        if now > self.idle_class_at + IDLE_CLASS_TIMEOUT {
            self.idle_class_at = now;
            if !self.trees[idle].is_empty() {
                return self.trees[idle].next();
            }
        }
        self.trees.iter_mut().find_map(ServiceTree::next)
    }

    #[cfg(test)]
    pub(super) fn trees(&self) -> &[ServiceTree] {
        &self.trees
    }
}
