//! Twofish (Schneier, Kelsey, Whiting, Wagner, Hall, Ferguson 1998) with full keying.
//!
//! The key-dependent S-boxes and the MDS matrix after them become four tables of 256 words, made
//! once per key ("full keying" in the specification). A round then is eight look-ups:
//!
//! ```text
//!   g(x) = T0[x0] ^ T1[x1] ^ T2[x2] ^ T3[x3]        a = g(r0)      b = g(r1 <<< 8)
//!   r2 = (r2 ^ (a + b + k0)) >>> 1                  r3 = (r3 <<< 1) ^ (a + 2b + k1)
//! ```
//!
//! and the next round has the pairs swapped. A block waits for each look-up, so a few go through
//! the rounds in step. The look-ups depend on key and data. So other programs on the same CPU can
//! observe them through the caches, as with every table-based cipher.

mod schedule;

use zeroize::Zeroize;

use self::schedule::{ROUNDS, Schedule};
use super::BlockCipher;
use super::page::Page;

/// Blocks in step: more would not fit the registers.
const LANES: usize = 3;
const BLOCK_BYTES: usize = 16;

/// Twofish with a key.
pub(super) struct Twofish(Schedule);

impl Twofish {
    /// A key of 16, 24 or 32 bytes.
    pub(super) fn boxed(key: &[u8]) -> Box<dyn BlockCipher> {
        Page::boxed(|| Self(Schedule::new(key)))
    }

    /// Encrypts `N` blocks in step.
    #[inline(always)]
    fn encrypt_lanes<const N: usize>(&self, batch: &mut [u8]) {
        let mut words: [_; N] = load(batch, &self.0.before);
        for round in (0..ROUNDS).step_by(2) {
            for [r0, r1, r2, r3] in &mut words {
                let [f0, f1] = self.f(round, [*r0, *r1]);
                *r2 = (*r2 ^ f0).rotate_right(1);
                *r3 = r3.rotate_left(1) ^ f1;
            }
            for [r0, r1, r2, r3] in &mut words {
                let [f0, f1] = self.f(round + 1, [*r2, *r3]);
                *r0 = (*r0 ^ f0).rotate_right(1);
                *r1 = r1.rotate_left(1) ^ f1;
            }
        }
        store(&words, &self.0.after, batch);
    }

    /// Decrypts `N` blocks in step.
    #[inline(always)]
    fn decrypt_lanes<const N: usize>(&self, batch: &mut [u8]) {
        let mut words: [_; N] = load(batch, &self.0.after);
        for round in (0..ROUNDS).step_by(2).rev() {
            // The pairs are swapped, as `store` left them.
            for [r2, r3, r0, r1] in &mut words {
                let [f0, f1] = self.f(round + 1, [*r2, *r3]);
                *r0 = r0.rotate_left(1) ^ f0;
                *r1 = (*r1 ^ f1).rotate_right(1);
            }
            for [r2, r3, r0, r1] in &mut words {
                let [f0, f1] = self.f(round, [*r0, *r1]);
                *r2 = r2.rotate_left(1) ^ f0;
                *r3 = (*r3 ^ f1).rotate_right(1);
            }
        }
        store(&words, &self.0.before, batch);
    }

    /// Contribution of a round to one pair of words, from the other pair.
    #[inline(always)]
    fn f(&self, round: usize, pair: [u32; 2]) -> [u32; 2] {
        let a = self.g(pair[0]);
        let b = self.g(pair[1].rotate_left(8));
        let sum = a.wrapping_add(b);
        let [k0, k1] = self.0.keys[round];
        [sum.wrapping_add(k0), sum.wrapping_add(b).wrapping_add(k1)]
    }

    #[inline(always)]
    fn g(&self, x: u32) -> u32 {
        let [x0, x1, x2, x3] = x.to_le_bytes();
        let [t0, t1, t2, t3] = &self.0.tables;
        t0[usize::from(x0)] ^ t1[usize::from(x1)] ^ t2[usize::from(x2)] ^ t3[usize::from(x3)]
    }
}

impl BlockCipher for Twofish {
    fn block_bytes(&self) -> usize {
        BLOCK_BYTES
    }

    fn encrypt(&self, blocks: &mut [u8]) {
        let (whole, rest) = blocks.as_chunks_mut::<{ LANES * BLOCK_BYTES }>();
        for batch in whole {
            self.encrypt_lanes::<LANES>(batch);
        }
        for block in rest.chunks_exact_mut(BLOCK_BYTES) {
            self.encrypt_lanes::<1>(block);
        }
    }

    fn decrypt(&self, blocks: &mut [u8]) {
        let (whole, rest) = blocks.as_chunks_mut::<{ LANES * BLOCK_BYTES }>();
        for batch in whole {
            self.decrypt_lanes::<LANES>(batch);
        }
        for block in rest.chunks_exact_mut(BLOCK_BYTES) {
            self.decrypt_lanes::<1>(block);
        }
    }
}

impl Drop for Twofish {
    fn drop(&mut self) {
        self.0.tables.zeroize();
        self.0.before.zeroize();
        self.0.after.zeroize();
        self.0.keys.zeroize();
    }
}

/// The words of each block, whitened.
#[inline(always)]
fn load<const N: usize>(batch: &[u8], whitening: &[u32; 4]) -> [[u32; 4]; N] {
    let mut words = [[0; 4]; N];
    for (words, block) in words.iter_mut().zip(batch.as_chunks::<BLOCK_BYTES>().0) {
        for (index, bytes) in block.as_chunks::<4>().0.iter().enumerate() {
            words[index] = u32::from_le_bytes(*bytes) ^ whitening[index];
        }
    }
    words
}

/// Stores the words of each block with swapped pairs, whitened.
#[inline(always)]
fn store<const N: usize>(words: &[[u32; 4]; N], whitening: &[u32; 4], batch: &mut [u8]) {
    for (words, block) in words.iter().zip(batch.as_chunks_mut::<BLOCK_BYTES>().0) {
        for (index, bytes) in block.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *bytes = (words[(index + 2) % 4] ^ whitening[index]).to_le_bytes();
        }
    }
}
