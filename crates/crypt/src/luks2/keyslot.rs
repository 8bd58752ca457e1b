//! Opens and fills keyslots of type `luks2`.
//!
//! ```text
//!   passphrase --kdf, salt--> area key --decrypts--> material --af merge--> volume key
//! ```

use crate::af;
use crate::cipher::CipherSpec;
use crate::error::Error;
use crate::hash::HashAlgorithm;
use crate::header_write::Write;
use crate::kdf::{Argon2Variant, Kdf, KdfLimits};
use crate::key_material::{Area, is_null_cipher};
use crate::secret::SecretBytes;
use crate::source::HeaderSource;
use crate::unlock_attempt::{Attempt, Problem, kdf_problem};

use super::metadata::{KdfSpec, Keyslot, KeyslotBody};

/// A keyslot with supported KDF, hash and cipher.
struct Usable<'a> {
    place: String,
    body: &'a KeyslotBody,
    kdf: Kdf,
    af_hash: HashAlgorithm,
    cipher: CipherSpec,
}

impl Usable<'_> {
    fn area<'a>(&'a self, keyslot: &Keyslot) -> Area<'a> {
        Area {
            place: &self.place,
            offset_bytes: keyslot.area.offset_bytes,
            cipher: self.cipher.clone(),
            af_hash: self.af_hash,
            key_len_bytes: keyslot.key_len_bytes as usize,
        }
    }
}

fn usable(number: u32, keyslot: &Keyslot) -> Result<Usable<'_>, String> {
    let body = keyslot.body.as_ref().map_err(String::clone)?;
    let kdf = match &body.kdf {
        KdfSpec::Pbkdf2 { hash, iterations } => Kdf::Pbkdf2 {
            hash: HashAlgorithm::parse(hash).map_err(|error| format!("its KDF's {error}"))?,
            iterations: *iterations,
        },
        KdfSpec::Argon2 { kind, time, memory_kib, lanes } => Kdf::Argon2 {
            variant: if kind == "argon2i" { Argon2Variant::I } else { Argon2Variant::Id },
            time: *time,
            memory_kib: *memory_kib,
            lanes: *lanes,
        },
        KdfSpec::Unknown { kind } => return Err(format!("its KDF \"{kind}\" is not supported")),
    };
    let af_hash =
        HashAlgorithm::parse(&body.af_hash).map_err(|error| format!("its split's {error}"))?;
    if is_null_cipher(&body.encryption) {
        return Err(format!(
            "its area is encrypted with \"{}\", which encrypts nothing; refused",
            body.encryption
        ));
    }
    let cipher =
        CipherSpec::parse(&body.encryption).map_err(|error| format!("its area's {error}"))?;
    Ok(Usable { place: format!("keyslot {number}"), body, kdf, af_hash, cipher })
}

/// The reason why a keyslot cannot be used with any passphrase.
pub(crate) fn problem(keyslot: &Keyslot) -> Option<String> {
    usable(0, keyslot).err()
}

/// The candidate key for `passphrase`, which is the volume key only if the passphrase is right; or
/// the reason why the keyslot cannot be tried.
pub(crate) fn open(
    source: &dyn HeaderSource,
    number: u32,
    keyslot: &Keyslot,
    passphrase: &SecretBytes,
    attempt: &mut Attempt,
) -> Result<SecretBytes, Problem> {
    let usable = usable(number, keyslot)?;
    let area_key_len = usable.body.area_key_len_bytes as usize;
    attempt.admit(&usable.kdf, area_key_len)?;
    let mut area_key = SecretBytes::zeroed(area_key_len);
    usable
        .kdf
        .derive(passphrase.as_slice(), &usable.body.salt, area_key.as_mut_slice(), attempt.limits())
        .map_err(|error| kdf_problem(&error))?;
    usable.area(keyslot).read(source, &area_key).map_err(|error| error.to_string().into())
}

/// Length of the area for a key of this length.
pub(crate) fn area_len_bytes(key_len_bytes: usize) -> u64 {
    (af::material_len_bytes(key_len_bytes) as u64).next_multiple_of(4096)
}

/// `volume_key`, split and encrypted for the area of a new keyslot, and its offset.
pub(crate) fn material(
    number: u32,
    keyslot: &Keyslot,
    passphrase: &SecretBytes,
    volume_key: &SecretBytes,
) -> Result<Write, Error> {
    let usable = usable(number, keyslot)
        .map_err(|problem| Error::unsupported(format!("keyslot {number}"), problem))?;
    let mut area_key = SecretBytes::zeroed(usable.body.area_key_len_bytes as usize);
    usable.kdf.derive(
        passphrase.as_slice(),
        &usable.body.salt,
        area_key.as_mut_slice(),
        &KdfLimits::UNLIMITED,
    )?;
    usable.area(keyslot).write(&area_key, volume_key)
}
