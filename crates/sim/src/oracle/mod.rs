//! The oracles: what must hold in every world, whatever happens in it.
//!
//! They stand outside of what they judge. The ledger knows what was submitted and what came back,
//! the stamps know what the medium would hold, and neither believes the queue. What they say:
//!
//! | oracle | what must hold |
//! |---|---|
//! | exactly once | each bio ends once, under its own word, and well only if all of it was done |
//! | leak | when all bios have ended no tag, request or command is left |
//! | limits | no request is longer, has more pieces, or is one too many for the device |
//! | merge | only what may be joined is one request |
//! | flush | what had ended before a flush is durable when it ends; FUA and preflush likewise |
//! | data | a read finds the last acknowledged write, or a later one that is in flight |
//! | power cut | what was promised is there afterwards |
//! | wait | no request is passed for longer than its elevator's bound |
//! | progress | while bios wait something is to happen, and without faults all end |
//! | clock | time does not go back |
//! | determinism | a seed gives the same trace each time |
//! | assertion | the engine's own assertions hold |

pub mod bound;
pub mod ledger;
pub mod stamps;

use std::fmt;

/// Who found something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Oracle {
    /// A bio ended twice, or with the wrong word, or with success though it was not done.
    ExactlyOnce,
    /// Something is left when nothing is to do.
    Leak,
    /// A request is larger than the device takes, or one too many.
    Limits,
    /// Something was joined that must not be.
    Merge,
    /// A flush, a preflush or FUA had no effect.
    Flush,
    /// A read found what it must not find.
    Data,
    /// Something that was promised is gone after a power cut.
    PowerCut,
    /// A request was passed by too many others.
    Wait,
    /// Bios wait and nothing happens.
    Progress,
    /// Time went back.
    Clock,
    /// Two runs of a seed differ.
    Determinism,
    /// An assertion failed.
    Assertion,
}

impl fmt::Display for Oracle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ExactlyOnce => "exactly once",
            Self::Leak => "leak",
            Self::Limits => "limits",
            Self::Merge => "merge",
            Self::Flush => "flush",
            Self::Data => "data",
            Self::PowerCut => "power cut",
            Self::Wait => "wait",
            Self::Progress => "progress",
            Self::Clock => "clock",
            Self::Determinism => "determinism",
            Self::Assertion => "assertion",
        })
    }
}

/// What an oracle found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which oracle.
    pub oracle: Oracle,
    /// What, in words.
    pub what: String,
}

/// Ends a function with a finding unless something holds.
macro_rules! must {
    ($oracle:ident, $holds:expr, $($what:tt)+) => {
        if !$holds {
            let what = format!($($what)+);
            return Err($crate::oracle::Finding { oracle: $crate::oracle::Oracle::$oracle, what });
        }
    };
}
pub(crate) use must;
