//! One volume and many on 1 to all CPUs: the engine beside the bare cipher and a copy in memory.
//!
//! Each volume lies in tmpfs (`/dev/shm`) with aes-xts-plain64, a 512-bit key and 512-byte sectors;
//! its submitters are threads of this process, without a socket. The process may use so many CPUs.
//!
//! ```text
//!   one submitter               one volume; the pipeline may use the other CPUs
//!   a submitter for each CPU    all on one volume
//!   a volume for each CPU       each with a submitter
//! ```
//! The cipher and the copy have a thread for each CPU in every shape. All subjects run in each
//! round, in turns; a line has the medians, as JSON. `cargo x bench cores` makes tables and plots.
//!
//! `--cpus 1,2,4`: numbers of CPUs; `--shape` with a part of its name; `--rounds N`; `--smoke`: one
//! short round.
//!
//! `--held PIPELINE JOB REQUESTS`, with `--shape` and one number of CPUs, runs one job for a
//! debugger: see [`held`].

#[path = "../pipeline_bench/bare.rs"]
mod bare;
#[path = "../pipeline_bench/round.rs"]
mod round;

use std::io::Write;
use std::os::unix::process::parent_id;
use std::path::Path;
use std::sync::Arc;

use blockyard_crypt::params::CryptParams;
use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::bio::Op;
use blockyard_engine::dm::crypt::pipeline::PRESETS;
use blockyard_engine::priority::Priority;
use blockyard_host::file::{Access, DeviceFile};
use blockyard_host::local::Client;
use blockyard_host::memory::Region;
use blockyard_host::volume::{PipelineChoice, Volume, VolumeOptions};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tempfile::NamedTempFile;

use self::bare::Bare;
use self::round::{Places, Sample, timed};

/// Size of a volume, above the share of a core in most last-level caches.
const SIZE_BYTES: u64 = 64 << 20;
const CIPHER: &str = "aes-xts-plain64";

/// Pipelines beside `adaptive`: variants of 2015, and Linux today.
const KERNEL_LIKE: [&str; 6] = ["inline", "A", "E", "F", "G", "linux-today"];

type Error = Box<dyn std::error::Error>;

/// A job of one submitter.
#[derive(Clone, Copy)]
struct Job {
    name: &'static str,
    op: Op,
    len_bytes: u64,
    depth: usize,
    requests: usize,
    shape: Shape,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    One,
    Submitters,
    Volumes,
}

impl Shape {
    fn name(self) -> &'static str {
        match self {
            Self::One => "one submitter",
            Self::Submitters => "a submitter for each CPU",
            Self::Volumes => "a volume for each CPU",
        }
    }
}

const fn job(name: &'static str, shape: Shape, op: Op, len_bytes: u64, depth: usize) -> Job {
    let requests = if len_bytes == 4096 { 12_800 } else { 160 };
    Job { name, op, len_bytes, depth, requests, shape }
}

const JOBS: [Job; 12] = [
    job("4 KiB read q32", Shape::One, Op::Read, 4096, 32),
    job("4 KiB write q32", Shape::One, Op::Write, 4096, 32),
    job("1 MiB read q1", Shape::One, Op::Read, 1 << 20, 1),
    job("1 MiB write q1", Shape::One, Op::Write, 1 << 20, 1),
    job("4 KiB read q32", Shape::Submitters, Op::Read, 4096, 32),
    job("4 KiB write q32", Shape::Submitters, Op::Write, 4096, 32),
    job("1 MiB read q8", Shape::Submitters, Op::Read, 1 << 20, 8),
    job("1 MiB write q8", Shape::Submitters, Op::Write, 1 << 20, 8),
    job("4 KiB read q32", Shape::Volumes, Op::Read, 4096, 32),
    job("4 KiB write q32", Shape::Volumes, Op::Write, 4096, 32),
    job("1 MiB read q8", Shape::Volumes, Op::Read, 1 << 20, 8),
    job("1 MiB write q8", Shape::Volumes, Op::Write, 1 << 20, 8),
];

/// What is measured.
enum Subject {
    Copy(Vec<Side>),
    Cipher(Bare),
    /// Its clients, and the files of their volumes.
    Pipeline {
        name: &'static str,
        clients: Vec<Client>,
    },
}

impl Subject {
    fn name(&self) -> &'static str {
        match self {
            Self::Copy(_) => "copy",
            Self::Cipher(_) => "cipher",
            Self::Pipeline { name, .. } => name,
        }
    }

    fn measure(&mut self, job: &Job) -> Sample {
        match self {
            Self::Copy(sides) => copy(sides, job),
            Self::Cipher(bare) => bare.measure(job, true),
            Self::Pipeline { clients, .. } => round::measure(clients, job),
        }
    }
}

/// Memory of a thread that copies.
struct Side {
    buffers: Region,
    device: Region,
}

/// Copies between buffers and memory as large as a volume.
fn copy(sides: &mut [Side], job: &Job) -> Sample {
    timed(sides, job, |side, seed| {
        let mut places = Places::new(job, seed);
        let len = job.len_bytes as usize;
        for request in 0..job.requests {
            let place = places.next() as usize;
            let buffer = &mut side.buffers.bytes()[request % job.depth * len..][..len];
            let device = &mut side.device.bytes()[place..][..len];
            match job.op {
                Op::Write => device.copy_from_slice(buffer),
                _ => buffer.copy_from_slice(device),
            }
        }
    })
}

fn sides(count: usize) -> Result<Vec<Side>, Error> {
    let filled = |len: usize| {
        let mut region = Region::new(len)?;
        region.bytes().fill(1);
        Ok::<_, Error>(region)
    };
    let side = |_| Ok(Side { buffers: filled(8 << 20)?, device: filled(SIZE_BYTES as usize)? });
    (0..count).map(side).collect()
}

/// A file of a volume, whose name goes with the value.
fn image() -> Result<NamedTempFile, Error> {
    let mut image = NamedTempFile::new_in("/dev/shm")?;
    image.write_all(&vec![1; SIZE_BYTES as usize])?;
    Ok(image)
}

fn volume(path: &Path, pipeline: PipelineChoice) -> Result<Arc<Volume>, Error> {
    let params = CryptParams::new(CIPHER, key());
    let options = VolumeOptions { pipeline, ..VolumeOptions::default() };
    let file = DeviceFile::open(path, Access::ReadWrite, false)?;
    Ok(Arc::new(Volume::from_crypt(file, &params, &options)?))
}

fn key() -> SecretBytes {
    SecretBytes::copy_of(&(0..64).collect::<Vec<u8>>())
}

/// A pipeline with the submitters of a shape on new volumes.
fn pipeline(
    (name, choice): (&'static str, PipelineChoice),
    shape: Shape,
    cpus: usize,
) -> Result<Subject, Error> {
    let volumes = if shape == Shape::Volumes { cpus } else { 1 };
    let submitters = if shape == Shape::Submitters { cpus } else { 1 };
    let mut clients = Vec::new();
    for _ in 0..volumes {
        let image = image()?;
        let volume = volume(image.path(), choice)?;
        // The volume keeps the file. Without a name it ends with the process, also a killed one.
        drop(image);
        for _ in 0..submitters {
            clients.push(Client::new(&volume, Priority::default())?);
        }
    }
    Ok(Subject::Pipeline { name, clients })
}

/// Runs a job once, says `ready`, waits for a line, and runs the same requests again for a
/// debugger. A submitter asks for the process's parent before its first request and after its last
/// one: the marks of its requests among its instructions.
fn held(words: &[String], shape: Shape, cpus: usize) -> Result<(), Error> {
    let usage = "--held PIPELINE JOB REQUESTS";
    let [name, job, requests, ..] = words else { return Err(usage.into()) };
    let job = JOBS.iter().find(|known| known.shape == shape && known.name == job).ok_or(usage)?;
    let job = Job { requests: requests.parse()?, ..*job };
    let subject = pipeline(("held", PipelineChoice::parse(name)?), shape, cpus)?;
    let Subject::Pipeline { mut clients, .. } = subject else { return Err(usage.into()) };
    // Each submitter first allocates on a thread of its own, as a connection does.
    timed(&mut clients, &job, |client, seed| round::submit(client, &job, seed));
    round::measure(&mut clients, &job);
    // Now all of them are busy, and each gets to know it.
    clients.iter_mut().for_each(|client| round::submit(client, &job, 3));
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    timed(&mut clients, &job, |client, seed| {
        let _ = parent_id();
        round::submit(client, &job, seed);
        let _ = parent_id();
    });
    Ok(())
}

fn subjects(shape: Shape, cpus: usize) -> Result<Vec<Subject>, Error> {
    let mut subjects = vec![Subject::Copy(sides(cpus)?), Subject::Cipher(Bare::new(cpus)?)];
    let own = ("adaptive", PipelineChoice::Adaptive);
    let presets = PRESETS.iter().filter(|preset| KERNEL_LIKE.contains(&preset.name));
    let presets = presets.map(|preset| (preset.name, PipelineChoice::Fixed(preset.pipeline)));
    for of in std::iter::once(own).chain(presets) {
        subjects.push(pipeline(of, shape, cpus)?);
    }
    Ok(subjects)
}

fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let after = |word: &str| {
        let at = words.iter().position(|given| given == word);
        at.and_then(|at| words.get(at + 1)).cloned()
    };
    let is_smoke = words.iter().any(|word| word == "--smoke");
    let rounds: usize =
        after("--rounds").map_or(Ok(if is_smoke { 1 } else { 5 }), |n| n.parse())?;
    let wanted = after("--shape").unwrap_or_default();
    let all = sched_getaffinity(None)?;
    let there = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect::<Vec<_>>();
    let counts = match after("--cpus") {
        Some(list) => list.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>()?,
        None => std::iter::successors(Some(1), |count| Some(count * 2))
            .take_while(|count| *count < there.len())
            .chain([there.len()])
            .collect(),
    };
    for count in counts {
        if count == 0 || count > there.len() {
            return Err(format!("--cpus {count}: this process has {} CPUs", there.len()).into());
        }
        let mut some = CpuSet::new();
        there[..count].iter().for_each(|cpu| some.set(*cpu));
        sched_setaffinity(None, &some)?;
        for shape in [Shape::One, Shape::Submitters, Shape::Volumes] {
            if !shape.name().contains(&wanted) {
                continue;
            }
            match words.iter().position(|word| word == "--held") {
                Some(at) => held(&words[at + 1..], shape, count)?,
                None => measure(count, shape, rounds, is_smoke)?,
            }
        }
    }
    Ok(())
}

/// Measures the jobs of a shape on so many CPUs.
fn measure(count: usize, shape: Shape, rounds: usize, is_smoke: bool) -> Result<(), Error> {
    let mut subjects = subjects(shape, count)?;
    for job in JOBS.iter().filter(|job| job.shape == shape) {
        let requests = if is_smoke { job.requests / 16 } else { job.requests };
        let job = Job { requests, ..*job };
        let mut samples: Vec<Vec<Sample>> = subjects.iter().map(|_| Vec::new()).collect();
        for round in 0..rounds {
            for at in 0..subjects.len() {
                // Another subject begins each round, and each has two predecessors in turns: after
                // one that heats all CPUs, a subject is slower.
                let at = if round % 2 == 0 { at } else { subjects.len() - 1 - at };
                let at = (at + round) % subjects.len();
                samples[at].push(subjects[at].measure(&job));
            }
        }
        for (subject, samples) in subjects.iter().zip(&samples) {
            print(count, &job, subject.name(), samples);
        }
    }
    Ok(())
}

fn print(cpus: usize, job: &Job, subject: &str, samples: &[Sample]) {
    let median = |figure: fn(&Sample) -> f64| {
        let mut figures: Vec<f64> = samples.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        f64::midpoint(figures[(figures.len() - 1) / 2], figures[figures.len() / 2])
    };
    println!(
        "{{\"cpus\": {cpus}, \"shape\": \"{}\", \"job\": \"{}\", \"subject\": \"{subject}\", \
         \"mib_s\": {:.1}, \"cpu_ns_per_kib\": {:.2}, \"switches_per_request\": {:.4}}}",
        job.shape.name(),
        job.name,
        median(|one| one.bytes / f64::from(1 << 20) / (one.wall_ns / 1e9)),
        median(|one| one.cpu_ns / (one.bytes / 1024.0)),
        median(|one| (one.voluntary + one.involuntary) / one.requests),
    );
}
