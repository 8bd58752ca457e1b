//! `cargo x bench cluster`: encrypted volumes of one server on small Ceph clusters, rounds
//! interleaved.
//!
//! The disks of the OSDs are in memory, because those of small machines vary too much. The daemons
//! of a cluster have one CPU, the server and its clients another one. So more OSDs make nothing
//! faster here: the table shows the costs of a request, and what copies and volumes add.
//!
//! The lab's model of a cluster is fitted to the first cluster with one volume, and judged by all
//! other rows (`ceph-2026`).

use super::fio::{self, FioResult, Job};
use super::scale::Server;
use super::table::middle;
use super::{machine, progress};
use crate::ceph::Cluster;
use crate::lab::Lab;
use crate::process::Watched;
use crate::tools::{self, tool};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

const JOBS: &[Job] = &[
    Job { name: "read 4 KiB q1", rw: "randread", block: "4k", depth: 1, connections: 1 },
    Job { name: "read 4 KiB q32", rw: "randread", block: "4k", depth: 32, connections: 1 },
    Job { name: "write 4 KiB q1", rw: "randwrite", block: "4k", depth: 1, connections: 1 },
    Job { name: "write 4 KiB q32", rw: "randwrite", block: "4k", depth: 32, connections: 1 },
    Job { name: "read 1 MiB q4", rw: "randread", block: "1m", depth: 4, connections: 1 },
    Job { name: "write 1 MiB q4", rw: "randwrite", block: "1m", depth: 4, connections: 1 },
];

/// CPU of the clusters, and that of the server and the clients.
const CPU_OF_CLUSTER: &str = "1";
const CPU_OF_CLIENT: &str = "0";

/// Extent of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds over all rows; the tables show medians.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Seconds of each run.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Numbers of volumes with clients.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16])]
    volumes: Vec<u32>,
    /// OSDs and copies of each cluster.
    #[arg(long, value_delimiter = ',', default_value = "1/1,3/1,3/2,3/3", value_parser = size)]
    clusters: Vec<(u32, u32)>,
    /// Size of the data of a volume in MiB.
    #[arg(long, default_value_t = 16, value_name = "MIB")]
    size: u32,
    /// Also write all runs to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Args {
    pub(crate) fn smoke() -> Args {
        let clusters = vec![(2, 2)];
        Args { rounds: 1, seconds: 0.2, volumes: vec![1, 2], clusters, size: 4, json: None }
    }
}

/// Reads OSDs and copies, as in `3/2`.
fn size(text: &str) -> Result<(u32, u32), String> {
    let numbers = text
        .split_once('/')
        .and_then(|(osds, copies)| Some((osds.parse::<u32>().ok()?, copies.parse::<u32>().ok()?)));
    let is_possible = |(osds, copies): &(u32, u32)| *copies > 0 && osds >= copies;
    numbers.filter(is_possible).ok_or_else(|| "needs OSDs/COPIES, such as 3/2".to_owned())
}

/// A cluster with volumes.
struct Place {
    cluster: Cluster,
    osds: u32,
    copies: u32,
    volumes: Vec<String>,
}

/// One run.
struct Run {
    osds: u32,
    copies: u32,
    volumes: u32,
    job: &'static Job,
    seen: FioResult,
    /// CPU time of a request in microseconds: of the clients, of the server, and of all daemons of
    /// the cluster.
    client_us: f64,
    server_us: f64,
    cluster_us: f64,
}

/// One start of a server.
struct Start {
    volumes: u32,
    opened_ms: f64,
    rss_mib: f64,
    threads: usize,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(args.rounds > 0 && args.size > 0, "nothing to measure");
    let most = args.volumes.iter().max().copied().unwrap_or(0);
    ensure!(most > 0, "--volumes needs numbers above 0");
    tools::need("taskset")?;
    let lab = Lab::new()?;
    let machine = machine::describe();
    machine::print(&machine);
    let places: Result<Vec<Place>> = args
        .clusters
        .iter()
        .map(|(osds, copies)| {
            progress(&format!("a cluster of {osds} OSDs with {copies} copies"));
            place(&lab, *osds, *copies, most, args.size)
        })
        .collect();
    let places = places?;
    let mut runs = Vec::new();
    let mut starts = Vec::new();
    for round in 0..args.rounds {
        for volumes in &args.volumes {
            for index in 0..places.len() {
                // Odd rounds run in reverse order, so that a slowdown favours no cluster.
                let backwards = places.len() - 1 - index;
                let place = &places[if round % 2 == 0 { index } else { backwards }];
                measure(&lab, place, *volumes, args, &mut runs, &mut starts)?;
            }
        }
    }
    progress("");
    print(&runs, &starts, args);
    if let Some(path) = &args.json {
        let all: Vec<Value> = runs.iter().map(Run::json).collect();
        let text = json!({ "machine": machine, "seconds": args.seconds, "runs": all });
        fs::write(path, format!("{text:#}\n")).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Makes a cluster on its CPU, and volumes that are filled once.
fn place(lab: &Lab, osds: u32, copies: u32, count: u32, size_mib: u32) -> Result<Place> {
    let cluster = Cluster::of(lab.path(&format!("ceph-{osds}-{copies}")), osds, copies)?;
    cluster.all().into_iter().try_for_each(|daemon| pin(daemon, CPU_OF_CLUSTER))?;
    let pass = lab.pass().display().to_string();
    let cheap = ["--pbkdf-memory", "32", "--pbkdf-force-iterations", "4", "--batch-mode"];
    let volume = |number: u32| -> Result<String> {
        // The header takes 16 MiB.
        let name = cluster.image(&format!("v{number}"), size_mib + 16)?;
        let format = ["format", &name, "--key-file", &pass];
        tools::run(&mut lab.blockyard(&[&format[..], &cheap].concat()))?;
        Ok(name)
    };
    let volumes: Vec<String> = (0..count).map(volume).collect::<Result<_>>()?;
    let place = Place { osds, copies, volumes, cluster };
    let server = serve(lab, &place, count)?;
    for number in 0..count {
        fio::warm(&server.uri(&format!("v{number}")), size_mib)?;
    }
    Ok(place)
}

/// Moves a process to a CPU, with the threads that it has and will have.
fn pin(process: Watched, cpu: &str) -> Result<()> {
    let pid = process.0.to_string();
    tools::run(tool("taskset").args(["-a", "-c", "-p", cpu, &pid])).map(drop)
}

/// A server of the first volumes.
fn serve(lab: &Lab, place: &Place, count: u32) -> Result<Server> {
    let names: Vec<String> = (0..count).map(|number| format!("v{number}")).collect();
    let volumes = names.iter().map(String::as_str).zip(place.volumes.iter().cloned());
    let server = Server::of_volumes(lab, &volumes.collect::<Vec<_>>(), "--max-connections=256")?;
    pin(server.process, CPU_OF_CLIENT)?;
    Ok(server)
}

/// Runs all jobs on the first volumes of a cluster.
fn measure(
    lab: &Lab,
    place: &Place,
    count: u32,
    args: &Args,
    runs: &mut Vec<Run>,
    starts: &mut Vec<Start>,
) -> Result<()> {
    let Place { osds, copies, .. } = place;
    let server = serve(lab, place, count)?;
    let daemons = place.cluster.all();
    let of_cluster = || daemons.iter().map(|daemon| daemon.cpu_ns()).sum::<Result<u64>>();
    for job in JOBS {
        progress(&format!("{osds} OSDs, {copies} copies, {count} volumes: {}", job.name));
        let before = (server.cpu_ns()?, of_cluster()?);
        let seen = clients(&server, job, count, args)?;
        let us = |now: u64, before: u64| (now - before) as f64 / 1000.0 / seen.requests.max(1.0);
        let server_us = us(server.cpu_ns()?, before.0);
        let cluster_us = us(of_cluster()?, before.1);
        // fio reports the mean of its threads.
        let client_us = seen.cores * f64::from(count) * 1e6 / seen.iops.max(1.0);
        let run = Run {
            osds: *osds,
            copies: *copies,
            volumes: count,
            job,
            seen,
            client_us,
            server_us,
            cluster_us,
        };
        runs.push(run);
    }
    starts.push(Start {
        volumes: count,
        opened_ms: server.opened.as_secs_f64() * 1000.0,
        rss_mib: server.process.rss_mib()?,
        threads: server.process.threads()?,
    });
    Ok(())
}

/// A client of each volume, all in one process and at once.
fn clients(server: &Server, job: &Job, count: u32, args: &Args) -> Result<FioResult> {
    let mut fio = tool("taskset");
    fio.args(["-c", CPU_OF_CLIENT, "fio", "--ioengine=nbd", "--output-format=json", "--thread"]);
    fio.args(["--group_reporting", "--time_based", "--randrepeat=0", "--norandommap"]);
    fio.arg(format!("--runtime={}ms", (args.seconds * 1000.0) as u32));
    fio.arg(format!("--size={}m", args.size)).arg(format!("--rw={}", job.rw));
    fio.arg(format!("--bs={}", job.block)).arg(format!("--iodepth={}", job.depth));
    for number in 0..count {
        let uri = server.uri(&format!("v{number}"));
        fio.arg(format!("--name=v{number}")).arg(format!("--uri={uri}"));
    }
    job.seen(&fio::job(&tools::text(&tools::run(&mut fio)?.stdout))?)
}

impl Run {
    fn json(&self) -> Value {
        json!({
            "osds": self.osds, "copies": self.copies, "volumes": self.volumes,
            "job": self.job.name, "iops": self.seen.iops, "mib_s": self.seen.mib_s,
            "p50_us": self.seen.p50_us, "p99_us": self.seen.p99_us,
            "client_us": self.client_us, "server_us": self.server_us, "cluster_us": self.cluster_us,
        })
    }
}

fn print(runs: &[Run], starts: &[Start], args: &Args) {
    println!("\n=== {} rounds of {} s, medians", args.rounds, args.seconds);
    for job in JOBS {
        println!(
            "\n{:<16}{:>4} {:>6} {:>7}  {:>7} {:>7} {:>9} {:>9}  {:>6} {:>8} {:>7}",
            job.name,
            "OSDs",
            "copies",
            "volumes",
            "IOPS",
            "MiB/s",
            "p50 us",
            "p99 us",
            "fio us",
            "serve us",
            "Ceph us"
        );
        for (osds, copies) in &args.clusters {
            for volumes in &args.volumes {
                let is_of_row = |run: &&Run| {
                    (run.osds, run.copies, run.volumes) == (*osds, *copies, *volumes)
                        && run.job.name == job.name
                };
                let row: Vec<&Run> = runs.iter().filter(is_of_row).collect();
                let median =
                    |value: fn(&Run) -> f64| middle(row.iter().map(|run| value(run)).collect());
                println!(
                    "{:<16}{osds:>4} {copies:>6} {volumes:>7}  {:>7.0} {:>7.1} {:>9.0} {:>9.0}  \
                     {:>6.0} {:>8.0} {:>7.0}",
                    "",
                    median(|run| run.seen.iops),
                    median(|run| run.seen.mib_s),
                    median(|run| run.seen.p50_us),
                    median(|run| run.seen.p99_us),
                    median(|run| run.client_us),
                    median(|run| run.server_us),
                    median(|run| run.cluster_us),
                );
            }
        }
    }
    println!("\n{:>7}  {:>8}  {:>8}  {:>7}", "volumes", "open ms", "RSS MiB", "threads");
    for volumes in &args.volumes {
        let row: Vec<&Start> = starts.iter().filter(|start| start.volumes == *volumes).collect();
        let median =
            |value: fn(&Start) -> f64| middle(row.iter().map(|start| value(start)).collect());
        println!(
            "{volumes:>7}  {:>8.0}  {:>8.0}  {:>7.0}",
            median(|start| start.opened_ms),
            median(|start| start.rss_mib),
            median(|start| start.threads as f64),
        );
    }
}
