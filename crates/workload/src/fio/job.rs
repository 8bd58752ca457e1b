//! A job: one section of a fio job file.

mod check;
mod place;
mod shape;
mod submission;

use super::buffers::Buffers;
use super::control::Controls;
use super::ends::EndRule;
use super::log::Logs;
use super::pace::PaceRule;
use super::percentiles::Percentiles;
use super::value::KbBase;
use super::verify::Verify;

pub use place::{Clones, Region};
pub use shape::{Rw, Sequencer, Shape};
pub use submission::{Batching, Submission};

/// Measurements of each request (`disable_slat` and its like).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Submission latency.
    pub slat: bool,
    /// Completion latency.
    pub clat: bool,
    /// Total latency, submission and completion.
    pub lat: bool,
    /// Rates of each half second.
    pub rates: bool,
    /// `gtod_reduce`: no measurement, and few readings of the clock.
    pub is_seldom: bool,
}

impl Default for Kept {
    fn default() -> Self {
        Self { slat: true, clat: true, lat: true, rates: true, is_seldom: false }
    }
}

/// Order of the jobs, and their reporting groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grouping {
    /// `stonewall`: start after all jobs before it have ended.
    pub stonewall: bool,
    /// `wait_for`: start after this earlier job, and the jobs that started with it, have ended.
    pub wait_for: Option<String>,
    /// `new_group`: begin a new reporting group, as with `stonewall`.
    pub new_group: bool,
    /// `group_reporting`: list a group as one result instead of clone by clone.
    pub group_reporting: bool,
}

/// One section of a job file. A missing option has fio's default.
// 15 fields: one for each topic of fio's options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Name of the section.
    pub name: String,
    /// Direction, length and order of the requests.
    pub shape: Shape,
    /// Files of the clones, and their regions.
    pub region: Region,
    /// Number of the clones, and their sockets.
    pub clones: Clones,
    /// Submission of requests and syncs.
    pub submission: Submission,
    /// Start times of the requests.
    pub pace: PaceRule,
    /// End of a clone.
    pub end: EndRule,
    /// Order of the jobs, and their reporting groups.
    pub grouping: Grouping,
    /// Further rules for starting requests and ending a clone.
    pub controls: Controls,
    /// `verify` and its options.
    pub verify: Verify,
    /// Content of the writes.
    pub buffers: Buffers,
    /// Measurements of each request.
    pub kept: Kept,
    /// Listed percentiles.
    pub percentiles: Percentiles,
    /// Logs.
    pub logs: Logs,
    /// `kb_base`: the meaning of `k` in later options.
    pub kb_base: KbBase,
}

impl Job {
    /// A job with fio's defaults. The size is still missing.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            shape: Shape::default(),
            region: Region::default(),
            clones: Clones::default(),
            submission: Submission::default(),
            pace: PaceRule::default(),
            end: EndRule::default(),
            grouping: Grouping::default(),
            controls: Controls::default(),
            verify: Verify::default(),
            buffers: Buffers::default(),
            kept: Kept::default(),
            percentiles: Percentiles::default(),
            logs: Logs::default(),
            kb_base: KbBase::default(),
        }
    }

    /// The job after a change.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Length of a clone's region, in whole requests.
    pub(crate) fn region_bytes(&self) -> u64 {
        let parts = if self.region.divide { u64::from(self.clones.count()) } else { 1 };
        let min_bytes = self.shape.min_bytes();
        self.region.size_bytes / min_bytes / parts * min_bytes
    }

    /// Bytes that a clone transfers in a pass.
    pub(crate) fn pass_bytes(&self) -> u64 {
        self.region.io_size_bytes.unwrap_or(self.region_bytes())
    }

    /// Start of a clone's region in its file.
    pub(crate) fn start_bytes(&self, clone: u32) -> u64 {
        let apart = if self.region.divide { self.region_bytes() } else { 0 };
        self.region.offset_bytes + u64::from(clone) * (apart + self.region.offset_increment_bytes)
    }

    /// Least length of a clone's file.
    pub(crate) fn end_bytes(&self, clone: u32) -> u64 {
        let len_bytes =
            if self.region.divide { self.region_bytes() } else { self.region.size_bytes };
        self.start_bytes(clone) + len_bytes
    }

    /// Whether the file must be laid out in full. Sequential buffered writes create it as they go;
    /// fio allocates such files in advance (`fallocate=native`).
    pub(crate) fn wants_file(&self) -> bool {
        self.region.overwrite
            || self.submission.direct
            || self.shape.rw.reads()
            || self.shape.rw.trims()
            || self.shape.rw.is_random()
    }
}

/// Greatest `iodepth`; more is a mistake. Our choice.
pub(crate) const IODEPTH_MAX: u32 = 65_536;
/// Greatest `numjobs`, likewise.
pub(crate) const NUMJOBS_MAX: u32 = 4096;

/// An error in a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobError {
    /// Name of the job.
    pub job: String,
    /// The option.
    pub key: String,
    /// The problem, and its remedy.
    pub problem: String,
}

impl std::fmt::Display for JobError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "job {}: {} {}", self.job, self.key, self.problem)
    }
}

impl std::error::Error for JobError {}
