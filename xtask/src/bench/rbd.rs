//! `cargo x bench rbd`: images of a small Ceph cluster on this machine, rounds interleaved.
//!
//! Blockyard encrypts, in `blockyard bench`, behind `serve`, and behind two processes of which only
//! one has keys. QEMU encrypts on its own driver, if it is installed. fio's engine has the same
//! library and no encryption: its CPU time is the price of librbd. CPU time is that of all threads
//! of the program, and of its servers if there are any. The cluster's own processes share the CPUs,
//! so rates are low and CPU time is the figure to compare.

use super::fio::{self, Job};
use super::table::{self, Sample};
use super::{NothingMoved, machine, moving, progress};
use crate::ceph::{Cluster, POOL};
use crate::lab::{Lab, Server};
use crate::process::{Watched, until};
use crate::tools::{self, tool};
use anyhow::{Context, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::json;
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

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
    servers: Vec<Watched>,
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
    let servers = servers(&lab, &cluster, args)?;
    let programs = programs(&lab, &cluster, &servers);
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

/// Servers, which end with the value.
struct Servers {
    /// One process; then one that passes ciphertext on, and one with the keys.
    ours: [Server; 3],
    qemu: Option<(Child, PathBuf)>,
}

impl Drop for Servers {
    fn drop(&mut self) {
        if let Some((qemu, _)) = &mut self.qemu {
            let _ = qemu.kill();
            let _ = qemu.wait();
        }
    }
}

/// Makes the images, and starts the servers.
fn servers(lab: &Lab, cluster: &Cluster, args: &Args) -> Result<Servers> {
    let pass = lab.pass().display().to_string();
    let cheap = ["--pbkdf-memory", "32", "--pbkdf-force-iterations", "4", "--batch-mode"];
    // The header takes 16 MiB.
    let size_mib = args.size + 16;
    for image in ["inside", "served", "two", "plain"] {
        let name = cluster.image(image, size_mib)?;
        if image != "plain" {
            let format = ["format", &name, "--key-file", &pass];
            tools::run(&mut lab.blockyard(&[&format[..], &cheap].concat()))?;
        }
    }
    let one = lab.serve("rbd", &[&cluster.name("served", ""), "--key-file", &pass])?;
    let sectors = u64::from(size_mib) << 11;
    let line = format!("0 {sectors} linear {} 0\n", cluster.name("two", ""));
    let table = lab.write("rbd.table", line)?.display().to_string();
    let raw = lab.serve("raw", &["--table", &table, "--sandbox", "off"])?;
    let keys = lab.serve("keys", &[&raw.uri(), "--key-file", &pass])?;
    let qemu = match qemu(lab, cluster, size_mib) {
        Ok(qemu) => Some(qemu),
        Err(error) => {
            println!("qemu is left out: {error:#}");
            None
        }
    };
    Ok(Servers { ours: [one, raw, keys], qemu })
}

/// QEMU's encryption on its own driver of images, behind a socket.
fn qemu(lab: &Lab, cluster: &Cluster, size_mib: u32) -> Result<(Child, PathBuf)> {
    let secret = format!("secret,id=pass,file={}", lab.pass().display());
    let conf = cluster.conf();
    let conf = conf.display();
    let mut create = tool("qemu-img");
    create.args(["create", "-q", "-f", "luks", "--object", &secret]);
    create.args(["-o", "key-secret=pass,iter-time=10"]);
    create.arg(format!("rbd:{POOL}/qemu:conf={conf}")).arg(format!("{size_mib}M"));
    tools::run(&mut create)?;
    let socket = lab.path("rbd-qemu.sock");
    let mut qemu = tools::daemon("qemu-storage-daemon");
    qemu.args(["--object", &secret]);
    let image = format!("driver=rbd,pool={POOL},image=qemu,conf={conf},node-name=image");
    qemu.args(["--blockdev", &image]);
    qemu.args(["--blockdev", "driver=luks,file=image,key-secret=pass,node-name=disk"]);
    qemu.args(["--nbd-server", &format!("addr.type=unix,addr.path={}", socket.display())]);
    qemu.args(["--export", "nbd,id=nbd,node-name=disk,name=disk,writable=on"]);
    let log = File::create(lab.path("rbd-qemu.log"))?;
    qemu.stdout(log.try_clone()?).stderr(log);
    let child = qemu.spawn()?;
    let opened = until(Duration::from_secs(20), || UnixStream::connect(&socket).is_ok());
    ensure!(opened, "{}", fs::read_to_string(lab.path("rbd-qemu.log"))?.trim());
    Ok((child, socket))
}

/// A client of a server.
fn of_nbd(uri: String) -> Box<dyn Fn() -> Command> {
    Box::new(move || {
        let mut fio = tool("fio");
        fio.args(["--ioengine=nbd", "--name=job", "--output-format=json"]);
        fio.arg(format!("--uri={uri}"));
        fio
    })
}

fn programs(lab: &Lab, cluster: &Cluster, servers: &Servers) -> Vec<Program> {
    let pass = lab.pass().display().to_string();
    let inside = cluster.name("inside", "");
    let conf = cluster.conf();
    let binary = lab.binary().to_owned();
    let [one, raw, keys] = &servers.ours;
    let mut programs = vec![
        Program {
            name: "blockyard bench",
            client: Box::new(move || {
                let mut bench = Command::new(&binary);
                bench.args(["bench", &inside, "--key-file", &pass, "--json", "--destroy", "--"]);
                bench.args(["--ioengine=libaio"]);
                bench
            }),
            servers: Vec::new(),
        },
        Program {
            name: "blockyard serve, fio nbd",
            client: of_nbd(one.uri()),
            servers: vec![one.process()],
        },
        Program {
            name: "in two processes, fio nbd",
            client: of_nbd(keys.uri()),
            servers: vec![raw.process(), keys.process()],
        },
    ];
    if let Some((qemu, socket)) = &servers.qemu {
        programs.push(Program {
            name: "qemu luks, fio nbd",
            client: of_nbd(format!("nbd+unix:///disk?socket={}", socket.display())),
            servers: vec![Watched(qemu.id())],
        });
    }
    programs.push(Program {
        name: PLAIN,
        client: Box::new(move || {
            let mut fio = tool("fio");
            fio.env("CEPH_CONF", &conf).args(["--ioengine=rbd", "--clientname=admin"]);
            fio.args(["--name=job", "--output-format=json", "--rbdname=plain"]);
            fio.arg(format!("--pool={POOL}"));
            fio
        }),
        servers: Vec::new(),
    });
    programs
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
                let sample = moving(args.seconds, |seconds| one(program, job, seconds, args.size));
                samples.push(sample.with_context(|| format!("{}: {}", job.name, program.name))?);
            }
        }
    }
    progress("");
    Ok(samples)
}

fn one(program: &Program, job: &Job, seconds: f64, size_mib: u32) -> Result<Sample> {
    let mut client = (program.client)();
    client.args(["--time_based", "--randrepeat=0", "--norandommap"]);
    client.arg(format!("--runtime={}ms", (seconds * 1000.0) as u32));
    client.arg(format!("--size={size_mib}m")).arg(format!("--rw={}", job.rw));
    client.arg(format!("--bs={}", job.block)).arg(format!("--iodepth={}", job.depth));
    let before_us = cpu_us(program)?;
    let said = tools::text(&tools::run(&mut client)?.stdout);
    let used_us = cpu_us(program)? - before_us;
    let seen = job.seen(&fio::job(&said)?)?;
    let units = if job.counts_mib() { seen.bytes / f64::from(1 << 20) } else { seen.requests };
    let ran_s = seen.requests / seen.iops.max(1.0);
    ensure!(units > 0.0, NothingMoved);
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

/// CPU time of all ended clients and of the servers.
fn cpu_us(program: &Program) -> Result<f64> {
    let clients = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let us = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 * 1e6 + time.tv_usec() as f64;
    let of_servers = program.servers.iter().map(|server| server.cpu_ns());
    let of_servers = of_servers.sum::<Result<u64, _>>()?;
    Ok(us(clients.user_time()) + us(clients.system_time()) + of_servers as f64 / 1000.0)
}
