//! What an experiment found, in three forms: aligned text for a terminal, JSON for programs, and
//! one self-contained HTML page with plots.
//!
//! This crate knows nothing of engines or simulators. It takes an [`Experiment`], which is plain
//! data in base units, and prints it. It judges nothing: whether a claim holds was decided by
//! whoever filled the data in. What it owes the reader is honesty in layout: a published number
//! stands beside ours with the error, a row that the model was fitted on is marked as such, and a
//! claim that fails is as visible as one that holds.
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
    Axis, CauseTable, Claim, Experiment, Interval, Listing, Plot, Row, Series, Style, Unit,
};
pub use quantity::shown;
pub use text::text;
