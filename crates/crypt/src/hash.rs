//! The hashes of volumes, by cryptsetup's names.
//!
//! The AF split, PBKDF2, header checksums and passphrases of plain volumes use them. Weak ones
//! (sha1, ripemd160, whirlpool) are supported for existing volumes.

use std::fmt;

use blake2::{Blake2b, Blake2b512, Blake2s, Blake2s256};
use digest::{Digest, consts};
use zeroize::Zeroize;

/// Length of the longest output.
pub const DIGEST_LEN_MAX_BYTES: usize = 64;

/// A hash function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashAlgorithm {
    /// SHA-1, the hash of old LUKS1 volumes.
    Sha1,
    /// SHA-224.
    Sha224,
    /// SHA-256, today's default.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
    /// SHA3-224.
    Sha3_224,
    /// SHA3-256.
    Sha3_256,
    /// SHA3-384.
    Sha3_384,
    /// SHA3-512.
    Sha3_512,
    /// RIPEMD-160, cryptsetup's default for plain volumes until 2.7.
    Ripemd160,
    /// Whirlpool, in its final form.
    Whirlpool,
    /// BLAKE2b with 160 bits.
    Blake2b160,
    /// BLAKE2b with 256 bits.
    Blake2b256,
    /// BLAKE2b with 384 bits.
    Blake2b384,
    /// BLAKE2b with 512 bits.
    Blake2b512,
    /// BLAKE2s with 128 bits.
    Blake2s128,
    /// BLAKE2s with 160 bits.
    Blake2s160,
    /// BLAKE2s with 224 bits.
    Blake2s224,
    /// BLAKE2s with 256 bits.
    Blake2s256,
}

/// An unknown hash name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "hash \"{0}\" is not supported; known are sha1, sha224, sha256, sha384, sha512, sha3-224, \
     sha3-256, sha3-384, sha3-512, ripemd160, whirlpool, blake2b-160, blake2b-256, blake2b-384, \
     blake2b-512, blake2s-128, blake2s-160, blake2s-224 and blake2s-256"
)]
pub struct UnknownHash(pub String);

const NAMES: [(&str, HashAlgorithm); 19] = [
    ("sha1", HashAlgorithm::Sha1),
    ("sha224", HashAlgorithm::Sha224),
    ("sha256", HashAlgorithm::Sha256),
    ("sha384", HashAlgorithm::Sha384),
    ("sha512", HashAlgorithm::Sha512),
    ("sha3-224", HashAlgorithm::Sha3_224),
    ("sha3-256", HashAlgorithm::Sha3_256),
    ("sha3-384", HashAlgorithm::Sha3_384),
    ("sha3-512", HashAlgorithm::Sha3_512),
    ("ripemd160", HashAlgorithm::Ripemd160),
    ("whirlpool", HashAlgorithm::Whirlpool),
    ("blake2b-160", HashAlgorithm::Blake2b160),
    ("blake2b-256", HashAlgorithm::Blake2b256),
    ("blake2b-384", HashAlgorithm::Blake2b384),
    ("blake2b-512", HashAlgorithm::Blake2b512),
    ("blake2s-128", HashAlgorithm::Blake2s128),
    ("blake2s-160", HashAlgorithm::Blake2s160),
    ("blake2s-224", HashAlgorithm::Blake2s224),
    ("blake2s-256", HashAlgorithm::Blake2s256),
];

/// Calls `$function::<T>($args)` with the type that implements the hash. The second arm names the
/// hashes whose buffering forbids the fast HMAC.
macro_rules! with_hash_type {
    ($algorithm:expr, $eager:ident, $lazy:ident, ($($args:expr),*)) => {
        match $algorithm {
            HashAlgorithm::Sha1 => $eager::<sha1::Sha1>($($args),*),
            HashAlgorithm::Sha224 => $eager::<sha2::Sha224>($($args),*),
            HashAlgorithm::Sha256 => $eager::<sha2::Sha256>($($args),*),
            HashAlgorithm::Sha384 => $eager::<sha2::Sha384>($($args),*),
            HashAlgorithm::Sha512 => $eager::<sha2::Sha512>($($args),*),
            HashAlgorithm::Ripemd160 => $eager::<ripemd::Ripemd160>($($args),*),
            HashAlgorithm::Whirlpool => $eager::<whirlpool::Whirlpool>($($args),*),
            HashAlgorithm::Sha3_224 => $lazy::<sha3::Sha3_224>($($args),*),
            HashAlgorithm::Sha3_256 => $lazy::<sha3::Sha3_256>($($args),*),
            HashAlgorithm::Sha3_384 => $lazy::<sha3::Sha3_384>($($args),*),
            HashAlgorithm::Sha3_512 => $lazy::<sha3::Sha3_512>($($args),*),
            HashAlgorithm::Blake2b160 => $lazy::<Blake2b<consts::U20>>($($args),*),
            HashAlgorithm::Blake2b256 => $lazy::<Blake2b<consts::U32>>($($args),*),
            HashAlgorithm::Blake2b384 => $lazy::<Blake2b<consts::U48>>($($args),*),
            HashAlgorithm::Blake2b512 => $lazy::<Blake2b512>($($args),*),
            HashAlgorithm::Blake2s128 => $lazy::<Blake2s<consts::U16>>($($args),*),
            HashAlgorithm::Blake2s160 => $lazy::<Blake2s<consts::U20>>($($args),*),
            HashAlgorithm::Blake2s224 => $lazy::<Blake2s<consts::U28>>($($args),*),
            HashAlgorithm::Blake2s256 => $lazy::<Blake2s256>($($args),*),
        }
    };
}

impl HashAlgorithm {
    /// The hash of this name, in any case.
    ///
    /// # Errors
    /// When the name is unknown.
    pub fn parse(name: &str) -> Result<Self, UnknownHash> {
        let lower = name.to_ascii_lowercase();
        // The kernel's name for the same hash.
        let lower = if lower == "rmd160" { "ripemd160" } else { lower.as_str() };
        NAMES
            .iter()
            .find_map(|(known, algorithm)| (*known == lower).then_some(*algorithm))
            .ok_or_else(|| UnknownHash(name.to_owned()))
    }

    /// The name as cryptsetup writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES
            .iter()
            .find_map(|(name, algorithm)| (*algorithm == self).then_some(*name))
            .expect("every hash is in the table")
    }

    /// The names of all hashes.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }

    /// Length of the output.
    #[must_use]
    pub fn digest_len_bytes(self) -> usize {
        with_hash_type!(self, output_len, output_len, ())
    }

    /// Hashes the concatenated `parts` and fills `out`, at most [`HashAlgorithm::digest_len_bytes`]
    /// long.
    pub fn digest(self, parts: &[&[u8]], out: &mut [u8]) {
        assert!(out.len() <= self.digest_len_bytes(), "a hash has no more bytes");
        with_hash_type!(self, digest_parts, digest_parts, (parts, out));
    }

    /// PBKDF2 with HMAC of this hash, RFC 8018.
    pub(crate) fn pbkdf2(self, password: &[u8], salt: &[u8], iterations: u32, out: &mut [u8]) {
        with_hash_type!(self, pbkdf2_eager, pbkdf2_lazy, (password, salt, iterations, out));
    }
}

impl fmt::Display for HashAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn output_len<D: Digest>() -> usize {
    <D as Digest>::output_size()
}

fn digest_parts<D: Digest>(parts: &[&[u8]], out: &mut [u8]) {
    let mut state = D::new();
    for part in parts {
        state.update(part);
    }
    let mut digest = state.finalize();
    out.copy_from_slice(&digest[..out.len()]);
    digest.as_mut_slice().zeroize();
}

fn pbkdf2_eager<D: hmac::EagerHash>(password: &[u8], salt: &[u8], iterations: u32, out: &mut [u8]) {
    pbkdf2::pbkdf2::<hmac::Hmac<D>>(password, salt, iterations, out)
        .expect("HMAC takes a key of any length");
}

fn pbkdf2_lazy<D>(password: &[u8], salt: &[u8], iterations: u32, out: &mut [u8])
where
    D: Digest + digest::common::BlockSizeUser + Clone,
{
    pbkdf2::pbkdf2::<hmac::SimpleHmac<D>>(password, salt, iterations, out)
        .expect("HMAC takes a key of any length");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::{lines, unhex};

    #[test]
    fn hash_of_abc_is_the_known_one_for_every_name() {
        let vectors = lines(include_str!("../../../testdata/vectors/kdf/hash.txt"));
        assert_eq!(vectors.len(), NAMES.len());
        for vector in vectors {
            let hash = HashAlgorithm::parse(vector[0]).unwrap();
            assert_eq!(hash.name(), vector[0]);
            let expected = unhex(vector[1]);
            assert_eq!(hash.digest_len_bytes(), expected.len(), "{hash}");
            assert!(expected.len() <= DIGEST_LEN_MAX_BYTES);
            let mut digest = vec![0u8; expected.len()];
            hash.digest(&[b"a", b"", b"bc"], &mut digest);
            assert_eq!(digest, expected, "{hash}");
        }
    }

    #[test]
    fn hash_names_are_taken_in_any_case_and_unknown_ones_listed() {
        assert_eq!(HashAlgorithm::parse("SHA256"), Ok(HashAlgorithm::Sha256));
        assert_eq!(HashAlgorithm::parse("rmd160"), Ok(HashAlgorithm::Ripemd160));
        let unknown = HashAlgorithm::parse("md5").unwrap_err().to_string();
        assert!(unknown.contains("\"md5\"") && unknown.contains("sha3-256"), "{unknown}");
    }
}
