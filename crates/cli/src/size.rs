//! Sizes, times and counts in text.

pub(crate) use blockyard::size::{human_size, human_time, parse_size};

/// A number and its noun: `1 part`, `2 parts`.
pub(crate) fn human_count(count: u64, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}
