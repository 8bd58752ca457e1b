//! The oracles: rules that hold in every world.
//!
//! They are independent of the code under test. The ledger knows submissions and completions, the
//! stamps know the content of the medium, and neither trusts the queue. Their rules:
//!
//! | oracle | rule |
//! |---|---|
//! | exactly once | each bio ends once, with its own user data, and successfully only if all of it
//! was done |
//! | leak | after the end of all bios no tag, request or command is left |
//! | limits | no request exceeds the device's length, pieces or depth |
//! | merge | only bios that may be joined are one request |
//! | flush | writes that ended before a flush are durable at its end; FUA and preflush likewise |
//! | data | a read finds the last acknowledged write, or a later one in flight |
//! | power cut | promised data survives |
//! | wait | no request is passed for longer than its elevator's bound |
//! | progress | while bios wait, an event is scheduled; without faults all bios end |
//! | clock | time does not go back |
//! | determinism | a seed gives the same trace each time |
//! | assertion | the engine's own assertions hold |

pub mod bound;
pub mod ledger;
pub mod stamps;

use std::fmt;

/// An oracle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Oracle {
    /// A bio ended twice, with wrong user data, or successfully without being done.
    ExactlyOnce,
    /// Something is left without work.
    Leak,
    /// A request exceeds the device's length or depth.
    Limits,
    /// Bios were joined that must not be.
    Merge,
    /// A flush, a preflush or FUA had no effect.
    Flush,
    /// A read found wrong data.
    Data,
    /// Promised data is missing after a power cut.
    PowerCut,
    /// Too many others passed a request.
    Wait,
    /// Bios wait without any event.
    Progress,
    /// A request was aborted before its time.
    Timeout,
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
            Self::Timeout => "timeout",
            Self::Clock => "clock",
            Self::Determinism => "determinism",
            Self::Assertion => "assertion",
        })
    }
}

/// A violation found by an oracle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Oracle.
    pub oracle: Oracle,
    /// Description.
    pub what: String,
}

/// Returns a finding from a function unless a condition holds.
macro_rules! must {
    ($oracle:ident, $holds:expr, $($what:tt)+) => {
        if !$holds {
            let what = format!($($what)+);
            return Err($crate::oracle::Finding { oracle: $crate::oracle::Oracle::$oracle, what });
        }
    };
}
pub(crate) use must;
