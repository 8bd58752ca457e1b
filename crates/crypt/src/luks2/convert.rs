//! The LUKS1 header that opens the data of a LUKS2 volume, and new copies of a LUKS2 header.

use serde_json::Value;

use super::metadata::{KdfSpec, Keyslot};
use super::{
    BINARY_LEN_BYTES, Binary, Copy, HDR_LENS_BYTES, Header, LABEL_LEN_BYTES, Metadata, Priority,
    json_area,
};
use crate::error::Error;
use crate::hash::HashAlgorithm;
use crate::luks1;
use crate::uuid_field::UuidField;

/// Both copies of a new header with this metadata.
pub(crate) fn new_copies(document: &Value, uuid: &str) -> Result<[Vec<u8>; 2], Error> {
    let hdr_len_bytes = HDR_LENS_BYTES[0];
    let json_area = json_area(document, hdr_len_bytes)?;
    Metadata::parse(&json_area, hdr_len_bytes)
        .map_err(|error| Error::header(error.error.path, error.error.problem))?;
    let mut binary = Binary {
        hdr_len_bytes,
        seqid: 1,
        label: [0; LABEL_LEN_BYTES],
        checksum: HashAlgorithm::Sha256,
        salt: [0; 64],
        uuid: UuidField::of(uuid),
        subsystem: [0; LABEL_LEN_BYTES],
    };
    let mut copies = [Vec::new(), Vec::new()];
    for (copy, bytes) in [Copy::Primary, Copy::Secondary].into_iter().zip(&mut copies) {
        getrandom::fill(&mut binary.salt)?;
        *bytes = [&binary.to_bytes(copy, &json_area)[..], &json_area].concat();
        debug_assert_eq!(bytes.len() as u64, BINARY_LEN_BYTES + json_area.len() as u64);
    }
    Ok(copies)
}

impl Header {
    /// The header of LUKS1 for the same data, with the keyslots in their places.
    pub(crate) fn to_luks1(&self) -> Result<luks1::Header, Error> {
        let (segment, data, crypt) = self.data_segment()?;
        let (_, digest) = self.data_digest(segment)?;
        let body =
            digest.body.as_ref().map_err(|problem| Error::header("digest", problem.clone()))?;
        let hash = HashAlgorithm::parse(&body.hash)
            .map_err(|error| Error::unsupported("digest", error.to_string()))?;
        if crypt.sector_size_bytes != 512 {
            let problem = format!("sectors of {} bytes, only of 512", crypt.sector_size_bytes);
            return Err(only_luks2(&problem));
        }
        if crypt.iv_tweak != 0 {
            return Err(only_luks2("start of IVs other than sector 0"));
        }
        if data.len_bytes.is_some() {
            return Err(only_luks2(
                "fixed size; `blockyard resize VOLUME` without a size removes it",
            ));
        }
        self.check_fields_of_luks1()?;
        if !self.metadata.tokens.is_empty() {
            return Err(only_luks2("tokens; remove them first"));
        }
        if !self.metadata.config.flags.is_empty() {
            return Err(only_luks2("persistent flags; remove them first"));
        }
        let key_len_bytes = self.metadata.key_len_bytes(digest).ok_or_else(|| {
            Error::unsupported("keyslots", "there is none, which would tell the key's length")
        })?;
        let mut keyslots = Vec::new();
        for (number, keyslot) in &self.metadata.keyslots {
            if !digest.keyslots.contains(number) {
                return Err(only_luks2(&format!(
                    "unbound keyslots; remove keyslot {number} first"
                )));
            }
            let (iterations, salt) = of_luks1(keyslot, &crypt.encryption, hash, key_len_bytes)
                .map_err(|problem| Error::unsupported(format!("keyslot {number}"), problem))?;
            keyslots.push((*number, iterations, salt, keyslot.area.offset_bytes));
        }
        let short = |field: &str| Error::header("digest", format!("its {field} is too short"));
        let parts = luks1::Parts {
            cipher: crypt.encryption.clone(),
            hash,
            data_offset_bytes: data.offset_bytes,
            key_len_bytes,
            digest: *body.digest.first_chunk().ok_or_else(|| short("digest"))?,
            digest_salt: *body.salt.first_chunk().ok_or_else(|| short("salt"))?,
            digest_iterations: body.iterations,
            uuid: self.binary.uuid.text().to_owned(),
            keyslots,
        };
        luks1::Header::of_parts(&parts)
    }
}

impl Header {
    /// Refuses fields that the conversion would drop.
    fn check_fields_of_luks1(&self) -> Result<(), Error> {
        if [self.binary.label, self.binary.subsystem].iter().flatten().any(|byte| *byte != 0) {
            return Err(only_luks2(
                "label or subsystem; remove them with blockyard header label first",
            ));
        }
        for (number, keyslot) in &self.metadata.keyslots {
            if *number >= 8 {
                return Err(only_luks2(&format!(
                    "keyslot {number}, only 0 to 7; remove it, and add its passphrase again with a \
                     lower number, first"
                )));
            }
            if keyslot.priority != Priority::Normal {
                return Err(only_luks2(&format!(
                    "priorities; give keyslot {number} the priority normal first"
                )));
            }
        }
        Ok(())
    }
}

fn only_luks2(what: &str) -> Error {
    Error::unsupported("LUKS1", format!("it has no {what}"))
}

/// Iterations and salt of a keyslot as LUKS1 could have it.
fn of_luks1(
    keyslot: &Keyslot,
    encryption: &str,
    hash: HashAlgorithm,
    key_len_bytes: u32,
) -> Result<(u32, [u8; 32]), String> {
    let body = keyslot.body.as_ref().map_err(String::clone)?;
    let KdfSpec::Pbkdf2 { hash: kdf_hash, iterations } = &body.kdf else {
        return Err("LUKS1 has PBKDF2 only; convert the keyslot with --pbkdf pbkdf2 first".into());
    };
    if [kdf_hash, &body.af_hash].iter().any(|name| **name != hash.name()) {
        return Err(format!("LUKS1 has one hash, and the digest's is {hash}"));
    }
    if body.encryption != encryption || body.area_key_len_bytes != key_len_bytes {
        return Err(format!("the keyslots of LUKS1 have the cipher of the data, {encryption}"));
    }
    let salt = body.salt.first_chunk().ok_or("its salt is too short")?;
    Ok((*iterations, *salt))
}
