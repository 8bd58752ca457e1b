//! Stages of a request's time: the time of a bio, from its submission until its outcome is taken,
//! is divided into stages without gaps.
//!
//! ```text
//! came ─ queue ─ cipher-wait ─ cipher ─ submit-wait ─ queue ─ device ─ completion ─ taken
//! gate    until a                writer, order  plug,             until its thread
//! inbox   worker starts                         elevator, tags    polls and replies
//! ```
//! With a limit of the rate, *throttle* comes first: the wait for tokens.
//! A read has its ciphers after the device. The time points are in the executor, so the engine has
//! no clock: it copies a mark ([`Sample`]) from a bio to its SQEs. Only sampled bios have a mark,
//! because reading the clock costs 30 ns, and a cipher of 4 KiB 600 (`samples`).
//!
//! The rules (`attribute`):
//!
//! * The work of a thread in one pass counts as its longer part: a cipher that runs directly on a
//!   file's mapping is *cipher*, including the first touch of its pages.
//! * The delay of a target (`delay`) is *device*, because it simulates a slow one.
//! * A bio of several parts divides its time equally among the stages of its active or queued
//!   parts.
//! * A time without any active part belongs to the next stage: before a cipher it is *cipher-wait*,
//!   before a device *submit-wait*, at the start *queue*, at the end *completion*.

mod record;
mod samples;
mod stats;

use std::sync::LazyLock;
use std::time::Instant;

use blockyard_engine::bio::{Op, Sample};
use blockyard_engine::time::Nanos;

use crate::threads::Usage;

pub(crate) use samples::{EVERY_QUEUED, EVERY_SYNCHRONOUS, Samples};
pub(crate) use stats::{BusyTime, StageStats};
pub use stats::{KindTimes, Resolution, StageTimes, Times};

/// Stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Waiting for tokens: the export has a limit of its rate.
    Throttle,
    /// Received, at the gate, plugged, with an elevator, or without a tag.
    Queue,
    /// Waiting for the cipher.
    CipherWait,
    /// In the cipher.
    Cipher,
    /// Encrypted, or continuing after a target, and not yet submitted.
    SubmitWait,
    /// At the device.
    Device,
    /// The device or the cipher has ended, and the outcome was not taken.
    Completion,
}

impl Stage {
    /// All stages, in the order of a write.
    pub const ALL: [Self; 7] = [
        Self::Throttle,
        Self::Queue,
        Self::CipherWait,
        Self::Cipher,
        Self::SubmitWait,
        Self::Device,
        Self::Completion,
    ];

    /// Name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Throttle => "throttle",
            Self::Queue => "queue",
            Self::CipherWait => "cipher-wait",
            Self::Cipher => "cipher",
            Self::SubmitWait => "submit-wait",
            Self::Device => "device",
            Self::Completion => "completion",
        }
    }
}

/// RequestKind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Flush.
    Flush,
    /// Discards and zeroes.
    Other,
}

impl RequestKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Flush, Self::Other];

    /// RequestKind of an operation.
    #[must_use]
    pub fn of(op: Op) -> Self {
        match op {
            Op::Read => Self::Read,
            Op::Write => Self::Write,
            Op::Flush => Self::Flush,
            Op::Discard | Op::WriteZeroes => Self::Other,
        }
    }

    /// Name in tables.
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

/// Work of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Threads of connections: they receive, run inline ciphers, submit and reply, and take turns
    /// as the writing thread.
    Connections,
    /// Workers: they run ciphers for others.
    Workers,
    /// Threads of devices: elevators, rings, and connections to other servers.
    Disks,
}

/// Resource usage of threads with the same work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threads {
    /// Their work.
    pub work: Work,
    /// Current number of threads.
    pub threads: usize,
    /// Usage of current and ended threads.
    pub usage: Usage,
    /// Number of the pool: volumes with the same number share the threads and these figures.
    pub pool: Option<u64>,
}

/// The common clock of all stages.
pub(crate) fn now() -> Nanos {
    static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);
    Nanos(u64::try_from(EPOCH.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// A span of time that a part of a bio spent in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) stage: Stage,
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
}

/// A span measured by another thread, with its bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timed {
    pub(crate) sample: Sample,
    pub(crate) span: Span,
}

/// Divides the time of a bio into stages by the rules above. The stages add up to the whole.
pub(crate) fn attribute(from: Nanos, to: Nanos, spans: &mut [Span]) -> [u64; Stage::ALL.len()] {
    let mut stages = [0; Stage::ALL.len()];
    if let [Span { stage, from: begun, to: ended }] = *spans {
        // The usual case of a bio without waits.
        let begun = begun.max(from).min(to);
        let ended = ended.max(from).min(to);
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
        // Up to the next start or end of a span.
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

/// The stage of an idle time before this stage.
fn in_front_of(stage: Stage, is_first: bool) -> Stage {
    match stage {
        _ if is_first => Stage::Queue,
        Stage::CipherWait | Stage::Cipher => Stage::CipherWait,
        Stage::Throttle | Stage::Queue | Stage::SubmitWait | Stage::Device | Stage::Completion => {
            Stage::SubmitWait
        }
    }
}

#[cfg(test)]
mod tests;
