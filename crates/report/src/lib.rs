//! Results of experiments in three forms: aligned text for a terminal, JSON for programs, and one
//! self-contained HTML page with plots.
//!
//! This crate knows nothing of engines or simulators. It takes an [`Experiment`], which is plain
//! data in base units, and prints it. It judges nothing: the caller decides whether a claim holds.
//! The layout is honest: a published number stands beside ours with the error, a row used by a fit
//! is marked, and a failing claim is as visible as a holding one.
#![forbid(unsafe_code)]

mod html;
mod json;
mod markup;
mod model;
mod plot;
mod quantity;
mod table;
mod text;

pub use html::html;
pub use json::json;
pub use model::{
    Axis, CauseTable, Claim, Experiment, Held, Interval, Listing, Plot, Row, Series, Style, Unit,
};
pub use quantity::shown;
pub use text::text;
