//! Small worlds that each show one rule or mechanism: claims of the mail on `deadline` with three
//! levels (Corrado Zoccolo, linux-kernel, 22 April 2009) as checks that can fail, and the exact
//! rules of the mails on dm-crypt and on request-based device mapper.
//!
//! ```text
//!   clients, or a hand ──> the engine's own queue and elevator ──> a device model, or the hand
//!                      └── what was asked, started and ended when ──> Verdict
//! ```
//!
//! Each check has a negative control: the same world without the mechanism, or with an elevator
//! that lacks it. The claim must not hold there; otherwise the check proves nothing.
//!
//! *Rules* (of 2009: 1, 4, 5, 6, 7, 8, 10, 13) hold exactly. *Measured* checks (3, 9, 11, 12, 14)
//! have open results: each world was chosen before its run for its likeness to the mail or its
//! time, and is judged unchanged. The source of each names its reason and all other attempts. Near
//! a threshold the seed decides (12, 14): several seeds run, and all must hold.

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

/// A claim and its world.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Id of the claim, for example `004-1`.
    pub id: &'static str,
    /// One-line description of the world.
    pub about: &'static str,
    /// Runs world and control; equal seeds give equal verdicts.
    pub run: fn(seed: u64) -> Verdict,
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Measured values with units.
    pub ours: String,
    /// Whether the claim holds.
    pub holds: bool,
    /// Measured values of the control.
    pub control: Option<String>,
    /// Whether the claim fails in the control, as it must.
    pub control_holds: Option<bool>,
}

/// Result of one world.
struct WorldResult {
    what: String,
    holds: bool,
}

impl Verdict {
    /// The verdict of a world and its controls; the claim may not hold in any control.
    fn of(ours: WorldResult, controls: &[WorldResult]) -> Self {
        let mut text = String::new();
        for control in controls {
            let separator = if text.is_empty() { "" } else { "; " };
            write!(text, "{separator}{}", control.what).expect("a string never fails");
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
