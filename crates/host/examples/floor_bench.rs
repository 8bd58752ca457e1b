//! Costs of the parts of a request: the cipher, copies, system calls, a wake-up. Their sum is the
//! lower bound of any server.
//!
//! `cargo x bench floor` prints them, and compares the server with their sums.

use std::fs::File;
use std::hint::black_box;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use blockyard_crypt::cipher::{CipherSpec, SectorCipher};

/// Rounds; the result is their median.
const ROUNDS: usize = 41;
/// Operations per round: as many replies as a socket holds.
const BATCH: usize = 16;
/// Far more than the caches of one core.
const COLD_BYTES: usize = 256 << 20;
const KIB_4: usize = 4096;
const KIB_64: usize = 64 << 10;
const MIB: usize = 1 << 20;
const REQUEST_BYTES: usize = 28;
const REPLY_BYTES: usize = 16;

/// Nanoseconds of one of `count` operations: the median of the rounds. The time of `between` does
/// not count.
fn median_ns(count: usize, mut work: impl FnMut(usize), mut between: impl FnMut()) -> f64 {
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        between();
        let begun = Instant::now();
        work(round);
        rounds.push(begun.elapsed().as_nanos() as f64 / count as f64);
    }
    rounds.sort_unstable_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

fn print(name: &str, ns: f64) {
    if std::env::args().any(|word| word == "--json") {
        println!("{{\"bench\":\"floor\",\"piece\":\"{name}\",\"ns\":{ns:.1}}}");
    } else {
        println!("{name:<34} {ns:>10.1} ns");
    }
}

/// Memory outside the caches: each round continues where the last one ended.
struct Cold {
    bytes: Vec<u8>,
    next: usize,
}

impl Cold {
    fn next(&mut self, len: usize) -> &mut [u8] {
        if self.next + len > self.bytes.len() {
            self.next = 0;
        }
        self.next += len;
        &mut self.bytes[self.next - len..self.next]
    }
}

fn memory(cold: &mut Cold) {
    let spec = CipherSpec::parse("aes-xts-plain64").expect("it is one");
    let key: Vec<u8> = (0..64).collect();
    let cipher = SectorCipher::new(&spec, &key, 4096, false).expect("the key fits");
    let mut near = vec![1; MIB];
    for (name, len) in [("4 KiB", KIB_4), ("1 MiB", MIB)] {
        let count = (MIB / len).max(8);
        let here = &mut near[..len.min(KIB_64)];
        let times = count * len / here.len();
        let work = |_| (0..times).for_each(|_| cipher.decrypt_in_place(here, 1));
        print(&format!("cipher {name}, in the cache"), median_ns(count, work, || {}));
        let work = |_| (0..count).for_each(|_| cipher.decrypt_in_place(cold.next(len), 1));
        print(&format!("cipher {name}, from memory"), median_ns(count, work, || {}));
        let to = &mut near[..len];
        let work = |_| (0..count).for_each(|_| black_box(&mut *to).copy_from_slice(cold.next(len)));
        print(&format!("copy {name}, from memory"), median_ns(count, work, || {}));
    }
}

/// Cost of both directions of a unix socket on one thread, without a wake-up.
fn socket() {
    let (mut server, mut client) = UnixStream::pair().expect("a pair of sockets");
    let mut bytes = vec![1; KIB_64 + KIB_4];
    for (name, len, count) in [
        ("request of 28 B", REQUEST_BYTES, BATCH),
        ("write of 4 KiB", REQUEST_BYTES + KIB_4, BATCH),
        ("write, a piece of 64 KiB", KIB_64, 1),
    ] {
        let given = vec![1; len];
        let fill = || (0..count).for_each(|_| client.write_all(&given).expect("there is room"));
        let here = &mut bytes[..len];
        let work = |_| (0..count).for_each(|_| server.read_exact(here).expect("it is there"));
        print(&format!("recv: {name}"), median_ns(count, work, fill));
    }
    for (name, len, count) in [
        ("reply of 16 B", REPLY_BYTES, BATCH),
        ("read of 4 KiB", REPLY_BYTES + KIB_4, BATCH),
        ("16 reads of 4 KiB in one", KIB_64 + 16 * REPLY_BYTES, 1),
    ] {
        let mut sink = vec![0; len];
        let work = |_| (0..count).for_each(|_| server.write_all(&bytes[..len]).expect("room"));
        let drain = || {
            client.set_nonblocking(true).expect("sockets take it");
            while client.read(&mut sink).is_ok() {}
            client.set_nonblocking(false).expect("sockets take it");
        };
        print(&format!("send: {name}"), median_ns(count, work, drain));
    }
}

fn files() {
    let file = tempfile::tempfile_in("/dev/shm").expect("/dev/shm takes files");
    file.set_len(MIB as u64).expect("there is room");
    let mut bytes = vec![1; KIB_4];
    let count = MIB / KIB_4;
    let places = move || (0..count).map(|at| (at * KIB_4) as u64);
    let mut each = |name: &str, work: &mut dyn FnMut(&File, &mut [u8], u64)| {
        let work = |_| places().for_each(|at| work(&file, &mut bytes, at));
        print(name, median_ns(count, work, || {}));
    };
    each("pwrite 4 KiB, tmpfs", &mut |file, bytes, at| file.write_all_at(bytes, at).expect("room"));
    each("pread 4 KiB, tmpfs", &mut |file, bytes, at| file.read_exact_at(bytes, at).expect("it"));
}

/// Half of a round trip: a byte to a sleeping thread, and one back.
fn wake_up() {
    let (mut here, mut there) = UnixStream::pair().expect("a pair of sockets");
    let other = std::thread::spawn(move || {
        let mut byte = [0];
        while there.read_exact(&mut byte).and_then(|()| there.write_all(&byte)).is_ok() {}
    });
    let mut byte = [0];
    let count = 64;
    let work = |_| {
        for _ in 0..count {
            here.write_all(&byte).and_then(|()| here.read_exact(&mut byte)).expect("it answers");
        }
    };
    print("hand-over to a sleeping thread", median_ns(2 * count, work, || {}));
    drop(here);
    other.join().expect("it ends with its socket");
}

fn main() {
    let work = |_| (0..1000).for_each(|_| _ = black_box(Instant::now()));
    print("look at the clock", median_ns(1000, work, || {}));
    let work = |_| (0..1000).for_each(|_| _ = black_box(std::os::unix::process::parent_id()));
    print("system call that does nothing", median_ns(1000, work, || {}));
    memory(&mut Cold { bytes: vec![1; COLD_BYTES], next: 0 });
    files();
    socket();
    wake_up();
}
