//! Anti-forensic split (AF split): a key spread over 4000 stripes, all of which are necessary to
//! recover the key.
//!
//! From the LUKS1 specification, "AF-splitter" (`AFsplit`, `AFmerge`), used unchanged by LUKS2.
//!
//! ```text
//!   d_0 = 0;  d_i = diffuse(d_{i-1} xor s_i)    s_1 .. s_{n-1} random
//!   s_n = d_{n-1} xor key                       merge: key = d_{n-1} xor s_n
//! ```
//!
//! `diffuse` hashes each digest-sized piece of the block together with its number.

use crate::hash::{DIGEST_LEN_MAX_BYTES, HashAlgorithm};
use crate::secret::SecretBytes;
use crate::stack::with_wiped_stack;
use zeroize::Zeroize;

/// Number of stripes of every LUKS keyslot. The format has a field for it and allows no other
/// value.
pub const STRIPES: u32 = 4000;

/// Length of a split key, rounded up to whole 512-byte sectors as on disk.
#[must_use]
pub fn material_len_bytes(key_len_bytes: usize) -> usize {
    (key_len_bytes * STRIPES as usize).next_multiple_of(512)
}

/// Splits `key` into `material`. The first stripes are random already; the last one is written
/// here.
pub fn split(key: &[u8], material: &mut [u8], stripes: u32, hash: HashAlgorithm) {
    let used = key.len() * stripes as usize;
    assert!(stripes > 0 && !key.is_empty() && material.len() >= used, "room for every stripe");
    with_wiped_stack(|| {
        let (random, last) = material[..used].split_at_mut(used - key.len());
        let diffused = diffuse_stripes(random, key.len(), hash);
        for ((out, d), k) in last.iter_mut().zip(diffused.as_slice()).zip(key) {
            *out = d ^ k;
        }
    });
}

/// Recovers the key from `material` into `key`.
pub fn merge(material: &[u8], key: &mut [u8], stripes: u32, hash: HashAlgorithm) {
    let used = key.len() * stripes as usize;
    assert!(stripes > 0 && !key.is_empty() && material.len() >= used, "every stripe is there");
    with_wiped_stack(|| {
        let (others, last) = material[..used].split_at(used - key.len());
        let diffused = diffuse_stripes(others, key.len(), hash);
        for ((out, d), s) in key.iter_mut().zip(diffused.as_slice()).zip(last) {
            *out = d ^ s;
        }
    });
}

/// d_{n-1} of all stripes but the last.
fn diffuse_stripes(stripes: &[u8], key_len: usize, hash: HashAlgorithm) -> SecretBytes {
    let mut block = SecretBytes::zeroed(key_len);
    for stripe in stripes.chunks_exact(key_len) {
        for (b, s) in block.as_mut_slice().iter_mut().zip(stripe) {
            *b ^= s;
        }
        diffuse(block.as_mut_slice(), hash);
    }
    block
}

fn diffuse(block: &mut [u8], hash: HashAlgorithm) {
    let mut digest = [0u8; DIGEST_LEN_MAX_BYTES];
    for (number, piece) in (0u32..).zip(block.chunks_mut(hash.digest_len_bytes())) {
        let out = &mut digest[..piece.len()];
        hash.digest(&[&number.to_be_bytes(), piece], out);
        piece.copy_from_slice(out);
    }
    digest.zeroize();
}

#[cfg(test)]
mod tests;
