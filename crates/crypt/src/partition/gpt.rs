//! GUID partition tables (UEFI Specification 2.10, 5.3).
//!
//! ```text
//!   sector 0  | 1      | 2 ...   |        | ...     | last
//!   MBR       | header | entries | data   | entries | header
//! ```
//!
//! Both copies have checksums over the header and the entries. The second one is used if the first
//! is damaged.

use uuid::Uuid;

use super::mbr::BootRecord;
use super::{Content, Partition, SECTOR_SIZES_BYTES, Scheme, Table, kind, le32, le64};
use crate::crc32::crc32;
use crate::error::Error;
use crate::source::HeaderSource;

const MARK: &[u8; 8] = b"EFI PART";
/// Length of the header's fields; a longer header has a reserved rest.
const HEADER_LEN_BYTES: usize = 92;
const CHECKSUM: std::ops::Range<usize> = 16..20;
/// The shortest entry; longer ones are powers of two times it.
const ENTRY_LEN_BYTES: usize = 128;
/// Limit of all entries, the kernel's too; 128 entries of 128 bytes are usual.
const ENTRIES_LEN_MAX_BYTES: u64 = 4 << 20;
/// Limit of used entries; Linux has fewer device names.
const PARTITIONS_MAX: usize = 256;

/// The checked fields of a header.
struct Header {
    uuid: Uuid,
    usable: std::ops::RangeInclusive<u64>,
    entries: Vec<u8>,
    entry_len_bytes: usize,
}

/// The table, in the first sector size with an intact copy.
pub(super) fn read(
    source: &dyn HeaderSource,
    boot_record: Option<&BootRecord>,
) -> Result<Option<Table>, Error> {
    let mut problem = None;
    for is_backup in [false, true] {
        for sector_size_bytes in SECTOR_SIZES_BYTES {
            let sector_size = u64::from(sector_size_bytes);
            let sectors = source.len_bytes() / sector_size;
            let place = if is_backup { sectors.saturating_sub(1) } else { 1 };
            if place == 0 || place >= sectors {
                continue;
            }
            match header_at(source, place, sector_size_bytes) {
                Ok(None) => {}
                Err(found) => problem = problem.or(Some(found)),
                Ok(Some(header)) => {
                    let mut table = header.table(sector_size_bytes)?;
                    if is_backup {
                        let found = problem.unwrap_or_else(|| "it has no header".into());
                        table.notices.push(format!(
                            "the primary GPT is damaged ({found}); the backup at the end of the \
                             disk is in use; sgdisk or gdisk can write the primary again"
                        ));
                    }
                    if boot_record.is_some_and(BootRecord::is_hybrid) {
                        table.notices.push(
                            "the MBR has partitions too (a hybrid MBR); those of the GPT are shown"
                                .into(),
                        );
                    }
                    return Ok(Some(table));
                }
            }
        }
    }
    match problem {
        None => Ok(None),
        Some(problem) => Err(Error::header("GPT partition table", problem)),
    }
}

/// The header in this sector; `None` if none is there.
fn header_at(
    source: &dyn HeaderSource,
    sector: u64,
    sector_size_bytes: u32,
) -> Result<Option<Header>, String> {
    let sector_size = u64::from(sector_size_bytes);
    let mut bytes = vec![0; sector_size_bytes as usize];
    let unreadable = |error: crate::source::SourceError| error.to_string();
    source.read_at(sector * sector_size, &mut bytes).map_err(unreadable)?;
    if !bytes.starts_with(MARK) {
        return Ok(None);
    }
    let header_len = le32(&bytes, 12) as usize;
    if !(HEADER_LEN_BYTES..=bytes.len()).contains(&header_len) {
        return Err(format!("its header has an invalid length of {header_len} bytes"));
    }
    let sum = le32(&bytes, CHECKSUM.start);
    bytes[CHECKSUM].fill(0);
    if crc32(&bytes[..header_len]) != sum {
        return Err("the checksum of its header is wrong".into());
    }
    if le64(&bytes, 24) != sector {
        return Err(format!("its header says that it is in sector {}", le64(&bytes, 24)));
    }
    let count = le32(&bytes, 80);
    let entry_len = le32(&bytes, 84);
    let entries_len = u64::from(count) * u64::from(entry_len);
    let is_entry_len = entry_len.is_power_of_two() && entry_len as usize >= ENTRY_LEN_BYTES;
    if !is_entry_len || entries_len == 0 || entries_len > ENTRIES_LEN_MAX_BYTES {
        return Err(format!(
            "it has {count} entries of {entry_len} bytes; at most {} MiB are read",
            ENTRIES_LEN_MAX_BYTES >> 20
        ));
    }
    let offset = le64(&bytes, 72).checked_mul(sector_size).ok_or("its entries lie at no sector")?;
    let len = usize::try_from(entries_len).expect("the limit is small");
    if offset.checked_add(entries_len).is_none_or(|end| end > source.len_bytes()) {
        return Err("its entries lie past the end of the disk".into());
    }
    let mut entries = vec![0; len];
    source.read_at(offset, &mut entries).map_err(unreadable)?;
    if crc32(&entries) != le32(&bytes, 88) {
        return Err("the checksum of its entries is wrong".into());
    }
    Ok(Some(Header {
        uuid: guid(&bytes[56..]),
        usable: le64(&bytes, 40)..=le64(&bytes, 48),
        entries,
        entry_len_bytes: entry_len as usize,
    }))
}

impl Header {
    fn table(&self, sector_size_bytes: u32) -> Result<Table, Error> {
        let mut partitions = Vec::new();
        for (index, entry) in self.entries.chunks_exact(self.entry_len_bytes).enumerate() {
            if entry[..16] == [0; 16] {
                continue;
            }
            if partitions.len() == PARTITIONS_MAX {
                return Err(Error::header(
                    "GPT partition table",
                    format!("it has more than {PARTITIONS_MAX} partitions"),
                ));
            }
            let number = u32::try_from(index + 1).expect("the table is short");
            partitions.push(self.partition(number, entry, sector_size_bytes));
        }
        Ok(Table {
            scheme: Scheme::Gpt,
            sector_size_bytes,
            uuid: self.uuid.to_string(),
            partitions,
            notices: Vec::new(),
        })
    }

    fn partition(&self, number: u32, entry: &[u8], sector_size_bytes: u32) -> Partition {
        let first = le64(entry, 32);
        let last = le64(entry, 40);
        let sector_size = u64::from(sector_size_bytes);
        let start = first.checked_mul(sector_size);
        let end = last.checked_add(1).and_then(|past| past.checked_mul(sector_size));
        let problem = if first > last {
            Some(format!("starts at sector {first} and ends at sector {last}"))
        } else if !(self.usable.contains(&first) && self.usable.contains(&last)) {
            let from = self.usable.start();
            let to = self.usable.end();
            Some(format!("is outside of the usable sectors {from} to {to} of its table"))
        } else {
            None
        };
        let bytes = start.unwrap_or(u64::MAX)..end.unwrap_or(u64::MAX);
        Partition {
            number,
            bytes,
            kind: kind::of_guid(guid(entry)),
            uuid: guid(&entry[16..]).to_string(),
            name: name(&entry[56..ENTRY_LEN_BYTES]),
            problem,
            content: Content::Unknown,
        }
    }
}

/// A GUID: its first three fields are little-endian.
fn guid(bytes: &[u8]) -> Uuid {
    Uuid::from_bytes_le(*bytes.first_chunk().expect("the field is in the structure"))
}

/// A name in UTF-16, padded with zeros.
fn name(bytes: &[u8]) -> String {
    let units = bytes.as_chunks::<2>().0.iter().map(|unit| u16::from_le_bytes(*unit));
    let units = units.take_while(|unit| *unit != 0);
    char::decode_utf16(units).map(|it| it.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
}
