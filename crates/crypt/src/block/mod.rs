//! Block ciphers by their name in the kernel's crypto API: raw blocks, no mode, no IV.
//!
//! ```text
//!   name        block   key bytes              code
//!   aes         16      16, 24, 32             the `aes` crate
//!   serpent     16      16, 24, 32             serpent/: bitsliced, SSE2 and AVX2
//!   twofish     16      16, 24, 32             twofish/: tables of the key
//!   camellia    16      16, 24, 32             camellia/: tables
//!   cast5        8      5 to 16                the `cast5` crate
//!   cast6       16      16, 20, 24, 28, 32     the `cast6` crate
//! ```
//!
//! A cipher takes many blocks per call, which keeps wide kernels busy: a mode with independent
//! blocks passes whole sectors. The key schedule lies on pages of its own, in memory that the
//! protector of [`crate::secret`] has seen, and is wiped on drop.

mod batch;
mod camellia;
mod crates;
pub(crate) mod page;
mod serpent;
mod twofish;

#[cfg(test)]
pub(crate) mod tests;

use self::crates::CrateCipher;

/// A keyed block cipher: ECB over whole blocks, in place.
pub(crate) trait BlockCipher: Send + Sync {
    /// Bytes of a block: 16, or 8 for cast5.
    fn block_bytes(&self) -> usize;

    /// Encrypts any number of whole blocks, each by itself.
    fn encrypt(&self, blocks: &mut [u8]);

    /// Decrypts any number of whole blocks, each by itself.
    fn decrypt(&self, blocks: &mut [u8]);
}

/// Valid key lengths of a cipher in bytes; `None` for an unknown name.
///
/// Serpent is defined for every length up to 32 bytes; volumes use these three.
pub(crate) fn key_lengths(name: &str) -> Option<&'static [usize]> {
    match name {
        "aes" | "serpent" | "twofish" | "camellia" => Some(&[16, 24, 32]),
        "cast5" => Some(&[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]),
        "cast6" => Some(&[16, 20, 24, 28, 32]),
        _ => None,
    }
}

/// Whether a cipher uses look-up tables at indices that depend on key and data, so that cache
/// timing can reveal the key. AES has instructions or is bitsliced, and Serpent is bitsliced.
pub(crate) fn is_table_based(name: &str) -> bool {
    matches!(name, "twofish" | "camellia" | "cast5" | "cast6")
}

/// Expands a key. No other copy of the key remains.
///
/// # Panics
///
/// If [`key_lengths`] does not list this name and length. Callers check untrusted names there
/// first.
pub(crate) fn new(name: &str, key: &[u8]) -> Box<dyn BlockCipher> {
    let listed = key_lengths(name).is_some_and(|lengths| lengths.contains(&key.len()));
    assert!(listed, "{name} does not take a key of {} bytes", key.len());
    match (name, key.len()) {
        ("aes", 16) => CrateCipher::<aes::Aes128>::boxed(key),
        ("aes", 24) => CrateCipher::<aes::Aes192>::boxed(key),
        ("aes", _) => CrateCipher::<aes::Aes256>::boxed(key),
        ("serpent", _) => serpent::Serpent::boxed(key),
        ("twofish", _) => twofish::Twofish::boxed(key),
        ("camellia", _) => camellia::Camellia::boxed(key),
        ("cast5", _) => CrateCipher::<cast5::Cast5>::boxed(key),
        _ => CrateCipher::<cast6::Cast6>::boxed(key),
    }
}
