//! Writes of a clone that wait for verification. As in fio, they are read back in the order of the
//! writes if each block is written once, otherwise in the order of the offsets, the last write of
//! each.
//!
//! ```text
//!   write ─> push ─> due: all of a pass, `verify_backlog` of them, or the job is over
//!                     └> begin_reading ─> next_to_read … ─> end_reading ─> write on
//! ```

use std::collections::{BTreeMap, VecDeque};

use super::job::Job;
use super::verify::Stamp;

/// A write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Offset on the volume.
    pub(super) offset_bytes: u64,
    pub(super) len_bytes: u64,
    /// Number among the clone's writes.
    pub(super) number: u64,
}

/// Whether a range may be written again before it is read back.
fn writes_twice(job: &Job) -> bool {
    (job.shape.rw.is_random() && (!job.shape.has_map() || job.shape.needs_bitmap()))
        || job.region.io_size_bytes.is_some()
        || job.end.time_based
        || job.shape.leap_bytes < 0
        || job.shape.strides.is_on
}

/// The writes of a clone that have not been read back.
#[derive(Clone, Debug)]
pub(super) struct Written {
    /// Whether verification is off.
    is_off: bool,
    reads_again: bool,
    /// Whether the job's own reads are verified: the job writes nothing.
    checks_reads: bool,
    /// `verify_only`: whether the writes have not been enumerated yet.
    is_dry: bool,
    /// Whether the data comes from another run, so that the numbers of writes are unknown.
    is_foreign: bool,
    backlog: u64,
    has_overlaps: bool,
    in_order: VecDeque<Piece>,
    by_place: BTreeMap<u64, Piece>,
    is_reading: bool,
    /// Number of passes that have been read back.
    passes: u64,
}

impl Written {
    pub(super) fn of(job: &Job) -> Self {
        let verify = &job.verify;
        let rw = job.shape.rw;
        Self {
            is_off: verify.sum.is_none(),
            reads_again: verify.reads_again || verify.only,
            checks_reads: !rw.writes(),
            is_dry: verify.only && verify.sum.is_some() && rw.writes(),
            is_foreign: verify.only,
            backlog: verify.backlog.unwrap_or(u64::MAX),
            has_overlaps: writes_twice(job),
            in_order: VecDeque::new(),
            by_place: BTreeMap::new(),
            is_reading: false,
            passes: 0,
        }
    }

    /// Adds a write. Returns the identity of its bytes.
    pub(super) fn push(&mut self, piece: Piece) -> Option<Stamp> {
        if self.is_off {
            return None;
        }
        let Piece { offset_bytes, len_bytes, number } = piece;
        if self.reads_again && self.has_overlaps {
            // A partly overwritten block cannot be verified.
            let end = offset_bytes + len_bytes;
            while let Some((&place, other)) = self.by_place.range(..end).next_back() {
                if other.offset_bytes + other.len_bytes <= offset_bytes {
                    break;
                }
                self.by_place.remove(&place);
            }
            self.by_place.insert(offset_bytes, piece);
        } else if self.reads_again {
            self.in_order.push_back(piece);
        }
        Some(Stamp { offset_bytes, number: Some(number) })
    }

    /// Identity of the bytes of a read by the job itself.
    pub(super) fn stamp_of_read(&self, offset_bytes: u64) -> Option<Stamp> {
        let checks = !self.is_off && self.checks_reads;
        checks.then_some(Stamp { offset_bytes, number: None })
    }

    /// Whether the writes of `verify_only` have not been enumerated yet.
    pub(super) fn is_only(&self) -> bool {
        self.is_dry
    }

    pub(super) fn end_dry_run(&mut self) {
        self.is_dry = false;
    }

    fn len(&self) -> u64 {
        (self.in_order.len() + self.by_place.len()) as u64
    }

    /// Whether to read back now; `passes` passes have been written.
    pub(super) fn is_due(&self, is_over: bool, passes: u64) -> bool {
        self.len() > 0 && (is_over || self.len() >= self.backlog || passes > self.passes)
    }

    pub(super) fn is_reading(&self) -> bool {
        self.is_reading
    }

    /// Whether all writes have been read back or are in flight.
    pub(super) fn is_read(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn begin_reading(&mut self, passes: u64) {
        (self.is_reading, self.passes) = (true, passes);
    }

    pub(super) fn end_reading(&mut self) {
        self.is_reading = false;
    }

    /// The next write to read back, and the identity of its bytes.
    pub(super) fn next_to_read(&mut self) -> Option<(Piece, Stamp)> {
        let first = || self.by_place.pop_first().map(|(_, piece)| piece);
        let piece = self.in_order.pop_front().or_else(first)?;
        let number = (!self.is_foreign).then_some(piece.number);
        Some((piece, Stamp { offset_bytes: piece.offset_bytes, number }))
    }
}
