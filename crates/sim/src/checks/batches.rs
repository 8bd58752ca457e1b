//! Length and time of batches (004-10, 004-11, 004-12).

use blockyard_engine::time::Nanos;
use blockyard_workload::random::Random;

use super::clients::{Client, Places, Ran, Setting};
use super::devices::{DISK_END, desktop_disk, even_device, write_through_disk};
use super::hand::{ASYNC_WRITE, Hand, READ, RT_READ};
use super::latency::{ms, ratio};
use super::{Check, Verdict, WorldResult};
use crate::device::Device;

/// Sectors of 128 KiB: the usual size of read-ahead and write-back in 2009.
const PIECE: u64 = 256;

pub(super) const BOTH_LIMITS: Check = Check {
    id: "004-10",
    about: "deadline-prio: 4 values each of fifo_batch, quantum, and time of a request; a real \
            time reader that asks whenever it can ends each batch of the others as early as it may",
    run: |seed| {
        // The elevator's limits, and the limits of the judgement.
        let seen = |limits: &[(u64, u64)], judged: Option<(u64, u64)>| {
            let mut random = Random::new(seed, 0);
            let mut batches = 0;
            let mut too_short = 0;
            let mut too_long = 0;
            for &(fifo_batch, quantum_ms) in limits {
                for request_us in [100, 1_000, 7_000, 20_000] {
                    let request = Nanos(request_us * (900 + random.below(200)));
                    let (fifo_judged, quantum_judged) = judged.unwrap_or((fifo_batch, quantum_ms));
                    let quantum = Nanos::from_ms(quantum_judged);
                    for (len, time) in batches_of(fifo_batch, quantum_ms, request) {
                        batches += 1;
                        too_short += u32::from(len < fifo_judged || time < quantum);
                        // One request earlier, both limits had been met too.
                        let one_less = len > fifo_judged && time - request >= quantum;
                        too_long += u32::from(one_less);
                    }
                }
            }
            (batches, too_short, too_long)
        };
        let lens = [1, 4, 16, 64];
        let grid: Vec<(u64, u64)> = lens
            .into_iter()
            .flat_map(|len| [0, 10, 40, 100].map(move |quantum_ms| (len, quantum_ms)))
            .collect();
        let (batches, too_short, too_long) = seen(&grid, None);
        let what = format!(
            "of {batches} batches {too_short} end before both limits are met, {too_long} later \
             than they could"
        );
        let ours = WorldResult { what, holds: batches > 0 && too_short == 0 && too_long == 0 };
        let control = |limits: (u64, u64)| {
            let (batches, too_short, _) = seen(&[limits], Some((16, 40)));
            let (len, quantum_ms) = limits;
            let what = format!(
                "fifo_batch={len},quantum={quantum_ms}: {too_short} of {batches} batches end \
                 before 16 requests and 40 ms"
            );
            WorldResult { what, holds: too_short == 0 }
        };
        Verdict::of(ours, &[control((16, 0)), control((1, 40))])
    },
};

/// Number of requests and time of each batch of an upward backlog of reads, on a device that takes
/// `request` for each. A real-time read follows each batch.
fn batches_of(fifo_batch: u64, quantum_ms: u64, request: Nanos) -> Vec<(u64, Nanos)> {
    const BATCHES: usize = 3;
    // Nothing is late: a batch for a late request would start elsewhere and run out of requests
    // further up.
    let elevator =
        format!("deadline-prio,sync_expire=600000,fifo_batch={fifo_batch},quantum={quantum_ms}");
    let longest = fifo_batch.max(quantum_ms * 1_000_000 / request.0 + 1);
    let mut hand = Hand::new(&elevator);
    for number in 0..(BATCHES as u64 + 1) * (longest + 1) {
        hand.ask(Nanos(0), READ, number * 16);
    }
    let real_time = DISK_END;
    let mut now = Nanos(0);
    let mut len = 0;
    let mut started = Nanos(0);
    let mut batches = Vec::new();
    while batches.len() < BATCHES {
        let sector = hand.next(now).expect("the backlog lasts for one batch more");
        if sector == real_time {
            batches.push((len, now - started));
            len = 0;
        } else {
            if len == 0 {
                started = now;
                hand.ask(now, RT_READ, real_time);
            }
            len += 1;
        }
        now = now + request;
    }
    batches
}

pub(super) const TIME_OF_A_BATCH: Check = Check {
    id: "004-11",
    about: "deadline on a disk: time of every 16 requests in a row, of one table scan and of 32 \
            clients who read pages of the same size anywhere, 30 s each",
    run: |seed| {
        // A database of that time with its own buffers: pages of 16 KiB, read on demand. Both loads
        // have equal request sizes, so only the positions differ. Tried: this world, and the same
        // with 128 KiB, which is printed and not judged.
        let disk = |sectors| extremes(desktop_disk, sectors, seed);
        let what = |(min, max)| format!("{} to {}, ratio {:.1}", ms(min), ms(max), ratio(max, min));
        let (min, max) = disk(32);
        let ours = WorldResult {
            what: format!("16 KiB: {}; 128 KiB: {}", what((min, max)), what(disk(PIECE))),
            holds: ratio(max, min) >= 5.0,
        };
        let (min, max) = extremes(|| even_device(Nanos::from_ms(5)), 32, seed);
        let control = WorldResult {
            what: format!("a non-rotational device: {}", what((min, max))),
            holds: ratio(max, min) >= 5.0,
        };
        Verdict::of(ours, &[control])
    },
};

/// The shortest and the longest time of 16 consecutive requests, over both loads.
fn extremes<D: Device>(device: impl Fn() -> D, sectors: u64, seed: u64) -> (Nanos, Nanos) {
    let scan = Client { sectors, ..Client::new(READ, Places::InOrder(0..DISK_END)) };
    let anywhere = Client::new(READ, Places::Random(0..DISK_END));
    let lookups = Client { sectors, depth: 32, ..anywhere };
    let mut times = Vec::new();
    for client in [scan, lookups] {
        let ran = run("deadline", &[client], device(), (30_000, seed));
        for batch in ran.started.chunks_exact(16) {
            let first = &ran.asked[batch[0]];
            let last = &ran.asked[batch[15]];
            let time = last.ended.zip(first.started).map(|(ended, started)| ended - started);
            times.extend(time);
        }
    }
    let extreme = |time: Option<&Nanos>| *time.expect("30 s are longer than 16 requests");
    (extreme(times.iter().min()), extreme(times.iter().max()))
}

pub(super) const GAIN_OF_A_QUANTUM: Check = Check {
    id: "004-12",
    about: "deadline-prio on a disk, three times 20 s: 8 readers in order, 8 random readers, \
            write-back in order; quantum=40 against the fifo_batch with the same longest read",
    run: |seed| {
        // The mail's tiotest, two of its phases at a time with a quarter of its threads each: files
        // of 80 MB one after the other, read in pieces of 128 KiB with one read ahead, or 4 KiB at
        // random; and a flusher with 64 waiting pieces. Tried: only this world, first with a run of
        // 30 s. The result was between 1.014 and 1.039, as if there were several steady states, so
        // that the seed decided; hence three runs. Now it is 1.020 to 1.036, and the claim holds
        // for 7 of the seeds 1 to 20.
        let mixed = Comparison::of(&mix(true), desktop_disk, seed).into_seen("mixed");
        // Random requests always take longer than the quantum per 16. The control needs a disk
        // without a cache: a disk with one takes 16 random writes in 2 ms, and there the quantum
        // gained 42 to 44 %.
        let random = Comparison::of(&mix(false), write_through_disk, seed);
        Verdict::of(mixed, &[random.into_seen("all random, no write cache")])
    },
};

/// Transferred bytes, and the longest read.
#[derive(Clone, Copy, Default)]
struct Work {
    sectors: u64,
    longest: Nanos,
}

impl Work {
    /// Sum over three runs of the clients.
    fn of<D: Device>(tunables: &str, clients: &[Client], device: fn() -> D, seed: u64) -> Self {
        let mut work = Self::default();
        for number in 0..RUNS {
            let seed = Random::new(seed, number).below(u64::MAX);
            let elevator = format!("deadline-prio,{tunables}");
            let ran = run(&elevator, clients, device(), (RUN_MS, seed));
            let ended = ran.asked.iter().filter(|asked| asked.ended.is_some());
            work.sectors += ended.map(|asked| clients[asked.client].sectors).sum::<u64>();
            let reads = ran.latencies(|client| clients[client].kind == READ);
            work.longest = work.longest.max(reads.last().copied().unwrap_or_default());
        }
        work
    }

    fn describe(&self) -> String {
        let seconds = (RUNS * RUN_MS) as f64 / 1e3;
        let mb = self.sectors as f64 * 512.0 / 1e6 / seconds;
        format!("{mb:.2} MB/s, longest read {}", ms(self.longest))
    }
}

const RUNS: u64 = 3;
const RUN_MS: u64 = 20_000;

/// With the quantum and the default `fifo_batch`; and without the quantum, with the `fifo_batch` of
/// the nearest longest read.
struct Comparison {
    with: Work,
    fifo_batch: u64,
    without: Work,
}

impl Comparison {
    fn of<D: Device>(clients: &[Client], device: fn() -> D, seed: u64) -> Self {
        let with = Work::of("quantum=40", clients, device, seed);
        let candidates = [4, 8, 16, 32, 64].map(|fifo_batch| {
            let tunables = format!("quantum=0,fifo_batch={fifo_batch}");
            (fifo_batch, Work::of(&tunables, clients, device, seed))
        });
        let distance = |work: &Work| work.longest.0.abs_diff(with.longest.0);
        let nearest = candidates.into_iter().min_by_key(|(_, work)| distance(work));
        let (fifo_batch, without) = nearest.expect("there are five");
        Self { with, fifo_batch, without }
    }

    fn into_seen(self, name: &str) -> WorldResult {
        let Self { with, fifo_batch, without } = self;
        let gain = with.sectors as f64 / without.sectors as f64;
        let equal = with.longest.0.abs_diff(without.longest.0) * 10 <= without.longest.0;
        let what = format!(
            "{name}: with quantum {}; without, fifo_batch={fifo_batch}, {}{}; ratio {gain:.4}",
            with.describe(),
            without.describe(),
            if equal { "" } else { " (not equal)" }
        );
        WorldResult { what, holds: equal && gain >= 1.03 }
    }
}

/// Readers, half of them sequential, and write-back; or all of them random.
fn mix(in_order: bool) -> Vec<Client> {
    /// Sectors of a file of 80 MB.
    const FILE: u64 = 80 << 11;
    let places = |file: u64, files: u64, in_order: bool| {
        let sectors = file * FILE..(file + files) * FILE;
        if in_order { Places::InOrder(sectors) } else { Places::Random(sectors) }
    };
    let piece = if in_order { PIECE } else { 8 };
    let mut clients: Vec<Client> = (0..16)
        .map(|file| {
            if file % 2 == 0 {
                let reader = Client::new(READ, places(file, 1, in_order));
                Client { sectors: piece, depth: 2, ..reader }
            } else {
                Client::new(READ, places(file, 1, false))
            }
        })
        .collect();
    let flusher = Client::new(ASYNC_WRITE, places(16, 16, in_order));
    clients.push(Client { sectors: piece, depth: 64, ..flusher });
    clients
}

/// Runs clients over a device, for a time in milliseconds and with a seed.
fn run<D: Device>(elevator: &str, clients: &[Client], device: D, (ms, seed): (u64, u64)) -> Ran {
    let until = Nanos::from_ms(ms);
    let setting = Setting { elevator, rotational: true, nr_requests: 128, clients, until, seed };
    setting.run(device)
}
