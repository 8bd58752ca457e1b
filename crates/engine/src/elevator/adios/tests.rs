//! Pages, deadlines and the bound.

use super::super::ElevatorSpec;
use super::*;
use crate::bio::Bio;
use crate::buf::BufRef;
use crate::request::Request;

const FACTS: Facts = Facts { rotational: false, nr_requests: 256, queue_depth: 32 };

struct World {
    policy: Box<dyn Elevator>,
    requests: Requests,
    now: Nanos,
}

impl World {
    fn new(text: &str) -> Self {
        let policy = ElevatorSpec::parse(text).unwrap().attach(FACTS).policy.unwrap();
        Self { policy, requests: Requests::default(), now: Nanos(0) }
    }

    fn insert(&mut self, op: Op, kib: u64) -> RequestId {
        let bio = Bio::new(op, Sector(0), Sector(2 * kib), BufRef::NONE, 0);
        let id = self.requests.insert(Request::new(&bio, 0));
        self.policy.insert(self.now, &self.requests, id);
        id
    }

    fn dispatch(&mut self) -> Option<RequestId> {
        self.policy.dispatch(self.now, &self.requests)
    }

    fn complete(&mut self, id: RequestId) {
        self.policy.completed(self.now, &self.requests, id);
        self.requests.remove(id);
    }

    /// Serves one request of 4 KiB in 1 ms, which teaches the base.
    fn teach(&mut self, op: Op) {
        let id = self.insert(op, 4);
        assert_eq!(self.dispatch(), Some(id));
        self.now = self.now + Nanos::from_ms(1);
        self.complete(id);
    }

    fn dispatch_all(&mut self) -> Vec<RequestId> {
        core::iter::from_fn(|| self.dispatch()).collect()
    }
}

#[test]
fn page_is_limited_by_the_window_of_predicted_time() {
    let mut world = World::new("adios,global_latency_window=4000000,bq_refill_below_ratio=0");
    world.teach(Op::Read);
    world.teach(Op::Write);
    let write = world.insert(Op::Write, 4);
    world.now = world.now + Nanos::from_ms(760);
    let reads: Vec<_> = (0..5).map(|_| world.insert(Op::Read, 4)).collect();
    // 1 ms each: a page holds four, with the overdue write, and its reads go first.
    let order = [reads[0], reads[1], reads[2], write, reads[3], reads[4]];
    assert_eq!(world.dispatch_all(), order);
}

#[test]
fn page_is_limited_by_the_number_of_requests_of_a_kind() {
    let mut world = World::new("adios,batch_size_limit_read=2,bq_refill_below_ratio=0");
    world.teach(Op::Read);
    world.teach(Op::Write);
    let write = world.insert(Op::Write, 4);
    world.now = world.now + Nanos::from_ms(760);
    let reads: Vec<_> = (0..3).map(|_| world.insert(Op::Read, 4)).collect();
    assert_eq!(world.dispatch_all(), [reads[0], reads[1], write, reads[2]]);
}

#[test]
fn long_request_has_a_later_deadline_once_its_cost_is_known() {
    let mut world = World::new("adios,batch_size_limit_read=1,bq_refill_below_ratio=0");
    world.teach(Op::Read);
    let slow = world.insert(Op::Read, 64);
    assert_eq!(world.dispatch(), Some(slow));
    world.now = world.now + Nanos::from_ms(10);
    world.complete(slow);
    world.now = world.now + Nanos::from_ms(200);
    let long = world.insert(Op::Read, 64);
    let short = world.insert(Op::Read, 4);
    assert_eq!(world.dispatch_all(), [short, long]);
}

#[test]
fn next_page_is_filled_in_advance_and_the_current_one_is_served_first() {
    let mut world = World::new("adios,bq_refill_below_ratio=100");
    for op in [Op::Read, Op::Write] {
        world.teach(op);
    }
    let writes = [world.insert(Op::Write, 4), world.insert(Op::Write, 4)];
    assert_eq!(world.dispatch(), Some(writes[0]));
    // A read beside the current page's write waits for the page, however urgent.
    let read = world.insert(Op::Read, 4);
    assert_eq!(world.dispatch_all(), [writes[1], read]);
}

#[test]
fn after_the_deadline_only_later_requests_of_the_same_page_pass() {
    let mut seed = 7_u64;
    let mut draw = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let text = "adios,lat_target_write=20000000,lat_target_discard=50000000,\
                batch_size_limit_read=4,batch_size_limit_write=3";
    let mut world = World::new(text);
    let mut waiting = Vec::new();
    let mut passed_most = 0;
    for _ in 0..30_000 {
        while waiting.len() < 40 {
            let [kind, size] = [0; 2].map(|_| usize::try_from(draw(3)).unwrap());
            let op = [Op::Read, Op::Write, Op::Discard][kind];
            let id = world.insert(op, [4, 4, 64][size]);
            // No prediction is above the 4 ms at the device, for the base and for the rest.
            let deadline = world.now + Nanos::from_ms([2, 20, 50][kind] + 8);
            waiting.push((id, deadline, world.now, 0));
        }
        let id = world.dispatch().expect("something waits");
        let place = waiting.iter().position(|(other, ..)| *other == id).unwrap();
        let (_, _, inserted, passed) = waiting.remove(place);
        passed_most = passed_most.max(passed);
        for (_, deadline, _, passed) in &mut waiting {
            *passed += u32::from(inserted > *deadline);
        }
        world.now = world.now + Nanos(draw(4_000_000));
        world.complete(id);
    }
    assert!((1..=4 + 3 + 1).contains(&passed_most), "{passed_most}");
}
