//! The lab: experiments with I/O schedulers, from a TOML file to a report.
//!
//! ```text
//!   file ── spec ──> experiment ── page: which runs ──> execute: all cores, a world each
//!                        │                                   │
//!                     search: fits                       results ──> judge: claims
//!                                                            └──> blockyard-report
//! ```
//! [`Experiment::parse`] reads an experiment, [`builtin::load`] loads a built-in one. [`run`] runs
//! it in the simulated world and judges its claims, [`real::run`] runs its jobs on this machine.
//! [`search`] fits the constants of its world. [`run_job`] runs a single job under an observer of
//! the calling program.
//!
//! # An elevator of your own
//!
//! [`Request::elevator`] runs every job of an experiment with another elevator, also with one of
//! the program's own. `docs/elevators/adding.md` has the steps, the package `examples/elevator`
//! their result.

pub mod builtin;
mod causes;
pub mod compare;
mod error;
mod execute;
mod fio_report;
pub mod fit_device;
mod judge;
mod lines;
mod measured;
mod observe;
mod page;
mod plots;
pub mod real;
#[cfg(test)]
mod records;
mod relabel;
mod results;
mod rules;
mod search;
mod spec;
mod trace;

pub use blockyard_engine as engine;
pub use blockyard_report as report;
pub use blockyard_sim as sim;

pub use error::Error;
pub use execute::{JobDone, Measured, Progress, run_job};
pub use page::{Outcome, Request, run, side_by_side};
pub use relabel::relabel;
pub use search::{Found, search};
pub use spec::fit::{Fit, Point};
pub use spec::job::{FioRows, JobSpec};
pub use spec::traced::TraceJob;
pub use spec::tree::Override;
pub use spec::{Experiment, Setup, Variant};
pub use trace::{Tracer, Window};
