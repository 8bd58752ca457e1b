//! Canaries: planted bugs that the oracles must find.
//!
//! None of them is in the engine. A saboteur stands between the world, its queue and its device and
//! changes their messages; some canaries are elevators (`elevators`). A world with a
//! canary is drawn from its seed like any other.

use blockyard_engine::elevator::ElevatorType;
use blockyard_workload::random::Random;

use super::{Storage, TortureConfig, elevators};

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// The queue does not learn of a completed command.
    DroppedCompletion,
    /// The end of a bio is reported twice.
    DoubleEnd,
    /// A bio ends with another one's user data.
    WrongUser,
    /// The queue's timer is lost.
    LostWakeUp,
    /// The submitter learns of a bio's end, the queue does not: its tag leaks.
    LeakedTag,
    /// A flush ends immediately, without reaching the device.
    EarlyFlush,
    /// Preflush is dropped on the way to the queue.
    ForgottenPreflush,
    /// FUA is dropped on the way to the device.
    ForgottenFua,
    /// A preflush or FUA write adjacent to another write becomes an ordinary one, and is merged.
    MergeAcrossFlush,
    /// A power cut loses sectors that a flush had made durable.
    LostCache,
    /// A read finds data from before the last write.
    StaleRead,
    /// The last sector of a write is not written.
    ShortWrite,
    /// A write is shifted by one sector.
    MisdirectedWrite,
    /// A failed command is reported as done.
    SwallowedError,
    /// The queue assumes a larger request limit than the device's.
    TooLarge,
    /// The queue assumes a greater depth than the device's.
    TooDeep,
    /// The queue assumes a shorter timeout than the configured one.
    ShortTimeout,
    /// A completion has a time before its command's start.
    ClockBack,
    /// The elevator loses a request.
    LosingElevator,
    /// The elevator has work and does not report it.
    SleepingElevator,
    /// The elevator dispatches writes only without reads.
    StarvedLevel,
    /// The elevator allows every merge.
    MergesAll,
    /// The elevator iterates over a hash map with a random seed.
    RandomMap,
    /// A partly done request of a path is reported as done.
    DroppedRest,
    /// A path reports a sector more than it did.
    Overstated,
    /// A lost connection is reported as an error of the disk.
    WrongClass,
    /// A device is too busy for a clone, which stays in the queue of its path.
    KeptBelow,
    /// The result of a path check is lost.
    ForgottenCheck,
    /// A path executes a lost write after its failure was reported.
    LateWrite,
    /// A clone is held back while later ones are issued to paths.
    HeldClone,
    /// A raised softirq does not run.
    LostSoftirq,
    /// A called worker does not run the queue.
    LostRun,
    /// A flush reaches only the first of several devices.
    FirstDevice,
    /// Only the first part of a split FUA write is FUA.
    FuaOfFirstPart,
}

impl Sabotage {
    /// All canaries.
    pub const ALL: &[Self] = &[
        Self::DroppedCompletion,
        Self::DoubleEnd,
        Self::WrongUser,
        Self::LostWakeUp,
        Self::LeakedTag,
        Self::EarlyFlush,
        Self::ForgottenPreflush,
        Self::ForgottenFua,
        Self::MergeAcrossFlush,
        Self::LostCache,
        Self::StaleRead,
        Self::ShortWrite,
        Self::MisdirectedWrite,
        Self::SwallowedError,
        Self::TooLarge,
        Self::TooDeep,
        Self::ShortTimeout,
        Self::ClockBack,
        Self::LosingElevator,
        Self::SleepingElevator,
        Self::StarvedLevel,
        Self::MergesAll,
        Self::RandomMap,
        Self::DroppedRest,
        Self::Overstated,
        Self::WrongClass,
        Self::KeptBelow,
        Self::ForgottenCheck,
        Self::LateWrite,
        Self::HeldClone,
        Self::LostSoftirq,
        Self::LostRun,
        Self::FirstDevice,
        Self::FuaOfFirstPart,
    ];

    /// Its name on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::DroppedCompletion => "dropped-completion",
            Self::DoubleEnd => "double-end",
            Self::WrongUser => "wrong-user",
            Self::LostWakeUp => "lost-wake-up",
            Self::LeakedTag => "leaked-tag",
            Self::EarlyFlush => "early-flush",
            Self::ForgottenPreflush => "forgotten-preflush",
            Self::ForgottenFua => "forgotten-fua",
            Self::MergeAcrossFlush => "merge-across-flush",
            Self::LostCache => "lost-cache",
            Self::StaleRead => "stale-read",
            Self::ShortWrite => "short-write",
            Self::MisdirectedWrite => "misdirected-write",
            Self::SwallowedError => "swallowed-error",
            Self::TooLarge => "too-large",
            Self::TooDeep => "too-deep",
            Self::ShortTimeout => "short-timeout",
            Self::ClockBack => "clock-back",
            Self::LosingElevator => "losing-elevator",
            Self::SleepingElevator => "sleeping-elevator",
            Self::StarvedLevel => "starved-level",
            Self::MergesAll => "merges-all",
            Self::RandomMap => "random-map",
            Self::DroppedRest => "dropped-rest",
            Self::Overstated => "overstated",
            Self::WrongClass => "wrong-class",
            Self::KeptBelow => "kept-below",
            Self::ForgottenCheck => "forgotten-check",
            Self::LateWrite => "late-write",
            Self::HeldClone => "held-clone",
            Self::LostSoftirq => "lost-softirq",
            Self::LostRun => "lost-run",
            Self::FirstDevice => "first-device",
            Self::FuaOfFirstPart => "fua-of-first-part",
        }
    }

    /// The canary with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|sabotage| sabotage.name() == name)
    }

    /// The kind of storage that it needs.
    pub(super) fn storage(config: &TortureConfig) -> Storage {
        match config.sabotage {
            Some(Self::FirstDevice) => Storage::Devices,
            Some(sabotage) if sabotage.needs_paths() => Storage::Paths,
            _ => config.storage,
        }
    }

    /// Whether it needs several paths to one disk.
    fn needs_paths(self) -> bool {
        matches!(
            self,
            Self::DroppedRest
                | Self::Overstated
                | Self::WrongClass
                | Self::KeptBelow
                | Self::ForgottenCheck
                | Self::LateWrite
        ) || self.needs_requests()
    }

    /// Whether it needs request-based paths.
    pub(super) fn needs_requests(self) -> bool {
        matches!(self, Self::HeldClone | Self::LostSoftirq | Self::LostRun)
    }

    /// Its elevator, if it is one.
    pub(super) fn elevator(self) -> Option<&'static ElevatorType> {
        match self {
            Self::LosingElevator => Some(&elevators::LOSER),
            Self::SleepingElevator => Some(&elevators::SLEEPER),
            Self::StarvedLevel => Some(&elevators::STARVER),
            Self::MergesAll => Some(&elevators::MERGER),
            Self::RandomMap => Some(&elevators::MAP),
            _ => None,
        }
    }
}

/// A canary strikes at one of this many opportunities.
const ONE_OF: u64 = 6;

/// Applies the planted bug.
#[derive(Debug)]
pub(super) struct Saboteur {
    plan: Option<Sabotage>,
    random: Random,
}

impl Saboteur {
    pub(super) fn new(plan: Option<Sabotage>, seed: u64) -> Self {
        Self { plan, random: Random::new(seed, 3) }
    }

    /// Whether this bug is planted.
    pub(super) fn is(&self, sabotage: Sabotage) -> bool {
        self.plan == Some(sabotage)
    }

    /// Whether the bug is planted and strikes now.
    pub(super) fn strikes(&mut self, sabotage: Sabotage) -> bool {
        self.is(sabotage) && self.random.below(ONE_OF) == 0
    }
}
