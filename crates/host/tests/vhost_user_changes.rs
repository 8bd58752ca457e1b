//! A disk of a virtual machine whose configuration changes while its guest works.

mod client;
mod guest;

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::priority::Priority;
use blockyard_host::server::{DeviceOptions, ServedExport, ServerOptions};
use blockyard_host::volume::{Volume, VolumeOptions};
use blockyard_host::write_log::LogReader;

use client::Serving;
use guest::*;

const SIZE_BYTES: u64 = 8 << 20;
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
    let table = format!("0 {} {target}", SIZE_BYTES / 512);
    let text = SecretBytes::copy_of(table.as_bytes());
    let options = VolumeOptions { controlled: true, ..VolumeOptions::default() };
    let volume = Arc::new(Volume::from_table(&text, &options).unwrap());
    let export = ServedExport {
        name: String::new(),
        volume: Arc::clone(&volume),
        priority: Priority::default(),
    };
    let socket = folder.path("vhost");
    let options = DeviceOptions::default();
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
    std::os::unix::fs::FileExt::read_exact_at(&device, &mut seen, sector * 512).unwrap();
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
    volume.resume(false).unwrap();
    assert_eq!(guest.write_data(32, &[6; 4096]), 0);
    assert!(is_stable(&log, 32, &[6; 4096]));
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
