//! Plans of changed LUKS2 headers: the writes, in their order, of each operation on a key or a
//! field.
//!
//! | operation | order |
//! |---|---|
//! | add | area, header |
//! | change | area of the new keyslot, header with both, old area overwritten, header with one |
//! | remove | area overwritten, header |
//! | tokens, other fields | header |
//!
//! A damaged or outdated copy is repaired before all of these steps. Otherwise a power cut during
//! the write of the good copy would leave none, or an outdated one that names overwritten areas.
//!
//! A header means both copies, one after the other (`header_steps`), with a sequence id of its
//! own. So a change leaves both passphrases for a moment, as in cryptsetup, and the keyslot has its
//! old number at the end.

use std::ops::Range;

use serde_json::{Map, Value, json};

use super::metadata::{Area, Keyslot, Priority};
use super::new_keyslot::{AreaCipher, digest_json, keyslot_json};
use super::{
    Binary, Header, LABEL_LEN_BYTES, Metadata, Token, header_steps, json_area, keyslot, sealed_last,
};
use crate::error::{Error, Requirement};
use crate::format::{Pbkdf, label_field};
use crate::header_write::{Step, Write};
use crate::kdf::KdfLimits;
use crate::keys::{NewKeyslot, Plan, Usage};
use crate::secret::SecretBytes;
use crate::source::HeaderSource;
use crate::uuid_field::UuidField;

/// Keyslots of a LUKS2 header; cryptsetup's limit.
const KEYSLOTS_MAX: u32 = 32;
/// Tokens of a LUKS2 header; cryptsetup's limit.
const TOKENS_MAX: u32 = 32;

/// A new keyslot without a number and a place. Its key material is encrypted.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    keyslot: Value,
    material: Vec<u8>,
    digest: DigestOf,
}

#[derive(Clone, Debug)]
enum DigestOf {
    /// The digest of the data's key, with this salt and these bytes.
    Data { salt: Value, digest: Value },
    /// A digest of its own, without a segment.
    Own(Value),
}

/// Derives, splits and encrypts. The header is only read.
pub(crate) fn prepare(
    header: &Header,
    key: &SecretBytes,
    passphrase: &SecretBytes,
    new: &NewKeyslot,
) -> Result<Prepared, Error> {
    let (segment, ..) = header.data_segment()?;
    let area = match &new.area {
        Some(area) => area.clone(),
        None => header.area_cipher(key, new.usage)?,
    };
    area.check()?;
    let digest = match new.usage {
        Usage::Data if !header.confirms(key)? => return Err(Error::WrongVolumeKey),
        Usage::Data => {
            let (number, _) = header.data_digest(segment)?;
            let digest = &header.metadata.document["digests"][number.to_string()];
            DigestOf::Data { salt: digest["salt"].clone(), digest: digest["digest"].clone() }
        }
        Usage::Unbound => {
            DigestOf::Own(digest_json(key, new.hash, new.digest_iterations(), &[], &[])?)
        }
    };
    let kdf = new.pbkdf.choose(area.key_len_bytes())?;
    let mut keyslot = keyslot_json(key.len(), &area, 0, new.hash, &kdf)?;
    if let Some(priority) = new.priority.filter(|priority| *priority != Priority::Normal) {
        keyslot["priority"] = json!(priority as u32);
    }
    let parsed =
        Keyslot::of_json(&keyslot).map_err(|error| Error::header(error.path, error.problem))?;
    let Write::Bytes(_, material) = keyslot::material(0, &parsed, passphrase, key)? else {
        unreachable!("the material is bytes")
    };
    Ok(Prepared { keyslot, material, digest })
}

/// A header that is being changed, and the writes so far.
struct Draft {
    binary: Binary,
    document: Value,
    steps: Vec<Step>,
}

impl Draft {
    /// The header as it is. A bad copy of it is repaired first.
    fn of(header: &Header) -> Result<Self, Error> {
        let document = header.metadata.document.clone();
        let steps = header.steps_of_repair()?;
        Ok(Self { binary: header.binary.clone(), document, steps })
    }

    /// Adds the writes of both copies of the header as it is now.
    fn commit(&mut self) -> Result<(), Error> {
        let problem = "the sequence id has reached its end";
        let seqid = self.binary.seqid.checked_add(1);
        self.binary.seqid = seqid.ok_or_else(|| Error::header("LUKS2 header", problem))?;
        let json_area = json_area(&self.document, self.binary.hdr_len_bytes)?;
        // No header is written that this program would refuse to read.
        Metadata::parse(&json_area, self.binary.hdr_len_bytes)
            .map_err(|error| Error::header(error.error.path, error.error.problem))?;
        self.steps.extend(header_steps(&self.binary, &json_area)?);
        Ok(())
    }

    fn section(&mut self, name: &str) -> &mut Map<String, Value> {
        self.document[name].as_object_mut().expect("checked: it is an object")
    }

    /// Overwrites an area, before a header says that it is free.
    fn wipe(&mut self, number: u32, area: &Area) {
        let wiped = vec![Write::Random(area.range())];
        self.steps.push(Step::new(format!("keyslot {number}"), wiped));
    }

    fn write_material(&mut self, number: u32, offset_bytes: u64, prepared: &Prepared) {
        let material = Write::Bytes(offset_bytes, prepared.material.clone());
        self.steps.push(Step::new(format!("keyslot {number}"), vec![material]));
    }

    /// Puts a keyslot into the document, with its digest.
    fn insert(&mut self, number: u32, offset_bytes: u64, new: &Prepared) -> Result<(), Error> {
        let name = number.to_string();
        let mut keyslot = new.keyslot.clone();
        keyslot["area"]["offset"] = json!(offset_bytes.to_string());
        self.section("keyslots").insert(name.clone(), keyslot);
        match &new.digest {
            DigestOf::Data { salt, digest } => {
                let same =
                    |found: &&mut Value| found["salt"] == *salt && found["digest"] == *digest;
                let found = self.section("digests").values_mut().find(same);
                let found = found.ok_or_else(|| Error::Changed("its volume key".to_owned()))?;
                let keyslots = found["keyslots"].as_array_mut().expect("checked: an array");
                if !keyslots.contains(&json!(name)) {
                    keyslots.push(json!(name));
                }
            }
            DigestOf::Own(digest) => {
                let digests = self.section("digests");
                let free = (0..).map(|number: u32| number.to_string());
                let free = free.into_iter().find(|number| !digests.contains_key(number));
                let mut digest = digest.clone();
                digest["keyslots"] = json!([name]);
                digests.insert(free.expect("endless"), digest);
            }
        }
        Ok(())
    }

    /// Takes a keyslot out of the document, out of its digest and its tokens. A digest without
    /// keyslots and segments is removed too, as in cryptsetup.
    fn remove(&mut self, number: u32) {
        let name = json!(number.to_string());
        self.section("keyslots").shift_remove(&number.to_string());
        for section in ["digests", "tokens"] {
            for entry in self.section(section).values_mut() {
                if let Some(keyslots) = entry.get_mut("keyslots").and_then(Value::as_array_mut) {
                    keyslots.retain(|keyslot| *keyslot != name);
                }
            }
        }
        let is_empty = |list: &Value| list.as_array().is_some_and(Vec::is_empty);
        self.section("digests")
            .retain(|_, digest| !is_empty(&digest["keyslots"]) || !is_empty(&digest["segments"]));
    }

    fn plan(self, keyslot: u32) -> Plan {
        Plan { keyslot, steps: self.steps }
    }
}

impl Header {
    /// Whether `key` is the key of the data, by its digest and its length.
    pub(crate) fn confirms(&self, key: &SecretBytes) -> Result<bool, Error> {
        let (segment, _, crypt) = self.data_segment()?;
        let (number, digest) = self.data_digest(segment)?;
        let place = format!("digests.{number}");
        let body =
            digest.body.as_ref().map_err(|problem| Error::header(&*place, problem.clone()))?;
        let fits = || {
            let area = AreaCipher { cipher: crypt.encryption.clone(), key_size_bits: 0 };
            let bits = u32::try_from(key.len() * 8).unwrap_or(u32::MAX);
            AreaCipher { key_size_bits: bits, ..area }.check().is_ok()
        };
        // Without a keyslot only the cipher tells the length.
        let len = match self.metadata.key_len_bytes(digest) {
            Some(len) => len as usize,
            None if fits() => key.len(),
            None => return Ok(false),
        };
        if len != key.len() {
            return Ok(false);
        }
        let len = u32::try_from(len).expect("at most 1024");
        body.verifies(key, len, &KdfLimits::default())
            .map_err(|problem| Error::header(place, problem))
    }

    /// The cipher of a new keyslot's area as in cryptsetup: that of the data with a key of the same
    /// length. The length of an unbound key does not matter.
    fn area_cipher(&self, key: &SecretBytes, usage: Usage) -> Result<AreaCipher, Error> {
        let (segment, _, crypt) = self.data_segment()?;
        let (_, digest) = self.data_digest(segment)?;
        let len_bytes = match (self.metadata.key_len_bytes(digest), usage) {
            (Some(len_bytes), _) => len_bytes,
            (None, Usage::Data) => u32::try_from(key.len()).expect("at most 1024 bytes"),
            (None, Usage::Unbound) => return Ok(AreaCipher::standard()),
        };
        Ok(AreaCipher::for_data(&crypt.encryption, len_bytes * 8))
    }

    /// The digest of the data's key.
    pub(super) fn data_digest(&self, segment: u32) -> Result<(u32, &super::Digest), Error> {
        let mut digests = self.metadata.digests.iter();
        let found = digests.find(|(_, digest)| digest.segments.contains(&segment));
        let (number, digest) = found.expect("checked: every segment has a digest");
        Ok((*number, digest))
    }

    /// The digests of keys of the data. A reencryption has one for the old key and one for the new.
    fn data_digests(&self) -> impl Iterator<Item = (&u32, &super::Digest)> {
        self.metadata.digests.iter().filter(|(_, digest)| !digest.segments.is_empty())
    }

    /// The keyslots with a key of the data, also those that this program does not support.
    pub(crate) fn data_keyslots(&self) -> Vec<u32> {
        let mut numbers: Vec<u32> =
            self.data_digests().flat_map(|(_, digest)| digest.keyslots.iter().copied()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// Whether a key of the data is in no other keyslot, or in none that this program supports
    /// although it supports this one.
    pub(crate) fn is_last(&self, number: u32) -> bool {
        let keyslots = &self.metadata.keyslots;
        let is_supported =
            |number: &u32| keyslots.get(number).is_some_and(|it| keyslot::problem(it).is_none());
        self.data_digests().filter(|(_, digest)| digest.keyslots.contains(&number)).any(
            |(_, digest)| {
                let others = digest.keyslots.iter().filter(|other| **other != number);
                let mut others = others.filter(|other| keyslots.contains_key(*other)).peekable();
                others.peek().is_none() || is_supported(&number) && !others.any(is_supported)
            },
        )
    }

    /// Whether the keyslot has the same record in both headers.
    pub(crate) fn has_same_keyslot(&self, other: &Self, number: u32) -> bool {
        let of = |header: &Self| header.metadata.document["keyslots"][number.to_string()].clone();
        of(self) == of(other)
    }

    /// First byte of the data.
    pub(crate) fn data_offset_bytes(&self) -> u64 {
        let segments = self.metadata.segments.values();
        segments.map(|segment| segment.offset_bytes).min().expect("checked: there is a segment")
    }

    /// Length of one copy.
    pub(crate) fn copy_len_bytes(&self) -> u64 {
        self.binary.hdr_len_bytes
    }

    /// End of both copies and of the keyslots area.
    pub(crate) fn end_bytes(&self) -> u64 {
        self.metadata.end_bytes()
    }

    /// The areas of all keyslots.
    pub(crate) fn areas(&self) -> Vec<(u32, Range<u64>)> {
        let keyslots = self.metadata.keyslots.iter();
        keyslots.map(|(number, slot)| (*number, slot.area.range())).collect()
    }

    /// Whether the digests of the data's keys are equal, also those of volumes that this program
    /// cannot open.
    pub(crate) fn has_same_digest(&self, other: &Self) -> bool {
        let of = |header: &Self| -> Vec<Value> {
            let digests = &header.metadata.document["digests"];
            let of_number = |number: &u32| {
                let digest = &digests[number.to_string()];
                json!([digest["salt"], digest["digest"]])
            };
            header.data_digests().map(|(number, _)| of_number(number)).collect()
        };
        of(self) == of(other)
    }

    /// Checks that a backup of this header may be restored: cryptsetup refuses requirements other
    /// than that of an online reencryption.
    pub(crate) fn check_restorable(&self) -> Result<(), Error> {
        match self.metadata.config.unmet_requirement() {
            Some(Requirement::Reencryption(name)) if name.starts_with("online") => Ok(()),
            Some(requirement) => Err(Error::Requirement(requirement)),
            None => Ok(()),
        }
    }

    /// Whether copies and keyslots area of both lie at the same places.
    pub(crate) fn has_layout_of(&self, other: &Self) -> bool {
        let of = |header: &Self| (header.binary.hdr_len_bytes, header.metadata.end_bytes());
        of(self) == of(other)
    }

    /// The steps that write both copies of this header as they are in a backup.
    pub(crate) fn verbatim_steps(&self, backup: &[u8]) -> Vec<Step> {
        let len = usize::try_from(self.binary.hdr_len_bytes).expect("at most 4 MiB");
        let copies = [("primary", 0), ("secondary", len)];
        copies
            .into_iter()
            .flat_map(|(name, at)| sealed_last(name, at as u64, &backup[at..at + len]))
            .collect()
    }

    /// The steps that move the areas of these keyslots to space that is free in `other` too.
    pub(crate) fn steps_of_moves(
        &self,
        source: &dyn HeaderSource,
        numbers: &[u32],
        other: &Self,
    ) -> Result<Vec<Step>, Error> {
        let mut draft = Draft::of(self)?;
        let mut taken: Vec<_> = self.areas().into_iter().chain(other.areas()).collect();
        let mut copies = Vec::new();
        for number in numbers {
            let area = self.keyslot(*number)?.area.range();
            let offset_bytes = self.free_place(area.end - area.start, &taken)?;
            let mut bytes = vec![0; usize::try_from(area.end - area.start).expect("in memory")];
            source.read_at(area.start, &mut bytes).map_err(|error| Error::Read {
                what: format!("the key material of keyslot {number}"),
                error,
            })?;
            taken.push((*number, offset_bytes..offset_bytes + (area.end - area.start)));
            copies.push(Write::Bytes(offset_bytes, bytes));
            let keyslot = &mut draft.section("keyslots")[&number.to_string()];
            keyslot["area"]["offset"] = json!(offset_bytes.to_string());
        }
        if !numbers.is_empty() {
            draft.steps.push(Step::new("moved keyslots", copies));
            draft.commit()?;
        }
        Ok(draft.steps)
    }

    fn check_requirements(&self) -> Result<(), Error> {
        self.metadata.config.unmet_requirement().map_or(Ok(()), |it| Err(Error::Requirement(it)))
    }

    pub(crate) fn keyslot(&self, number: u32) -> Result<&Keyslot, Error> {
        let found = self.metadata.keyslots.get(&number);
        found.ok_or_else(|| crate::keys::not_in_use(number))
    }

    fn is_free(&self, number: u32) -> bool {
        !self.metadata.keyslots.contains_key(&number)
    }

    /// The given number if it is free, or the first free one.
    pub(crate) fn free_number(&self, wanted: Option<u32>) -> Result<u32, Error> {
        match wanted {
            Some(number) if number >= KEYSLOTS_MAX => {
                let problem = format!("LUKS2 has keyslots 0 to {}", KEYSLOTS_MAX - 1);
                Err(crate::keys::refused(number, &problem))
            }
            Some(number) if !self.is_free(number) => {
                Err(crate::keys::refused(number, "it is in use"))
            }
            Some(number) => Ok(number),
            None => (0..KEYSLOTS_MAX).find(|number| self.is_free(*number)).ok_or_else(|| {
                Error::Full(format!("all {KEYSLOTS_MAX} keyslots are in use; remove one first"))
            }),
        }
    }

    /// The first place of `len_bytes` in the keyslots area that is in none of these areas.
    fn free_place(&self, len_bytes: u64, taken: &[(u32, Range<u64>)]) -> Result<u64, Error> {
        let mut offset_bytes = 2 * self.binary.hdr_len_bytes;
        let end = self.metadata.end_bytes();
        let mut areas: Vec<_> = taken.iter().map(|(_, area)| area).collect();
        areas.sort_unstable_by_key(|area| area.start);
        for area in areas {
            if area.start >= offset_bytes + len_bytes {
                break;
            }
            offset_bytes = offset_bytes.max(area.end.next_multiple_of(4096));
        }
        if offset_bytes + len_bytes > end {
            return Err(Error::Full(format!(
                "the keyslots area has no free space of {len_bytes} bytes; remove a keyslot first"
            )));
        }
        Ok(offset_bytes)
    }

    /// The plan of a new keyslot.
    pub(crate) fn plan_add(&self, new: &Prepared, wanted: Option<u32>) -> Result<Plan, Error> {
        self.check_requirements()?;
        let number = self.free_number(wanted)?;
        let offset_bytes = self.free_place(new.area_len_bytes(), &self.areas())?;
        let mut draft = Draft::of(self)?;
        draft.write_material(number, offset_bytes, new);
        draft.insert(number, offset_bytes, new)?;
        draft.commit()?;
        Ok(draft.plan(number))
    }

    /// The plan of another passphrase for a keyslot, which keeps its number and its priority.
    /// `in_place`: without free space the old area is overwritten, and a power cut then loses the
    /// keyslot; without a free number the old area is overwritten after the header calls it free.
    pub(crate) fn plan_change(
        &self,
        number: u32,
        new: &Prepared,
        in_place: bool,
    ) -> Result<Plan, Error> {
        self.check_requirements()?;
        let old = self.keyslot(number)?;
        let mut new = new.clone();
        let record = &self.metadata.document["keyslots"][number.to_string()];
        if let (None, Some(priority)) = (new.keyslot.get("priority"), record.get("priority")) {
            new.keyslot["priority"] = priority.clone();
        }
        let mut draft = Draft::of(self)?;
        let offset_bytes = match self.free_place(new.area_len_bytes(), &self.areas()) {
            Ok(offset_bytes) => offset_bytes,
            Err(_) if in_place && new.area_len_bytes() <= old.area.len_bytes => {
                draft.write_material(number, old.area.offset_bytes, &new);
                draft.insert(number, old.area.offset_bytes, &new)?;
                draft.commit()?;
                return Ok(draft.plan(number));
            }
            Err(error) => return Err(error),
        };
        draft.write_material(number, offset_bytes, &new);
        match self.free_number(None) {
            Ok(other) => {
                draft.insert(other, offset_bytes, &new)?;
                draft.commit()?;
                draft.wipe(number, &old.area);
                draft.insert(number, offset_bytes, &new)?;
                draft.remove(other);
                draft.commit()?;
            }
            // After a power cut the old area may be free and not yet overwritten.
            Err(_) if in_place => {
                draft.insert(number, offset_bytes, &new)?;
                draft.commit()?;
                draft.wipe(number, &old.area);
            }
            Err(error) => return Err(error),
        }
        Ok(draft.plan(number))
    }

    /// The plan of a keyslot's removal.
    pub(crate) fn plan_remove(&self, number: u32) -> Result<Plan, Error> {
        let keyslot = self.keyslot(number)?;
        if keyslot.kind == "reencrypt" {
            let problem =
                "it belongs to a reencryption of the volume, which must be finished first";
            return Err(Error::unsupported(format!("keyslot {number}"), problem));
        }
        let mut draft = Draft::of(self)?;
        draft.wipe(number, &keyslot.area);
        draft.remove(number);
        draft.commit()?;
        Ok(draft.plan(number))
    }

    /// The plan of the removal of all keyslots.
    pub(crate) fn plan_erase(&self) -> Result<Plan, Error> {
        let mut draft = Draft::of(self)?;
        for (number, keyslot) in &self.metadata.keyslots {
            draft.wipe(*number, &keyslot.area);
        }
        for number in self.metadata.keyslots.keys() {
            draft.remove(*number);
        }
        draft.commit()?;
        Ok(draft.plan(0))
    }

    /// The plan of a new or replaced token, and its number.
    pub(crate) fn plan_token(
        &self,
        token: &Token,
        wanted: Option<u32>,
        keyslot: Option<u32>,
        replace: bool,
    ) -> Result<(u32, Plan), Error> {
        self.check_requirements()?;
        let number = self.token_number(wanted, replace)?;
        let mut document = token.document().clone();
        if let Some(keyslot) = keyslot {
            self.keyslot(keyslot)?;
            let name = json!(keyslot.to_string());
            let keyslots = document["keyslots"].as_array_mut().expect("checked: an array");
            if !keyslots.contains(&name) {
                keyslots.push(name);
            }
        }
        let mut draft = Draft::of(self)?;
        draft.section("tokens").insert(number.to_string(), document);
        draft.commit()?;
        Ok((number, draft.plan(0)))
    }

    /// The given number if it is free or its token is to be replaced, or the first free one.
    fn token_number(&self, wanted: Option<u32>, replace: bool) -> Result<u32, Error> {
        let is_free = |number: &u32| !self.metadata.tokens.contains_key(number);
        match wanted {
            Some(number) if number >= TOKENS_MAX => {
                Err(Error::field("token", format!("LUKS2 has tokens 0 to {}", TOKENS_MAX - 1)))
            }
            Some(number) if !replace && !is_free(&number) => {
                Err(Error::field("token", "it is in use; `token_replace` replaces it"))
            }
            Some(number) => Ok(number),
            None => (0..TOKENS_MAX).find(is_free).ok_or_else(|| {
                Error::Full(format!("all {TOKENS_MAX} tokens are in use; remove one first"))
            }),
        }
    }

    /// The plan of a token's removal.
    pub(crate) fn plan_remove_token(&self, number: u32) -> Result<Plan, Error> {
        self.check_requirements()?;
        let mut draft = Draft::of(self)?;
        if draft.section("tokens").shift_remove(&number.to_string()).is_none() {
            return Err(Error::field("token", format!("there is no token {number}")));
        }
        draft.commit()?;
        Ok(draft.plan(0))
    }

    /// The plan of another priority.
    pub(crate) fn plan_priority(&self, number: u32, priority: Priority) -> Result<Plan, Error> {
        self.check_requirements()?;
        self.keyslot(number)?;
        let mut draft = Draft::of(self)?;
        let keyslots = draft.section("keyslots");
        let keyslot = keyslots[&number.to_string()].as_object_mut().expect("checked: an object");
        match priority {
            Priority::Normal => {
                keyslot.shift_remove("priority");
            }
            other => {
                keyslot.insert("priority".to_owned(), json!(other as u32));
            }
        }
        draft.commit()?;
        Ok(draft.plan(number))
    }

    /// The plan of another label and subsystem; `None` leaves one as it is.
    pub(crate) fn plan_labels(
        &self,
        label: Option<&str>,
        subsystem: Option<&str>,
    ) -> Result<Plan, Error> {
        self.check_requirements()?;
        let mut draft = Draft::of(self)?;
        let field = |option, text: Option<&str>, old: [u8; LABEL_LEN_BYTES]| {
            text.map_or(Ok(old), |text| label_field(option, text))
        };
        draft.binary.label = field("label", label, draft.binary.label)?;
        draft.binary.subsystem = field("subsystem", subsystem, draft.binary.subsystem)?;
        draft.commit()?;
        Ok(draft.plan(0))
    }

    /// The plan of another UUID, which the caller has checked.
    pub(crate) fn plan_uuid(&self, uuid: &str) -> Result<Plan, Error> {
        self.check_requirements()?;
        let mut draft = Draft::of(self)?;
        draft.binary.uuid = UuidField::of(uuid);
        draft.commit()?;
        Ok(draft.plan(0))
    }

    /// The plan of another length of the data; `None`: to the end of the device.
    pub(crate) fn plan_data_len(&self, len_bytes: Option<u64>) -> Result<Plan, Error> {
        let (number, _, crypt) = self.data_segment()?;
        let sector = u64::from(crypt.sector_size_bytes);
        if let Some(len) = len_bytes.filter(|len| *len == 0 || !len.is_multiple_of(sector)) {
            let problem =
                format!("{len} bytes are no positive multiple of the sector size {sector}");
            return Err(Error::field("device_size", problem));
        }
        let mut draft = Draft::of(self)?;
        draft.section("segments")[&number.to_string()]["size"] = match len_bytes {
            Some(len) => json!(len.to_string()),
            None => json!("dynamic"),
        };
        draft.commit()?;
        Ok(draft.plan(0))
    }

    /// The plan of other persistent flags, in their written form.
    pub(crate) fn plan_flags(&self, flags: &[&str]) -> Result<Plan, Error> {
        self.check_requirements()?;
        let mut draft = Draft::of(self)?;
        let config = draft.section("config");
        if flags.is_empty() {
            config.shift_remove("flags");
        } else {
            config.insert("flags".to_owned(), json!(flags));
        }
        draft.commit()?;
        Ok(draft.plan(0))
    }
}

impl Prepared {
    fn area_len_bytes(&self) -> u64 {
        let size = self.keyslot["area"]["size"].as_str().and_then(|size| size.parse().ok());
        size.expect("made by keyslot_json")
    }
}

impl NewKeyslot {
    /// A fixed cost of the keyslot means that nothing is measured.
    fn digest_iterations(&self) -> Option<u32> {
        matches!(self.pbkdf, Pbkdf::Fixed(_)).then_some(crate::kdf::cost::ITERATIONS_MIN)
    }
}
