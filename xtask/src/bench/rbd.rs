//! `cargo x bench rbd`: images of a small Ceph cluster on this machine, rounds interleaved.
//!
//! Blockyard encrypts, in `blockyard bench` and behind `serve`. fio's engine has the same library
//! and no encryption: its CPU time is the price of librbd. CPU time is that of all threads of the
//! program, and of its server if there is one. The cluster's own processes share the CPUs, so rates
//! are low and CPU time is the figure to compare.

use super::fio::{self, Job};
use super::table::{self, Sample};
use super::{machine, progress};
use crate::ceph::{Cluster, POOL};
use crate::lab::{Lab, Server};
use crate::process::Watched;
use crate::tools::{self, tool};
use anyhow::{Context, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::json;
use std::path::PathBuf;
use std::process::Command;

const JOBS: &[Job] = &[
    Job { name: "read 4 KiB q32", rw: "randread", block: "4k", depth: 32, connections: 1 },
    Job { name: "write 4 KiB q32", rw: "randwrite", block: "4k", depth: 32, connections: 1 },
    Job { name: "read 1 MiB q8", rw: "read", block: "1m", depth: 8, connections: 1 },
    Job { name: "write 1 MiB q8", rw: "write", block: "1m", depth: 8, connections: 1 },
];

/// Name of the row that all others are compared with.
const PLAIN: &str = "fio rbd, unencrypted";

/// Extent of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds over all programs; the table shows medians.
    #[arg(long, default_value_t = 4)]
    rounds: u32,
    /// Seconds of each run.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Size of the images in MiB.
    #[arg(long, default_value_t = 256, value_name = "MIB")]
    size: u32,
    /// Only jobs whose name contains this.
    #[arg(long, value_name = "TEXT")]
    job: Option<String>,
    /// Also write every run and the medians to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Args {
    pub(crate) fn smoke() -> Args {
        Args { rounds: 1, seconds: 0.5, size: 32, job: Some("4 KiB".into()), json: None }
    }
}

/// A program of the comparison.
struct Program {
    name: &'static str,
    /// Its client, without the job.
    client: Box<dyn Fn() -> Command>,
    server: Option<Watched>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(args.rounds > 0 && args.size > 0, "nothing to measure");
    let wanted = |job: &&Job| args.job.as_ref().is_none_or(|part| job.name.contains(part.as_str()));
    let jobs: Vec<&Job> = JOBS.iter().filter(wanted).collect();
    ensure!(!jobs.is_empty(), "no job of that name");
    let lab = Lab::new()?;
    let cluster = Cluster::start(&lab)?;
    let machine = machine::describe();
    machine::print(&machine);
    let (programs, _served) = programs(&lab, &cluster, args)?;
    let samples = measure(&programs, &jobs, args)?;
    println!("\n=== {} rounds of {} s, medians; x: of {PLAIN}", args.rounds, args.seconds);
    let mut medians = Vec::new();
    for job in jobs {
        let rows = table::rows(&samples, job);
        table::print(job, &rows, PLAIN);
        medians.extend(rows);
    }
    if let Some(path) = &args.json {
        let run = json!({
            "machine": machine,
            "rounds": args.rounds,
            "seconds": args.seconds,
            "size_mib": args.size,
        });
        table::write_json(path, run, &medians, &samples)?;
    }
    Ok(())
}

/// Makes the images, and the programs with their servers.
fn programs(lab: &Lab, cluster: &Cluster, args: &Args) -> Result<(Vec<Program>, Server)> {
    let pass = lab.pass().display().to_string();
    let cheap = ["--pbkdf-memory", "32", "--pbkdf-force-iterations", "4", "--batch-mode"];
    for image in ["inside", "served", "plain"] {
        // The header takes 16 MiB.
        let name = cluster.image(image, args.size + 16)?;
        if image != "plain" {
            let format = ["format", &name, "--key-file", &pass];
            tools::run(&mut lab.blockyard(&[&format[..], &cheap].concat()))?;
        }
    }
    let server = lab.serve("rbd", &[&cluster.name("served", ""), "--key-file", &pass])?;
    let inside = cluster.name("inside", "");
    let conf = cluster.conf();
    let uri = server.uri();
    let binary = lab.binary().to_owned();
    let programs = vec![
        Program {
            name: "blockyard bench",
            client: Box::new(move || {
                let mut bench = Command::new(&binary);
                bench.args(["bench", &inside, "--key-file", &pass, "--json", "--destroy", "--"]);
                bench.args(["--ioengine=libaio"]);
                bench
            }),
            server: None,
        },
        Program {
            name: "blockyard serve, fio nbd",
            client: Box::new(move || {
                let mut fio = tool("fio");
                fio.args(["--ioengine=nbd", "--name=job", "--output-format=json"]);
                fio.arg(format!("--uri={uri}"));
                fio
            }),
            server: Some(server.process()),
        },
        Program {
            name: PLAIN,
            client: Box::new(move || {
                let mut fio = tool("fio");
                fio.env("CEPH_CONF", &conf).args(["--ioengine=rbd", "--clientname=admin"]);
                fio.args(["--name=job", "--output-format=json", "--rbdname=plain"]);
                fio.arg(format!("--pool={POOL}"));
                fio
            }),
            server: None,
        },
    ];
    Ok((programs, server))
}

fn measure(programs: &[Program], jobs: &[&Job], args: &Args) -> Result<Vec<Sample>> {
    for program in programs {
        // No run has the cost of new objects.
        let mut fill = (program.client)();
        fill.args(["--rw=write", "--bs=1m", "--iodepth=8"]);
        tools::run(fill.arg(format!("--size={}m", args.size))).context(program.name)?;
    }
    let mut samples = Vec::new();
    for round in 0..args.rounds {
        for job in jobs {
            for index in 0..programs.len() {
                // Odd rounds run in reverse order, so that a slowdown favours no program.
                let backwards = programs.len() - 1 - index;
                let program = &programs[if round % 2 == 0 { index } else { backwards }];
                progress(&format!("{round} {}: {}", job.name, program.name));
                let sample = one(program, job, args);
                samples.push(sample.with_context(|| format!("{}: {}", job.name, program.name))?);
            }
        }
    }
    progress("");
    Ok(samples)
}

fn one(program: &Program, job: &Job, args: &Args) -> Result<Sample> {
    let mut client = (program.client)();
    client.args(["--time_based", "--randrepeat=0", "--norandommap"]);
    client.arg(format!("--runtime={}ms", (args.seconds * 1000.0) as u32));
    client.arg(format!("--size={}m", args.size)).arg(format!("--rw={}", job.rw));
    client.arg(format!("--bs={}", job.block)).arg(format!("--iodepth={}", job.depth));
    let before_us = cpu_us(program)?;
    let said = tools::text(&tools::run(&mut client)?.stdout);
    let used_us = cpu_us(program)? - before_us;
    let seen = job.seen(&fio::job(&said)?)?;
    let units = if job.counts_mib() { seen.bytes / f64::from(1 << 20) } else { seen.requests };
    let ran_s = seen.requests / seen.iops.max(1.0);
    ensure!(units > 0.0, "nothing was moved");
    Ok(Sample {
        server: program.name,
        job: job.name,
        placement: "free",
        mib_s: seen.mib_s,
        iops: seen.iops,
        p50_us: seen.p50_us,
        p99_us: seen.p99_us,
        cpu_us: used_us / units,
        server_cores: used_us / 1e6 / ran_s,
        client_cores: seen.cores,
    })
}

/// CPU time of all ended clients and of the server.
fn cpu_us(program: &Program) -> Result<f64> {
    let clients = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let us = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 * 1e6 + time.tv_usec() as f64;
    let of_server = program.server.map(Watched::cpu_ns).transpose()?.unwrap_or_default();
    Ok(us(clients.user_time()) + us(clients.system_time()) + of_server as f64 / 1000.0)
}
