//! `elephant`: BitLocker's diffuser over the plaintext, under CBC with `eboiv`.
//!
//! A sector is words of 32 bits, little endian, `d[0]` to `d[n - 1]`, indices modulo `n`:
//!
//! ```text
//!   write: data ^ key --> A backwards --> B backwards --> CBC
//!   read:  CBC --> B --> A --> data ^ key
//!   A: 5 times  d[i] += d[i-2] ^ (d[i-5] <<< 9, 0, 13, 0 by i mod 4)      i = 0 .. n-1
//!   B: 3 times  d[i] += d[i+2] ^ (d[i+5] <<< 0, 10, 0, 25 by i mod 4)
//!   key of a sector, 32 bytes repeated: E(o, 0) | E(o, 0x80 in the last byte)   o: LE64 offset
//! ```
//!
//! From Niels Ferguson, "AES-CBC + Elephant diffuser" (2006), and `crypt_iv_elephant` of
//! `drivers/md/dm-crypt.c` for the input of `E`. `E` is AES under the second half of the volume
//! key.

use super::chain::Run;
use super::iv::Numbers;
use super::{BATCH_SECTORS, xor};
use crate::block::{self, BlockCipher};

const WORDS_MAX: usize = 4096 / size_of::<u32>();

/// Length of a sector's key.
const SECTOR_KEY_BYTES: usize = 32;

/// Passes of `A` and `B` over a sector, and rotations by position modulo 4.
const A: Diffuser = Diffuser { cycles: 5, turns: [9, 0, 13, 0], near: -2, far: -5 };
const B: Diffuser = Diffuser { cycles: 3, turns: [0, 10, 0, 25], near: 2, far: 5 };

struct Diffuser {
    cycles: u32,
    turns: [u32; 4],
    /// Distances to the two words that are mixed in.
    near: isize,
    far: isize,
}

/// Cipher that makes the sector keys.
pub(super) struct Elephant {
    sector_keys: Box<dyn BlockCipher>,
}

impl Elephant {
    pub(super) fn new(key: &[u8]) -> Self {
        Self { sector_keys: block::new("aes", key) }
    }

    /// Applies the diffuser before encryption.
    pub(super) fn diffuse(&self, numbers: Numbers, run: &mut Run<'_>) {
        self.each_sector(numbers, run, |sector, key| {
            add_key(sector, key);
            as_words(sector, |words| {
                A.backwards(words);
                B.backwards(words);
            });
        });
    }

    /// Reverts the diffuser after decryption.
    pub(super) fn collect(&self, numbers: Numbers, run: &mut Run<'_>) {
        self.each_sector(numbers, run, |sector, key| {
            as_words(sector, |words| {
                B.forwards(words);
                A.forwards(words);
            });
            add_key(sector, key);
        });
    }

    fn each_sector(&self, numbers: Numbers, run: &mut Run<'_>, work: impl Fn(&mut [u8], &[u8])) {
        let mut keys = [0u8; BATCH_SECTORS * SECTOR_KEY_BYTES];
        let sectors = run.data.chunks_exact_mut(run.sector_bytes);
        let keys = &mut keys[..sectors.len() * SECTOR_KEY_BYTES];
        for (index, key) in keys.chunks_exact_mut(SECTOR_KEY_BYTES).enumerate() {
            let offset = numbers.offset_bytes(index).to_le_bytes();
            key[..8].copy_from_slice(&offset);
            key[16..24].copy_from_slice(&offset);
            key[31] = 0x80;
        }
        self.sector_keys.encrypt(keys);
        for (sector, key) in sectors.zip(keys.chunks_exact(SECTOR_KEY_BYTES)) {
            work(sector, key);
        }
    }
}

fn add_key(sector: &mut [u8], key: &[u8]) {
    for part in sector.chunks_exact_mut(SECTOR_KEY_BYTES) {
        xor(part, key);
    }
}

fn as_words(sector: &mut [u8], work: impl FnOnce(&mut [u32])) {
    let mut words = [0u32; WORDS_MAX];
    let words = &mut words[..sector.len() / size_of::<u32>()];
    for (word, bytes) in words.iter_mut().zip(sector.as_chunks().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    work(words);
    for (word, bytes) in words.iter().zip(sector.as_chunks_mut().0) {
        *bytes = word.to_le_bytes();
    }
}

impl Diffuser {
    fn forwards(&self, words: &mut [u32]) {
        for _ in 0..self.cycles {
            for index in 0..words.len() {
                words[index] = words[index].wrapping_add(self.mixed(words, index));
            }
        }
    }

    fn backwards(&self, words: &mut [u32]) {
        for _ in 0..self.cycles {
            for index in (0..words.len()).rev() {
                words[index] = words[index].wrapping_sub(self.mixed(words, index));
            }
        }
    }

    /// The summand for a word. The number of words is a power of two.
    fn mixed(&self, words: &[u32], index: usize) -> u32 {
        let at = |distance: isize| words[index.wrapping_add_signed(distance) & (words.len() - 1)];
        at(self.near) ^ at(self.far).rotate_left(self.turns[index % 4])
    }
}
