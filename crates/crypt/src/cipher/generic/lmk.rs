//! `lmk`: the IV of loop-AES, made from the sector's plaintext.
//!
//! The IV is MD5's state, without the final padding, after
//!
//! ```text
//!   [seed, 64 bytes: version 3 only] data[16..512] | s LE, 56 bits, bit 63 set | 4024 | 0
//!                                                    8 bytes                     4 LE  4
//! ```
//!
//! and these are whole MD5 blocks. CBC decrypts all blocks but the first without the IV, so a read
//! computes the IV from those blocks. The seed is the 65th key: the kernel takes 16 bytes of it and
//! pads them with zeros. From `crypt_iv_lmk_one` of `drivers/md/dm-crypt.c`; MD5 is RFC 1321.

use md5::block_api::compress;
use md5::{Digest, Md5};

use super::chain::Run;
use super::iv::Numbers;
use crate::secret::SecretBytes;

/// Block size of MD5.
const MD5_BLOCK_BYTES: usize = 64;

/// Length of the 65th key's part that the kernel uses.
const SEED_BYTES: usize = 16;

/// MD5's state before the first byte (RFC 1321, section 3.3).
const MD5_START: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

/// Length of the hashed message in bits, less a block: loop-AES's value.
const MESSAGE_BITS: u32 = 4024;

const SECTOR_BYTES: usize = 512;

/// The seed, if there is one.
pub(super) struct Lmk {
    /// A whole MD5 block.
    seed: Option<SecretBytes>,
}

impl Lmk {
    /// `key` is the rest of the volume key after the data keys; empty in version 2.
    pub(super) fn new(key: &[u8]) -> Self {
        let seed = key.first_chunk::<SEED_BYTES>().map(|key| {
            let mut seed = SecretBytes::zeroed(MD5_BLOCK_BYTES);
            seed.as_mut_slice()[..SEED_BYTES].copy_from_slice(key);
            seed
        });
        Self { seed }
    }

    /// Computes the IVs of plaintext sectors, without the first block of each.
    pub(super) fn fill(&self, numbers: Numbers, run: &mut Run<'_>) {
        let iv_bytes = run.ivs.len() / (run.data.len() / SECTOR_BYTES);
        let mut message = [0u8; SECTOR_BYTES];
        for (index, (sector, iv)) in run.sectors(iv_bytes).enumerate() {
            let number = numbers.sector(index);
            let (data, tail) = message.split_at_mut(SECTOR_BYTES - 16);
            data.copy_from_slice(&sector[16..]);
            let cut = (number & 0x00ff_ffff_ffff_ffff) | (1 << 63);
            tail[..8].copy_from_slice(&cut.to_le_bytes());
            tail[8..12].copy_from_slice(&MESSAGE_BITS.to_le_bytes());

            let mut state = MD5_START;
            let seed = self.seed.as_ref().map_or(&[][..], SecretBytes::as_slice);
            compress(&mut state, seed.as_chunks().0);
            compress(&mut state, message.as_chunks().0);
            for (bytes, word) in iv.chunks_exact_mut(4).zip(state) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
    }
}

/// MD5 with its padding, for `essiv:md5`.
pub(super) fn md5(bytes: &[u8]) -> [u8; 16] {
    Md5::digest(bytes).into()
}
