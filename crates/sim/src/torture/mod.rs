//! Torture worlds: a seed determines everything about them, and the oracles are always on.
//!
//! A world has a queue with one of the elevators, a faulty device, submitters, and one to three
//! rounds of traffic, each of which ends with a quiet time or with a power cut. [`run`] runs it
//! twice and compares the traces. [`sabotage`] plants bugs that must be found. With
//! [`Storage::Paths`] the disk has several paths, chosen per bio or request, and softirqs and
//! workers may complete and dispatch. With [`Storage::Devices`] a table spreads the volume over
//! several disks with separate volatile caches. With [`Pace::Long`] most of the time is quiet.

mod below;
mod contexts;
mod devices;
mod elevators;
pub mod pages;
mod paths;
mod plan;
pub mod ranges;
pub mod sabotage;
mod shards;
mod stack;
mod trace;
mod world;

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use blockyard_engine::time::Nanos;

use self::sabotage::Sabotage;
use self::world::World;
use crate::oracle::{Finding, Oracle};

pub use trace::Log;

/// Random streams of a seed.
const STREAM_PLAN: u64 = 0;
const STREAM_TRAFFIC: u64 = 1;
const STREAM_CONTENTS: u64 = 2;
/// Stream of the paths; number 3 is the saboteur's.
const STREAM_PATHS: u64 = 4;
/// Stream of softirqs and workers.
const STREAM_CONTEXTS: u64 = 5;
/// Stream of the pauses of [`Pace::Long`].
const STREAM_PACE: u64 = 6;
/// First of many streams, one for each power cut.
const STREAM_FAULTS: u64 = 16;

/// Storage below the submitters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// One disk.
    #[default]
    Disk,
    /// One disk with several paths, which fail and return.
    Paths,
    /// Several disks, and a table of linear and striped lines over them.
    Devices,
}

impl Storage {
    /// Its option on the command line, with a space before it.
    fn option(self) -> &'static str {
        match self {
            Self::Disk => "",
            Self::Paths => " --multipath",
            Self::Devices => " --devices",
        }
    }
}

/// Length of the submitters' pauses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// None to milliseconds.
    #[default]
    Busy,
    /// Seconds to an hour, after an uptime of up to a year: for timers and counters.
    Long,
}

impl Pace {
    /// Its option on the command line, with a space before it.
    fn option(self) -> &'static str {
        match self {
            Self::Busy => "",
            Self::Long => " --long",
        }
    }
}

/// Parameters beside the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TortureConfig {
    /// Bios per round.
    pub bios: u32,
    /// Planted bug.
    pub sabotage: Option<Sabotage>,
    /// Kind of storage.
    pub storage: Storage,
    /// Length of pauses.
    pub pace: Pace,
}

impl Default for TortureConfig {
    /// Rounds of 300 bios, one disk, short pauses, no bug.
    fn default() -> Self {
        Self { bios: 300, sabotage: None, storage: Storage::Disk, pace: Pace::Busy }
    }
}

/// Counts of a world.
// 13 fields: each is one count of the summary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Hash of the trace.
    pub hash: u64,
    /// Bios submitted.
    pub bios: u64,
    /// Bios that failed.
    pub failed: u64,
    /// Requests issued to devices.
    pub requests: u64,
    /// Bios and requests merged into another request.
    pub merges: u64,
    /// Errors, delays, hangs, refusals.
    pub faults: u64,
    /// Paths that went down.
    pub outages: u64,
    /// Requests that a path did partly.
    pub partial: u64,
    /// Requests or bios sent again.
    pub resent: u64,
    /// Requests with a part of a FUA write.
    pub fua_parts: u64,
    /// Power cuts.
    pub power_cuts: u64,
    /// Sectors that lost their newest write in a power cut.
    pub sectors_lost: u64,
    /// Virtual time at the end.
    pub time: Nanos,
}

/// A finding of an oracle, and its replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Seed.
    pub seed: u64,
    /// Planted bug, if any.
    pub sabotage: Option<Sabotage>,
    /// Kind of storage.
    pub storage: Storage,
    /// Length of pauses.
    pub pace: Pace,
    /// Virtual time.
    pub at: Nanos,
    /// Finding.
    pub finding: Finding,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, at, finding, storage, pace, .. } = self;
        let ms = at.0 / 1_000_000;
        let ns = at.0 % 1_000_000;
        writeln!(f, "{}: {}", finding.oracle, finding.what)?;
        write!(f, "at {ms}.{ns:06} ms in the world of seed {seed}; to replay it:")?;
        write!(f, "\n  cargo x sim{}{} --seed {seed}", storage.option(), pace.option())?;
        match self.sabotage {
            Some(sabotage) => write!(f, " --canary {}", sabotage.name()),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Violation {}

/// Runs the world of a seed twice.
///
/// # Errors
/// The finding of an oracle.
pub fn run(seed: u64, config: &TortureConfig) -> Result<Report, Violation> {
    let first = replay(seed, config, None)?;
    let second = replay(seed, config, None);
    if second.as_ref().is_ok_and(|second| second.hash == first.hash) {
        return Ok(first);
    }
    let what = match second {
        Ok(second) => {
            let one = first.hash;
            let other = second.hash;
            format!("two runs of one seed: traces {one:016x} and {other:016x}")
        }
        Err(violation) => format!("only one of two runs is clean: {}", violation.finding.what),
    };
    let finding = Finding { oracle: Oracle::Determinism, what };
    let &TortureConfig { sabotage, storage, pace, .. } = config;
    Err(Violation { seed, sabotage, storage, pace, at: first.time, finding })
}

/// Runs the world of a seed once; a log gets a line for every event.
///
/// # Errors
/// The finding of an oracle.
pub fn replay(
    seed: u64,
    config: &TortureConfig,
    log: Option<Log<'_>>,
) -> Result<Report, Violation> {
    let clock = Cell::new(Nanos(0));
    let live = || World::new(seed, config, &clock, log).live();
    let lived = caught(live);
    let &TortureConfig { sabotage, storage, pace, .. } = config;
    lived.map_err(|finding| Violation { seed, sabotage, storage, pace, at: clock.get(), finding })
}

/// Runs a world. The engine's assertions are oracles, too.
fn caught<T>(live: impl FnOnce() -> Result<T, Finding>) -> Result<T, Finding> {
    catch_unwind(AssertUnwindSafe(live)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        let what = text.unwrap_or_else(|| "a panic without words".to_string());
        Err(Finding { oracle: Oracle::Assertion, what })
    })
}
