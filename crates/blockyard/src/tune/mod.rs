//! The best settings for a volume and a workload, found by measuring.
//!
//! ```
//! use std::time::Duration;
//!
//! use blockyard::Volume;
//! use blockyard::tune::{self, Goal, Limits, Rules, Settings, Source, Tuner, Workload};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let file = tempfile::NamedTempFile::new()?;
//! # file.as_file().set_len(1 << 20)?;
//! # let image = file.path();
//! let source = Source::unlock(image, Volume::options().raw())?;
//! let jobs = tune::jobs("rw=randread bs=4k", 1 << 20)?;
//! let limits = Limits { time: Duration::from_millis(100), slice: Duration::from_millis(10) };
//! let default = Settings::default();
//! let mut tuner = Tuner::new(source, Workload::Jobs(jobs), Goal::Iops, limits)?;
//! tuner.fit_slice(&default)?;
//! let found = tune::search(&mut tuner, &default, &[], Rules::default(), &mut |comparison| {
//!     println!("{:?}: {:?}", comparison.axis, comparison.candidates);
//! })?;
//! println!("{:?}", found.best);
//! # Ok(())
//! # }
//! ```
//!
//! ```text
//!   search: one axis after the other ──> comparison: which is best, is it clear? ──> a round
//!                                                                                      │
//!                                  a Space: a volume's settings (Tuner), or your own ──┘
//! ```
//! The search and the comparison do not depend on the kind of settings.

mod comparison;
mod goal;
mod search;
mod traced;
mod tuner;
mod workload;

use std::time::Duration;

pub use comparison::{Outcome, Ratio, Rules, Standing};
pub use goal::Goal;
pub use search::{Comparison, Found, Space, search};
pub use traced::Traced;
pub use tuner::{Axis, Limits, Settings, Source, Tuner};
pub use workload::{PRESETS, Preset, Workload, jobs};

/// The extent of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measurement {
    /// Jobs that run for this time.
    Time {
        /// The time.
        slice: Duration,
    },
    /// A window of a trace is played at the times of its bios.
    Window {
        /// Length of the window.
        slice: Duration,
        /// Number of windows in the trace.
        windows: usize,
    },
    /// Bios of a trace are played as fast as possible.
    Bios {
        /// Bios of a measurement. If there are more than `all`, the trace is repeated.
        bios: usize,
        /// Bios of the trace.
        all: usize,
    },
}

/// Error of a search.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuneError {
    /// A trace has no bios to play.
    #[error("the trace has no bios to play; {left_out} change the volume and are left out")]
    NoBios {
        /// Number of bios that change the volume.
        left_out: usize,
    },
    /// No request ended in a measurement.
    #[error(
        "no request ended within {ms} ms; give each measurement a longer `slice`",
        ms = .slice.as_millis()
    )]
    NoRequest {
        /// Length of the measurement.
        slice: Duration,
        /// The measured settings.
        settings: Box<Settings>,
    },
}
