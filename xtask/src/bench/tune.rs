//! `cargo x bench tune`: checks the results of `blockyard tune`.
//!
//! On three volumes, for a read and a write workload, it runs the search. Then the result runs
//! against the default and every static preset in fresh processes, interleaved, in a new random
//! order each round. The comparison is by round; the interval is Student's for 99 %, of the
//! logarithms.

use super::table::middle;
use super::{NothingMoved, machine, moving, progress};
use crate::backing::{Backed, Backing};
use crate::lab::Lab;
use crate::tools;
use crate::volume::{IMAGE_BYTES, RECIPES, noise};
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde_json::Value;

/// Random 4 KiB, 32 in flight, and sequential 1 MiB, 4 in flight.
const WORKLOADS: [Workload; 2] = [
    Workload { name: "reads 4 KiB", words: "rw=randread bs=4k iodepth=32", writes: false },
    Workload { name: "writes 1 MiB", words: "rw=write bs=1m iodepth=4", writes: true },
];
const BACKINGS: [Backing; 3] = [Backing::Memory, Backing::Disk, Backing::Loop];
/// A negligible difference, as in `tune`.
const SAME: f64 = 0.01;
/// Distance of an interval's lower bound below 1 from which the comparison is inconclusive.
const OPEN: f64 = 0.05;
/// Filled bytes: the image without its header.
const FILLED_BYTES: usize = IMAGE_BYTES as usize - (16 << 20);

/// Optimised quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Goal {
    /// Bytes per second.
    Throughput,
    /// Bytes per CPU time of the process, which depends less on other load.
    Cpu,
}

/// Longest search: a tune that compares nothing in so long a time is broken.
const SEARCH_MAX_S: u32 = 60;

/// Extent of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds of each search.
    #[arg(long, default_value_t = 18)]
    time: u32,
    /// Rounds of the result against the others.
    #[arg(long, default_value_t = 8)]
    rounds: usize,
    /// Seconds of each run in the rounds.
    #[arg(long, default_value_t = 0.25)]
    seconds: f64,
    #[arg(long, value_enum, default_value_t = Goal::Throughput)]
    goal: Goal,
    /// Only the volume in memory, too short for valid figures.
    #[arg(long)]
    smoke: bool,
}

impl Args {
    pub(crate) fn smoke() -> Args {
        Args { time: 1, rounds: 2, seconds: 0.05, goal: Goal::Throughput, smoke: true }
    }
}

struct Workload {
    name: &'static str,
    words: &'static str,
    writes: bool,
}

impl Workload {
    fn leave(&self) -> &'static [&'static str] {
        if self.writes { &["--destroy"] } else { &[] }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(args.rounds > 1, "an interval needs two rounds");
    let lab = Lab::new()?;
    machine::print(&machine::describe());
    let mut verdicts: Vec<Verdict> = Vec::new();
    for backing in BACKINGS.iter().filter(|backing| !args.smoke || **backing == Backing::Memory) {
        let recipe = &RECIPES[0];
        let Some(backed) = backing.make(&lab, recipe)? else {
            println!("\n{}: not available on this machine", backing.name());
            continue;
        };
        fill(&lab, &backed)?;
        for workload in &WORKLOADS {
            let case = Case { lab: &lab, backed: &backed, workload, args };
            let rows = case.measure()?;
            println!("\n{} {}, {}", recipe.name, backing.name(), workload.name);
            print(&rows, args.goal);
            verdicts.extend(rows.iter().filter_map(|row| row.against).map(Ratio::verdict));
        }
    }
    let count = |verdict| verdicts.iter().filter(|one| **one == verdict).count();
    let [beats, equals, worse, open] =
        [Verdict::Beats, Verdict::Equals, Verdict::Worse, Verdict::Open].map(count);
    println!(
        "\nits result beats {beats}, equals {equals} of {}; worse: {worse}, not clear: {open}",
        verdicts.len()
    );
    Ok(())
}

/// Fills the volume, because a hole reads faster than data.
fn fill(lab: &Lab, backed: &Backed) -> Result<()> {
    let plaintext = lab.write("plaintext", noise(3, FILLED_BYTES))?;
    let mut load = backed.command(lab, "load")?;
    tools::run(load.arg("--allow-short").stdin(std::fs::File::open(&plaintext)?))
        .context("filling the volume")?;
    Ok(std::fs::remove_file(plaintext)?)
}

/// One workload on one volume.
struct Case<'a> {
    lab: &'a Lab,
    backed: &'a Backed,
    workload: &'a Workload,
    args: &'a Args,
}

/// Settings as options of `blockyard bench`.
struct Row {
    settings: String,
    scores: Vec<f64>,
    /// Ratio of the result to these settings; `None` for the result itself.
    against: Option<Ratio>,
}

#[derive(Clone, Copy, Debug)]
struct Ratio {
    mean: f64,
    low: f64,
    high: f64,
}

impl Case<'_> {
    /// Measures all settings; the result comes first.
    fn measure(&self) -> Result<Vec<Row>> {
        let (found, others) = self.search()?;
        let all = std::iter::once(found.clone()).chain(others.into_iter().filter(|o| *o != found));
        let row = |settings| Row { settings, scores: Vec::new(), against: None };
        let mut rows: Vec<Row> = all.map(row).collect();
        for round in 0..self.args.rounds {
            for place in order(rows.len(), round) {
                progress(&format!("round {} of {}", round + 1, self.args.rounds));
                let score = moving(self.args.seconds, |seconds| {
                    self.run(&rows[place].settings, round, seconds)
                })?;
                rows[place].scores.push(score);
            }
        }
        progress("");
        let (first, others) = rows.split_at_mut(1);
        others.iter_mut().for_each(|row| row.against = Some(paired(&first[0].scores, &row.scores)));
        Ok(rows)
    }

    /// The recommendation of `tune`, and the settings to compare: the default and every other
    /// pipeline.
    fn search(&self) -> Result<(String, Vec<String>)> {
        let mut time = self.args.time;
        loop {
            let evidence = self.evidence(time)?;
            if let Some(names) = compared(&evidence) {
                let best = evidence["best"].as_str().context("tune recommends nothing")?;
                return Ok((best.to_owned(), names));
            }
            // On a busy machine a short search ends before its first race.
            ensure!(time < SEARCH_MAX_S, "tune compared no pipelines in {time} s");
            time *= 4;
        }
    }

    /// The JSON of a search.
    fn evidence(&self, time: u32) -> Result<Value> {
        let mut tune = self.backed.command(self.lab, "tune")?;
        tune.args(["--json", "--time", &time.to_string(), "--goal", self.goal()]);
        tune.args(self.workload.leave());
        if self.args.smoke {
            tune.args(["--slice", "20"]);
        }
        tune.args(["--", "ioengine=libaio"]).args(self.workload.words.split(' '));
        progress(&format!("tune: {}", self.workload.name));
        Ok(serde_json::from_slice(&tools::run(&mut tune)?.stdout)?)
    }

    fn goal(&self) -> &'static str {
        match self.args.goal {
            Goal::Throughput => "throughput",
            Goal::Cpu => "cpu",
        }
    }

    /// Bytes per second, or per second of CPU time.
    fn run(&self, settings: &str, round: usize, seconds: f64) -> Result<f64> {
        let words = settings.split(' ').filter(|_| settings != "the default");
        let millis = (seconds * 1000.0) as u32;
        let mut bench = self.backed.command(self.lab, "bench")?;
        bench.arg("--json").args(words).args(self.workload.leave());
        bench.args(["--", "ioengine=libaio", "time_based", "norandommap"]);
        bench.args(self.workload.words.split(' ')).arg(format!("randseed={}", round + 1));
        bench.arg(format!("runtime={millis}ms"));
        if self.args.goal == Goal::Throughput {
            // CPU time covers the whole run, including the ramp.
            bench.arg(format!("ramp_time={}ms", millis / 3));
        }
        let report: Value = serde_json::from_slice(&tools::run(&mut bench)?.stdout)?;
        let job = &report["jobs"][0];
        let sum = |key: &str| -> f64 {
            ["read", "write"].iter().filter_map(|side| job[*side][key].as_f64()).sum()
        };
        let score = match self.args.goal {
            Goal::Throughput => sum("bw_bytes"),
            Goal::Cpu => {
                let threads = report["stages"]["threads"].as_array();
                let cpu_ns = threads.into_iter().flatten().filter_map(|of| of["cpu_ns"].as_f64());
                sum("io_bytes") / (cpu_ns.sum::<f64>() / 1e9)
            }
        };
        ensure!(score > 0.0, NothingMoved);
        ensure!(score.is_finite(), "{settings}: no CPU time was measured: {job}");
        Ok(score)
    }
}

/// The pipelines of the race of them, as settings; `None` if there was no such race.
fn compared(evidence: &Value) -> Option<Vec<String>> {
    let of_pipelines =
        evidence["races"].as_array()?.iter().find(|race| race["axis"] == "pipeline")?;
    let names = of_pipelines["rows"].as_array()?.iter();
    let names = names.filter_map(|row| row["settings"].as_str()).map(|name| match name {
        "adaptive" => "the default".to_owned(),
        name => format!("--pipeline {name}"),
    });
    Some(names.collect())
}

/// A random order for a round, equal in each invocation.
fn order(count: usize, round: usize) -> Vec<usize> {
    let draws = noise(round as u64 + 1, count);
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|place| (draws[*place], *place));
    order
}

/// Ratio of two settings, paired by round.
fn paired(one: &[f64], other: &[f64]) -> Ratio {
    let logs: Vec<f64> = one.iter().zip(other).map(|(one, other)| (one / other).ln()).collect();
    let count = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / count;
    let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
    let half = student_99(logs.len() - 1) * (squares / (count - 1.0) / count).sqrt();
    Ratio { mean: mean.exp(), low: (mean - half).exp(), high: (mean + half).exp() }
}

/// Student's t for 99 %, two-sided, by degrees of freedom, from one on.
fn student_99(freedom: usize) -> f64 {
    const TABLE: [f64; 10] = [63.66, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169];
    TABLE[freedom.clamp(1, TABLE.len()) - 1]
}

/// Conclusion from an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Clearly better.
    Beats,
    /// Not clearly better, and at most a few percent worse.
    Equals,
    /// Clearly worse, by more than a negligible difference.
    Worse,
    /// Inconclusive: the machine was too busy.
    Open,
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Verdict::Beats => "beats it",
            Verdict::Equals => "equals it",
            Verdict::Worse => "WORSE",
            Verdict::Open => "not clear",
        }
    }
}

impl Ratio {
    fn verdict(self) -> Verdict {
        match self {
            Ratio { low, .. } if low > 1.0 => Verdict::Beats,
            Ratio { high, .. } if high < 1.0 - SAME => Verdict::Worse,
            Ratio { low, .. } if low >= 1.0 - OPEN => Verdict::Equals,
            Ratio { .. } => Verdict::Open,
        }
    }
}

fn print(rows: &[Row], goal: Goal) {
    let unit = match goal {
        Goal::Throughput => "MiB/s",
        Goal::Cpu => "MiB per s of CPU",
    };
    let width = rows.iter().map(|row| row.settings.len()).max().unwrap_or(0).max(24);
    println!("{:<width$}  {unit:>16}  found against it", "");
    for row in rows {
        let mib = middle(row.scores.clone()) / f64::from(1 << 20);
        let percent = |factor: f64| (factor - 1.0) * 100.0;
        let against = row.against.map_or_else(
            || "found by tune".to_owned(),
            |ratio| {
                let [mean, low, high] = [ratio.mean, ratio.low, ratio.high].map(percent);
                format!("{mean:+.1} % ({low:+.1} to {high:+.1}): {}", ratio.verdict().text())
            },
        );
        println!("{:<width$}  {mib:>16.1}  {against}", row.settings);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_is_clear_only_where_the_interval_is() {
        let of = |one: f64, wobble: f64| {
            let scores =
                |base: f64, turns: [f64; 4]| turns.map(|turn| base * (1.0 + turn * wobble));
            let one = scores(one, [0.0, 1.0, -1.0, 0.5]);
            paired(&one, &scores(100.0, [0.5, -1.0, 1.0, 0.0])).verdict()
        };
        assert_eq!(of(200.0, 0.01), Verdict::Beats);
        assert_eq!(of(100.0, 0.001), Verdict::Equals);
        assert_eq!(of(99.5, 0.0), Verdict::Equals, "nobody cares");
        assert_eq!(of(50.0, 0.01), Verdict::Worse);
        assert_eq!(of(100.0, 0.3), Verdict::Open);
    }

    #[test]
    fn every_round_has_all_of_them_in_another_order() {
        let one = order(9, 0);
        let other = order(9, 1);
        assert_ne!(one, other);
        for mut order in [one, other] {
            order.sort_unstable();
            assert!(order.into_iter().eq(0..9));
        }
    }
}
