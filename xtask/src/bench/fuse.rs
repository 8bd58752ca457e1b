//! `cargo x bench fuse`: the plaintext of one LUKS1 volume as a file, shown by blockyard, by
//! nbdfuse above a blockyard server, and by QEMU; the same client, rounds interleaved.
//!
//! I/O is direct, so that the page cache answers for no server. No request is longer than 1 MiB:
//! QEMU's FUSE export damages longer ones.

use super::fio::{self, FioResult, Job};
use super::peers::{Images, qemu_disk};
use super::table::{self, Sample};
use super::{NothingMoved, machine, moving, progress};
use crate::lab::Lab;
use crate::process::{Watched, until};
use crate::tools;
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

const OURS: &str = "blockyard";
const START_LIMIT: Duration = Duration::from_secs(30);

const fn job(name: &'static str, rw: &'static str, block: &'static str, tasks: u32) -> Job {
    Job { name, rw, block, depth: 1, connections: tasks }
}

const JOBS: &[Job] = &[
    job("read 1 MiB", "read", "1m", 1),
    job("write 1 MiB", "write", "1m", 1),
    job("read 4 KiB", "randread", "4k", 1),
    job("write 4 KiB", "randwrite", "4k", 1),
    job("read 4 KiB, 4 tasks", "randread", "4k", 4),
    job("write 4 KiB, 4 tasks", "randwrite", "4k", 4),
];

/// Extent of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds over all servers; the table shows medians.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Seconds of each run.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Size of the volume in MiB; it lies in memory twice.
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
        Args { rounds: 1, seconds: 0.3, size: 32, job: Some("4 KiB".into()), json: None }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(args.rounds > 0 && args.size > 0, "nothing to measure");
    let has_name =
        |job: &&Job| args.job.as_ref().is_none_or(|part| job.name.contains(part.as_str()));
    let jobs: Vec<&Job> = JOBS.iter().filter(has_name).collect();
    ensure!(!jobs.is_empty(), "no job of that name");
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        println!("bench fuse is skipped, because this machine has no FUSE: /dev/fuse: {error}");
        return Ok(());
    }
    let lab = Lab::new()?;
    let images = Images::make(&lab, args.size)?;
    let machine = machine::describe();
    machine::print(&machine);
    let samples = measure(&lab, &images, &jobs, args)?;
    println!("\n{} rounds of {} s, medians; x: of {OURS}", args.rounds, args.seconds);
    let mut medians = Vec::new();
    for job in &jobs {
        let rows = table::rows(&samples, job);
        table::print(job, &rows, OURS);
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

fn measure(lab: &Lab, images: &Images, jobs: &[&Job], args: &Args) -> Result<Vec<Sample>> {
    let shown = start_all(lab, images)?;
    for file in &shown {
        file.warm(args.size).context(file.name)?;
    }
    let mut samples = Vec::new();
    for round in 0..args.rounds {
        for job in jobs {
            for index in 0..shown.len() {
                // Odd rounds run in reverse order, so that a slowdown of the machine favours no
                // server.
                let backwards = shown.len() - 1 - index;
                let file = &shown[if round % 2 == 0 { index } else { backwards }];
                progress(&format!("{round} {}: {}", job.name, file.name));
                let sample = moving(args.seconds, |seconds| file.sample(job, seconds, args.size));
                samples.push(sample.with_context(|| format!("{}: {}", job.name, file.name))?);
            }
        }
    }
    progress("");
    Ok(samples)
}

/// Starts all servers.
pub(super) fn start_all(lab: &Lab, images: &Images) -> Result<Vec<Shown>> {
    Ok(vec![ours(lab, images)?, nbdfuse(lab, images)?, qemu(lab, images)?])
}

/// The plaintext as a file, and its processes. The drop ends the mount.
pub(super) struct Shown {
    pub(super) name: &'static str,
    file: PathBuf,
    mount_point: PathBuf,
    children: Vec<Child>,
}

impl Shown {
    /// Starts the process that mounts, and waits for its file.
    fn start(
        name: &'static str,
        mut command: Command,
        file: PathBuf,
        mount_point: PathBuf,
    ) -> Result<Shown> {
        tools::need(&command.get_program().to_string_lossy())?;
        let log = mount_point.with_extension("log");
        let err = File::create(&log)?;
        command.stdout(err.try_clone()?).stderr(err);
        let child = command.spawn().with_context(|| format!("{name} does not start"))?;
        let mut shown = Shown { name, file, mount_point, children: vec![child] };
        let has_size = || fs::metadata(&shown.file).is_ok_and(|it| it.len() > 0);
        let has_started =
            until(START_LIMIT, || has_size() || !matches!(shown.children[0].try_wait(), Ok(None)));
        let said = fs::read_to_string(log).unwrap_or_default();
        ensure!(has_started && has_size(), "{name} does not mount: {}", said.trim());
        Ok(shown)
    }

    fn cpu_ns(&self) -> Result<u64> {
        self.children.iter().map(|child| Watched(child.id()).cpu_ns()).sum()
    }

    /// Writes the whole file once, so that no run has the cost of newly touched pages.
    pub(super) fn warm(&self, size_mib: u32) -> Result<()> {
        let mut fio = fio_on(&self.file, size_mib);
        tools::run(fio.args(["--rw=write", "--bs=1m"])).map(drop)
    }

    pub(super) fn sample(&self, job: &Job, seconds: f64, size_mib: u32) -> Result<Sample> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "seconds of a run"
        )]
        let millis = (seconds * 1000.0) as u32;
        let mut fio = fio_on(&self.file, size_mib);
        fio.args(["--time_based", "--randrepeat=0", "--norandommap", "--group_reporting"]);
        fio.arg(format!("--runtime={millis}ms")).arg(format!("--rw={}", job.rw));
        fio.arg(format!("--bs={}", job.block)).arg(format!("--numjobs={}", job.connections));
        let before = self.cpu_ns()?;
        let output = tools::run(fio.arg("--output-format=json"))?;
        let seen: FioResult = job.seen(&fio::job(&tools::text(&output.stdout))?)?;
        let cpu_us = (self.cpu_ns()? - before) as f64 / 1000.0;
        let units = if job.counts_mib() { seen.bytes / f64::from(1 << 20) } else { seen.requests };
        ensure!(units > 0.0, NothingMoved);
        Ok(Sample {
            server: self.name,
            job: job.name,
            placement: "free",
            mib_s: seen.mib_s,
            iops: seen.iops,
            p50_us: seen.p50_us,
            p99_us: seen.p99_us,
            cpu_us: cpu_us / units,
            server_cores: cpu_us / 1e6 / (seen.requests / seen.iops.max(1.0)),
            client_cores: seen.cores,
        })
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        let _ = tools::run(tools::tool("fusermount3").args(["-u", "-z"]).arg(&self.mount_point));
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn fio_on(file: &Path, size_mib: u32) -> Command {
    let mut fio = tools::tool("fio");
    fio.args(["--name=job", "--ioengine=psync", "--direct=1"]);
    fio.arg(format!("--filename={}", file.display())).arg(format!("--size={size_mib}m"));
    fio
}

fn ours(lab: &Lab, images: &Images) -> Result<Shown> {
    let target = lab.path("ours");
    File::create(&target)?;
    let mut mount = tools::daemon(&lab.binary().display().to_string());
    mount.args(["mount", "--as-file", "--foreground", "--key-file"]).arg(lab.pass());
    mount.arg(&images.luks1).arg(&target).env("XDG_RUNTIME_DIR", lab.dir());
    Shown::start(OURS, mount, target.clone(), target)
}

/// A server of ours, and the FUSE program of libnbd as its client.
fn nbdfuse(lab: &Lab, images: &Images) -> Result<Shown> {
    let socket = lab.path("nbdfuse.sock");
    let target = lab.path("nbdfuse");
    fs::create_dir_all(&target)?;
    // Left by a server on fewer CPUs.
    let _ = fs::remove_file(&socket);
    let mut serve = tools::daemon(&lab.binary().display().to_string());
    serve.arg("serve").arg(&images.before).arg("--key-file").arg(lab.pass());
    serve.arg("--socket").arg(&socket).stderr(std::process::Stdio::null());
    let server = serve.spawn()?;
    ensure!(until(START_LIMIT, || socket.exists()), "the server of nbdfuse does not start");
    let mut nbdfuse = tools::daemon("nbdfuse");
    nbdfuse.arg(&target).arg(format!("nbd+unix:///?socket={}", socket.display()));
    let mut shown = Shown::start("nbdfuse and blockyard", nbdfuse, target.join("nbd"), target)?;
    shown.children.push(server);
    Ok(shown)
}

fn qemu(lab: &Lab, images: &Images) -> Result<Shown> {
    let target = lab.path("qemu");
    File::create(&target)?;
    let image = images.luks1.display().to_string();
    let mut qemu = qemu_disk(&image, &lab.pass().display().to_string());
    let export = "fuse,id=fuse,node-name=disk,writable=on";
    qemu.args(["--export", &format!("{export},mountpoint={}", target.display())]);
    Shown::start("qemu luks", qemu, target.clone(), target)
}
