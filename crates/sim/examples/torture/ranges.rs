//! Worlds of ranges in flight: shards that write parts of sectors.

use std::io::Write;
use std::ops::Range;
use std::time::{Duration, Instant};

use blockyard_sim::torture::ranges::{self, Report, Sabotage};

/// Runs worlds without a canary; the first report of an oracle ends the run.
pub(crate) fn clean(seeds: Range<u64>, limit: Duration) -> Result<(), String> {
    let start = Instant::now();
    let mut sum = Report::default();
    let ran = super::worlds(seeds, limit, |seed| {
        let report = ranges::run(seed, None).map_err(|violation| violation.to_string())?;
        sum.requests += report.requests;
        sum.patches += report.patches;
        sum.waits += report.waits;
        sum.leaves += report.leaves;
        sum.steps += report.steps;
        Ok(())
    });
    let Report { requests, patches, waits, leaves, steps, .. } = sum;
    ran.print_counts(&format!(
        " requests={requests} waits={waits} disconnects={leaves} steps={steps}"
    ));
    ran.found?;
    println!("{} worlds, each twice, in {:.1} s: clean", ran.worlds, start.elapsed().as_secs_f64());
    println!(
        "{requests} requests, {patches} parts of sectors, {waits} waited, {leaves} connections \
         left, {steps} steps"
    );
    Ok(())
}

/// Runs one world and prints all its events.
pub(crate) fn replay(seed: u64, canary: Option<&str>) -> Result<(), String> {
    let named = |name: &str| {
        let names: Vec<&str> = Sabotage::ALL.iter().map(|sabotage| sabotage.name()).collect();
        let unknown = || format!("{name:?} is no canary; there are {}", names.join(", "));
        Sabotage::named(name).ok_or_else(unknown)
    };
    let sabotage = canary.map(named).transpose()?;
    let mut out = std::io::BufWriter::new(std::io::stdout());
    let mut print = |line: &str| drop(writeln!(out, "{line}"));
    let report = ranges::replay(seed, sabotage, Some(&mut print));
    let twice = report.and_then(|_| ranges::run(seed, sabotage));
    if let Ok(report) = &twice {
        print(&format!("{report:#?}\nclean, and the same again: trace {:016x}", report.hash));
    }
    drop(out.flush());
    twice.map(drop).map_err(|violation| violation.to_string())
}

/// Runs worlds with each canary until an oracle finds it.
pub(crate) fn canaries(limit: Duration) -> Result<(), String> {
    super::find_all(limit, Sabotage::ALL, Sabotage::name, |sabotage, seed| {
        ranges::run(seed, Some(sabotage)).err().map(|violation| violation.finding.oracle)
    })
}
