//! Loaded data equals dumped data, and the file has the expected ciphertext.

use std::fs::File;
use std::io::{self, Cursor, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blockyard_crypt::cipher::{CipherSpec, SectorCipher};
use blockyard_crypt::params::CryptParams;
use blockyard_crypt::secret::SecretBytes;
use blockyard_host::Error;
use blockyard_host::copy::{dump, load};
use blockyard_host::file::{Access, DeviceFile};
use blockyard_host::volume::{Volume, VolumeOptions};

/// Longer than all portions in flight, and not a multiple of a portion.
const SIZE_BYTES: usize = (5 << 20) + 4096;
const DATA_OFFSET_SECTORS: u64 = 16;

fn params(sector_size_bytes: u32) -> CryptParams {
    CryptParams {
        data_offset_sectors: DATA_OFFSET_SECTORS,
        sector_size_bytes,
        ..CryptParams::new("aes-xts-plain64", SecretBytes::copy_of(&(0..64).collect::<Vec<u8>>()))
    }
}

/// A file in `dir` that is long enough for [`SIZE_BYTES`] of plaintext.
fn image(dir: &Path) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir_in(dir).unwrap();
    let path = dir.path().join("image");
    let file = File::create(&path).unwrap();
    file.set_len(SIZE_BYTES as u64 + DATA_OFFSET_SECTORS * 512).unwrap();
    (dir, path)
}

fn open(path: &Path, sector_size_bytes: u32, options: &VolumeOptions) -> Result<Volume, Error> {
    let access = if options.read_only { Access::ReadOnly } else { Access::ReadWrite };
    let file = DeviceFile::open(path, access, options.direct)?;
    Volume::from_crypt(file, &params(sector_size_bytes), options)
}

/// Bytes that differ from sector to sector.
fn plaintext() -> Vec<u8> {
    (0..SIZE_BYTES as u64 / 8)
        .flat_map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect()
}

fn round_trip(dir: &Path, options: &VolumeOptions) {
    for sector_size_bytes in [512, 4096] {
        let (_dir, path) = image(dir);
        let plaintext = plaintext();
        let volume = Arc::new(open(&path, sector_size_bytes, options).unwrap());
        let loaded = load(&volume, &mut Cursor::new(&plaintext), &mut |_| {}).unwrap();
        assert_eq!(loaded, SIZE_BYTES as u64);
        let mut dumped = Vec::new();
        dump(&volume, &mut dumped, &mut |_| {}).unwrap();
        assert!(dumped == plaintext, "{options:?}, {sector_size_bytes}-byte sectors");

        let spec = CipherSpec::parse("aes-xts-plain64").unwrap();
        let key = params(sector_size_bytes).key;
        let cipher = SectorCipher::new(&spec, key.as_slice(), sector_size_bytes, false).unwrap();
        let mut ciphertext = plaintext;
        cipher.encrypt_in_place(&mut ciphertext, 0);
        let mut on_file = vec![0; SIZE_BYTES];
        let file = File::open(&path).unwrap();
        file.read_exact_at(&mut on_file, DATA_OFFSET_SECTORS * 512).unwrap();
        assert!(on_file == ciphertext, "{options:?}, {sector_size_bytes}-byte sectors");
    }
}

#[test]
fn tmpfs_volume_gives_back_what_was_loaded() {
    round_trip(Path::new("/dev/shm"), &VolumeOptions::default());
}

#[test]
fn workers_change_nothing_but_who_runs_the_cipher() {
    let options = VolumeOptions { worker_threads: Some(2), ..VolumeOptions::default() };
    round_trip(Path::new("/dev/shm"), &options);
    round_trip(Path::new(env!("CARGO_TARGET_TMPDIR")), &options);
}

#[test]
fn page_cache_volume_gives_back_what_was_loaded() {
    round_trip(Path::new(env!("CARGO_TARGET_TMPDIR")), &VolumeOptions::default());
}

#[test]
fn direct_volume_gives_back_what_was_loaded() {
    let options = VolumeOptions { direct: true, ..VolumeOptions::default() };
    round_trip(Path::new(env!("CARGO_TARGET_TMPDIR")), &options);
}

#[test]
fn direct_volume_that_starts_at_an_odd_sector_is_served_all_the_same() {
    let (_dir, path) = image(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let options = VolumeOptions { direct: true, ..VolumeOptions::default() };
    let file = DeviceFile::open(&path, Access::ReadWrite, true).unwrap();
    let odd = CryptParams { data_offset_sectors: 3, len_sectors: Some(999), ..params(512) };
    let volume = Arc::new(Volume::from_crypt(file, &odd, &options).unwrap());
    let plaintext = &plaintext()[..999 * 512];
    load(&volume, &mut Cursor::new(plaintext), &mut |_| {}).unwrap();
    let mut dumped = Vec::new();
    dump(&volume, &mut dumped, &mut |_| {}).unwrap();
    assert!(dumped == plaintext);
}

#[test]
fn input_that_ends_inside_of_a_sector_leaves_the_rest_of_it() {
    let (_dir, path) = image(Path::new("/dev/shm"));
    let volume = Arc::new(open(&path, 4096, &VolumeOptions::default()).unwrap());
    let mut expected = plaintext();
    load(&volume, &mut Cursor::new(&expected), &mut |_| {}).unwrap();
    load(&volume, &mut Cursor::new([7; 5000]), &mut |_| {}).unwrap();
    expected[..5000].fill(7);
    let mut dumped = Vec::new();
    dump(&volume, &mut dumped, &mut |_| {}).unwrap();
    assert!(dumped == expected);
}

/// Behaves like a pipe: short reads, and interruptions by signals.
struct Pipe<'a> {
    rest: &'a [u8],
    is_interrupted: bool,
    /// Error at the end of the bytes.
    end: Option<ErrorKind>,
}

impl Read for Pipe<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.is_interrupted = !self.is_interrupted;
        match self.end {
            _ if self.is_interrupted => Err(ErrorKind::Interrupted.into()),
            Some(kind) if self.rest.is_empty() => Err(kind.into()),
            _ => self.rest.by_ref().take(100_000).read(buf),
        }
    }
}

#[test]
fn input_of_whole_portions_from_a_pipe_is_loaded_and_flushed_once() {
    let (_dir, path) = image(Path::new("/dev/shm"));
    let options = VolumeOptions { controlled: true, ..VolumeOptions::default() };
    let volume = Arc::new(open(&path, 4096, &options).unwrap());
    let whole = &plaintext()[..1 << 20];
    let mut progress = Vec::new();
    let mut pipe = Pipe { rest: whole, is_interrupted: false, end: None };
    let loaded = load(&volume, &mut pipe, &mut |done| progress.push(done)).unwrap();
    assert_eq!((loaded, progress), (1 << 20, (1..=4).map(|n| n << 18).collect()));
    let counts = volume.status().counts;
    assert_eq!((counts.writes.parts, counts.writes.bytes, counts.flushes), (4, 1 << 20, 1));
    let mut dumped = Vec::new();
    dump(&volume, &mut dumped, &mut |_| {}).unwrap();
    assert!(dumped[..1 << 20] == *whole && dumped.len() == SIZE_BYTES);
}

#[test]
fn input_that_fails_is_an_error_and_not_its_end() {
    let (_dir, path) = image(Path::new("/dev/shm"));
    let volume = Arc::new(open(&path, 512, &VolumeOptions::default()).unwrap());
    let end = Some(ErrorKind::ConnectionReset);
    let mut pipe = Pipe { rest: &[1; 512], is_interrupted: false, end };
    let error = load(&volume, &mut pipe, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("cannot read the input"), "{error}");
}

#[test]
fn input_longer_than_the_volume_is_refused() {
    let (_dir, path) = image(Path::new("/dev/shm"));
    let volume = Arc::new(open(&path, 512, &VolumeOptions::default()).unwrap());
    let long = vec![1; SIZE_BYTES + 1];
    let error = load(&volume, &mut Cursor::new(&long), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("longer than the volume"), "{error}");
}

#[test]
fn file_truncated_while_it_is_open_is_an_error_and_not_a_crash() {
    let (_dir, path) = image(Path::new("/dev/shm"));
    let volume = Arc::new(open(&path, 512, &VolumeOptions::default()).unwrap());
    load(&volume, &mut Cursor::new(&plaintext()), &mut |_| {}).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    let error = dump(&volume, &mut Vec::new(), &mut |_| {}).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("within 256 KiB of byte 786432") && error.contains("I/O error"),
        "{error}"
    );
}

#[test]
fn volume_that_somebody_writes_is_not_opened_a_second_time() {
    let (_dir, path) = image(Path::new("/dev/shm"));
    let read_only = VolumeOptions { read_only: true, ..VolumeOptions::default() };
    let writer = open(&path, 512, &VolumeOptions::default()).unwrap();
    assert!(matches!(open(&path, 512, &read_only), Err(Error::InUse { .. })));
    drop(writer);
    let _reader = open(&path, 512, &read_only).unwrap();
    let _another = open(&path, 512, &read_only).unwrap();
    assert!(matches!(open(&path, 512, &VolumeOptions::default()), Err(Error::InUse { .. })));
}

#[test]
fn file_too_short_for_its_data_is_refused_by_name() {
    let (_dir, path) = image(Path::new("/dev/shm"));
    File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let Err(error) = open(&path, 512, &VolumeOptions::default()) else { panic!("refused") };
    assert!(error.to_string().contains("image: is too short"), "{error}");
}

#[test]
fn table_stacks_targets_over_one_file() {
    let (_dir, path) = image(Path::new("/dev/shm"));
    let key = "00".repeat(64);
    let table = format!(
        "0 64 linear {0} 8\n64 64 zero\n128 64 crypt aes-xts-plain64 {key} 0 {0} 128\n",
        path.display()
    );
    let table = SecretBytes::copy_of(table.as_bytes());
    let volume = Arc::new(Volume::from_table(&table, &VolumeOptions::default()).unwrap());
    let mut expected = plaintext()[..192 * 512].to_vec();
    load(&volume, &mut Cursor::new(&expected), &mut |_| {}).unwrap();
    expected[64 * 512..128 * 512].fill(0);
    let mut dumped = Vec::new();
    dump(&volume, &mut dumped, &mut |_| {}).unwrap();
    assert!(dumped == expected);
    let mut linear = vec![0; 64 * 512];
    File::open(&path).unwrap().read_exact_at(&mut linear, 8 * 512).unwrap();
    assert!(linear == expected[..64 * 512]);
}
