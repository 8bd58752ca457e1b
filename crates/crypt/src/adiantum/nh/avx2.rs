//! NH on AVX2: two chunks a register, and a register of sums for each pass.

use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_add_epi64, _mm256_loadu_si256, _mm256_mul_epu32,
    _mm256_setzero_si256, _mm256_shuffle_epi32, _mm256_storeu_si256,
};

use super::{CHUNK_BYTES, KEY_BYTES, PASSES, UNIT_BYTES, portable};

/// The sums of whole chunks, at most a unit.
#[target_feature(enable = "avx2")]
pub(super) fn hash(key: &[u8; KEY_BYTES], chunks: &[[u8; CHUNK_BYTES]]) -> [u64; PASSES] {
    assert!(chunks.len() <= UNIT_BYTES / CHUNK_BYTES, "more than a unit");
    let mut lanes = [_mm256_setzero_si256(); PASSES];
    let (pairs, rest) = chunks.as_chunks::<2>();
    for (index, pair) in pairs.iter().enumerate() {
        // SAFETY: a pair is a register.
        let data = unsafe { _mm256_loadu_si256(pair.as_ptr().cast()) };
        for (pass, lanes) in lanes.iter_mut().enumerate() {
            let offset = CHUNK_BYTES * (2 * index + pass);
            debug_assert!(offset + size_of::<__m256i>() <= KEY_BYTES);
            // SAFETY: the last pair of a unit begins 32 bytes before its end. The key is longer
            // than a unit by the offset of the last pass.
            let key = unsafe { _mm256_loadu_si256(key.as_ptr().add(offset).cast()) };
            let sum = _mm256_add_epi32(data, key);
            // Words 0 and 1 of each chunk, and words 2 and 3, in the lanes that the product reads.
            let first = _mm256_shuffle_epi32::<0x10>(sum);
            let second = _mm256_shuffle_epi32::<0x32>(sum);
            *lanes = _mm256_add_epi64(*lanes, _mm256_mul_epu32(first, second));
        }
    }
    let mut sums = [0u64; PASSES];
    for (sum, lanes) in sums.iter_mut().zip(lanes) {
        let mut parts = [0u64; 4];
        // SAFETY: four numbers of 64 bits are a register.
        unsafe { _mm256_storeu_si256(parts.as_mut_ptr().cast(), lanes) };
        *sum = parts.into_iter().fold(0, u64::wrapping_add);
    }
    if let [last] = rest {
        portable::add(&mut sums, key, chunks.len() - 1, last);
    }
    sums
}
