//! The canaries: bugs that are planted on purpose, so that we know the oracles would find them.
//!
//! None of them is in the engine. A saboteur stands between the world, its queue and its device and
//! tampers with what passes; some are elevators (`elevators`), which anyone can attach. A
//! world that has one is drawn from its seed like any other.

use blockyard_engine::elevator::ElevatorType;
use blockyard_workload::random::Random;

use super::{Storage, TortureConfig, elevators};

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// The queue is not told that the device has ended a command.
    DroppedCompletion,
    /// A bio is said to have ended twice.
    DoubleEnd,
    /// A bio ends under another one's user word.
    WrongUser,
    /// The queue's wish to be woken up is forgotten.
    LostWakeUp,
    /// The submitter is told that a bio has ended, the queue is not: its tag is gone.
    LeakedTag,
    /// A flush ends at once; the device never hears of it.
    EarlyFlush,
    /// Preflush is forgotten on the way to the queue.
    ForgottenPreflush,
    /// FUA is forgotten on the way to the device.
    ForgottenFua,
    /// A preflush or FUA write behind its neighbour becomes an ordinary one, and joins it.
    MergeAcrossFlush,
    /// A power cut takes sectors that a flush had made durable.
    LostCache,
    /// A read finds what was there before the last write.
    StaleRead,
    /// The last sector of a write is not written.
    ShortWrite,
    /// A write lands one sector further.
    MisdirectedWrite,
    /// A failed command is said to be done.
    SwallowedError,
    /// The queue is told of larger requests than the device takes.
    TooLarge,
    /// The queue is told of more commands than the device takes.
    TooDeep,
    /// A completion is said to have happened before its command started.
    ClockBack,
    /// The elevator forgets a request.
    LosingElevator,
    /// The elevator has something to do and does not say so.
    SleepingElevator,
    /// The elevator gives writes only when there is no read.
    StarvedLevel,
    /// The elevator allows every merge.
    MergesAll,
    /// The elevator asks a hash map with a random seed who is next.
    RandomMap,
    /// What a path did in part is said to be done.
    DroppedRest,
    /// A path is said to have done a sector more than it did.
    Overstated,
    /// A lost connection is said to be the disk's own failure.
    WrongClass,
    /// A device is too busy for a clone, which stays in the queue of its path.
    KeptBelow,
    /// Nobody hears how the check of a path went.
    ForgottenCheck,
    /// A path that lost a write writes it when others have been told that it is lost.
    LateWrite,
    /// A clone lies about while others that came later are given to the paths.
    HeldClone,
    /// A softirq that was raised does not run.
    LostSoftirq,
    /// A worker that was called to run the queue does not come.
    LostRun,
    /// A flush reaches only the first of several devices.
    FirstDevice,
    /// Of a FUA write that was cut only the first part is FUA.
    FuaOfFirstPart,
}

impl Sabotage {
    /// All there are.
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

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|sabotage| sabotage.name() == name)
    }

    /// The kind of world that it is planted in.
    pub(super) fn storage(config: &TortureConfig) -> Storage {
        match config.sabotage {
            Some(Self::FirstDevice) => Storage::Devices,
            Some(sabotage) if sabotage.needs_paths() => Storage::Paths,
            _ => config.storage,
        }
    }

    /// Whether it is about several paths to one disk.
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

    /// Whether it is about requests over these paths.
    pub(super) fn needs_requests(self) -> bool {
        matches!(self, Self::HeldClone | Self::LostSoftirq | Self::LostRun)
    }

    /// The elevator that it is, if it is one.
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

/// Strikes at one of some opportunities.
const ONE_OF: u64 = 6;

/// Who plants the bug.
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

    /// Whether it is, and happens now.
    pub(super) fn strikes(&mut self, sabotage: Sabotage) -> bool {
        self.is(sabotage) && self.random.below(ONE_OF) == 0
    }
}
