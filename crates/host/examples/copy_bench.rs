//! Throughput of `dump` and `load` by the number of crypto workers: the effect of `--threads`.
//!
//! A volume of 512 MiB in tmpfs (`/dev/shm`), aes-xts-plain64 with a 512-bit key and 4096-byte
//! sectors. Rounds go through all numbers of workers in turn; medians. `--json` for programs.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Instant;

use blockyard_crypt::params::CryptParams;
use blockyard_crypt::secret::SecretBytes;
use blockyard_host::copy::{dump, load};
use blockyard_host::file::{Access, DeviceFile};
use blockyard_host::volume::{Volume, VolumeOptions};

const SIZE_MIB: u64 = 512;
const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let json = std::env::args().any(|argument| argument == "--json");
    let cores = std::thread::available_parallelism()?.get();
    let counts: Vec<usize> = (0..=cores).collect();
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let path = dir.path().join("image");
    File::create(&path)?.set_len(SIZE_MIB << 20)?;
    let mut rates = vec![(Vec::new(), Vec::new()); counts.len()];
    for round in 0..=ROUNDS {
        for (workers, (dumps, loads)) in counts.iter().zip(&mut rates) {
            let volume = open(&path, *workers)?;
            let start = Instant::now();
            load(&volume, &mut io::repeat(7).take(SIZE_MIB << 20), &mut |_| {})?;
            let loaded = SIZE_MIB as f64 / start.elapsed().as_secs_f64();
            let start = Instant::now();
            dump(&volume, &mut io::sink(), &mut |_| {})?;
            let dumped = SIZE_MIB as f64 / start.elapsed().as_secs_f64();
            // The first round allocates the file's pages.
            if round > 0 {
                dumps.push(dumped);
                loads.push(loaded);
            }
        }
    }
    for (workers, (dumps, loads)) in counts.iter().zip(&mut rates) {
        let dump = median(dumps);
        let load = median(loads);
        if json {
            println!(
                "{{\"bench\": \"copy\", \"workers\": {workers}, \"dump_mib_s\": {dump:.0}, \
                 \"load_mib_s\": {load:.0}}}"
            );
        } else {
            println!("{workers} workers: dump {dump:6.0} MiB/s, load {load:6.0} MiB/s");
        }
    }
    Ok(())
}

fn open(path: &std::path::Path, workers: usize) -> Result<Arc<Volume>, blockyard_host::Error> {
    let params = CryptParams {
        sector_size_bytes: 4096,
        ..CryptParams::new("aes-xts-plain64", SecretBytes::copy_of(&(0..64).collect::<Vec<u8>>()))
    };
    let options = VolumeOptions { worker_threads: Some(workers), ..VolumeOptions::default() };
    let file = DeviceFile::open(path, Access::ReadWrite, false)?;
    Ok(Arc::new(Volume::from_crypt(file, &params, &options)?))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
