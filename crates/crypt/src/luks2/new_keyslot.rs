//! The JSON of a new keyslot and of a new digest, as cryptsetup 2.6 writes it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{SALT_LEN_BYTES, area_len_bytes, compute_digest};
use crate::cipher::{CipherSpec, SectorCipher};
use crate::error::Error;
use crate::hash::HashAlgorithm;
use crate::kdf::{Kdf, KdfError, KdfLimits, cost};
use crate::key_material::is_null_cipher;
use crate::secret::SecretBytes;

/// Cipher of keyslot areas, and the size of its key, if the data's cipher is not suitable.
const AREA_CIPHER: &str = "aes-xts-plain64";
const AREA_KEY_SIZE_BITS: u32 = 512;
/// Target time of the digest's verification, in milliseconds.
const DIGEST_MS: u64 = 125;

/// Cipher of a keyslot's area, and the size of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AreaCipher {
    /// The cipher, for example `aes-xts-plain64`.
    pub cipher: String,
    /// Length of its key, which is derived from the passphrase.
    pub key_size_bits: u32,
}

impl AreaCipher {
    /// The cipher of the data where cryptsetup would use it (`crypt_keyslot_get_encryption`), so
    /// that one cipher protects both.
    pub(crate) fn for_data(cipher: &str, key_size_bits: u32) -> Self {
        match CipherSpec::parse(cipher) {
            Ok(spec) if spec.fits_keyslots() => Self { cipher: cipher.to_owned(), key_size_bits },
            _ => Self::standard(),
        }
    }

    /// cryptsetup's default.
    pub(crate) fn standard() -> Self {
        Self { cipher: AREA_CIPHER.to_owned(), key_size_bits: AREA_KEY_SIZE_BITS }
    }

    pub(crate) fn key_len_bytes(&self) -> usize {
        self.key_size_bits as usize / 8
    }

    /// Whether the area can be encrypted so.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let error = |problem: String| Error::field("keyslot_cipher", problem);
        if is_null_cipher(&self.cipher) {
            return Err(error("the null cipher encrypts nothing; refused".to_owned()));
        }
        if !self.key_size_bits.is_multiple_of(8) || !(8..=8192).contains(&self.key_size_bits) {
            let bits = self.key_size_bits;
            return Err(error(format!("a key of {bits} bits is not a multiple of 8 up to 8192")));
        }
        let spec = CipherSpec::parse(&self.cipher).map_err(|problem| error(problem.to_string()))?;
        let probe = SecretBytes::zeroed(self.key_len_bytes());
        SectorCipher::new(&spec, probe.as_slice(), 512, false)
            .map_err(|problem| error(problem.to_string()))?;
        Ok(())
    }
}

/// A keyslot for a key of `key_len_bytes`, with a new salt, whose area starts at `offset_bytes`.
pub(crate) fn keyslot_json(
    key_len_bytes: usize,
    area: &AreaCipher,
    offset_bytes: u64,
    af_hash: HashAlgorithm,
    kdf: &Kdf,
) -> Result<Value, Error> {
    let salt = STANDARD.encode(salt()?);
    let kdf_json = match kdf {
        Kdf::Pbkdf2 { hash, iterations } => json!({
            "type": "pbkdf2", "hash": hash.name(), "iterations": iterations, "salt": salt,
        }),
        Kdf::Argon2 { time, memory_kib, lanes, .. } => json!({
            "type": kdf.name(), "time": time, "memory": memory_kib, "cpus": lanes, "salt": salt,
        }),
    };
    Ok(json!({
        "type": "luks2",
        "key_size": key_len_bytes,
        "af": { "type": "luks1", "stripes": crate::af::STRIPES, "hash": af_hash.name() },
        "area": {
            "type": "raw",
            "offset": offset_bytes.to_string(),
            "size": area_len_bytes(key_len_bytes).to_string(),
            "encryption": area.cipher,
            "key_size": area.key_len_bytes(),
        },
        "kdf": kdf_json,
    }))
}

/// A digest of `key` for these keyslots and segments. `iterations`: `None` measures about 125 ms.
pub(crate) fn digest_json(
    key: &SecretBytes,
    hash: HashAlgorithm,
    iterations: Option<u32>,
    keyslots: &[&str],
    segments: &[&str],
) -> Result<Value, Error> {
    let len = hash.digest_len_bytes();
    let mut measure = |kdf: &Kdf| -> Result<u64, KdfError> { cost::measure(kdf, len) };
    let kdf = match iterations {
        Some(iterations) => Kdf::Pbkdf2 { hash, iterations },
        None => cost::pbkdf2(hash, DIGEST_MS, &mut measure)?,
    };
    cost::check_minimum(&kdf).map_err(|problem| Error::field("digest iterations", problem))?;
    let Kdf::Pbkdf2 { iterations, .. } = kdf else { unreachable!("asked for pbkdf2") };
    let salt = salt()?;
    let digest = compute_digest(&kdf, key, &salt, len, &KdfLimits::UNLIMITED)?;
    Ok(json!({
        "type": "pbkdf2",
        "keyslots": keyslots,
        "segments": segments,
        "hash": hash.name(),
        "iterations": iterations,
        "salt": STANDARD.encode(salt),
        "digest": STANDARD.encode(digest.as_slice()),
    }))
}

fn salt() -> Result<[u8; SALT_LEN_BYTES], Error> {
    let mut salt = [0u8; SALT_LEN_BYTES];
    getrandom::fill(&mut salt)?;
    Ok(salt)
}
