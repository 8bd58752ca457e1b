//! Keys of the portable tier: the `aes` crate, which selects the CPU's best instructions itself.
//!
//! Since version 0.9.3 a call of that crate has the cost of setting up its widest registers, and
//! fills them only from 64 blocks on. So the portable kernels pass [`BATCH_BLOCKS`] at a time,
//! tweaks included, and never a single block.

use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes192, Aes256, Block};

/// Blocks per call of the `aes` crate: one encryption sector of the largest size.
pub(super) const BATCH_BLOCKS: usize = 256;

/// Stack of a call of a portable kernel: two batches of 4 KiB, and below them at most 4 KiB of the
/// `aes` crate on its widest registers, which spills round keys; the rest is margin.
pub(super) const CALL_STACK_BYTES: usize = 24 * 1024;

/// IVs per call.
pub(super) const IV_BATCH: usize = 64;

/// The data key and the IV key. Both types wipe themselves on drop.
pub(super) struct PortableKeys {
    pub(super) data: PortableAes,
    /// `None` where the IV is not encrypted.
    pub(super) iv: Option<PortableAes>,
}

#[allow(clippy::large_enum_variant, reason = "it lives once, in the page of a schedule")]
pub(super) enum PortableAes {
    Aes128(Aes128),
    Aes192(Aes192),
    Aes256(Aes256),
}

impl PortableKeys {
    pub(super) fn new(data_key: &[u8], iv_key: &[u8]) -> Self {
        Self {
            data: PortableAes::new(data_key),
            iv: (!iv_key.is_empty()).then(|| PortableAes::new(iv_key)),
        }
    }
}

impl PortableAes {
    fn new(key: &[u8]) -> Self {
        const CHECKED: &str = "the caller checked the key length";
        match key.len() {
            16 => Self::Aes128(Aes128::new_from_slice(key).expect(CHECKED)),
            24 => Self::Aes192(Aes192::new_from_slice(key).expect(CHECKED)),
            _ => Self::Aes256(Aes256::new_from_slice(key).expect(CHECKED)),
        }
    }

    pub(super) fn encrypt(&self, blocks: &mut [Block]) {
        match self {
            Self::Aes128(aes) => aes.encrypt_blocks(blocks),
            Self::Aes192(aes) => aes.encrypt_blocks(blocks),
            Self::Aes256(aes) => aes.encrypt_blocks(blocks),
        }
    }

    pub(super) fn decrypt(&self, blocks: &mut [Block]) {
        match self {
            Self::Aes128(aes) => aes.decrypt_blocks(blocks),
            Self::Aes192(aes) => aes.decrypt_blocks(blocks),
            Self::Aes256(aes) => aes.decrypt_blocks(blocks),
        }
    }
}

/// `to ^= with`, block by block.
#[inline]
pub(super) fn xor(to: &mut [Block], with: &[Block]) {
    for (to, with) in to.iter_mut().zip(with) {
        let sum = u128::from_ne_bytes((*to).into()) ^ u128::from_ne_bytes((*with).into());
        *to = sum.to_ne_bytes().into();
    }
}

/// `to ^= with`, block by block, from raw memory.
///
/// # Safety
///
/// `with` must be valid for reads of `to`'s length.
#[inline]
pub(super) unsafe fn xor_raw(to: &mut [Block], with: *const u8) {
    for (index, to) in to.iter_mut().enumerate() {
        // SAFETY: the caller vouches for as many blocks.
        let with = unsafe { with.cast::<u128>().add(index).read_unaligned() };
        *to = (u128::from_ne_bytes((*to).into()) ^ with).to_ne_bytes().into();
    }
}

/// Copies blocks in from raw memory.
///
/// # Safety
///
/// `src` must be valid for reads of `blocks`' length.
#[inline]
pub(super) unsafe fn load(blocks: &mut [Block], src: *const u8) {
    // SAFETY: `Block` is sixteen bytes without padding; the caller vouches for `src`.
    unsafe { src.copy_to_nonoverlapping(blocks.as_mut_ptr().cast(), size_of_val(blocks)) }
}

/// Copies blocks out to raw memory.
///
/// # Safety
///
/// `dst` must be valid for writes of `blocks`' length.
#[inline]
pub(super) unsafe fn store(blocks: &[Block], dst: *mut u8) {
    // SAFETY: as in `load`.
    unsafe { dst.copy_from_nonoverlapping(blocks.as_ptr().cast(), size_of_val(blocks)) }
}
