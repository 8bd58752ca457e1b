//! IVs that depend on the sector number alone, and the numbers themselves.
//!
//! ```text
//!                 0      4       8              IV bytes, of 16
//!   plain         LE32 s 0       0
//!   plain64       LE64 s         0
//!   plain64be     0              BE64 s
//!   benbi         0              BE64 s * (blocks in 512 bytes) + 1
//!   eboiv         LE64 s * (sector size)        encrypted afterwards
//! ```
//!
//! dm-crypt's definitions (`drivers/md/dm-crypt.c`, `crypt_iv_*_gen`). `s` wraps like `sector_t`.
//! Not here: the encryption of `essiv` and `eboiv`, which requires a key.

use crate::cipher::iv::IvCounter;
use crate::cipher::spec::IvMode;

/// Sector numbers of a batch.
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    pub(super) counter: IvCounter,
    /// Index of the batch's first sector in the call.
    pub(super) first: usize,
    pub(super) sector_bytes: usize,
}

impl Numbers {
    /// Number of the `index`th sector for the IV.
    pub(super) fn sector(&self, index: usize) -> u64 {
        self.counter.low(self.first + index)
    }

    /// First 512-byte unit of the `index`th sector.
    pub(super) fn unit(&self, index: usize) -> u64 {
        let sectors = (self.first + index) as u64;
        self.counter.first.wrapping_add(self.counter.step.wrapping_mul(sectors))
    }

    /// Byte offset of the `index`th sector for `eboiv` and `elephant`: the sector's number times
    /// the encryption sector size, even where the numbers count 512-byte units.
    pub(super) fn offset_bytes(&self, index: usize) -> u64 {
        self.sector(index).wrapping_mul(self.sector_bytes as u64)
    }
}

/// Writes one IV of `iv_bytes` per sector. `unit_bytes` is the mode's block size.
pub(super) fn fill(
    mode: IvMode,
    unit_bytes: usize,
    numbers: Numbers,
    ivs: &mut [u8],
    iv_bytes: usize,
) {
    ivs.fill(0);
    let tail = iv_bytes - 8;
    for (index, iv) in ivs.chunks_exact_mut(iv_bytes).enumerate() {
        let sector = numbers.sector(index);
        match mode {
            // The counter has already cut `plain` to 32 bits.
            IvMode::Plain | IvMode::Plain64 => iv[..8].copy_from_slice(&sector.to_le_bytes()),
            IvMode::Plain64be => iv[tail..].copy_from_slice(&sector.to_be_bytes()),
            IvMode::Benbi => {
                let block = sector.wrapping_mul((512 / unit_bytes) as u64).wrapping_add(1);
                iv[tail..].copy_from_slice(&block.to_be_bytes());
            }
            IvMode::Eboiv => iv[..8].copy_from_slice(&numbers.offset_bytes(index).to_le_bytes()),
            IvMode::Null => {}
            IvMode::Elephant | IvMode::Lmk | IvMode::Tcw => {
                unreachable!("these take more than a number")
            }
        }
    }
}
