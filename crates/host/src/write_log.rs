//! The log of a log-writes target, byte for byte as the kernel's (`drivers/md/dm-log-writes.c`), so
//! that `replay-log` reads it; and a reader of our own.
//!
//! ```text
//! sector 0      super block: magic, version, number of entries (u64), sector size (u32)
//! then, each    entry: sector, sectors, flags, length of its text (u64); its text, if a mark
//!   entry       its bytes, unless it is a discard, a mark or a flush
//! ```
//! All numbers are little-endian; an entry has a sector of its own. Entries are in the order in
//! which a power cut could have found the writes stable: see
//! [`log_writes`](blockyard_engine::dm::log_writes). What was written and not flushed yet is kept
//! in memory until it is; more of it than `HELD_MAX_BYTES` is made stable by a flush of our own,
//! and logged. The super block is written after each flush and FUA write, and at the end, after a
//! mark that says so.
//!
//! Three things are not the kernel's. A FUA write does not overtake what it replaces, or a replay
//! would undo it. When two flushes overlap, the one that ends first is also for what the other one
//! took when it started earlier; the kernel logs that when the other one ends, and replays a device
//! that lacks what was stable. And a log that cannot be written fails the write: a log with a gap
//! proves nothing.

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

/// A flush is on stable storage, and all that the log holds before it.
pub const FLUSH: u64 = 1 << 0;
/// A write that was stable when it ended.
pub const FUA: u64 = 1 << 1;
/// A range was discarded.
pub const DISCARD: u64 = 1 << 2;
/// A text.
pub const MARK: u64 = 1 << 3;
/// The last mark of a log that was ended.
pub const END_MARK: &str = "dm-log-writes-end";

/// Sectors that an entry counts in.
const SECTOR_BYTES: usize = 512;
/// `WRITE_LOG_MAGIC` and `WRITE_LOG_VERSION`.
const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;
/// Length of an entry; a mark's text follows it in its sector.
const ENTRY_BYTES: usize = 32;
/// Writes that wait for a flush may take this much memory (ours: the kernel has no limit).
const HELD_MAX_BYTES: usize = 64 << 20;

/// Whose flush it is: submitters number theirs themselves.
type FlushKey = (IoContext, u32);

/// A write or a discard that is not stable yet.
struct Held {
    sector: u64,
    nr_sectors: u64,
    flags: u64,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct Tail {
    /// Where the next entry goes.
    next_sector: u64,
    entries: u64,
    /// Ended, in this order; the next flush takes them.
    unflushed: Vec<Held>,
    /// Flushes that have started, in this order, and what they are for.
    flushing: Vec<(FlushKey, Vec<Held>)>,
    held_bytes: usize,
    /// The log has a gap.
    is_broken: bool,
}

/// A log that is being written, by all connections of a volume.
pub(crate) struct WriteLog {
    file: DeviceFile,
    /// What it is the log of.
    data: Arc<DeviceFile>,
    tail: Mutex<Tail>,
}

impl WriteLog {
    /// Which file the log is in.
    pub(crate) fn file_id(&self) -> Option<FileId> {
        self.file.id()
    }

    /// An empty log; what the file held is not one any more.
    pub(crate) fn begin(file: DeviceFile, data: Arc<DeviceFile>) -> Result<Self, Error> {
        let tail = Tail { next_sector: 1, ..Tail::default() };
        let log = Self { file, data, tail: Mutex::default() };
        let failed = |error| Error::io(log.file.path(), "begin a log in", error);
        log.write_super(&tail).map_err(failed)?;
        *log.tail.lock().unwrap_or_else(PoisonError::into_inner) = tail;
        Ok(log)
    }

    /// Notes what has happened; `bytes` are those of a write, `flush` names the flush that starts
    /// or ends.
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
                    // The next flush to start is for it as well.
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

    /// All that is held, flushed here and now: what was answered before this is stable, whatever
    /// becomes of the flushes under way.
    fn make_stable(&self, tail: &mut Tail) -> io::Result<()> {
        self.data.flush()?;
        self.append_covered(tail, tail.flushing.len())?;
        let unflushed = std::mem::take(&mut tail.unflushed);
        self.append_held(tail, unflushed)
    }

    /// What the first `count` flushes under way are for.
    fn append_covered(&self, tail: &mut Tail, count: usize) -> io::Result<()> {
        for started in 0..count {
            let covered = std::mem::take(&mut tail.flushing[started].1);
            self.append_held(tail, covered)?;
        }
        Ok(())
    }

    /// A write that overtakes must not be undone by one that it replaced: what is kept back is
    /// logged before it, up to the last one that touches the same sectors.
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

    /// One entry and its bytes.
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

    /// What was not flushed, the mark, the number of entries.
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
    /// A log that could not be written until here ends where it is.
    fn drop(&mut self) {
        let mut tail =
            std::mem::take(&mut *self.tail.lock().unwrap_or_else(PoisonError::into_inner));
        if !tail.is_broken {
            let _ = self.end(&mut tail);
        }
    }
}

/// Four numbers and a text in a sector.
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
