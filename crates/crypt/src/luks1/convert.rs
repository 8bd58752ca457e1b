//! A LUKS1 header in the form of LUKS2, and back.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::{
    DIGEST_LEN_BYTES, Header, KEYSLOT_ACTIVE, KEYSLOT_COUNT, KEYSLOT_INACTIVE, Keyslot,
    SALT_LEN_BYTES,
};
use crate::af;
use crate::error::Error;
use crate::hash::HashAlgorithm;
use crate::uuid_field::UuidField;

/// Keyslots whose place is in the first sector of the header, so that one write changes it.
const KEYSLOTS_OF_FIRST_SECTOR: u32 = 6;
/// First byte of a keyslot; cryptsetup's alignment.
const AREAS_START_BYTES: u64 = 4096;

/// The fields of the LUKS1 header that a conversion makes of a LUKS2 header.
pub(crate) struct Parts {
    pub(crate) cipher: String,
    pub(crate) hash: HashAlgorithm,
    pub(crate) data_offset_bytes: u64,
    pub(crate) key_len_bytes: u32,
    pub(crate) digest: [u8; DIGEST_LEN_BYTES],
    pub(crate) digest_salt: [u8; SALT_LEN_BYTES],
    pub(crate) digest_iterations: u32,
    pub(crate) uuid: String,
    /// Number, iterations, salt and first byte of each keyslot.
    pub(crate) keyslots: Vec<(u32, u32, [u8; SALT_LEN_BYTES], u64)>,
}

impl Header {
    /// Gives keyslot `number` the area of a free one that starts at `from_bytes` or later, and
    /// returns the area's first byte. One sector holds the places of both.
    pub(crate) fn swap_with_free(&mut self, number: u32, from_bytes: u64) -> Result<u64, Error> {
        let is_free = |other: &u32| {
            let keyslot = &self.keyslots[*other as usize];
            let start = u64::from(keyslot.material_offset_sectors) * 512;
            keyslot.state == KEYSLOT_INACTIVE && start >= from_bytes
        };
        let free = (0..KEYSLOTS_OF_FIRST_SECTOR).find(is_free);
        let free = free.filter(|_| number < KEYSLOTS_OF_FIRST_SECTOR).ok_or_else(|| {
            Error::Full(format!(
                "keyslot {number} lies where LUKS2 keeps its header, and none of keyslots 1 to 5 \
                 is free; remove one of them first"
            ))
        })?;
        let one = number as usize;
        let other = free as usize;
        let place = self.keyslots[other].material_offset_sectors;
        self.keyslots[other].material_offset_sectors = self.keyslots[one].material_offset_sectors;
        self.keyslots[one].material_offset_sectors = place;
        Ok(u64::from(place) * 512)
    }

    /// The metadata of LUKS2 with all keyslots in their places, the areas ending at `end_bytes`.
    pub(crate) fn luks2_document(&self, end_bytes: u64) -> Result<Value, Error> {
        self.cipher_spec()?;
        let hash = self.hash.name();
        let key_len_bytes = self.key_len_bytes;
        let area_len = af::material_len_bytes(key_len_bytes as usize) as u64;
        let mut keyslots = Map::new();
        for (number, area) in self.areas() {
            let slot = &self.keyslots[number as usize];
            let record = json!({
                "type": "luks2",
                "key_size": key_len_bytes,
                "af": { "type": "luks1", "stripes": af::STRIPES, "hash": hash },
                "area": {
                    "type": "raw",
                    "offset": area.start.to_string(),
                    "size": area_len.next_multiple_of(4096).to_string(),
                    "encryption": self.cipher(),
                    "key_size": key_len_bytes,
                },
                "kdf": {
                    "type": "pbkdf2", "hash": hash, "iterations": slot.iterations,
                    "salt": STANDARD.encode(slot.salt),
                },
            });
            keyslots.insert(number.to_string(), record);
        }
        let keyslots_len = end_bytes.saturating_sub(0x8000) / 4096 * 4096;
        let names: Vec<_> = keyslots.keys().cloned().collect();
        Ok(json!({
            "keyslots": keyslots,
            "tokens": {},
            "segments": { "0": {
                "type": "crypt",
                "offset": self.data_offset_bytes().to_string(),
                "size": "dynamic",
                "iv_tweak": "0",
                "encryption": self.cipher(),
                "sector_size": 512,
            } },
            "digests": { "0": {
                "type": "pbkdf2",
                "keyslots": names,
                "segments": ["0"],
                "hash": hash,
                "iterations": self.digest_iterations,
                "salt": STANDARD.encode(self.digest_salt),
                "digest": STANDARD.encode(self.digest),
            } },
            "config": {
                "json_size": "12288",
                "keyslots_size": keyslots_len.min(128 << 20).to_string(),
            },
        }))
    }

    /// A header with these keyslots, and free ones in the space that is left.
    pub(crate) fn of_parts(parts: &Parts) -> Result<Self, Error> {
        let wrong = |problem: &str| Error::unsupported("LUKS1", problem.to_owned());
        let (name, mode) = parts
            .cipher
            .split_once('-')
            .filter(|(name, mode)| name.len() < 32 && mode.len() < 32)
            .ok_or_else(|| wrong("the cipher does not fit into its header"))?;
        let material_len = af::material_len_bytes(parts.key_len_bytes as usize) as u64;
        let mut header = Self {
            cipher_name: name.to_owned(),
            cipher_mode: mode.to_owned(),
            hash: parts.hash,
            payload_offset_sectors: u32::try_from(parts.data_offset_bytes / 512)
                .map_err(|_| wrong("the data starts too far from the start"))?,
            key_len_bytes: parts.key_len_bytes,
            digest: parts.digest,
            digest_salt: parts.digest_salt,
            digest_iterations: parts.digest_iterations,
            uuid: UuidField::of(&parts.uuid),
            keyslots: [Keyslot {
                state: KEYSLOT_INACTIVE,
                iterations: 0,
                salt: [0; SALT_LEN_BYTES],
                material_offset_sectors: 0,
                stripes: af::STRIPES,
            }; KEYSLOT_COUNT],
        };
        let mut taken: Vec<_> = parts.keyslots.iter().map(|(_, _, _, start)| *start).collect();
        taken.sort_unstable();
        for (number, iterations, salt, start) in &parts.keyslots {
            let keyslot = header
                .keyslots
                .get_mut(*number as usize)
                .ok_or_else(|| wrong("its keyslots are 0 to 7"))?;
            keyslot.state = KEYSLOT_ACTIVE;
            (keyslot.iterations, keyslot.salt) = (*iterations, *salt);
            keyslot.material_offset_sectors =
                u32::try_from(start / 512).map_err(|_| wrong("a keyslot lies too far away"))?;
        }
        let mut at_bytes = AREAS_START_BYTES;
        for keyslot in header.keyslots.iter_mut().filter(|slot| slot.state == KEYSLOT_INACTIVE) {
            while let Some(start) = taken.iter().find(|start| {
                **start < at_bytes + material_len && at_bytes < **start + material_len
            }) {
                at_bytes = (start + material_len).next_multiple_of(4096);
            }
            keyslot.material_offset_sectors =
                u32::try_from(at_bytes / 512).map_err(|_| wrong("a keyslot lies too far away"))?;
            at_bytes = (at_bytes + material_len).next_multiple_of(4096);
        }
        header.check()?;
        Ok(header)
    }
}
