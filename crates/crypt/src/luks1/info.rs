//! A LUKS1 header as text and JSON, without salts and digest.

use std::fmt;

use serde_json::{Value, json};

use crate::cipher::CipherSpec;

use super::{Header, KEYSLOT_ACTIVE, KEYSLOT_INACTIVE};

impl Header {
    /// The header as JSON.
    #[must_use]
    pub fn info(&self) -> Value {
        let keyslots: serde_json::Map<String, Value> = self
            .keyslots
            .iter()
            .enumerate()
            .filter(|(_, keyslot)| keyslot.state != KEYSLOT_INACTIVE)
            .map(|(number, keyslot)| {
                let value = json!({
                    "active": keyslot.state == KEYSLOT_ACTIVE,
                    "kdf": {
                        "type": "pbkdf2",
                        "hash": self.hash.name(),
                        "iterations": keyslot.iterations,
                    },
                    "af": { "hash": self.hash.name(), "stripes": keyslot.stripes },
                    "area": {
                        "offset_bytes": u64::from(keyslot.material_offset_sectors) * 512,
                        "len_bytes": self.material_len_sectors() * 512,
                    },
                });
                (number.to_string(), value)
            })
            .collect();
        json!({
            "type": "luks1",
            "uuid": self.uuid,
            "cipher": self.cipher(),
            "cipher_table_based": CipherSpec::text_is_table_based(&self.cipher()),
            "key_size_bits": self.key_len_bytes * 8,
            "hash": self.hash.name(),
            "data_offset_bytes": u64::from(self.payload_offset_sectors) * 512,
            "sector_size_bytes": 512,
            "keyslots": keyslots,
            "digest": { "hash": self.hash.name(), "iterations": self.digest_iterations },
        })
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "LUKS1 volume")?;
        writeln!(f, "UUID:        {}", self.uuid)?;
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
