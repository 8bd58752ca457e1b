//! Numbers behind the decisions, and effects over many requests. The decisions themselves are in
//! the golden traces.

mod random;

use super::*;
use crate::bio::{Bio, Op, Origin};
use crate::buf::BufRef;
use crate::elevator::Facts;
use crate::request::Request;

/// A policy with these tunables and defaults for the others.
fn cfq(tunables: &[(&str, u64)], rotational: bool) -> Cfq {
    let value = |name: &str| {
        let given = tunables.iter().find(|(given, _)| *given == name);
        let default = || TUNABLES.iter().find(|tunable| tunable.name == name).unwrap().default;
        given.map_or_else(default, |(_, value)| *value)
    };
    let facts = Facts { rotational, nr_requests: 128, queue_depth: 32 };
    Cfq::new(Settings::new(value, facts))
}

struct Bench {
    cfq: Cfq,
    requests: Requests,
    now: Nanos,
}

impl Bench {
    fn new(tunables: &[(&str, u64)], rotational: bool) -> Self {
        let requests = Requests::default();
        let now = Nanos(0);
        Self { cfq: cfq(tunables, rotational), requests, now }
    }

    fn submit(&mut self, op: Op, io_context: u32, sector: u64) {
        let mut bio = Bio::new(op, Sector(sector), Sector(8), BufRef::NONE, 0);
        bio.origin = Origin { io_context: IoContext(io_context), ..Origin::default() };
        self.insert(bio);
    }

    fn insert(&mut self, bio: Bio) {
        let id = self.requests.insert(Request::new(&bio, 0));
        self.cfq.insert(self.now, &self.requests, id);
    }

    fn dispatch(&mut self) -> Option<RequestId> {
        self.cfq.dispatch(self.now, &self.requests)
    }

    fn complete(&mut self, id: RequestId) {
        self.cfq.completed(self.now, &self.requests, id);
        self.requests.remove(id);
    }

    fn wait_ms(&mut self, ms: u64) {
        self.now = self.now + Nanos::from_ms(ms);
    }
}

#[test]
fn slices_and_quotas_go_by_level() {
    let settings = cfq(&[], true).settings;
    let slices = |sync| [0, 4, 7].map(|level| settings.slice(sync, level).0 / 1_000_000);
    assert_eq!((slices(true), slices(false)), ([180, 100, 40], [72, 40, 16]));
    assert_eq!([0, 4, 7].map(|level| settings.async_quota(level)), [32, 16, 4]);
}

/// The slice of a queue shrinks with the number of queues of its class, down to 2 · `slice_idle`.
#[test]
fn slice_under_low_latency_has_a_floor() {
    let mut bench = Bench::new(&[], true);
    for io_context in 0..100 {
        bench.submit(Op::Read, io_context, u64::from(io_context) * 1_000_000);
    }
    let id = bench.dispatch().unwrap();
    bench.complete(id);
    let slice = bench.cfq.active.as_ref().unwrap();
    assert_eq!(slice.end, Some(Nanos::from_ms(16)));
}

/// One request at a time gives no evidence. Under load, a device that never has more than one in
/// flight is recognised after 50 completions, and idling pays again.
#[test]
fn device_without_a_queue_is_found_out_and_idled_for() {
    for (depth, expected) in [(1, Some(false)), (8, Some(true))] {
        let mut bench = Bench::new(&[("slice_idle", 0), ("low_latency", 0)], false);
        let mut in_flight = alloc::collections::VecDeque::new();
        for round in 0..80 {
            (0..2).for_each(|place| bench.submit(Op::Write, 1, (round * 2 + place) * 1000));
            while in_flight.len() < depth {
                let Some(id) = bench.dispatch() else { break };
                in_flight.push_back(id);
            }
            bench.complete(in_flight.pop_front().unwrap());
            bench.wait_ms(1);
        }
        assert_eq!(bench.cfq.hardware.takes_several(), expected, "depth {depth}");
    }
}

/// A write of `fsync` says that its submitter sends no other: in 2.6.30 the end of the write, later
/// its insertion makes idling pointless.
#[test]
fn write_with_noidle_is_not_idled_after() {
    for service_trees in [0, 1] {
        for noidle in [false, true] {
            let mut bench = Bench::new(&[("service_trees", service_trees)], true);
            bench.insert(Bio {
                origin: Origin { sync: true, noidle, ..Origin::default() },
                ..Bio::new(Op::Write, Sector(1000), Sector(8), BufRef::NONE, 0)
            });
            bench.submit(Op::Read, 2, 1_000_000);
            let id = bench.dispatch().unwrap();
            assert_eq!(bench.requests[id].op, Op::Write);
            bench.complete(id);
            assert_eq!(bench.dispatch().is_some(), noidle, "service_trees={service_trees}");
        }
    }
}

/// Eight clients with random reads, each in its own area, with 1 ms think time; 10 ms a request.
/// Returns the longest run of one client's requests and the longest wait, after the device is
/// recognised.
fn random_readers(tunables: &[(&str, u64)], depth: usize) -> (usize, u64) {
    let mut bench = Bench::new(tunables, true);
    let mut random = 1_u64;
    let mut place = move |client: u32| {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        u64::from(client) * 100_000_000 + (random >> 40) // 8 GiB wide
    };
    let mut since = [Nanos(0); 8];
    (0..8).for_each(|client| bench.submit(Op::Read, client, place(client)));
    let mut in_flight = alloc::collections::VecDeque::new();
    let mut served = Vec::new();
    let mut wait_ms = 0;
    for round in 0..2000 {
        while in_flight.len() < depth {
            let Some(id) = bench.dispatch() else { break };
            in_flight.push_back(id);
        }
        bench.wait_ms(10);
        let id = in_flight.pop_front().unwrap();
        let client = bench.requests[id].origin.io_context.0;
        bench.complete(id);
        if round >= 1000 {
            wait_ms = wait_ms.max((bench.now - since[client as usize]).0 / 1_000_000);
            served.push(client);
        }
        in_flight.extend(bench.dispatch());
        bench.wait_ms(1);
        since[client as usize] = bench.now;
        bench.submit(Op::Read, client, place(client));
    }
    let longest_run = served.chunk_by(|a, b| a == b).map(<[u32]>::len).max();
    (longest_run.unwrap(), wait_ms)
}

/// In 2.6.30 a random reader has the disk for its slice on a device without queueing. On a device
/// with queueing the readers alternate, as always since service trees.
#[test]
fn random_reader_keeps_a_simple_disk_for_a_slice_in_2_6_30() {
    let old = [("service_trees", 0), ("low_latency", 0), ("starved_after", 0)];
    assert_eq!(random_readers(&old, 1), (10, 780));
    assert_eq!(random_readers(&old, 8).0, 1);
    assert_eq!(random_readers(&[], 1).0, 1);
}

/// Overlapping synchronous requests delay writeback without limit, unless `starved_after` limits
/// that.
#[test]
fn writeback_passed_by_preemption_gets_its_turn_only_with_a_limit() {
    let wait_of_writeback_ms = |starved_after| {
        let tunables = [("starved_after", starved_after), ("slice_idle", 0)];
        let mut bench = Bench::new(&tunables, true);
        bench.submit(Op::Read, 0, 0);
        let mut last = bench.dispatch().unwrap();
        bench.submit(Op::Write, 99, 50_000_000);
        for step in 1..2000_u32 {
            assert_eq!(bench.dispatch(), None, "writeback has its turn, and waits");
            bench.wait_ms(4);
            bench.submit(Op::Read, step, u64::from(step % 7) * 1_000_000);
            let next = bench.dispatch();
            bench.wait_ms(1);
            bench.complete(last);
            let next = match next {
                Some(next) => next,
                None => bench.dispatch().unwrap(),
            };
            if bench.requests[next].op == Op::Write {
                return Some(bench.now.0 / 1_000_000);
            }
            last = next;
            bench.cfq.exit_context(bench.now, &bench.requests, IoContext(step - 1));
        }
        None
    };
    assert_eq!(wait_of_writeback_ms(0), None);
    let limited = wait_of_writeback_ms(500).unwrap();
    assert!((400..700).contains(&limited), "{limited} ms");
}

/// Exited submitters leave no queues behind, even while queues are being merged.
#[test]
fn queues_go_with_their_submitters() {
    let mut bench = Bench::new(&[], true);
    for first in [0, 2, 4] {
        bench.submit(Op::Read, first, 0);
        bench.submit(Op::Read, first + 1, 8);
        while let Some(id) = bench.dispatch() {
            bench.complete(id);
        }
        // The first submitter is to follow into the second's queue; then only one of them does.
        if first == 2 {
            bench.submit(Op::Read, first, 16);
        }
        for io_context in [first + 1, first] {
            bench.cfq.exit_context(bench.now, &bench.requests, IoContext(io_context));
        }
        while let Some(id) = bench.dispatch() {
            bench.complete(id);
        }
        assert_eq!((bench.cfq.queues.len(), bench.cfq.service.busy), (0, 0));
        bench.wait_ms(100);
    }
}

/// Number of writeback requests, always with eight waiting, that end in 20 s. Two clients request
/// one block at a time, 100 and 500 us after the last one. The device takes one request at a time,
/// for 0.5 ms.
fn writeback_beside_two_readers(tunables: &[(&str, u64)]) -> u32 {
    const PAUSES_US: [u64; 2] = [100, 500];
    const STREAM: u32 = 2;
    let us = |count| Nanos(count * 1000);
    let mut bench = Bench::new(tunables, false);
    let mut asks_at = [Some(Nanos(0)); 2];
    let mut streamed = 0;
    let mut stream_ended = 0;
    let mut asked = 0;
    let mut in_flight: Option<(RequestId, Nanos)> = None;
    while bench.now < Nanos::from_ms(20_000) {
        for (client, at) in (0..).zip(&mut asks_at) {
            if at.take_if(|at| *at <= bench.now).is_some() {
                asked += 1;
                bench.submit(Op::Read, client, asked * 7_919_123 % 100_000_000);
            }
        }
        while streamed < stream_ended + 8 {
            streamed += 1;
            bench.submit(Op::Write, STREAM, 200_000_000 + u64::from(streamed) * 256);
        }
        if in_flight.is_none() {
            in_flight = bench.dispatch().map(|id| (id, bench.now + us(500)));
        }
        bench.now = bench.now + us(50);
        let Some((id, _)) = in_flight.take_if(|(_, end)| *end <= bench.now) else { continue };
        let client = bench.requests[id].origin.io_context.0;
        bench.complete(id);
        if client == STREAM {
            stream_ended += 1;
        } else {
            let client = client as usize;
            asks_at[client] = Some(bench.now + us(PAUSES_US[client]));
        }
    }
    stream_ended
}

/// Each synchronous request preempts writeback, which loses its slice after a request or two. So
/// writeback gets a few of 2000 requests a second; neither its quota nor `low_latency` is the
/// reason.
#[test]
fn writeback_beside_clients_who_keep_asking_gets_a_request_a_turn() {
    let ended = writeback_beside_two_readers(&[]);
    assert!((20..100).contains(&ended), "{ended} in 20 s");
    assert_eq!(writeback_beside_two_readers(&[("slice_async_rq", 1000)]), ended);
    assert_eq!(writeback_beside_two_readers(&[("low_latency", 0)]), ended);
}
