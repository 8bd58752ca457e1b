//! Volumes with elevators: data is read back as written, in any order; volumes that cannot have an
//! elevator refuse it.

mod client;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blockyard_crypt::params::CryptParams;
use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::elevator::{ELEVATORS, ElevatorSpec};
use blockyard_engine::priority::Priority;
use blockyard_host::Error;
use blockyard_host::file::{Access, DeviceFile};
use blockyard_host::server::ServedExport;
use blockyard_host::volume::{Scheduling, Volume, VolumeOptions};

use client::{Client, FLUSH, FUA, READ, Serving, WRITE};

const BLOCK: u32 = 4096;
const BLOCKS: u64 = 512;

fn options(elevator: &str, queue_depth: u32) -> VolumeOptions {
    let elevator = Some(ElevatorSpec::parse(elevator).unwrap());
    let scheduling =
        Scheduling { elevator, queue_depth: Some(queue_depth), ..Scheduling::default() };
    VolumeOptions { scheduling, ..VolumeOptions::default() }
}

fn image(dir: &Path) -> PathBuf {
    let path = dir.join("image");
    File::create(&path).unwrap().set_len(BLOCKS * u64::from(BLOCK)).unwrap();
    path
}

fn crypt(path: &Path, start: u64, options: &VolumeOptions) -> Result<Volume, Error> {
    let params = CryptParams {
        data_offset_sectors: start,
        sector_size_bytes: if start == 0 { BLOCK } else { 512 },
        ..CryptParams::new("aes-xts-plain64", SecretBytes::copy_of(&(0..64).collect::<Vec<u8>>()))
    };
    let file = DeviceFile::open(path, Access::ReadWrite, options.direct)?;
    Volume::from_crypt(file, &params, options)
}

fn dir_on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn exports(volume: &Arc<Volume>) -> Vec<ServedExport> {
    let priorities =
        [("", Priority::default()), ("rt", Priority::real_time(0)), ("idle", Priority::IDLE)];
    let export = |(name, priority): (&str, Priority)| {
        let volume = Arc::clone(volume);
        ServedExport { priority, ..ServedExport::new(name, volume) }
    };
    priorities.into_iter().map(export).collect()
}

/// A byte that differs between blocks and rounds.
fn fill(block: u64, round: u64) -> u8 {
    (block.wrapping_mul(31) + round * 101) as u8
}

/// Writes every second block in shuffled order, up to 16 at a time, then flushes.
fn write_all(client: &mut Client, first: u64, round: u64) {
    let blocks: Vec<u64> = (0..BLOCKS / 2).map(|n| first + 2 * (n * 77 % (BLOCKS / 2))).collect();
    for some in blocks.chunks(16) {
        for &block in some {
            let flags = if block % 64 == first { FUA } else { 0 };
            let place = (block * u64::from(BLOCK), BLOCK);
            client.ask(WRITE, flags, block, place, fill(block, round));
        }
        let mut replied: Vec<u64> = some.iter().map(|_| client.reply()).collect();
        replied.sort_unstable();
        let mut asked = some.to_vec();
        asked.sort_unstable();
        assert_eq!(replied, asked);
    }
    client.ask(FLUSH, 0, 7, (0, 0), 0);
    assert_eq!(client.reply(), 7);
}

/// Reads everything, up to 16 at a time.
fn read_all(client: &mut Client, expected: impl Fn(u64) -> u8, name: &str) {
    for start in (0..BLOCKS).step_by(16) {
        for block in start..start + 16 {
            client.ask(READ, 0, block, (block * u64::from(BLOCK), BLOCK), 0);
        }
        for _ in 0..16 {
            let block = client.reply();
            let data = client.data(BLOCK);
            assert!(data == [expected(block); BLOCK as usize], "{name}: block {block}");
        }
    }
}

#[test]
fn two_clients_read_back_what_both_have_written_whatever_the_elevator() {
    for elevator in ELEVATORS {
        for depth in [1, 32] {
            let dir = dir_on_disk();
            let options = options(elevator.name, depth);
            let options = VolumeOptions { direct: true, ..options };
            let volume = Arc::new(crypt(&image(dir.path()), 0, &options).unwrap());
            assert_eq!(volume.elevator(), elevator.name);
            let serving = Serving::start(&dir.path().join("socket"), exports(&volume));
            let mut one = serving.connect("rt");
            let mut two = serving.connect("idle");
            std::thread::scope(|scope| {
                scope.spawn(|| (0..3).for_each(|round| write_all(&mut one, 0, round)));
                scope.spawn(|| (0..3).for_each(|round| write_all(&mut two, 1, round)));
            });
            std::thread::scope(|scope| {
                scope.spawn(|| read_all(&mut one, |block| fill(block, 2), elevator.name));
                scope.spawn(|| read_all(&mut two, |block| fill(block, 2), elevator.name));
            });
            drop((one, two));
            serving.stop();
            assert_eq!(Arc::strong_count(&volume), 1, "{}: no other user is left", elevator.name);
        }
    }
}

#[test]
fn client_that_vanishes_with_requests_in_flight_leaves_whole_blocks() {
    for elevator in ELEVATORS {
        let dir = dir_on_disk();
        let volume = crypt(&image(dir.path()), 0, &options(elevator.name, 2)).unwrap();
        let volume = Arc::new(volume);
        let serving = Serving::start(&dir.path().join("socket"), exports(&volume));
        let mut client = serving.connect("");
        (0..2).for_each(|first| write_all(&mut client, first, 0));
        for round in 1..5 {
            let mut dying = serving.connect("rt");
            for block in 0..48 {
                dying.ask(WRITE, 0, block, (block * u64::from(BLOCK), BLOCK), fill(block, round));
                dying.ask(READ, 0, block, ((block + 64) * u64::from(BLOCK), BLOCK), 0);
            }
            drop(dying);
        }
        for block in 0..BLOCKS {
            client.ask(READ, 0, block, (block * u64::from(BLOCK), BLOCK), 0);
            assert_eq!(client.reply(), block);
            let data = client.data(BLOCK);
            let rounds = if block < 48 { 0..5 } else { 0..1 };
            let known = rounds.map(|round| fill(block, round)).any(|byte| byte == data[0]);
            let whole = data.iter().all(|byte| *byte == data[0]);
            assert!(known && whole, "{}: block {block}", elevator.name);
        }
        drop(client);
        serving.stop();
    }
}

#[test]
fn file_on_a_disk_gets_direct_io_with_an_elevator_and_none_without() {
    let dir = dir_on_disk();
    let path = image(dir.path());
    let elevator = |options: &VolumeOptions| crypt(&path, 0, options).unwrap().elevator();
    assert_eq!(elevator(&options("deadline,fifo_batch=4", 8)), "deadline,fifo_batch=4");
    assert_eq!(elevator(&VolumeOptions::default()), "none");
    let direct = VolumeOptions { direct: true, ..VolumeOptions::default() };
    assert_eq!(elevator(&direct), "none", "a file's own disk is scheduled by the kernel");
}

#[test]
fn file_that_took_the_place_of_the_one_that_was_opened_is_not_used_for_direct_io() {
    let dir = dir_on_disk();
    let path = image(dir.path());
    let file = DeviceFile::open(&path, Access::ReadWrite, false).unwrap();
    let other = dir.path().join("other");
    std::fs::rename(&path, other).unwrap();
    image(dir.path());
    let volume = Volume::from_file(file, &options("mq-deadline", 32));
    let refusal = refusal(volume);
    assert!(refusal.contains("another file has taken its place"), "{refusal}");
}

fn refusal(volume: Result<Volume, Error>) -> String {
    volume.err().expect("the options exclude each other").to_string()
}

#[test]
fn elevator_for_a_file_in_memory_is_refused() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(dir.path());
    let refusal = refusal(crypt(&path, 0, &options("mq-deadline", 32)));
    for part in ["image", "mq-deadline", "tmpfs", "leave `elevator` out"] {
        assert!(refusal.contains(part), "{refusal}");
    }
    let volume = crypt(&path, 0, &options("none", 32)).unwrap();
    assert_eq!(volume.elevator(), "none");
}

#[test]
fn elevator_for_data_that_direct_io_does_not_fit_is_refused() {
    let dir = dir_on_disk();
    let path = image(dir.path());
    // If the file system has units of 512 bytes, sector 3 fits.
    if let Err(error) = crypt(&path, 3, &options("noop", 32)) {
        let refusal = error.to_string();
        for part in ["image", "noop", "sector 3", "4096 bytes", "leave `elevator` out"] {
            assert!(refusal.contains(part), "{refusal}");
        }
    }
}

#[test]
fn limits_that_no_request_could_pass_are_refused_with_what_is_allowed() {
    let dir = dir_on_disk();
    let path = image(dir.path());
    let refused = |queue_depth, max_sectors| {
        let queue_depth = Some(queue_depth);
        let scheduling = Scheduling { elevator: None, queue_depth, max_sectors };
        refusal(crypt(&path, 0, &VolumeOptions { scheduling, ..VolumeOptions::default() }))
    };
    assert!(refused(0, 2560).contains("1 to 1024"));
    assert!(refused(1025, 2560).contains("1 to 1024"));
    assert!(refused(32, 0).contains("8 to 65528"));
    assert!(refused(32, 2561).contains("multiple of 8"));
}

#[test]
fn elevator_for_a_linear_line_is_refused() {
    let dir = dir_on_disk();
    let path = image(dir.path());
    let table = format!("0 64 linear {} 8\n", path.display());
    let table = SecretBytes::copy_of(table.as_bytes());
    let refusal = refusal(Volume::from_table(&table, &options("deadline", 32)));
    for part in ["image", "deadline", "only a crypt line", "leave `elevator` out"] {
        assert!(refusal.contains(part), "{refusal}");
    }
    Volume::from_table(&table, &options("none", 32)).unwrap();
}
