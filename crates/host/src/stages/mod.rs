//! Where the time of a request goes: what a shard is given (a bio), from when it came until its
//! outcome is taken, cut into stages without a gap.
//!
//! ```text
//!  came ─ queue ─ cipher-wait ─ cipher ─ submit-wait ─ queue ─ device ─ completion ─ taken
//!         gate    a worker is           writer, order  plug,                until its thread
//!         inbox   to take it                           elevator, tags       looks, and replies
//! ```
//! A read has its ciphers behind the device. The points lie where SQEs are executed and answered,
//! so the engine has no clock: it carries a mark ([`Sample`]) from a bio to its SQEs. Not every
//! bio has one: looking at the clock costs 30 ns, and a cipher of 4 KiB 600 (`samples`).
//!
//! The rules (`attribute`):
//!
//! * What a thread does in one pass counts as the longer part of it: a cipher that runs straight
//!   into or out of a file's mapping is *cipher*, and so is a first touch of its pages.
//! * A time that a target makes a bio wait (`delay`) is *device*: it plays a slow one.
//! * A bio of several parts is in the stages of those that are being worked at or queued, in equal
//!   shares.
//! * A time in which nothing of the bio is anywhere belongs to what comes next: in front of a
//!   cipher to *cipher-wait*, in front of a device to *submit-wait*, before all of them to *queue*,
//!   behind all of them to *completion*.

mod record;
mod samples;
mod stats;

use std::sync::LazyLock;
use std::time::Instant;

use blockyard_engine::bio::{Op, Sample};
use blockyard_engine::time::Nanos;

use crate::threads::Usage;

pub(crate) use samples::{EVERY_QUEUED, EVERY_SYNCHRONOUS, Samples};
pub(crate) use stats::StageStats;
pub use stats::{KindTimes, Resolution, StageTimes, Times};

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Received, at the gate, plugged, with an elevator, or without a tag.
    Queue,
    /// Nobody has taken it to the cipher yet.
    CipherWait,
    /// In the cipher.
    Cipher,
    /// Encrypted, or going on from a target, and not submitted yet.
    SubmitWait,
    /// With the device.
    Device,
    /// The device or the cipher has ended, and the outcome is not taken.
    Completion,
}

impl Stage {
    /// All, in the order of a write.
    pub const ALL: [Self; 6] = [
        Self::Queue,
        Self::CipherWait,
        Self::Cipher,
        Self::SubmitWait,
        Self::Device,
        Self::Completion,
    ];

    /// In tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::CipherWait => "cipher-wait",
            Self::Cipher => "cipher",
            Self::SubmitWait => "submit-wait",
            Self::Device => "device",
            Self::Completion => "completion",
        }
    }
}

/// What kinds of requests are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It reads.
    Read,
    /// It writes.
    Write,
    /// It makes stable what was written.
    Flush,
    /// Discards and zeroes.
    Other,
}

impl Kind {
    /// All.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Flush, Self::Other];

    /// Of an operation.
    #[must_use]
    pub fn of(op: Op) -> Self {
        match op {
            Op::Read => Self::Read,
            Op::Write => Self::Write,
            Op::Flush => Self::Flush,
            Op::Discard | Op::WriteZeroes => Self::Other,
        }
    }

    /// In tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Other => "other",
        }
    }
}

/// The work of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// They receive, run inline ciphers, submit, reply, and are the writing thread in turns.
    Connections,
    /// They run ciphers for others.
    Workers,
    /// They have elevators, rings, and connections to other servers.
    Disks,
}

/// The use of threads that do the same work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threads {
    /// Their work.
    pub work: Work,
    /// How many there are now.
    pub threads: usize,
    /// What they and those that have ended used.
    pub usage: Usage,
}

/// The clock of all stages: one for all threads.
pub(crate) fn now() -> Nanos {
    static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);
    Nanos(u64::try_from(EPOCH.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// A time in which something of a bio was somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) stage: Stage,
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
}

/// A span that another thread saw, and of which bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timed {
    pub(crate) sample: Sample,
    pub(crate) span: Span,
}

/// Cuts the time of a bio into stages, by the rules above. They add up to the whole.
pub(crate) fn attribute(from: Nanos, to: Nanos, spans: &mut [Span]) -> [u64; Stage::ALL.len()] {
    let mut stages = [0; Stage::ALL.len()];
    if let [Span { stage, from: begun, to: ended }] = *spans {
        // Nearly all of those that wait for nothing.
        let (begun, ended) = (begun.max(from).min(to), ended.max(from).min(to));
        stages[in_front_of(stage, true) as usize] += begun.since(from).0;
        stages[stage as usize] += ended.since(begun).0;
        stages[Stage::Completion as usize] += to.since(ended).0;
        return stages;
    }
    spans.sort_unstable_by_key(|span| span.from);
    let mut at = from;
    while at < to {
        let is_on = |span: &&Span| span.from <= at && at < span.to;
        let on = spans.iter().filter(is_on).count() as u64;
        // Up to where something begins or ends.
        let edges = spans.iter().flat_map(|span| [span.from, span.to]);
        let next = edges.filter(|edge| *edge > at).min().unwrap_or(to).min(to);
        let time = next.since(at).0;
        if on > 0 {
            spans.iter().filter(is_on).for_each(|span| stages[span.stage as usize] += time / on);
            let first = spans.iter().find(is_on).expect("there is one");
            stages[first.stage as usize] += time % on;
        } else {
            let is_first = spans.first().is_none_or(|first| first.from >= next);
            let coming = spans.iter().find(|span| span.from >= next && span.from < to);
            let stage = coming.map_or(Stage::Completion, |span| in_front_of(span.stage, is_first));
            stages[stage as usize] += time;
        }
        at = next;
    }
    stages
}

/// What a time counts as in which a bio is nowhere and goes on with this stage.
fn in_front_of(stage: Stage, is_first: bool) -> Stage {
    match stage {
        _ if is_first => Stage::Queue,
        Stage::CipherWait | Stage::Cipher => Stage::CipherWait,
        Stage::Queue | Stage::SubmitWait | Stage::Device | Stage::Completion => Stage::SubmitWait,
    }
}

#[cfg(test)]
mod tests;
