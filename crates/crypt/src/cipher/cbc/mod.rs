//! AES-CBC (NIST SP 800-38A) over whole sectors, each a separate chain.
//!
//! Decryption is parallel within a sector. Encryption is sequential: every block waits for the full
//! AES latency of the block before. So encryption runs the chains of several sectors side by side,
//! which requires a call with several sectors.

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
        _ => Kernels { encrypt: portable::encrypt, decrypt: portable::decrypt, spills: false },
    }
}
