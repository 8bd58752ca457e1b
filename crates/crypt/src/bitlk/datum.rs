//! The entries of metadata and of startup key files: a length, two types and data. Numbers are
//! little-endian.
//!
//! ```text
//!   0 length | 2 entry type | 4 value type | 6 version | 8 data, which may be entries again
//! ```

use super::le16;

/// Length of the fields before the data.
pub(super) const HEADER_LEN_BYTES: usize = 8;

/// Types of entries.
pub(super) mod entry {
    /// Property of the entry around it.
    pub(in crate::bitlk) const PROPERTY: u16 = 0x00;
    /// Volume master key: a protector.
    pub(in crate::bitlk) const VMK: u16 = 0x02;
    /// Full volume encryption key.
    pub(in crate::bitlk) const FVEK: u16 = 0x03;
    /// Startup key, in a file of its own.
    pub(in crate::bitlk) const STARTUP_KEY: u16 = 0x06;
    /// Description of the volume.
    pub(in crate::bitlk) const DESCRIPTION: u16 = 0x07;
    /// Place of the volume header.
    pub(in crate::bitlk) const VOLUME_HEADER: u16 = 0x0f;
}

/// Types of values.
pub(super) mod value {
    /// Key: 4 bytes of method, then the key.
    pub(in crate::bitlk) const KEY: u16 = 0x01;
    /// Text in UTF-16.
    pub(in crate::bitlk) const TEXT: u16 = 0x02;
    /// Stretched key: 4 bytes of method, then the salt.
    pub(in crate::bitlk) const STRETCHED_KEY: u16 = 0x03;
    /// Key encrypted with AES-CCM: nonce, tag, ciphertext.
    pub(in crate::bitlk) const ENCRYPTED_KEY: u16 = 0x05;
    /// External key: 24 bytes, then entries.
    pub(in crate::bitlk) const EXTERNAL_KEY: u16 = 0x09;
    /// Offset and size, 8 bytes each.
    pub(in crate::bitlk) const OFFSET_AND_SIZE: u16 = 0x0f;
}

/// An entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Datum<'a> {
    pub(super) entry: u16,
    pub(super) value: u16,
    pub(super) data: &'a [u8],
}

/// The entries in `bytes`, up to the first one of length zero.
///
/// # Errors
/// A length leaves `bytes`.
pub(super) fn parse(bytes: &[u8]) -> Result<Vec<Datum<'_>>, String> {
    let mut found = Vec::new();
    let mut rest = bytes;
    while rest.len() >= HEADER_LEN_BYTES {
        let len = usize::from(le16(rest, 0));
        if len == 0 {
            break;
        }
        if !(HEADER_LEN_BYTES..=rest.len()).contains(&len) {
            let at = bytes.len() - rest.len();
            return Err(format!("its entry at byte {at} has an impossible length of {len} bytes"));
        }
        let (one, after) = rest.split_at(len);
        let data = &one[HEADER_LEN_BYTES..];
        found.push(Datum { entry: le16(one, 2), value: le16(one, 4), data });
        rest = after;
    }
    Ok(found)
}

impl Datum<'_> {
    /// The text of a value, up to its first zero.
    pub(super) fn text(&self) -> String {
        let units = self.data.as_chunks::<2>().0.iter().map(|unit| u16::from_le_bytes(*unit));
        let units = units.take_while(|unit| *unit != 0);
        char::decode_utf16(units).map(|it| it.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
    }
}
