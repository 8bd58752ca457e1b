//! Serpent (Anderson, Biham, Knudsen 1998): 32 rounds of S-boxes that are small circuits.
//!
//! All operations are logic on words, without tables: no time depends on the key or the data. The
//! width of the registers gives the number of blocks side by side.
//!
//! ```text
//!   word.rs      operands of the circuits: a word, a register of words, two registers
//!   sboxes.rs    circuits        rounds.rs    rounds and key schedule, on any word
//!   {avx2,sse2,portable}.rs                   blocks into words and back, one kernel a file
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;
mod portable;
mod rounds;
mod sboxes;
#[cfg(target_arch = "x86_64")]
mod sse2;
mod word;

use zeroize::Zeroize;

use self::rounds::RoundKeys;
use super::BlockCipher;
use super::page::Page;

/// Bytes that the portable kernel processes in the time of one wide batch (measured).
const NARROW_BYTES: usize = 2 * 16;

/// A kernel. The caller has checked the CPU for its instructions.
type Kernel = unsafe fn(&RoundKeys, &mut [u8]);

/// Serpent with a key.
pub(super) struct Serpent {
    keys: RoundKeys,
    tier: Tier,
}

/// Instruction sets of the kernels, fastest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tier {
    /// 16 blocks at once.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 8 blocks at once, on every x86-64.
    #[cfg(target_arch = "x86_64")]
    Sse2,
    /// One block at once.
    Portable,
}

impl Tier {
    const ALL: &[Self] = &[
        #[cfg(target_arch = "x86_64")]
        Self::Avx2,
        #[cfg(target_arch = "x86_64")]
        Self::Sse2,
        Self::Portable,
    ];

    fn available() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|tier| match tier {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Self::Sse2 => true,
            Self::Portable => true,
        })
    }

    /// Kernels for encryption and decryption.
    fn kernels(self) -> [Kernel; 2] {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => [avx2::encrypt, avx2::decrypt],
            #[cfg(target_arch = "x86_64")]
            Self::Sse2 => [sse2::encrypt, sse2::decrypt],
            Self::Portable => [portable::encrypt, portable::decrypt],
        }
    }
}

impl Serpent {
    /// The cipher on the fastest kernel of this CPU; a key has at most 32 bytes.
    pub(super) fn boxed(key: &[u8]) -> Box<dyn BlockCipher> {
        let tier = Tier::available().next().unwrap_or(Tier::Portable);
        Page::boxed(|| Self { keys: rounds::expand(key), tier })
    }

    /// The fastest tier for this number of blocks: a wide kernel takes the same time for any number
    /// up to its batch.
    fn tier_for(&self, blocks: &[u8]) -> Tier {
        if blocks.len() > NARROW_BYTES { self.tier } else { Tier::Portable }
    }
}

impl BlockCipher for Serpent {
    fn block_bytes(&self) -> usize {
        16
    }

    fn encrypt(&self, blocks: &mut [u8]) {
        let [encrypt, _] = self.tier_for(blocks).kernels();
        // SAFETY: the CPU was checked for this tier.
        unsafe { encrypt(&self.keys, blocks) }
    }

    fn decrypt(&self, blocks: &mut [u8]) {
        let [_, decrypt] = self.tier_for(blocks).kernels();
        // SAFETY: as in `encrypt`.
        unsafe { decrypt(&self.keys, blocks) }
    }
}

impl Drop for Serpent {
    fn drop(&mut self) {
        self.keys.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_computes_what_the_portable_one_does() {
        let key: Vec<u8> = (0..32).collect();
        let keys = rounds::expand(&key);
        for tier in Tier::available() {
            let cipher = Serpent { keys, tier };
            let one = Serpent { keys, tier: Tier::Portable };
            crate::block::tests::assert_same(&cipher, &one, &format!("{tier:?}"));
        }
    }
}
