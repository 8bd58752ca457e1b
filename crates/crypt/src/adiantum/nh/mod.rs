//! NH (Black, Halevi, Krawczyk, Krovetz, Rogaway 1999): 1 KiB of data into 32 bytes, four sums of
//! products of sums.
//!
//! ```text
//!   for each 16 bytes m0 m1 m2 m3 of data, and each pass p of four:
//!     sum[p] += (m0 + k0) * (m2 + k2)  +  (m1 + k1) * (m3 + k3)
//! ```
//!
//! modulo 2^32 inside and 2^64 outside. Its key `k` moves by 16 bytes with the data, and by
//! another 16 with each pass. Paper of Adiantum, section 6 and appendix.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod portable;

use zeroize::Zeroize;

/// Greatest length condensed at once.
pub(super) const UNIT_BYTES: usize = 1024;
/// Bytes of the key: a unit plus the offset of the last pass.
pub(super) const KEY_BYTES: usize = UNIT_BYTES + (PASSES - 1) * CHUNK_BYTES;
/// Sums of a unit.
const PASSES: usize = 4;
/// Data of one step.
const CHUNK_BYTES: usize = 16;

/// The sums of all passes over whole chunks, at most a unit.
///
/// # Safety (of every kernel)
///
/// The CPU has the kernel's instructions.
type Kernel = unsafe fn(&[u8; KEY_BYTES], &[[u8; CHUNK_BYTES]]) -> [u64; PASSES];

/// NH with a key.
pub(super) struct Nh {
    key: [u8; KEY_BYTES],
    kernel: Kernel,
}

impl Nh {
    /// Selects the fastest kernel of this CPU.
    pub(super) fn new(key: &[u8; KEY_BYTES]) -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            return Self { key: *key, kernel: avx2::hash };
        }
        Self { key: *key, kernel: portable::hash }
    }

    /// The sums of a unit or less, filled up with zeros to a multiple of 16 bytes.
    pub(super) fn hash(&self, unit: &[u8]) -> [u64; PASSES] {
        assert!(unit.len() <= UNIT_BYTES, "more than a unit");
        let (chunks, rest) = unit.as_chunks();
        // SAFETY: `new` has checked the CPU's features.
        let mut sums = unsafe { (self.kernel)(&self.key, chunks) };
        if !rest.is_empty() {
            let mut last = [0; CHUNK_BYTES];
            last[..rest.len()].copy_from_slice(rest);
            portable::add(&mut sums, &self.key, chunks.len(), &last);
        }
        sums
    }
}

impl Zeroize for Nh {
    fn zeroize(&mut self) {
        self.key.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn avx2_computes_what_the_portable_kernel_does() {
        if !is_x86_feature_detected!("avx2") {
            return;
        }
        let bytes = crate::block::tests::noise(1, KEY_BYTES + UNIT_BYTES);
        let (key, data) = bytes.split_first_chunk().unwrap();
        for chunks in 0..=UNIT_BYTES / CHUNK_BYTES {
            let data = &data.as_chunks().0[..chunks];
            // SAFETY: the CPU's features were checked.
            let wide = unsafe { avx2::hash(key, data) };
            assert_eq!(wide, portable::hash(key, data), "{chunks} chunks");
        }
    }
}
