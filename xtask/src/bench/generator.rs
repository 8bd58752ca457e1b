//! `cargo x bench fio`: fio and `blockyard bench`, alternating on the same jobs.
//!
//! *Generator*: requests that go to no device, all programs pinned to one CPU, each with all its
//! measurements and with `gtod_reduce`, the cheapest mode. Besides the null engines there is ours
//! through the shard, onto a device that ends each request at once. CPU time per request depends
//! less than the rate on other load of the machine.
//!
//! *Bandwidth*: timed job files of `testdata/fio`, on one plain file in memory, on a disk through
//! the page cache, and on that disk with O_DIRECT. In each round fio runs, then ours, then fio
//! again: the difference between fio's two runs is the noise, and a ratio within it is meaningless.
//! fio's jobs are separate sessions. A scheduler that shares CPUs by session (`autogroup`) gives
//! each as much as a whole session that also runs a build. So ours is a session too, and CPU time
//! is shown beside.

use super::fio;
use super::table::middle;
use super::{machine, progress};
use crate::lab::Lab;
use crate::tools::{self, root};
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The CPU of all generator runs.
const CPU: &str = "0";
/// Size of the file, enough for every job file.
const FILE_BYTES: usize = 64 << 20;
/// Job files that can run for a fixed time.
const JOB_FILES: [&str; 6] = ["backup", "restore", "guest", "checkpoint", "journal", "strides"];
const DEPTHS: [u32; 2] = [1, 32];

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Generator,
    Bandwidth,
}

/// Extent of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this part.
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Rounds; the tables show medians.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Seconds of each run.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Only job files whose name contains this.
    #[arg(long, value_name = "TEXT")]
    job: Option<String>,
}

impl Args {
    pub(crate) fn smoke() -> Args {
        Args { only: None, rounds: 1, seconds: 0.2, job: Some("guest".into()) }
    }

    fn runtime(&self) -> String {
        format!("{}ms", (self.seconds * 1000.0) as u32)
    }

    fn says(&self) -> String {
        format!("{} rounds of {} s, medians", self.rounds, self.seconds)
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(args.rounds > 0 && args.seconds > 0.0, "nothing to measure");
    tools::need("fio")?;
    let lab = Lab::new()?;
    machine::print(&machine::describe());
    if args.only.is_none_or(|part| part == Part::Generator) {
        generator(&lab, args)?;
    }
    if args.only.is_none_or(|part| part == Part::Bandwidth) {
        bandwidth(&lab, args)?;
    }
    Ok(())
}

/// A generator of requests.
#[derive(Clone, Copy)]
enum Maker {
    FioReduced,
    Fio,
    NullReduced,
    Null,
    ShardReduced,
    Shard,
}

impl Maker {
    const ALL: [Self; 6] = [
        Self::FioReduced,
        Self::NullReduced,
        Self::ShardReduced,
        Self::Fio,
        Self::Null,
        Self::Shard,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::FioReduced => "fio, null engine, gtod_reduce",
            Self::NullReduced => "blockyard, null engine, gtod_reduce",
            Self::ShardReduced => "blockyard, null device, gtod_reduce",
            Self::Fio => "fio, null engine",
            Self::Null => "blockyard, null engine",
            Self::Shard => "blockyard, null device",
        }
    }

    fn is_fio(self) -> bool {
        matches!(self, Self::FioReduced | Self::Fio)
    }

    /// Its pinned program, without the job's options.
    fn command(self, lab: &Lab) -> Command {
        let mut command = lab.unprivileged(Path::new("taskset"));
        command.args(["-c", CPU]);
        if self.is_fio() {
            command.args(["fio", "--name=null", "--thread=1", "--output-format=json"])
        } else {
            command.arg(lab.binary()).args(["bench", "--json", "--null", "1g", "--"])
        };
        command
    }

    /// Options of its job.
    fn options(self, depth: u32, args: &Args) -> Vec<String> {
        let is_reduced = matches!(self, Self::FioReduced | Self::NullReduced | Self::ShardReduced);
        let engine = match self {
            Self::ShardReduced | Self::Shard => "libaio",
            _ => "null",
        };
        let usual = ["rw=randread", "bs=4k", "size=1g", "norandommap=1", "time_based=1"];
        let mut options: Vec<String> = usual.map(str::to_owned).to_vec();
        options.push(format!("ioengine={engine}"));
        options.push(format!("gtod_reduce={}", u8::from(is_reduced)));
        options.push(format!("iodepth={depth}"));
        options.push(format!("runtime={}", args.runtime()));
        options
    }

    /// Requests per second, and nanoseconds of CPU time per request.
    fn run(self, lab: &Lab, depth: u32, args: &Args) -> Result<(f64, f64)> {
        let mut command = self.command(lab);
        let dashes = if self.is_fio() { "--" } else { "" };
        command.args(self.options(depth, args).iter().map(|option| format!("{dashes}{option}")));
        let job = fio::job(&tools::read(&mut command)?)?;
        let number = |value: &Value| value.as_f64().context("a number is missing in the JSON");
        let cpu_ns = (number(&job["usr_cpu"])? + number(&job["sys_cpu"])?)
            * number(&job["job_runtime"])?
            * 1e4;
        Ok((number(&job["read"]["iops"])?, cpu_ns / number(&job["read"]["total_ios"])?))
    }
}

fn generator(lab: &Lab, args: &Args) -> Result<()> {
    let mut seen = vec![Vec::new(); DEPTHS.len() * Maker::ALL.len()];
    for round in 0..args.rounds {
        let rows = DEPTHS.iter().flat_map(|depth| Maker::ALL.map(|maker| (*depth, maker)));
        for ((depth, maker), seen) in rows.zip(&mut seen) {
            progress(&format!("{round}: {}", maker.name()));
            seen.push(maker.run(lab, depth, args).with_context(|| maker.name())?);
        }
    }
    progress("");
    println!("\nGenerator: 4 KiB reads at random, all pinned to CPU {CPU}; {}", args.says());
    for (depth, seen) in DEPTHS.iter().zip(seen.chunks(Maker::ALL.len())) {
        println!(
            "\n  {:<38}{:>8}{:>9}{:>8}",
            format!("iodepth={depth}"),
            "M/s",
            "CPU ns",
            "of fio"
        );
        let medians = seen.iter().map(|runs| {
            let column = |pick: fn(&(f64, f64)) -> f64| middle(runs.iter().map(pick).collect());
            (column(|run| run.0) / 1e6, column(|run| run.1))
        });
        let mut fio = f64::NAN;
        for (maker, (rate, cpu_ns)) in Maker::ALL.iter().zip(medians) {
            fio = if maker.is_fio() { rate } else { fio };
            println!("  {:<38}{rate:>8.2}{cpu_ns:>9.0}{:>8.2}", maker.name(), rate / fio);
        }
    }
    Ok(())
}

/// Place of the plain file, and the flags of both programs for it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Memory,
    Cached,
    Direct,
}

impl Place {
    const ALL: [Self; 3] = [Self::Memory, Self::Cached, Self::Direct];

    fn name(self) -> &'static str {
        match self {
            Self::Memory => "a file in memory",
            Self::Cached => "a file on a disk, through the page cache",
            Self::Direct => "a file on a disk, O_DIRECT",
        }
    }

    fn image(self, lab: &Lab) -> PathBuf {
        match self {
            Self::Memory => lab.path("plain.img"),
            Self::Cached | Self::Direct => lab.disk().join("plain.img"),
        }
    }
}

/// Result of one run.
#[derive(Clone, Copy)]
struct Moved {
    mib_s: f64,
    /// CPU time per MiB, of the job's own thread.
    cpu_us: f64,
}

/// Results of one job file at one place: fio, ours, and fio again, by round.
struct Row {
    job: &'static str,
    rounds: Vec<[Moved; 3]>,
}

impl Row {
    fn print(&self) {
        let column = |pick: &dyn Fn(&[Moved; 3]) -> f64| -> Vec<f64> {
            let mut values: Vec<f64> = self.rounds.iter().map(pick).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        // Ours runs between the two runs of fio: a slow minute affects both.
        let fio = |round: &[Moved; 3]| f64::midpoint(round[0].mib_s, round[2].mib_s);
        let fio_cpu = |round: &[Moved; 3]| f64::midpoint(round[0].cpu_us, round[2].cpu_us);
        let ratio = column(&|round| round[1].mib_s / fio(round));
        let noise = column(&|round| round[2].mib_s / round[0].mib_s);
        let ends = |values: &[f64]| (values[0], values[values.len() - 1]);
        let (low, high) = ends(&ratio);
        let (calm, wild) = ends(&noise);
        let ratio = middle(ratio);
        let verdict = match ratio {
            _ if calm <= ratio && ratio <= wild => "within noise",
            1.0.. => "faster",
            _ => "slower",
        };
        println!(
            "  {:<12}{:>8.0}{:>8.0}{ratio:>7.2}  {low:>5.2} to {high:<5.2}{calm:>7.2} to \
             {wild:<5.2}{:>7.2}  {verdict}",
            self.job,
            middle(column(&fio)),
            middle(column(&|round| round[1].mib_s)),
            middle(column(&|round| round[1].cpu_us / fio_cpu(round))),
        );
    }
}

fn bandwidth(lab: &Lab, args: &Args) -> Result<()> {
    let is_wanted = |job: &&str| args.job.as_ref().is_none_or(|part| job.contains(part.as_str()));
    let jobs: Vec<&'static str> = JOB_FILES.into_iter().filter(is_wanted).collect();
    ensure!(!jobs.is_empty(), "no job file of that name; there are {}", JOB_FILES.join(", "));
    for image in [Place::Memory, Place::Cached].map(|place| place.image(lab)) {
        fs::write(&image, vec![7; FILE_BYTES])?;
        fs::File::open(&image)?.sync_all()?;
        lab.give(&image)?;
    }
    println!("\nBandwidth, MiB/s: jobs of testdata/fio by the clock; {}", args.says());
    for place in Place::ALL {
        let mut rows: Vec<Row> = jobs.iter().map(|job| Row { job, rounds: vec![] }).collect();
        for round in 0..args.rounds {
            for row in &mut rows {
                progress(&format!("{round}: {} on {}", row.job, place.name()));
                let job = timed(lab, row.job, place, args)?;
                let fio = || by_fio(lab, &job, place);
                let before = fio()?;
                let ours = by_bench(lab, &job, place)?;
                row.rounds.push([before, ours, fio()?]);
            }
        }
        progress("");
        println!(
            "\n  {}\n  {:<12}{:>8}{:>8}{:>7}  {:<14}{:>15}{:>7}",
            place.name(),
            "",
            "fio",
            "ours",
            "ratio",
            "  of rounds",
            "fio to itself",
            "CPU x"
        );
        rows.iter().for_each(Row::print);
    }
    Ok(())
}

/// A timed version of the job file, on data in the page cache. fio's buffers start at a page, as
/// ours do: at `malloc`'s alignment the kernel copies three times slower.
fn timed(lab: &Lab, job: &str, place: Place, args: &Args) -> Result<PathBuf> {
    let mut text = fs::read_to_string(root().join("testdata/fio").join(format!("{job}.fio")))?;
    text += &format!("time_based=1\nruntime={}\ninvalidate=0\niomem=mmap\n", args.runtime());
    if place == Place::Direct {
        text += "direct=1\n";
    }
    lab.write(&format!("{job}.fio"), text)
}

fn by_fio(lab: &Lab, job: &Path, place: Place) -> Result<Moved> {
    let mut fio = tools::tool("fio");
    fio.env("BENCH_FILE", place.image(lab)).arg("--output-format=json").arg(job);
    moved(&tools::read(&mut fio)?)
}

fn by_bench(lab: &Lab, job: &Path, place: Place) -> Result<Moved> {
    let mut bench = lab.unprivileged(Path::new("setsid"));
    bench.arg("--wait").arg(lab.binary()).args(["bench", "--raw", "--destroy", "--json"]);
    if place == Place::Direct {
        bench.arg("--direct");
    }
    bench.env("BENCH_FILE", place.image(lab)).arg(place.image(lab)).arg("--job").arg(job);
    moved(&tools::read(&mut bench)?)
}

/// Result of the only job, both directions together.
fn moved(json: &str) -> Result<Moved> {
    let job = fio::job(json)?;
    let of = |name: &str| {
        let of = |side: &str| job[side][name].as_f64().unwrap_or(0.0);
        (of("read") + of("write")) / f64::from(1 << 20)
    };
    let mib_s = of("bw_bytes");
    let mib = of("io_bytes");
    ensure!(mib_s > 0.0, "nothing was moved");
    let number = |name: &str| job[name].as_f64().context("a number is missing in the JSON");
    // Percent of milliseconds.
    let cpu_us = (number("usr_cpu")? + number("sys_cpu")?) * number("job_runtime")? * 10.0;
    Ok(Moved { mib_s, cpu_us: cpu_us / mib })
}
