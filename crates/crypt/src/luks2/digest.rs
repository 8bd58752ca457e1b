//! Digests: the verification of volume keys in LUKS2.

use subtle::ConstantTimeEq;

use super::metadata::Pbkdf2Digest;
use crate::hash::HashAlgorithm;
use crate::kdf::{Kdf, KdfError, KdfLimits};
use crate::secret::SecretBytes;

impl Pbkdf2Digest {
    /// The digest's function.
    pub(crate) fn kdf(&self) -> Result<Kdf, String> {
        let hash = HashAlgorithm::parse(&self.hash).map_err(|error| error.to_string())?;
        // 20 bytes are LUKS1's digest, preserved by a conversion to LUKS2.
        if self.digest.len() != 20 && self.digest.len() != hash.digest_len_bytes() {
            return Err(format!("its {} bytes do not fit {hash}", self.digest.len()));
        }
        Ok(Kdf::Pbkdf2 { hash, iterations: self.iterations })
    }

    /// Whether `key` matches this digest, in constant time.
    ///
    /// The key's length must be known, because HMAC pads a key with zeros: a key that ends in zeros
    /// has the same digest as the key without them.
    pub(crate) fn verifies(
        &self,
        key: &SecretBytes,
        key_len_bytes: u32,
        limits: &KdfLimits,
    ) -> Result<bool, String> {
        if key.len() != key_len_bytes as usize {
            let len = key.len();
            return Err(format!("it belongs to a key of {key_len_bytes} bytes, not of {len}"));
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
