//! `cargo x bench floor`: the parts of a request's cost, and a server beside the sum of its
//! unavoidable parts.
//!
//! The sums are simple on purpose: the cipher over data from memory, the copy between socket and
//! buffer, and for a lone request its two system calls and the wake-up.

use super::fio::{Job, Run, warm};
use super::scale::{Server, volume};
use super::table::middle;
use super::{example_text, machine};
use crate::lab::Lab;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Size of the data, in memory but larger than any cache.
const SIZE_MIB: u32 = 256;

/// Extent of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds over all rows; the table shows medians.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Seconds of each run.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
}

impl Args {
    pub(crate) fn smoke() -> Args {
        Args { rounds: 1, seconds: 0.2 }
    }
}

/// A job, and the parts of its floor with their numbers.
struct Row {
    job: Job,
    pieces: &'static [(&'static str, f64)],
}

const fn row(
    name: &'static str,
    rw: &'static str,
    block: &'static str,
    depth: u32,
    pieces: &'static [(&'static str, f64)],
) -> Row {
    Row { job: Job { name, rw, block, depth, connections: 1 }, pieces }
}

const ROWS: &[Row] = &[
    row(
        "read 4 KiB q1",
        "randread",
        "4k",
        1,
        &[
            ("recv: request of 28 B", 1.0),
            ("cipher 4 KiB, from memory", 1.0),
            ("send: read of 4 KiB", 1.0),
            ("hand-over to a sleeping thread", 1.0),
        ],
    ),
    row(
        "write 4 KiB q1",
        "randwrite",
        "4k",
        1,
        &[
            ("recv: write of 4 KiB", 1.0),
            ("cipher 4 KiB, from memory", 1.0),
            ("send: reply of 16 B", 1.0),
            ("hand-over to a sleeping thread", 1.0),
        ],
    ),
    row(
        "read 4 KiB q32",
        "randread",
        "4k",
        32,
        &[("cipher 4 KiB, from memory", 1.0), ("send: 16 reads of 4 KiB in one", 1.0 / 16.0)],
    ),
    row(
        "write 4 KiB q32",
        "randwrite",
        "4k",
        32,
        &[("recv: write, a piece of 64 KiB", 1.0 / 16.0), ("cipher 4 KiB, from memory", 1.0)],
    ),
    row(
        "read 1 MiB q8",
        "read",
        "1m",
        8,
        &[("cipher 1 MiB, from memory", 1.0), ("send: 16 reads of 4 KiB in one", 16.0)],
    ),
    row(
        "write 1 MiB q8",
        "write",
        "1m",
        8,
        &[("recv: write, a piece of 64 KiB", 16.0), ("cipher 1 MiB, from memory", 1.0)],
    ),
];

pub(crate) fn run(args: &Args) -> Result<()> {
    let lab = Lab::new()?;
    let image: PathBuf = lab.path("floor.img");
    volume(&lab, &image, u64::from(SIZE_MIB) << 20)?;
    machine::print(&machine::describe());
    let pieces = pieces()?;
    pieces.iter().for_each(|(name, ns)| println!("{name:<34} {ns:>10.0} ns"));
    let server = Server::start(&lab, &[("", &image)], "--max-connections=8")?;
    let uri = server.uri("");
    warm(&uri, SIZE_MIB)?;
    let mut cpu_us = vec![Vec::new(); ROWS.len()];
    let millis = (args.seconds * 1000.0) as u32;
    for _ in 0..args.rounds {
        for (row, cpu_us) in ROWS.iter().zip(&mut cpu_us) {
            let before = server.cpu_ns()?;
            let seen = row.job.run(&Run { uri: &uri, cpu: None, millis, size_mib: SIZE_MIB })?;
            let took_us = (server.cpu_ns()? - before) as f64 / 1000.0;
            cpu_us.push(took_us / seen.requests.max(1.0));
        }
    }
    println!("\n{:<18} {:>12} {:>12} {:>8}", "server CPU", "us a request", "its floor", "ratio");
    for (row, cpu_us) in ROWS.iter().zip(cpu_us) {
        let cpu_us = middle(cpu_us);
        let floor_us = row.floor_ns(&pieces)? / 1000.0;
        let ratio = cpu_us / floor_us;
        println!("{:<18} {cpu_us:>12.2} {floor_us:>12.2} {ratio:>8.2}", row.job.name);
    }
    Ok(())
}

impl Row {
    fn floor_ns(&self, pieces: &BTreeMap<String, f64>) -> Result<f64> {
        let cost = |(name, times): &(&str, f64)| {
            let ns = pieces.get(*name).with_context(|| format!("no piece is called {name:?}"))?;
            Ok(ns * times)
        };
        self.pieces.iter().map(cost).sum()
    }
}

/// Cost of each part alone, in nanoseconds.
fn pieces() -> Result<BTreeMap<String, f64>> {
    let text = example_text("blockyard-host", "floor_bench", &["--json"])?;
    let piece = |line: &str| {
        let value: Value = serde_json::from_str(line)?;
        let name = value["piece"].as_str().context("a piece has a name")?.to_owned();
        Ok((name, value["ns"].as_f64().context("a piece has a time")?))
    };
    text.lines().map(piece).collect()
}
