//! Cost of stages: requests of 4 KiB on an encrypted volume in memory. A client with default
//! sampling and a client without sampling alternate every few milliseconds on one thread.
//!
//! `cargo x bench engine --only stages`; `--rounds N` for more rounds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use blockyard_crypt::params::CryptParams;
use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::bio::Op;
use blockyard_engine::priority::Priority;
use blockyard_host::file::{Access, DeviceFile};
use blockyard_host::local::{Client, Request};
use blockyard_host::volume::{Volume, VolumeOptions};

const TURN: Duration = Duration::from_millis(5);
const VOLUME_BYTES: u64 = 16 << 20;
const BLOCK_BYTES: u64 = 4096;

struct Side {
    client: Client,
    next: u64,
    /// Mean time of a request in each turn.
    turns_ns: Vec<f64>,
}

fn side(path: &std::path::Path, sample_every: Option<u32>) -> Side {
    let params = CryptParams {
        sector_size_bytes: 4096,
        ..CryptParams::new("aes-xts-plain64", SecretBytes::copy_of(&(0..64).collect::<Vec<u8>>()))
    };
    let options =
        VolumeOptions { sample_every, worker_threads: Some(0), ..VolumeOptions::default() };
    let file = DeviceFile::open(path, Access::Shared, false).expect("the file is there");
    let volume = Volume::from_crypt(file, &params, &options).expect("the parameters fit");
    let client = Client::new(&Arc::new(volume), Priority::default()).expect("there is memory");
    Side { client, next: 0, turns_ns: Vec::new() }
}

impl Side {
    fn turn(&mut self, op: Op, depth: usize) {
        let mut ended = 0u32;
        let mut done = Vec::with_capacity(depth);
        let begun = Instant::now();
        while begun.elapsed() < TURN {
            for _ in 0..64 {
                while self.client.in_flight() < depth {
                    let offset_bytes = self.next * BLOCK_BYTES % VOLUME_BYTES;
                    let user = self.next;
                    let len_bytes = BLOCK_BYTES;
                    let sync = false;
                    self.client.submit(Request { user, op, offset_bytes, len_bytes, sync });
                    self.next += 1;
                }
                self.client.wait(depth, &mut done);
                ended += done.drain(..).len() as u32;
            }
        }
        self.turns_ns.push(begun.elapsed().as_nanos() as f64 / f64::from(ended));
    }

    /// Time of an undisturbed turn: the lower quartile of all turns.
    fn undisturbed_ns(&mut self) -> f64 {
        self.turns_ns.sort_unstable_by(f64::total_cmp);
        self.turns_ns[self.turns_ns.len() / 4]
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let rounds = words.iter().position(|word| word == "--rounds").and_then(|at| words.get(at + 1));
    let rounds = rounds.and_then(|word| word.parse().ok()).unwrap_or(200);
    let json = words.iter().any(|word| word == "--json");
    let file = tempfile::NamedTempFile::new_in("/dev/shm").expect("/dev/shm takes files");
    file.as_file().set_len(VOLUME_BYTES).expect("there is room");
    for (op, name, depth) in [
        (Op::Read, "read", 1),
        (Op::Write, "write", 1),
        (Op::Read, "read", 32),
        (Op::Write, "write", 32),
    ] {
        let [mut off, mut on] = [Some(0), None].map(|every| side(file.path(), every));
        for round in 0..rounds + 20 {
            // The order alternates; the first rounds only warm up.
            let mut order = [&mut off, &mut on];
            order.rotate_left(round % 2);
            for side in order {
                side.turn(op, depth);
                if round < 20 {
                    side.turns_ns.clear();
                }
            }
        }
        let off_ns = off.undisturbed_ns();
        let on_ns = on.undisturbed_ns();
        let cost = (on_ns / off_ns - 1.0) * 100.0;
        if json {
            println!(
                "{{\"bench\":\"stages\",\"op\":\"{name}\",\"depth\":{depth},\"off_ns\":{off_ns:.1},\
                 \"on_ns\":{on_ns:.1}}}"
            );
        } else {
            println!(
                "stages  4 KiB {name:<5} depth {depth:>2}  off {off_ns:7.1} ns  on {on_ns:7.1} ns  \
                 {cost:+5.2} %"
            );
        }
    }
}
