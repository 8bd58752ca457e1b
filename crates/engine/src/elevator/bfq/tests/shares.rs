//! Shares of clients on a simple device that takes one request at a time.

use super::*;
use crate::priority::PriorityClass;

/// A client: its requests in flight or waiting, their size, and its pause after each.
#[derive(Clone, Copy)]
struct Client {
    priority: Priority,
    op: Op,
    depth: usize,
    sectors: u64,
    random: bool,
    pause: Nanos,
}

const READER: Client = Client {
    priority: Priority::best_effort(4),
    op: Op::Read,
    depth: 4,
    sectors: 64,
    random: false,
    pause: Nanos(0),
};

/// Runs the clients for 20 s. A request takes 0.1 ms, and a microsecond for each sector; after a
/// seek, 5 ms more. Returns the sectors of each client in the last 15 s, and its longest wait.
fn run(tunables: &[(&str, u64)], clients: &[Client]) -> Vec<(u64, Nanos)> {
    let mut policy = bfq(tunables, true);
    let mut requests = Requests::default();
    let mut random = Random(1);
    let mut now = Nanos(0);
    let mut places: Vec<u64> = (0..clients.len() as u64).map(|client| client << 32).collect();
    // Times at which clients submit.
    let mut due: Vec<(Nanos, usize)> = (0..clients.len())
        .flat_map(|client| core::iter::repeat_n((Nanos(0), client), clients[client].depth))
        .collect();
    let mut since = BTreeMap::new();
    let mut results = alloc::vec![(0, Nanos(0)); clients.len()];
    let mut head = 0;
    let mut busy: Option<(Nanos, RequestId)> = None;
    while now < Nanos::from_ms(20_000) {
        let ready = |(at, _): &(Nanos, usize)| *at <= now;
        while let Some(place) = due.iter().position(ready) {
            let (_, number) = due.remove(place);
            let client = clients[number];
            let place = &mut places[number];
            let sector = if client.random {
                (number as u64) << 32 | random.below(1 << 24) << 3
            } else {
                *place
            };
            *place += client.sectors;
            let mut bio =
                Bio::new(client.op, Sector(sector), Sector(client.sectors), BufRef::NONE, 0);
            let priority = client.priority;
            let io_context = IoContext(number as u32);
            bio.origin = Origin { io_context, priority, ..Origin::default() };
            let id = requests.insert(Request::new(&bio, 0));
            policy.insert(now, &requests, id);
            since.insert(id, now);
        }
        if busy.is_none()
            && let Some(id) = policy.dispatch(now, &requests)
        {
            let rq = &requests[id];
            let seek = if rq.sector.0.abs_diff(head) > 800 { 5_000_000 } else { 0 };
            head = rq.end().0;
            busy = Some((now + Nanos(100_000 + rq.len.0 * 1000 + seek), id));
            let result = &mut results[rq.origin.io_context.0 as usize];
            result.1 = result.1.max(now.since(since[&id]));
        }
        let wakes = match policy.work(now) {
            Work::At(at) if busy.is_none() => Some(at),
            _ => None,
        };
        let ends = busy.map(|(at, _)| at);
        let arrives = due.iter().map(|(at, _)| *at).min();
        let next = [wakes, ends, arrives].into_iter().flatten().min().unwrap();
        now = next.max(now);
        if let Some((_, id)) = busy.take_if(|(at, _)| *at <= now) {
            policy.completed(now, &requests, id);
            let rq = requests.remove(id);
            let number = rq.origin.io_context.0 as usize;
            if now > Nanos::from_ms(5000) {
                results[number].0 += rq.len.0;
            }
            due.push((now + clients[number].pause, number));
        }
    }
    results
}

const FAIR: &[(&str, u64)] = &[("low_latency", 0)];

fn ratio_percent(results: &[(u64, Nanos)]) -> u64 {
    results[0].0 * 100 / results[1].0
}

#[test]
fn equal_clients_get_equal_sectors_whatever_their_sizes() {
    let small = Client { sectors: 16, ..READER };
    let results = run(FAIR, &[READER, small]);
    assert!((97..=103).contains(&ratio_percent(&results)), "{results:?}");
}

#[test]
fn sectors_are_in_proportion_to_the_levels() {
    let urgent = Client { priority: Priority::best_effort(0), ..READER };
    let results = run(FAIR, &[urgent, READER]);
    assert!((194..=206).contains(&ratio_percent(&results)), "{results:?}");
}

/// A client with one request at a time has an empty queue after each. Only idling keeps its share.
#[test]
fn client_with_one_request_at_a_time_keeps_its_share_by_idling() {
    let pause = Nanos(200_000);
    let urgent = Client { priority: Priority::best_effort(0), depth: 1, pause, ..READER };
    let results = run(FAIR, &[urgent, READER]);
    assert!(ratio_percent(&results) > 150, "{results:?}");
    let without = run(&[("low_latency", 0), ("slice_idle", 0)], &[urgent, READER]);
    assert!(ratio_percent(&without) < 100, "{without:?}");
}

/// A random reader gets its share of the time, not of the sectors: that would be most of the time.
#[test]
fn random_reader_is_charged_for_time() {
    let seeker = Client { random: true, sectors: 8, depth: 1, ..READER };
    let results = run(FAIR, &[READER, seeker]);
    assert!(results[0].0 > 20 * results[1].0, "{results:?}");
    assert!(results[1].0 > 1000, "{results:?}");
}

/// Asynchronous sectors count three times.
#[test]
fn writeback_gets_a_third_of_a_readers_sectors() {
    let writer = Client { op: Op::Write, depth: 8, ..READER };
    let results = run(FAIR, &[READER, writer]);
    assert!((280..=330).contains(&ratio_percent(&results)), "{results:?}");
}

#[test]
fn idle_class_gets_little_and_is_not_starved() {
    let idle = Client { priority: Priority::IDLE, ..READER };
    let results = run(FAIR, &[READER, idle]);
    assert_eq!(idle.priority.class, PriorityClass::Idle);
    assert!(results[1].0 > 0 && results[0].0 > 20 * results[1].0, "{results:?}");
    assert!(results[1].1 < Nanos::from_ms(1500), "{results:?}");
}

/// A client that reads little after a pause of 3 s waits less with `low_latency`, beside four
/// streams.
#[test]
fn interactive_client_waits_less_under_low_latency() {
    let pause = Nanos::from_ms(3000);
    let interactive = Client { depth: 1, sectors: 8, random: true, pause, ..READER };
    let clients = [interactive, READER, READER, READER, READER];
    let with = run(&[], &clients)[0].1;
    let without = run(FAIR, &clients)[0].1;
    assert!(with < Nanos::from_ms(20) && without > Nanos::from_ms(50), "{with:?}, {without:?}");
}

/// A player reads 64 KiB every 40 ms. Its batches go ahead of streams that began before it, and
/// the streams lose little by it.
#[test]
fn player_is_served_at_once_under_low_latency() {
    let pause = Nanos::from_ms(40);
    let player = Client { depth: 1, sectors: 128, pause, ..READER };
    let clients = [player, READER, READER, READER, READER];
    let with = run(&[], &clients);
    let without = run(FAIR, &clients);
    assert!(with[0].0 > 2 * without[0].0, "{with:?}, {without:?}");
}
