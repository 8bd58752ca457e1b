//! A LUKS1 header as facts and as text, without salts and digest.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::cipher::CipherSpec;
use crate::info::{AfInfo, KdfCost, KdfInfo};

use super::{Header, KEYSLOT_ACTIVE, KEYSLOT_INACTIVE, Keyslot};

/// Facts of a LUKS1 header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Info {
    /// UUID of the volume.
    pub uuid: String,
    /// Cipher of the data and the keyslots, as in a dm-crypt table.
    pub cipher: String,
    /// Whether the cipher looks up tables by key bytes; `None` for an unknown cipher.
    pub cipher_table_based: Option<bool>,
    /// Length of the volume key.
    pub key_size_bits: u32,
    /// Hash of the header.
    pub hash: String,
    /// First byte of the data.
    pub data_offset_bytes: u64,
    /// Sector size of the data.
    pub sector_size_bytes: u32,
    /// Keyslots in use, by number.
    pub keyslots: BTreeMap<u32, KeyslotInfo>,
    /// Digest of the volume key.
    pub digest: DigestInfo,
}

/// Facts of a keyslot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyslotInfo {
    /// Whether the keyslot has the state of a key; otherwise its state is unknown.
    pub active: bool,
    /// Its KDF.
    pub kdf: KdfInfo,
    /// Its anti-forensic splitter.
    pub af: AfInfo,
    /// Place of its key material.
    pub area: AreaInfo,
}

/// Place of a keyslot's key material.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AreaInfo {
    /// Its first byte.
    pub offset_bytes: u64,
    /// Its length.
    pub len_bytes: u64,
}

/// Facts of the digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DigestInfo {
    /// Hash of its PBKDF2.
    pub hash: String,
    /// Iterations of its PBKDF2.
    pub iterations: u32,
}

impl Header {
    /// The facts of the header.
    #[must_use]
    pub fn info(&self) -> Info {
        let hash = self.hash.name().to_owned();
        let in_use = (0..)
            .zip(&self.keyslots)
            .filter(|(_, keyslot)| keyslot.state != KEYSLOT_INACTIVE)
            .map(|(number, keyslot)| (number, self.keyslot_info(keyslot)));
        Info {
            uuid: self.uuid().to_owned(),
            cipher: self.cipher(),
            cipher_table_based: CipherSpec::text_is_table_based(&self.cipher()),
            key_size_bits: self.key_len_bytes * 8,
            hash: hash.clone(),
            data_offset_bytes: u64::from(self.payload_offset_sectors) * 512,
            sector_size_bytes: 512,
            keyslots: in_use.collect(),
            digest: DigestInfo { hash, iterations: self.digest_iterations },
        }
    }

    fn keyslot_info(&self, keyslot: &Keyslot) -> KeyslotInfo {
        let hash = self.hash.name().to_owned();
        let iterations = keyslot.iterations;
        KeyslotInfo {
            active: keyslot.state == KEYSLOT_ACTIVE,
            kdf: KdfInfo {
                kind: "pbkdf2".into(),
                cost: KdfCost::Pbkdf2 { hash: hash.clone(), iterations },
            },
            af: AfInfo { hash, stripes: keyslot.stripes },
            area: AreaInfo {
                offset_bytes: u64::from(keyslot.material_offset_sectors) * 512,
                len_bytes: self.material_len_sectors() * 512,
            },
        }
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "LUKS1 volume")?;
        writeln!(f, "UUID:        {}", self.uuid())?;
        write!(f, "Cipher:      {}", self.cipher())?;
        if CipherSpec::text_is_table_based(&self.cipher()) == Some(true) {
            write!(f, ", table-based: cache timing may tell of the key")?;
        }
        writeln!(f)?;
        writeln!(f, "Key size:    {} bits", self.key_len_bytes * 8)?;
        writeln!(f, "Hash:        {}", self.hash)?;
        writeln!(f, "Data offset: {} bytes", u64::from(self.payload_offset_sectors) * 512)?;
        writeln!(f, "Keyslots:")?;
        for (number, keyslot) in self.keyslots.iter().enumerate() {
            match keyslot.state {
                KEYSLOT_INACTIVE => {}
                KEYSLOT_ACTIVE => writeln!(
                    f,
                    "  {number}: pbkdf2-{}, {} iterations",
                    self.hash, keyslot.iterations
                )?,
                other => writeln!(f, "  {number}: damaged (state {other:#010x})")?,
            }
        }
        writeln!(f, "Digest:      pbkdf2-{}, {} iterations", self.hash, self.digest_iterations)
    }
}
