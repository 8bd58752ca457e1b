//! `cargo x sim`: random worlds with faults and power cuts under the oracles, and the planted bugs
//! that these must find. The runner is `crates/sim/examples/torture.rs`, built for release.

use crate::tools;
use anyhow::Result;

/// How many worlds, one world, or the canaries.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Lives through as many worlds; each of them twice.
    #[arg(long, default_value_t = 2000, conflicts_with_all = ["seed", "canaries"])]
    seeds: u64,
    /// The first of their seeds.
    #[arg(long, default_value_t = 0, conflicts_with_all = ["seed", "canaries"])]
    first: u64,
    /// Ends after so many seconds; with --canaries: for each of them [default: 20, with canaries
    /// 60].
    #[arg(long, conflicts_with = "seed")]
    seconds: Option<u64>,
    /// Replays the world of this seed, and says everything that happens in it.
    #[arg(long)]
    seed: Option<u64>,
    /// Plants this bug in it.
    #[arg(long, requires = "seed", value_name = "NAME")]
    canary: Option<String>,
    /// Plants one bug after the other, until an oracle has found it; fails when one is not found.
    #[arg(long, conflicts_with = "seed")]
    canaries: bool,
    /// Hunts deadlocks of the page allocators instead: crypt lines with tiny reserves, as many
    /// worlds as --seeds says for each allocator.
    #[arg(long, conflicts_with_all = ["seed", "canaries", "first", "seconds"])]
    pages: bool,
    /// Lives through worlds whose disks have several paths, which come and go: requests and bios
    /// that choose their paths.
    #[arg(long, conflicts_with_all = ["canaries", "pages"])]
    multipath: bool,
    /// Lives through worlds whose volume lies on several disks: linear and striped lines.
    #[arg(long, conflicts_with_all = ["canaries", "pages", "multipath"])]
    devices: bool,
    /// Lives through worlds whose shards write parts of sectors, several at a time, on top of each
    /// other.
    #[arg(long, conflicts_with_all = ["pages", "multipath", "devices"])]
    ranges: bool,
}

impl Args {
    /// As in CI.
    pub(crate) fn short() -> Self {
        let (seeds, seconds) = (u64::MAX, Some(10));
        Self {
            seeds,
            first: 0,
            seconds,
            seed: None,
            canary: None,
            canaries: false,
            pages: false,
            multipath: false,
            devices: false,
            ranges: false,
        }
    }

    /// As in CI.
    pub(crate) fn multipath() -> Self {
        Self { multipath: true, ..Self::short() }
    }

    /// As in CI.
    pub(crate) fn devices() -> Self {
        Self { devices: true, ..Self::short() }
    }

    /// As in CI.
    pub(crate) fn ranges() -> Self {
        Self { ranges: true, ..Self::short() }
    }

    /// As in CI.
    pub(crate) fn canaries() -> Self {
        Self { canaries: true, seconds: None, ..Self::short() }
    }

    /// As in CI.
    pub(crate) fn ranges_canaries() -> Self {
        Self { ranges: true, ..Self::canaries() }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
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
    if args.multipath {
        words.insert(0, "multipath".into());
    }
    if args.devices {
        words.insert(0, "devices".into());
    }
    if args.ranges {
        words.insert(0, "ranges".into());
    }
    let mut cargo = tools::cargo();
    cargo.args(["run", "--quiet", "--release", "--locked", "--package", "blockyard-sim"]);
    tools::show(cargo.args(["--example", "torture", "--"]).args(words))
}
