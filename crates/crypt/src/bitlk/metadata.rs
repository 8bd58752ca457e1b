//! A metadata block: state and cipher of the volume, protectors, the encrypted volume key, and the
//! checksums behind it. Numbers are little-endian.
//!
//! ```text
//!   block header 64 | metadata header 48 | entries | padding to the block's size
//!   validation: 0 size | 2 version | 4 CRC-32 | 8 entry: encrypted SHA-256 of the block
//! ```
//!
//! There are three copies. The first one with a right checksum counts.

use uuid::Uuid;

use super::boot::SIGNATURE;
use super::datum::{self, Datum, entry, value};
use super::encrypted::Encrypted;
use super::protector::Protector;
use super::{le16, le32, le64};
use crate::crc32::crc32;
use crate::error::Error;
use crate::hash::HashAlgorithm;
use crate::source::HeaderSource;

/// Length of a copy's area on the disk.
pub(super) const AREA_LEN_BYTES: u64 = 64 << 10;
const BLOCK_HEADER_LEN_BYTES: usize = 64;
const METADATA_HEADER_LEN_BYTES: usize = 48;
const ENTRIES: usize = BLOCK_HEADER_LEN_BYTES + METADATA_HEADER_LEN_BYTES;
/// Version since Windows 7.
const VERSION: u16 = 2;
/// Length of the validation with its entry.
const VALIDATION_LEN_BYTES: usize = 88;
/// Newest known version of the validation.
const VALIDATION_VERSION_MAX: u16 = 2;
/// Seconds from 1601, where Windows counts from, to 1970.
const EPOCH_S: u64 = 11_644_473_600;

/// The place of the volume's first bytes, which the boot sector displaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VolumeHeader {
    pub(super) offset_bytes: u64,
    pub(super) len_bytes: u64,
}

/// A copy with a right checksum.
#[derive(Clone, Debug)]
pub(super) struct Metadata {
    pub(super) state: State,
    pub(super) volume_len_bytes: u64,
    pub(super) offsets_bytes: [u64; 3],
    pub(super) uuid: Uuid,
    pub(super) method: u16,
    /// Seconds since 1970.
    pub(super) created_s: u64,
    pub(super) description: Option<String>,
    pub(super) protectors: Vec<Protector>,
    pub(super) volume_key: Encrypted,
    pub(super) volume_header: VolumeHeader,
    /// The encrypted hash of the block.
    pub(super) validation: Encrypted,
    pub(super) sha256: [u8; 32],
}

/// The state of the volume's encryption: as it is, and as it shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) current: u16,
    pub(super) next: u16,
}

impl State {
    const ENCRYPTED: u16 = 4;

    pub(super) fn is_encrypted(self) -> bool {
        self == Self { current: Self::ENCRYPTED, next: Self::ENCRYPTED }
    }

    pub(super) fn name(self) -> &'static str {
        match (self.current, self.next) {
            (Self::ENCRYPTED, Self::ENCRYPTED) => "encrypted",
            (1, _) => "decrypted",
            (2, 1) => "being decrypted",
            (2, _) => "being encrypted",
            (3, _) => "encrypted on write",
            (5, 1) => "decryption paused",
            (5, _) => "encryption paused",
            _ => "unknown",
        }
    }
}

/// The first intact copy at these offsets, with notices about damaged ones before it.
pub(super) fn read(
    source: &dyn HeaderSource,
    offsets_bytes: [u64; 3],
) -> Result<(Metadata, Vec<String>), Error> {
    let mut problems = Vec::new();
    for (index, offset) in offsets_bytes.into_iter().enumerate() {
        match block_at(source, offset) {
            Ok(block) => {
                let place = format!("BitLocker metadata, copy {}", index + 1);
                let metadata = block
                    .parse()
                    .and_then(|metadata| match metadata.offsets_bytes[index] {
                        own if own == offset => Ok(metadata),
                        own => Err(format!("it is at byte {offset}, and says that it is at {own}")),
                    })
                    .map_err(|problem| Error::header(place, problem))?;
                return Ok((metadata, notices(problems)));
            }
            Err(problem) => problems.push((index + 1, problem)),
        }
    }
    let copies: Vec<String> =
        problems.iter().map(|(copy, problem)| format!("copy {copy}: {problem}")).collect();
    let problem = format!(
        "all copies of its metadata are damaged ({}); Windows may recover the data with repair-bde",
        copies.join("; ")
    );
    Err(Error::header("BitLocker volume", problem))
}

/// Notices about damaged copies, each with its number and problem.
fn notices(problems: Vec<(usize, String)>) -> Vec<String> {
    let notice =
        |(copy, problem)| format!("copy {copy} of the BitLocker metadata is damaged ({problem})");
    problems.into_iter().map(notice).collect()
}

/// A block with a right CRC, and its validation.
struct Block {
    bytes: Vec<u8>,
    /// Of 88 bytes, or shorter.
    validation: Vec<u8>,
}

fn block_at(source: &dyn HeaderSource, offset_bytes: u64) -> Result<Block, String> {
    let mut start = [0; BLOCK_HEADER_LEN_BYTES];
    source.read_at(offset_bytes, &mut start).map_err(|error| error.to_string())?;
    if &start[..8] != SIGNATURE {
        return Err("it has no signature".into());
    }
    if le16(&start, 10) != VERSION {
        return Err(format!("its version is {}, not {VERSION}", le16(&start, 10)));
    }
    let len = usize::from(le16(&start, 8)) * 16;
    if len < ENTRIES || len as u64 > AREA_LEN_BYTES {
        return Err(format!("its length is {len} bytes"));
    }
    // One read: what is checked is what is used.
    let mut bytes = vec![0; len + VALIDATION_LEN_BYTES];
    source.read_at(offset_bytes, &mut bytes).map_err(|error| error.to_string())?;
    let validation = bytes.split_off(len);
    if le16(&validation, 0) < 8 || le16(&validation, 2) > VALIDATION_VERSION_MAX {
        return Err("it has no known checksum".into());
    }
    if crc32(&bytes) != le32(&validation, 4) {
        return Err("its checksum is wrong".into());
    }
    Ok(Block { bytes, validation })
}

impl Block {
    fn parse(&self) -> Result<Metadata, String> {
        let bytes = &self.bytes;
        let len = le32(bytes, 64) as usize;
        let entries = BLOCK_HEADER_LEN_BYTES
            .checked_add(len)
            .and_then(|end| bytes.get(ENTRIES..end))
            .ok_or_else(|| format!("its metadata has an impossible length of {len} bytes"))?;
        let entries = datum::parse(entries)?;
        let of = |wanted: u16| entries.iter().filter(move |one| one.entry == wanted);
        let volume_key = of(entry::FVEK)
            .find(|one| one.value == value::ENCRYPTED_KEY)
            .ok_or("it has no volume key")
            .and_then(|one| Encrypted::parse(one.data).ok_or("its volume key is truncated"))?;
        let protectors = of(entry::VMK).map(Protector::parse).collect::<Result<_, _>>()?;
        let description = of(entry::DESCRIPTION).find(|one| one.value == value::TEXT);
        let mut sha256 = [0; 32];
        HashAlgorithm::Sha256.digest(&[bytes], &mut sha256);
        Ok(Metadata {
            state: State { current: le16(bytes, 12), next: le16(bytes, 14) },
            volume_len_bytes: le64(bytes, 16),
            offsets_bytes: [32, 40, 48].map(|at| le64(bytes, at)),
            uuid: Uuid::from_bytes_le(*bytes[80..].first_chunk().expect("it is in the header")),
            method: le16(bytes, 100),
            created_s: (le64(bytes, 104) / 10_000_000).saturating_sub(EPOCH_S),
            description: description.map(Datum::text).filter(|text| !text.is_empty()),
            protectors,
            volume_key,
            volume_header: volume_header(bytes, &entries),
            validation: self.validation()?,
            sha256,
        })
    }

    /// The encrypted hash in the validation.
    fn validation(&self) -> Result<Encrypted, String> {
        let known = usize::from(le16(&self.validation, 0)) >= VALIDATION_LEN_BYTES;
        let entries = datum::parse(&self.validation[8..])?;
        match entries.first() {
            Some(Datum { entry: entry::PROPERTY, value: value::ENCRYPTED_KEY, data }) if known => {
                Encrypted::parse(data).ok_or_else(|| "its validation is truncated".into())
            }
            _ => Err("its validation has no hash".into()),
        }
    }
}

/// From its entry, or from the block header, as newer versions of Windows 10 write it.
fn volume_header(bytes: &[u8], entries: &[Datum<'_>]) -> VolumeHeader {
    let is_place = |one: &&Datum<'_>| {
        let kind = (one.entry, one.value);
        kind == (entry::VOLUME_HEADER, value::OFFSET_AND_SIZE) && one.data.len() >= 16
    };
    match entries.iter().find(is_place) {
        Some(one) => VolumeHeader { offset_bytes: le64(one.data, 0), len_bytes: le64(one.data, 8) },
        None => VolumeHeader {
            offset_bytes: le64(bytes, 56),
            len_bytes: u64::from(le32(bytes, 28)) * 512,
        },
    }
}
