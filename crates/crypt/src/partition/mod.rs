//! Partition tables: GPT and MBR, in sectors of 512 or 4096 bytes.
//!
//! ```text
//!   Table::read -> partitions, each with its contents -> Table::find -> Part: a source of its own
//! ```
//!
//! Tables are untrusted. Every range is checked against the disk and the other partitions, the
//! length of a table and of a chain of logical partitions is limited, and a partition with a wrong
//! range is shown with its problem but never opened. Sources: UEFI Specification 2.10, chapter 5;
//! the kernel's `block/partitions/efi.c` and `msdos.c` for what counts as a table.

mod gpt;
mod info;
mod kind;
mod mbr;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;

use crate::error::{self, Error};
use crate::luks::{Header, Notice};
use crate::signature::{self, Signature};
use crate::source::{HeaderSource, SourceError};

pub use info::{ContentInfo, PartitionInfo, TableInfo};

/// Sizes of a disk's sectors, the usual one first.
const SECTOR_SIZES_BYTES: [u32; 2] = [512, 4096];

/// The format of a partition table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// GUID partition table.
    Gpt,
    /// Master boot record, with logical partitions.
    Mbr,
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gpt => "GPT",
            Self::Mbr => "MBR",
        })
    }
}

/// The partition table of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its format.
    pub scheme: Scheme,
    /// Size of a sector, in which the table counts: 512 or 4096 bytes.
    pub sector_size_bytes: u32,
    /// GUID of the disk, or its signature of 32 bits in an MBR.
    pub uuid: String,
    /// The partitions in the order of their numbers.
    pub partitions: Vec<Partition>,
    /// Damage that leaves the table usable, and peculiarities.
    pub notices: Vec<String>,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number, as in the name of the kernel's device.
    pub number: u32,
    /// Start and end on the disk, in bytes.
    pub bytes: Range<u64>,
    /// Name of its type, or the type's number.
    pub kind: String,
    /// Its UUID (`PARTUUID`).
    pub uuid: String,
    /// Its name (`PARTLABEL`); empty in an MBR.
    pub name: String,
    /// Why its range cannot be used.
    pub problem: Option<String>,
    /// Content of the partition, by its first bytes.
    pub content: Content,
}

/// Content of a partition, by its first bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A LUKS header.
    Luks {
        /// Version 1 or 2.
        version: u8,
        /// Its UUID.
        uuid: String,
        /// Its label; empty in LUKS1.
        label: String,
    },
    /// Another known format.
    Other(Signature),
    /// Nothing known.
    Unknown,
}

/// A part of a disk as a source of its own.
pub struct Part<'a> {
    source: &'a dyn HeaderSource,
    bytes: Range<u64>,
}

impl<'a> Part<'a> {
    /// The bytes of `range` in `source`.
    #[must_use]
    pub fn new(source: &'a dyn HeaderSource, range: Range<u64>) -> Self {
        Self { source, bytes: range }
    }
}

impl HeaderSource for Part<'_> {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        let len_bytes = buf.len() as u64;
        let device_len_bytes = self.len_bytes();
        let end = offset_bytes.checked_add(len_bytes);
        if end.is_none_or(|end| end > device_len_bytes) {
            return Err(SourceError::BehindEnd { offset_bytes, len_bytes, device_len_bytes });
        }
        self.source.read_at(self.bytes.start + offset_bytes, buf)
    }

    fn len_bytes(&self) -> u64 {
        self.bytes.end.min(self.source.len_bytes()).saturating_sub(self.bytes.start)
    }
}

/// [`Header::read`], whose error names the partitions with a LUKS or BitLocker volume, if any.
///
/// # Errors
/// See [`Header::read`]; [`Error::InPartition`].
pub fn read_header(source: &dyn HeaderSource) -> Result<(Header, Vec<Notice>), Error> {
    Header::read(source).map_err(|error| match &error {
        Error::NotLuks | Error::OtherFormat(_) => {
            let table = Table::read(source).ok().flatten();
            let numbers = table.iter().flat_map(Table::encrypted).map(|one| one.number);
            let partitions: Vec<u32> = numbers.collect();
            if partitions.is_empty() { error } else { Error::InPartition { partitions } }
        }
        _ => error,
    })
}

impl Table {
    /// Reads the table of a disk; `None` without one. A GPT counts only with a protective entry in
    /// the MBR, or on a disk with an empty first sector and no other use: otherwise it is left over
    /// from an earlier use.
    ///
    /// # Errors
    /// When both copies of a GPT are damaged, or the disk cannot be read.
    pub fn read(source: &dyn HeaderSource) -> Result<Option<Self>, Error> {
        let mut first = [0; 512];
        if source.len_bytes() < first.len() as u64 {
            return Ok(None);
        }
        read_at(source, 0, &mut first)?;
        let boot_record = mbr::BootRecord::parse(&first);
        let protects = boot_record.as_ref().is_some_and(mbr::BootRecord::protects_gpt);
        let is_empty = || {
            first == [0; 512] && signature::probe(source).is_none_or(Signature::is_partition_table)
        };
        if protects || is_empty() {
            let table = gpt::read(source, boot_record.as_ref())?;
            if protects && table.is_none() {
                return Err(Error::header(
                    "partition table",
                    "the disk has a protective MBR, but neither copy of its GPT is intact; \
                     `start_bytes` opens a volume whose place is known",
                ));
            }
            return Ok(table.map(|table| table.checked(source)));
        }
        // A file system's boot sector has the mark of an MBR, and code where the entries are.
        let is_boot_sector = signature::probe(source).is_some_and(Signature::is_boot_sector);
        match boot_record {
            Some(record) if !is_boot_sector => {
                Ok(record.table(source)?.map(|it| it.checked(source)))
            }
            _ => Ok(None),
        }
    }

    /// The partition with this number, UUID or name, or with this UUID or label of the LUKS volume
    /// in it.
    ///
    /// # Errors
    /// When none or several match, or its range cannot be used.
    pub fn find(&self, wanted: &str) -> Result<&Partition, Error> {
        let matching: Vec<&Partition> = match wanted.parse::<u32>() {
            Ok(number) => self.partitions.iter().filter(|one| one.number == number).collect(),
            Err(_) => self.partitions.iter().filter(|one| one.is_called(wanted)).collect(),
        };
        match matching.as_slice() {
            [] => Err(Error::field(
                "partition",
                format!(
                    "no partition has the number, UUID or name {wanted:?}; the {} partition table \
                     has {}",
                    self.scheme,
                    self.numbers(self.partitions.iter())
                ),
            )),
            [one] => match &one.problem {
                None => Ok(one),
                Some(problem) => Err(Error::field(
                    "partition",
                    format!(
                        "partition {} {problem}; `start_bytes` opens a volume whose place is known",
                        one.number
                    ),
                )),
            },
            several => Err(Error::field(
                "partition",
                format!(
                    "{wanted:?} is the name of {}; use a number",
                    self.numbers(several.iter().copied())
                ),
            )),
        }
    }

    /// The partitions that hold a LUKS or BitLocker volume and can be opened.
    pub fn encrypted(&self) -> impl Iterator<Item = &Partition> {
        let is_it = |one: &&Partition| match one.content {
            Content::Luks { .. } => true,
            Content::Other(signature) => signature.is_bitlocker(),
            Content::Unknown => false,
        };
        self.partitions.iter().filter(is_it).filter(|one| one.problem.is_none())
    }

    /// `partitions 1, 2 and 5`.
    fn numbers<'a>(&self, partitions: impl Iterator<Item = &'a Partition>) -> String {
        error::named(&partitions.map(|one| one.number).collect::<Vec<_>>())
    }

    /// With problems of ranges and the contents of the good ones.
    fn checked(mut self, source: &dyn HeaderSource) -> Self {
        let disk_len = source.len_bytes();
        for one in &mut self.partitions {
            if one.problem.is_none() && one.bytes.end > disk_len {
                let end = one.bytes.end;
                one.problem = Some(format!(
                    "ends at byte {end}, but the disk at byte {disk_len}: the disk is truncated, \
                     or the table is damaged"
                ));
            }
        }
        self.mark_overlaps();
        for one in self.partitions.iter_mut().filter(|one| one.problem.is_none()) {
            one.content = Content::of(&Part::new(source, one.bytes.clone()));
        }
        self
    }

    fn mark_overlaps(&mut self) {
        let usable = self.partitions.iter().enumerate().filter(|(_, one)| one.problem.is_none());
        let mut order: Vec<(u64, u64, usize)> =
            usable.map(|(index, one)| (one.bytes.start, one.bytes.end, index)).collect();
        order.sort_unstable();
        let mut furthest: Option<(u64, usize)> = None;
        for (start, end, index) in order {
            if let Some((before_end, before)) = furthest
                && start < before_end
            {
                let number = self.partitions[index].number;
                let other = self.partitions[before].number;
                self.partitions[index].problem = Some(format!("overlaps partition {other}"));
                self.partitions[before].problem = Some(format!("overlaps partition {number}"));
            }
            if furthest.is_none_or(|(before_end, _)| end > before_end) {
                furthest = Some((end, index));
            }
        }
    }
}

impl Partition {
    fn is_called(&self, wanted: &str) -> bool {
        let is_inside = match &self.content {
            Content::Luks { uuid, label, .. } => {
                uuid.eq_ignore_ascii_case(wanted) || label == wanted
            }
            Content::Other(_) | Content::Unknown => false,
        };
        self.uuid.eq_ignore_ascii_case(wanted) || self.name == wanted || is_inside
    }
}

impl Content {
    fn of(part: &Part<'_>) -> Self {
        match Header::read(part) {
            Ok((Header::Luks1(header), _)) => {
                Self::Luks { version: 1, uuid: header.uuid().to_owned(), label: String::new() }
            }
            Ok((Header::Luks2(header), _)) => {
                Self::Luks { version: 2, uuid: header.uuid().to_owned(), label: header.label() }
            }
            Err(_) => signature::probe(part).map_or(Self::Unknown, Self::Other),
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Luks { version, uuid, label } if label.is_empty() => {
                write!(f, "LUKS{version} volume {uuid}")
            }
            Self::Luks { version, uuid, label } => {
                write!(f, "LUKS{version} volume {uuid} {label:?}")
            }
            Self::Other(signature) => f.write_str(signature.name),
            Self::Unknown => f.write_str("no known format"),
        }
    }
}

fn read_at(source: &dyn HeaderSource, offset_bytes: u64, buf: &mut [u8]) -> Result<(), Error> {
    let what = || "the partition table".to_owned();
    source.read_at(offset_bytes, buf).map_err(|error| Error::Read { what: what(), error })
}

fn le32(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(*bytes[offset..].first_chunk().expect("the field is in the structure"))
}

fn le64(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(*bytes[offset..].first_chunk().expect("the field is in the structure"))
}
