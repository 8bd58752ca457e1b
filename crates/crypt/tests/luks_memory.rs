//! After all values are dropped, memory holds neither the passphrase nor a piece of any key or of
//! argon2's blocks.
//!
//! The test reads the whole memory of this process through `/proc/self/mem`. Searched values are
//! kept masked, so that the search does not find itself. The test is alone in its process, so no
//! other thread has secrets.

#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::hint::black_box;
use std::os::unix::fs::FileExt;

use argon2::{Algorithm, Argon2, Block, Params, Version};
use blockyard_crypt::format::{self, FormatOptions, Pbkdf};
use blockyard_crypt::hash::HashAlgorithm;
use blockyard_crypt::kdf::{Argon2Variant, Kdf, KdfLimits};
use blockyard_crypt::luks::{Header, UnlockOptions};
use blockyard_crypt::luks1;
use blockyard_crypt::plain::{self, PlainKey, PlainOptions};
use blockyard_crypt::secret::SecretBytes;
use zeroize::Zeroize;

const MASK: u8 = 0xa5;
/// Length of the searched pieces of keys: an XMM register or a round key.
const PIECE_LEN: usize = 16;
const PASSPHRASE_LEN: usize = 40;

/// Values that must not be found, masked.
#[derive(Default)]
struct Forbidden {
    pieces: Vec<(&'static str, [u8; PIECE_LEN])>,
}

impl Forbidden {
    /// Adds pieces at every byte offset, because a spilled vector register may hold any of them.
    #[inline(never)]
    fn add(&mut self, name: &'static str, secret: &[u8]) {
        for piece in secret.chunks_exact(PIECE_LEN) {
            let mut masked = [0u8; PIECE_LEN];
            for (to, from) in masked.iter_mut().zip(piece) {
                *to = black_box(*from) ^ MASK;
            }
            self.pieces.push((name, masked));
        }
    }

    fn assert_gone(&self) {
        let found = self.found();
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    /// Names and places of the values found in memory.
    fn found(&self) -> Vec<String> {
        let memory = File::open("/proc/self/mem").unwrap();
        let mut found = Vec::new();
        let mut buffer = vec![0u8; 1 << 20];
        for (start, end, name) in writable_regions() {
            let mut at = start;
            while at < end {
                let len = buffer.len().min((end - at) as usize);
                // Guard pages and some others cannot be read.
                if memory.read_exact_at(&mut buffer[..len], at).is_ok() {
                    self.search(&buffer[..len], at, &name, &mut found);
                }
                at += if len == buffer.len() { (len - PIECE_LEN) as u64 } else { len as u64 };
            }
        }
        found
    }

    fn search(&self, bytes: &[u8], at: u64, region: &str, found: &mut Vec<String>) {
        for (offset, window) in bytes.windows(PIECE_LEN).enumerate() {
            for (name, masked) in &self.pieces {
                if window[0] ^ MASK == masked[0]
                    && window.iter().zip(masked).all(|(byte, masked)| byte ^ MASK == *masked)
                {
                    found.push(format!("{name} at {:#x} in {region}", at + offset as u64));
                }
            }
        }
    }
}

/// (start, end, name) of every writable mapping.
fn writable_regions() -> Vec<(u64, u64, String)> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (start, end) = words.next()?.split_once('-')?;
            let writable = words.next()?.starts_with("rw");
            let address = |text| u64::from_str_radix(text, 16).unwrap();
            let name = words.nth(3).unwrap_or("anonymous").to_owned();
            writable.then(|| (address(start), address(end), name))
        })
        .collect()
}

/// A passphrase that exists only in its own allocation: made byte by byte.
fn passphrase(seed: u8) -> SecretBytes {
    let mut secret = SecretBytes::zeroed(PASSPHRASE_LEN);
    let mut state = u32::from(seed) * 2_654_435 + 12345;
    for byte in secret.as_mut_slice() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = (state >> 24) as u8;
    }
    secret
}

/// Formats, opens, fails to open, and drops all values.
fn use_luks2(forbidden: &mut Forbidden, seed: u8, kdf: Kdf) {
    let secret = passphrase(seed);
    let options = FormatOptions {
        keyslots_len_bytes: Some(256 << 10),
        data_offset_bytes: Some(1 << 20),
        digest_iterations: Some(1000),
        ..FormatOptions::new(Pbkdf::Fixed(kdf))
    };
    let mut device = vec![0; 2 << 20];
    let formatted = format::format(&mut device, &secret, &options).unwrap();
    forbidden.add("passphrase", secret.as_slice());
    forbidden.add("volume key", formatted.volume_key.as_slice());
    let (header, _) = Header::read(&device).unwrap();
    let unlocked = header.unlock(&device, &secret, &UnlockOptions::default()).unwrap();
    header.crypt_params(&unlocked.volume_key, 2 << 20, false).unwrap();
    forbid_derived_key(forbidden, &kdf, &secret);
    header.unlock(&device, &passphrase(seed + 100), &UnlockOptions::default()).unwrap_err();
    forbidden.add("wrong passphrase", passphrase(seed + 100).as_slice());
    // An error midway: the key material cannot be read.
    device.truncate(40_000);
    header.unlock(&device, &secret, &UnlockOptions::default()).unwrap_err();
}

/// A key derived from the passphrase. The header's salt is not public; another salt leaves the same
/// kind of traces.
fn forbid_derived_key(forbidden: &mut Forbidden, kdf: &Kdf, secret: &SecretBytes) {
    let mut key = SecretBytes::zeroed(64);
    let limits = KdfLimits::default();
    kdf.derive(secret.as_slice(), &[7; 32], key.as_mut_slice(), &limits).unwrap();
    forbidden.add("derived key", key.as_slice());
}

/// Adds the beginning of argon2's blocks, and derives a key with them. So little memory stays in
/// the heap when it is freed. The last blocks are left out: the test's own computation leaves
/// copies of them on its stack.
fn use_argon2(forbidden: &mut Forbidden, seed: u8) {
    let secret = passphrase(seed);
    let salt = [7; 32];
    let memory_kib = 64;
    let mut key = SecretBytes::zeroed(32);
    let params = Params::new(memory_kib, 1, 1, Some(key.len())).unwrap();
    let mut blocks = vec![Block::new(); params.block_count()];
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into_with_memory(secret.as_slice(), &salt, key.as_mut_slice(), &mut blocks)
        .unwrap();
    for block in &mut blocks[..56] {
        let mut piece = SecretBytes::zeroed(PIECE_LEN);
        for (bytes, word) in piece.as_mut_slice().chunks_exact_mut(8).zip(block.as_ref()) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        forbidden.add("argon2's memory", piece.as_slice());
    }
    blocks.iter_mut().for_each(Block::zeroize);
    let kdf = Kdf::Argon2 { variant: Argon2Variant::Id, time: 1, memory_kib, lanes: 1 };
    let mut same = SecretBytes::zeroed(32);
    kdf.derive(secret.as_slice(), &salt, same.as_mut_slice(), &KdfLimits::default()).unwrap();
    assert_eq!(same, key);
}

fn use_luks1(forbidden: &mut Forbidden, seed: u8, cipher: &str, key_size_bits: u32) {
    let secret = passphrase(seed);
    let options = luks1::FormatOptions {
        cipher: cipher.to_owned(),
        key_size_bits,
        iterations: Some(1000),
        digest_iterations: Some(1000),
        hash: HashAlgorithm::Sha1,
        ..luks1::FormatOptions::default()
    };
    let mut device = vec![0; 4 << 20];
    let (header, key) = luks1::format(&mut device, &secret, &options).unwrap();
    forbidden.add("LUKS1 passphrase", secret.as_slice());
    forbidden.add("LUKS1 volume key", key.as_slice());
    let unlocked = header.unlock(&device, &secret, &UnlockOptions::default()).unwrap();
    header.crypt_params(&unlocked.volume_key, 4 << 20, false).unwrap();
}

fn use_plain(forbidden: &mut Forbidden, seed: u8) {
    let secret = passphrase(seed);
    forbidden.add("plain passphrase", secret.as_slice());
    let key = PlainKey::Passphrase(secret);
    let params = plain::open(&PlainOptions::default(), &key, 1 << 20).unwrap();
    forbidden.add("plain key", params.key.as_slice());
}

#[test]
fn no_secret_is_left_in_memory_after_everything_is_dropped() {
    let mut forbidden = Forbidden::default();
    let lanes_1 = Kdf::Argon2 { variant: Argon2Variant::Id, time: 4, memory_kib: 256, lanes: 1 };
    let lanes_4 = Kdf::Argon2 { variant: Argon2Variant::I, time: 4, memory_kib: 2048, lanes: 4 };
    // After each: a later run could overwrite the traces of an earlier one.
    for (seed, kdf) in (1..).zip([lanes_1, lanes_4]) {
        use_luks2(&mut forbidden, seed, kdf);
        forbidden.assert_gone();
    }
    let hashes = [HashAlgorithm::Sha256, HashAlgorithm::Sha3_256, HashAlgorithm::Blake2b512];
    for (seed, hash) in (3..).zip(hashes) {
        use_luks2(&mut forbidden, seed, Kdf::Pbkdf2 { hash, iterations: 1000 });
        forbidden.assert_gone();
    }
    use_argon2(&mut forbidden, 10);
    forbidden.assert_gone();
    use_luks1(&mut forbidden, 20, "aes-xts-plain64", 512);
    forbidden.assert_gone();
    use_luks1(&mut forbidden, 21, "aes-cbc-essiv:sha256", 256);
    forbidden.assert_gone();
    use_plain(&mut forbidden, 30);
    forbidden.assert_gone();

    // Checks the alarm: a secret that is still held is found.
    let held = passphrase(1);
    assert!(!forbidden.found().is_empty());
    drop(held);
}
