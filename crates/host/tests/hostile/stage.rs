//! A server with two disks: one is attacked, and a bystander uses the other one.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blockyard_crypt::params::CryptParams;
use blockyard_crypt::secret::SecretBytes;
use blockyard_host::file::{Access, DeviceFile};
use blockyard_host::server::{DeviceOptions, ServedExport, ServerOptions};
use blockyard_host::volume::{Volume, VolumeOptions};

use crate::client::Serving;
use crate::guest::*;

const SIZE_BYTES: u64 = 4 << 20;
/// Sector that no attack writes.
const QUIET_SECTOR: u64 = 4096;

pub(crate) struct Stage {
    serving: Option<Serving>,
    sockets: [PathBuf; 2],
    /// A guest of the other disk, from the first case to the last one.
    bystander: Guest,
    bytes: Vec<u8>,
    /// Standard error of this process, and the length that was looked at.
    said: File,
    /// Standard error of the test runner. The reason of a failed case is printed to it.
    stderr: OwnedFd,
    seen_bytes: u64,
    open_descriptors: usize,
    _dir: tempfile::TempDir,
}

fn export(dir: &Path, name: &str) -> ServedExport {
    let path = dir.join(name);
    File::create(&path).unwrap().set_len(SIZE_BYTES).unwrap();
    let key = SecretBytes::copy_of(&(0..64).collect::<Vec<u8>>());
    let params = CryptParams::new("aes-xts-plain64", key);
    let file = DeviceFile::open(&path, Access::ReadWrite, false).unwrap();
    let volume = Volume::from_crypt(file, &params, &VolumeOptions::default()).unwrap();
    let volume = Arc::new(volume);
    ServedExport::new(name, volume)
}

fn connect(socket: &Path) -> Guest {
    Guest::connect(socket, 2, F_FLUSH | F_INDIRECT | F_EVENT_INDEX)
}

impl Stage {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let said = tempfile::tempfile().unwrap();
        let stderr = rustix::io::dup(rustix::stdio::stderr()).unwrap();
        rustix::stdio::dup2_stderr(&said).unwrap();
        let exports = ["attacked", "other"].map(|name| export(dir.path(), name)).into();
        let sockets = ["a", "b"].map(|name| dir.path().join(name));
        let at = sockets.clone();
        let nbd = dir.path().join("nbd");
        let open = move |server: &mut blockyard_host::server::Server| {
            for (export, socket) in at.iter().enumerate() {
                server.listen_vhost_user(socket, export, &DeviceOptions::default()).unwrap();
            }
        };
        let serving = Serving::start_with(&nbd, exports, ServerOptions::default(), open);
        let bystander = connect(&sockets[1]);
        assert_eq!(connect(&sockets[0]).write_data(QUIET_SECTOR, &quiet()), 0);
        let bytes = quiet();
        let mut stage = Self {
            serving: Some(serving),
            sockets,
            bystander,
            bytes,
            said,
            stderr,
            seen_bytes: 0,
            open_descriptors: 0,
            _dir: dir,
        };
        // The count of descriptors is taken beside a guest that was served, as after each case.
        stage.look_around("the start", |stage| stage.open_descriptors = open_descriptors());
        stage
    }

    pub(crate) fn play(&mut self, name: &str, said: &str, attack: fn(&mut Guest)) {
        let mut guest = connect(&self.sockets[0]);
        assert_eq!((guest.run(0, FLUSH, 0, 0), guest.run(1, FLUSH, 0, 0)), (0, 0), "{name}");
        attack(&mut guest);
        drop(guest);
        self.look_around(name, |stage| {
            assert_eq!(open_descriptors(), stage.open_descriptors, "{name}: descriptors");
        });
        let lines = self.new_lines();
        let count = usize::from(!said.is_empty());
        let is_expected = lines.lines().count() == count && lines.contains(said);
        assert!(is_expected, "{name}: expected {said:?}, but it said {lines:?}");
    }

    /// The lines on standard error since the last call. Its offset is the writers'.
    fn new_lines(&mut self) -> String {
        let len_bytes = self.said.metadata().unwrap().len() - self.seen_bytes;
        let mut bytes = vec![0; len_bytes as usize];
        self.said.read_exact_at(&mut bytes, self.seen_bytes).unwrap();
        self.seen_bytes += len_bytes;
        String::from_utf8(bytes).unwrap()
    }

    /// Uses both disks, and calls `then` beside a guest of the attacked one.
    fn look_around(&mut self, name: &str, then: impl FnOnce(&mut Self)) {
        let sector = 8 * u64::from(self.bytes[0]);
        self.bytes.rotate_left(1);
        assert_eq!(self.bystander.write_data(sector, &self.bytes), 0, "{name}");
        assert!(self.bystander.read_data(sector, 8192) == self.bytes, "{name}: the other disk");
        assert_eq!(self.bystander.run(1, FLUSH, 0, 0), 0, "{name}");
        // It is accepted when the hostile one has left.
        let mut guest = connect(&self.sockets[0]);
        assert_eq!((guest.run(0, FLUSH, 0, 0), guest.run(1, FLUSH, 0, 0)), (0, 0), "{name}");
        let found = guest.read_data(QUIET_SECTOR, 8192);
        assert!(found == quiet(), "{name}: data has changed");
        then(self);
    }

    /// The server ends although guests are connected.
    pub(crate) fn end(mut self) {
        self.serving.take().unwrap().stop();
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        rustix::stdio::dup2_stderr(&self.stderr).unwrap();
        if std::thread::panicking() {
            eprintln!("{}", self.new_lines());
        }
    }
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Data of the attacked disk.
fn quiet() -> Vec<u8> {
    (0..8192u32).map(|at| (at * 7 + at / 256) as u8).collect()
}
