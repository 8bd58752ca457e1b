//! The doors of `cargo x bench cores`: servers and clients together on 1 to all CPUs.
//!
//! ```text
//!   one connection               the door's own thread, and workers where the server has them
//!   a connection for each CPU    all on one volume; at vhost-user a queue
//! ```
//! The clients need CPUs too, so a rate is that of both sides. The CPU time is the server's alone.

use super::{Args, Cell};
use crate::bench::fio::{Job, warm};
use crate::bench::fuse::{self, Shown};
use crate::bench::nbd::{Placement, one};
use crate::bench::peers::{self, Conditions, Images, Peer};
use crate::bench::table::{Sample, middle};
use crate::bench::vhost::{self, Disk};
use crate::bench::{moving, progress};
use crate::lab::Lab;
use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs::File;

/// Size of the disk; it lies in memory three times.
const SIZE_MIB: u32 = 256;

/// Jobs of each connection: name, fio's `rw`, its block, requests in flight (of FUSE one).
const JOBS: [(&str, &str, &str, u32); 4] = [
    ("4 KiB read", "randread", "4k", 32),
    ("4 KiB write", "randwrite", "4k", 32),
    ("1 MiB read", "read", "1m", 8),
    ("1 MiB write", "write", "1m", 8),
];

/// A server at one door.
enum Door {
    Nbd(Peer),
    Fuse(Shown),
    VhostUser(Disk),
}

impl Door {
    fn server(&self) -> &'static str {
        match self {
            Door::Nbd(peer) => peer.name,
            Door::Fuse(shown) => shown.name,
            Door::VhostUser(disk) => disk.name(),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Door::Nbd(_) => "NBD",
            Door::Fuse(_) => "FUSE",
            Door::VhostUser(_) => "vhost-user",
        }
    }

    fn warm(&self) -> Result<()> {
        match self {
            Door::Nbd(peer) => warm(&peer.uri, SIZE_MIB),
            Door::Fuse(shown) => shown.warm(SIZE_MIB),
            Door::VhostUser(disk) => disk.warm(SIZE_MIB),
        }
        .with_context(|| self.server())
    }

    fn sample(&self, job: &Job, seconds: f64) -> Result<Sample> {
        moving(seconds, |seconds| match self {
            Door::Nbd(peer) => one(peer, job, Placement::Free, seconds, SIZE_MIB),
            Door::Fuse(shown) => shown.sample(job, seconds, SIZE_MIB),
            Door::VhostUser(disk) => disk.sample(job, seconds, SIZE_MIB),
        })
        .with_context(|| format!("{}: {}", job.name, self.server()))
    }
}

/// Measures all doors. The CPUs of this process are those of before afterwards.
pub(super) fn measure(args: &Args) -> Result<Vec<Cell>> {
    let all = sched_getaffinity(None)?;
    let there: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect();
    let counts = args.counts(there.len())?;
    let lab = Lab::new()?;
    let images = Images::make(&lab, SIZE_MIB)?;
    let mut cells = Vec::new();
    for count in counts {
        let mut some = CpuSet::new();
        there[..count].iter().for_each(|cpu| some.set(*cpu));
        // Servers and clients inherit them.
        sched_setaffinity(None, &some)?;
        let measured = on(&lab, &images, count, args);
        sched_setaffinity(None, &all)?;
        cells.extend(measured?);
    }
    Ok(cells)
}

/// Measures all doors on so many CPUs, one kind after the other: both have the same images.
fn on(lab: &Lab, images: &Images, count: usize, args: &Args) -> Result<Vec<Cell>> {
    let nbd = peers::start_all(lab, images, Conditions::default())?;
    let mut cells = of_kind(&nbd.into_iter().map(Door::Nbd).collect::<Vec<_>>(), count, args)?;
    if File::options().read(true).write(true).open("/dev/fuse").is_ok() {
        let fuse = fuse::start_all(lab, images)?;
        cells.extend(of_kind(&fuse.into_iter().map(Door::Fuse).collect::<Vec<_>>(), count, args)?);
    }
    let disks: Vec<Door> =
        vhost::start_all(lab, images)?.into_iter().map(Door::VhostUser).collect();
    cells.extend(of_kind(&disks, count, args)?);
    Ok(cells)
}

/// Measures the servers of one kind of door.
fn of_kind(doors: &[Door], count: usize, args: &Args) -> Result<Vec<Cell>> {
    doors.iter().try_for_each(Door::warm)?;
    let connections = [("one connection", 1), ("a connection for each CPU", count as u32)];
    let wanted = args.shape.as_deref().unwrap_or_default();
    let mut cells = Vec::new();
    for (shape, connections) in connections.into_iter().filter(|(shape, _)| shape.contains(wanted))
    {
        for (name, rw, block, depth) in JOBS.into_iter().take(args.jobs_at_doors()) {
            let job = Job { name, rw, block, depth, connections };
            let mut samples: Vec<Vec<Sample>> = doors.iter().map(|_| Vec::new()).collect();
            for round in 0..args.rounds as usize {
                for at in 0..doors.len() {
                    // Another server begins each round.
                    let at = (at + round) % doors.len();
                    progress(&format!("{count} CPUs {round} {name}: {}", doors[at].server()));
                    samples[at].push(doors[at].sample(&job, args.seconds())?);
                }
            }
            let of_doors = doors.iter().zip(&samples);
            cells.extend(of_doors.map(|(door, samples)| cell(door, count, (shape, &job), samples)));
        }
    }
    progress("");
    Ok(cells)
}

/// Medians of the rounds.
fn cell(door: &Door, cpus: usize, (shape, job): (&str, &Job), samples: &[Sample]) -> Cell {
    let median = |figure: fn(&Sample) -> f64| middle(samples.iter().map(figure).collect());
    let kib = if job.counts_mib() { 1024.0 } else { 4.0 };
    Cell {
        cpus,
        shape: format!("{}, {shape}", door.name()),
        job: match door {
            Door::Nbd(_) | Door::VhostUser(_) => format!("{} q{}", job.name, job.depth),
            Door::Fuse(_) => format!("{} q1", job.name),
        },
        subject: door.server().to_owned(),
        mib_s: median(|sample| sample.mib_s),
        cpu_ns_per_kib: median(|sample| sample.cpu_us) * 1000.0 / kib,
        switches_per_request: None,
    }
}
