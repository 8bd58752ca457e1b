//! `flow`: jobs that start their requests in a ratio.
//!
//! As in fio 3.33, those with one `flow_id` count together: each request of one adds to its own
//! count and to that of all, and who has more than its weight's part of them waits. So a clone's
//! part is what it is among those that run now: who ends takes its count and its weight along.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blockyard_engine::time::Nanos;

use super::Step;
use crate::fio::job::Job;

/// Without `flow_sleep`, when a clone looks again that has nothing in flight. Ours: fio's looks all
/// the time, and a simulated clock must move meanwhile.
const LOOK_AGAIN: Nanos = Nanos(20_000);

/// What a job's part is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// `flow`: its requests to those of the others; 0 is that it takes no part.
    pub weight: u32,
    /// `flow_id`: whose others.
    pub id: u32,
    /// `flow_sleep`: who has had more than its part waits for what is in flight, and then so long.
    pub pause: Nanos,
}

/// Those that count together.
#[derive(Debug)]
pub(super) struct Group {
    /// Requests of all, and one: nobody has all of none.
    requests: AtomicU64,
    weights: AtomicU64,
}

/// Of each job, whom it counts with.
pub(super) fn of_jobs(jobs: &[Job]) -> Vec<Option<Arc<Group>>> {
    let mut groups: BTreeMap<u32, Arc<Group>> = BTreeMap::new();
    let new = || Arc::new(Group { requests: AtomicU64::new(1), weights: AtomicU64::new(0) });
    let mut of = |flow: Flow| Arc::clone(groups.entry(flow.id).or_insert_with(new));
    let flows = jobs.iter().map(|job| job.controls.flow);
    flows.map(|flow| (flow.weight > 0).then(|| of(flow))).collect()
}

/// A clone's part.
#[derive(Debug)]
pub(super) struct Part {
    group: Arc<Group>,
    flow: Flow,
    requests: u64,
    /// Its weight counts.
    has_joined: bool,
    /// It waits for what is in flight before it sleeps.
    is_to_sleep: bool,
}

impl Part {
    /// It counts at once, or when it starts.
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
        // Who may start at each look has what the slower lets it have.
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
