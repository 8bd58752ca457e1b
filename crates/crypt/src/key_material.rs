//! Key material: the AF-split, encrypted volume key in a keyslot's area.
//!
//! LUKS1 and LUKS2 are alike: the area holds the AF split, encrypted in 512-byte sectors with the
//! area key, which is derived from the passphrase. IVs count from the area's start.

use crate::af;
use crate::cipher::{CipherError, CipherSpec, SectorCipher};
use crate::error::Error;
use crate::hash::HashAlgorithm;
use crate::header_write::Write;
use crate::secret::SecretBytes;
use crate::source::HeaderSource;
use crate::stack::with_wiped_stack;

/// Place and parameters of a keyslot's material.
pub(crate) struct Area<'a> {
    /// Name in messages: "keyslot 3".
    pub(crate) place: &'a str,
    pub(crate) offset_bytes: u64,
    /// Cipher of the area.
    pub(crate) cipher: CipherSpec,
    pub(crate) af_hash: HashAlgorithm,
    /// Length of the volume key.
    pub(crate) key_len_bytes: usize,
}

/// Whether a cipher string, in dm-crypt's or the crypto API's form, is the null cipher. A keyslot
/// must never use it, because the key would be readable (CVE-2025-59054).
pub(crate) fn is_null_cipher(spec: &str) -> bool {
    let spec = spec.to_ascii_lowercase();
    spec.contains("cipher_null")
        || spec.split(|c: char| !c.is_ascii_alphanumeric()).next() == Some("null")
        || (spec.starts_with("capi:") && spec.contains("(null)"))
}

impl Area<'_> {
    /// Reads the material, decrypts it with `area_key` and merges it to a candidate for the volume
    /// key.
    pub(crate) fn read(
        &self,
        source: &dyn HeaderSource,
        area_key: &SecretBytes,
    ) -> Result<SecretBytes, Error> {
        let mut material = SecretBytes::zeroed(af::material_len_bytes(self.key_len_bytes));
        source.read_at(self.offset_bytes, material.as_mut_slice()).map_err(|error| {
            Error::Read { what: format!("the key material of {}", self.place), error }
        })?;
        with_wiped_stack(|| -> Result<(), CipherError> {
            self.cipher(area_key)?.decrypt_in_place(material.as_mut_slice(), 0);
            Ok(())
        })
        .map_err(|error| Error::unsupported(self.place, error.to_string()))?;
        let mut key = SecretBytes::zeroed(self.key_len_bytes);
        af::merge(material.as_slice(), key.as_mut_slice(), af::STRIPES, self.af_hash);
        Ok(key)
    }

    /// The write of `volume_key` into the area, split, and encrypted with `area_key`.
    pub(crate) fn write(
        &self,
        area_key: &SecretBytes,
        volume_key: &SecretBytes,
    ) -> Result<Write, Error> {
        let mut material = SecretBytes::zeroed(af::material_len_bytes(self.key_len_bytes));
        getrandom::fill(material.as_mut_slice())?;
        af::split(volume_key.as_slice(), material.as_mut_slice(), af::STRIPES, self.af_hash);
        with_wiped_stack(|| -> Result<(), CipherError> {
            self.cipher(area_key)?.encrypt_in_place(material.as_mut_slice(), 0);
            Ok(())
        })
        .map_err(|error| Error::unsupported(self.place, error.to_string()))?;
        Ok(Write::Bytes(self.offset_bytes, material.as_slice().to_vec()))
    }

    fn cipher(&self, area_key: &SecretBytes) -> Result<SectorCipher, CipherError> {
        SectorCipher::new(&self.cipher, area_key.as_slice(), 512, false)
    }
}
