//! Poly1305 (Bernstein 2005, RFC 8439 section 2.5) as a hash of whole 16-byte blocks, without the
//! final key: Adiantum adds such hashes.
//!
//! ```text
//!   h = (h + block + 2^128) * r  modulo 2^130 - 5        h in words of 64, 64 and a few bits
//! ```
//!
//! The hash covers few blocks: three for length and tweak, two for each KiB that NH has condensed.

use zeroize::Zeroize;

/// Bytes of the key `r`.
pub(super) const KEY_BYTES: usize = 16;

/// The key.
#[derive(Zeroize)]
pub(super) struct Poly1305 {
    /// `r` with the bits cleared that keep carries small.
    r: [u64; 2],
}

/// A partial sum.
pub(super) struct Sum<'a> {
    r: &'a [u64; 2],
    h: [u64; 3],
}

impl Poly1305 {
    pub(super) fn new(key: &[u8; KEY_BYTES]) -> Self {
        let r = u128::from_le_bytes(*key) & 0x0fff_fffc_0fff_fffc_0fff_fffc_0fff_ffff;
        Self { r: [r as u64, (r >> 64) as u64] }
    }

    /// A sum of no blocks.
    pub(super) fn sum(&self) -> Sum<'_> {
        Sum { r: &self.r, h: [0; 3] }
    }
}

impl Sum<'_> {
    /// Adds a block, as a little-endian number, and multiplies.
    #[inline]
    pub(super) fn add(&mut self, block: u128) {
        let [r0, r1] = self.r.map(u128::from);
        // 2^130 is 5, and r1 is a multiple of 4: 2^128 * r1 = 5 * (r1 / 4).
        let s1 = r1 + (r1 >> 2);
        let (low, carry) = self.low().overflowing_add(block);
        let h0 = u128::from(low as u64);
        let h1 = low >> 64;
        let h2 = u128::from(self.h[2]) + 1 + u128::from(carry);
        let d0 = h0 * r0 + h1 * s1;
        let d1 = h0 * r1 + h1 * r0 + h2 * s1 + (d0 >> 64);
        let d2 = h2 * r0 + (d1 >> 64);
        // The part above 2^130 returns five-fold.
        let low = u128::from(d0 as u64) | u128::from(d1 as u64) << 64;
        let (low, carry) = low.overflowing_add((d2 >> 2) + (d2 & !3));
        self.h = [low as u64, (low >> 64) as u64, (d2 as u64 & 3) + u64::from(carry)];
    }

    /// The sum modulo 2^128, after it was taken modulo 2^130 - 5.
    pub(super) fn finish(self) -> u128 {
        let low = self.low();
        let (minus, carry) = low.overflowing_add(5);
        let exceeds = self.h[2] + u64::from(carry) > 3;
        // Both numbers take the same time, so that timing reveals nothing.
        let mask = u128::from(exceeds).wrapping_neg();
        low & !mask | minus & mask
    }

    fn low(&self) -> u128 {
        u128::from(self.h[0]) | u128::from(self.h[1]) << 64
    }
}
