//! Writes a trace: a header, blocks of records, and an end.
//!
//! A block is independent: its relative fields start from fresh reference values, so a reader that
//! lacks one block can read the next. The caller closes a block from time to time; a crash of the
//! program loses only the bios since then.

use std::collections::BTreeMap;
use std::io::{self, Write};

use blockyard_engine::bio::{BlkStatus, Op};
use blockyard_engine::priority::{Priority, PriorityClass};
use blockyard_engine::time::Nanos;

use super::bytes::{crc32, put_distance, put_varint};
use super::{BLOCK_BYTES_MAX, EXPORT_BYTES_MAX, Header, MAGIC, TracedBio, VERSION};

/// Magic of a block with records, and of the end.
pub(super) const RECORDS: [u8; 4] = *b"BIOS";
pub(super) const END: [u8; 4] = *b"END.";
/// Length of a block's header.
pub(super) const BLOCK_HEADER_BYTES: usize = 28;
/// Length of the header before the export's name.
pub(super) const FIXED_HEADER_BYTES: usize = 40;
/// Length of the checksum after each header and block.
pub(super) const CHECKSUM_BYTES: usize = 4;

/// Bits of a record's first byte: the operation, then flags for the fields that follow.
pub(super) const OP_BITS: u8 = 0b111;
pub(super) const FUA: u8 = 1 << 3;
pub(super) const PREFLUSH: u8 = 1 << 4;
pub(super) const SYNC: u8 = 1 << 5;
pub(super) const ENDED: u8 = 1 << 6;
pub(super) const OTHER_SUBMITTER: u8 = 1 << 7;

/// Content length at which a block is closed. Our choice: large enough to make the header's cost
/// negligible.
const BLOCK_BYTES: usize = 64 << 10;
/// Upper bound of a record's length: six varints of at most ten bytes.
const RECORD_BYTES_MAX: usize = 64;

const _: () = assert!(BLOCK_BYTES + RECORD_BYTES_MAX <= BLOCK_BYTES_MAX);

/// Writer of a trace.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    block: Vec<u8>,
    records: u32,
    /// Reference time of the block's first record.
    base: Nanos,
    last_start: Nanos,
    last_submitter: Option<(u32, Priority)>,
    /// End of each submitter's last range in this block.
    ends: BTreeMap<u32, u64>,
    lost: u64,
}

impl<W: Write> Writer<W> {
    /// Starts a trace.
    ///
    /// # Errors
    /// When the header cannot be written.
    ///
    /// # Panics
    /// When the name of the export is longer than [`EXPORT_BYTES_MAX`].
    pub fn begin(mut out: W, header: &Header) -> io::Result<Self> {
        let name = header.export.as_bytes();
        assert!(name.len() <= EXPORT_BYTES_MAX, "the protocol limits names to this length");
        let len_bytes = FIXED_HEADER_BYTES + name.len() + CHECKSUM_BYTES;
        let mut bytes = Vec::with_capacity(len_bytes);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((len_bytes as u32).to_le_bytes());
        bytes.extend(header.volume_bytes.to_le_bytes());
        bytes.extend(header.sector_bytes.to_le_bytes());
        bytes.extend((name.len() as u32).to_le_bytes());
        bytes.extend(header.began_unix_ns.to_le_bytes());
        bytes.extend(name);
        bytes.extend(crc32(&[&bytes]).to_le_bytes());
        out.write_all(&bytes)?;
        Ok(Self {
            out,
            block: Vec::with_capacity(BLOCK_BYTES + RECORD_BYTES_MAX),
            records: 0,
            base: Nanos(0),
            last_start: Nanos(0),
            last_submitter: None,
            ends: BTreeMap::new(),
            lost: 0,
        })
    }

    /// Adds a bio; any order is allowed.
    ///
    /// # Errors
    /// When a full block cannot be written.
    pub fn push(&mut self, bio: &TracedBio) -> io::Result<()> {
        if self.records == 0 {
            (self.base, self.last_start) = (bio.start, bio.start);
        }
        let submitter = (bio.submitter, bio.priority);
        let is_other = self.last_submitter != Some(submitter);
        let mut first = op_number(bio.op);
        for (flag, is_set) in [
            (FUA, bio.fua),
            (PREFLUSH, bio.preflush),
            (SYNC, bio.sync),
            (ENDED, bio.completion.is_some()),
            (OTHER_SUBMITTER, is_other),
        ] {
            first |= flag * u8::from(is_set);
        }
        let block = &mut self.block;
        block.push(first);
        if is_other {
            put_varint(block, bio.submitter.into());
            block.push(priority_byte(bio.priority));
        }
        put_distance(block, self.last_start.0, bio.start.0);
        if bio.op != Op::Flush {
            let end = self.ends.entry(bio.submitter).or_default();
            put_distance(block, *end, bio.sector);
            put_varint(block, bio.sectors.into());
            *end = bio.end_sector();
        }
        if let Some(completion) = bio.completion {
            let status = status_number(completion.status);
            let failed = u64::from(status > 0);
            put_varint(block, completion.latency.0.min(u64::MAX >> 1) << 1 | failed);
            if status > 0 {
                block.push(status);
            }
        }
        self.last_start = bio.start;
        self.last_submitter = Some(submitter);
        self.records += 1;
        if self.block.len() >= BLOCK_BYTES { self.close_block() } else { Ok(()) }
    }

    /// Sets the total number of bios that came and could not be recorded.
    pub fn set_lost(&mut self, lost: u64) {
        self.lost = lost;
    }

    /// Writes the open block, so that a reader finds its records.
    ///
    /// # Errors
    /// When the block cannot be written.
    pub fn close_block(&mut self) -> io::Result<()> {
        if self.records > 0 {
            self.write_block(RECORDS, self.base)?;
            self.block.clear();
            self.records = 0;
            self.last_submitter = None;
            self.ends.clear();
        }
        self.out.flush()
    }

    /// Ends a trace of this length.
    ///
    /// # Errors
    /// When the end cannot be written.
    pub fn end(mut self, length: Nanos) -> io::Result<W> {
        self.close_block()?;
        self.write_block(END, length)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn write_block(&mut self, kind: [u8; 4], time: Nanos) -> io::Result<()> {
        let mut header = Vec::with_capacity(BLOCK_HEADER_BYTES);
        header.extend(kind);
        header.extend((self.block.len() as u32).to_le_bytes());
        header.extend(self.records.to_le_bytes());
        header.extend(self.lost.to_le_bytes());
        header.extend(time.0.to_le_bytes());
        assert_eq!(header.len(), BLOCK_HEADER_BYTES);
        let checksum = crc32(&[&header, &self.block]);
        self.out.write_all(&header)?;
        self.out.write_all(&self.block)?;
        self.out.write_all(&checksum.to_le_bytes())
    }
}

/// Operations by their number in a record.
pub(super) const OPS: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];

fn op_number(op: Op) -> u8 {
    OPS.iter().position(|known| *known == op).expect("the table has every value") as u8
}

/// Statuses by their number in a record; the first is not written.
pub(super) const STATUSES: [BlkStatus; 7] = [
    BlkStatus::Ok,
    BlkStatus::NotSupported,
    BlkStatus::NoSpace,
    BlkStatus::Invalid,
    BlkStatus::Transport,
    BlkStatus::Medium,
    BlkStatus::IoError,
];

fn status_number(status: BlkStatus) -> u8 {
    STATUSES.iter().position(|known| *known == status).expect("the table has every value") as u8
}

/// The class in the high bits, as in `ioprio_set(2)`: 1 real time, 2 best effort, 3 idle.
fn priority_byte(priority: Priority) -> u8 {
    let class = match priority.class {
        PriorityClass::RealTime => 1,
        PriorityClass::BestEffort => 2,
        PriorityClass::Idle => 3,
    };
    class << 3 | priority.level
}

/// The priority encoded by a byte; `None` if the byte is invalid.
pub(super) fn priority_of(byte: u8) -> Option<Priority> {
    let level = byte & 7;
    match byte >> 3 {
        1 => Some(Priority::real_time(level)),
        2 => Some(Priority::best_effort(level)),
        3 if level == Priority::LEVEL_MAX => Some(Priority::IDLE),
        _ => None,
    }
}
