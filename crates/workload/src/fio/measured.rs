//! What a clone measures of its requests.

use blockyard_engine::histogram::Histogram;
use blockyard_engine::time::Nanos;

use super::command_priority::ByPriority;
use super::control::Steady;
use super::lens::Direction;
use super::log::CloneLogs;
use super::samples::Samples;
use super::shares::{Batches, Bounds, Depths};
use super::verify::Mismatch;
use crate::program::Usage;

/// What the reads, or the writes, of a job were like.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transfers {
    /// How many were started, as in fio: those that failed are among them.
    pub ios: u64,
    /// How much was moved.
    pub bytes: u64,
    /// Submission latency; of direct I/O only.
    pub slat: Histogram,
    /// Completion latency.
    pub clat: Histogram,
    /// Both.
    pub lat: Histogram,
    /// Rates of each half second of each clone.
    pub samples: Samples,
    /// Completion latency by priority (with `lat_percentiles`, both), of a job that has several.
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

/// What a clone has measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) read: Transfers,
    pub(crate) write: Transfers,
    pub(crate) trim: Transfers,
    pub(crate) sync: Histogram,
    pub(crate) bounds: Bounds,
    pub(crate) depths: Depths,
    pub(crate) submits: Batches,
    pub(crate) completes: Batches,
    /// From its start until its last block was there.
    pub(crate) runtime: Nanos,
    /// Meanwhile.
    pub(crate) usage: Usage,
    /// Requests whose bytes were not those that were written, and the first of them.
    pub(crate) mismatches: u64,
    pub(crate) mismatch: Option<Mismatch>,
    /// Why it ended early.
    pub(crate) error: Option<i32>,
    /// What failed and was no reason to end; the first of it.
    pub(crate) errors: u64,
    pub(crate) first_error: Option<i32>,
    /// With a `latency_target`, the depth that was found.
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
