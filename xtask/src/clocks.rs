//! `cargo x clocks`: the real program while its clocks jump.
//!
//! A library that is loaded before the C library ([clocks.c](clocks.c)) gives the wall clock a
//! random time at each reading. A server is also stopped for a moment again and again, as with its
//! virtual machine: then the monotonic clock jumps for it. Nothing but times in outputs may depend
//! on that: commands do their work, and servers under load return the bytes that were written.

use crate::cases::Cases;
use crate::growth;
use crate::lab::Lab;
use crate::races;
use crate::syscalls;
use crate::tools;
use crate::totals::Totals;
use crate::volume::{Maker, Recipe};
use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// Length of a stop.
const STOP: Duration = Duration::from_millis(500);

const SOURCE: &str = include_str!("clocks.c");

/// Length and seed.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds, for the commands and all kinds of servers together.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Seed of the jumps and of the load.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(args: &Args, totals: &mut Totals) -> Result<()> {
    let mut lab = Lab::new()?;
    let library = build(&lab, args.seed)?;
    let recipe = Recipe { name: "clocks", maker: Maker::Blockyard, options: "--sector-size 512" };
    let mut volume = recipe.make(&lab)?;
    // A file in memory is not opened past the page cache.
    let image = lab.disk().join("clocks.img");
    fs::copy(&volume.image, &image)?;
    lab.give(&image)?;
    volume.image = image;
    lab.set("LD_PRELOAD", library.display().to_string());
    totals.raise("first_seed", args.seed);
    let time = Duration::from_secs(args.seconds) / u32::try_from(1 + races::SERVERS.len())?;
    let mut cases = Cases::new(None);
    cases.run("commands while the clocks jump", || commands(&lab, time, totals));
    for options in races::SERVERS {
        cases.run(format!("a server while the clocks jump {options}").trim_end(), || {
            let folder = lab.dir().display().to_string();
            let fixed = ["--allow-discards", "--control", "control", "--log-format", "json"];
            let words = options.split_whitespace().chain(fixed);
            let words: Vec<&str> = words.chain(["--sandbox-allow", &folder]).collect();
            let server = volume.serve(&lab, &words)?;
            let load = growth::Load::new(args.seed);
            load.run(&server, time, || {
                races::commands(&lab)?;
                server.process().signal(Signal::SIGSTOP)?;
                thread::sleep(STOP);
                server.process().signal(Signal::SIGCONT)
            })?;
            load.count(totals);
            let log = server.log();
            server.stop()?;
            let years = years(&log)?;
            ensure!(years.len() > 1, "the clock of the log does not jump: {log}");
            ensure!(!log.contains("a defect in blockyard"), "{log}");
            Ok(format!("{} years in the log", years.len()))
        });
    }
    cases.finish("clocks")
}

fn build(lab: &Lab, seed: u64) -> Result<PathBuf> {
    let source = lab.write("clocks.c", SOURCE)?;
    let library = lab.path("clocks.so");
    let mut cc = tools::tool("cc");
    cc.args(["-O1", "-fPIC", "-shared", "-Wall", "-Werror"]).arg(format!("-DSEED={seed}u"));
    tools::run(cc.arg("-o").arg(&library).arg(source))?;
    Ok(library)
}

/// Commands that write headers and data, each at least once.
fn commands(lab: &Lab, time: Duration, totals: &mut Totals) -> Result<String> {
    let bench = syscalls::Bench::new(lab)?;
    let start = Instant::now();
    let mut rounds = 0;
    while rounds == 0 || start.elapsed() < time {
        bench.run_all()?;
        rounds += 1;
    }
    totals.add("commands_between_jumps", rounds * syscalls::JOBS.len() as u64);
    Ok(format!("{rounds} times {} commands", syscalls::JOBS.len()))
}

/// Years in the lines of a log in JSON.
fn years(log: &str) -> Result<BTreeSet<String>> {
    let mut years = BTreeSet::new();
    for line in log.lines() {
        let event: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let time = event["time"].as_str().with_context(|| format!("no time: {line}"))?;
        years.extend(time.split('-').next().map(str::to_owned));
    }
    Ok(years)
}
