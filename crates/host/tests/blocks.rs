//! The minimum block of clients, and the effect of zeroes on a sparse file.

mod client;

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use blockyard_crypt::params::CryptParams;
use blockyard_crypt::secret::SecretBytes;
use blockyard_host::file::{Access, DeviceFile};
use blockyard_host::server::ServedExport;
use blockyard_host::volume::{Volume, VolumeOptions};
use client::{FUA, NO_HOLE, READ, Serving, WRITE_ZEROES};

const SIZE_BYTES: u64 = 4 << 20;

/// A new sparse file in this folder.
fn sparse(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("image");
    File::create(&path).unwrap().set_len(SIZE_BYTES).unwrap();
    path
}

fn allocated_bytes(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn zeros_without_holes_allocate_and_others_do_not() {
    let disk = env!("CARGO_TARGET_TMPDIR");
    for (place, options) in [
        ("/dev/shm", VolumeOptions::default()),
        (disk, VolumeOptions::default()),
        (disk, VolumeOptions { direct: true, ..VolumeOptions::default() }),
    ] {
        let dir = tempfile::tempdir_in(place).unwrap();
        let path = sparse(dir.path());
        let table = format!("0 {} linear {} 0", SIZE_BYTES / 512, path.display());
        let table = SecretBytes::copy_of(table.as_bytes());
        let volume = Arc::new(Volume::from_table(&table, &options).unwrap());
        let export = ServedExport::new("", volume);
        let serving = Serving::start(&dir.path().join("socket"), vec![export]);
        let mut client = serving.connect("");
        client.ask(WRITE_ZEROES, 0, 1, (0, 1 << 20), 0);
        assert_eq!(client.reply(), 1);
        assert_eq!(allocated_bytes(&path), 0, "a hole was asked for: {options:?}");
        // More than one portion, with both ends inside sectors.
        let start = (1 << 20) + 100;
        let len = (1 << 20) + 3000;
        client.ask(WRITE_ZEROES, NO_HOLE | FUA, 2, (start, len), 0);
        assert_eq!(client.reply(), 2);
        assert!(
            allocated_bytes(&path) >= u64::from(len),
            "{options:?}: {}",
            allocated_bytes(&path)
        );
        client.ask(READ, 0, 3, (start - 50, len + 100), 0);
        assert_eq!(client.reply(), 3);
        assert!(client.data(len + 100).iter().all(|byte| *byte == 0));
        drop(client);
        serving.stop();
    }
}

#[test]
fn minimum_block_is_the_sector_where_a_torn_one_is_garbage() {
    let dir = tempfile::tempdir().unwrap();
    let path = sparse(dir.path());
    let minimum = |cipher: &str, key_bytes: usize, sector_size_bytes, chosen| {
        let params = CryptParams {
            sector_size_bytes,
            ..CryptParams::new(cipher, SecretBytes::copy_of(&vec![7; key_bytes]))
        };
        let options = VolumeOptions { minimum_block_bytes: chosen, ..VolumeOptions::default() };
        let file = DeviceFile::open(&path, Access::ReadWrite, false).unwrap();
        Volume::from_crypt(file, &params, &options).unwrap().minimum_block_bytes()
    };
    for (cipher, key_bytes) in
        [("aes-cbc-essiv:sha256", 32), ("xchacha12,aes-adiantum-plain64", 32)]
    {
        assert_eq!(minimum(cipher, key_bytes, 4096, None), 4096, "{cipher}");
        assert_eq!(minimum(cipher, key_bytes, 512, None), 1, "a disk writes 512 bytes at once");
        assert_eq!(minimum(cipher, key_bytes, 4096, Some(1)), 1, "{cipher}");
    }
    for (cipher, key_bytes) in
        [("aes-xts-plain64", 64), ("aes-lrw-benbi", 48), ("aes-ctr-plain", 32)]
    {
        assert_eq!(minimum(cipher, key_bytes, 4096, None), 1, "{cipher}");
        assert_eq!(minimum(cipher, key_bytes, 4096, Some(512)), 512, "{cipher}");
    }
}
