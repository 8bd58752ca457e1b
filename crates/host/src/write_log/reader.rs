//! Reads a log, and replays it onto a device up to one of its entries.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{DISCARD, ENTRY_BYTES, MAGIC, MARK, SECTOR_BYTES, VERSION};
use crate::Error;

/// Piece length of a replay.
const PIECE_BYTES: u64 = 64 << 10;

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// First sector on the device.
    pub sector: u64,
    /// Length on the device; a discard has no data in the log.
    pub nr_sectors: u64,
    /// [`FLUSH`](super::FLUSH), [`FUA`](super::FUA), [`DISCARD`](super::DISCARD),
    /// [`MARK`](super::MARK).
    pub flags: u64,
    /// The text of a mark.
    pub mark: Option<String>,
    /// Offset of its data in the log.
    at_bytes: u64,
}

/// A log of this target or of the kernel's.
#[derive(Debug)]
pub struct LogReader {
    file: File,
    path: PathBuf,
    sector_bytes: u64,
    entries: Vec<LogEntry>,
}

impl LogReader {
    /// Opens a log and reads the entries that its super block counts.
    ///
    /// # Errors
    /// The file is no log or ends early, or an entry exceeds it.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(|error| Error::io(path, "open", error))?;
        let read = |at_bytes: u64| {
            let mut sector = [0; SECTOR_BYTES];
            let read = file.read_exact_at(&mut sector, at_bytes);
            read.map_err(|error| Error::io(path, "read its log", error)).map(|()| sector)
        };
        let first = read(0)?;
        let magic = word(&first, 0);
        let version = word(&first, 1);
        let count = word(&first, 2);
        let sector_bytes = word(&first, 3) & u64::from(u32::MAX);
        if magic != MAGIC || version != VERSION {
            return Err(Error::volume(path, "holds no log of log-writes, version 1"));
        }
        if !matches!(sector_bytes, 512 | 1024 | 2048 | 4096) {
            let problem = format!("is a log in sectors of {sector_bytes} bytes, not 512 to 4096");
            return Err(Error::volume(path, problem));
        }
        let mut entries = Vec::new();
        let mut at_bytes = sector_bytes;
        for number in 0..count {
            let (entry, next) = parse(&read(at_bytes)?, at_bytes, sector_bytes)
                .ok_or_else(|| Error::volume(path, format!("has a bad entry {number}")))?;
            entries.push(entry);
            at_bytes = next;
        }
        Ok(Self { file, path: path.to_owned(), sector_bytes, entries })
    }

    /// The entries, first to last.
    #[must_use]
    pub fn entries(&self) -> &[LogEntry] {
        &self.entries
    }

    /// Applies the first `count` entries to `device`. Other data stays. A discard is replayed as
    /// zeroes, which usual devices return, up to the end of the device.
    ///
    /// # Errors
    /// The log cannot be read, or the device cannot be written.
    pub fn replay(&self, count: usize, device: &File) -> Result<(), Error> {
        let failed = |error| Error::io(&self.path, "replay", error);
        let end_bytes = (&*device).seek(SeekFrom::End(0)).map_err(failed)?;
        let replayed = self.entries.iter().take(count).try_for_each(|entry| {
            let at_bytes = entry.sector.checked_mul(self.sector_bytes);
            let at_bytes = at_bytes.ok_or(io::ErrorKind::InvalidData)?;
            let len_bytes = entry.nr_sectors * self.sector_bytes;
            let len_bytes = match entry.flags & DISCARD {
                0 => len_bytes,
                _ => len_bytes.min(end_bytes.saturating_sub(at_bytes)),
            };
            self.copy(entry, at_bytes, len_bytes, device)
        });
        replayed.map_err(failed)
    }

    fn copy(&self, entry: &LogEntry, at: u64, len: u64, device: &File) -> io::Result<()> {
        let mut piece = [0; PIECE_BYTES as usize];
        let mut done = 0;
        while done < len {
            let now = (len - done).min(PIECE_BYTES);
            let piece = &mut piece[..now as usize];
            if entry.flags & DISCARD == 0 {
                self.file.read_exact_at(piece, entry.at_bytes + done)?;
            }
            let to = at.checked_add(done).ok_or(io::ErrorKind::InvalidData)?;
            device.write_all_at(piece, to)?;
            done += now;
        }
        Ok(())
    }
}

/// Parses an entry; returns it with the offset of the next one, or `None` for invalid numbers.
fn parse(sector: &[u8; SECTOR_BYTES], at: u64, sector_bytes: u64) -> Option<(LogEntry, u64)> {
    let [first, nr_sectors, flags, text_len] = [0, 1, 2, 3].map(|index| word(sector, index));
    let is_mark = flags & MARK != 0;
    let mark = if is_mark {
        let end = ENTRY_BYTES.checked_add(usize::try_from(text_len).ok()?)?;
        Some(String::from_utf8_lossy(sector.get(ENTRY_BYTES..end)?).into_owned())
    } else {
        None
    };
    let at_bytes = at.checked_add(sector_bytes)?;
    let len_bytes = nr_sectors.checked_mul(sector_bytes)?;
    let next = match flags & DISCARD {
        0 => at_bytes.checked_add(len_bytes)?,
        _ => at_bytes,
    };
    Some((LogEntry { sector: first, nr_sectors, flags, mark, at_bytes }, next))
}

fn word(sector: &[u8; SECTOR_BYTES], index: usize) -> u64 {
    let bytes = &sector[index * 8..index * 8 + 8];
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}
