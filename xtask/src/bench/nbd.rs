//! `cargo x bench nbd`: the same LUKS1 image behind every server, the same client, rounds
//! interleaved.
//!
//! The placement of client and server determines half of each number, so it is fixed and reported:
//! `apart` on two CPUs, `stacked` on one, `free` by the scheduler. Server CPU time is the
//! scheduler's own sum over all threads.

use super::fio::{Job, Run, warm};
use super::peers::{self, Conditions, Images, PLAIN, Peer};
use super::table::{self, Sample};
use super::{NothingMoved, machine, moving, progress, readme};
use crate::certificates::Pki;
use crate::lab::Lab;
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde_json::json;
use std::path::PathBuf;

const fn job(
    name: &'static str,
    rw: &'static str,
    block: &'static str,
    depth: u32,
    connections: u32,
) -> Job {
    Job { name, rw, block, depth, connections }
}

const JOBS: &[Job] = &[
    job("read 1 MiB q8", "read", "1m", 8, 1),
    job("write 1 MiB q8", "write", "1m", 8, 1),
    job("read 4 KiB q1", "randread", "4k", 1, 1),
    job("write 4 KiB q1", "randwrite", "4k", 1, 1),
    job("read 4 KiB q32", "randread", "4k", 32, 1),
    job("write 4 KiB q32", "randwrite", "4k", 32, 1),
    job("read 4 KiB q32, 4 connections", "randread", "4k", 32, 4),
    job("write 4 KiB q32, 4 connections", "randwrite", "4k", 32, 4),
];

/// Placement of client and server.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Placement {
    /// The server on CPU 0, the client on CPU 1.
    Apart,
    /// Both on CPU 0.
    Stacked,
    /// By the scheduler.
    Free,
}

impl Placement {
    pub(super) fn name(self) -> &'static str {
        match self {
            Placement::Apart => "apart",
            Placement::Stacked => "stacked",
            Placement::Free => "free",
        }
    }

    fn says(self) -> &'static str {
        match self {
            Placement::Apart => "apart: server on CPU 0, client on CPU 1",
            Placement::Stacked => "stacked: server and client share CPU 0",
            Placement::Free => "free: the scheduler decides",
        }
    }

    fn server(self) -> Option<usize> {
        (self != Placement::Free).then_some(0)
    }

    fn client(self) -> Option<usize> {
        match self {
            Placement::Apart => Some(1),
            Placement::Stacked => Some(0),
            Placement::Free => None,
        }
    }
}

/// Extent of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds over all servers; the table shows medians.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Seconds of each run.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Placement of client and server; may be repeated.
    #[arg(long, value_enum, default_value = "apart", value_delimiter = ',')]
    placement: Vec<Placement>,
    /// Size of the served disk in MiB; it lies in memory three times.
    #[arg(long, default_value_t = 512, value_name = "MIB")]
    size: u32,
    /// Only jobs whose name contains this.
    #[arg(long, value_name = "TEXT")]
    job: Option<String>,
    /// Compare this build with another build of blockyard, without the other servers.
    #[arg(long, value_name = "BINARY")]
    against: Option<PathBuf>,
    /// Compare this build with and without its sandbox, without the other servers.
    #[arg(long, conflicts_with = "against")]
    sandbox: bool,
    /// Serve over TLS; neither end checks certificates.
    #[arg(long)]
    tls: bool,
    /// Also write every run and the medians to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the table and the plot of the front page.
    #[arg(long, conflicts_with_all = ["against", "sandbox", "tls", "job"])]
    readme: bool,
}

impl Args {
    pub(crate) fn smoke(tls: bool) -> Args {
        Args {
            rounds: 1,
            seconds: 0.3,
            placement: vec![Placement::Free],
            size: 64,
            job: Some(if tls { "read 4 KiB q32, 4" } else { "q32" }.into()),
            against: None,
            sandbox: false,
            tls,
            json: None,
            readme: false,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(args.rounds > 0 && args.size > 0, "nothing to measure");
    let jobs: Vec<&Job> = JOBS
        .iter()
        .filter(|job| args.job.as_ref().is_none_or(|part| job.name.contains(part.as_str())))
        .collect();
    ensure!(!jobs.is_empty(), "no job of that name");
    let lab = Lab::new()?;
    let images = Images::make(&lab, args.size)?;
    let pki = args.tls.then(|| Pki::make(&lab)).transpose()?;
    let machine = machine::describe();
    machine::print(&machine);
    let mut samples = Vec::new();
    let mut medians = Vec::new();
    for placement in &args.placement {
        let on = Conditions { cpu: placement.server(), tls: pki.as_ref() };
        let peers = match &args.against {
            Some(before) => peers::start_both(&lab, &images, before, on)?,
            None if args.sandbox => peers::start_sandboxed(&lab, &images, on)?,
            None => peers::start_all(&lab, &images, on)?,
        };
        let other = if args.sandbox { peers::OPEN } else { peers::BEFORE };
        let taken = measure(&peers, &jobs, *placement, args)?;
        println!(
            "\n=== {}{}; {} rounds of {} s, medians; x: of {PLAIN}",
            placement.says(),
            if args.tls { "; TLS" } else { "" },
            args.rounds,
            args.seconds
        );
        for job in &jobs {
            let rows = table::rows(&taken, job);
            table::print(job, &rows, PLAIN);
            medians.extend(rows);
            if args.against.is_some() || args.sandbox {
                print_ratios(&taken, job, other);
            }
        }
        samples.extend(taken);
    }
    if let Some(path) = &args.json {
        let run = json!({
            "machine": machine,
            "rounds": args.rounds,
            "seconds": args.seconds,
            "size_mib": args.size,
            "tls": args.tls,
        });
        table::write_json(path, run, &medians, &samples)?;
    }
    if args.readme {
        let placement = args.placement[0];
        medians.retain(|median| median.placement == placement.name());
        let conditions =
            format!("{} rounds of {} s, {}", args.rounds, args.seconds, placement.says());
        readme::write(&machine, &conditions, &medians)?;
    }
    Ok(())
}

/// Prints the ratio of this build to the other server for each round, with median and range.
fn print_ratios(samples: &[Sample], job: &Job, other: &'static str) {
    print_ratio(("speed", other), samples, job, |sample| sample.mib_s);
    print_ratio(("CPU", other), samples, job, |sample| sample.cpu_us);
}

fn print_ratio(
    (name, other): (&str, &'static str),
    samples: &[Sample],
    job: &Job,
    figure: fn(&Sample) -> f64,
) {
    let of = |server: &'static str| {
        samples
            .iter()
            .filter(move |sample| sample.server == server && sample.job == job.name)
            .map(figure)
    };
    let pairs = of(peers::OURS).zip(of(other));
    let mut ratios: Vec<f64> = pairs.map(|(now, then)| now / then).collect();
    ratios.sort_by(f64::total_cmp);
    let [least, .., most] = ratios[..] else { return };
    let median = table::middle(ratios);
    println!("  {name} of \"{other}\": median {median:.3}, from {least:.3} to {most:.3}");
}

fn measure(
    peers: &[Peer],
    jobs: &[&Job],
    placement: Placement,
    args: &Args,
) -> Result<Vec<Sample>> {
    for peer in peers {
        warm(&peer.uri, args.size).with_context(|| peer.name)?;
    }
    let mut samples = Vec::new();
    for round in 0..args.rounds {
        for job in jobs {
            for index in 0..peers.len() {
                // Odd rounds run in reverse order, so that a slowdown of the machine favours no
                // server.
                let backwards = peers.len() - 1 - index;
                let peer = &peers[if round % 2 == 0 { index } else { backwards }];
                progress(&format!("{} {round} {}: {}", placement.name(), job.name, peer.name));
                let sample =
                    moving(args.seconds, |seconds| one(peer, job, placement, seconds, args.size));
                samples.push(sample.with_context(|| format!("{}: {}", job.name, peer.name))?);
            }
        }
    }
    progress("");
    Ok(samples)
}

pub(super) fn one(
    peer: &Peer,
    job: &Job,
    placement: Placement,
    seconds: f64,
    size_mib: u32,
) -> Result<Sample> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds of a run")]
    let millis = (seconds * 1000.0) as u32;
    let run = Run { uri: &peer.uri, cpu: placement.client(), millis, size_mib };
    let before = peer.process.cpu_ns()?;
    let seen = job.run(&run)?;
    let cpu_us = (peer.process.cpu_ns()? - before) as f64 / 1000.0;
    let units = if job.counts_mib() { seen.bytes / f64::from(1 << 20) } else { seen.requests };
    let ran_s = seen.requests / seen.iops.max(1.0);
    ensure!(units > 0.0, NothingMoved);
    Ok(Sample {
        server: peer.name,
        job: job.name,
        placement: placement.name(),
        mib_s: seen.mib_s,
        iops: seen.iops,
        p50_us: seen.p50_us,
        p99_us: seen.p99_us,
        cpu_us: cpu_us / units,
        server_cores: cpu_us / 1e6 / ran_s,
        client_cores: seen.cores,
    })
}
