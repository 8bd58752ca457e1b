//! `cargo x sim`: random worlds with faults and power cuts under the oracles, and the planted bugs
//! that these must find. The runner is `crates/sim/examples/torture.rs`, built for release.

use crate::totals::Totals;
use crate::{lab, tools};
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Number of worlds, one world, or the canaries.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run this number of worlds, each twice.
    #[arg(long, default_value_t = 2000, conflicts_with_all = ["seed", "canaries"])]
    seeds: u64,
    /// First seed.
    #[arg(long, default_value_t = 0, conflicts_with_all = ["seed", "canaries"])]
    first: u64,
    /// Stop after this number of seconds; with --canaries: for each of them [default: 20, with
    /// canaries 60].
    #[arg(long, conflicts_with = "seed")]
    seconds: Option<u64>,
    /// Replay the world of this seed, and print all its events.
    #[arg(long)]
    seed: Option<u64>,
    /// Plant this bug in it.
    #[arg(long, requires = "seed", value_name = "NAME")]
    canary: Option<String>,
    /// Plant one bug after another until an oracle has found it; fails if one is not found.
    #[arg(long, conflicts_with = "seed")]
    canaries: bool,
    /// Search deadlocks of the page allocators instead: crypt lines with tiny reserves, --seeds
    /// worlds for each allocator.
    #[arg(long, conflicts_with_all = ["seed", "canaries", "first", "seconds"])]
    pages: bool,
    /// Run worlds with disks on several paths that fail and return: requests and bios choose their
    /// paths.
    #[arg(long, conflicts_with_all = ["canaries", "pages"])]
    multipath: bool,
    /// Run worlds with a volume on several disks: linear and striped lines.
    #[arg(long, conflicts_with_all = ["canaries", "pages", "multipath"])]
    devices: bool,
    /// Make the pauses of the submitters long: seconds to an hour, after an uptime of up to a year.
    #[arg(long, conflicts_with_all = ["canaries", "pages", "ranges"])]
    long: bool,
    /// Run worlds whose shards write parts of sectors, several at a time, overlapping.
    #[arg(long, conflicts_with_all = ["pages", "multipath", "devices"])]
    ranges: bool,
}

pub(crate) fn run(args: &Args, totals: &mut Totals) -> Result<()> {
    let seconds = |default| args.seconds.unwrap_or(default).to_string();
    let mut words = match (args.seed, args.canaries) {
        _ if args.pages => vec!["pages".into(), args.seeds.to_string()],
        (Some(seed), _) => {
            let words = ["replay".into(), seed.to_string()].into_iter();
            words.chain(args.canary.clone()).collect()
        }
        (None, true) => vec!["canaries".into(), seconds(60)],
        (None, false) => {
            vec!["clean".into(), args.seeds.to_string(), seconds(20), args.first.to_string()]
        }
    };
    if args.long {
        words.insert(0, "long".into());
    }
    if args.multipath {
        words.insert(0, "multipath".into());
    }
    if args.devices {
        words.insert(0, "devices".into());
    }
    if args.ranges {
        words.insert(0, "ranges".into());
    }
    let torture = lab::build_example("blockyard-sim", "torture")?;
    let mut command = Command::new(torture);
    counted(command.current_dir(tools::root()).args(words), totals)
}

/// Shows what the runner prints, and takes the line with its counts.
fn counted(command: &mut Command, totals: &mut Totals) -> Result<()> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("the worlds do not start")?;
    let output = child.stdout.take().context("the output of the worlds")?;
    for line in BufReader::new(output).lines() {
        let line = line?;
        match line.strip_prefix("counts: ") {
            Some(counts) => take_counts(counts, totals).context(line.clone())?,
            None => println!("{line}"),
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("the worlds ended with {status}");
    }
    Ok(())
}

/// Adds counts of the form `worlds=5 faults=70`.
fn take_counts(text: &str, totals: &mut Totals) -> Result<()> {
    for word in text.split(' ') {
        let (name, count) = word.split_once('=').context("no count")?;
        let count = count.parse()?;
        if name.ends_with("_seed") { totals.raise(name, count) } else { totals.add(name, count) }
    }
    Ok(())
}
