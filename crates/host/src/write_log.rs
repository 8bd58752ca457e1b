//! The log of a log-writes target, byte for byte like the kernel's (`drivers/md/dm-log-writes.c`),
//! so that `replay-log` reads it; with our own reader.
//!
//! ```text
//! sector 0      super block: magic, version, number of entries (u64), sector size (u32)
//! then, each    entry: sector, sectors, flags, length of its text (u64); its text, if a mark
//!   entry       its bytes, unless it is a discard, a mark or a flush
//! ```
//! All numbers are little-endian; each entry starts a sector. Entries are in the order in which a
//! power cut could find the writes stable: see [`log_writes`](blockyard_engine::dm::log_writes).
//! Unflushed writes are kept in memory; above `HELD_MAX_BYTES` we flush them ourselves and log
//! them. The super block is written after each flush and FUA write, and at the end, after an end
//! mark.
//!
//! Three details differ from the kernel. A FUA write does not overtake writes that it overwrites,
//! because a replay would undo it. Of two overlapping flushes, the one that ends first also covers
//! the writes of the one that started earlier; the kernel logs those at the other's end, and so
//! replays a device without stable data. And a log that cannot be written fails the write, because
//! a log with a gap proves nothing.

mod reader;

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use blockyard_engine::bio::{BlkStatus, IoContext, Sector};
use blockyard_engine::sq::LogStep;

use crate::Error;
use crate::file::{DeviceFile, FileId};
use crate::file_op::status;

pub use reader::{LogEntry, LogReader};

/// A flush: all earlier entries are on stable storage.
pub const FLUSH: u64 = 1 << 0;
/// A write that was stable at its end.
pub const FUA: u64 = 1 << 1;
/// A discard of a range.
pub const DISCARD: u64 = 1 << 2;
/// A mark with text.
pub const MARK: u64 = 1 << 3;
/// The last mark of a complete log.
pub const END_MARK: &str = "dm-log-writes-end";

/// Unit of an entry's sectors.
const SECTOR_BYTES: usize = 512;
/// `WRITE_LOG_MAGIC` and `WRITE_LOG_VERSION`.
const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;
/// Length of an entry; the text of a mark follows in its sector.
const ENTRY_BYTES: usize = 32;
/// Memory limit of unflushed writes (ours: the kernel has no limit).
const HELD_MAX_BYTES: usize = 64 << 20;

/// Identity of a flush; each submitter numbers its own flushes.
type FlushKey = (IoContext, u32);

/// A write or a discard that is not stable.
struct Held {
    sector: u64,
    nr_sectors: u64,
    flags: u64,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct Tail {
    /// Sector of the next entry.
    next_sector: u64,
    entries: u64,
    /// Ended writes in order, for the next flush.
    unflushed: Vec<Held>,
    /// Started flushes in order, with the writes that they cover.
    flushing: Vec<(FlushKey, Vec<Held>)>,
    held_bytes: usize,
    /// The log has a gap.
    is_broken: bool,
}

/// A log shared by all connections of a volume.
pub(crate) struct WriteLog {
    file: DeviceFile,
    /// The logged device.
    data: Arc<DeviceFile>,
    tail: Mutex<Tail>,
}

impl WriteLog {
    /// Identity of the log's file.
    pub(crate) fn file_id(&self) -> Option<FileId> {
        self.file.id()
    }

    /// Starts an empty log, which replaces the file's content.
    pub(crate) fn begin(file: DeviceFile, data: Arc<DeviceFile>) -> Result<Self, Error> {
        let tail = Tail { next_sector: 1, ..Tail::default() };
        let log = Self { file, data, tail: Mutex::default() };
        let failed = |error| Error::io(log.file.path(), "begin a log in it", error);
        log.write_super(&tail).map_err(failed)?;
        *log.tail.lock().unwrap_or_else(PoisonError::into_inner) = tail;
        Ok(log)
    }

    /// Logs a step; `bytes` are the data of a write, `flush` identifies the flush that starts or
    /// ends.
    pub(crate) fn step(&self, step: LogStep, bytes: &[u8], flush: FlushKey) -> BlkStatus {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        if tail.is_broken {
            return BlkStatus::IoError;
        }
        let done = self.take(&mut tail, step, bytes, flush);
        tail.is_broken = done.is_err();
        status(done)
    }

    fn take(
        &self,
        tail: &mut Tail,
        step: LogStep,
        bytes: &[u8],
        flush: FlushKey,
    ) -> io::Result<()> {
        match step {
            LogStep::Written { sector, fua } => {
                let nr_sectors = Sector::holding(bytes.len() as u64).0;
                let held = Held { sector: sector.0, nr_sectors, flags: 0, bytes: vec![] };
                if fua {
                    self.append_overlapped(tail, sector.0..sector.0 + nr_sectors)?;
                    self.append(tail, &Held { flags: FUA, ..held }, bytes)?;
                    return self.write_super(tail);
                }
                tail.held_bytes += bytes.len();
                tail.unflushed.push(Held { bytes: bytes.to_vec(), ..held });
                if tail.held_bytes > HELD_MAX_BYTES {
                    self.make_stable(tail)?;
                }
            }
            LogStep::Discarded { sector, len } => tail.unflushed.push(Held {
                sector: sector.0,
                nr_sectors: len.0,
                flags: DISCARD,
                bytes: vec![],
            }),
            LogStep::FlushStarts => {
                let covered = std::mem::take(&mut tail.unflushed);
                tail.flushing.push((flush, covered));
            }
            LogStep::FlushEnded { is_stable } => {
                let started = tail.flushing.iter().position(|(key, _)| *key == flush);
                let started = started.expect("a flush starts before it ends");
                if is_stable {
                    self.append_covered(tail, started + 1)?;
                }
                let (_, mut covered) = tail.flushing.remove(started);
                if !is_stable {
                    // The next flush to start covers it too.
                    let next = tail.flushing.get_mut(started).map(|(_, next)| next);
                    let next = next.unwrap_or(&mut tail.unflushed);
                    covered.append(next);
                    *next = covered;
                    return Ok(());
                }
                let flush = Held { sector: 0, nr_sectors: 0, flags: FLUSH, bytes: vec![] };
                self.append(tail, &flush, &[])?;
                self.write_super(tail)?;
            }
        }
        Ok(())
    }

    /// Flushes and logs all held writes now: everything acknowledged before is stable, regardless
    /// of running flushes.
    fn make_stable(&self, tail: &mut Tail) -> io::Result<()> {
        self.data.flush()?;
        self.append_covered(tail, tail.flushing.len())?;
        let unflushed = std::mem::take(&mut tail.unflushed);
        self.append_held(tail, unflushed)
    }

    /// Logs the writes covered by the first `count` running flushes.
    fn append_covered(&self, tail: &mut Tail, count: usize) -> io::Result<()> {
        for started in 0..count {
            let covered = std::mem::take(&mut tail.flushing[started].1);
            self.append_held(tail, covered)?;
        }
        Ok(())
    }

    /// Logs held writes before an overtaking write, up to the last one that overlaps it, so that a
    /// replay does not undo it.
    fn append_overlapped(&self, tail: &mut Tail, range: Range<u64>) -> io::Result<()> {
        let kept = tail.flushing.iter().flat_map(|(_, covered)| covered).chain(&tail.unflushed);
        let overlaps =
            |held: &Held| held.sector < range.end && range.start < held.sector + held.nr_sectors;
        let last = kept.enumerate().filter(|(_, held)| overlaps(held)).last();
        let mut count = last.map_or(0, |(at, _)| at + 1);
        for started in 0..=tail.flushing.len() {
            let covered = tail.flushing.get_mut(started).map(|(_, covered)| covered);
            let list = covered.unwrap_or(&mut tail.unflushed);
            let first: Vec<Held> = list.drain(..count.min(list.len())).collect();
            count -= first.len();
            self.append_held(tail, first)?;
        }
        Ok(())
    }

    fn append_held(&self, tail: &mut Tail, held: Vec<Held>) -> io::Result<()> {
        for held in held {
            self.append(tail, &held, &held.bytes)?;
            tail.held_bytes -= held.bytes.len();
        }
        Ok(())
    }

    /// Appends an entry and its data.
    fn append(&self, tail: &mut Tail, entry: &Held, bytes: &[u8]) -> io::Result<()> {
        let header = entry_sector([entry.sector, entry.nr_sectors, entry.flags, 0], &[]);
        self.append_raw(tail, &header, bytes)
    }

    fn append_raw(&self, tail: &mut Tail, header: &[u8], bytes: &[u8]) -> io::Result<()> {
        assert!(bytes.len().is_multiple_of(SECTOR_BYTES), "bios have whole sectors");
        let file = self.file.file();
        let at_bytes = tail.next_sector * SECTOR_BYTES as u64;
        file.write_all_at(header, at_bytes)?;
        file.write_all_at(bytes, at_bytes + SECTOR_BYTES as u64)?;
        tail.next_sector += 1 + (bytes.len() / SECTOR_BYTES) as u64;
        tail.entries += 1;
        Ok(())
    }

    fn write_super(&self, tail: &Tail) -> io::Result<()> {
        let mut sector = entry_sector([MAGIC, VERSION, tail.entries, 0], &[]);
        sector[24..28].copy_from_slice(&(SECTOR_BYTES as u32).to_le_bytes());
        self.file.file().write_all_at(&sector, 0)
    }

    /// Ends the log: unflushed writes, the end mark, the number of entries.
    fn end(&self, tail: &mut Tail) -> io::Result<()> {
        self.append_covered(tail, tail.flushing.len())?;
        let unflushed = std::mem::take(&mut tail.unflushed);
        self.append_held(tail, unflushed)?;
        let text = END_MARK.as_bytes();
        self.append_raw(tail, &entry_sector([0, 0, MARK, text.len() as u64], text), &[])?;
        self.write_super(tail)
    }
}

impl Drop for WriteLog {
    /// A log that could not be written stays as it is.
    fn drop(&mut self) {
        let mut tail =
            std::mem::take(&mut *self.tail.lock().unwrap_or_else(PoisonError::into_inner));
        if !tail.is_broken {
            let _ = self.end(&mut tail);
        }
    }
}

/// A sector with four numbers and a text.
fn entry_sector(numbers: [u64; 4], text: &[u8]) -> [u8; SECTOR_BYTES] {
    let mut sector = [0; SECTOR_BYTES];
    for (place, number) in sector.chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    sector[ENTRY_BYTES..ENTRY_BYTES + text.len()].copy_from_slice(text);
    sector
}

#[cfg(test)]
mod tests;
