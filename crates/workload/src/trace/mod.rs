//! Traces of the bios that came into a volume: time, range, submitter and priority, never the data.
//!
//! ```text
//! serve ── Writer ──> file ── Reader ──> Trace ──> summary, replay
//! ```
//! A bio is recorded when it ends, so that one record is complete. [`Trace`] holds the bios in the
//! order of their arrival. `docs/trace.md` describes the format byte by byte. The layout is our
//! own; the fields of a record are those of `blktrace(8)`.

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

/// First bytes of a trace.
pub const MAGIC: [u8; 8] = *b"BYTRACE\0";
/// Version of the format.
pub const VERSION: u32 = 1;
/// Longest name of an export (the protocol's limit is 4096).
pub const EXPORT_BYTES_MAX: usize = 4096;
/// Longest content of a block.
pub const BLOCK_BYTES_MAX: usize = 1 << 20;
/// Most bios of a trace in memory, at 48 bytes each.
pub const BIOS_MAX: usize = 32 << 20;
/// End of the valid sector numbers: byte offsets beyond do not fit a file offset.
pub const SECTORS_MAX: u64 = i64::MAX as u64 / 512;

/// Header of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Length of the volume; zero if unknown.
    pub volume_bytes: u64,
    /// Sector size of the volume. All ranges are in units of 512 bytes regardless.
    pub sector_bytes: u32,
    /// Name of the export, or origin of the trace.
    pub export: String,
    /// Start of the recording: nanoseconds since 1970, UTC.
    pub began_unix_ns: u64,
}

/// End of a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Time from arrival to end.
    pub latency: Nanos,
    /// Status.
    pub status: BlkStatus,
}

/// A recorded bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedBio {
    /// Arrival time since the start of the recording.
    pub start: Nanos,
    /// Operation.
    pub op: Op,
    /// `REQ_FUA` of a write: data on stable storage before the bio ends.
    pub fua: bool,
    /// `REQ_PREFLUSH` of a write: all ended writes on stable storage before the bio starts.
    pub preflush: bool,
    /// `REQ_SYNC`: the submitter waited for the bio.
    pub sync: bool,
    /// First sector, in units of 512 bytes.
    pub sector: u64,
    /// Number of sectors; zero for a flush.
    pub sectors: u32,
    /// Number of the submitter: a connection or a task.
    pub submitter: u32,
    /// Priority.
    pub priority: Priority,
    /// End of the bio; `None` if the bio was in flight at the end of the recording, or if the
    /// source has no completions.
    pub completion: Option<Completion>,
}

impl TracedBio {
    /// Sector after the range.
    #[must_use]
    pub fn end_sector(&self) -> u64 {
        self.sector + u64::from(self.sectors)
    }

    /// Length of the range.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        u64::from(self.sectors) * 512
    }
}

/// Facts known at the end of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// Length of the recording; without a proper end, up to the last block.
    pub length: Nanos,
    /// Number of bios that came and could not be recorded.
    pub lost: u64,
    /// Offset at which a truncated file stops within a block; `None`: the file is complete.
    pub cut_off_at_bytes: Option<u64>,
}

/// An error in a trace, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// Offset of the error.
    pub offset_bytes: u64,
    /// Number of the wrong bio, counted from 1, if the error is in a bio.
    pub bio: Option<u64>,
    /// The error, and its remedy.
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
    /// The trace's header.
    pub header: Header,
    /// Bios in the order of arrival.
    pub bios: Vec<TracedBio>,
    /// The trace's end.
    pub end: End,
}

impl Trace {
    /// Reads a whole trace.
    ///
    /// # Errors
    /// When the input is no trace, is damaged, or has more than [`BIOS_MAX`] bios.
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

    /// Builds a trace from bios in any order.
    #[must_use]
    pub fn of(header: Header, mut bios: Vec<TracedBio>, end: End) -> Self {
        // Stable: of two bios that came at the same time, the one that ended first stays first.
        bios.sort_by_key(|bio| bio.start);
        Self { header, bios, end }
    }
}

pub(crate) fn too_many(offset_bytes: u64) -> TraceError {
    let problem = format!("the trace has more than {BIOS_MAX} bios; record a shorter time");
    TraceError { offset_bytes, bio: None, problem }
}
