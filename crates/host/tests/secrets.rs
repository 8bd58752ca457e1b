//! After a volume is closed, its key and its passphrase are nowhere in the process's memory.
//!
//! The volume is opened, written, read and closed in a child process, whose memory the parent then
//! searches; so the search does not find itself.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use blockyard_crypt::format::{FormatOptions, Pbkdf, format};
use blockyard_crypt::kdf::{Argon2Variant, Kdf};
use blockyard_crypt::luks::{Header, UnlockOptions};
use blockyard_crypt::secret::SecretBytes;
use blockyard_crypt::source::HeaderSource;
use blockyard_host::copy::{dump, load};
use blockyard_host::file::{Access, DeviceFile};
use blockyard_host::volume::{Volume, VolumeOptions};

/// Where the child finds its volume; its presence makes a process the child.
const CHILD: &str = "BLOCKYARD_TEST_SECRETS_DIR";
const PASSPHRASE: &[u8] = b"no trace of these words may be left behind";

#[test]
fn closed_volume_leaves_neither_key_nor_passphrase_in_memory() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let volume_key = make_volume(dir.path());
    let mut child = start_child(dir.path());
    let mut said = BufReader::new(child.stdout.take().unwrap());
    wait_for(&mut said, "open");
    let open = memory_of(&child);
    // The alarm works: while the volume is open, its key is there.
    assert!(find(&open, &volume_key[..32]), "an open volume has its key somewhere");
    assert!(!find(&open, PASSPHRASE), "the passphrase is gone once the volume is open");
    child.stdin.as_mut().unwrap().write_all(b"go on\n").unwrap();
    wait_for(&mut said, "closed");
    let closed = memory_of(&child);
    for piece in volume_key.chunks_exact(16) {
        assert!(!find(&closed, piece), "a piece of the volume key is left");
    }
    assert!(!find(&closed, PASSPHRASE), "the passphrase is left");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// A LUKS2 volume and its passphrase file; returns the volume key.
fn make_volume(dir: &Path) -> Vec<u8> {
    std::fs::write(dir.join("passphrase"), PASSPHRASE).unwrap();
    let path = dir.join("volume");
    File::create(&path).unwrap().set_len(20 << 20).unwrap();
    let mut file = DeviceFile::open(&path, Access::ReadWrite, false).unwrap();
    let kdf = Kdf::Argon2 { variant: Argon2Variant::Id, time: 4, memory_kib: 32 << 10, lanes: 2 };
    let options =
        FormatOptions { digest_iterations: Some(1000), ..FormatOptions::new(Pbkdf::Fixed(kdf)) };
    let formatted = format(&mut file, &SecretBytes::copy_of(PASSPHRASE), &options).unwrap();
    formatted.volume_key.as_slice().to_vec()
}

fn start_child(dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["child_opens_and_closes_the_volume", "--exact", "--ignored", "--nocapture"])
        .env(CHILD, dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn wait_for(said: &mut impl BufRead, word: &str) {
    let mut line = String::new();
    while !line.ends_with(&format!("{word}\n")) {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "the child ended before `{word}`");
    }
}

/// Every readable private page of the child.
fn memory_of(child: &Child) -> Vec<Vec<u8>> {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
    let memory = File::open(format!("/proc/{}/mem", child.id())).unwrap();
    let mut regions = Vec::new();
    for line in maps.lines().filter(|line| line.contains(" rw-p ")) {
        let (range, _) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let parse = |text| u64::from_str_radix(text, 16).unwrap();
        let mut bytes = vec![0; (parse(end) - parse(start)) as usize];
        if memory.read_exact_at(&mut bytes, parse(start)).is_ok() {
            regions.push(bytes);
        }
    }
    assert!(regions.len() > 3, "the child's memory could be read");
    regions
}

fn find(regions: &[Vec<u8>], wanted: &[u8]) -> bool {
    let first = wanted[0];
    regions.iter().any(|region| {
        let mut rest = region.as_slice();
        while let Some(at) = rest.iter().position(|byte| *byte == first) {
            if rest[at..].starts_with(wanted) {
                return true;
            }
            rest = &rest[at + 1..];
        }
        false
    })
}

#[test]
#[ignore = "it is the child process of the test above"]
fn child_opens_and_closes_the_volume() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let dir = Path::new(&dir);
    let file = DeviceFile::open(&dir.join("volume"), Access::ReadWrite, false).unwrap();
    let mut passphrase = SecretBytes::zeroed(PASSPHRASE.len());
    File::open(dir.join("passphrase")).unwrap().read_exact(passphrase.as_mut_slice()).unwrap();
    let (header, _) = Header::read(&file).unwrap();
    let unlocked = header.unlock(&file, &passphrase, &UnlockOptions::default()).unwrap();
    drop(passphrase);
    let params = header.crypt_params(&unlocked.volume_key, file.len_bytes(), false).unwrap();
    drop((unlocked, header));
    let options = VolumeOptions { worker_threads: Some(2), ..VolumeOptions::default() };
    let volume = Arc::new(Volume::from_crypt(file, &params, &options).unwrap());
    drop(params);
    load(&volume, &mut io::repeat(7).take(2 << 20), &mut |_| {}).unwrap();
    dump(&volume, &mut io::sink(), &mut |_| {}).unwrap();
    println!("open");
    io::stdin().read_line(&mut String::new()).unwrap();
    drop(volume);
    println!("closed");
    io::stdin().read_line(&mut String::new()).unwrap();
}
