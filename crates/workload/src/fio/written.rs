//! What a clone has written and has not read again: in the order of the writes where each place is
//! written once, else in that of the places, the last write of each, as fio has it.
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
    /// On the volume.
    pub(super) offset_bytes: u64,
    pub(super) len_bytes: u64,
    /// Of the clone's writes.
    pub(super) number: u64,
}

/// Whether a place may be written again before it has been read.
fn writes_twice(job: &Job) -> bool {
    (job.rw.is_random() && (!job.has_map() || job.needs_bitmap()))
        || job.io_size_bytes.is_some()
        || job.time_based
        || job.leap_bytes < 0
        || job.strides.is_on
}

/// All of them.
#[derive(Clone, Debug)]
pub(super) struct Written {
    /// Nothing is made or checked.
    is_off: bool,
    reads_again: bool,
    /// Reads of the job itself are checked: it writes nothing.
    checks_reads: bool,
    /// `verify_only`: what would be written is still to be found out.
    is_dry: bool,
    /// The number of a write says nothing: it was another run's.
    is_foreign: bool,
    backlog: u64,
    has_overlaps: bool,
    in_order: VecDeque<Piece>,
    by_place: BTreeMap<u64, Piece>,
    is_reading: bool,
    /// Passes that have been read again.
    passes: u64,
}

impl Written {
    pub(super) fn of(job: &Job) -> Self {
        let (verify, rw) = (&job.verify, job.rw);
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

    /// A write; how its bytes are made.
    pub(super) fn push(&mut self, piece: Piece) -> Option<Stamp> {
        if self.is_off {
            return None;
        }
        let Piece { offset_bytes, len_bytes, number } = piece;
        if self.reads_again && self.has_overlaps {
            // What it covers in part is not what it was.
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

    /// How the bytes of one of the job's own reads are checked.
    pub(super) fn stamp_of_read(&self, offset_bytes: u64) -> Option<Stamp> {
        let checks = !self.is_off && self.checks_reads;
        checks.then_some(Stamp { offset_bytes, number: None })
    }

    /// What would be written is not known yet.
    pub(super) fn is_only(&self) -> bool {
        self.is_dry
    }

    pub(super) fn end_dry_run(&mut self) {
        self.is_dry = false;
    }

    fn len(&self) -> u64 {
        (self.in_order.len() + self.by_place.len()) as u64
    }

    /// Whether it is time to read again; so many passes have been written.
    pub(super) fn is_due(&self, is_over: bool, passes: u64) -> bool {
        self.len() > 0 && (is_over || self.len() >= self.backlog || passes > self.passes)
    }

    pub(super) fn is_reading(&self) -> bool {
        self.is_reading
    }

    /// All of it has been asked for.
    pub(super) fn is_read(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn begin_reading(&mut self, passes: u64) {
        (self.is_reading, self.passes) = (true, passes);
    }

    pub(super) fn end_reading(&mut self) {
        self.is_reading = false;
    }

    /// The next, and how it is checked.
    pub(super) fn next_to_read(&mut self) -> Option<(Piece, Stamp)> {
        let first = || self.by_place.pop_first().map(|(_, piece)| piece);
        let piece = self.in_order.pop_front().or_else(first)?;
        let number = (!self.is_foreign).then_some(piece.number);
        Some((piece, Stamp { offset_bytes: piece.offset_bytes, number }))
    }
}
