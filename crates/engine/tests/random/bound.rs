//! Bounds on requests that pass another one, stated by `noop`, `mq-deadline` and `kyber`, checked
//! with random requests on the elevator alone.

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
    let mut policy = elevator("noop");
    let mut requests = Requests::default();
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
    let mut late = 0;
    let mut half = 0;
    for _ in 0..60 {
        let batch = rng.one_of(&[1, 2, 16]);
        let starved = rng.one_of(&[1, 2, 5]);
        let expiries = [1 + rng.below(40), 1 + rng.below(200)];
        let mut policy = elevator(&format!(
            "mq-deadline,fifo_batch={batch},writes_starved={starved},read_expire={},\
             write_expire={}",
            expiries[0], expiries[1]
        ));
        let mut requests = Requests::default();
        let mut now = Nanos(0);
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

/// A waiting request of `kyber`.
struct Ready {
    id: RequestId,
    domain: usize,
    /// Number of requests of other domains that have passed it.
    passed: u64,
    bound: u64,
}

#[test]
fn request_of_kyber_is_passed_by_no_more_of_other_domains_than_its_bound() {
    const OPS: [Op; 4] = [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes];
    const BATCHES: [u64; 4] = [16, 8, 1, 1];
    let mut rng = Rng::new(3);
    let mut policy = elevator("kyber");
    let mut requests = Requests::default();
    let mut waiting: Vec<Ready> = Vec::new();
    let mut half = 0;
    for _ in 0..60_000 {
        while waiting.len() < 48 {
            let draw = rng.below(26);
            // In the proportion of the batches, so that all domains stay busy.
            let domain = [0, 16, 24, 25].iter().filter(|from| **from <= draw).count() - 1;
            let sector = Sector(rng.below(10_000));
            let bio = Bio::new(OPS[domain], sector, Sector(8), BufRef::zeros(4096), 0);
            let id = requests.insert(Request::new(&bio, 0));
            policy.insert(Nanos(0), &requests, id);
            let ahead = waiting.iter().filter(|other| other.domain == domain).count() as u64;
            let others = BATCHES.iter().sum::<u64>() - BATCHES[domain];
            let bound = (ahead / BATCHES[domain] + 1) * others;
            waiting.push(Ready { id, domain, passed: 0, bound });
        }
        let id = policy.dispatch(Nanos(0), &requests).expect("something waits");
        let place = waiting.iter().position(|other| other.id == id).expect("it waits");
        let Ready { domain, passed, bound, .. } = waiting.remove(place);
        assert!(passed <= bound, "{passed} passed {:?}, bound {bound}", OPS[domain]);
        half += u64::from(passed * 2 > bound);
        let others = waiting.iter_mut().filter(|other| other.domain != domain);
        others.for_each(|other| other.passed += 1);
        policy.completed(Nanos(0), &requests, id);
        requests.remove(id);
    }
    assert!(half > 1000, "{half} waited for half of the bound");
}
