//! `blockyard tune` in words: questions, settings as options, tables, a configuration.
//!
//! [`blockyard::tune`] searches. [`model`] is a simulated world that it can search too.

pub(crate) mod config;
pub(crate) mod evidence;
pub(crate) mod model;
pub(crate) mod questions;
pub(crate) mod settings;
