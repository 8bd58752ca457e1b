//! Queues that poll: their guests need not kick, no request is missed, and whatever stops a queue
//! stops one that polls.

mod client;
mod guest;

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use blockyard_crypt::params::CryptParams;
use blockyard_crypt::secret::SecretBytes;
use blockyard_host::file::{Access, DeviceFile};
use blockyard_host::server::{DeviceOptions, Polling, ServedExport, ServerOptions};
use blockyard_host::volume::{Volume, VolumeOptions};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use client::Serving;
use guest::*;

const SIZE_BYTES: u64 = 8 << 20;
/// Time limit of a change that has no descriptor to wait for.
const HANGS: Duration = Duration::from_secs(60);

struct Served {
    serving: Serving,
    volume: Arc<Volume>,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl Served {
    /// A volume in memory, or one whose requests end later.
    fn start(place: &str, direct: bool, polling: Polling) -> Self {
        let dir = tempfile::tempdir_in(place).unwrap();
        let path = dir.path().join("image");
        File::create(&path).unwrap().set_len(SIZE_BYTES).unwrap();
        let key = SecretBytes::copy_of(&(0..64).collect::<Vec<u8>>());
        let params = CryptParams::new("aes-xts-plain64", key);
        let options = VolumeOptions { direct, controlled: true, ..VolumeOptions::default() };
        let file = DeviceFile::open(&path, Access::ReadWrite, direct).unwrap();
        let volume = Arc::new(Volume::from_crypt(file, &params, &options).unwrap());
        let export = ServedExport::new("", Arc::clone(&volume));
        let socket = dir.path().join("vhost");
        let at = socket.clone();
        let options = DeviceOptions { polling, ..DeviceOptions::default() };
        let nbd = dir.path().join("nbd");
        let serving =
            Serving::start_with(&nbd, vec![export], ServerOptions::default(), move |server| {
                server.listen_vhost_user(&at, 0, &options).unwrap();
            });
        Self { serving, volume, socket, _dir: dir }
    }

    fn in_memory(polling: Polling) -> Self {
        Self::start("/dev/shm", false, polling)
    }
}

/// Waits for a change of memory or of the process.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < HANGS, "{what}");
        std::thread::yield_now();
    }
}

/// Whether queues may poll here.
fn has_cpus() -> bool {
    std::thread::available_parallelism().unwrap().get() > 1
}

/// Whether the server asks for a kick with the next request. Without an event index it does so as
/// long as its queue sleeps.
fn asks(guest: &Guest) -> bool {
    guest.asked_kick(0).is_some()
}

/// A guest whose queue has been kicked.
fn started(socket: &Path, features: u64) -> Guest {
    let mut guest = Guest::connect(socket, 1, features);
    assert_eq!(guest.run(0, FLUSH, 0, 0), 0);
    guest
}

/// Runs a request without a kick.
fn run_unkicked(guest: &mut Guest, kind: u32, sector: u64, len: u32) -> u8 {
    guest.push(0, 0, kind, sector, len);
    assert_eq!(guest.ended(0).0, 0);
    guest.status(0, 0)
}

#[test]
fn queue_that_always_polls_needs_no_kick_on_any_kind_of_file() {
    if !has_cpus() {
        return;
    }
    for (place, direct) in [("/dev/shm", false), (env!("CARGO_TARGET_TMPDIR"), true)] {
        let served = Served::start(place, direct, Polling::Always);
        for features in [F_FLUSH, F_FLUSH | F_EVENT_INDEX] {
            let mut guest = started(&served.socket, features);
            for round in 0..200u16 {
                let bytes = [round as u8; 4096];
                guest.write(Guest::data_at(0, 0), &bytes);
                let sector = u64::from(round) * 8;
                assert_eq!(run_unkicked(&mut guest, WRITE, sector, 4096), 0);
                guest.write(Guest::data_at(0, 0), &[0; 4096]);
                assert_eq!(run_unkicked(&mut guest, READ, sector, 4096), 0);
                assert!(guest.read(Guest::data_at(0, 0), 4096) == bytes, "{direct} {round}");
            }
            assert!(features & F_EVENT_INDEX != 0 || !asks(&guest));
        }
        served.serving.stop();
    }
}

#[test]
fn whatever_stops_a_queue_stops_one_that_polls() {
    if !has_cpus() {
        return;
    }
    let served = Served::in_memory(Polling::Always);
    let mut guest = started(&served.socket, F_FLUSH);
    // The front end stops it.
    let base = guest.stop(0);
    assert_eq!(base, 1);
    guest.start_again(0, base);
    guest.kick(0);
    assert_eq!(run_unkicked(&mut guest, FLUSH, 0, 0), 0);
    // The memory is replaced; the queue polls again without a kick.
    let file = guest.memory.try_clone().unwrap();
    let regions = table(&[region(0, memory_bytes(), 0)]);
    assert!(guest.try_command(SET_MEM_TABLE, &regions, &[file.as_fd()]));
    assert_eq!(run_unkicked(&mut guest, FLUSH, 0, 0), 0);
    // A suspended volume leaves requests with the guest, and its queue sleeps.
    served.volume.suspend().unwrap();
    guest.push(0, 0, FLUSH, 0, 0);
    assert_eq!(guest.stop(0), 3);
    assert!(!guest.has_ended(0));
    guest.start_again(0, 3);
    guest.kick(0);
    served.volume.resume(false).unwrap();
    assert_eq!(guest.ended(0).0, 0);
    // So does one that polls when the volume is suspended, and it goes on by itself.
    assert_eq!(run_unkicked(&mut guest, FLUSH, 0, 0), 0);
    served.volume.suspend().unwrap();
    guest.push(0, 0, FLUSH, 0, 0);
    served.volume.resume(false).unwrap();
    assert_eq!(guest.ended(0).0, 0);
    // The front end dies, and the next one is served.
    drop(guest);
    let guest = started(&served.socket, F_FLUSH);
    // The server ends although the guest is connected.
    served.serving.stop();
    drop(guest);
}

/// Each pause is another one, so that requests come before, during and after polls, and when a
/// queue is just about to sleep. A request that is missed is waited for in vain.
#[test]
fn no_request_is_missed_at_the_end_of_a_poll() {
    let served = Served::in_memory(Polling::Auto);
    for features in [F_FLUSH, F_FLUSH | F_EVENT_INDEX] {
        let mut guest = started(&served.socket, features);
        let mut kicks = 0;
        for round in 0..10_000u32 {
            for _ in 0..round % 97 * 40 {
                std::hint::spin_loop();
            }
            guest.push(0, 0, FLUSH, 0, 0);
            kicks += u32::from(guest.announce(0));
            assert_eq!(guest.ended(0).0, 0);
        }
        assert!(kicks < 10_000 || !has_cpus(), "a queue that polls wants no kicks");
    }
    served.serving.stop();
}

/// The CPUs of this thread, which a server inherits that it starts.
fn restrict_to_one_cpu() {
    let all = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap();
    let mut one = CpuSet::new();
    one.set(first);
    sched_setaffinity(None, &one).unwrap();
}

#[test]
fn no_queue_polls_on_the_only_cpu() {
    restrict_to_one_cpu();
    let served = Served::in_memory(Polling::Always);
    let mut guest = started(&served.socket, F_FLUSH);
    until("it asks for a kick", || asks(&guest));
    for _ in 0..100 {
        guest.push(0, 0, FLUSH, 0, 0);
        guest.announce(0);
        assert_eq!(guest.ended(0).0, 0);
    }
    until("it asks for a kick", || asks(&guest));
    drop(guest);
    served.serving.stop();
}
