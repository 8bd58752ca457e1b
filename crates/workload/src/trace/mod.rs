//! Traces: which bios came into a volume, when, from whom and how urgent; never what was in them.
//!
//! ```text
//!   serve ── Writer ──> file ── Reader ──> Trace ──> summary, replay
//! ```
//! A bio is written down when it has ended, so that one record says all of it; who reads a trace
//! puts it in the order in which bios came ([`Trace`]). `docs/trace.md` has the format byte by
//! byte. The layout is ours; what is recorded of a bio is what `blktrace(8)` records.

pub mod blktrace;
mod bytes;
pub mod iolog;
mod reader;
mod summary;
#[cfg(test)]
mod tests;
mod window;
mod writer;

use std::fmt;
use std::io::Read;

use blockyard_engine::bio::{BlkStatus, Op};
use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;

pub use reader::Reader;
pub use summary::{OpSummary, Slice, SubmitterSummary, Summary};
pub use writer::Writer;

/// What a trace begins with.
pub const MAGIC: [u8; 8] = *b"BYTRACE\0";
/// Of the format.
pub const VERSION: u32 = 1;
/// The longest name that an export may have (the protocol's limit is 4096).
pub const EXPORT_BYTES_MAX: usize = 4096;
/// The longest content of a block.
pub const BLOCK_BYTES_MAX: usize = 1 << 20;
/// Bios of a trace that is read as a whole: 48 bytes of memory each.
pub const BIOS_MAX: usize = 32 << 20;
/// Sectors behind this do not exist: their bytes have no number that a file system would take.
pub const SECTORS_MAX: u64 = i64::MAX as u64 / 512;

/// What a trace is of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// How long the volume was; zero if nobody knows.
    pub volume_bytes: u64,
    /// Its sector size; every range below is in units of 512 bytes all the same.
    pub sector_bytes: u32,
    /// The name that clients open it by, or where the trace comes from.
    pub export: String,
    /// When the recording began: nanoseconds since 1970, UTC.
    pub began_unix_ns: u64,
}

/// How a bio ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// From when it came until it ended.
    pub latency: Nanos,
    /// How.
    pub status: BlkStatus,
}

/// A bio as it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedBio {
    /// When it came, since the recording began.
    pub start: Nanos,
    /// What it asked for.
    pub op: Op,
    /// With a write: on stable storage before it ends.
    pub fua: bool,
    /// With a write: what ended before is on stable storage before it starts.
    pub preflush: bool,
    /// Somebody waited for it, as its submitter said.
    pub sync: bool,
    /// The first sector, in units of 512 bytes.
    pub sector: u64,
    /// How many; zero for a flush.
    pub sectors: u32,
    /// Who: one number for each connection, or task.
    pub submitter: u32,
    /// How urgent.
    pub priority: Priority,
    /// Nothing if it had not ended when the recording did, or nobody looked.
    pub completion: Option<Completion>,
}

impl TracedBio {
    /// Where its range ends.
    #[must_use]
    pub fn end_sector(&self) -> u64 {
        self.sector + u64::from(self.sectors)
    }

    /// How long its range is.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        u64::from(self.sectors) * 512
    }
}

/// What is known at the end of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// How long was recorded; without a proper end, up to the last block.
    pub length: Nanos,
    /// Bios that came and could not be written down.
    pub lost: u64,
    /// The file stops there, within a block: whoever wrote it did not end it.
    pub cut_off_at_bytes: Option<u64>,
}

/// What is wrong with a trace, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// The byte at which what is wrong begins.
    pub offset_bytes: u64,
    /// Which bio, counted from 1, if it is one.
    pub bio: Option<u64>,
    /// What, and what can be done.
    pub problem: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}", self.offset_bytes)?;
        if let Some(bio) = self.bio {
            write!(f, ", bio {bio}")?;
        }
        write!(f, ": {}", self.problem)
    }
}

impl std::error::Error for TraceError {}

/// A trace in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// What it is of.
    pub header: Header,
    /// In the order in which they came.
    pub bios: Vec<TracedBio>,
    /// How it ended.
    pub end: End,
}

impl Trace {
    /// Reads all of a trace.
    ///
    /// # Errors
    /// When it is none, is damaged, or has more than [`BIOS_MAX`] bios.
    pub fn read(input: impl Read) -> Result<Self, TraceError> {
        let mut reader = Reader::new(input)?;
        let header = reader.header().clone();
        let mut bios = Vec::new();
        while let Some(bio) = reader.next_bio()? {
            if bios.len() == BIOS_MAX {
                return Err(too_many(reader.offset_bytes()));
            }
            bios.push(bio);
        }
        Ok(Self::of(header, bios, reader.end()))
    }

    /// A trace of these bios, put in order.
    #[must_use]
    pub fn of(header: Header, mut bios: Vec<TracedBio>, end: End) -> Self {
        // Stable: of two that came at one time, the one that ended first stays first.
        bios.sort_by_key(|bio| bio.start);
        Self { header, bios, end }
    }
}

pub(crate) fn too_many(offset_bytes: u64) -> TraceError {
    let problem = format!("the trace has more than {BIOS_MAX} bios; record a shorter time");
    TraceError { offset_bytes, bio: None, problem }
}
