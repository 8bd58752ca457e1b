//! Effects of the levels, and of reads by age, for readers (004-3, 004-8, 004-9).

use std::ops::Range;

use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;

use super::clients::{Client, Places, Ran, Setting};
use super::devices::{CARD_END, desktop_disk, sd_card};
use super::hand::{ASYNC_WRITE, Kind, READ, RT_READ};
use super::{Check, Verdict, WorldResult};

/// Sectors of a tiotest file in the mail: 80 MB.
const FILE: u64 = 80 << 11;

pub(super) const REAL_TIME_READERS: Check = Check {
    id: "004-3",
    about: "deadline-prio on a disk: 32 random readers in a file of 80 MB each, 4 of them real \
            time and thinking for 20 ms, for 60 s",
    run: |seed| {
        // 32 readers in files of 80 MB one after the other are the mail's tiotest. Four real-time
        // readers with few reads are ours: the elevator's page recommends real time for clients
        // that read little. Tried: only this world.
        let seen = |elevator: &str| {
            let clients: Vec<Client> = (0..32)
                .map(|file| {
                    let own_file = Places::Random(file * FILE..(file + 1) * FILE);
                    if file % 8 == 0 {
                        let think = Nanos::from_ms(20);
                        Client { think, ..Client::new(RT_READ, own_file) }
                    } else {
                        Client::new(READ, own_file)
                    }
                })
                .collect();
            let until = Nanos::from_ms(60_000);
            let ran = setting(elevator, true, &clients, until, seed).run(desktop_disk());
            let [rt, be] = [true, false].map(|rt| p99(&ran.latencies(|n| (n % 8 == 0) == rt)));
            let ratio = ratio(rt, be);
            let what =
                format!("{elevator}: p99 of a read {} rt, {} be, ratio {ratio:.2}", ms(rt), ms(be));
            WorldResult { what, holds: ratio <= 0.5 }
        };
        Verdict::of(seen("deadline-prio"), &[seen("deadline")])
    },
};

pub(super) const READS_BY_AGE: Check = Check {
    id: "004-8",
    about: "deadline-prio on a card that does not seek: 8 random readers of each class that think \
            and 4 writers; in which order the reads of each level are given to it",
    run: |seed| {
        let anywhere = Places::Random(0..CARD_END);
        let think = Nanos::from_ms(20);
        let kinds = [RT_READ, READ, Kind { priority: Priority::IDLE, ..READ }];
        let mut clients: Vec<Client> = kinds
            .iter()
            .map(|kind| Client { depth: 8, think, ..Client::new(*kind, anywhere.clone()) })
            .collect();
        // Sequential, because otherwise the card would always be busy with its erase blocks.
        let writer = Client::new(ASYNC_WRITE, Places::InOrder(0..CARD_END));
        clients.push(Client { depth: 4, think, ..writer });
        let seen = |elevator: &str, rotational: bool| {
            let until = Nanos::from_ms(10_000);
            let ran = setting(elevator, rotational, &clients, until, seed).run(sd_card());
            let mut reads = 0;
            let mut passed = 0;
            for level in 0..kinds.len() {
                let of_level = ran.started.iter().filter(|n| ran.asked[**n].client == level);
                let order: Vec<usize> = of_level.copied().collect();
                reads += order.len();
                passed += order.windows(2).filter(|pair| pair[0] > pair[1]).count();
            }
            let told = if rotational { "rotational" } else { "non-rotational" };
            let what = format!(
                "{elevator}, told that the device {told}: {passed} of {reads} reads come after a \
                 younger one of their level"
            );
            WorldResult { what, holds: reads > 0 && passed == 0 }
        };
        let controls = [seen("deadline-prio", true), seen("deadline", false)];
        Verdict::of(seen("deadline-prio", false), &controls)
    },
};

pub(super) const AGE_FOR_READERS: Check = Check {
    id: "004-9",
    about: "an SD card with 16 random readers in interleaved files of 80 MB each for 30 s: reads \
            by age against reads by sector",
    run: |seed| {
        // The mail's card had tiotest with 16 threads and 80 MB each. Between two reads of 4 KiB a
        // thread spends a system call: 0.1 ms (ours). The mail's file system, nilfs2, writes a log,
        // in which the files of 16 concurrent writers are interleaved: a thread's reads may be
        // anywhere. This is judged. The first attempt had files one after the other. There the
        // order by sector lets the threads take turns, each in its own file, which is the order of
        // age again; it failed, and is printed. Nothing else was tried.
        let seen = |elevator: &str| {
            let (what, holds) = age_against_sector(elevator, |_| 0..16 * FILE, seed);
            let one_by_one = |file| file * FILE..(file + 1) * FILE;
            let (apart, _) = age_against_sector(elevator, one_by_one, seed);
            WorldResult {
                what: format!("{elevator}: {what}; files one after the other: {apart}"),
                holds,
            }
        };
        // `deadline` ignores whether the device is rotational.
        Verdict::of(seen("deadline-prio"), &[seen("deadline")])
    },
};

/// Reads by age against reads by sector: their longest and mean times, and the verdict.
fn age_against_sector(elevator: &str, file: fn(u64) -> Range<u64>, seed: u64) -> (String, bool) {
    let clients: Vec<Client> = (0..16)
        .map(|number| {
            let reader = Client::new(READ, Places::Random(file(number)));
            Client { think: Nanos(100_000), ..reader }
        })
        .collect();
    let [age, sector] = [false, true].map(|rotational| {
        let until = Nanos::from_ms(30_000);
        let ran = setting(elevator, rotational, &clients, until, seed).run(sd_card());
        max_and_mean(&ran)
    });
    let max = ratio(age.0, sector.0);
    let mean = ratio(age.1, sector.1);
    let what = format!(
        "longest read {} and {}, ratio {max:.2}; on average {} and {}, ratio {mean:.2}",
        ms(age.0),
        ms(sector.0),
        ms(age.1),
        ms(sector.1)
    );
    (what, max <= 0.9 && mean <= 1.05)
}

fn setting<'a>(
    elevator: &'a str,
    rotational: bool,
    clients: &'a [Client],
    until: Nanos,
    seed: u64,
) -> Setting<'a> {
    Setting { elevator, rotational, nr_requests: 128, clients, until, seed }
}

/// The 99th percentile; zero without values.
fn p99(ascending: &[Nanos]) -> Nanos {
    let place = (ascending.len() * 99).div_ceil(100).saturating_sub(1);
    ascending.get(place).copied().unwrap_or_default()
}

fn max_and_mean(ran: &Ran) -> (Nanos, Nanos) {
    let latencies = ran.latencies(|_| true);
    let sum: u64 = latencies.iter().map(|latency| latency.0).sum();
    let mean = sum / (latencies.len() as u64).max(1);
    (latencies.last().copied().unwrap_or_default(), Nanos(mean))
}

/// For verdicts only; nothing in a world depends on it.
pub(super) fn ratio(of: Nanos, to: Nanos) -> f64 {
    of.0 as f64 / to.0 as f64
}

/// For example `12.3 ms`.
pub(super) fn ms(time: Nanos) -> String {
    format!("{:.1} ms", time.0 as f64 / 1e6)
}
