//! Serpent on AVX2: eight blocks side by side in four registers, and two such sets in turn.
//!
//! ```text
//! memory      { a0 b0 c0 d0 | a1 b1 c1 d1 }  { a2 b2 c2 d2 | a3 b3 c3 d3 }  ... two blocks each
//! registers   { a0 a2 a4 a6 | a1 a3 a5 a7 }  { b0 b2 ... }  { c0 c2 ... }  { d0 d2 ... }
//! ```
//!
//! The order of the blocks within a register does not matter, so the transposition stays within
//! the halves of a register, and it is its own inverse.

use std::arch::x86_64::{
    __m256i, _mm256_and_si256, _mm256_loadu_si256, _mm256_or_si256, _mm256_set1_epi32,
    _mm256_slli_epi32, _mm256_srli_epi32, _mm256_storeu_si256, _mm256_unpackhi_epi32,
    _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64, _mm256_xor_si256,
};

use super::rounds::{self, RoundKeys};
use super::word::{Pair, Word, lanes};
use crate::block::batch::batches;

lanes!(
    __m256i, and: _mm256_and_si256, or: _mm256_or_si256, xor: _mm256_xor_si256,
    splat: _mm256_set1_epi32, shl: _mm256_slli_epi32, shr: _mm256_srli_epi32,
);

/// Sixteen blocks.
const BATCH_BYTES: usize = 2 * SET_BYTES;
/// Eight blocks.
const SET_BYTES: usize = 4 * size_of::<__m256i>();

/// Encrypts whole blocks.
#[target_feature(enable = "avx2")]
pub(super) fn encrypt(keys: &RoundKeys, blocks: &mut [u8]) {
    batches(blocks, |batch: &mut [u8; BATCH_BYTES]| {
        let words = rounds::encrypt(keys, load(batch));
        store(words, batch);
    });
}

/// Decrypts whole blocks.
#[target_feature(enable = "avx2")]
pub(super) fn decrypt(keys: &RoundKeys, blocks: &mut [u8]) {
    batches(blocks, |batch: &mut [u8; BATCH_BYTES]| {
        let words = rounds::decrypt(keys, load(batch));
        store(words, batch);
    });
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(batch: &[u8; BATCH_BYTES]) -> [Pair<Lanes>; 4] {
    let (first, second) = batch.split_at(SET_BYTES);
    let set = |bytes: &[u8]| {
        let register = |index: usize| {
            // SAFETY: a set is four registers.
            unsafe { _mm256_loadu_si256(bytes.as_ptr().cast::<__m256i>().add(index)) }
        };
        transpose([register(0), register(1), register(2), register(3)])
    };
    let [a0, b0, c0, d0] = set(first);
    let [a1, b1, c1, d1] = set(second);
    let pair = |first, second| Pair(Lanes(first), Lanes(second));
    [pair(a0, a1), pair(b0, b1), pair(c0, c1), pair(d0, d1)]
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(words: [Pair<Lanes>; 4], batch: &mut [u8; BATCH_BYTES]) {
    let (first, second) = batch.split_at_mut(SET_BYTES);
    let set = |words: [__m256i; 4], bytes: &mut [u8]| {
        for (index, register) in transpose(words).into_iter().enumerate() {
            // SAFETY: a set is four registers.
            unsafe {
                _mm256_storeu_si256(bytes.as_mut_ptr().cast::<__m256i>().add(index), register);
            }
        }
    };
    let [a, b, c, d] = words;
    set([a.0.0, b.0.0, c.0.0, d.0.0], first);
    set([a.1.0, b.1.0, c.1.0, d.1.0], second);
}

/// Transposes the 4 by 4 words of each half.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose([r0, r1, r2, r3]: [__m256i; 4]) -> [__m256i; 4] {
    let low01 = _mm256_unpacklo_epi32(r0, r1);
    let low23 = _mm256_unpacklo_epi32(r2, r3);
    let high01 = _mm256_unpackhi_epi32(r0, r1);
    let high23 = _mm256_unpackhi_epi32(r2, r3);
    [
        _mm256_unpacklo_epi64(low01, low23),
        _mm256_unpackhi_epi64(low01, low23),
        _mm256_unpacklo_epi64(high01, high23),
        _mm256_unpackhi_epi64(high01, high23),
    ]
}
