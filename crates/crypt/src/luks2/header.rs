//! The binary header of LUKS2 and its two copies on disk.
//!
//! ```text
//!   0           4096                 hdr_len                      2 hdr_len
//!   | primary   | JSON area, NULs    | secondary  | JSON area     | keyslots area ... | data
//! ```
//!
//! LUKS2 On-Disk Format Specification 1.1, section 2. Each copy has its own salt and a checksum
//! over itself (with the checksum field zero) and its JSON area. Updates write the primary first;
//! the copy with the higher sequence id is the newer one. If the primary is lost, its length is
//! unknown, so the secondary is searched at every offset that the format allows.

use std::fmt;
use std::ops::Range;

use subtle::ConstantTimeEq;

use super::metadata::{BINARY_LEN_BYTES, Metadata};
use super::tree::JSON_AREA;
use crate::error::{Error, Requirement};
use crate::format::previous::UNKNOWN_LEN_BYTES;
use crate::hash::HashAlgorithm;
use crate::header_write::Write;
use crate::luks::Notice;
use crate::luks1::{MAGIC, push_text, text};
use crate::signature::{self, Signature};
use crate::source::{HeaderSource, SourceError};
use crate::uuid_field::UuidField;

/// Magic of the secondary header.
const MAGIC_SECONDARY: [u8; 6] = *b"SKUL\xba\xbe";
/// Valid lengths of a copy, and so valid offsets of the secondary.
pub(crate) const HDR_LENS_BYTES: [u64; 9] =
    [0x4000, 0x8000, 0x1_0000, 0x2_0000, 0x4_0000, 0x8_0000, 0x10_0000, 0x20_0000, 0x40_0000];
/// Length of the checksum field; shorter checksums are padded with zeros.
const CHECKSUM_LEN_BYTES: usize = 64;
const CHECKSUM_OFFSET: usize = 448;
pub(crate) const HEADER_SALT_LEN_BYTES: usize = 64;
/// Length of label and subsystem, including at least one NUL.
pub(crate) const LABEL_LEN_BYTES: usize = 48;

/// One of the two copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copy {
    /// At the start of the device.
    Primary,
    /// After the primary.
    Secondary,
}

impl Copy {
    /// The other copy.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Primary => Self::Secondary,
            Self::Secondary => Self::Primary,
        }
    }

    fn magic(self) -> [u8; 6] {
        match self {
            Self::Primary => MAGIC,
            Self::Secondary => MAGIC_SECONDARY,
        }
    }

    /// Start of this copy in a header of `hdr_len_bytes`.
    pub(crate) fn offset_bytes(self, hdr_len_bytes: u64) -> u64 {
        match self {
            Self::Primary => 0,
            Self::Secondary => hdr_len_bytes,
        }
    }
}

impl fmt::Display for Copy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Primary => "primary",
            Self::Secondary => "secondary",
        })
    }
}

/// The fields of the binary header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binary {
    pub(crate) hdr_len_bytes: u64,
    pub(crate) seqid: u64,
    /// NUL-padded bytes of any kind, so that a repair preserves them.
    pub(crate) label: [u8; LABEL_LEN_BYTES],
    pub(crate) checksum: HashAlgorithm,
    pub(crate) salt: [u8; HEADER_SALT_LEN_BYTES],
    pub(crate) uuid: UuidField,
    /// NUL-padded bytes of any kind.
    pub(crate) subsystem: [u8; LABEL_LEN_BYTES],
}

/// One intact copy.
#[derive(Clone, Debug)]
pub(crate) struct Intact {
    pub(crate) copy: Copy,
    pub(crate) binary: Binary,
    /// The whole JSON area, byte for byte.
    pub(crate) json_area: Vec<u8>,
    pub(crate) metadata: Metadata,
}

/// Result of the search for a copy.
#[derive(Debug)]
pub(crate) enum Found {
    Intact(Box<Intact>),
    /// No magic.
    Absent,
    /// The magic, with an error after it.
    Damaged(String),
    /// A LUKS header of another version.
    OtherVersion(u16),
    /// A right checksum over a text that this program cannot read: not damaged.
    NotReadable(String),
    /// A well-formed header with an unmet requirement.
    Requires(Requirement),
}

impl Found {
    /// The reason why this copy is not intact.
    pub(crate) fn problem(&self) -> Option<String> {
        match self {
            Self::Intact(_) => None,
            Self::Absent => Some("it is missing".to_owned()),
            Self::Damaged(problem) => Some(problem.clone()),
            Self::NotReadable(problem) => Some(format!(
                "its checksum is right, but Blockyard cannot read its JSON: {problem}"
            )),
            Self::OtherVersion(version) => Some(format!("it has version {version}")),
            Self::Requires(requirement) => Some(requirement.to_string()),
        }
    }
}

/// Both copies.
pub(crate) struct Copies {
    pub(crate) primary: Found,
    pub(crate) secondary: Found,
    /// Another format at the start of the device, searched if the primary copy is not intact.
    signature: Option<Signature>,
}

impl Copies {
    /// Searches both copies.
    pub(crate) fn read(source: &dyn HeaderSource) -> Result<Self, Error> {
        let primary = read_copy(source, Copy::Primary, 0)?;
        let secondary = match &primary {
            Found::Intact(intact) => {
                read_copy(source, Copy::Secondary, intact.binary.hdr_len_bytes)?
            }
            _ => scan_secondary(source)?,
        };
        let signature = match &primary {
            Found::Absent | Found::Damaged(_) | Found::NotReadable(_) => signature::probe(source),
            Found::Intact(_) | Found::OtherVersion(_) | Found::Requires(_) => None,
        };
        Ok(Self { primary, secondary, signature })
    }

    /// One given copy, even if the other is newer.
    pub(crate) fn only(self, copy: Copy) -> Result<Intact, Error> {
        let found = match copy {
            Copy::Primary => self.primary,
            Copy::Secondary => self.secondary,
        };
        let problem = found.problem();
        match found {
            Found::Intact(intact) => Ok(*intact),
            Found::Requires(requirement) => Err(Error::Requirement(requirement)),
            _ => {
                Err(Error::header(format!("the {copy} LUKS2 header"), problem.unwrap_or_default()))
            }
        }
    }

    /// The newest intact copy, and the notices about the other.
    pub(crate) fn newest(self) -> Result<(Intact, Vec<Notice>), Error> {
        if let Some(signature) = self.signature {
            return Err(match self.secondary {
                Found::Intact(_) | Found::Requires(_) => Error::Reused(signature),
                _ => Error::OtherFormat(signature),
            });
        }
        match (self.primary, self.secondary) {
            (Found::Intact(primary), Found::Intact(secondary)) => Ok(newer(*primary, *secondary)),
            (Found::Intact(intact), other) => Ok(with_damaged(*intact, &other)),
            (Found::OtherVersion(version), _) => Err(Error::unsupported(
                "LUKS header",
                format!("LUKS version {version} is not supported"),
            )),
            (Found::Requires(requirement), _) => Err(Error::Requirement(requirement)),
            (other, Found::Intact(intact)) => Ok(with_damaged(*intact, &other)),
            (_, Found::Requires(requirement)) => Err(Error::Requirement(requirement)),
            (Found::Absent, Found::Absent) => Err(Error::NotLuks),
            (Found::NotReadable(problem), _) | (_, Found::NotReadable(problem)) => {
                let what = format!(
                    "its checksum is right, but Blockyard cannot read its JSON: {problem}; the \
                     header is not damaged, and cryptsetup may open the volume"
                );
                Err(Error::unsupported("LUKS2 header", what))
            }
            (primary, secondary) => Err(Error::BothCopiesDamaged {
                primary: primary.problem().unwrap_or_default(),
                secondary: secondary.problem().unwrap_or_default(),
            }),
        }
    }
}

fn newer(primary: Intact, secondary: Intact) -> (Intact, Vec<Notice>) {
    let outdated = |copy, old: &Intact, new: &Intact| Notice::OutdatedCopy {
        copy,
        seqid: old.binary.seqid,
        newest_seqid: new.binary.seqid,
    };
    if primary.binary.seqid < secondary.binary.seqid {
        let notice = outdated(Copy::Primary, &primary, &secondary);
        (secondary, vec![notice])
    } else if primary.binary.seqid > secondary.binary.seqid {
        let notice = outdated(Copy::Secondary, &secondary, &primary);
        (primary, vec![notice])
    } else if same_contents(&primary, &secondary) {
        (primary, Vec::new())
    } else {
        (primary, vec![Notice::CopiesDiffer])
    }
}

/// Whether two copies are equal except for their salts.
fn same_contents(a: &Intact, b: &Intact) -> bool {
    let binary = Binary { salt: a.binary.salt, ..b.binary.clone() };
    a.binary == binary && a.json_area == b.json_area
}

fn with_damaged(intact: Intact, other: &Found) -> (Intact, Vec<Notice>) {
    let problem = other.problem().unwrap_or_default();
    let notice = Notice::DamagedCopy { copy: intact.copy.other(), problem };
    (intact, vec![notice])
}

/// Zeros over the start of every possible header copy before `end_bytes`, LUKS1 included. Keyslots
/// and data stay: an interruption leaves either a header with its keyslots, or no header.
pub(crate) fn erased_copies(source: &dyn HeaderSource, end_bytes: u64) -> Vec<Write> {
    let primary = std::iter::once((Copy::Primary, 0));
    let places = primary.chain(HDR_LENS_BYTES.map(|offset| (Copy::Secondary, offset)));
    let is_there = |(copy, offset_bytes): &(Copy, u64)| {
        let mut magic = [0; MAGIC.len()];
        // An unreadable block cannot be found as a header later either.
        *offset_bytes < end_bytes
            && source.read_at(*offset_bytes, &mut magic).is_ok()
            && magic == copy.magic()
    };
    let start = |offset: u64| Write::Zeros(offset..(offset + BINARY_LEN_BYTES).min(end_bytes));
    places.filter(is_there).map(|(_, offset_bytes)| start(offset_bytes)).collect()
}

/// Adds the ranges of every LUKS2 header on `source` that a program would find: a primary at the
/// start, and secondary copies at every valid offset, even behind a newer header.
pub(crate) fn find_previous(source: &dyn HeaderSource, previous: &mut Vec<Range<u64>>) {
    let secondaries = HDR_LENS_BYTES.map(|offset_bytes| (Copy::Secondary, offset_bytes));
    for (copy, offset_bytes) in std::iter::once((Copy::Primary, 0)).chain(secondaries) {
        // The length of a damaged primary is unknown; its first block makes it a header.
        let hdr_len_bytes = offset_bytes.max(HDR_LENS_BYTES[0]);
        let areas_end = match read_copy(source, copy, offset_bytes) {
            Ok(Found::Absent) | Ok(Found::OtherVersion(1)) => continue,
            Ok(Found::Intact(intact)) => intact.metadata.end_bytes(),
            _ => UNKNOWN_LEN_BYTES,
        };
        previous.push(offset_bytes..offset_bytes + hdr_len_bytes);
        previous.push(0..areas_end);
    }
}

/// End of the damaged copies of a header: both have the length that the primary names, or the first
/// secondary's offset.
pub(crate) fn damaged_copies_end(source: &dyn HeaderSource) -> u64 {
    let mut start = [0; 16];
    let read = source.read_at(0, &mut start).is_ok();
    let named_bytes = u64::from_be_bytes(start[8..].try_into().expect("8 bytes"));
    if read && start.starts_with(&Copy::Primary.magic()) && HDR_LENS_BYTES.contains(&named_bytes) {
        return 2 * named_bytes;
    }
    let has_magic = |offset_bytes: &u64| {
        let mut magic = [0; MAGIC.len()];
        source.read_at(*offset_bytes, &mut magic).is_ok() && magic == Copy::Secondary.magic()
    };
    2 * HDR_LENS_BYTES.into_iter().find(has_magic).unwrap_or(HDR_LENS_BYTES[0])
}

/// Searches the secondary of a header of unknown length.
fn scan_secondary(source: &dyn HeaderSource) -> Result<Found, Error> {
    let mut best = Found::Absent;
    for offset_bytes in HDR_LENS_BYTES {
        match read_copy(source, Copy::Secondary, offset_bytes)? {
            intact @ Found::Intact(_) => return Ok(intact),
            other if matches!(best, Found::Absent) => best = other,
            _ => {}
        }
    }
    Ok(best)
}

fn read_copy(source: &dyn HeaderSource, copy: Copy, offset_bytes: u64) -> Result<Found, Error> {
    let mut bytes = [0u8; BINARY_LEN_BYTES as usize];
    match read(source, copy, offset_bytes, &mut bytes) {
        Ok(()) => {}
        Err(Error::Read { error: SourceError::BehindEnd { .. }, .. }) => {
            return Ok(absent_or_truncated(source, copy, offset_bytes));
        }
        // An unreadable sector makes this copy damaged; the other may be intact.
        Err(error) => return Ok(Found::Damaged(error.to_string())),
    }
    if bytes[..6] != copy.magic() {
        return Ok(Found::Absent);
    }
    let version = u16::from_be_bytes([bytes[6], bytes[7]]);
    if version != 2 {
        return Ok(Found::OtherVersion(version));
    }
    let binary = match Binary::parse(&bytes, copy, offset_bytes) {
        Ok(binary) => binary,
        Err(problem) => return Ok(Found::Damaged(problem)),
    };
    let json_len = usize::try_from(binary.hdr_len_bytes - BINARY_LEN_BYTES)
        .expect("at most 4 MiB by Binary::parse");
    let mut json_area = vec![0u8; json_len];
    match read(source, copy, offset_bytes + BINARY_LEN_BYTES, &mut json_area) {
        Ok(()) => {}
        Err(error) => return Ok(Found::Damaged(error.to_string())),
    }
    let stored = &bytes[CHECKSUM_OFFSET..CHECKSUM_OFFSET + binary.checksum.digest_len_bytes()];
    if !bool::from(checksum(binary.checksum, &bytes, &json_area).as_slice().ct_eq(stored)) {
        return Ok(Found::Damaged(format!("its {} checksum is wrong", binary.checksum)));
    }
    Ok(match Metadata::parse(&json_area, binary.hdr_len_bytes) {
        Ok(metadata) => Found::Intact(Box::new(Intact { copy, binary, json_area, metadata })),
        Err(error) => match error.requirement() {
            Some(requirement) => Found::Requires(requirement),
            None if error.error.path == JSON_AREA => Found::NotReadable(error.error.problem),
            None => Found::Damaged(format!("{}: {}", error.error.path, error.error.problem)),
        },
    })
}

fn read(
    source: &dyn HeaderSource,
    copy: Copy,
    offset_bytes: u64,
    buf: &mut [u8],
) -> Result<(), Error> {
    source
        .read_at(offset_bytes, buf)
        .map_err(|error| Error::Read { what: format!("the {copy} LUKS2 header"), error })
}

/// Result on a device too short for a binary header: with the magic it is a truncated one.
fn absent_or_truncated(source: &dyn HeaderSource, copy: Copy, offset_bytes: u64) -> Found {
    let mut magic = [0u8; 6];
    match source.read_at(offset_bytes, &mut magic) {
        Ok(()) if magic == copy.magic() => Found::Damaged(format!(
            "the device or file ends in it, at byte {}; it is truncated",
            source.len_bytes()
        )),
        _ => Found::Absent,
    }
}

/// Checksum over a binary header, with its checksum field as zero, and its JSON area.
fn checksum(algorithm: HashAlgorithm, binary: &[u8], json_area: &[u8]) -> Vec<u8> {
    let mut out = vec![0u8; algorithm.digest_len_bytes()];
    let parts: [&[u8]; 4] = [
        &binary[..CHECKSUM_OFFSET],
        &[0; CHECKSUM_LEN_BYTES],
        &binary[CHECKSUM_OFFSET + CHECKSUM_LEN_BYTES..],
        json_area,
    ];
    algorithm.digest(&parts, &mut out);
    out
}

/// Invalidates the checksum of a binary header.
pub(crate) fn clear_checksum(binary: &mut [u8]) {
    binary[CHECKSUM_OFFSET..CHECKSUM_OFFSET + CHECKSUM_LEN_BYTES].fill(0);
}

/// A printable label: other characters are escaped.
pub(crate) fn shown_label(field: &[u8; LABEL_LEN_BYTES]) -> String {
    let len = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    let escape = |c: char| -> String {
        if c.is_control() || c == char::REPLACEMENT_CHARACTER {
            c.escape_default().collect()
        } else {
            c.to_string()
        }
    };
    String::from_utf8_lossy(&field[..len]).chars().map(escape).collect()
}

/// Big-endian number of 64 bits at `offset`.
fn be64(bytes: &[u8], offset: usize) -> u64 {
    u64::from_be_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"))
}

impl Binary {
    /// Parses the first 512 bytes; the caller has checked magic and version.
    fn parse(bytes: &[u8], copy: Copy, offset_bytes: u64) -> Result<Self, String> {
        let hdr_len_bytes = be64(bytes, 8);
        if !HDR_LENS_BYTES.contains(&hdr_len_bytes) {
            return Err(format!("its length {hdr_len_bytes} is not valid in LUKS2"));
        }
        let stated_offset = be64(bytes, 256);
        if stated_offset != offset_bytes || offset_bytes != copy.offset_bytes(hdr_len_bytes) {
            return Err(format!(
                "its fields give {hdr_len_bytes} bytes at byte {stated_offset}, but it lies \
                 at byte {offset_bytes}"
            ));
        }
        let checksum = text(&bytes[72..104])
            .ok_or_else(|| "its checksum algorithm is not printable text".to_owned())?;
        Ok(Self {
            hdr_len_bytes,
            seqid: be64(bytes, 16),
            label: bytes[24..72].try_into().expect("48 bytes"),
            checksum: HashAlgorithm::parse(&checksum).map_err(|error| error.to_string())?,
            salt: bytes[104..168].try_into().expect("64 bytes"),
            uuid: UuidField(bytes[168..208].try_into().expect("40 bytes")),
            subsystem: bytes[208..256].try_into().expect("48 bytes"),
        })
    }

    /// The copy as on disk, with its checksum, without its JSON area.
    pub(crate) fn to_bytes(&self, copy: Copy, json_area: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BINARY_LEN_BYTES as usize);
        bytes.extend_from_slice(&copy.magic());
        bytes.extend_from_slice(&2u16.to_be_bytes());
        bytes.extend_from_slice(&self.hdr_len_bytes.to_be_bytes());
        bytes.extend_from_slice(&self.seqid.to_be_bytes());
        bytes.extend_from_slice(&self.label);
        push_text(&mut bytes, self.checksum.name(), 32);
        bytes.extend_from_slice(&self.salt);
        bytes.extend_from_slice(&self.uuid.0);
        bytes.extend_from_slice(&self.subsystem);
        bytes.extend_from_slice(&copy.offset_bytes(self.hdr_len_bytes).to_be_bytes());
        bytes.resize(BINARY_LEN_BYTES as usize, 0);
        let checksum = checksum(self.checksum, &bytes, json_area);
        bytes[CHECKSUM_OFFSET..CHECKSUM_OFFSET + checksum.len()].copy_from_slice(&checksum);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_is_shown_as_it_is_but_for_what_could_control_a_terminal() {
        let shown = |text: &[u8]| {
            let mut field = [0; LABEL_LEN_BYTES];
            field[..text.len()].copy_from_slice(text);
            shown_label(&field)
        };
        assert_eq!(shown("a b\\ \u{e9}".as_bytes()), "a b\\ \u{e9}");
        assert_eq!(shown(b"\x1b[31m\xff"), "\\u{1b}[31m\\u{fffd}");
        assert_eq!(shown_label(&[b'l'; LABEL_LEN_BYTES]), "l".repeat(LABEL_LEN_BYTES));
    }

    #[test]
    fn copy_stands_where_it_says_and_where_its_length_puts_it() {
        let binary = Binary {
            hdr_len_bytes: 0x4000,
            seqid: 1,
            label: [0; LABEL_LEN_BYTES],
            checksum: HashAlgorithm::Sha256,
            salt: [0; HEADER_SALT_LEN_BYTES],
            uuid: UuidField::of(""),
            subsystem: [0; LABEL_LEN_BYTES],
        };
        let mut bytes = binary.to_bytes(Copy::Secondary, &[]);
        assert_eq!(Binary::parse(&bytes, Copy::Secondary, 0x4000), Ok(binary));
        assert!(Binary::parse(&bytes, Copy::Secondary, 0x8000).is_err());
        // It says so, but the header before it would be of another length.
        bytes[256..264].copy_from_slice(&0x8000_u64.to_be_bytes());
        assert!(Binary::parse(&bytes, Copy::Secondary, 0x8000).is_err());
        assert!(Binary::parse(&bytes, Copy::Secondary, 0x4000).is_err());
    }
}
