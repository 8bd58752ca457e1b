//! Counts of a run, for the journal of `cargo x soak`: `--totals FILE` writes them as one JSON
//! object.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Counts by name. A name ends in its unit unless it counts things: `cuts`, `simulated_ms`.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub(crate) struct Totals(BTreeMap<String, u64>);

impl Totals {
    pub(crate) fn add(&mut self, name: &str, count: u64) {
        *self.0.entry(name.to_owned()).or_default() += count;
    }

    /// Keeps the larger one of two values: a peak, or a size that only grows.
    pub(crate) fn raise(&mut self, name: &str, value: u64) {
        let known = self.0.entry(name.to_owned()).or_default();
        *known = value.max(*known);
    }

    pub(crate) fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, count)| (name.as_str(), *count))
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string(self)?;
        fs::write(path, text).with_context(|| path.display().to_string())
    }
}
