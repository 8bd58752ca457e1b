//! Passwords with keyfiles.
//!
//! The bytes of each keyfile run through a CRC, whose four bytes after each byte are added to a
//! pool of 64 or 128 bytes. The password is added to the pool.

use crate::crc32;
use crate::error::Error;
use crate::secret::SecretBytes;

/// Longest password of TrueCrypt, and length of its pool.
pub(super) const TRUECRYPT_LEN_BYTES: usize = 64;
/// Longest password of VeraCrypt, and length of the pool for passwords over 64 bytes.
const VERACRYPT_LEN_BYTES: usize = 128;
/// The part of a keyfile that counts.
const KEYFILE_LEN_MAX_BYTES: usize = 1 << 20;

/// The input of the key derivation.
pub(super) fn password(passphrase: &[u8], keyfiles: &[SecretBytes]) -> Result<SecretBytes, Error> {
    if passphrase.len() > VERACRYPT_LEN_BYTES {
        return Err(Error::field(
            "key",
            format!("a passphrase of VeraCrypt has at most {VERACRYPT_LEN_BYTES} bytes"),
        ));
    }
    if keyfiles.is_empty() {
        return Ok(SecretBytes::copy_of(passphrase));
    }
    let is_long = passphrase.len() > TRUECRYPT_LEN_BYTES;
    let len = if is_long { VERACRYPT_LEN_BYTES } else { TRUECRYPT_LEN_BYTES };
    let mut pool = SecretBytes::zeroed(len);
    let bytes = pool.as_mut_slice();
    for keyfile in keyfiles {
        let counted = keyfile.as_slice().iter().take(KEYFILE_LEN_MAX_BYTES);
        let mut register = u32::MAX;
        let mut at = 0;
        for byte in counted {
            register = crc32::shift(register ^ u32::from(*byte), 8);
            for part in register.to_be_bytes() {
                bytes[at] = bytes[at].wrapping_add(part);
                at = (at + 1) % len;
            }
        }
    }
    for (place, byte) in bytes.iter_mut().zip(passphrase) {
        *place = place.wrapping_add(*byte);
    }
    Ok(pool)
}
