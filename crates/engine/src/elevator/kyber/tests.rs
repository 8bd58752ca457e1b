//! Tokens follow latencies; rounds hold their bound.

use super::super::ElevatorSpec;
use super::*;
use crate::bio::{Bio, Sector};
use crate::buf::BufRef;
use crate::request::Request;

const FACTS: Facts = Facts { rotational: false, nr_requests: 1024, queue_depth: 1024 };

struct World {
    policy: Box<dyn Elevator>,
    requests: Requests,
    now: Nanos,
    next: u64,
}

impl World {
    fn new() -> Self {
        let policy = ElevatorSpec::of(&KYBER).attach(FACTS).policy.unwrap();
        Self { policy, requests: Requests::default(), now: Nanos(0), next: 0 }
    }

    fn insert(&mut self, op: Op) -> RequestId {
        self.next += 100;
        let bio = Bio::new(op, Sector(self.next), Sector(8), BufRef::NONE, 0);
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

    /// Serves requests one at a time, each with this time at the device.
    fn serve(&mut self, op: Op, count: u32, device_us: u64) {
        for _ in 0..count {
            let id = self.insert(op);
            assert_eq!(self.dispatch(), Some(id));
            self.now = self.now + Nanos(device_us * 1000);
            self.complete(id);
        }
    }

    /// The number of free tokens of an otherwise idle domain.
    fn tokens(&mut self, op: Op) -> usize {
        let all: Vec<_> = (0..300).map(|_| self.insert(op)).collect();
        let taken: Vec<_> = core::iter::from_fn(|| self.dispatch()).collect();
        let work = if taken.len() < all.len() { Work::AfterCompletion } else { Work::None };
        assert_eq!(self.policy.work(self.now), work);
        let tokens = taken.len();
        // Their latency is not of interest: they end at once, and so does the rest.
        let mut at_device = taken;
        while let Some(id) = at_device.pop().or_else(|| self.dispatch()) {
            self.complete(id);
        }
        tokens
    }
}

#[test]
fn domains_start_with_all_of_their_tokens() {
    let mut world = World::new();
    let ops = [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes];
    assert_eq!(ops.map(|op| world.tokens(op)), [256, 128, 64, 16]);
}

#[test]
fn congested_device_takes_tokens_from_domains_that_do_well() {
    let mut world = World::new();
    // Reads at 0.3 ms are in the first quarter of 2 ms, writes at 20 ms beyond 10 ms.
    world.serve(Op::Read, 500, 300);
    world.serve(Op::Write, 500, 20_000);
    assert_eq!(world.tokens(Op::Read), 256 / 4);
    assert_eq!(world.tokens(Op::Write), 128, "no more than all");
}

#[test]
fn domain_beyond_its_target_gets_tokens_back_and_others_keep_theirs() {
    let mut world = World::new();
    world.serve(Op::Read, 500, 300);
    world.serve(Op::Write, 500, 20_000);
    assert_eq!(world.tokens(Op::Read), 64);
    // The times at the device were good. The total time was 3 ms, the sixth of eight buckets.
    for _ in 0..510 {
        let id = world.insert(Op::Read);
        world.now = world.now + Nanos::from_ms(3);
        assert_eq!(world.dispatch(), Some(id));
        world.complete(id);
    }
    // 300 short requests of the counting above belong to the same measurement.
    let after = world.tokens(Op::Read);
    assert!(after > 64, "{after}");
    assert_eq!(world.tokens(Op::Write), 128);
}

#[test]
fn good_latencies_take_no_tokens_without_congestion() {
    let mut world = World::new();
    world.serve(Op::Read, 2000, 300);
    world.serve(Op::Write, 2000, 300);
    assert_eq!((world.tokens(Op::Read), world.tokens(Op::Write)), (256, 128));
}

#[test]
fn fewer_than_500_samples_of_a_busy_domain_change_nothing_even_after_seconds() {
    let mut world = World::new();
    world.serve(Op::Write, 250, 20_000);
    world.serve(Op::Write, 249, 100);
    assert_eq!(world.tokens(Op::Write), 128);
}

#[test]
fn domain_that_pauses_is_judged_by_fewer_samples() {
    let mut world = World::new();
    world.serve(Op::Read, 400, 300);
    world.serve(Op::Write, 499, 20_000);
    assert_eq!(world.tokens(Op::Read), 64);
}

#[test]
fn domain_without_tokens_does_not_stop_the_others() {
    let mut world = World::new();
    (0..17).for_each(|_| _ = world.insert(Op::WriteZeroes));
    let busy: Vec<_> = core::iter::from_fn(|| world.dispatch()).collect();
    assert_eq!((busy.len(), world.policy.work(world.now)), (16, Work::AfterCompletion));
    let read = world.insert(Op::Read);
    assert_eq!((world.policy.work(world.now), world.dispatch()), (Work::Now, Some(read)));
    world.policy.requeued(world.now, &world.requests, busy[0]);
    assert_eq!(world.dispatch(), None, "a refused request keeps its token");
    world.complete(busy[0]);
    assert!(world.dispatch().is_some());
}

#[test]
fn asynchronous_requests_leave_a_quarter_of_the_queue() {
    for (nr_requests, limit) in [(128, 96), (1, 1)] {
        let attached = ElevatorSpec::of(&KYBER).attach(Facts { nr_requests, ..FACTS });
        assert_eq!(attached.async_depth, Some(limit));
    }
}
