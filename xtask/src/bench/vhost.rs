//! `cargo x bench vhost`: one LUKS1 image as the disk of a virtual machine, the same client and the
//! same loop on every door, rounds interleaved.
//!
//! A client of vhost-user waits for the server's signal or polls the ring. With one queue, server
//! and client have a CPU each. With two queues the scheduler places them, and two CPUs are too few
//! for two pollers and two queues, so that nothing polls.

use super::fio::Job;
use super::nbd::Placement;
use super::peers::{self, Conditions, Images, Peer};
use super::table::{self, Sample};
use super::{NothingMoved, machine, moving, progress};
use crate::lab::{self, Lab};
use crate::process::Watched;
use crate::tools;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Name of the row that all others are compared with.
const BARE: &str = "bare cipher";

const fn job(name: &'static str, rw: &'static str, block: &'static str, depth: u32) -> Job {
    Job { name, rw, block, depth, connections: 1 }
}

const fn two_queues(name: &'static str, rw: &'static str, block: &'static str, depth: u32) -> Job {
    Job { name, rw, block, depth, connections: 2 }
}

const JOBS: &[Job] = &[
    job("read 1 MiB q8", "read", "1m", 8),
    job("write 1 MiB q8", "write", "1m", 8),
    job("read 4 KiB q1", "randread", "4k", 1),
    job("write 4 KiB q1", "randwrite", "4k", 1),
    job("read 4 KiB q32", "randread", "4k", 32),
    job("write 4 KiB q32", "randwrite", "4k", 32),
    two_queues("read 1 MiB q8, 2 queues", "read", "1m", 8),
    two_queues("write 1 MiB q8, 2 queues", "write", "1m", 8),
    two_queues("read 4 KiB q32, 2 queues", "randread", "4k", 32),
    two_queues("write 4 KiB q32, 2 queues", "randwrite", "4k", 32),
];

/// Extent of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds over all rows; the table shows medians.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Seconds of each run.
    #[arg(long, default_value_t = 0.7)]
    seconds: f64,
    /// Size of the served disk in MiB; it lies in memory three times.
    #[arg(long, default_value_t = 512, value_name = "MIB")]
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
        Args { rounds: 1, seconds: 0.1, size: 64, job: Some("q32".into()), json: None }
    }
}

/// A row of the table: a server or none, and the way to it.
struct Row<'a> {
    name: &'static str,
    server: Option<&'a Peer>,
    /// Client and its first arguments.
    client: PathBuf,
    door: Vec<String>,
    is_polled: bool,
}

/// The built clients.
struct Clients {
    client: PathBuf,
    bare: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(args.rounds > 0 && args.size > 0, "nothing to measure");
    let is_wanted =
        |job: &&Job| args.job.as_ref().is_none_or(|part| job.name.contains(part.as_str()));
    let jobs: Vec<&Job> = JOBS.iter().filter(is_wanted).collect();
    ensure!(!jobs.is_empty(), "no job of that name");
    let lab = Lab::new()?;
    let clients = Clients {
        client: lab::build_vhost_client()?,
        bare: lab::build_example("blockyard-host", "bare_bench")?,
    };
    let images = Images::make(&lab, args.size)?;
    let machine = machine::describe();
    machine::print(&machine);
    if let Err(missing) = tools::need("qemu-storage-daemon") {
        println!("\nno rows of QEMU: {missing}");
    }
    let mut samples = Vec::new();
    let mut medians = Vec::new();
    for queues in [1, 2] {
        let jobs: Vec<&Job> =
            jobs.iter().copied().filter(|job| job.connections == queues).collect();
        if jobs.is_empty() {
            continue;
        }
        let taken = measure(&lab, &images, &clients, &jobs, args)?;
        let placement = if queues == 1 { "a CPU each" } else { "placed by the scheduler" };
        println!(
            "\n=== {queues} queue(s), server and client {placement}; {} rounds of {} s, medians; \
             x: of the {BARE}",
            args.rounds, args.seconds
        );
        for job in jobs {
            let rows = table::rows(&taken, job);
            table::print(job, &rows, BARE);
            medians.extend(rows);
        }
        samples.extend(taken);
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

/// A server with a socket for virtual machines, for `cargo x bench cores`.
pub(super) struct Disk {
    peer: Peer,
    client: PathBuf,
}

/// Starts the servers that sleep while they are idle.
pub(super) fn start_all(lab: &Lab, images: &Images) -> Result<Vec<Disk>> {
    let client = lab::build_vhost_client()?;
    let peers = peers::start_vhost_user(lab, images, Conditions::default())?;
    let sleeps = |peer: &Peer| peer.name != peers::POLLED;
    let disk = |peer| Disk { peer, client: client.clone() };
    Ok(peers.into_iter().filter(sleeps).map(disk).collect())
}

impl Disk {
    pub(super) fn name(&self) -> &'static str {
        self.peer.name
    }

    fn row(&self) -> Result<Row<'_>> {
        let socket = self.peer.vhost_user.as_ref().context("it has a socket")?;
        Ok(Row {
            name: self.peer.name,
            server: Some(&self.peer),
            client: self.client.clone(),
            door: vec!["vhost-user".into(), socket.display().to_string()],
            is_polled: false,
        })
    }

    /// Writes and reads the whole disk: later runs have no newly touched pages.
    pub(super) fn warm(&self, size_mib: u32) -> Result<()> {
        warm(&self.row()?, size_mib, Placement::Free)
    }

    /// A run of a job with a queue for each of its connections.
    pub(super) fn sample(&self, job: &Job, seconds: f64, size_mib: u32) -> Result<Sample> {
        one(&self.row()?, job, (&milliseconds(seconds), size_mib), Placement::Free)
    }
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.0}ms", seconds * 1000.0)
}

fn warm(row: &Row, size_mib: u32, placement: Placement) -> Result<()> {
    for rw in ["write", "read"] {
        let whole = Job { name: "warm", rw, block: "1m", depth: 4, connections: 1 };
        one(row, &whole, (&size_mib.to_string(), size_mib), placement).context(row.name)?;
    }
    Ok(())
}

/// Runs jobs of one number of queues.
fn measure(
    lab: &Lab,
    images: &Images,
    clients: &Clients,
    jobs: &[&Job],
    args: &Args,
) -> Result<Vec<Sample>> {
    let is_pinned = jobs[0].connections == 1;
    let on = Conditions { cpu: is_pinned.then_some(0), tls: None };
    let peers = peers::start_vhost_user(lab, images, on)?;
    let rows = rows(&peers, clients, &images.plain);
    let placement = if is_pinned { Placement::Apart } else { Placement::Free };
    for row in rows.iter().filter(|row| !row.is_polled && row.server.is_some()) {
        // No run has the cost of newly touched pages.
        warm(row, args.size, Placement::Apart)?;
    }
    let mut samples = Vec::new();
    for round in 0..args.rounds {
        for job in jobs {
            for index in 0..rows.len() {
                // Odd rounds run in reverse order: a slowdown of the machine favours no row.
                let backwards = rows.len() - 1 - index;
                let row = &rows[if round % 2 == 0 { index } else { backwards }];
                if row.is_polled && job.connections > 1 {
                    continue;
                }
                progress(&format!("{round} {}: {}", job.name, row.name));
                let sample = moving(args.seconds, |seconds| {
                    one(row, job, (&milliseconds(seconds), args.size), placement)
                });
                samples.push(sample.with_context(|| format!("{}: {}", job.name, row.name))?);
            }
        }
    }
    progress("");
    Ok(samples)
}

fn rows<'a>(peers: &'a [Peer], clients: &Clients, plain: &Path) -> Vec<Row<'a>> {
    let row = |name, peer, door: &str, path: &Path| Row {
        name,
        server: Some(peer),
        client: clients.client.clone(),
        door: vec![door.into(), path.display().to_string()],
        is_polled: door == "vhost-user-polled",
    };
    let mut rows = Vec::new();
    for peer in peers {
        let Some(socket) = &peer.vhost_user else { continue };
        let polled = match peer.name {
            peers::OURS => "blockyard, polled client",
            "qemu luks" => "qemu luks, polled client",
            peers::PLAIN_DISK => "qemu plain, polled client",
            // This server polls, so its client does too.
            _ => {
                rows.push(row(peer.name, peer, "vhost-user-polled", socket));
                continue;
            }
        };
        rows.push(row(peer.name, peer, "vhost-user", socket));
        rows.push(row(polled, peer, "vhost-user-polled", socket));
    }
    if let Some(ours) = peers.iter().find(|peer| peer.name == peers::OURS) {
        let path = ours.uri.rsplit('=').next().unwrap_or_default();
        rows.push(row("blockyard over NBD", ours, "nbd", Path::new(path)));
    }
    let door = vec![plain.display().to_string()];
    rows.push(Row {
        name: BARE,
        server: None,
        client: clients.bare.clone(),
        door,
        is_polled: false,
    });
    rows
}

/// One run. The client connects before the clocks are read.
fn one(
    row: &Row,
    job: &Job,
    (limit, size_mib): (&str, u32),
    placement: Placement,
) -> Result<Sample> {
    let mut client = Command::new(&row.client);
    if placement == Placement::Apart {
        client = Command::new("taskset");
        let cpu = if row.server.is_some() { "1" } else { "0" };
        client.args(["-c", cpu]).arg(&row.client);
    }
    client.args(&row.door).args(words(job, limit, size_mib));
    let mut child = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let process = Watched(child.id());
    let mut lines = BufReader::new(child.stdout.take().context("a pipe")?);
    let mut line = String::new();
    lines.read_line(&mut line)?;
    ensure!(line == "ready\n", "the client does not connect");
    let cpu_ns = |process: Option<Watched>| process.map_or(Ok(0), Watched::cpu_ns);
    let server = row.server.map(|peer| peer.process);
    let before = (cpu_ns(server)?, process.cpu_ns()?);
    writeln!(child.stdin.take().context("a pipe")?)?;
    line.clear();
    lines.read_line(&mut line)?;
    let after = (cpu_ns(server)?, process.cpu_ns()?);
    if !child.wait()?.success() {
        bail!("the client failed");
    }
    let seen: Value = serde_json::from_str(&line).context("the client's JSON")?;
    let server_us = (after.0 - before.0) as f64 / 1000.0;
    let client_us = (after.1 - before.1) as f64 / 1000.0;
    sample(row, job, &seen, (server_us, client_us), placement)
}

fn words(job: &Job, limit: &str, size_mib: u32) -> Vec<String> {
    let rw = if job.rw.ends_with("read") { "read" } else { "write" };
    let order = if job.rw.starts_with("rand") { "random" } else { "in-order" };
    let len_bytes = if job.counts_mib() { 1 << 20 } else { 4096 };
    let size_bytes = u64::from(size_mib) << 20;
    [rw, order]
        .map(str::to_owned)
        .into_iter()
        .chain([len_bytes, job.depth, job.connections].map(|number: u32| number.to_string()))
        .chain([size_bytes.to_string(), limit.to_owned()])
        .collect()
}

fn sample(
    row: &Row,
    job: &Job,
    seen: &Value,
    cpu_us: (f64, f64),
    placement: Placement,
) -> Result<Sample> {
    let number = |name: &str| seen[name].as_f64().with_context(|| format!("no {name}"));
    let requests = number("requests")?;
    let seconds = number("seconds")?;
    ensure!(requests > 0.0, NothingMoved);
    let mib = number("bytes")? / f64::from(1 << 20);
    // The bare cipher is its own server.
    let (server_us, client_us) = if row.server.is_some() { cpu_us } else { (cpu_us.1, 0.0) };
    Ok(Sample {
        server: row.name,
        job: job.name,
        placement: placement.name(),
        mib_s: mib / seconds,
        iops: requests / seconds,
        p50_us: number("p50_us")?,
        p99_us: number("p99_us")?,
        cpu_us: server_us / if job.counts_mib() { mib } else { requests },
        server_cores: server_us / 1e6 / seconds,
        client_cores: client_us / 1e6 / seconds,
    })
}
