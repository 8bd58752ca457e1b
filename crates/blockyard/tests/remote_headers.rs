//! Headers on an NBD server: the order of writes and flushes that the server has received lets the
//! volume open after a power cut at any of them.
//!
//! The server is one of ours over a `log-writes` line, which records each write and each flush.

use std::fs::File;
use std::path::{Path, PathBuf};

use blockyard::format::FormatOptions;
use blockyard::header::{self, Writer};
use blockyard::keys::{Keyslots, NewKeyslot, Opener, Priority};
use blockyard::resize::Sizing;
use blockyard::{Key, Place, Running, Server, Volume};
use blockyard_crypt::luks::{Header, UnlockOptions};
use blockyard_crypt::secret::SecretBytes;
use blockyard_host::write_log::{FLUSH, FUA, LogReader};

const LEN_BYTES: u64 = 20 << 20;
const OLD: &str = "the old passphrase";
const NEW: &str = "the new one";

struct Far {
    folder: tempfile::TempDir,
}

impl Far {
    fn new() -> Self {
        let far = Self { folder: tempfile::tempdir().unwrap() };
        let options = FormatOptions {
            size_bytes: Some(LEN_BYTES),
            pbkdf_iterations: Some(4),
            pbkdf_memory_kib: Some(32),
            ..FormatOptions::default()
        };
        options.format(far.path("image"), &Key::passphrase(OLD)).unwrap();
        far
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn uri(&self) -> PathBuf {
        format!("nbd+unix:///?socket={}", self.path("socket").display()).into()
    }

    fn serve(&self, read_only: bool) -> Running {
        let log = self.path("log");
        File::create(&log).unwrap().set_len(8 * LEN_BYTES).unwrap();
        let target = if read_only { "linear" } else { "log-writes" };
        let argument = if read_only { "0".into() } else { log.display().to_string() };
        let image = self.path("image");
        let text = format!("0 {} {target} {} {argument}\n", LEN_BYTES / 512, image.display());
        let text = SecretBytes::copy_of(text.as_bytes());
        let volume = Volume::options().table_text(text).read_only(read_only).open("far").unwrap();
        Server::new().export("", &volume).unix(self.path("socket")).start().unwrap()
    }

    fn image(&self) -> Vec<u8> {
        std::fs::read(self.path("image")).unwrap()
    }

    /// Runs an operation on the export and checks the disks after a power cut at each write: with
    /// all earlier writes, and with this write and only those before the last flush. Returns their
    /// number.
    fn each_disk(&self, operation: impl FnOnce(&Path), check: impl Fn(usize, &[u8])) -> usize {
        let before = self.image();
        let server = self.serve(false);
        operation(&self.uri());
        server.stop().unwrap();
        let log = LogReader::open(&self.path("log")).unwrap();
        let mut disks = 0;
        let mut durable = before.clone();
        let mut cached = before.clone();
        for (number, entry) in log.entries().iter().enumerate() {
            if entry.flags & FLUSH != 0 {
                durable.clone_from(&cached);
            }
            let replayed = self.path("replayed");
            std::fs::write(&replayed, &before).unwrap();
            let device = File::options().read(true).write(true).open(&replayed).unwrap();
            log.replay(number + 1, &device).unwrap();
            cached = std::fs::read(&replayed).unwrap();
            let start = usize::try_from(entry.sector * 512).unwrap();
            let range = start..start + usize::try_from(entry.nr_sectors * 512).unwrap();
            let mut only_this = durable.clone();
            only_this[range.clone()].copy_from_slice(&cached[range]);
            if entry.flags & FUA != 0 {
                durable.clone_from(&only_this);
            }
            for disk in [&only_this, &cached] {
                check(disks, disk);
                disks += 1;
            }
        }
        assert!(self.image() == cached, "the log has all writes");
        assert!(durable == cached, "the last write was flushed");
        disks
    }
}

fn opens(disk: &[u8], passphrases: &[&str]) -> bool {
    let Ok((header, _)) = Header::read(&disk) else { return false };
    passphrases.iter().any(|passphrase| {
        let secret = SecretBytes::copy_of(passphrase.as_bytes());
        header.unlock(&disk, &secret, &UnlockOptions::default()).is_ok()
    })
}

fn cheap() -> NewKeyslot {
    NewKeyslot { pbkdf_iterations: Some(4), pbkdf_memory_kib: Some(32), ..NewKeyslot::default() }
}

#[test]
fn volume_on_a_server_opens_after_a_power_cut_at_any_write_of_its_header() {
    let far = Far::new();
    let [old, new] = [OLD, NEW].map(Key::passphrase);
    let backup = header::backup(&far.path("image"), &Place::Whole).unwrap();
    let by_old = Opener::Key { key: &old, keyslot: None };
    type Operation<'a> = Box<dyn FnOnce(&Path) + 'a>;
    let operations: [(&str, &[&str], Operation<'_>); 7] = [
        (
            "change",
            &[OLD, NEW],
            Box::new(|uri| {
                Keyslots::of(uri).change(&old, None, &new, &cheap(), false).map(drop).unwrap();
            }),
        ),
        (
            "restore",
            &[OLD, NEW],
            Box::new(|uri| {
                Writer::open(uri, &Place::Whole).unwrap().restore(&backup).unwrap();
            }),
        ),
        (
            "add",
            &[OLD],
            Box::new(|uri| {
                assert_eq!(Keyslots::of(uri).add(&by_old, &new, &cheap()).unwrap(), 1);
            }),
        ),
        (
            "remove",
            &[NEW],
            Box::new(|uri| {
                Keyslots::of(uri).remove(&old, None, false).map(drop).unwrap();
            }),
        ),
        (
            "labels",
            &[NEW],
            Box::new(|uri| {
                header::set_labels(uri, &Place::Whole, Some("far"), None).unwrap();
            }),
        ),
        (
            "priority",
            &[NEW],
            Box::new(|uri| {
                Keyslots::of(uri).set_priority(1, Priority::Prefer).unwrap();
            }),
        ),
        (
            "size",
            &[NEW],
            Box::new(|uri| {
                let sizing = Sizing::of(uri);
                sizing.set(Some(1 << 20), &sizing.sizes().unwrap()).unwrap();
                let sizes = sizing.sizes().unwrap();
                assert_eq!(sizes.fixed_bytes, Some(1 << 20));
            }),
        ),
    ];
    for (name, passphrases, operation) in operations {
        let disks = far.each_disk(operation, |number, disk| {
            assert!(opens(disk, passphrases), "{name}: nothing opens disk {number}");
        });
        assert!(disks >= 8, "{name}: {disks} disks");
    }
}

#[test]
fn keyslots_on_a_server_are_erased() {
    let far = Far::new();
    let erase = |uri: &Path| {
        let (shown, _) = header::read(uri, &Place::Whole, None).unwrap();
        header::erase(uri, &Place::Whole, &shown).unwrap();
    };
    far.each_disk(erase, |_, _| ());
    assert!(!opens(&far.image(), &[OLD]));
}

#[test]
fn header_on_a_server_that_takes_no_writes_is_read_and_a_change_is_one_error() {
    let far = Far::new();
    let before = far.image();
    let whole = Place::Whole;
    let (shown, _) = header::read(&far.path("image"), &whole, None).unwrap();
    let server = far.serve(true);
    let uri = far.uri();
    let local = header::backup(&far.path("image"), &whole).unwrap();
    assert!(header::backup(&uri, &whole).unwrap().bytes() == local.bytes());
    let new = Key::passphrase(NEW);
    let old = Key::passphrase(OLD);
    let by_old = Opener::Key { key: &old, keyslot: None };
    for refused in [
        Keyslots::of(&uri).add(&by_old, &new, &cheap()).map(drop).unwrap_err(),
        header::erase(&uri, &whole, &shown).unwrap_err(),
        Writer::open(&uri, &whole).map(drop).unwrap_err(),
    ] {
        let refused = refused.to_string();
        assert!(refused.contains("read-only") && refused.contains("socket="), "{refused}");
    }
    server.stop().unwrap();
    assert!(far.image() == before);
}
