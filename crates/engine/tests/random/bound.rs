//! Bounds on requests that pass another one, stated by `noop` and `mq-deadline`, checked with
//! random requests on the elevator alone.

use std::collections::VecDeque;

use blockyard_engine::bio::{Bio, Op, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::elevator::{Elevator, ElevatorSpec, Facts};
use blockyard_engine::request::{Request, RequestId, Requests};
use blockyard_engine::time::Nanos;

use super::rng::Rng;

const FACTS: Facts = Facts { rotational: true, nr_requests: 64, queue_depth: 1 };

fn elevator(text: &str) -> Box<dyn Elevator> {
    let attached = ElevatorSpec::parse(text).expect("it is in the registry").attach(FACTS);
    attached.policy.expect("it orders requests")
}

fn random_request(rng: &mut Rng, requests: &mut Requests) -> RequestId {
    let op = rng.one_of(&[Op::Read, Op::Read, Op::Write]);
    let bio = Bio::new(op, Sector(rng.below(10_000)), Sector(8), BufRef::zeros(4096), 0);
    requests.insert(Request::new(&bio, 0))
}

#[test]
fn noop_passes_nobody() {
    let mut rng = Rng::new(1);
    let (mut policy, mut requests) = (elevator("noop"), Requests::default());
    let mut order = VecDeque::new();
    for _ in 0..20_000 {
        if order.len() < 60 && rng.percent(50) {
            let id = random_request(&mut rng, &mut requests);
            policy.insert(Nanos(0), &requests, id);
            order.push_back(id);
        } else {
            assert_eq!(policy.dispatch(Nanos(0), &requests), order.pop_front());
        }
    }
}

/// A waiting request of `mq-deadline`.
struct Waiting {
    id: RequestId,
    op: Op,
    deadline: Nanos,
    /// Once it is overdue: number of dispatched requests so far, and its bound.
    late: Option<(u64, u64)>,
}

#[test]
fn late_request_of_mq_deadline_is_passed_by_no_more_than_its_bound() {
    let mut rng = Rng::new(2);
    let (mut late, mut half) = (0, 0);
    for _ in 0..60 {
        let (batch, starved) = (rng.one_of(&[1, 2, 16]), rng.one_of(&[1, 2, 5]));
        let expiries = [1 + rng.below(40), 1 + rng.below(200)];
        let mut policy = elevator(&format!(
            "mq-deadline,fifo_batch={batch},writes_starved={starved},read_expire={},\
             write_expire={}",
            expiries[0], expiries[1]
        ));
        let (mut requests, mut now) = (Requests::default(), Nanos(0));
        let mut waiting: Vec<Waiting> = Vec::new();
        for dispatched in 0..3000 {
            now = now + Nanos(rng.below(2_000_000));
            while waiting.len() < 24 {
                let id = random_request(&mut rng, &mut requests);
                policy.insert(now, &requests, id);
                let op = requests[id].op;
                let deadline = now + Nanos::from_ms(expiries[usize::from(op == Op::Write)]);
                waiting.push(Waiting { id, op, deadline, late: None });
            }
            for place in 0..waiting.len() {
                let Waiting { op, deadline, late: None, .. } = waiting[place] else { continue };
                if deadline <= now {
                    let before = waiting[..place].iter().filter(|other| other.op == op).count();
                    let before = before as u64;
                    let others =
                        if op == Op::Write { (before + 1) * starved } else { 1 + before / starved };
                    let bound = batch * (1 + others + before);
                    waiting[place].late = Some((dispatched, bound));
                }
            }
            let id = policy.dispatch(now, &requests).expect("something waits");
            let place = waiting.iter().position(|other| other.id == id).expect("it waits");
            let gone = waiting.remove(place);
            if let Some((since, bound)) = gone.late {
                let passed = dispatched - since;
                assert!(passed <= bound, "{passed} passed a late {:?}, bound {bound}", gone.op);
                late += 1;
                half += u64::from(passed * 2 > bound);
            }
            policy.completed(now, &requests, id);
            requests.remove(id);
        }
    }
    // The bound is close to the observed values.
    assert!(late > 10_000 && half > 100, "{late} were late, {half} waited for half of the bound");
}
