//! AES-XTS (IEEE 1619) over whole sectors: `C = E1(P ^ T) ^ T`, where `T` of block `j` is
//! `E2(IV) * x^j` in GF(2^128) modulo x^128 + x^7 + x^2 + x + 1.
//!
//! Encryption sectors are multiples of 512 bytes, so ciphertext stealing does not occur.

#[cfg(target_arch = "x86_64")]
mod aesni;
mod portable;
#[cfg(target_arch = "x86_64")]
mod vaes256;
#[cfg(target_arch = "x86_64")]
mod vaes512;

use super::Tier;
use super::job::Kernels;

/// The kernels of a tier and key length.
pub(super) fn kernels(tier: Tier, aes_key_len_bytes: usize) -> Kernels {
    match (tier, aes_key_len_bytes) {
        #[cfg(target_arch = "x86_64")]
        (Tier::Vaes512, len_bytes) => vaes512::kernels(len_bytes),
        #[cfg(target_arch = "x86_64")]
        (Tier::Vaes256, len_bytes) => vaes256::kernels(len_bytes),
        #[cfg(target_arch = "x86_64")]
        (Tier::AesNi, len_bytes) => aesni::kernels(len_bytes),
        _ => Kernels {
            encrypt: portable::run::<true>,
            decrypt: portable::run::<false>,
            spills: false,
        },
    }
}
