//! The decrypted header (VeraCrypt Volume Format Specification). Numbers are big-endian.

use std::fmt;
use std::ops::Range;

use serde_json::{Value, json};

use crate::crc32::crc32;
use crate::error::Error;

use super::VolumeKind;
use super::ciphers::Chain;
use super::kdf::Candidate;

/// Place of the keys in the decrypted part, which starts at the magic.
pub(super) const KEYS: Range<usize> = 192..448;
/// Place of the checksum of all that precedes it.
const CHECKSUM: usize = 188;
/// Distance from the end of the volume to the hidden volume, before version 4.
pub(super) const OLD_HIDDEN_DISTANCE_BYTES: u64 = 1536;

/// The fields of an opened header; no keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// A VeraCrypt volume, else TrueCrypt.
    pub is_veracrypt: bool,
    /// Version of the header's format.
    pub version: u16,
    /// Cipher or cascade in the form of a table line.
    pub cipher: String,
    /// The key derivation that opened it.
    pub kdf: String,
    /// Length of the volume.
    pub volume_len_bytes: u64,
    /// Length of the hidden volume; zero in other headers.
    pub hidden_len_bytes: u64,
    /// Start of the encrypted area.
    pub area_offset_bytes: u64,
    /// Length of the encrypted area.
    pub area_len_bytes: u64,
    /// Flags.
    pub flags: u32,
    /// Sector size of the disk that it was made on.
    pub sector_size_bytes: u32,
}

impl Header {
    /// The header in a decrypted sector; `None` if magic or checksums are wrong: then the
    /// passphrase, KDF or cipher are.
    pub(super) fn parse(bytes: &[u8], candidate: &Candidate, chain: &Chain) -> Option<Self> {
        let be16 = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let be32 = |at: usize| u32::from_be_bytes(*bytes[at..].first_chunk().expect("a field"));
        let be64 = |at: usize| u64::from_be_bytes(*bytes[at..].first_chunk().expect("a field"));
        let magic: &[u8] = if candidate.is_veracrypt { b"VERA" } else { b"TRUE" };
        let version = be16(4);
        let fields_fit = version <= 3 || crc32(&bytes[..CHECKSUM]) == be32(CHECKSUM);
        if &bytes[..4] != magic || crc32(&bytes[KEYS]) != be32(8) || !fields_fit {
            return None;
        }
        let or_512 = |number: u64| if number == 0 { 512 } else { number };
        Some(Self {
            is_veracrypt: candidate.is_veracrypt,
            version,
            cipher: chain.text(),
            kdf: candidate.name(),
            volume_len_bytes: be64(36),
            hidden_len_bytes: be64(28),
            area_offset_bytes: or_512(be64(44)),
            area_len_bytes: be64(52),
            flags: be32(60),
            sector_size_bytes: u32::try_from(or_512(u64::from(be32(64)))).expect("it is a u32"),
        })
    }

    /// Refuses wrong fields, and volumes whose encryption in place is unfinished.
    pub(super) fn check(&self) -> Result<(), Error> {
        let refused = |problem: String| Err(Error::header("header", problem));
        if !matches!(self.sector_size_bytes, 512 | 1024 | 2048 | 4096) {
            return refused(format!("its sector size is {}", self.sector_size_bytes));
        }
        let numbers = [
            self.area_offset_bytes,
            self.area_len_bytes,
            self.volume_len_bytes,
            self.hidden_len_bytes,
        ];
        if let Some(odd) = numbers.iter().find(|number| !number.is_multiple_of(512)) {
            return refused(format!("{odd} bytes are no whole sectors"));
        }
        // Headers of TrueCrypt 6 and earlier have no such field. Later a length of 0 is that of a
        // disk whose encryption has not begun.
        let has_area_len = self.version > 3 || self.area_len_bytes != 0;
        if has_area_len && self.area_len_bytes < self.volume_len_bytes {
            return refused(format!(
                "only {} of {} bytes are encrypted; let VeraCrypt finish the encryption or \
                 decryption first",
                self.area_len_bytes, self.volume_len_bytes
            ));
        }
        Ok(())
    }

    /// Start and length of the data; no length: the rest of the device.
    pub(super) fn place(
        &self,
        kind: VolumeKind,
        device_len_bytes: u64,
    ) -> Result<(u64, Option<u64>), Error> {
        let len_bytes = match kind {
            VolumeKind::Hidden => self.hidden_len_bytes,
            VolumeKind::Normal | VolumeKind::System => self.volume_len_bytes,
        };
        let len_bytes = Some(len_bytes).filter(|len| *len != 0);
        if kind != VolumeKind::Hidden || self.version > 3 {
            return Ok((self.area_offset_bytes, len_bytes));
        }
        let before = self.hidden_len_bytes.saturating_add(OLD_HIDDEN_DISTANCE_BYTES);
        match device_len_bytes.checked_sub(before) {
            Some(start) => Ok((start / 512 * 512, len_bytes)),
            None => Err(Error::DataDevice(format!(
                "it has {device_len_bytes} bytes, fewer than the hidden volume needs"
            ))),
        }
    }

    /// The header as JSON.
    #[must_use]
    pub fn info(&self) -> Value {
        json!({
            "type": if self.is_veracrypt { "veracrypt" } else { "truecrypt" },
            "version": self.version,
            "cipher": self.cipher,
            "kdf": self.kdf,
            "data_offset_bytes": self.area_offset_bytes,
            "volume_len_bytes": self.volume_len_bytes,
            "hidden_len_bytes": self.hidden_len_bytes,
            "flags": self.flags,
            "sector_size_bytes": self.sector_size_bytes,
        })
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.is_veracrypt { "VeraCrypt" } else { "TrueCrypt" };
        writeln!(f, "{name} volume, header version {}", self.version)?;
        writeln!(f, "Cipher:      {}", self.cipher)?;
        writeln!(f, "KDF:         {}", self.kdf)?;
        writeln!(
            f,
            "Data:        {} bytes from byte {}",
            self.volume_len_bytes, self.area_offset_bytes
        )
    }
}
