//! `flow`: jobs that start their requests in a ratio.
//!
//! As in fio 3.33, the jobs with one `flow_id` form a group. Each request adds to its clone's count
//! and to the group's count. A clone above its weight's share of the group's count waits. An ending
//! clone takes its count and its weight out of the group, so shares refer to the running clones.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blockyard_engine::time::Nanos;

use super::Step;
use crate::fio::job::Job;

/// Polling interval of a waiting clone without requests in flight and without `flow_sleep`. Our
/// choice: fio polls continuously, but a simulated clock must advance meanwhile.
const LOOK_AGAIN: Nanos = Nanos(20_000);

/// A job's share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// `flow`: weight of the job's requests; 0: no share.
    pub weight: u32,
    /// `flow_id`: number of the group.
    pub id: u32,
    /// `flow_sleep`: a clone above its share waits for its requests in flight, and then this long.
    pub pause: Nanos,
}

/// Jobs that share one count.
#[derive(Debug)]
pub(super) struct Group {
    /// Number of all requests plus one, so that the first clone may start.
    requests: AtomicU64,
    weights: AtomicU64,
}

/// The group of each job.
pub(super) fn of_jobs(jobs: &[Job]) -> Vec<Option<Arc<Group>>> {
    let mut groups: BTreeMap<u32, Arc<Group>> = BTreeMap::new();
    let new = || Arc::new(Group { requests: AtomicU64::new(1), weights: AtomicU64::new(0) });
    let mut of = |flow: Flow| Arc::clone(groups.entry(flow.id).or_insert_with(new));
    let flows = jobs.iter().map(|job| job.controls.flow);
    flows.map(|flow| (flow.weight > 0).then(|| of(flow))).collect()
}

/// A clone's share.
#[derive(Debug)]
pub(super) struct Part {
    group: Arc<Group>,
    flow: Flow,
    requests: u64,
    /// Whether its weight is part of the group's.
    has_joined: bool,
    /// Whether the clone sleeps after its requests in flight have ended.
    is_to_sleep: bool,
}

impl Part {
    /// Joins the group at once, or when the clone starts.
    pub(super) fn new(group: Arc<Group>, flow: &Flow, joins_now: bool) -> Self {
        let mut part =
            Self { group, flow: *flow, requests: 0, has_joined: false, is_to_sleep: false };
        if joins_now {
            part.join();
        }
        part
    }

    fn join(&mut self) {
        if !std::mem::replace(&mut self.has_joined, true) {
            self.group.weights.fetch_add(self.flow.weight.into(), Ordering::Relaxed);
        }
    }

    pub(super) fn step(&mut self, in_flight: u32) -> Step {
        self.join();
        let Flow { weight, pause, .. } = self.flow;
        if std::mem::replace(&mut self.is_to_sleep, false) {
            return Step::Pause(pause);
        }
        let all = self.group.requests.load(Ordering::Relaxed);
        let weights = self.group.weights.load(Ordering::Relaxed);
        let part = u128::from(weight) * u128::from(all);
        if u128::from(self.requests) * u128::from(weights) <= part {
            self.requests += 1;
            self.group.requests.fetch_add(1, Ordering::Relaxed);
            return Step::Start;
        }
        match (in_flight, pause) {
            (0, Nanos(0)) => Step::Pause(LOOK_AGAIN),
            (0, pause) => Step::Pause(pause),
            (_, Nanos(0)) => Step::Reap(1),
            (all, _) => {
                self.is_to_sleep = true;
                Step::Reap(all)
            }
        }
    }

    pub(super) fn leave(&mut self) {
        if std::mem::replace(&mut self.has_joined, false) {
            self.group.weights.fetch_sub(self.flow.weight.into(), Ordering::Relaxed);
            self.group.requests.fetch_sub(self.requests, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::Job;

    fn parts(weights: [u32; 2]) -> [Part; 2] {
        let job = |weight| {
            let mut job = Job::new("a");
            job.controls.flow = Flow { weight, ..Flow::default() };
            job
        };
        let jobs = weights.map(job);
        let groups = of_jobs(&jobs);
        [0, 1].map(|at| {
            let group = groups[at].as_ref().map(Arc::clone).unwrap();
            Part::new(group, &jobs[at].controls.flow, true)
        })
    }

    #[test]
    fn each_has_its_weights_part_of_all_requests() {
        let [mut one, mut three] = parts([1, 3]);
        let mut started = [0, 0];
        for _ in 0..1000 {
            started[0] += u32::from(one.step(0) == Step::Start);
            started[1] += u32::from(three.step(0) == Step::Start);
        }
        // The faster clone is limited by the slower one's progress.
        let ratio = f64::from(started[1]) / f64::from(started[0]);
        assert!((2.9..=3.1).contains(&ratio) && started[1] > 900, "{started:?}");
    }

    #[test]
    fn who_is_alone_waits_for_nobody_and_who_has_left_does_not_count() {
        let [mut one, mut other] = parts([1, 1]);
        while one.step(0) == Step::Start {}
        assert_eq!(one.step(0), Step::Pause(LOOK_AGAIN));
        assert_eq!(one.step(2), Step::Reap(1));
        other.leave();
        assert!((0..1000).all(|_| one.step(0) == Step::Start));
    }

    #[test]
    fn a_pause_comes_behind_what_is_in_flight() {
        let [mut one, _other] = parts([1, 1]);
        one.flow.pause = Nanos(7);
        while one.step(0) == Step::Start {}
        assert_eq!([one.step(3), one.step(0)], [Step::Reap(3), Step::Pause(Nanos(7))]);
    }
}
