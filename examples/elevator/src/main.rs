//! An elevator in a package of its own: `lifo` serves the youngest request first. Blockyard itself
//! is not changed.
//!
//! ```text
//! cargo run              eight readers on a simulated disk, under noop and under lifo
//! cargo run -- FILE      the same readers on a real volume: LUKS2 in a new file
//! ```
//!
//! `docs/elevators/adding.md` explains the steps; their numbers are here too.

use std::error::Error;
use std::path::Path;

use blockyard::bench::{self, Tally};
use blockyard::elevator::{
    Attached, Candidate, Elevator, ElevatorSpec, ElevatorType, Generation, IoContext, Merged,
    Nanos, RequestId, Requests, Work,
};
use blockyard::format::{FormatOptions, Pbkdf};
use blockyard::workload::fio::{Fio, Job, Rw};
use blockyard::{Key, Scheduling, Volume};
use blockyard_lab::{Experiment, Request, report, run};

// Step 1: the type.

static LIFO: ElevatorType = ElevatorType {
    name: "lifo",
    about: "last come, first served",
    generation: Generation::Single,
    tunables: &[],
    attach: |_, _| Attached { policy: Some(Box::new(Lifo(Vec::new()))), async_depth: None },
};

// Step 2: the policy.

/// The waiting requests, the youngest last.
struct Lifo(Vec<RequestId>);

impl Elevator for Lifo {
    fn allow_merge(&self, _: &Requests, _: RequestId, _: &Candidate) -> bool {
        false
    }

    fn insert(&mut self, _: Nanos, _: &Requests, request: RequestId) {
        self.0.push(request);
    }

    fn merged(&mut self, _: Nanos, _: &Requests, _: RequestId, _: Merged) {}

    fn dispatch(&mut self, _: Nanos, _: &Requests) -> Option<RequestId> {
        self.0.pop()
    }

    fn requeued(&mut self, _: Nanos, _: &Requests, _: RequestId) {}

    fn completed(&mut self, _: Nanos, _: &Requests, _: RequestId) {}

    fn exit_context(&mut self, _: Nanos, _: &Requests, _: IoContext) {}

    fn work(&self, _: Nanos) -> Work {
        if self.0.is_empty() { Work::None } else { Work::Now }
    }
}

// Step 3: the lab.

const EXPERIMENT: &str = r#"
name = "random-reads"
title = "Eight readers on one disk"
[device]
kind = "disk"
[queue]
elevator = "noop"
[jobs.reads]
program = "fio"
sections.reads = { rw = "randread", bs = "4k", size = "1m", direct = 1, numjobs = 8 }
[variants.noop]
"#;

/// The longest latency of a read in seconds, with the elevator of the experiment or another one.
fn longest(elevator: Option<ElevatorSpec>) -> Result<f64, blockyard_lab::Error> {
    let experiment = Experiment::parse("random-reads.toml", EXPERIMENT, None)?;
    let outcome = run(&experiment, &Request { elevator, ..Request::default() }, &|_, _| ())?;
    print!("{}", report::text(&outcome.report));
    let mut rows = outcome.report.rows.into_iter();
    let row = rows.find(|row| row.metric == "latency_max");
    Ok(row.and_then(|row| row.ours).expect("fio measures it").median)
}

// Step 4: a real volume.

const PASSPHRASE: &str = "correct horse";

/// Makes an encrypted volume in a new file.
fn make(path: &Path) -> Result<(), Box<dyn Error>> {
    // An example needs no strong key derivation.
    let cheap = FormatOptions {
        pbkdf: Pbkdf::Pbkdf2,
        pbkdf_iterations: Some(1000),
        size_bytes: Some(32 << 20),
        ..FormatOptions::default()
    };
    cheap.format(path, &Key::passphrase(PASSPHRASE))?;
    Ok(())
}

fn open(path: &Path, elevator: ElevatorSpec) -> Result<Volume, blockyard::Error> {
    // One request at a time at the device, so that the others wait in the elevator.
    let (elevator, queue_depth) = (Some(elevator), Some(1));
    let scheduling = Scheduling { elevator, queue_depth, ..Scheduling::default() };
    Volume::options().key(Key::passphrase(PASSPHRASE)).scheduling(scheduling).open(path)
}

/// Eight threads read from the volume; returns fio's report.
fn read(volume: &Volume) -> Result<String, Box<dyn Error>> {
    let job = Job::new("reads").with(|job| {
        job.shape.rw = Rw::RandRead;
        // The volume is the only file.
        job.region.filename = Some("volume".into());
        job.region.size_bytes = 1 << 20;
        job.clones.numjobs = 8;
        job.grouping.group_reporting = true;
    });
    let mut fio = Fio::new(vec![job])?;
    bench::run(volume, &mut fio, &Tally::default())?;
    Ok(fio.print())
}

fn main() -> Result<(), Box<dyn Error>> {
    let lifo = ElevatorSpec::of(&LIFO);
    let Some(path) = std::env::args_os().nth(1) else {
        let (noop, lifo) = (longest(None)?, longest(Some(lifo))?);
        println!("longest latency: noop {noop} s, lifo {lifo} s");
        return Ok(());
    };
    make(path.as_ref())?;
    for elevator in [ElevatorSpec::parse("noop")?, lifo] {
        let volume = open(path.as_ref(), elevator)?;
        println!("{}: {}", volume.elevator(), read(&volume)?);
    }
    Ok(())
}

// Step 5: tests of the promises; here one is the absence of a bound.

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn request_at_the_bottom_starves() {
        let noop = longest(None).unwrap();
        let lifo = longest(Some(ElevatorSpec::of(&LIFO))).unwrap();
        assert!(lifo > noop, "{lifo} {noop}");
    }

    #[test]
    fn volume_under_lifo_returns_what_eight_threads_wrote() {
        // Beside the test binary: `/tmp` may be in memory, where no elevator works.
        let dir = std::env::current_exe().unwrap();
        let dir = tempfile::tempdir_in(dir.parent().unwrap()).unwrap();
        let path = dir.path().join("volume.img");
        make(&path).unwrap();
        let volume = open(&path, ElevatorSpec::of(&LIFO)).unwrap();
        assert_eq!(volume.elevator(), "lifo");
        let block = |at: u64| vec![at as u8; 4096];
        thread::scope(|scope| {
            for start in 0..8 {
                let volume = &volume;
                scope.spawn(move || {
                    for at in (start..256).step_by(8) {
                        volume.write_all_at(&block(at), at * 4096).unwrap();
                    }
                });
            }
        });
        read(&volume).unwrap();
        for at in 0..256 {
            let mut bytes = vec![0; 4096];
            volume.read_exact_at(&mut bytes, at * 4096).unwrap();
            assert_eq!(bytes, block(at), "block {at}");
        }
    }
}
