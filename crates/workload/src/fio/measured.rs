//! Measurements of a clone.

use blockyard_engine::histogram::Histogram;
use blockyard_engine::time::Nanos;

use super::command_priority::ByPriority;
use super::control::Steady;
use super::lens::Direction;
use super::log::CloneLogs;
use super::samples::Samples;
use super::shares::{Bounds, Queueing};
use super::verify::Mismatch;
use crate::program::Usage;

/// Measurements of a job's reads, writes or trims.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transfers {
    /// Number of started requests, including failed ones, as in fio.
    pub ios: u64,
    /// Number of transferred bytes.
    pub bytes: u64,
    /// Submission latency of direct I/O.
    pub slat: Histogram,
    /// Completion latency.
    pub clat: Histogram,
    /// Total latency.
    pub lat: Histogram,
    /// Rates of each clone per half second.
    pub samples: Samples,
    /// Latency by priority, of a job with several: completion latency, or total latency with
    /// `lat_percentiles`.
    pub by_priority: ByPriority,
}

impl Transfers {
    pub(crate) fn add(&mut self, other: &Self) {
        self.ios += other.ios;
        self.bytes += other.bytes;
        self.slat.add(&other.slat);
        self.clat.add(&other.clat);
        self.lat.add(&other.lat);
        self.samples.add(&other.samples);
        self.by_priority.add(&other.by_priority);
    }
}

/// Errors of a clone, or of all clones of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Errors {
    /// First error that ended a clone.
    pub ended_by: Option<i32>,
    /// With `continue_on_error`: number of errors that ended no clone.
    pub counted: u64,
    /// The first of these errors.
    pub first_counted: Option<i32>,
    /// Number of requests whose bytes failed verification.
    pub mismatches: u64,
    /// The first mismatch.
    pub mismatch: Option<Mismatch>,
}

impl Errors {
    pub(crate) fn add(&mut self, other: &Self) {
        self.ended_by = self.ended_by.or(other.ended_by);
        self.counted += other.counted;
        self.first_counted = self.first_counted.or(other.first_counted);
        self.mismatches += other.mismatches;
        if self.mismatch.is_none() {
            self.mismatch.clone_from(&other.mismatch);
        }
    }
}

/// Measurements of a clone.
// 13 fields: each is one figure of fio's report.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) read: Transfers,
    pub(crate) write: Transfers,
    pub(crate) trim: Transfers,
    pub(crate) sync: Histogram,
    pub(crate) bounds: Bounds,
    pub(crate) queueing: Queueing,
    /// Time from the start to the end of the last block.
    pub(crate) runtime: Nanos,
    /// Resource use in that time.
    pub(crate) usage: Usage,
    pub(crate) errors: Errors,
    /// With a `latency_target`, the depth that the search found.
    pub(crate) depth: Option<u32>,
    pub(crate) steady: Option<Steady>,
    pub(crate) zone_resets: u64,
    pub(crate) logs: CloneLogs,
}

impl Measured {
    pub(crate) fn of(&mut self, direction: Direction) -> &mut Transfers {
        match direction {
            Direction::Read => &mut self.read,
            Direction::Write => &mut self.write,
            Direction::Trim => &mut self.trim,
        }
    }
}
