//! Starvation of levels (004-4, 004-7).
//!
//! All batches have one request here (`fifo_batch=1,quantum=0`), so that each dispatch is a batch
//! and batches can be counted from outside.

use blockyard_engine::bio::Op;
use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;

use super::clients::{Client, Places, Ran, Setting};
use super::devices::{DISK_END, even_device};
use super::hand::{ASYNC_WRITE, Kind, READ, RT_READ, SYNC_WRITE};
use super::{Check, Verdict, WorldResult, classes};

pub(super) const REAL_TIME_STARVES: Check = Check {
    id: "004-4",
    about: "deadline-prio: four real time readers without a pause for 20 s, and one client of \
            every other kind that comes a little later; 5 ms a request",
    run: |seed| {
        // The class of the readers, and the elevator.
        let seen = |elevator: &str, readers: Kind| {
            let others: Vec<Kind> = Kind::all().filter(|kind| *kind != RT_READ).collect();
            let mut clients = vec![Client::new(readers, Places::Random(0..DISK_END)); 4];
            clients.extend(others.iter().map(|kind| {
                let late = Client::new(*kind, Places::Random(0..DISK_END));
                Client { from: Nanos::from_ms(1), ..late }
            }));
            let ran = run(elevator, &clients, Nanos::from_ms(20_000), seed);
            let all = ran.started.len();
            let of_others = ran.started.iter().filter(|n| ran.asked[**n].client >= 4).count();
            let own_ms = classes::deadline_ms(elevator, readers);
            let shortest_ms = others.iter().map(|kind| classes::deadline_ms(elevator, *kind)).min();
            let shortest = shortest_ms.is_some_and(|shortest_ms| own_ms < shortest_ms);
            let what = format!(
                "{elevator}, {} without a pause: {of_others} of {all} dispatches are others'; late \
                 after {own_ms} ms, others after {} ms or more",
                readers.name(),
                shortest_ms.unwrap_or(0)
            );
            WorldResult { what, holds: of_others == 0 && shortest }
        };
        let controls = [seen("deadline-prio", READ), seen("deadline", RT_READ)];
        Verdict::of(seen("deadline-prio", RT_READ), &controls)
    },
};

pub(super) const LOWEST_IS_PROTECTED: Check = Check {
    id: "004-7",
    about: "deadline-prio: 16 readers and 4 fsyncs without a pause, and behind them 64 \
            asynchronous writes and an idle reader, late after 500 ms; 5 ms a request",
    run: |seed| {
        let prio = |bound, async_starved: u64| {
            let tunables = format!("async_expire=500,async_starved={async_starved}");
            behind_others(&format!("deadline-prio,{tunables}"), classes::is_lowest, bound, seed)
        };
        // `deadline` protects writes like the levels protect the lowest level.
        let is_write = |kind: Kind| kind.op == Op::Write;
        let before = "deadline,write_expire=500,writes_starved=2";
        let ours = [prio(2, 1), prio(3, 2), prio(6, 5), behind_others(before, is_write, 3, seed)];
        let what = ours.each_ref().map(|seen| seen.what.as_str()).join("; ");
        let holds = ours.iter().all(|seen| seen.holds);
        // Another protection: the bound of the default does not hold.
        Verdict::of(WorldResult { what, holds }, &[prio(3, 100)])
    },
};

/// The longest wait, in batches, of a late request of the lowest level once it is the oldest there,
/// including its own.
fn behind_others(
    elevator: &str,
    is_lowest: fn(Kind) -> bool,
    bound: usize,
    seed: u64,
) -> WorldResult {
    let anywhere = Places::Random(0..DISK_END);
    let idle_read = Kind { priority: Priority::IDLE, ..READ };
    let kinds = [(READ, 16), (SYNC_WRITE, 4), (ASYNC_WRITE, 64), (idle_read, 1)];
    // Not all at once, so that no two kinds have requests of equal age.
    let clients: Vec<Client> = kinds
        .iter()
        .zip(0..)
        .map(|((kind, depth), ms)| {
            let client = Client::new(*kind, anywhere.clone());
            Client { depth: *depth, from: Nanos::from_ms(ms), ..client }
        })
        .collect();
    let ran = run(elevator, &clients, Nanos::from_ms(20_000), seed);
    let expire = Nanos::from_ms(500);
    let mut position = vec![None; ran.asked.len()];
    for (place, number) in ran.started.iter().enumerate() {
        position[*number] = Some(place);
    }
    let mut late = 0;
    let mut most = 0;
    let mut oldest_from = 0;
    let lowest = (0..ran.asked.len()).filter(|n| is_lowest(clients[ran.asked[*n].client].kind));
    for number in lowest {
        let deadline = ran.asked[number].asked + expire;
        let past = ran.started.partition_point(|n| ran.asked[*n].started < Some(deadline));
        // Without a position it still waits at the end.
        let behind = position[number].map_or(ran.started.len(), |place| place + 1);
        if past < behind {
            late += 1;
            most = most.max(behind - past.max(oldest_from));
        }
        if position[number].is_none() {
            break;
        }
        oldest_from = oldest_from.max(behind);
    }
    let what =
        format!("{elevator}: none of {late} late requests waits for more than {most} batches");
    WorldResult { what, holds: late > 0 && most <= bound }
}

/// Runs clients over a device with constant times, in batches of one request.
fn run(elevator: &str, clients: &[Client], until: Nanos, seed: u64) -> Ran {
    let elevator = &classes::in_batches_of_one(elevator);
    let setting = Setting { elevator, rotational: true, nr_requests: 128, clients, until, seed };
    setting.run(even_device(Nanos::from_ms(5)))
}
