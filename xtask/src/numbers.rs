//! Numbers of an experiment of the lab, for the tables of a page.

use crate::lab::Lab;
use crate::tools;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;

/// Numbers of a report by variant, row and metric.
#[derive(Default)]
pub(crate) struct Numbers(BTreeMap<[String; 3], Number>);

/// A simulated number, and the published one.
#[derive(Clone, Copy)]
struct Number {
    ours: f64,
    published: Option<f64>,
}

impl Numbers {
    /// Runs an experiment.
    pub(crate) fn run(lab: &Lab, experiment: &str) -> Result<Self> {
        // All grids, with one seed.
        let words = ["lab", "run", experiment, "--full", "--seed", "1", "--json"];
        let report = tools::read(&mut lab.blockyard(&words))?;
        Self::of(&serde_json::from_str(&report)?)
    }

    fn of(report: &Value) -> Result<Self> {
        let rows = report["rows"].as_array().context("the report has no rows")?;
        let number = |row: &Value| {
            let key =
                ["variant", "row", "metric"].map(|name| row[name].as_str().map(str::to_owned));
            let [Some(variant), Some(name), Some(metric)] = key else { return None };
            let number =
                Number { ours: row["ours"].as_f64()?, published: row["published"].as_f64() };
            Some(([variant, name, metric], number))
        };
        Ok(Self(rows.iter().filter_map(number).collect()))
    }

    fn number(&self, key: [&str; 3]) -> Result<Number> {
        let named = key.map(str::to_owned);
        self.0.get(&named).copied().with_context(|| format!("no number of {}", key.join("/")))
    }

    /// A simulated number.
    pub(crate) fn ours(&self, variant: &str, row: &str, metric: &str) -> Result<f64> {
        Ok(self.number([variant, row, metric])?.ours)
    }

    /// The published number of a row.
    pub(crate) fn published(&self, variant: &str, row: &str, metric: &str) -> Result<f64> {
        let number = self.number([variant, row, metric])?;
        number.published.with_context(|| format!("{variant}/{row}/{metric} is not published"))
    }

    /// One metric of several rows of a variant.
    pub(crate) fn all(&self, variant: &str, rows: &[&str], metric: &str) -> Result<Vec<f64>> {
        rows.iter().map(|row| self.ours(variant, row, metric)).collect()
    }
}
