//! Camellia (RFC 3713) on 64-bit words, with tables that combine the S-boxes with the P-function.
//!
//! ```text
//!   first               d1, d2 = block ^ keys
//!   rounds, in pairs    d2 ^= F(d1 ^ k)             d1 ^= F(d2 ^ k')
//!   after every six     d1 = FL(d1, k)              d2 = FL'(d2, k')
//!   at last             block = (d2, d1) ^ keys
//! ```
//!
//! F is eight look-ups in tables of 2 KiB. A block waits for each look-up, so a few blocks go
//! through the rounds in step. Decryption is encryption with the keys in the opposite order. The
//! look-ups depend on key and data. So other programs on the same CPU can observe them through the
//! caches, as with every table-based cipher.

mod schedule;
mod tables;

use zeroize::Zeroize;

use self::schedule::{Keys, SIX, Schedule};
use self::tables::TABLES;
use super::BlockCipher;
use super::page::Page;

/// Blocks in step: more would not fit the registers.
const LANES: usize = 4;
const BLOCK_BYTES: usize = 16;

/// Camellia with a key.
pub(super) struct Camellia(Schedule);

impl Camellia {
    /// A key of 16, 24 or 32 bytes.
    pub(super) fn boxed(key: &[u8]) -> Box<dyn BlockCipher> {
        Page::boxed(|| Self(Schedule::new(key)))
    }

    fn run(&self, keys: &Keys, blocks: &mut [u8]) {
        let keys = &keys[..self.0.len];
        let (whole, rest) = blocks.as_chunks_mut::<{ LANES * BLOCK_BYTES }>();
        for batch in whole {
            run_lanes::<LANES>(keys, batch);
        }
        for block in rest.chunks_exact_mut(BLOCK_BYTES) {
            run_lanes::<1>(keys, block);
        }
    }
}

impl BlockCipher for Camellia {
    fn block_bytes(&self) -> usize {
        BLOCK_BYTES
    }

    fn encrypt(&self, blocks: &mut [u8]) {
        self.run(&self.0.encrypt, blocks);
    }

    fn decrypt(&self, blocks: &mut [u8]) {
        self.run(&self.0.decrypt, blocks);
    }
}

impl Drop for Camellia {
    fn drop(&mut self) {
        self.0.encrypt.zeroize();
        self.0.decrypt.zeroize();
    }
}

/// `N` blocks in step.
#[inline(always)]
fn run_lanes<const N: usize>(keys: &[[u64; 2]], batch: &mut [u8]) {
    let [first, middle @ .., last] = keys else { return };
    let mut lanes = [[0u64; 2]; N];
    for (lane, block) in lanes.iter_mut().zip(batch.as_chunks::<BLOCK_BYTES>().0) {
        let words = u128::from_be_bytes(*block);
        *lane = [(words >> 64) as u64 ^ first[0], words as u64 ^ first[1]];
    }
    for (index, [k0, k1]) in middle.iter().enumerate() {
        if index % (SIX + 1) == SIX {
            for [d1, d2] in &mut lanes {
                *d1 = fl(*d1, *k0);
                *d2 = fl_inverse(*d2, *k1);
            }
        } else {
            for [d1, d2] in &mut lanes {
                *d2 ^= f(*d1 ^ k0);
            }
            for [d1, d2] in &mut lanes {
                *d1 ^= f(*d2 ^ k1);
            }
        }
    }
    for ([d1, d2], block) in lanes.iter().zip(batch.as_chunks_mut::<BLOCK_BYTES>().0) {
        let words = u128::from(d2 ^ last[0]) << 64 | u128::from(d1 ^ last[1]);
        *block = words.to_be_bytes();
    }
}

/// The F-function, on a word with the round key already added.
#[inline(always)]
fn f(word: u64) -> u64 {
    let bytes = word.to_be_bytes();
    let look_up = |index: usize| TABLES[index][usize::from(bytes[index])];
    look_up(0)
        ^ look_up(1)
        ^ look_up(2)
        ^ look_up(3)
        ^ look_up(4)
        ^ look_up(5)
        ^ look_up(6)
        ^ look_up(7)
}

#[inline(always)]
fn fl(word: u64, key: u64) -> u64 {
    let left = (word >> 32) as u32;
    let right = word as u32;
    let key_left = (key >> 32) as u32;
    let key_right = key as u32;
    let right = right ^ (left & key_left).rotate_left(1);
    let left = left ^ (right | key_right);
    u64::from(left) << 32 | u64::from(right)
}

#[inline(always)]
fn fl_inverse(word: u64, key: u64) -> u64 {
    let left = (word >> 32) as u32;
    let right = word as u32;
    let key_left = (key >> 32) as u32;
    let key_right = key as u32;
    let left = left ^ (right | key_right);
    let right = right ^ (left & key_left).rotate_left(1);
    u64::from(left) << 32 | u64::from(right)
}
