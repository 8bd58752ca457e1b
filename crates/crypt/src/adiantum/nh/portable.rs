//! NH on plain words.

use super::{CHUNK_BYTES, KEY_BYTES, PASSES};

/// The sums of whole chunks.
pub(super) fn hash(key: &[u8; KEY_BYTES], chunks: &[[u8; CHUNK_BYTES]]) -> [u64; PASSES] {
    let mut sums = [0; PASSES];
    for (index, chunk) in chunks.iter().enumerate() {
        add(&mut sums, key, index, chunk);
    }
    sums
}

/// Adds the chunk at `index` of its unit.
#[inline]
pub(super) fn add(
    sums: &mut [u64; PASSES],
    key: &[u8; KEY_BYTES],
    index: usize,
    chunk: &[u8; CHUNK_BYTES],
) {
    let words = |bytes: &[u8; CHUNK_BYTES]| {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        [word(0), word(4), word(8), word(12)]
    };
    let data = words(chunk);
    for (sum, key) in sums.iter_mut().zip(&key.as_chunks().0[index..]) {
        let key = words(key);
        let at = |index: usize| u64::from(data[index].wrapping_add(key[index]));
        *sum = sum.wrapping_add(at(0) * at(2)).wrapping_add(at(1) * at(3));
    }
}
