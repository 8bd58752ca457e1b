//! Requests of 4 KiB for a count of their instructions: on an encrypted volume in memory, and the
//! bare cipher over the same bytes.
//!
//! `cargo x bench budget` runs it below `callgrind`: `budget_bench engine|cipher read|write COUNT`.
//! The difference between two counts is the cost of the requests alone.

use std::sync::Arc;

use blockyard_crypt::cipher::{CipherSpec, Hints, SectorCipher};
use blockyard_crypt::params::CryptParams;
use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::bio::{BlkStatus, Done, Op};
use blockyard_engine::priority::Priority;
use blockyard_host::file::{Access, DeviceFile};
use blockyard_host::local::{Client, Request};
use blockyard_host::volume::{Volume, VolumeOptions};

const CIPHER: &str = "aes-xts-plain64";
const VOLUME_BYTES: u64 = 1 << 20;
const BLOCK_BYTES: u64 = 4096;
/// Requests in flight.
const DEPTH: usize = 32;

type Error = Box<dyn std::error::Error>;

fn key() -> Vec<u8> {
    (0..64).collect()
}

/// Offset of a request: a walk over all blocks, out of order.
fn offset_bytes(request: u64) -> u64 {
    request * 37 % (VOLUME_BYTES / BLOCK_BYTES) * BLOCK_BYTES
}

fn engine(op: Op, count: u64) -> Result<(), Error> {
    let file = tempfile::NamedTempFile::new_in("/dev/shm")?;
    std::fs::write(file.path(), vec![1; VOLUME_BYTES as usize])?;
    let params = CryptParams::new(CIPHER, SecretBytes::copy_of(&key()));
    let options = VolumeOptions { worker_threads: Some(0), ..VolumeOptions::default() };
    let file = DeviceFile::open(file.path(), Access::ReadWrite, false)?;
    let volume = Arc::new(Volume::from_crypt(file, &params, &options)?);
    let mut client = Client::new(&volume, Priority::default())?;
    let mut done: Vec<Done> = Vec::with_capacity(DEPTH);
    let mut submitted = 0;
    // Each block once for its page, and `count` requests.
    let all = VOLUME_BYTES / BLOCK_BYTES + count;
    while submitted < all || client.in_flight() > 0 {
        while submitted < all && client.in_flight() < DEPTH {
            let offset_bytes = offset_bytes(submitted);
            let user = submitted;
            let len_bytes = BLOCK_BYTES;
            client.submit(Request { user, op, offset_bytes, len_bytes, sync: false });
            submitted += 1;
        }
        client.wait(1, &mut done);
        assert!(done.drain(..).all(|done| done.status == BlkStatus::Ok));
    }
    Ok(())
}

fn cipher(op: Op, count: u64) -> Result<(), Error> {
    let spec = CipherSpec::parse(CIPHER)?;
    let cipher = SectorCipher::new(&spec, &key(), 512, false)?;
    let mut device = vec![1; VOLUME_BYTES as usize];
    let mut buffer = vec![1; BLOCK_BYTES as usize];
    for request in 0..count {
        let offset_bytes = offset_bytes(request);
        let block = &mut device[offset_bytes as usize..][..BLOCK_BYTES as usize];
        let iv_sector = offset_bytes / 512;
        match op {
            Op::Write => cipher.encrypt(&buffer, block, iv_sector, Hints::default()),
            _ => cipher.decrypt(block, &mut buffer, iv_sector, Hints::default()),
        }
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let usage = "budget_bench engine|cipher read|write COUNT";
    let [part, op, count] = &words[..] else { return Err(usage.into()) };
    let op = match op.as_str() {
        "read" => Op::Read,
        "write" => Op::Write,
        _ => return Err(usage.into()),
    };
    let count = count.parse()?;
    match part.as_str() {
        "engine" => engine(op, count),
        "cipher" => cipher(op, count),
        _ => Err(usage.into()),
    }
}
