//! The program of `cargo x sim`: thousands of torture worlds, one world with a log, the canaries.
//!
//! `torture clean SEEDS SECONDS FIRST`, `torture replay SEED [CANARY]`, `torture canaries SECONDS`,
//! `torture pages SEEDS`. `multipath` before one of the first two gives disks several paths;
//! `devices` spreads the volume over several disks with a table; `long`, after either, makes the
//! pauses long. With `ranges` before one of the first three, shards write parts of sectors.

#[path = "torture/ranges.rs"]
mod ranges;

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use blockyard_engine::pages::{ALLOCATORS, AllocatorSpec, FromReserve};
use blockyard_sim::oracle::Oracle;
use blockyard_sim::torture::sabotage::Sabotage;
use blockyard_sim::torture::{self, Pace, Report, Storage, TortureConfig};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (storage, words) = match words[..] {
        ["multipath", ref words @ ..] => (Storage::Paths, words),
        ["devices", ref words @ ..] => (Storage::Devices, words),
        ref words => (Storage::Disk, words),
    };
    let (pace, words) = match *words {
        ["long", ref words @ ..] => (Pace::Long, words),
        _ => (Pace::Busy, words),
    };
    let config = TortureConfig { storage, pace, ..TortureConfig::default() };
    let result =
        match *words {
            ["clean", seeds, seconds, first] => {
                numbers([seeds, seconds, first]).and_then(|[seeds, seconds, first]| {
                    let seeds = first..first.saturating_add(seeds);
                    clean(&config, seeds, Duration::from_secs(seconds))
                })
            }
            ["replay", seed] => numbers([seed]).and_then(|[seed]| replay(&config, seed)),
            ["replay", seed, canary] => numbers([seed]).and_then(|[seed]| {
                let sabotage = Some(Sabotage::named(canary).ok_or_else(|| unknown(canary))?);
                replay(&TortureConfig { sabotage, ..config }, seed)
            }),
            ["ranges", "clean", seeds, seconds, first] => numbers([seeds, seconds, first])
                .and_then(|[seeds, seconds, first]| {
                    let seeds = first..first.saturating_add(seeds);
                    ranges::clean(seeds, Duration::from_secs(seconds))
                }),
            ["ranges", "replay", seed, ref canary @ ..] => {
                numbers([seed]).and_then(|[seed]| ranges::replay(seed, canary.first().copied()))
            }
            ["ranges", "canaries", seconds] => numbers([seconds])
                .and_then(|[seconds]| ranges::canaries(Duration::from_secs(seconds))),
            ["pages", seeds] => numbers([seeds]).and_then(|[seeds]| pages(seeds)),
            ["canaries", seconds] => {
                numbers([seconds]).and_then(|[seconds]| canaries(Duration::from_secs(seconds)))
            }
            _ => Err("[multipath|devices] [long] clean SEEDS SECONDS FIRST, \
                 [multipath|devices] [long] replay SEED [CANARY], [ranges] canaries SECONDS, \
                 ranges clean|replay, or pages SEEDS"
                .into()),
        };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

fn numbers<const N: usize>(words: [&str; N]) -> Result<[u64; N], String> {
    let mut numbers = [0; N];
    for (number, word) in numbers.iter_mut().zip(words) {
        *number = word.parse().map_err(|_| format!("{word:?} is no number"))?;
    }
    Ok(numbers)
}

fn unknown(canary: &str) -> String {
    let names: Vec<&str> = Sabotage::ALL.iter().map(|sabotage| sabotage.name()).collect();
    format!("{canary:?} is no canary; there are {}", names.join(", "))
}

/// Writers that wait for each other, for each page allocator, with and without the mutex.
fn pages(seeds: u64) -> Result<(), String> {
    println!(
        "{:<28} {:>7} {:>9} {:>9} {:>12}",
        "allocator", "worlds", "writes", "waits", "deadlocked"
    );
    let mut found = Vec::new();
    for allocator in ALLOCATORS {
        for mutex in ["on", "off"] {
            let name = format!("{},mutex={mutex}", allocator.name);
            let spec = AllocatorSpec::parse(&name).map_err(|error| error.to_string())?;
            let mut writes = 0;
            let mut waits = 0;
            let mut stuck = 0;
            for seed in 0..seeds {
                let ended = torture::pages::run(&spec, seed);
                writes += ended.writes;
                waits += ended.waits;
                stuck += u64::from(ended.stuck > 0);
            }
            println!("{name:<28} {seeds:>7} {writes:>9} {waits:>9} {stuck:>12}");
            let may = mutex == "off" && allocator.from_reserve == FromReserve::PageByPage;
            if stuck > 0 && !may {
                found.push(name);
            }
        }
    }
    if found.is_empty() { Ok(()) } else { Err(format!("deadlocks of {}", found.join(", "))) }
}

/// Runs worlds without a canary; the first report of an oracle ends the run.
fn clean(
    config: &TortureConfig,
    seeds: std::ops::Range<u64>,
    limit: Duration,
) -> Result<(), String> {
    let start = Instant::now();
    let mut sum = Report::default();
    let ran = worlds(seeds, limit, |seed| {
        let report = torture::run(seed, config).map_err(|violation| violation.to_string())?;
        add(&mut sum, &report);
        Ok(())
    });
    let Report { bios, failed, requests, merges, faults, power_cuts, sectors_lost, .. } = sum;
    let Report { outages, partial, resent, fua_parts, .. } = sum;
    let pace = if config.pace == Pace::Long { "long" } else { "simulated" };
    ran.print_counts(&format!(
        " {pace}_ms={} bios={bios} requests={requests} faults={faults} power_cuts={power_cuts} \
         sectors_lost={sectors_lost} outages={outages}",
        sum.time.0 / 1_000_000
    ));
    ran.found?;
    println!("{} worlds, each twice, in {:.1} s: clean", ran.worlds, start.elapsed().as_secs_f64());
    println!(
        "{bios} bios ({failed} failed), {requests} requests, {merges} merges, {faults} faults, \
         {power_cuts} power cuts took {sectors_lost} sectors"
    );
    if config.storage == Storage::Devices {
        println!("{fua_parts} requests were parts of FUA writes");
    }
    if config.storage == Storage::Paths {
        println!("{outages} paths went down, {partial} requests done in part, {resent} sent again");
    }
    Ok(())
}

fn add(sum: &mut Report, report: &Report) {
    sum.time.0 += report.time.0;
    sum.bios += report.bios;
    sum.failed += report.failed;
    sum.requests += report.requests;
    sum.merges += report.merges;
    sum.faults += report.faults;
    sum.outages += report.outages;
    sum.partial += report.partial;
    sum.resent += report.resent;
    sum.fua_parts += report.fua_parts;
    sum.power_cuts += report.power_cuts;
    sum.sectors_lost += report.sectors_lost;
}

/// Worlds that ran, and the finding that ended them.
struct Ran {
    first_seed: u64,
    worlds: u64,
    found: Result<(), String>,
}

impl Ran {
    /// Prints the line that `cargo x` reads: words of a name and a count.
    fn print_counts(&self, more: &str) {
        let Self { first_seed, worlds, .. } = self;
        let last_seed = (first_seed + worlds).saturating_sub(1);
        println!("counts: first_seed={first_seed} last_seed={last_seed} worlds={worlds}{more}");
    }
}

/// Runs the worlds of these seeds until the time is over or one has a finding.
fn worlds(
    seeds: std::ops::Range<u64>,
    limit: Duration,
    mut run: impl FnMut(u64) -> Result<(), String>,
) -> Ran {
    let start = Instant::now();
    let mut ran = Ran { first_seed: seeds.start, worlds: 0, found: Ok(()) };
    for seed in seeds {
        if start.elapsed() >= limit || ran.found.is_err() {
            break;
        }
        ran.found = run(seed);
        ran.worlds += 1;
    }
    ran
}

/// Runs one world and prints all its events.
fn replay(config: &TortureConfig, seed: u64) -> Result<(), String> {
    // A closed output is no failure.
    let mut out = std::io::BufWriter::new(std::io::stdout());
    let mut print = |line: &str| drop(writeln!(out, "{line}"));
    let report = torture::replay(seed, config, Some(&mut print));
    let twice = report.clone().and_then(|_| torture::run(seed, config));
    if let (Ok(report), Ok(_)) = (report, &twice) {
        print(&format!("{report:#?}"));
        print(&format!("clean, and the same again: trace {:016x}", report.hash));
    }
    drop(out.flush());
    twice.map(drop).map_err(|violation| violation.to_string())
}

/// Runs worlds with each canary until an oracle finds it.
fn canaries(limit: Duration) -> Result<(), String> {
    find_all(limit, Sabotage::ALL, Sabotage::name, |sabotage, seed| {
        let config = TortureConfig { sabotage: Some(sabotage), ..TortureConfig::default() };
        torture::run(seed, &config).err().map(|violation| violation.finding.oracle)
    })
}

/// Runs worlds with each canary until an oracle finds it, and prints the oracle.
fn find_all<S: Copy>(
    limit: Duration,
    all: &[S],
    name: fn(S) -> &'static str,
    run: impl Fn(S, u64) -> Option<Oracle>,
) -> Result<(), String> {
    // A canary may trip an assertion of the engine; the table shows it.
    std::panic::set_hook(Box::new(|_| {}));
    println!("{:<20} {:<14} {:>6} {:>8}", "canary", "found by", "seeds", "seconds");
    let mut survivors = Vec::new();
    for &sabotage in all {
        let start = Instant::now();
        let found = (0..)
            .take_while(|_| start.elapsed() < limit)
            .find_map(|seed| Some((seed, run(sabotage, seed)?)));
        let seconds = start.elapsed().as_secs_f64();
        let name = name(sabotage);
        match found {
            Some((seed, oracle)) => {
                println!("{name:<20} {oracle:<14} {:>6} {seconds:>8.2}", seed + 1);
            }
            None => {
                println!("{name:<20} {:<14} {:>6} {seconds:>8.2}", "NONE", "");
                survivors.push(name);
            }
        }
    }
    if survivors.is_empty() {
        return Ok(());
    }
    Err(format!("not found within {} s: {}", limit.as_secs(), survivors.join(", ")))
}
