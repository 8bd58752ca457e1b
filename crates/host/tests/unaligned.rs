//! Writes of parts of sectors beside other writes to the same sectors: all of them end, and no byte
//! reverts to its state before an acknowledged write.

mod client;

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use blockyard_crypt::params::CryptParams;
use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_host::file::{Access, DeviceFile};
use blockyard_host::server::ServedExport;
use blockyard_host::volume::{Scheduling, Volume, VolumeOptions};

use client::{Client, READ, Serving, WRITE, WRITE_ZEROES, request};

const BLOCK: u32 = 4096;
const MIB: u64 = 1 << 20;
const SIZE_BYTES: u64 = 4 * MIB;

/// Access to the file.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Placement {
    Memory,
    Cached,
    Direct,
    MqDeadline,
}

const PLACEMENTS: [Placement; 4] =
    [Placement::Memory, Placement::Cached, Placement::Direct, Placement::MqDeadline];

/// A served volume, and its folder.
struct Served {
    serving: Serving,
    volume: Arc<Volume>,
    _dir: tempfile::TempDir,
}

impl Served {
    fn start(placement: Placement, cipher: &str) -> Self {
        let place =
            if placement == Placement::Memory { "/dev/shm" } else { env!("CARGO_TARGET_TMPDIR") };
        let dir = tempfile::tempdir_in(place).unwrap();
        let path = dir.path().join("image");
        File::create(&path).unwrap().set_len(SIZE_BYTES).unwrap();
        let elevator = (placement == Placement::MqDeadline)
            .then(|| ElevatorSpec::parse("mq-deadline").unwrap());
        let options = VolumeOptions {
            direct: matches!(placement, Placement::Direct | Placement::MqDeadline),
            scheduling: Scheduling { elevator, ..Scheduling::default() },
            worker_threads: Some(0),
            controlled: true,
            ..VolumeOptions::default()
        };
        let params = CryptParams {
            sector_size_bytes: BLOCK,
            ..CryptParams::new(
                cipher,
                SecretBytes::copy_of(&(0..64).collect::<Vec<u8>>()[..key_bytes(cipher)]),
            )
        };
        let file = DeviceFile::open(&path, Access::ReadWrite, options.direct).unwrap();
        let volume = Arc::new(Volume::from_crypt(file, &params, &options).unwrap());
        let export = ServedExport::new("", Arc::clone(&volume));
        let serving = Serving::start(&dir.path().join("socket"), vec![export]);
        Self { serving, volume, _dir: dir }
    }

    fn xts(placement: Placement) -> Self {
        Self::start(placement, "aes-xts-plain64")
    }

    fn connect(&self) -> Client {
        self.serving.connect("")
    }
}

fn key_bytes(cipher: &str) -> usize {
    if cipher.contains("xts") { 64 } else { 32 }
}

fn read(client: &mut Client, offset: u64, len: u32) -> Vec<u8> {
    client.ask(READ, 0, 9, (offset, len), 0);
    assert_eq!(client.reply(), 9);
    client.data(len)
}

fn replies(client: &mut Client, count: usize) {
    for _ in 0..count {
        client.reply();
    }
}

#[test]
fn zeroes_over_a_border_and_an_unaligned_write_that_come_together_both_end() {
    for placement in PLACEMENTS {
        let served = Served::xts(placement);
        let mut client = served.connect();
        // Across a multiple of 1 MiB, with an end inside a sector; and both.
        for (offset, len) in [(MIB - 8192, 16_896), (MIB - 512, 1024), (100, 3 << 20)] {
            for round in 0..20 {
                let fill = 1 + round;
                let around = (offset & !4095, (len + 8192) & !4095);
                client.ask(WRITE, 0, 1, around, fill);
                assert_eq!(client.reply(), 1);
                let mut both = request(WRITE_ZEROES, 0, 2, (offset, len), 0);
                both.extend(request(WRITE, 0, 3, (SIZE_BYTES - 1000, 500), fill));
                client.send(&both);
                replies(&mut client, 2);
                let bytes = read(&mut client, around.0, around.1);
                let skip = (offset - around.0) as usize;
                let (before, rest) = bytes.split_at(skip);
                let (zeroes, behind) = rest.split_at(len as usize);
                assert!(zeroes.iter().all(|&byte| byte == 0), "{placement:?}: {offset}");
                assert!(
                    before.iter().chain(behind).all(|&byte| byte == fill),
                    "{placement:?}: {offset}"
                );
                assert!(read(&mut client, SIZE_BYTES - 1000, 500) == [fill; 500], "{placement:?}");
            }
        }
        drop(client);
        served.serving.stop();
    }
}

/// Writes parts of some sectors while a `command` of this length is in flight to each of them.
/// Bytes outside the parts must stay.
fn write_beside(served: &Served, one_connection: bool, command: u16, len: u32) {
    const AT_A_TIME: u64 = 8;
    let mut first = served.connect();
    let mut second = served.connect();
    let part = 1000..1500;
    let offset = |n: u64| n * u64::from(len);
    for round in 0..200u64 {
        let old = 100 + (round % 100) as u8;
        let new = if command == WRITE { 1 + (round % 99) as u8 } else { 0 };
        for n in 0..AT_A_TIME {
            first.ask(WRITE, 0, n, (offset(n), BLOCK), old);
        }
        replies(&mut first, AT_A_TIME as usize);
        let each = |make: &dyn Fn(u64) -> Vec<u8>| (0..AT_A_TIME).flat_map(make).collect();
        let wholes: Vec<u8> = each(&|n| request(command, 0, n, (offset(n), len), new));
        let patches: Vec<u8> = each(&|n| request(WRITE, 0, n, (offset(n) + part.start, 500), 200));
        let (a, b) = if round % 2 == 0 { (wholes, patches) } else { (patches, wholes) };
        if one_connection {
            first.send(&[a, b].concat());
            replies(&mut first, 2 * AT_A_TIME as usize);
        } else {
            first.send(&a);
            second.send(&b);
            replies(&mut first, AT_A_TIME as usize);
            replies(&mut second, AT_A_TIME as usize);
        }
        for n in 0..AT_A_TIME {
            let bytes = read(&mut first, offset(n), BLOCK);
            for (at, &byte) in (0..).zip(&bytes) {
                let may_be = byte == new || byte == 200 && part.contains(&at);
                assert!(may_be, "round {round}: byte {at} is {byte}, and was {old} before {new}");
            }
        }
    }
}

#[test]
fn bytes_beside_a_patch_keep_what_another_connection_has_written() {
    for placement in PLACEMENTS {
        let served = Served::xts(placement);
        write_beside(&served, false, WRITE, BLOCK);
        served.serving.stop();
    }
}

#[test]
fn bytes_beside_a_patch_keep_what_the_same_connection_has_written() {
    for placement in PLACEMENTS {
        let served = Served::xts(placement);
        write_beside(&served, true, WRITE, BLOCK);
        served.serving.stop();
    }
}

#[test]
fn bytes_beside_a_patch_keep_long_writes_and_zeroes() {
    for placement in [Placement::Direct, Placement::MqDeadline] {
        let served = Served::xts(placement);
        write_beside(&served, false, WRITE, 64 << 10);
        write_beside(&served, true, WRITE_ZEROES, 64 << 10);
        served.serving.stop();
    }
}

#[test]
fn two_clients_that_write_parts_of_one_sector_lose_none() {
    for placement in PLACEMENTS {
        let served = Served::xts(placement);
        let mut first = served.connect();
        let mut second = served.connect();
        for round in 0..100u64 {
            let fill = 1 + (round % 250) as u8;
            // Eight parts each, all of one sector, more than there is room for at a time.
            let parts = |from: u64| -> Vec<u8> {
                let parts = (0..20).map(|n| (from + n % 8 * 512, 256u32));
                parts.flat_map(|place| request(WRITE, 0, 1, place, fill)).collect()
            };
            first.send(&parts(0));
            second.send(&parts(256));
            replies(&mut first, 20);
            replies(&mut second, 20);
            assert!(read(&mut first, 0, BLOCK) == [fill; BLOCK as usize], "{placement:?}");
        }
        drop((first, second));
        served.serving.stop();
    }
}

#[test]
fn volume_is_suspended_while_clients_write_parts_of_sectors() {
    let served = Served::xts(Placement::Direct);
    let ends = AtomicBool::new(false);
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for number in 0..4u64 {
            let served = &served;
            let ends = &ends;
            let written = &written;
            scope.spawn(move || {
                let mut client = served.connect();
                while !ends.load(Ordering::Relaxed) {
                    // Whole blocks are in flight while parts of them are written.
                    let whole = |n| ((1 + number * 4 + n) * u64::from(BLOCK), BLOCK);
                    let part = |n| (number * 512 + n * 128, 100);
                    let both = |n| [whole(n), part(n)].map(|place| request(WRITE, 0, 1, place, 1));
                    let some: Vec<u8> = (0..4).flat_map(both).flatten().collect();
                    client.send(&some);
                    replies(&mut client, 8);
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let suspended = (0..50).try_for_each(|_| {
            let before = written.load(Ordering::Relaxed);
            while written.load(Ordering::Relaxed) < before + 8 {
                std::thread::yield_now();
            }
            served.volume.suspend()?;
            assert!(served.volume.status().is_suspended);
            served.volume.resume(false).map(drop)
        });
        ends.store(true, Ordering::Relaxed);
        suspended.unwrap();
    });
    served.serving.stop();
}

#[test]
fn sector_of_a_chained_mode_is_never_read_while_a_part_of_it_is_written() {
    for placement in PLACEMENTS {
        let served = Served::start(placement, "aes-cbc-essiv:sha256");
        let mut reader = served.connect();
        let mut writer = served.connect();
        writer.ask(WRITE, 0, 1, (0, BLOCK), 7);
        assert_eq!(writer.reply(), 1);
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut fill = 0u8;
                while !ends.load(Ordering::Relaxed) {
                    fill = fill.wrapping_add(1);
                    writer.ask(WRITE, 0, 1, (100, 8), fill);
                    assert_eq!(writer.reply(), 1);
                }
            });
            let is_whole = (0..1000).all(|_| {
                let bytes = read(&mut reader, 512, BLOCK - 512);
                bytes.iter().all(|&byte| byte == 7)
            });
            ends.store(true, Ordering::Relaxed);
            assert!(is_whole, "{placement:?}");
        });
        drop((reader, writer));
        served.serving.stop();
    }
}

#[test]
fn client_that_takes_no_replies_holds_up_neither_a_suspend_nor_a_write_of_a_part() {
    for placement in [Placement::Direct, Placement::MqDeadline] {
        let served = Served::xts(placement);
        let mut silent = served.connect();
        let mut other = served.connect();
        // The replies exceed the buffers of the sockets and the server, the requests do not. Writes
        // follow the first requests.
        let read = |n: u64| request(READ, 0, n, (n % 32 * 65_536, 65_536), 0);
        let write = |n: u64| request(WRITE, 0, 100 + n, (0, BLOCK), 1);
        let writes = (0..8).flat_map(|n| [write(n), read(n)]).flatten();
        let all: Vec<u8> = writes.chain((8..100).flat_map(read)).collect();
        silent.send(&all);
        // The sockets hold about three replies.
        while served.volume.status().counts.reads.parts < 4 {
            std::thread::yield_now();
        }
        served.volume.suspend().unwrap();
        served.volume.resume(false).unwrap();
        other.ask(WRITE, 0, 7, (100, 100), 2);
        assert_eq!(other.reply(), 7);
        for _ in 0..108 {
            if silent.reply() < 100 {
                silent.data(65_536);
            }
        }
        drop((silent, other));
        served.serving.stop();
    }
}
