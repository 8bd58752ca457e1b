//! A header that a person was asked about is changed only if it is still the same.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use blockyard::format::FormatOptions;
use blockyard::header::{self, Writer};
use blockyard::resize::Sizing;
use blockyard::{Error, Key, Place, Volume};

const LEN_BYTES: u64 = 20 << 20;
const OTHER: &str = "the passphrase of another volume";

fn format(image: &Path, passphrase: &str) {
    let options = FormatOptions {
        size_bytes: Some(LEN_BYTES),
        pbkdf_iterations: Some(4),
        pbkdf_memory_kib: Some(32),
        ..FormatOptions::default()
    };
    let _ = fs::remove_file(image);
    options.format(image, &Key::passphrase(passphrase)).unwrap();
}

fn image(folder: &tempfile::TempDir) -> PathBuf {
    let image = folder.path().join("image");
    format(&image, "the passphrase");
    image
}

fn is_changed<T>(outcome: Result<T, Error>) -> bool {
    let said = outcome.map(drop).unwrap_err().to_string();
    said.contains("before the confirmation")
}

#[test]
fn volume_that_replaced_the_shown_one_is_not_erased() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(&folder);
    let (shown, _) = header::read(&image, &Place::Whole, None).unwrap();
    format(&image, OTHER);
    assert!(is_changed(header::erase(&image, &Place::Whole, &shown)));
    Volume::options().key(Key::passphrase(OTHER)).open(&image).unwrap();
}

#[test]
fn volume_shrinks_only_from_the_shown_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(&folder);
    let sizing = Sizing::of(&image);
    let shown = sizing.sizes().unwrap();
    File::options().write(true).open(&image).unwrap().set_len(LEN_BYTES + (1 << 20)).unwrap();
    assert!(is_changed(sizing.set(Some(1 << 20), &shown)), "the file has grown");
    let shown = sizing.sizes().unwrap();
    sizing.set(Some(2 << 20), &shown).unwrap();
    assert!(is_changed(sizing.set(Some(1 << 20), &shown)), "the header fixes another size");
    assert_eq!(sizing.sizes().unwrap().fixed_bytes, Some(2 << 20));
    let shown = sizing.sizes().unwrap();
    format(&image, OTHER);
    assert!(is_changed(sizing.set(Some(1 << 20), &shown)), "it is another volume");
}

#[test]
fn backup_does_not_replace_a_file_system_that_was_made_during_the_question() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(&folder);
    let backup = header::backup(&image, &Place::Whole).unwrap();
    let file = File::options().write(true).open(&image).unwrap();
    file.write_all_at(&vec![0; 16 << 20], 0).unwrap();
    let open = || Writer::open(&image, &Place::Whole).unwrap();
    open().compare(&backup).unwrap();
    open().released().reopened().unwrap();
    let released = open().released();
    file.write_all_at(b"XFSB", 0).unwrap();
    assert!(is_changed(released.reopened()));
}
