//! Master boot records, with logical partitions.
//!
//! An extended partition has a chain of boot records: the first entry of each is a logical
//! partition, relative to the record; the second one leads to the next record, relative to the
//! extended partition. Logical partitions have numbers from 5 on.

use super::{Content, Part, Partition, SECTOR_SIZES_BYTES, Scheme, Table, kind, le32, read_at};
use crate::error::Error;
use crate::source::HeaderSource;

const MARK: [u8; 2] = [0x55, 0xaa];
const ENTRIES: usize = 446;
/// Offset of the disk's signature of 32 bits.
const SIGNATURE: usize = 440;
/// Type of an entry that protects a GPT.
const PROTECTIVE: u8 = 0xee;
/// Types of an extended partition: of DOS, of Windows with LBA, of Linux.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
/// Number of the first logical partition.
const LOGICAL_FIRST: u32 = 5;
/// Limit of logical partitions; Linux has fewer device names.
const LOGICAL_MAX: u32 = 252;

/// An entry of a boot record, in sectors.
#[derive(Clone, Copy, Debug)]
struct Entry {
    kind: u8,
    start: u32,
    len: u32,
}

/// The entries of a sector with the mark of a boot record.
pub(super) struct BootRecord {
    signature: u32,
    entries: [Entry; 4],
}

impl BootRecord {
    /// The record; `None` unless the mark and the status of every entry are valid.
    pub(super) fn parse(sector: &[u8; 512]) -> Option<Self> {
        if sector[510..] != MARK {
            return None;
        }
        let raw: [[u8; 16]; 4] = std::array::from_fn(|index| {
            *sector[ENTRIES + 16 * index..].first_chunk().expect("the entry is in the sector")
        });
        let entries =
            raw.map(|raw| Entry { kind: raw[4], start: le32(&raw, 8), len: le32(&raw, 12) });
        raw.iter()
            .all(|raw| matches!(raw[0], 0 | 0x80))
            .then(|| Self { signature: le32(sector, SIGNATURE), entries })
    }

    fn used(&self) -> impl Iterator<Item = (u32, Entry)> {
        (1..).zip(self.entries).filter(|(_, entry)| entry.kind != 0 && entry.len != 0)
    }

    /// Whether an entry says that the disk has a GPT.
    pub(super) fn protects_gpt(&self) -> bool {
        self.entries.iter().any(|entry| entry.kind == PROTECTIVE)
    }

    /// Whether partitions stand beside that entry.
    pub(super) fn is_hybrid(&self) -> bool {
        self.protects_gpt() && self.used().any(|(_, entry)| entry.kind != PROTECTIVE)
    }

    /// The table; `None` without partitions.
    ///
    /// An MBR does not say how long its sectors are. They have 4096 bytes if a known format starts
    /// where such sectors put a partition, and none where sectors of 512 bytes do.
    pub(super) fn table(&self, source: &dyn HeaderSource) -> Result<Option<Table>, Error> {
        if self.used().next().is_none() {
            return Ok(None);
        }
        let known = |sector_size: u32| {
            let content = |(_, entry): (u32, Entry)| {
                let part = Part::new(source, entry.bytes(0, sector_size));
                Content::of(&part)
            };
            let mut contents = self.used().filter(|(_, entry)| !entry.is_extended()).map(content);
            contents.any(|content| content != Content::Unknown)
        };
        let ends = |sector_size: u32| {
            self.used().map(|(_, entry)| entry.bytes(0, sector_size).end).max().unwrap_or(0)
        };
        let [usual, large] = SECTOR_SIZES_BYTES;
        let is_large = ends(large) <= source.len_bytes() && !known(usual) && known(large);
        self.read(source, if is_large { large } else { usual }).map(Some)
    }

    fn read(&self, source: &dyn HeaderSource, sector_size_bytes: u32) -> Result<Table, Error> {
        let mut table = Table {
            scheme: Scheme::Mbr,
            sector_size_bytes,
            uuid: format!("{:08x}", self.signature),
            partitions: Vec::new(),
            notices: Vec::new(),
        };
        for (number, entry) in self.used().filter(|(_, entry)| !entry.is_extended()) {
            table.partitions.push(self.partition(number, entry, 0, sector_size_bytes));
        }
        let mut extended = self.used().filter(|(_, entry)| entry.is_extended());
        if let Some((_, entry)) = extended.next() {
            self.add_logical(source, entry, &mut table)?;
        }
        if extended.next().is_some() {
            table.notices.push("the MBR has a second extended partition, which is left out".into());
        }
        Ok(table)
    }

    /// Follows the chain of the extended partition. A chain that does not go forward would have no
    /// end, so it is cut there.
    fn add_logical(
        &self,
        source: &dyn HeaderSource,
        extended: Entry,
        table: &mut Table,
    ) -> Result<(), Error> {
        let sector_size = table.sector_size_bytes;
        let base = u64::from(extended.start);
        let end = base + u64::from(extended.len);
        let mut record_at = base;
        let mut number = LOGICAL_FIRST;
        let mut cut = |problem: String| {
            table
                .notices
                .push(format!("the chain of logical partitions {problem}; it is cut there"));
        };
        loop {
            let offset = record_at * u64::from(sector_size);
            let mut sector = [0; 512];
            if record_at >= end || offset + sector.len() as u64 > source.len_bytes() {
                cut("leaves its extended partition or the disk".into());
                return Ok(());
            }
            read_at(source, offset, &mut sector)?;
            let Some(record) = Self::parse(&sector) else {
                cut(format!("has no boot record in sector {record_at}"));
                return Ok(());
            };
            let mut links = record.entries.iter().filter(|entry| entry.is_extended());
            let next = links.find(|entry| entry.len != 0).map(|entry| entry.start);
            for (_, entry) in record.used().filter(|(_, entry)| !entry.is_extended()) {
                if number - LOGICAL_FIRST == LOGICAL_MAX {
                    cut(format!("has more than {LOGICAL_MAX} partitions"));
                    return Ok(());
                }
                let one = self.partition(number, entry, record_at, sector_size);
                table.partitions.push(one);
                number += 1;
            }
            match next.map(|start| base + u64::from(start)) {
                None => return Ok(()),
                Some(next) if next <= record_at => {
                    cut(format!("goes from sector {record_at} back to {next}"));
                    return Ok(());
                }
                Some(next) => record_at = next,
            }
        }
    }

    fn partition(&self, number: u32, entry: Entry, base: u64, sector_size: u32) -> Partition {
        Partition {
            number,
            bytes: entry.bytes(base, sector_size),
            kind: kind::of_byte(entry.kind),
            uuid: format!("{:08x}-{number:02x}", self.signature),
            name: String::new(),
            problem: (entry.start == 0).then(|| "starts at its boot record".into()),
            content: Content::Unknown,
        }
    }
}

impl Entry {
    fn is_extended(self) -> bool {
        EXTENDED.contains(&self.kind)
    }

    /// The range on the disk, from a base in sectors. The numbers have 32 bits and the base 33 at
    /// most, so no sum overflows.
    fn bytes(self, base: u64, sector_size_bytes: u32) -> std::ops::Range<u64> {
        let start = base + u64::from(self.start);
        let sector_size = u64::from(sector_size_bytes);
        start * sector_size..(start + u64::from(self.len)) * sector_size
    }
}
