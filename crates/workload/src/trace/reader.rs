//! Reads a trace, a block at a time. The input is untrusted: lengths have limits, and a block's
//! checksum is verified before its records are parsed.

use std::collections::BTreeMap;
use std::io::{self, Read};

use blockyard_engine::bio::Op;
use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;

use super::bytes::{crc32, take_distance, take_varint};
use super::writer::{
    BLOCK_HEADER_BYTES, CHECKSUM_BYTES, END, ENDED, FIXED_HEADER_BYTES, FUA, OP_BITS, OPS,
    OTHER_SUBMITTER, PREFLUSH, RECORDS, STATUSES, SYNC, priority_of,
};
use super::{
    BLOCK_BYTES_MAX, Completion, EXPORT_BYTES_MAX, End, Header, MAGIC, SECTORS_MAX, TraceError,
    TracedBio, VERSION,
};

/// Length of the shortest record: a flush that did not end.
const RECORD_BYTES_MIN: usize = 2;

/// Reader of bios in the file's order, the order in which they ended.
// 13 fields: the input, the place in it, and the values that the next record is relative to.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    header: Header,
    /// Number of bytes read from the input.
    offset_bytes: u64,
    block: Vec<u8>,
    /// Offset of the block's content in the file.
    block_offset_bytes: u64,
    /// Number of parsed bytes of the block.
    at: usize,
    records_left: u32,
    bios: u64,
    last_start: u64,
    last_submitter: Option<(u32, Priority)>,
    ends: BTreeMap<u32, u64>,
    end: End,
    has_ended: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// When the input is no trace, or has a later version.
    pub fn new(mut input: R) -> Result<Self, TraceError> {
        let mut bytes = vec![0; FIXED_HEADER_BYTES];
        let got = fill(&mut input, &mut bytes).map_err(|error| cannot_read(0, &error))?;
        if bytes[..8] != MAGIC {
            return Err(wrong(0, "the file is no trace: it does not begin with \"BYTRACE\""));
        }
        if got < bytes.len() {
            return Err(wrong(got as u64, "the trace is cut off within its header"));
        }
        let number = |at| u32_at(&bytes, at);
        let long = |at| u64_at(&bytes, at);
        if number(8) != VERSION {
            let version = number(8);
            let problem = format!(
                "the trace has version {version} of the format, and this program reads {VERSION}; \
                 read it with the program that wrote it"
            );
            return Err(wrong(8, problem));
        }
        let name_bytes = number(28) as usize;
        let len_bytes = FIXED_HEADER_BYTES + name_bytes + CHECKSUM_BYTES;
        if name_bytes > EXPORT_BYTES_MAX || number(12) as usize != len_bytes {
            return Err(wrong(12, "the header's length is invalid"));
        }
        let volume_bytes = long(16);
        let sector_bytes = number(24);
        let began_unix_ns = long(32);
        bytes.resize(len_bytes, 0);
        let got = fill(&mut input, &mut bytes[FIXED_HEADER_BYTES..])
            .map_err(|error| cannot_read(FIXED_HEADER_BYTES as u64, &error))?;
        if FIXED_HEADER_BYTES + got < len_bytes {
            return Err(wrong(FIXED_HEADER_BYTES as u64, "the trace is cut off within its header"));
        }
        let (checked, checksum) = bytes.split_at(len_bytes - CHECKSUM_BYTES);
        if crc32(&[checked]) != u32_at(checksum, 0) {
            return Err(wrong(0, "the header is damaged: its checksum is wrong"));
        }
        let name = String::from_utf8(checked[FIXED_HEADER_BYTES..].to_vec());
        let export = name.map_err(|_| wrong(40, "the name of the export is not UTF-8"))?;
        let header = Header { volume_bytes, sector_bytes, export, began_unix_ns };
        Ok(Self {
            input,
            header,
            offset_bytes: len_bytes as u64,
            block: Vec::new(),
            block_offset_bytes: 0,
            at: 0,
            records_left: 0,
            bios: 0,
            last_start: 0,
            last_submitter: None,
            ends: BTreeMap::new(),
            end: End::default(),
            has_ended: false,
        })
    }

    /// The trace's header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Number of bytes read from the file.
    #[must_use]
    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// The trace's end. The value is provisional until [`Reader::next_bio`] returns `None`.
    #[must_use]
    pub fn end(&self) -> End {
        self.end
    }

    /// Reads the next bio; `None` after the last. A truncated block counts as the end:
    /// [`End::cut_off_at_bytes`].
    ///
    /// # Errors
    /// When a block is damaged, or a record is invalid.
    pub fn next_bio(&mut self) -> Result<Option<TracedBio>, TraceError> {
        while self.records_left == 0 {
            if self.has_ended || !self.next_block()? {
                return Ok(None);
            }
        }
        let offset_bytes = self.block_offset_bytes + self.at as u64;
        self.bios += 1;
        self.records_left -= 1;
        let refuse = |problem: &str| TraceError {
            offset_bytes,
            bio: Some(self.bios),
            problem: format!("{problem}; the program that wrote the trace has a bug"),
        };
        let mut rest = &self.block[self.at..];
        let before = State { last_start: self.last_start, last_submitter: self.last_submitter };
        let bio = take_record(&mut rest, before, &mut self.ends).map_err(refuse)?;
        self.at = self.block.len() - rest.len();
        if self.records_left == 0 && self.at != self.block.len() {
            return Err(refuse("the block is longer than its records"));
        }
        self.last_start = bio.start.0;
        self.last_submitter = Some((bio.submitter, bio.priority));
        let ended = bio.completion.map_or(Nanos(0), |completion| completion.latency);
        self.end.length = self.end.length.max(bio.start + ended);
        Ok(Some(bio))
    }

    /// Reads a block; false after the last one.
    fn next_block(&mut self) -> Result<bool, TraceError> {
        let start = self.offset_bytes;
        let mut header = [0; BLOCK_HEADER_BYTES];
        if !self.read_whole(start, &mut header)? {
            return Ok(false);
        }
        let len_bytes = u32_at(&header, 4) as usize;
        let records = u32_at(&header, 8);
        let kind = [header[0], header[1], header[2], header[3]];
        if ![RECORDS, END].contains(&kind)
            || len_bytes > BLOCK_BYTES_MAX
            || records as usize > len_bytes / RECORD_BYTES_MIN
        {
            return Err(damaged(start));
        }
        let mut content = std::mem::take(&mut self.block);
        content.resize(len_bytes + CHECKSUM_BYTES, 0);
        let is_whole = self.read_whole(start, &mut content)?;
        if !is_whole {
            return Ok(false);
        }
        let checksum = u32_at(&content, len_bytes);
        content.truncate(len_bytes);
        if crc32(&[&header, &content]) != checksum {
            return Err(damaged(start));
        }
        self.block = content;
        self.end.lost = u64_at(&header, 12);
        let time = u64_at(&header, 20);
        if kind == END {
            self.end.length = Nanos(time);
            self.has_ended = true;
            return Ok(false);
        }
        self.block_offset_bytes = start + BLOCK_HEADER_BYTES as u64;
        (self.at, self.records_left, self.last_start) = (0, records, time);
        self.last_submitter = None;
        self.ends.clear();
        Ok(true)
    }

    /// Fills the buffer. Returns false at the end of the file and records a truncation.
    fn read_whole(&mut self, start: u64, room: &mut [u8]) -> Result<bool, TraceError> {
        let got = fill(&mut self.input, room).map_err(|error| cannot_read(start, &error))?;
        self.offset_bytes += got as u64;
        if got < room.len() {
            self.has_ended = true;
            self.end.cut_off_at_bytes = Some(start);
        }
        Ok(got == room.len())
    }
}

/// Reference values of a block's relative fields.
#[derive(Clone, Copy)]
struct State {
    last_start: u64,
    last_submitter: Option<(u32, Priority)>,
}

fn take_record(
    rest: &mut &[u8],
    before: State,
    ends: &mut BTreeMap<u32, u64>,
) -> Result<TracedBio, &'static str> {
    const SHORT: &str = "the record is too short, or has a number of 2^64 or more";
    let first = take_byte(rest).ok_or(SHORT)?;
    let op = *OPS.get(usize::from(first & OP_BITS)).ok_or("the operation is invalid")?;
    let (submitter, priority) = if first & OTHER_SUBMITTER > 0 {
        let number = take_varint(rest).ok_or(SHORT)?;
        let priority = priority_of(take_byte(rest).ok_or(SHORT)?);
        let number = u32::try_from(number).map_err(|_| "the submitter's number is above 2^32")?;
        (number, priority.ok_or("the priority is invalid")?)
    } else {
        before.last_submitter.ok_or("the first bio of a block has no submitter")?
    };
    let start = take_distance(rest, before.last_start).ok_or(SHORT)?;
    if start > i64::MAX as u64 {
        return Err("its arrival time is before the start or centuries later");
    }
    let mut sector = 0;
    let mut sectors = 0;
    if op != Op::Flush {
        let end = ends.entry(submitter).or_default();
        sector = take_distance(rest, *end).ok_or(SHORT)?;
        let len = take_varint(rest).ok_or(SHORT)?;
        sectors = u32::try_from(len).map_err(|_| "it is longer than a bio can be")?;
        *end = sector
            .checked_add(len)
            .filter(|end| *end <= SECTORS_MAX)
            .ok_or("it ends beyond any disk's end")?;
    }
    let mut completion = None;
    if first & ENDED > 0 {
        let word = take_varint(rest).ok_or(SHORT)?;
        let number = if word & 1 > 0 { take_byte(rest).ok_or(SHORT)? } else { 0 };
        if word & 1 > 0 && number == 0 {
            return Err("it failed, but its status is success");
        }
        let status = *STATUSES.get(usize::from(number)).ok_or("the status is invalid")?;
        completion = Some(Completion { latency: Nanos(word >> 1), status });
    }
    let is_set = |flag: u8| first & flag > 0;
    let fua = is_set(FUA);
    let preflush = is_set(PREFLUSH);
    let sync = is_set(SYNC);
    let start = Nanos(start);
    let bio = TracedBio {
        start,
        op,
        fua,
        preflush,
        sync,
        sector,
        sectors,
        submitter,
        priority,
        completion,
    };
    Ok(bio)
}

fn take_byte(bytes: &mut &[u8]) -> Option<u8> {
    let (&byte, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(byte)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

/// Reads until the buffer is full or the input ends.
pub(super) fn fill(input: &mut impl Read, room: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < room.len() {
        match input.read(&mut room[got..]) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

pub(super) fn wrong(offset_bytes: u64, problem: impl Into<String>) -> TraceError {
    TraceError { offset_bytes, bio: None, problem: problem.into() }
}

pub(super) fn cannot_read(offset_bytes: u64, error: &io::Error) -> TraceError {
    wrong(offset_bytes, format!("cannot be read: {error}"))
}

fn damaged(offset_bytes: u64) -> TraceError {
    let problem = format!(
        "the block at this offset is damaged; the blocks before it are intact: `truncate -s \
         {offset_bytes}` on a copy of the file keeps that"
    );
    wrong(offset_bytes, problem)
}
