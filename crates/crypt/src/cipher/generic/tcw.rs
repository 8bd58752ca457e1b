//! `tcw`: TrueCrypt's CBC before version 4.1, an IV from a secret and whitening of the ciphertext.
//!
//! ```text
//!   key:        keys of the data | IV seed (one IV) | whitening (16 bytes)
//!   IV:         seed ^ (s, s)                          s: LE64 of the sector
//!   w0..w3:     crc32(whitening ^ (s, s)), word by word
//!   whitening:  (w0 ^ w3, w1 ^ w2), 8 bytes, over the whole sector of ciphertext
//! ```
//!
//! The CRC is the usual one (reflected 0x04c11db7) without its two inversions. From
//! `crypt_iv_tcw_whitening` of `drivers/md/dm-crypt.c`. The scheme is weak and supported only for
//! existing volumes.

use super::chain::Run;
use super::iv::Numbers;
use super::xor;
use crate::cipher::rules::WHITENING_BYTES;
use crate::crc32;
use crate::secret::SecretBytes;

/// The secrets after the data keys.
pub(super) struct Tcw {
    iv_seed: SecretBytes,
    whitening: SecretBytes,
}

impl Tcw {
    pub(super) fn new(key: &[u8]) -> Self {
        let (iv_seed, whitening) = key.split_at(key.len() - WHITENING_BYTES);
        Self { iv_seed: SecretBytes::copy_of(iv_seed), whitening: SecretBytes::copy_of(whitening) }
    }

    /// Computes the IVs.
    pub(super) fn fill(&self, numbers: Numbers, run: &mut Run<'_>) {
        let seed = self.iv_seed.as_slice();
        for (index, iv) in run.ivs.chunks_exact_mut(seed.len()).enumerate() {
            iv.copy_from_slice(seed);
            for half in iv.chunks_exact_mut(8) {
                xor(half, &numbers.sector(index).to_le_bytes());
            }
        }
    }

    /// Adds the whitening to sectors of ciphertext, or removes it.
    pub(super) fn whiten(&self, numbers: Numbers, run: &mut Run<'_>) {
        let word = |at: usize| {
            let bytes = self.whitening.as_slice()[4 * at..4 * at + 4].try_into();
            u32::from_le_bytes(bytes.expect("four bytes"))
        };
        for (index, sector) in run.data.chunks_exact_mut(run.sector_bytes).enumerate() {
            let number = numbers.sector(index);
            let low = number as u32;
            let high = (number >> 32) as u32;
            let w0 = crc32(word(0) ^ low);
            let w1 = crc32(word(1) ^ high);
            let w2 = crc32(word(2) ^ low);
            let w3 = crc32(word(3) ^ high);
            let mask = u64::from(w0 ^ w3) | (u64::from(w1 ^ w2) << 32);
            for part in sector.chunks_exact_mut(8) {
                xor(part, &mask.to_le_bytes());
            }
        }
    }
}

/// CRC of four bytes with initial value zero.
fn crc32(word: u32) -> u32 {
    crc32::shift(word, 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcw_crc_is_the_usual_one_without_inversions() {
        // The check value of CRC-32 over "1234", with its inversions undone.
        let inverted = crc32(u32::from_le_bytes(*b"1234") ^ u32::MAX) ^ u32::MAX;
        assert_eq!(inverted, 0x9be3_e0a3);
        assert_eq!(crc32(0), 0);
    }
}
