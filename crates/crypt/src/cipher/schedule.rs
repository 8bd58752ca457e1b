//! Round keys: the only form in which a cipher keeps its volume key.
//!
//! They lie in one allocation on pages of its own, which the protector of [`crate::secret`] may
//! lock, and which is wiped when the cipher goes. The first round keys *are* the volume key, so
//! the stack that key expansion used is wiped as well.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};

use aes::cipher::consts::U32;
use sha2::{Digest, Sha256};
use zeroize::Zeroize;

use super::portable::PortableKeys;
use super::tier::{Tier, Tiered};
use crate::secret;
use crate::stack::with_wiped_stack;

/// Round keys of AES-256; shorter keys use fewer.
pub(super) const ROUND_KEYS_MAX: usize = 15;

/// One AES key, expanded, each round key as it lies in memory.
#[repr(C, align(64))]
pub(super) struct RoundKeys(pub(super) [[u8; 16]; ROUND_KEYS_MAX]);

/// Everything that a kernel needs of a key. Aligned to a page, so that it shares none.
#[repr(C, align(4096))]
pub(super) struct Schedule {
    /// For the data, encrypting.
    pub(super) encrypt: RoundKeys,
    /// For the data, decrypting: reversed, through the inverse of `MixColumns`.
    pub(super) decrypt: RoundKeys,
    /// For the IV: the second half of an XTS key, or the hash of an ESSIV one.
    pub(super) iv: RoundKeys,
    /// Rounds of `iv`; zero where the IV is not encrypted.
    pub(super) iv_rounds: usize,
    /// The same keys as the portable tier keeps them, and only on that tier.
    pub(super) portable: Option<PortableKeys>,
}

impl Schedule {
    /// Expands a volume key of a length that was checked.
    pub(super) fn new(tiered: Tiered, key: &[u8], tier: Tier) -> Box<Self> {
        let mut schedule = Self::zeroed();
        with_wiped_stack(|| schedule.expand(tiered, key, tier));
        schedule
    }

    fn expand(&mut self, tiered: Tiered, key: &[u8], tier: Tier) {
        let (data_key, rest) = key.split_at(tiered.aes_key_len_bytes(key.len()));
        let mut hash: aes::cipher::Array<u8, U32> = Default::default();
        let iv_key = match tiered {
            Tiered::Xts => rest,
            Tiered::CbcEssivSha256 => {
                Sha256::new_with_prefix(key).finalize_into(&mut hash);
                &hash[..]
            }
            Tiered::Cbc => &[],
        };
        self.iv_rounds = if iv_key.is_empty() { 0 } else { rounds(iv_key.len()) };
        match tier {
            Tier::Portable => self.portable = Some(PortableKeys::new(data_key, iv_key)),
            #[cfg(target_arch = "x86_64")]
            Tier::Vaes512 | Tier::Vaes256 | Tier::AesNi => {
                // SAFETY: every one of these tiers has AES-NI, and the caller has checked it.
                unsafe { super::aesni::expand(self, data_key, iv_key) }
            }
            #[cfg(not(target_arch = "x86_64"))]
            Tier::Vaes512 | Tier::Vaes256 | Tier::AesNi => unreachable!("an x86 tier"),
        }
    }

    /// A schedule of zeros in protected memory: no key is ever written to any other.
    fn zeroed() -> Box<Self> {
        let layout = Layout::new::<Self>();
        // SAFETY: the layout is not empty. All zeros is a value of every field but `portable`,
        // which is written before there is a `Self`; a box frees with the same layout.
        unsafe {
            let memory = alloc_zeroed(layout);
            if memory.is_null() {
                handle_alloc_error(layout);
            }
            secret::protect(std::slice::from_raw_parts(memory, layout.size()));
            let schedule = memory.cast::<Self>();
            (&raw mut (*schedule).portable).write(None);
            Box::from_raw(schedule)
        }
    }
}

impl Drop for Schedule {
    fn drop(&mut self) {
        self.encrypt.0.zeroize();
        self.decrypt.0.zeroize();
        self.iv.0.zeroize();
        // `portable` wipes itself.
    }
}

/// Rounds of AES with a key of this length.
pub(super) fn rounds(aes_key_len_bytes: usize) -> usize {
    aes_key_len_bytes / 4 + 6
}
