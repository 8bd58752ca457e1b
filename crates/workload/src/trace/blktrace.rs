//! Records of `blktrace(8)` as a trace (`linux/blktrace_api.h`).
//!
//! A file is a sequence of records of 48 bytes, each followed by a payload of the stated length.
//! There is one file for each CPU, and all share one clock. One kind of event makes a bio of the
//! trace: queued or issued. The bio's completion is the next completion event that covers its
//! range. The submitter is the process.

use std::collections::BTreeMap;
use std::io::Read;

use blockyard_engine::bio::{BlkStatus, Op};
use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;

use super::reader::{cannot_read, fill, wrong};
use super::{
    BIOS_MAX, Completion, End, Header, SECTORS_MAX, Trace, TraceError, TracedBio, too_many,
};

/// `BLK_IO_TRACE_MAGIC`; the last byte holds the version.
const MAGIC: u32 = 0x6561_7400;
/// `BLK_IO_TRACE_VERSION`.
const VERSION: u32 = 7;
/// `struct blk_io_trace`.
const RECORD_BYTES: usize = 48;

/// `__BLK_TA_*`: the low half of an action, without the bit for a following control group.
const QUEUE: u32 = 1;
const ISSUE: u32 = 7;
const COMPLETE: u32 = 8;
const ACTION_MASK: u32 = 0xff;
/// `BLK_TC_*`: the high half.
const WRITE: u32 = 1 << 17;
const FLUSH: u32 = 1 << 18;
const SYNC: u32 = 1 << 19;
const PASS_THROUGH: u32 = 1 << 25;
const NOTIFY: u32 = 1 << 26;
const DISCARD: u32 = 1 << 29;
const FUA: u32 = 1 << 31;

/// Event that makes a bio of the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// `Q`: the bio was queued, as its submitter made it.
    #[default]
    Queue,
    /// `D`: the request was issued to the device, merged and in the order of the kernel's
    /// scheduler.
    Issue,
}

/// A relevant event.
#[derive(Clone, Copy, Debug)]
struct Event {
    time: u64,
    sector: u64,
    bytes: u32,
    action: u32,
    pid: u32,
    error: u16,
}

/// The events of one or more files.
#[derive(Debug, Default)]
pub struct Events {
    events: Vec<Event>,
    device: Option<u32>,
    cut_off_at_bytes: Option<u64>,
}

impl Events {
    /// Whether the first bytes are those of a `blktrace` file, in either byte order.
    #[must_use]
    pub fn begin_with(bytes: [u8; 4]) -> bool {
        is_magic(u32::from_le_bytes(bytes)) || is_magic(u32::from_be_bytes(bytes))
    }

    /// Adds the events of a file.
    ///
    /// # Errors
    /// When the file is invalid, has another device than the files before, or is too long.
    pub fn add(&mut self, mut input: impl Read) -> Result<(), TraceError> {
        let mut offset_bytes = 0;
        loop {
            let mut bytes = [0; RECORD_BYTES];
            let got = fill(&mut input, &mut bytes);
            let got = got.map_err(|error| cannot_read(offset_bytes, &error))?;
            if got == 0 {
                return Ok(());
            }
            if got < RECORD_BYTES {
                self.cut_off_at_bytes = Some(offset_bytes);
                return Ok(());
            }
            let record = Record::of(&bytes, offset_bytes)?;
            self.take(&record, offset_bytes)?;
            let pdu_bytes = u64::from(record.pdu_bytes);
            let skipped = std::io::copy(&mut input.by_ref().take(pdu_bytes), &mut std::io::sink());
            let skipped = skipped.map_err(|error| cannot_read(offset_bytes, &error))?;
            if skipped < pdu_bytes {
                self.cut_off_at_bytes = Some(offset_bytes);
                return Ok(());
            }
            offset_bytes += RECORD_BYTES as u64 + pdu_bytes;
        }
    }

    fn take(&mut self, record: &Record, offset_bytes: u64) -> Result<(), TraceError> {
        let event = record.event;
        let action = event.action & ACTION_MASK;
        let is_other = event.action & (NOTIFY | PASS_THROUGH) > 0;
        if is_other || ![QUEUE, ISSUE, COMPLETE].contains(&action) {
            return Ok(());
        }
        if *self.device.get_or_insert(record.device) != record.device {
            let problem = "events of a second device begin here; trace one device at a time";
            return Err(wrong(offset_bytes, problem));
        }
        if event.sector > SECTORS_MAX - u64::from(u32::MAX) {
            return Err(wrong(offset_bytes, "the sector is beyond any disk's end: damaged"));
        }
        // Three events for each bio.
        if self.events.len() == 3 * BIOS_MAX {
            return Err(too_many(offset_bytes));
        }
        self.events.push(event);
        Ok(())
    }

    /// Builds the trace from events of the wanted kind.
    #[must_use]
    pub fn into_trace(mut self, wanted: Action) -> Trace {
        // Stable: the events of one CPU are in order already.
        self.events.sort_by_key(|event| event.time);
        let began = self.events.first().map_or(0, |event| event.time);
        let length = self.events.last().map_or(0, |event| event.time) - began;
        let wanted = match wanted {
            Action::Queue => QUEUE,
            Action::Issue => ISSUE,
        };
        let mut bios: Vec<TracedBio> = Vec::new();
        // Open bios, by direction and first sector.
        let mut open: BTreeMap<(bool, u64, usize), u64> = BTreeMap::new();
        for event in &self.events {
            let at = Nanos(event.time - began);
            let writes = event.action & WRITE > 0;
            if event.action & ACTION_MASK == wanted && bios.len() < BIOS_MAX {
                let bio = event.bio(at);
                open.insert((writes, bio.sector, bios.len()), bio.end_sector());
                bios.push(bio);
            } else if event.action & ACTION_MASK == COMPLETE {
                let status = if event.error == 0 { BlkStatus::Ok } else { BlkStatus::IoError };
                for number in event.covered(writes, &open) {
                    let bio = &mut bios[number];
                    let latency = at.since(bio.start);
                    bio.completion = Some(Completion { latency, status });
                    open.remove(&(writes, bio.sector, number));
                }
            }
        }
        let end = End { length: Nanos(length), lost: 0, cut_off_at_bytes: self.cut_off_at_bytes };
        let export = "blktrace".into();
        let header = Header { volume_bytes: 0, sector_bytes: 512, export, began_unix_ns: 0 };
        Trace::of(header, bios, end)
    }
}

impl Event {
    fn sectors(&self) -> u32 {
        self.bytes.div_ceil(512)
    }

    fn bio(&self, start: Nanos) -> TracedBio {
        let is = |flag| self.action & flag > 0;
        let op = match self.bytes {
            0 => Op::Flush,
            _ if is(DISCARD) => Op::Discard,
            _ if is(WRITE) => Op::Write,
            _ => Op::Read,
        };
        let is_flush = op == Op::Flush;
        TracedBio {
            start,
            op,
            fua: op == Op::Write && is(FUA),
            preflush: op == Op::Write && is(FLUSH),
            sync: is(SYNC) || matches!(op, Op::Read | Op::Flush),
            sector: if is_flush { 0 } else { self.sector },
            sectors: self.sectors(),
            submitter: self.pid,
            priority: Priority::default(),
            completion: None,
        }
    }

    /// Open bios that a completion ends: all bios within its range; for a completion without a
    /// range the oldest bio.
    fn covered(&self, writes: bool, open: &BTreeMap<(bool, u64, usize), u64>) -> Vec<usize> {
        if self.bytes == 0 {
            let flushes = open.range((writes, 0, 0)..=(writes, 0, usize::MAX));
            let oldest = flushes.filter(|(_, end)| **end == 0).map(|((.., number), _)| *number);
            return oldest.min().into_iter().collect();
        }
        let end = self.sector + u64::from(self.sectors());
        let within = open.range((writes, self.sector, 0)..(writes, end, 0));
        let whole = within.filter(|((_, start, _), last)| **last <= end && *last > start);
        whole.map(|((.., number), _)| *number).collect()
    }
}

fn is_magic(word: u32) -> bool {
    word & !0xff == MAGIC
}

/// An encoded record.
struct Record {
    event: Event,
    device: u32,
    pdu_bytes: u16,
}

impl Record {
    fn of(bytes: &[u8; RECORD_BYTES], offset_bytes: u64) -> Result<Self, TraceError> {
        let first = [bytes[0], bytes[1], bytes[2], bytes[3]];
        let is_big = is_magic(u32::from_be_bytes(first));
        let part = |at: usize, len: usize| {
            let bytes = &bytes[at..at + len];
            let add = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
            if is_big { bytes.iter().fold(0, add) } else { bytes.iter().rev().fold(0, add) }
        };
        let magic = part(0, 4) as u32;
        if !is_magic(magic) {
            let problem = "no blktrace record begins here; the file is damaged or of another kind";
            return Err(wrong(offset_bytes, problem));
        }
        let version = magic & 0xff;
        if version != VERSION {
            let problem = format!("the record has version {version}; only {VERSION} is supported");
            return Err(wrong(offset_bytes, problem));
        }
        let event = Event {
            time: part(8, 8),
            sector: part(16, 8),
            bytes: part(24, 4) as u32,
            action: part(28, 4) as u32,
            pid: part(32, 4) as u32,
            error: part(44, 2) as u16,
        };
        Ok(Self { event, device: part(36, 4) as u32, pdu_bytes: part(46, 2) as u16 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes a record in the header file's layout.
    fn record(
        is_big: bool,
        time: u64,
        action: u32,
        (sector, bytes): (u64, u32),
        pid: u32,
    ) -> Vec<u8> {
        let pdu = b"pdu";
        let words = [
            (u64::from(MAGIC | VERSION), 4),
            (1, 4),
            (time, 8),
            (sector, 8),
            (bytes.into(), 4),
            (action.into(), 4),
            (pid.into(), 4),
            (8 << 20, 4),
            (0, 4),
            (0, 2),
            (pdu.len() as u64, 2),
        ];
        let mut all = Vec::new();
        for (word, len) in words {
            if is_big {
                all.extend(&word.to_be_bytes()[8 - len..]);
            } else {
                all.extend(&word.to_le_bytes()[..len]);
            }
        }
        assert_eq!(all.len(), RECORD_BYTES);
        all.extend(pdu);
        all
    }

    const READ: u32 = 1 << 16;

    fn trace(files: &[Vec<u8>], action: Action) -> Trace {
        let mut events = Events::default();
        files.iter().for_each(|file| events.add(&file[..]).unwrap());
        events.into_trace(action)
    }

    #[test]
    fn files_of_all_cpus_and_of_either_byte_order_are_one_trace() {
        for is_big in [false, true] {
            let record = |time, action, range, pid| record(is_big, time, action, range, pid);
            let first = [
                record(1_000, QUEUE | READ, (8, 4096), 70),
                record(1_400, ISSUE | READ, (8, 8192), 70),
                record(1_500, COMPLETE | READ, (8, 8192), 0),
                record(1_600, QUEUE | WRITE | FLUSH, (0, 0), 71),
                record(1_900, COMPLETE | WRITE | FLUSH, (0, 0), 0),
            ];
            let second = [
                record(900, NOTIFY, (0, 0), 0),
                record(1_100, QUEUE | READ, (16, 4096), 70),
                record(1_550, QUEUE | WRITE | SYNC | FUA, (8, 512), 71),
                record(1_800, QUEUE | WRITE | DISCARD, (64, 65536), 71),
            ];
            assert!(Events::begin_with(std::array::from_fn(|at| first[0][at])));
            let files = [first.concat(), second.concat()];
            let trace = trace(&files, Action::Queue);
            let bios = trace.bios.iter().map(|bio| {
                let latency = bio.completion.map(|end| end.latency.0);
                (bio.start.0, bio.op, bio.sector, bio.sectors, bio.submitter, latency)
            });
            let wanted = [
                (0, Op::Read, 8, 8, 70, Some(500)),
                (100, Op::Read, 16, 8, 70, Some(400)),
                (550, Op::Write, 8, 1, 71, None),
                (600, Op::Flush, 0, 0, 71, Some(300)),
                (800, Op::Discard, 64, 128, 71, None),
            ];
            assert!(bios.eq(wanted), "{:#?}", trace.bios);
            assert!(trace.bios[2].fua && trace.bios[2].sync && !trace.bios[4].fua);
            assert_eq!(trace.end.length, Nanos(900));
            let issued = self::trace(&files, Action::Issue);
            assert_eq!(issued.bios.len(), 1);
            assert_eq!((issued.bios[0].sectors, issued.bios[0].start), (16, Nanos(400)));
        }
    }

    #[test]
    fn invalid_record_has_its_offset_and_a_cut_record_ends_the_trace() {
        let one = record(false, 5, QUEUE | READ, (8, 512), 1);
        let read = |bytes: &[u8]| {
            let mut events = Events::default();
            events.add(bytes).map(|()| events.into_trace(Action::Queue))
        };
        let cut = read(&[&one[..], &one[..20]].concat()).unwrap();
        assert_eq!((cut.bios.len(), cut.end.cut_off_at_bytes), (1, Some(51)));
        let error = read(&[&one[..], &[0; 60]].concat()).unwrap_err();
        assert_eq!(error.offset_bytes, 51);
        let mut old = one.clone();
        old[0] = 6;
        assert!(read(&old).unwrap_err().problem.contains("version 6"));
        let mut other = one.clone();
        other[36] = 9;
        let error = read(&[&one[..], &other].concat()).unwrap_err();
        assert!(error.problem.contains("second device"), "{error}");
        let far = record(false, 5, QUEUE | READ, (u64::MAX, 512), 1);
        assert!(read(&far).is_err());
        assert!(!Events::begin_with(*b"BYTR"));
    }
}
