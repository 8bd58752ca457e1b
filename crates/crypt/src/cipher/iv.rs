//! Sector numbers to IVs (dm-crypt's `plain`, `plain64` and the input of `essiv`).
//!
//! dm-crypt counts in 512-byte units even where encryption sectors are larger. With
//! `iv_large_sectors` the count is shifted down by log2(sector size / 512). `plain` keeps 32 bits
//! of the count and repeats after 2 TiB, as the format defines.

/// IVs of consecutive encryption sectors, before any encryption of the IV itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct IvCounter {
    /// First 512-byte unit.
    pub(super) first: u64,
    /// Length of an encryption sector in 512-byte units.
    pub(super) step: u64,
    /// Right shift of the unit number (`iv_large_sectors`).
    pub(super) shift: u32,
    /// Mask of the shifted number (`plain`: 32 bits).
    pub(super) mask: u64,
    /// Bytes 8 to 15 of the IV: zero for dm-crypt, set by published vectors.
    pub(super) high: u64,
}

impl IvCounter {
    /// The low half of the IV of the `index`th encryption sector; sector numbers wrap, as
    /// `sector_t` does.
    #[inline]
    pub(super) fn low(&self, index: usize) -> u64 {
        let unit = self.first.wrapping_add(self.step.wrapping_mul(index as u64));
        (unit >> self.shift) & self.mask
    }

    /// The IV of the `index`th encryption sector.
    #[inline]
    pub(super) fn block(&self, index: usize) -> [u8; 16] {
        let iv = u128::from(self.low(index)) | (u128::from(self.high) << 64);
        iv.to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(first: u64) -> IvCounter {
        IvCounter { first, step: 1, shift: 0, mask: u64::MAX, high: 0 }
    }

    #[test]
    fn iv_plain64_counts_through_32_bits_and_wraps_at_64() {
        let iv = counter(0xffff_ffff);
        assert_eq!(iv.block(1), [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(counter(u64::MAX).block(1), [0; 16]);
    }

    #[test]
    fn iv_plain_keeps_32_bits() {
        let iv = IvCounter { mask: u64::from(u32::MAX), ..counter(0xffff_ffff) };
        assert_eq!(iv.low(0), 0xffff_ffff);
        assert_eq!(iv.low(1), 0);
    }

    #[test]
    fn iv_large_sectors_count_encryption_sectors() {
        let small = IvCounter { step: 8, ..counter(80) };
        assert_eq!((small.low(0), small.low(1)), (80, 88));
        let large = IvCounter { step: 8, shift: 3, ..counter(80) };
        assert_eq!((large.low(0), large.low(1)), (10, 11));
    }
}
