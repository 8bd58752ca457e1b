//! Digests: how LUKS2 knows that a key is the right one.

use subtle::ConstantTimeEq;

use super::metadata::Pbkdf2Digest;
use crate::hash::HashAlgorithm;
use crate::kdf::{Kdf, KdfError, KdfLimits};
use crate::secret::SecretBytes;

impl Pbkdf2Digest {
    /// The digest's function.
    pub(crate) fn kdf(&self) -> Result<Kdf, String> {
        let hash = HashAlgorithm::parse(&self.hash).map_err(|error| error.to_string())?;
        // 20 bytes are LUKS1's digest, kept by a conversion to LUKS2.
        if self.digest.len() != 20 && self.digest.len() != hash.digest_len_bytes() {
            return Err(format!("it has {} bytes, {hash} makes others", self.digest.len()));
        }
        Ok(Kdf::Pbkdf2 { hash, iterations: self.iterations })
    }

    /// Whether `key` is the one that this digest was made of. Compares in constant time.
    ///
    /// The length of that key must be given, for the digest cannot tell it: HMAC pads a key with
    /// zeros, so a key that ends in zeros has the digest of the same key without them.
    pub(crate) fn verifies(
        &self,
        key: &SecretBytes,
        key_len_bytes: u32,
        limits: &KdfLimits,
    ) -> Result<bool, String> {
        if key.len() != key_len_bytes as usize {
            let len = key.len();
            return Err(format!("it is of a key of {key_len_bytes} bytes, not of {len}"));
        }
        let computed = compute(&self.kdf()?, key, &self.salt, self.digest.len(), limits)
            .map_err(|error| error.to_string())?;
        Ok(computed.as_slice().ct_eq(&self.digest).into())
    }
}

/// The digest of `key`.
pub(crate) fn compute(
    kdf: &Kdf,
    key: &SecretBytes,
    salt: &[u8],
    len_bytes: usize,
    limits: &KdfLimits,
) -> Result<SecretBytes, KdfError> {
    let mut digest = SecretBytes::zeroed(len_bytes);
    kdf.derive(key.as_slice(), salt, digest.as_mut_slice(), limits)?;
    Ok(digest)
}
