//! Tuning: the best settings for a volume and a workload, found by measuring.
//!
//! ```text
//!   search: one axis after the other ──> race: who is best, is it clear? ──> a round
//!                                                                             │
//!     settings of `serve` on a volume (volume) or of a simulated world (model) ┘
//!   what was found ──> evidence: tables, JSON ──> a configuration (config)
//! ```
//! [`search`] and [`race`] know nothing of what they tune.

pub(crate) mod config;
pub(crate) mod evidence;
pub(crate) mod goal;
pub(crate) mod model;
pub(crate) mod race;
pub(crate) mod search;
pub(crate) mod traced;
pub(crate) mod volume;
pub(crate) mod workload;
