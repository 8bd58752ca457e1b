//! Plans of changed LUKS1 headers: the writes, in their order, of each operation on a key.
//!
//! A LUKS1 header has one copy of two sectors, and no checksum. A keyslot becomes valid with its
//! state, which lies in one sector; the fields of keyslot 6 lie in two, and its state is in the
//! first, which is written last. So each update of the header is one sector's write.
//!
//! A change stores the new passphrase in the first free keyslot, as cryptsetup does, and then
//! removes the old keyslot.

use std::ops::Range;

use super::{
    Header, KEYSLOT_ACTIVE, KEYSLOT_COUNT, KEYSLOT_INACTIVE, PADDED_LEN_BYTES, SALT_LEN_BYTES,
};
use crate::error::Error;
use crate::header_write::{Step, Write};
use crate::kdf::{Kdf, KdfLimits};
use crate::key_material::Area;
use crate::keys::{NewKeyslot, Plan, Usage, not_in_use, refused};
use crate::secret::SecretBytes;
use crate::uuid_field::UuidField;

/// A new keyslot without a number. Its key material is encrypted.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    iterations: u32,
    salt: [u8; SALT_LEN_BYTES],
    material: Vec<u8>,
    /// The digest of the volume key.
    digest: [u8; super::DIGEST_LEN_BYTES],
}

/// Derives, splits and encrypts.
pub(crate) fn prepare(
    header: &Header,
    key: &SecretBytes,
    passphrase: &SecretBytes,
    new: &NewKeyslot,
) -> Result<Prepared, Error> {
    if new.usage == Usage::Unbound {
        return Err(Error::field("unbound", "LUKS1 has no unbound keyslots; LUKS2 has"));
    }
    if new.area.is_some() {
        let problem = "the keyslots of LUKS1 have the cipher of the data";
        return Err(Error::field("keyslot_cipher", problem));
    }
    if new.priority.is_some() {
        return Err(Error::field("priority", "the keyslots of LUKS1 have no priorities"));
    }
    if !header.confirms(key)? {
        return Err(Error::WrongVolumeKey);
    }
    let cipher = header.cipher_spec()?;
    let kdf = new.pbkdf.choose(key.len())?;
    let Kdf::Pbkdf2 { hash, iterations } = kdf else {
        return Err(Error::field("pbkdf", "LUKS1 has PBKDF2 only"));
    };
    if hash != header.hash {
        let problem = format!("the keyslots of this LUKS1 volume have {}", header.hash);
        return Err(Error::field("hash", problem));
    }
    let mut salt = [0; SALT_LEN_BYTES];
    getrandom::fill(&mut salt)?;
    let mut area_key = SecretBytes::zeroed(key.len());
    kdf.derive(passphrase.as_slice(), &salt, area_key.as_mut_slice(), &KdfLimits::UNLIMITED)?;
    let area = Area {
        place: "the new keyslot",
        offset_bytes: 0,
        cipher,
        af_hash: hash,
        key_len_bytes: key.len(),
    };
    let Write::Bytes(_, material) = area.write(&area_key, key)? else {
        unreachable!("the material is bytes")
    };
    Ok(Prepared { iterations, salt, material, digest: header.digest })
}

impl Header {
    /// Whether `key` is the volume key, by its digest and its length.
    pub(crate) fn confirms(&self, key: &SecretBytes) -> Result<bool, Error> {
        if key.len() != self.key_len_bytes as usize {
            return Ok(false);
        }
        self.verifies(key, &KdfLimits::default())
            .map_err(|problem| Error::header("LUKS1 header, digest", problem))
    }

    /// The hash of the keyslots' KDF.
    pub(crate) fn hash(&self) -> crate::hash::HashAlgorithm {
        self.hash
    }

    /// The keyslots in use.
    pub(crate) fn data_keyslots(&self) -> Vec<u32> {
        let numbers = (0..).zip(&self.keyslots);
        numbers.filter(|(_, slot)| slot.state == KEYSLOT_ACTIVE).map(|(number, _)| number).collect()
    }

    /// Whether no other keyslot is in use.
    pub(crate) fn is_last(&self, number: u32) -> bool {
        self.data_keyslots().iter().all(|other| *other == number)
    }

    /// Whether the keyslot has the same fields in both headers.
    pub(crate) fn has_same_keyslot(&self, other: &Self, number: u32) -> bool {
        let of = |header: &Self| header.keyslots.get(number as usize).copied();
        of(self) == of(other)
    }

    /// UUID of the volume, up to the first byte that is not printable ASCII.
    #[must_use]
    pub fn uuid(&self) -> &str {
        self.uuid.text()
    }

    /// First byte of the data.
    pub(crate) fn data_offset_bytes(&self) -> u64 {
        u64::from(self.payload_offset_sectors) * 512
    }

    /// The areas of the keyslots that are not in use.
    pub(crate) fn free_areas(&self) -> Vec<Range<u64>> {
        let free = (0..).zip(&self.keyslots).filter(|(_, slot)| slot.state == KEYSLOT_INACTIVE);
        free.map(|(number, _)| self.area(number)).collect()
    }

    /// The areas of the keyslots in use.
    pub(crate) fn areas(&self) -> Vec<(u32, Range<u64>)> {
        let in_use = (0..).zip(&self.keyslots).filter(|(_, slot)| slot.state != KEYSLOT_INACTIVE);
        in_use.map(|(number, _)| (number, self.area(number))).collect()
    }

    pub(crate) fn has_same_digest(&self, other: &Self) -> bool {
        (self.digest, self.digest_salt) == (other.digest, other.digest_salt)
    }

    /// Whether all keyslots of both lie at the same places.
    pub(crate) fn has_layout_of(&self, other: &Self) -> bool {
        let places = |header: &Self| header.keyslots.map(|slot| slot.material_offset_sectors);
        places(self) == places(other) && self.key_len_bytes == other.key_len_bytes
    }

    /// Clears the space between the header and the first keyslot, as cryptsetup does: it may hold
    /// the signature of something else.
    pub(crate) fn clean_backup(&self, bytes: &mut [u8]) {
        let first = u64::from(self.keyslots[0].material_offset_sectors) * 512;
        if first == 4096 {
            bytes[PADDED_LEN_BYTES as usize..4096].fill(0);
        }
    }

    pub(crate) fn check_in_use(&self, number: u32) -> Result<(), Error> {
        let state = self.keyslots.get(number as usize).map(|keyslot| keyslot.state);
        match state {
            Some(KEYSLOT_INACTIVE) | None => Err(not_in_use(number)),
            Some(_) => Ok(()),
        }
    }

    pub(crate) fn free_number(&self, wanted: Option<u32>) -> Result<u32, Error> {
        let is_free = |number: u32| self.keyslots[number as usize].state == KEYSLOT_INACTIVE;
        match wanted {
            Some(number) if number as usize >= KEYSLOT_COUNT => {
                Err(refused(number, "LUKS1 has keyslots 0 to 7"))
            }
            Some(number) if !is_free(number) => Err(refused(number, "it is in use")),
            Some(number) => Ok(number),
            None => (0..KEYSLOT_COUNT as u32).find(|number| is_free(*number)).ok_or_else(|| {
                Error::Full("all 8 keyslots are in use; remove one first".to_owned())
            }),
        }
    }

    fn area(&self, number: u32) -> Range<u64> {
        let start = u64::from(self.keyslots[number as usize].material_offset_sectors) * 512;
        start..start + self.material_len_sectors() * 512
    }

    /// Stores the new keyslot in this header; the steps write its area and then the header.
    fn store(&mut self, number: u32, new: &Prepared) -> Vec<Step> {
        let keyslot = &mut self.keyslots[number as usize];
        keyslot.state = KEYSLOT_ACTIVE;
        keyslot.iterations = new.iterations;
        keyslot.salt = new.salt;
        let material = Write::Bytes(self.area(number).start, new.material.clone());
        let mut steps = vec![Step::new(format!("keyslot {number}"), vec![material])];
        steps.extend(self.steps());
        steps
    }

    /// Removes a keyslot from this header; the steps overwrite its area and write the header.
    fn clear(&mut self, number: u32) -> Vec<Step> {
        let wiped = Write::Random(self.area(number));
        let keyslot = &mut self.keyslots[number as usize];
        keyslot.state = KEYSLOT_INACTIVE;
        keyslot.iterations = 0;
        keyslot.salt = [0; SALT_LEN_BYTES];
        let mut steps = vec![Step::new(format!("keyslot {number}"), vec![wiped])];
        steps.extend(self.steps());
        steps
    }

    fn check_same_key(&self, new: &Prepared) -> Result<(), Error> {
        if self.digest == new.digest {
            return Ok(());
        }
        Err(Error::Changed("its volume key".to_owned()))
    }

    /// The plan of a new keyslot.
    pub(crate) fn plan_add(&self, new: &Prepared, wanted: Option<u32>) -> Result<Plan, Error> {
        self.check_same_key(new)?;
        let number = self.free_number(wanted)?;
        Ok(Plan { keyslot: number, steps: self.clone().store(number, new) })
    }

    /// The plan of another passphrase for a keyslot, in the first free one. `in_place`: without a
    /// free one the old area is overwritten; a power cut then loses the keyslot.
    pub(crate) fn plan_change(
        &self,
        number: u32,
        new: &Prepared,
        in_place: bool,
    ) -> Result<Plan, Error> {
        self.check_same_key(new)?;
        self.check_in_use(number)?;
        let mut header = self.clone();
        let keyslot = match self.free_number(None) {
            Err(_) if in_place => number,
            found => found?,
        };
        let mut steps = header.store(keyslot, new);
        if keyslot != number {
            steps.extend(header.clear(number));
        }
        Ok(Plan { keyslot, steps })
    }

    /// The plan of a keyslot's removal.
    pub(crate) fn plan_remove(&self, number: u32) -> Result<Plan, Error> {
        self.check_in_use(number)?;
        Ok(Plan { keyslot: number, steps: self.clone().clear(number) })
    }

    /// The plan of the removal of all keyslots.
    pub(crate) fn plan_erase(&self) -> Plan {
        let mut header = self.clone();
        let mut steps = Vec::new();
        for number in 0..KEYSLOT_COUNT as u32 {
            if self.keyslots[number as usize].state != KEYSLOT_INACTIVE {
                steps.extend(header.clear(number));
            }
        }
        Plan { keyslot: 0, steps }
    }

    /// The plan of another UUID, which the caller has checked.
    pub(crate) fn plan_uuid(&self, uuid: &str) -> Plan {
        let mut header = self.clone();
        header.uuid = UuidField::of(uuid);
        Plan { keyslot: 0, steps: header.steps().to_vec() }
    }
}
