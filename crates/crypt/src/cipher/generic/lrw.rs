//! Tweaks of LRW: `T = K * I` in GF(2^128); `C = E(P ^ T) ^ T`. `I` is the number of the block: the
//! IV as a big-endian number.
//!
//! From "Tweakable Block Ciphers" (Liskov, Rivest, Wagner) and IEEE P1619 before draft 5; the
//! kernel's `crypto/lrw.c`. The field is that of XTS, with the bits of a block as one big-endian
//! number. A multiplication is 128 conditional additions, so it is done once per sector. From block
//! to block `I` and `I + 1` differ only in their lowest bits, a run of ones; a table holds the
//! products of such runs with `K`.

use zeroize::Zeroize;

use super::chain::{Run, add, double};
use crate::cipher::rules::WIDE_BLOCK_BYTES;
use crate::secret;
use crate::stack::with_wiped_stack;

const BITS: usize = 128;

/// Products of the tweak key, in memory of their own and wiped on drop.
#[repr(C)]
pub(super) struct Tweaks {
    /// `K * x^i`.
    powers: [u128; BITS],
    /// `K * (x^i + ... + 1)`.
    steps: [u128; BITS],
}

impl Tweaks {
    pub(super) fn new(key: &[u8]) -> Box<Self> {
        let mut tweaks = Box::new(Self { powers: [0; BITS], steps: [0; BITS] });
        let memory = (&raw const *tweaks).cast::<u8>();
        // SAFETY: the box is two arrays of integers: initialised, and without padding.
        secret::protect(unsafe { std::slice::from_raw_parts(memory, size_of::<Self>()) });
        with_wiped_stack(|| tweaks.fill(key));
        tweaks
    }

    fn fill(&mut self, key: &[u8]) {
        let key: [u8; WIDE_BLOCK_BYTES] = key.try_into().expect("the tweak key is a block");
        let mut power = u128::from_be_bytes(key);
        let mut sum = 0;
        for bit in 0..BITS {
            sum ^= power;
            self.powers[bit] = power;
            self.steps[bit] = sum;
            power = double(power);
        }
    }

    /// Adds the tweaks of every block.
    pub(super) fn mask(&self, run: &mut Run<'_>) {
        for (sector, iv) in run.sectors(WIDE_BLOCK_BYTES) {
            let iv: &[u8; WIDE_BLOCK_BYTES] = (&*iv).try_into().expect("an IV is a block");
            let mut index = u128::from_be_bytes(*iv);
            let mut tweak = self.product(index);
            for block in sector.chunks_exact_mut(WIDE_BLOCK_BYTES) {
                add(block, tweak.to_be_bytes());
                // A number of all ones wraps to zero: every bit changes, and there is no 129th.
                let changed = (index.trailing_ones() as usize).min(BITS - 1);
                tweak ^= self.steps[changed];
                index = index.wrapping_add(1);
            }
        }
    }

    /// `K * index`, without a branch on the key. The index is not secret.
    fn product(&self, index: u128) -> u128 {
        let terms = self.powers.iter().enumerate();
        terms.fold(0, |sum, (bit, power)| sum ^ (power & 0u128.wrapping_sub((index >> bit) & 1)))
    }
}

impl Drop for Tweaks {
    fn drop(&mut self) {
        self.powers.zeroize();
        self.steps.zeroize();
    }
}
