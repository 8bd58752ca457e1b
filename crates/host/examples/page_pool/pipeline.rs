//! Cost of whole writes by page allocator: cipher, pages, a copy into a file in memory.
//!
//! The cipher runs on the submitter's thread, as in the mail of 2023 (`no_write_workqueue`), so one
//! thread's CPU time is the whole cost. Allocators alternate; the table has medians of the time of
//! a write, and of its ratio to `single` in the same round.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use blockyard_crypt::params::CryptParams;
use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::bio::{BlkStatus, Op};
use blockyard_engine::pages::{ALLOCATORS, BIO_PAGES_MAX, PAGE_BYTES};
use blockyard_engine::priority::Priority;
use blockyard_host::file::{Access, DeviceFile};
use blockyard_host::local::{Client, Request};
use blockyard_host::pages::BounceChoice;
use blockyard_host::volume::{PipelineChoice, Volume, VolumeOptions};
use rustix::time::{ClockId, clock_gettime};

const ROUNDS: usize = 41;
const IMAGE_BYTES: u64 = 32 << 20;
const BASE: &str = "single";

type Failure = Box<dyn std::error::Error>;

/// Prints the table.
pub(super) fn print() -> Result<(), Failure> {
    let dir = tempfile::tempdir_in("/dev/shm")?;
    println!("\n{:<16} {:>8}  {:>12} {:>16}", "writes", "write", "ns of CPU", "of single");
    for (write, len_bytes, count) in
        [("4 KiB", PAGE_BYTES, 2048), ("1 MiB", BIO_PAGES_MAX * PAGE_BYTES, 32)]
    {
        let names = ["none", "slots"].into_iter().chain(ALLOCATORS.iter().map(|of| of.name));
        let mut cases: Vec<Case> =
            names.map(|name| Case::new(name, dir.path())).collect::<Result<_, _>>()?;
        for round in 0..=ROUNDS {
            for case in &mut cases {
                let ns = case.round(u64::from(len_bytes), count);
                // The first round allocates the file's pages.
                if round > 0 {
                    case.rounds.push(ns);
                }
            }
        }
        let base = cases.iter().find(|case| case.name == BASE).expect("a name of ours");
        let base = base.rounds.clone();
        for case in &mut cases {
            let mut ratios: Vec<f64> =
                case.rounds.iter().zip(&base).map(|(ns, base)| ns / base).collect();
            let ns = median(&mut case.rounds);
            let ratio = median(&mut ratios);
            println!("{:<16} {write:>8}  {ns:>12.0} {ratio:>16.4}", case.name);
        }
    }
    Ok(())
}

struct Case {
    name: &'static str,
    client: Client,
    /// Nanoseconds per write.
    rounds: Vec<f64>,
}

impl Case {
    /// A case on an image of its own.
    fn new(name: &'static str, dir: &Path) -> Result<Self, Failure> {
        let path = dir.join(name);
        File::create(&path)?.set_len(IMAGE_BYTES)?;
        let params = CryptParams::new(
            "aes-xts-plain64",
            SecretBytes::copy_of(&(0..64).collect::<Vec<u8>>()),
        );
        let options = VolumeOptions {
            worker_threads: Some(0),
            pipeline: PipelineChoice::parse("inline")?,
            bounce: BounceChoice::parse(name)?,
            ..VolumeOptions::default()
        };
        let file = DeviceFile::open(&path, Access::ReadWrite, false)?;
        let volume = Arc::new(Volume::from_crypt(file, &params, &options)?);
        let client = Client::new(&volume, Priority::default())?;
        Ok(Self { name, client, rounds: Vec::new() })
    }

    fn round(&mut self, len_bytes: u64, count: u64) -> f64 {
        let start = cpu_ns();
        let mut done = Vec::new();
        for user in 0..count {
            let offset_bytes = user * len_bytes;
            let request = Request { user, op: Op::Write, offset_bytes, len_bytes, sync: false };
            self.client.submit(request);
            self.client.wait(1, &mut done);
        }
        assert!(done.iter().all(|done| done.status == BlkStatus::Ok));
        (cpu_ns() - start) / count as f64
    }
}

/// CPU time of this thread; other load on the machine does not count.
pub(super) fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
