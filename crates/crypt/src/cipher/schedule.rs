//! Round keys: the only form in which a cipher keeps its volume key.
//!
//! They lie in one allocation on pages of its own, which the protector of [`crate::secret`] may
//! lock. The allocation is wiped when the cipher is dropped. The first round keys *are* the volume
//! key, so the stack of the key expansion is wiped as well.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};

use aes::cipher::consts::U32;
use sha2::{Digest, Sha256};
use zeroize::Zeroize;

use super::portable::PortableKeys;
use super::tier::{Tier, Tiered};
use crate::secret;
use crate::stack::with_clean_stack;

/// Number of round keys of AES-256; shorter keys have fewer.
pub(super) const ROUND_KEYS_MAX: usize = 15;

/// One expanded AES key.
#[repr(C, align(64))]
pub(super) struct RoundKeys(pub(super) [[u8; 16]; ROUND_KEYS_MAX]);

/// All key data of a kernel. Page alignment keeps other data off these pages.
#[repr(C, align(4096))]
pub(super) struct Schedule {
    /// Round keys for encrypting data.
    pub(super) encrypt: RoundKeys,
    /// Round keys for decrypting data: reversed, through the inverse of `MixColumns`.
    pub(super) decrypt: RoundKeys,
    /// Round keys for the IV: the second half of an XTS key, or the hash of an ESSIV key.
    pub(super) iv: RoundKeys,
    /// Rounds of `iv`; zero where the IV is not encrypted.
    pub(super) iv_rounds: usize,
    /// Keys in the portable tier's form, on that tier only.
    pub(super) portable: Option<PortableKeys>,
}

impl Schedule {
    /// Expands a volume key of valid length.
    pub(super) fn new(tiered: Tiered, key: &[u8], tier: Tier) -> Box<Self> {
        let mut schedule = Self::zeroed();
        with_clean_stack(|| schedule.expand(tiered, key, tier));
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

    /// Allocates a schedule of zeros in protected memory, before any key is written.
    fn zeroed() -> Box<Self> {
        let layout = Layout::new::<Self>();
        // SAFETY: the layout is not empty. All zeros is a valid value of every field but
        // `portable`, which is written before there is a `Self`. A box frees with the same layout.
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
