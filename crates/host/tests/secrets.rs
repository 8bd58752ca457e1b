//! After a volume is closed, the process's memory contains neither its key nor its passphrase.
//! After `key wipe` it contains no round keys of any cipher: neither on the stacks of living
//! threads nor on the heap.
//!
//! A child process opens, writes, reads and closes the volume, and the parent searches the child's
//! memory; so the search does not find itself.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use blockyard_crypt::cipher::{CipherSpec, SectorCipher};
use blockyard_crypt::format::{FormatOptions, Pbkdf, format};
use blockyard_crypt::kdf::{Argon2Variant, Kdf};
use blockyard_crypt::luks::{Header, UnlockOptions};
use blockyard_crypt::params::CryptParams;
use blockyard_crypt::secret::{SecretBytes, set_protector};
use blockyard_crypt::source::HeaderSource;
use blockyard_host::copy::{dump, load};
use blockyard_host::file::{Access, DeviceFile};
use blockyard_host::volume::control::Message;
use blockyard_host::volume::{Volume, VolumeOptions};

/// Folder of the child's volume; the variable marks a process as the child.
const CHILD: &str = "BLOCKYARD_TEST_SECRETS_DIR";
const PASSPHRASE: &[u8] = b"no trace of these words may be left behind";

#[test]
fn closed_volume_leaves_neither_key_nor_passphrase_in_memory() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let volume_key = make_volume(dir.path());
    let mut child = start_child(dir.path(), "child_opens_and_closes_the_volume");
    let mut said = BufReader::new(child.stdout.take().unwrap());
    wait_for(&mut said, "open");
    let open = memory_of(&child);
    // The search works: it finds the key of an open volume.
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

fn start_child(dir: &Path, test: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--ignored", "--nocapture"])
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

/// A cipher of each kind with key length and sector size: those with our own kernels, the modes and
/// IVs over the `aes` crate, the other block ciphers, and the old schemes.
const CIPHERS: [(&str, usize, u32); 18] = [
    ("aes-xts-plain64", 64, 512),
    ("aes-cbc-essiv:sha256", 32, 512),
    ("aes-cbc-essiv:sha256", 32, 4096),
    ("aes-xts-benbi", 64, 512),
    ("aes-lrw-benbi", 48, 512),
    ("aes-cbc-plain64be", 32, 512),
    ("aes-ecb", 32, 512),
    ("aes-ctr-plain64", 32, 512),
    ("aes-cbc-elephant", 64, 4096),
    ("aes:2-cbc-tcw", 96, 512),
    ("aes:64-cbc-lmk", 1040, 512),
    ("serpent-xts-plain64", 64, 512),
    ("serpent-cbc-essiv:sha256", 32, 512),
    ("twofish-xts-plain64", 64, 512),
    ("camellia-cbc-plain64", 32, 512),
    ("cast5-cbc-plain64", 16, 512),
    ("cast6-xts-plain64", 64, 512),
    ("xchacha12,aes-adiantum-plain64", 32, 4096),
];

/// Length of a searched part of a round key.
const NEEDLE_BYTES: usize = 16;

#[test]
fn wiped_and_closed_volumes_leave_no_round_key_in_memory() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    for (number, (_, key_len_bytes, _)) in CIPHERS.iter().enumerate() {
        std::fs::write(dir.path().join(format!("{number}.key")), noise(number, *key_len_bytes))
            .unwrap();
        File::create(dir.path().join(format!("{number}.img"))).unwrap().set_len(4 << 20).unwrap();
    }
    let needles = round_keys();
    let mut child = start_child(dir.path(), "child_wipes_and_closes_volumes");
    let mut said = BufReader::new(child.stdout.take().unwrap());
    wait_for(&mut said, "open");
    let found = ciphers_found(&memory_of(&child), &needles);
    // The search works: it finds the round keys of open volumes.
    assert_eq!(
        found.len(),
        CIPHERS.len(),
        "not found while open, of {CIPHERS:?}: all but {found:?}"
    );
    for word in ["wiped", "closed"] {
        child.stdin.as_mut().unwrap().write_all(b"go on\n").unwrap();
        wait_for(&mut said, word);
        let found = ciphers_found(&memory_of(&child), &needles);
        let left: Vec<_> = found.iter().map(|number| CIPHERS[*number]).collect();
        assert!(left.is_empty(), "{word}, and round keys are left of {left:?}");
    }
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// Unique-looking bytes.
fn noise(number: usize, len_bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(number as u64 + 1);
    let mut byte = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    (0..len_bytes).map(|_| byte()).collect()
}

/// Parts of the protected memory of every cipher, with the number of the cipher.
fn round_keys() -> HashMap<[u8; NEEDLE_BYTES], usize> {
    static PROTECTED: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());
    set_protector(|memory| {
        PROTECTED.lock().unwrap().push((memory.as_ptr() as usize, memory.len()));
    });
    let memory = File::open("/proc/self/mem").unwrap();
    let mut needles = HashMap::new();
    for (number, (cipher, key_len_bytes, sector_bytes)) in CIPHERS.into_iter().enumerate() {
        PROTECTED.lock().unwrap().clear();
        let spec = CipherSpec::parse(cipher).unwrap();
        let key = noise(number, key_len_bytes);
        let cipher = SectorCipher::new(&spec, &key, sector_bytes, false).unwrap();
        for (address, len_bytes) in PROTECTED.lock().unwrap().iter() {
            let mut bytes = vec![0; *len_bytes];
            memory.read_exact_at(&mut bytes, *address as u64).unwrap();
            for needle in bytes.as_chunks::<NEEDLE_BYTES>().0 {
                let distinct: HashSet<u8> = needle.iter().copied().collect();
                if distinct.len() > NEEDLE_BYTES / 2 {
                    needles.insert(*needle, number);
                }
            }
        }
        drop(cipher);
    }
    needles
}

/// The ciphers with a round key in memory, at any alignment of a compiler.
fn ciphers_found(
    regions: &[Vec<u8>],
    needles: &HashMap<[u8; NEEDLE_BYTES], usize>,
) -> HashSet<usize> {
    let mut found = HashSet::new();
    for bytes in regions.iter().flat_map(|region| region.windows(NEEDLE_BYTES).step_by(4)) {
        if bytes[0] | bytes[1] | bytes[2] | bytes[3] != 0
            && let Some(number) = needles.get(bytes)
        {
            found.insert(*number);
        }
    }
    found
}

#[test]
#[ignore = "it is the child process of the test above"]
fn child_wipes_and_closes_volumes() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let dir = Path::new(&dir);
    let volumes: Vec<_> = (0..CIPHERS.len()).map(|number| used_volume(dir, number)).collect();
    let go_on = |word| {
        println!("{word}");
        io::stdin().read_line(&mut String::new()).unwrap();
    };
    go_on("open");
    for volume in &volumes {
        volume.suspend().unwrap();
        volume.message(0, &Message::KeyWipe).unwrap();
    }
    go_on("wiped");
    drop(volumes);
    go_on("closed");
}

/// A volume after writes and reads by this thread and by workers.
fn used_volume(dir: &Path, number: usize) -> Arc<Volume> {
    let (cipher, key_len_bytes, sector_size_bytes) = CIPHERS[number];
    let mut key = SecretBytes::zeroed(key_len_bytes);
    let mut key_file = File::open(dir.join(format!("{number}.key"))).unwrap();
    key_file.read_exact(key.as_mut_slice()).unwrap();
    let params = CryptParams { sector_size_bytes, ..CryptParams::new(cipher, key) };
    let path = dir.join(format!("{number}.img"));
    let file = DeviceFile::open(&path, Access::ReadWrite, false).unwrap();
    let options =
        VolumeOptions { worker_threads: Some(2), controlled: true, ..VolumeOptions::default() };
    let volume = Arc::new(Volume::from_crypt(file, &params, &options).unwrap());
    load(&volume, &mut io::repeat(7).take(2 << 20), &mut |_| {}).unwrap();
    dump(&volume, &mut io::sink(), &mut |_| {}).unwrap();
    volume
}
