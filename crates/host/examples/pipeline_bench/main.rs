//! Cost of a pipeline on the real path: submitter, shard, executor, cipher, memory.
//!
//! A volume in tmpfs (`/dev/shm`), aes-xts-plain64 with a 512-bit key and 512-byte sectors; its
//! submitters are threads of this process, without a socket. The bare cipher is the reference: as
//! many bytes, buffers and memory, the same random offsets and hints.
//!
//! *Page cache*: a file on a disk (`/var/tmp`), into whose pages the cipher cannot write. Compared
//! with the bare cipher, the volume adds a copy between its buffers and the page cache.
//!
//! ```text
//!   one core               everything pinned to one CPU
//!   two, one submitter     it, and the workers that it fans out to
//!   two, two submitters    each with a shard of its own, on one volume
//! ```
//!
//! All pipelines run in each round, in changing order, and each is compared with the bare cipher of
//! its round; the table has medians. CPU time is user and system time of the whole process; on a
//! busy machine it is the more reliable figure.
//!
//! `--rounds N`; `--json` for programs; `--smoke` for one short round; `--job`, `--pipeline` and
//! `--placement` select by part of a name.

mod bare;
mod cell;
mod round;
mod table;

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use blockyard_crypt::params::CryptParams;
use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::bio::Op;
use blockyard_engine::dm::crypt::pipeline::PRESETS;
use blockyard_engine::priority::Priority;
use blockyard_host::file::{Access, DeviceFile};
use blockyard_host::local::Client;
use blockyard_host::volume::{PipelineChoice, Volume, VolumeOptions};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use self::bare::Bare;
use self::cell::Cell;
use self::round::Sample;

/// Larger than a last-level cache.
const SIZE_BYTES: u64 = 64 << 20;
const CIPHER: &str = "aes-xts-plain64";

type Error = Box<dyn std::error::Error>;

/// A job.
#[derive(Clone, Copy)]
struct Job {
    name: &'static str,
    op: Op,
    len_bytes: u64,
    /// Requests in flight.
    depth: usize,
    /// Requests of one submitter in one round.
    requests: usize,
    file: File,
}

/// Place of the volume.
#[derive(Clone, Copy, PartialEq, Eq)]
enum File {
    Memory,
    PageCache,
}

const fn job(name: &'static str, op: Op, len_bytes: u64, depth: usize) -> Job {
    let requests = if len_bytes == 4096 { 6_400 } else { 64 };
    Job { name, op, len_bytes, depth, requests, file: File::Memory }
}

const fn cached(name: &'static str, op: Op, depth: usize) -> Job {
    Job { file: File::PageCache, ..job(name, op, 1 << 20, depth) }
}

const JOBS: &[Job] = &[
    job("4 KiB write q32", Op::Write, 4096, 32),
    job("4 KiB read q32", Op::Read, 4096, 32),
    job("1 MiB write q8", Op::Write, 1 << 20, 8),
    job("1 MiB read q8", Op::Read, 1 << 20, 8),
    job("1 MiB write q1", Op::Write, 1 << 20, 1),
    job("1 MiB read q1", Op::Read, 1 << 20, 1),
    cached("1 MiB write q4, page cache", Op::Write, 4),
    cached("1 MiB read q4, page cache", Op::Read, 4),
    cached("1 MiB write q1, page cache", Op::Write, 1),
    cached("1 MiB read q1, page cache", Op::Read, 1),
];

/// The file of each job, until the value is dropped.
struct Images {
    memory: tempfile::NamedTempFile,
    page_cache: tempfile::NamedTempFile,
}

impl Images {
    fn new() -> Result<Self, Error> {
        let image = |dir| {
            let mut image = tempfile::NamedTempFile::new_in(dir)?;
            image.write_all(&vec![1; SIZE_BYTES as usize])?;
            Ok::<_, Error>(image)
        };
        Ok(Self { memory: image("/dev/shm")?, page_cache: image("/var/tmp")? })
    }

    fn path(&self, file: File) -> &Path {
        match file {
            File::Memory => self.memory.path(),
            File::PageCache => self.page_cache.path(),
        }
    }
}

/// CPUs and number of submitters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Placement {
    One,
    TwoOfOne,
    Two,
}

impl Placement {
    const ALL: [Self; 3] = [Self::One, Self::TwoOfOne, Self::Two];

    fn name(self) -> &'static str {
        match self {
            Self::One => "one core",
            Self::TwoOfOne => "two cores, one submitter",
            Self::Two => "two cores, two submitters",
        }
    }

    fn submitters(self) -> usize {
        if self == Self::Two { 2 } else { 1 }
    }
}

/// A pipeline and its names.
struct Variant {
    name: String,
    choice: PipelineChoice,
}

/// `adaptive`, and each preset once.
fn variants() -> Vec<Variant> {
    let mut variants = vec![Variant { name: "adaptive".into(), choice: PipelineChoice::Adaptive }];
    for preset in PRESETS {
        let choice = PipelineChoice::Fixed(preset.pipeline);
        match variants.iter_mut().find(|variant| variant.choice == choice) {
            Some(same) => same.name = format!("{} {}", same.name, preset.name),
            None => variants.push(Variant { name: preset.name.into(), choice }),
        }
    }
    variants
}

/// A volume and its submitters. Each round builds them anew on the same file, so that all rounds
/// have the same memory layout.
struct Bench {
    clients: Vec<Client>,
}

impl Bench {
    fn new(path: &Path, variant: &Variant, submitters: usize) -> Result<Self, Error> {
        let params = CryptParams::new(CIPHER, key());
        let options = VolumeOptions { pipeline: variant.choice, ..VolumeOptions::default() };
        let file = DeviceFile::open(path, Access::ReadWrite, false)?;
        let volume = Arc::new(Volume::from_crypt(file, &params, &options)?);
        let client = |_| Client::new(&volume, Priority::default());
        Ok(Self { clients: (0..submitters).map(client).collect::<Result<_, _>>()? })
    }
}

fn key() -> SecretBytes {
    SecretBytes::copy_of(&(0..64).collect::<Vec<u8>>())
}

/// Options of the command line.
struct Options {
    rounds: usize,
    smoke: bool,
    json: bool,
    /// Selects jobs whose name contains this text.
    job: String,
    pipeline: String,
    placement: String,
}

impl Options {
    fn parse() -> Result<Self, Error> {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let has = |word: &str| words.iter().any(|given| given == word);
        let after = |word: &str| {
            let at = words.iter().position(|given| given == word);
            at.and_then(|at| words.get(at + 1)).cloned()
        };
        let rounds = match after("--rounds") {
            Some(number) => number.parse::<usize>()?.max(1),
            None if has("--smoke") => 1,
            None => 21,
        };
        let part = |word: &str| after(word).unwrap_or_default();
        let job = part("--job");
        let pipeline = part("--pipeline");
        let placement = part("--placement");
        let smoke = has("--smoke");
        let json = has("--json");
        Ok(Self { rounds, smoke, json, job, pipeline, placement })
    }
}

fn main() -> Result<(), Error> {
    let options = Options::parse()?;
    let all_cpus = sched_getaffinity(None)?;
    let images = Images::new()?;
    let mut variants = variants();
    variants.retain(|variant| variant.name.contains(&options.pipeline));
    let mut cells = Vec::new();
    for placement in Placement::ALL {
        if placement.name().contains(&options.placement) {
            pin(placement, all_cpus)?;
            measure(placement, &variants, &options, &images, &mut cells)?;
        }
    }
    if options.json {
        cells.iter().for_each(table::print_json);
    } else {
        table::print(&cells);
    }
    Ok(())
}

fn measure(
    placement: Placement,
    variants: &[Variant],
    options: &Options,
    images: &Images,
    cells: &mut Vec<Cell>,
) -> Result<(), Error> {
    let mut bare = Bare::new(placement.submitters())?;
    for job in JOBS.iter().filter(|job| job.name.contains(&options.job)) {
        let requests = if options.smoke { job.requests / 16 } else { job.requests };
        let image = images.path(job.file);
        let job = Job { requests, ..*job };
        for round in 0..=options.rounds {
            let count = variants.len() + 2;
            let mut samples = vec![Sample::default(); count];
            for at in shuffled(count, round as u64 + 1) {
                samples[at] = match at {
                    0 => bare.measure(&job, false),
                    1 => bare.measure(&job, true),
                    _ => {
                        let variant = &variants[at - 2];
                        let mut bench = Bench::new(image, variant, placement.submitters())?;
                        round::measure(&mut bench.clients, &job)
                    }
                };
            }
            // The first round faults in the bare cipher's memory.
            if round > 0 {
                keep(cells, placement, &job, variants, &samples);
            }
        }
    }
    Ok(())
}

/// The numbers below `count`, shuffled by round, so that the order of neighbours changes.
fn shuffled(count: usize, round: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut word = round.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    order.sort_by_cached_key(|_| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word
    });
    order
}

/// Pins this thread and all threads that it starts later.
fn pin(placement: Placement, all_cpus: CpuSet) -> Result<(), Error> {
    let mut cpus = all_cpus;
    if placement == Placement::One {
        let first = (0..CpuSet::MAX_CPU).find(|cpu| all_cpus.is_set(*cpu)).expect("this runs");
        cpus.clear();
        cpus.set(first);
    }
    Ok(sched_setaffinity(None, &cpus)?)
}

/// Stores the samples of one round, each with the bare cipher of that round.
fn keep(
    cells: &mut Vec<Cell>,
    placement: Placement,
    job: &Job,
    variants: &[Variant],
    samples: &[Sample],
) {
    let names = [table::HOT, table::BARE].into_iter();
    let names = names.chain(variants.iter().map(|variant| variant.name.as_str()));
    let bare = samples[1];
    for (name, sample) in names.zip(samples) {
        let is_it = |cell: &&mut Cell| {
            cell.name == name && cell.job == job.name && cell.placement == placement.name()
        };
        if let Some(cell) = cells.iter_mut().find(is_it) {
            cell.add(*sample, bare);
        } else {
            let mut cell = Cell::new(placement.name(), job.name, name);
            cell.add(*sample, bare);
            cells.push(cell);
        }
    }
}
