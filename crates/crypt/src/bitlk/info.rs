//! A BitLocker header as facts and as text.

use std::fmt;

use serde::Serialize;

use super::Header;

/// Facts of a BitLocker header.
// 14 fields: the JSON of `info` has them all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeaderInfo {
    /// Always `bitlk`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Whether it is a removable disk of BitLocker To Go.
    pub to_go: bool,
    /// GUID of the volume.
    pub uuid: String,
    /// The computer, drive and date of its making, as Windows wrote them.
    pub description: Option<String>,
    /// Seconds from 1970 to its making.
    pub created_unix_s: u64,
    /// Cipher in the form of a table line.
    pub cipher: String,
    /// Size of the volume key.
    pub key_bits: u32,
    /// Encryption sector size.
    pub sector_size_bytes: u32,
    /// Length of the volume.
    pub volume_len_bytes: u64,
    /// State of its encryption: `encrypted`, or the reason why it is not opened.
    pub state: String,
    /// The places of the metadata blocks.
    pub metadata_offsets_bytes: [u64; 3],
    /// The place of the volume's first bytes.
    pub header_offset_bytes: u64,
    /// Their number.
    pub header_len_bytes: u64,
    /// The protectors of the key.
    pub protectors: Vec<ProtectorInfo>,
}

/// Facts of a protector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProtectorInfo {
    /// Its GUID.
    pub uuid: String,
    /// The secret that opens it: `passphrase`, `recovery key`, `startup key`, `clear key`, `TPM`…
    pub kind: String,
    /// Its name.
    pub name: Option<String>,
    /// Whether Blockyard can open it.
    pub supported: bool,
}

impl Header {
    /// The facts of this header.
    #[must_use]
    pub fn info(&self) -> HeaderInfo {
        let protectors = self.metadata.protectors.iter().map(|one| ProtectorInfo {
            uuid: one.uuid.to_string(),
            kind: one.kind.name(),
            name: one.name.clone(),
            supported: one.kind.is_supported(),
        });
        HeaderInfo {
            kind: "bitlk",
            to_go: self.boot.is_to_go,
            uuid: self.metadata.uuid.to_string(),
            description: self.metadata.description.clone(),
            created_unix_s: self.metadata.created_s,
            cipher: self.cipher.text().to_owned(),
            key_bits: self.cipher.key_bits(),
            sector_size_bytes: self.boot.sector_size_bytes,
            volume_len_bytes: self.metadata.volume_len_bytes,
            state: self.state_name(),
            metadata_offsets_bytes: self.metadata.offsets_bytes,
            header_offset_bytes: self.metadata.volume_header.offset_bytes,
            header_len_bytes: self.metadata.volume_header.len_bytes,
            protectors: protectors.collect(),
        }
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = self.info();
        writeln!(f, "BitLocker{} volume", if info.to_go { " To Go" } else { "" })?;
        writeln!(f, "UUID:        {}", info.uuid)?;
        if let Some(text) = &info.description {
            writeln!(f, "Description: {text:?}")?;
        }
        writeln!(f, "Cipher:      {}, key of {} bits", info.cipher, info.key_bits)?;
        writeln!(f, "Sector size: {} bytes", info.sector_size_bytes)?;
        writeln!(f, "Length:      {} bytes", info.volume_len_bytes)?;
        writeln!(f, "State:       {}", info.state)?;
        let [one, two, three] = info.metadata_offsets_bytes;
        writeln!(f, "Metadata:    at bytes {one}, {two} and {three}")?;
        let len = info.header_len_bytes;
        let offset = info.header_offset_bytes;
        writeln!(f, "First bytes: {len} bytes, stored at byte {offset}")?;
        for one in &info.protectors {
            let name = one.name.as_ref().map(|name| format!(" {name:?}")).unwrap_or_default();
            let refused = if one.supported { "" } else { ", not supported" };
            writeln!(f, "Protector {}: {}{name}{refused}", one.uuid, one.kind)?;
        }
        Ok(())
    }
}
