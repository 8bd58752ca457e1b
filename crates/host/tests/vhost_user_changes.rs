//! A disk of a virtual machine whose configuration changes while its guest works.

mod client;
mod guest;

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blockyard_crypt::secret::SecretBytes;
use blockyard_host::server::{DeviceOptions, Polling, ServedExport, ServerOptions};
use blockyard_host::volume::{Volume, VolumeOptions};
use blockyard_host::write_log::LogReader;
use rustix::event::{EventfdFlags, eventfd};

use client::Serving;
use guest::*;

const SIZE_BYTES: u64 = 8 << 20;
const SET_LOG_BASE: u32 = 6;
const SET_BACKEND_REQ_FD: u32 = 21;
const SET_CONFIG: u32 = 25;
const F_CONFIG_WCE: u64 = 1 << 11;

/// A folder in memory.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir_in("/dev/shm").unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str) -> PathBuf {
        File::create(self.path(name)).unwrap().set_len(SIZE_BYTES).unwrap();
        self.path(name)
    }
}

/// A volume of a table of one line, which may name files, served on the socket `vhost`.
fn serve(folder: &Folder, target: &str) -> (Serving, Arc<Volume>) {
    serve_with(folder, target, DeviceOptions::default())
}

fn serve_with(folder: &Folder, target: &str, options: DeviceOptions) -> (Serving, Arc<Volume>) {
    let table = format!("0 {} {target}", SIZE_BYTES / 512);
    let text = SecretBytes::copy_of(table.as_bytes());
    let controlled = VolumeOptions { controlled: true, ..VolumeOptions::default() };
    let volume = Arc::new(Volume::from_table(&text, &controlled).unwrap());
    let export = ServedExport::new("", Arc::clone(&volume));
    let socket = folder.path("vhost");
    let nbd = folder.path("nbd");
    let serving =
        Serving::start_with(&nbd, vec![export], ServerOptions::default(), move |server| {
            server.listen_vhost_user(&socket, 0, &options).unwrap();
        });
    (serving, volume)
}

/// Whether a block is stable: it is in the part of the log that a power cut leaves.
fn is_stable(log: &Path, sector: u64, bytes: &[u8]) -> bool {
    let device = tempfile::tempfile().unwrap();
    device.set_len(SIZE_BYTES).unwrap();
    LogReader::open(log).unwrap().replay(usize::MAX, &device).unwrap();
    let mut seen = vec![0; bytes.len()];
    device.read_exact_at(&mut seen, sector * 512).unwrap();
    seen == bytes
}

fn set_writeback(guest: &mut Guest, value: u8) -> bool {
    let body = [&[32, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], &[value][..]].concat();
    guest.try_command(SET_CONFIG, &body, &[])
}

#[test]
fn writes_are_stable_at_their_end_while_write_back_caching_is_off() {
    let folder = Folder::new();
    let log = folder.file("log");
    let target = format!("log-writes {} {}", folder.file("data").display(), log.display());
    let (serving, volume) = serve(&folder, &target);
    let socket = folder.path("vhost");
    let features = F_FLUSH | F_CONFIG_WCE;
    let mut guest = Guest::connect(&socket, 1, features);
    assert_eq!(guest.config()[32], 1);
    let large = SLOT_BYTES as usize;
    // The guest may have switched it off with an earlier server. A flush shows that it has not.
    assert_eq!(guest.write_data(40, &[7; 4096]), 0);
    assert!(is_stable(&log, 40, &[7; 4096]));
    assert_eq!(guest.run(0, FLUSH, 0, 0), 0);
    assert_eq!(guest.write_data(0, &[1; 4096]), 0);
    assert!(!is_stable(&log, 0, &[1; 4096]), "it was not flushed");
    assert!(set_writeback(&mut guest, 0));
    assert!(is_stable(&log, 0, &[1; 4096]), "the guest flushes no more");
    assert_eq!(guest.config()[32], 0);
    assert_eq!(guest.write_data(8, &[2; 4096]), 0);
    assert!(is_stable(&log, 8, &[2; 4096]));
    assert_eq!(guest.write_data(1024, &vec![3; large]), 0);
    assert!(is_stable(&log, 1024, &vec![3; large]));
    // A reconnection and a reset do not switch it on behind the guest's back.
    drop(guest);
    let mut guest = Guest::connect(&socket, 1, features);
    assert_eq!(guest.config()[32], 0);
    assert_eq!(guest.write_data(16, &[4; 4096]), 0);
    assert!(is_stable(&log, 16, &[4; 4096]));
    assert!(!set_writeback(&mut guest, 2));
    assert!(set_writeback(&mut guest, 1));
    assert_eq!(guest.write_data(24, &[5; 4096]), 0);
    assert!(!is_stable(&log, 24, &[5; 4096]));
    // A suspended volume is not flushed, so the switch is refused; writes are stable all the same.
    volume.suspend().unwrap();
    assert!(!set_writeback(&mut guest, 0));
    assert_eq!(guest.config()[32], 1, "no switch");
    volume.resume(false).unwrap();
    assert_eq!(guest.write_data(32, &[6; 4096]), 0);
    assert!(is_stable(&log, 32, &[6; 4096]));
    assert!(set_writeback(&mut guest, 0));
    // The next server does not know of the switch, and the front end does not repeat it.
    serving.stop();
    drop(volume);
    let (serving, _volume) = serve(&folder, &target);
    guest.reconnect(&socket);
    assert_eq!(guest.config()[32], 1);
    assert_eq!(guest.write_data(48, &[8; 4096]), 0);
    assert!(is_stable(&log, 48, &[8; 4096]));
    drop(guest);
    serving.stop();
}

/// Zeroes of 8 MiB take longer than the switch.
#[test]
fn request_that_is_in_flight_at_the_switch_is_stable_when_it_ends() {
    let folder = Folder::new();
    let log = folder.file("log");
    let target = format!("log-writes {} {}", folder.file("data").display(), log.display());
    let (serving, _volume) = serve(&folder, &target);
    let mut guest = Guest::connect(&folder.path("vhost"), 1, F_FLUSH | F_CONFIG_WCE);
    let last = SIZE_BYTES / 512 - 8;
    for round in 0..8 {
        assert!(set_writeback(&mut guest, 1));
        assert_eq!(guest.write_data(last, &[1; 4096]), 0);
        assert_eq!(guest.run(0, FLUSH, 0, 0), 0);
        let mut segment = 0_u64.to_le_bytes().to_vec();
        segment.extend([(SIZE_BYTES / 512) as u32, 0].map(u32::to_le_bytes).concat());
        guest.write(Guest::data_at(0, 0), &segment);
        guest.push(0, 0, WRITE_ZEROES, 0, 16);
        guest.kick(0);
        guest.await_kicked(0);
        assert!(set_writeback(&mut guest, 0));
        assert_eq!((guest.ended(0).0, guest.status(0, 0)), (0, 0));
        assert!(is_stable(&log, last, &[0; 4096]), "{round}");
    }
    drop(guest);
    serving.stop();
}

/// The front end keeps the index of the next request only.
#[test]
fn stop_waits_for_a_request_of_an_earlier_server_that_a_suspension_holds_up() {
    for server_ends in [false, true] {
        let folder = Folder::new();
        let target = format!("linear {} 0", folder.file("data").display());
        let (serving, volume) = serve(&folder, &target);
        let socket = folder.path("vhost");
        volume.suspend().unwrap();
        let mut guest = Guest::connect_with_record(&socket, F_FLUSH, record_one);
        guest.push(0, 0, READ, 0, 4096);
        guest.kick(0);
        guest.await_kicked(0);
        guest.message(GET_VRING_BASE, 0, &[0; 8], &[]);
        assert!(!guest.has_answer() && !guest.has_ended(0), "it is not done");
        if server_ends {
            serving.stop();
            assert!(guest.is_disconnected() && !guest.has_ended(0));
            drop(volume);
            let (serving, _volume) = serve(&folder, &target);
            guest.reconnect(&socket);
            assert_eq!((guest.ended(0).0, guest.status(0, 0)), (0, 0), "by the next server");
            drop(guest);
            serving.stop();
        } else {
            volume.resume(false).unwrap();
            assert_eq!(guest.reply(), [0, 0, 0, 0, 1, 0, 0, 0]);
            assert_eq!((guest.ended(0).0, guest.status(0, 0)), (0, 0));
            drop(guest);
            serving.stop();
        }
    }
}

/// An answer would make the front end forget the request.
#[test]
fn stop_before_the_kick_is_not_answered_while_a_request_of_an_earlier_server_is_left() {
    let folder = Folder::new();
    let target = format!("linear {} 0", folder.file("data").display());
    let (serving, _volume) = serve(&folder, &target);
    let socket = folder.path("vhost");
    let mut guest = Guest::connect_with_record(&socket, F_FLUSH, record_one);
    guest.push(0, 0, READ, 0, 4096);
    guest.message(GET_VRING_BASE, 0, &[0; 8], &[]);
    assert!(guest.is_disconnected() && !guest.has_ended(0));
    guest.reconnect(&socket);
    assert_eq!((guest.ended(0).0, guest.status(0, 0)), (0, 0));
    assert_eq!(guest.stop(0), 1, "nothing is left");
    drop(guest);
    serving.stop();
}

/// A channel from the server to the front end: its two ends.
fn channels() -> [(File, OwnedFd); 2] {
    let (reader, writer) = UnixStream::pair().unwrap();
    let (from, to) = rustix::pipe::pipe().unwrap();
    [(OwnedFd::from(reader).into(), writer.into()), (from.into(), to)]
}

#[test]
fn guest_is_told_when_the_volume_grows_and_uses_the_new_sectors() {
    for (mut channel, end) in channels() {
        let folder = Folder::new();
        let data = folder.file("data");
        File::options().write(true).open(&data).unwrap().set_len(3 * SIZE_BYTES).unwrap();
        let (serving, volume) = serve(&folder, &format!("linear {} 0", data.display()));
        let mut guest = Guest::connect(&folder.path("vhost"), 2, F_FLUSH);
        assert!(guest.try_command(SET_BACKEND_REQ_FD, &[], &[end.as_fd()]));
        drop(end);
        for parts in [2, 3] {
            let before = (parts - 1) * SIZE_BYTES / 512;
            assert_eq!(guest.write_data(before, &[1; 4096]), 1, "behind the end");
            volume.grow(parts * SIZE_BYTES, u64::MAX).unwrap();
            let mut told = [0; 12];
            channel.read_exact(&mut told).unwrap();
            assert_eq!(told, [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(guest.config()[..8], (parts * SIZE_BYTES / 512).to_le_bytes());
            assert_eq!(guest.write_data(before, &[parts as u8; 4096]), 0);
            assert_eq!(guest.run(1, READ, parts * SIZE_BYTES / 512 - 8, 4096), 0);
            assert!(guest.read_data(before, 4096) == [parts as u8; 4096]);
        }
        drop(guest);
        serving.stop();
    }
}

#[test]
fn channel_that_is_full_or_closed_or_none_holds_nothing_up() {
    let folder = Folder::new();
    let data = folder.file("data");
    File::options().write(true).open(&data).unwrap().set_len(8 * SIZE_BYTES).unwrap();
    let (serving, volume) = serve(&folder, &format!("linear {} 0", data.display()));
    let mut guest = Guest::connect(&folder.path("vhost"), 1, F_FLUSH);
    let datagrams = UnixDatagram::unbound().unwrap();
    assert!(!guest.try_command(SET_BACKEND_REQ_FD, &[], &[datagrams.as_fd()]));
    for path in ["/", "/dev/zero", "/proc/self/exe"] {
        let file = File::open(path).unwrap();
        assert!(!guest.try_command(SET_BACKEND_REQ_FD, &[], &[file.as_fd()]), "{path}");
    }
    let mut parts = 1;
    for is_closed in [false, true] {
        for (channel, end) in channels() {
            rustix::io::ioctl_fionbio(&end, true).unwrap();
            while rustix::io::write(&end, &[0; 4096]).is_ok() {}
            while rustix::io::write(&end, &[0]).is_ok() {}
            assert!(guest.try_command(SET_BACKEND_REQ_FD, &[], &[end.as_fd()]));
            // The front end shares this flag.
            rustix::io::ioctl_fionbio(&end, false).unwrap();
            let channel = (!is_closed).then_some(channel);
            parts += 1;
            volume.grow(parts * SIZE_BYTES, u64::MAX).unwrap();
            // Nothing tells this front end when: it asks.
            while guest.config()[..8] != (parts * SIZE_BYTES / 512).to_le_bytes() {}
            assert_eq!(guest.run(0, READ, parts * SIZE_BYTES / 512 - 8, 4096), 0);
            drop(channel);
        }
    }
    drop(guest);
    serving.stop();
}

const PAGE_BYTES: usize = 4096;

fn memory_file(len_bytes: u64) -> File {
    let file = rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, len_bytes).unwrap();
    file.into()
}

/// Length of a log for the memory of a guest.
fn log_bytes() -> u64 {
    memory_bytes().div_ceil(8 * PAGE_BYTES as u64)
}

fn set_log(guest: &mut Guest, file: &File, len_bytes: u64, offset_bytes: u64) -> bool {
    let body = [len_bytes.to_le_bytes(), offset_bytes.to_le_bytes()].concat();
    guest.try_command(SET_LOG_BASE, &body, &[file.as_fd()])
}

/// Copies the pages of the log to the other side.
fn copy_logged(guest: &Guest, log: &File, offset_bytes: u64, copy: &mut [u8]) -> usize {
    let mut bits = vec![0; log_bytes() as usize];
    log.read_exact_at(&mut bits, offset_bytes).unwrap();
    let logged = |page: &usize| bits[page / 8] & 1 << (page % 8) != 0;
    let pages: Vec<_> = (0..copy.len() / PAGE_BYTES).filter(logged).collect();
    for page in &pages {
        let at = page * PAGE_BYTES;
        copy[at..at + PAGE_BYTES].copy_from_slice(&guest.read(at as u64, PAGE_BYTES));
    }
    pages.len()
}

/// A page for the status of a read.
fn status_at(slot: u16) -> u64 {
    Guest::data_at(1, slot)
}

/// Reads with the status in a page of its own, which the guest does not write.
fn push_read(guest: &mut Guest, slot: u16, sector: u64) {
    guest.put_header(0, slot, READ, sector);
    let first = 3 * slot;
    guest.descriptor(0, first, (Guest::header_at(0, slot), 16, NEXT, first + 1));
    // The data crosses pages.
    let data = (Guest::data_at(0, slot) + 512, 9 * 4096, NEXT | WRITABLE, first + 2);
    guest.descriptor(0, first + 1, data);
    guest.descriptor(0, first + 2, (status_at(slot), 1, WRITABLE, 0));
    guest.make_available(0, first);
}

#[test]
fn migrated_guest_has_all_that_the_server_wrote_when_logged_pages_are_copied() {
    for polling in [Polling::Off, Polling::Always] {
        let folder = Folder::new();
        let target = format!("linear {} 0", folder.file("data").display());
        let options = DeviceOptions { polling, ..DeviceOptions::default() };
        let (serving, _) = serve_with(&folder, &target, options);
        for features in [F_FLUSH, F_FLUSH | F_EVENT_INDEX] {
            migrate(Guest::connect(&folder.path("vhost"), 1, features));
        }
        serving.stop();
    }
}

fn migrate(mut guest: Guest) {
    for slot in 0..SLOTS {
        let bytes = vec![slot as u8 + 1; 9 * 4096];
        assert_eq!(guest.write_data(100 * u64::from(slot), &bytes), 0);
    }
    for slot in 0..SLOTS {
        guest.write(status_at(slot), &[0xee]);
    }
    let mut log = memory_file(8192 + log_bytes());
    assert!(set_log(&mut guest, &log, log_bytes(), 8192));
    guest.set_logging(true);
    let mut copy = guest.read(0, memory_bytes() as usize);
    let before = copy.clone();
    let mut logged = 0;
    for round in 0..4u16 {
        let slots = round..SLOTS - round;
        let count = slots.len();
        slots.for_each(|slot| push_read(&mut guest, slot, 100 * u64::from(slot)));
        guest.kick(0);
        // Another log while requests are in flight.
        let next = memory_file(8192 + log_bytes());
        assert!(set_log(&mut guest, &next, log_bytes(), 8192));
        logged += copy_logged(&guest, &log, 8192, &mut copy);
        log = next;
        for _ in 0..count {
            guest.ended(0);
        }
    }
    guest.stop(0);
    logged += copy_logged(&guest, &log, 8192, &mut copy);
    // These the guest has written itself, which its virtual machine knows.
    for at in [0, 0x1000, 0x4000, 0x8000] {
        copy[at..at + PAGE_BYTES].copy_from_slice(&guest.read(at as u64, PAGE_BYTES));
    }
    let now = guest.read(0, memory_bytes() as usize);
    assert!(copy == now, "a page is missing from the log");
    assert!(now != before && logged < 8 * 32 * 12, "{logged} pages are too many");
    for slot in 4..SLOTS - 4 {
        let data = guest.read(Guest::data_at(0, slot) + 512, 9 * 4096);
        assert!(data == vec![slot as u8 + 1; 9 * 4096], "{slot}");
    }
}

#[test]
fn log_that_is_off_is_not_written_and_one_that_is_missing_is_waited_for() {
    let folder = Folder::new();
    let (serving, _) = serve(&folder, &format!("linear {} 0", folder.file("data").display()));
    let mut guest = Guest::connect(&folder.path("vhost"), 1, F_FLUSH);
    assert_eq!(guest.run(0, READ, 0, 4096), 0);
    guest.set_logging(true);
    guest.push(0, 0, READ, 0, 4096);
    guest.kick(0);
    assert_eq!(guest.config()[32], 1);
    assert!(!guest.has_ended(0), "its pages would be lost");
    let log = memory_file(log_bytes());
    assert!(set_log(&mut guest, &log, log_bytes(), 0));
    assert_eq!(guest.ended(0).0, 0);
    guest.set_logging(false);
    log.write_all_at(&vec![0; log_bytes() as usize], 0).unwrap();
    assert_eq!(guest.run(0, READ, 0, 4096), 0);
    guest.stop(0);
    assert_eq!(copy_logged(&guest, &log, 0, &mut vec![0; memory_bytes() as usize]), 0);
    drop(guest);
    serving.stop();
}

#[test]
fn bad_log_ends_the_connection_or_stops_the_queue_and_not_the_server() {
    let folder = Folder::new();
    let (serving, _) = serve(&folder, &format!("linear {} 0", folder.file("data").display()));
    let connect = || Guest::connect(&folder.path("vhost"), 2, F_FLUSH);
    let short = memory_file(log_bytes() - 1);
    let folder_fd = File::open("/").unwrap();
    for (file, len, offset) in [
        (&short, log_bytes(), 0),
        (&short, 1, 1_u64 << 40),
        (&folder_fd, 1, 0),
        (&short, u64::MAX, 1),
    ] {
        let mut guest = connect();
        let body = [len.to_le_bytes(), offset.to_le_bytes()].concat();
        guest.message(SET_LOG_BASE, 8, &body, &[file.as_fd()]);
        assert!(guest.is_disconnected(), "{len} {offset}");
    }
    // The rings have bits, data does not.
    let mut guest = connect();
    assert!(set_log(&mut guest, &short, 4, 0));
    guest.set_logging(true);
    assert_eq!(guest.run(0, FLUSH, 0, 0), 0);
    guest.push(0, 1, READ, 0, 4096);
    guest.kick(0);
    assert!(guest.is_stopped(0) && guest.lives(1) && !guest.has_ended(0));
    // The ring of the second queue has none.
    drop(guest);
    let mut guest = connect();
    assert_eq!(guest.run(1, FLUSH, 0, 0), 0);
    assert!(set_log(&mut guest, &short, 1, 0));
    guest.set_logging(true);
    assert!(guest.is_stopped(1) && guest.lives(0));
    // It is taken away.
    drop(guest);
    let mut guest = connect();
    let shrinks = memory_file(log_bytes());
    assert!(set_log(&mut guest, &shrinks, log_bytes(), 0));
    guest.set_logging(true);
    shrinks.set_len(0).unwrap();
    guest.push(0, 0, READ, 0, 4096);
    guest.kick(0);
    assert!(guest.is_stopped(0) && !guest.has_ended(0));
    drop(guest);
    assert_eq!(connect().run(0, FLUSH, 0, 0), 0);
    serving.stop();
}

/// Zeroes of 8 MiB are several bios, one after the other: the suspension comes between them.
#[test]
fn suspension_leaves_no_request_half_done_so_a_queue_can_stop() {
    let folder = Folder::new();
    let (serving, volume) = serve(&folder, &format!("linear {} 0", folder.file("data").display()));
    let mut guest = Guest::connect(&folder.path("vhost"), 1, F_FLUSH);
    let sectors = (SIZE_BYTES / 512) as u32;
    let mut segment = 0_u64.to_le_bytes().to_vec();
    segment.extend([sectors.to_le_bytes(), [0; 4]].concat());
    guest.write(Guest::data_at(0, 0), &segment);
    let mut base = 0;
    for round in 1..=100 {
        guest.push(0, 0, WRITE_ZEROES, 0, 16);
        guest.kick(0);
        // So that each round suspends at another place.
        for _ in 0..round * 100 {
            std::hint::spin_loop();
        }
        volume.suspend().unwrap();
        let next = guest.stop(0);
        assert_eq!(next != base, guest.has_ended(0), "{round}: the base counts what has ended");
        guest.start_again(0, next);
        volume.resume(false).unwrap();
        guest.kick(0);
        assert_eq!(guest.ended(0).0, 0);
        assert_eq!(guest.status(0, 0), 0);
        base = round;
    }
    drop(guest);
    serving.stop();
}

#[test]
fn call_that_blocks_does_not_hold_up_a_suspension() {
    let folder = Folder::new();
    let (serving, volume) = serve(&folder, &format!("linear {} 0", folder.file("data").display()));
    let mut guest = Guest::connect(&folder.path("vhost"), 1, F_FLUSH);
    assert_eq!(guest.run(0, READ, 0, 4096), 0);
    let call = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    assert!(guest.try_command(SET_VRING_CALL, &[0; 8], &[call.as_fd()]));
    // The front end shares this flag. A new descriptor is called once.
    rustix::io::ioctl_fionbio(&call, false).unwrap();
    rustix::io::read(&call, &mut [0; 8]).unwrap();
    rustix::io::write(&call, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    guest.push(0, 0, READ, 0, 4096);
    guest.kick(0);
    while !guest.has_ended(0) {
        std::thread::yield_now();
    }
    volume.suspend().unwrap();
    volume.resume(false).unwrap();
    rustix::io::read(&call, &mut [0; 8]).unwrap();
    drop(guest);
    serving.stop();
}
