//! Ranges in flight: shards with concurrent writes of whole and partial sectors.
//!
//! The world has two to four shards over one disk. Each is a connection: it sends several requests
//! at a time, which overlap with each other and with those of other shards, and may leave at any
//! time. [`Ranges`](blockyard_engine::ranges::Ranges) is the real one; `world.rs` is a short model
//! of the host's part. Shards are threads, so each of their steps is one call of the engine, and
//! the seed determines the next thread: any event may happen between an announcement and the check
//! of entries. The disk proceeds sector by sector, in any order.
//!
//! Checked: no cell returns to content that an acknowledged write has replaced (`judge.rs`), each
//! grant arrives once, no write passes a read-modify-write that waits for its blocks, and all
//! requests end.

mod disk;
mod judge;
mod world;

use std::cell::Cell;
use std::fmt;

use self::world::World;
use super::{Log, caught};
use crate::oracle::{Finding, Oracle};

/// A planted bug, in the shards of the world, not in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Some writes of whole sectors are not announced.
    Unannounced,
    /// Reads are not announced where a sector tears as a whole.
    UnannouncedRead,
    /// A read-modify-write does not wait for exclusive access to its sector.
    HastyPatch,
    /// A write passes a waiting read-modify-write.
    Overtaking,
    /// An announcement is withdrawn without waking its waiters.
    SilentWithdrawal,
    /// A shard does not receive a grant.
    ForgottenGrant,
    /// A shard receives a grant twice.
    DoubleGrant,
    /// A connection leaves without waiting for its operations in flight.
    EarlyLeave,
    /// An entry is never ended.
    KeptEntry,
}

impl Sabotage {
    /// All bugs.
    pub const ALL: &[Self] = &[
        Self::Unannounced,
        Self::UnannouncedRead,
        Self::HastyPatch,
        Self::Overtaking,
        Self::SilentWithdrawal,
        Self::ForgottenGrant,
        Self::DoubleGrant,
        Self::EarlyLeave,
        Self::KeptEntry,
    ];

    /// Its name on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unannounced => "unannounced",
            Self::UnannouncedRead => "unannounced-read",
            Self::HastyPatch => "hasty-patch",
            Self::Overtaking => "overtaking",
            Self::SilentWithdrawal => "silent-withdrawal",
            Self::ForgottenGrant => "forgotten-grant",
            Self::DoubleGrant => "double-grant",
            Self::EarlyLeave => "early-leave",
            Self::KeptEntry => "kept-entry",
        }
    }

    /// The bug with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|sabotage| sabotage.name() == name)
    }
}

/// Counts of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Hash of all events in order.
    pub hash: u64,
    /// Requests of clients.
    pub requests: u64,
    /// Written partial sectors.
    pub patches: u64,
    /// Read-modify-writes, writes and reads that waited for their ranges.
    pub waits: u64,
    /// Connections that left early.
    pub leaves: u64,
    /// Steps of shards and of the disk.
    pub steps: u64,
}

/// A finding of an oracle, and its replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Seed.
    pub seed: u64,
    /// Planted bug, if any.
    pub sabotage: Option<Sabotage>,
    /// Step.
    pub step: u64,
    /// Finding.
    pub finding: Finding,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, step, finding, .. } = self;
        writeln!(f, "{}: {}", finding.oracle, finding.what)?;
        write!(f, "at step {step} in the world of seed {seed}; to replay it:")?;
        write!(f, "\n  cargo x sim --ranges --seed {seed}")?;
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
pub fn run(seed: u64, sabotage: Option<Sabotage>) -> Result<Report, Violation> {
    let first = replay(seed, sabotage, None)?;
    let second = replay(seed, sabotage, None);
    if second.as_ref().is_ok_and(|second| *second == first) {
        return Ok(first);
    }
    let what = format!("two runs of one seed: {first:?} and {second:?}");
    let finding = Finding { oracle: Oracle::Determinism, what };
    Err(Violation { seed, sabotage, step: first.steps, finding })
}

/// Runs the world of a seed once; a log gets a line for every event.
///
/// # Errors
/// The finding of an oracle.
pub fn replay(
    seed: u64,
    sabotage: Option<Sabotage>,
    log: Option<Log<'_>>,
) -> Result<Report, Violation> {
    let clock = Cell::new(0);
    let lived = caught(|| World::new(seed, sabotage, &clock, log).live());
    lived.map_err(|finding| Violation { seed, sabotage, step: clock.get(), finding })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORLDS: u64 = 1000;

    #[test]
    fn worlds_are_clean_and_what_they_are_for_happens_in_them() {
        let mut sum = Report::default();
        for seed in 0..WORLDS {
            let report = run(seed, None).unwrap_or_else(|violation| panic!("{violation}"));
            sum.requests += report.requests;
            sum.patches += report.patches;
            sum.waits += report.waits;
            sum.leaves += report.leaves;
        }
        let enough = [
            (sum.requests, 100 * WORLDS),
            (sum.patches, 50 * WORLDS),
            (sum.waits, 50 * WORLDS),
            (sum.leaves, WORLDS),
        ];
        assert!(enough.iter().all(|(count, least)| count >= least), "{sum:?}");
    }

    /// Each bug is found by its oracle.
    #[test]
    fn every_planted_bug_is_found() {
        for sabotage in Sabotage::ALL.iter().copied() {
            let oracle = match sabotage {
                Sabotage::Unannounced
                | Sabotage::UnannouncedRead
                | Sabotage::HastyPatch
                | Sabotage::EarlyLeave => Oracle::Data,
                Sabotage::Overtaking => Oracle::Wait,
                Sabotage::SilentWithdrawal | Sabotage::ForgottenGrant | Sabotage::KeptEntry => {
                    Oracle::Progress
                }
                Sabotage::DoubleGrant => Oracle::ExactlyOnce,
            };
            let found = (0..WORLDS).find_map(|seed| run(seed, Some(sabotage)).err());
            let Some(violation) = found else { panic!("{} is not found", sabotage.name()) };
            assert_eq!(violation.finding.oracle, oracle, "{violation}");
            let command = format!("cargo x sim --ranges --seed {} --canary", violation.seed);
            assert!(violation.to_string().contains(&command), "{violation}");
        }
    }

    #[test]
    fn log_of_a_world_tells_every_request() {
        let mut log = Vec::new();
        let mut keep = |line: &str| log.push(line.to_string());
        let report = replay(3, None, Some(&mut keep)).unwrap();
        let sent = log.iter().filter(|line| line.contains(" sends ")).count() as u64;
        assert_eq!(sent, report.requests);
        assert_eq!(report, replay(3, None, None).unwrap());
    }
}
