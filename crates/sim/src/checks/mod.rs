//! Small worlds that show one rule or one mechanism each: claims of the mail on `deadline` with
//! three levels (Corrado Zoccolo, linux-kernel, 22 April 2009) as checks that can fail, and those
//! rules of the mails on dm-crypt and on request-based device mapper that are exact.
//!
//! ```text
//!   clients, or a hand ──> the engine's own queue and elevator ──> a device model, or the hand
//!                      └── what was asked, started and ended when ──> Verdict
//! ```
//!
//! Each check has a negative control: the same world with the mechanism switched off, or with an
//! elevator that does not have it. The claim must not hold there, or the check shows nothing.
//!
//! *Rules* (of 2009: 1, 4, 5, 6, 7, 8, 10, 13) hold exactly. *Measured* ones (3, 9, 11, 12, 14)
//! come out as they come out: each world was chosen for being like what the mail or its time had,
//! before it was run, and is judged as it was chosen. The source of each says why, and what else
//! was tried. Where a result lies near its threshold the seed decides (12, 14): several are run,
//! and all must hold.

use std::fmt::Write;

mod batches;
mod classes;
mod clients;
mod devices;
mod hand;
mod latency;
mod lateness;
mod pages;
mod stacked;
mod starvation;
#[cfg(test)]
mod tests;

/// A claim and the world that it is looked for in.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// The claim's, as in `004-1`.
    pub id: &'static str,
    /// What world it is, in one line.
    pub about: &'static str,
    /// Runs world and control; the same seed gives the same verdict.
    pub run: fn(seed: u64) -> Verdict,
}

/// What came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What was measured, with units.
    pub ours: String,
    /// Whether the claim holds.
    pub holds: bool,
    /// What was measured in the control.
    pub control: Option<String>,
    /// Whether the control did as a control must: the claim does not hold there.
    pub control_holds: Option<bool>,
}

/// What was seen in one world.
struct Seen {
    what: String,
    holds: bool,
}

impl Verdict {
    /// Of a world and its controls; in none of these may the claim hold.
    fn of(ours: Seen, controls: &[Seen]) -> Self {
        let mut text = String::new();
        for control in controls {
            let separator = if text.is_empty() { "" } else { "; " };
            write!(text, "{separator}{}", control.what).expect("a string takes everything");
        }
        Self {
            ours: ours.what,
            holds: ours.holds,
            control: Some(text),
            control_holds: Some(controls.iter().all(|control| !control.holds)),
        }
    }
}

static ALL: [Check; 20] = [
    stacked::NO_LOST_WAKE_UP,
    stacked::PARTS_END_ALONE,
    classes::TWO_CLASSES,
    latency::REAL_TIME_READERS,
    starvation::REAL_TIME_STARVES,
    classes::MIDDLE_LEVEL,
    classes::LOWEST_LEVEL,
    starvation::LOWEST_IS_PROTECTED,
    latency::READS_BY_AGE,
    latency::AGE_FOR_READERS,
    batches::BOTH_LIMITS,
    batches::TIME_OF_A_BATCH,
    batches::GAIN_OF_A_QUANTUM,
    lateness::EARLY_START,
    lateness::LOW_SECTORS,
    pages::ORDER_OF_ATTEMPTS,
    pages::ALWAYS_SUCCEEDS,
    pages::PART_OF_A_RESULT,
    pages::FILLED_PAGE_BY_PAGE,
    pages::THREE_CONSUMERS,
];

/// All checks, in the order of the mails.
#[must_use]
pub fn all() -> &'static [Check] {
    &ALL
}

/// The check of a claim.
#[must_use]
pub fn find(id: &str) -> Option<&'static Check> {
    ALL.iter().find(|check| check.id == id)
}
