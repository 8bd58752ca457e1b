//! The lab: experiments in the simulated world, from a TOML file to a report.
//!
//! ```text
//!   file ── spec ──> experiment ── page: which runs ──> execute: all cores, a world each
//!                        │                                   │
//!                     search: fits                       results ──> judge: claims
//!                                                            └──> blockyard-report
//! ```
//! [`onsite`] runs the same jobs on this machine instead, in [`crate::real`].

pub(crate) mod builtin;
mod causes;
pub(crate) mod execute;
mod judge;
mod lines;
mod measured;
mod observe;
pub(crate) mod onsite;
pub(crate) mod page;
pub(crate) mod relabel;
mod results;
mod rules;
pub(crate) mod search;
pub(crate) mod spec;
pub(crate) mod trace;
