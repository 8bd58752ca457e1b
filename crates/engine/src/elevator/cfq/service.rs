//! Service trees and the active workload: selection of the next queue.
//!
//! Real time always precedes best effort, and best effort always precedes idle. Real time and best
//! effort have three trees each. So idling for a sequential reader and the one idling for all
//! random readers are separate, and writeback has its own tree:
//!
//! ```text
//!              SYNC_IDLE      SYNC_NOIDLE      ASYNC
//!   rt        [ .. q .. ]    [ q .. q .. ]    [ q ]      the type whose first queue has the
//!   be        [ q q ....]    [ .. q ... ]     [ q ]      lowest key gets a workload slice;
//!   idle      [ q .. ]                                   inside, the lowest key runs
//!
//!   key = now + offset(level) - residual        to the front: before the first key
//! ```

use alloc::collections::BTreeMap;

use super::super::think::ThinkTime;
use super::Cfq;
use super::prio::scale;
use super::queue::{Cfqq, CfqqId};
use crate::priority::PriorityClass;
use crate::time::Nanos;

/// Distance of the idle class's queues behind the last of them (`CFQ_IDLE_DELAY`).
const IDLE_DELAY_NS: i64 = 200_000_000;
/// Weight of the past in the mean number of busy queues, in quarters (`cfq_hist_divisor`).
const PAST_WEIGHT: u64 = 3;
/// The tree of the idle class.
const IDLE_TREE: usize = 6;

/// Type of a queue, and of the active workload (`wl_type_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkloadType {
    SyncIdle,
    SyncNoidle,
    Async,
}

const KINDS: [WorkloadType; 3] =
    [WorkloadType::SyncIdle, WorkloadType::SyncNoidle, WorkloadType::Async];

/// Nanoseconds, then the order of insertion.
type Key = (i64, u64);

/// Place of a queue in a service tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) tree: usize,
    pub(super) key: Key,
}

/// Queues of one class and type (`cfq_rb_root`).
#[derive(Debug, Default)]
struct Tree {
    queues: BTreeMap<Key, CfqqId>,
    think: ThinkTime,
}

/// The active workload.
#[derive(Clone, Copy, Debug)]
struct Workload {
    class: PriorityClass,
    kind: WorkloadType,
    end: Nanos,
}

/// The trees and their counters.
#[derive(Debug, Default)]
pub(super) struct ServiceTrees {
    trees: [Tree; 7],
    insertions: u64,
    /// Number of queues in the trees, and of synchronous ones among them.
    pub(super) busy: u32,
    pub(super) busy_sync: u32,
    workload: Option<Workload>,
    /// Mean number of busy queues of best effort and of real time.
    averages: [u64; 2],
}

fn tree_of(class: PriorityClass, kind: WorkloadType) -> usize {
    match class {
        PriorityClass::RealTime => kind as usize,
        PriorityClass::BestEffort => 3 + kind as usize,
        PriorityClass::Idle => IDLE_TREE,
    }
}

/// A signed number of nanoseconds.
pub(super) fn signed(time: Nanos) -> i64 {
    i64::try_from(time.0).expect("the clock shows less than 292 years")
}

impl ServiceTrees {
    fn count(&self, class: PriorityClass, kind: WorkloadType) -> usize {
        self.trees[tree_of(class, kind)].queues.len()
    }

    /// Number of busy queues of real time or of best effort.
    fn busy_of(&self, class: PriorityClass) -> u64 {
        KINDS.iter().map(|kind| self.count(class, *kind) as u64).sum()
    }

    /// Smoothed number of busy queues of a class (`cfq_group_get_avg_queues`).
    pub(super) fn average_busy(&mut self, class: PriorityClass) -> u64 {
        let real_time = class == PriorityClass::RealTime;
        let class = if real_time { PriorityClass::RealTime } else { PriorityClass::BestEffort };
        let busy = self.busy_of(class);
        let average = &mut self.averages[usize::from(real_time)];
        let least = busy.min(*average);
        let most = busy.max(*average);
        *average = (PAST_WEIGHT * most + least + 2) / (PAST_WEIGHT + 1);
        *average
    }

    /// Whether a queue is the only one in its tree.
    pub(super) fn is_alone(&self, place: Place) -> bool {
        self.trees[place.tree].queues.len() == 1
    }

    /// Number of queues in its tree.
    pub(super) fn tree_len(&self, place: Place) -> usize {
        self.trees[place.tree].queues.len()
    }

    /// Think time of a tree: from the end of one of its requests to the next one.
    pub(super) fn think_time(&mut self, tree: usize) -> &mut ThinkTime {
        &mut self.trees[tree].think
    }

    pub(super) fn tree_think(&self, place: Place) -> &ThinkTime {
        &self.trees[place.tree].think
    }

    /// Whether the active workload has this type.
    pub(super) fn serves(&self, kind: WorkloadType) -> bool {
        self.workload.is_some_and(|workload| workload.kind == kind)
    }

    /// Ends the workload, so that the next slice chooses the type anew.
    pub(super) fn end_workload(&mut self) {
        self.workload = None;
    }

    /// First keys of a class's trees, without those in `skip`.
    pub(super) fn first_waiting(
        &self,
        class: PriorityClass,
        skip: Option<CfqqId>,
    ) -> impl Iterator<Item = i64> {
        KINDS.iter().filter_map(move |kind| {
            let queues = &self.trees[tree_of(class, *kind)].queues;
            let first = queues.first_key_value()?;
            let is_skipped = Some(*first.1) == skip;
            let found = if is_skipped { queues.iter().nth(1)? } else { first };
            Some(found.0.0)
        })
    }
}

impl Cfq {
    /// Type of a queue (`cfqq_type`).
    pub(super) fn kind(&self, queue: &Cfqq) -> WorkloadType {
        if !self.settings.service_trees {
            WorkloadType::SyncIdle
        } else if !queue.sync {
            WorkloadType::Async
        } else if queue.idle_window {
            WorkloadType::SyncIdle
        } else {
            WorkloadType::SyncNoidle
        }
    }

    /// Tree of a queue, which applies when its place is next determined.
    pub(super) fn tree(&self, queue: &Cfqq) -> usize {
        tree_of(queue.priority.class, self.kind(queue))
    }

    /// Adds a queue that has requests.
    pub(super) fn add_busy(&mut self, now: Nanos, id: CfqqId) {
        debug_assert!(self.queue(id).place.is_none());
        self.service.busy += 1;
        self.service.busy_sync += u32::from(self.queue(id).sync);
        self.resort(now, id);
    }

    /// Removes an empty queue.
    pub(super) fn remove_busy(&mut self, id: CfqqId) {
        let queue = self.queues.at(id.0);
        let place = queue.place.take().expect("a busy queue has a place");
        self.visits.search(self.service.trees[place.tree].queues.len());
        self.service.busy -= 1;
        self.service.busy_sync -= u32::from(queue.sync);
        self.service.trees[place.tree].queues.remove(&place.key);
    }

    /// Updates the place of a queue (`cfq_service_tree_add`).
    pub(super) fn resort(&mut self, now: Nanos, id: CfqqId) {
        let queue = self.queue(id);
        let tree = self.tree(queue);
        let key = if queue.is_idle_class() {
            let mut others = self.service.trees[tree].queues.iter().rev();
            let last = others.find(|(_, other)| **other != id).map(|(key, _)| key.0);
            last.unwrap_or_else(|| signed(now)).saturating_add(IDLE_DELAY_NS)
        } else {
            let key = signed(now) + signed(self.slice_offset(queue)) - queue.residual_ns;
            self.queues.at(id.0).residual_ns = 0;
            key
        };
        self.place(id, tree, key);
    }

    /// Moves a preempting queue in front of all others of its class. The kernel puts it one second
    /// before the first of the type. Here it is just before all, so that keys keep showing how long
    /// a slice is overdue (our choice).
    pub(super) fn resort_to_front(&mut self, now: Nanos, id: CfqqId) {
        let queue = self.queue(id);
        let tree = self.tree(queue);
        let first = self.service.first_waiting(queue.priority.class, None).min();
        self.place(id, tree, first.unwrap_or_else(|| signed(now)) - 1);
    }

    fn place(&mut self, id: CfqqId, tree: usize, key: i64) {
        let queue = self.queues.at(id.0);
        if let Some(place) = queue.place {
            if (place.tree, place.key.0) == (tree, key) {
                return;
            }
            self.visits.search(self.service.trees[place.tree].queues.len());
            self.service.trees[place.tree].queues.remove(&place.key);
        }
        let key = (key, self.service.insertions);
        self.service.insertions += 1;
        queue.place = Some(Place { tree, key });
        self.service.trees[tree].queues.insert(key, id);
        // The other classes' queues count for its key.
        self.visits.visit(KINDS.len() as u32);
        self.visits.search(self.service.trees[tree].queues.len());
    }

    /// The next queue. There is one: requests wait, and no queue is active.
    pub(super) fn first_queue(&mut self, now: Nanos) -> CfqqId {
        // The first queue of each tree.
        self.visits.visit(self.service.trees.len() as u32);
        let tree = self.choose_workload(now);
        let first = self.service.trees[tree].queues.first_key_value();
        *first.expect("the workload has a queue").1
    }

    /// Selects the tree to serve (`choose_wl_class_and_type`).
    fn choose_workload(&mut self, now: Nanos) -> usize {
        let service = &self.service;
        let classes = [PriorityClass::RealTime, PriorityClass::BestEffort];
        let class = classes.into_iter().find(|class| service.busy_of(*class) > 0);
        let Some(class) = class else {
            self.service.workload = None;
            return IDLE_TREE;
        };
        if let Some(workload) = service.workload {
            let has_queues = service.count(class, workload.kind) > 0;
            if workload.class == class && has_queues && now <= workload.end {
                return tree_of(class, workload.kind);
            }
        }
        let first =
            |kind: &WorkloadType| service.trees[tree_of(class, *kind)].queues.first_key_value();
        let kinds = KINDS.into_iter().filter_map(|kind| first(&kind).map(|(key, _)| (*key, kind)));
        let (_, kind) = kinds.min_by_key(|(key, _)| *key).expect("the class has a queue");
        let end = now + self.workload_slice(class, kind);
        self.service.workload = Some(Workload { class, kind, end });
        tree_of(class, kind)
    }

    /// Duration of a workload: its share of `target_latency`. Writeback gets less, in proportion to
    /// its slices.
    fn workload_slice(&self, class: PriorityClass, kind: WorkloadType) -> Nanos {
        let settings = &self.settings;
        let service = &self.service;
        let target = settings.target_latency;
        let average = service.averages[usize::from(class == PriorityClass::RealTime)];
        let busy = average.max(service.busy_of(class));
        let slice = scale(target, service.count(class, kind) as u64, busy);
        if kind == WorkloadType::Async {
            let all_async = u64::from(service.busy - service.busy_sync);
            let slice = slice.min(scale(target, all_async, u64::from(service.busy)));
            scale(slice, settings.slice_async.0, settings.slice_sync.0)
        } else {
            slice.max(Nanos(2 * settings.slice_idle.0))
        }
    }
}
