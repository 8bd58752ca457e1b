//! `cargo x elsewhere`: the table in docs/lab.md of the publications that the lab was not built
//! for, from their experiments. It compares the table with the page, or writes it with `--write`.

use crate::lab::Lab;
use crate::markdown::{Section, short, table};
use crate::tools;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;

const PAGE: &str = "docs/lab.md";
const SECTION: Section = Section { command: "cargo x elsewhere" };
const EXPERIMENTS: [&str; 4] =
    ["cfq-slices-2009", "cloudflare-2020", "ioscheds-null-2016", "mq-deadline-2024"];

/// Factors up to this, and its reciprocal, count as near.
const NEAR_FACTOR: f64 = 1.25;

/// Comparison with the page, or its update.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write the table to the page, instead of comparing it.
    #[arg(long)]
    write: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let lab = Lab::new()?;
    let mut found = Found::default();
    for experiment in EXPERIMENTS {
        let report = tools::read(&mut lab.blockyard(&["lab", "run", experiment, "--json"]))?;
        found.add(experiment, &serde_json::from_str(&report)?)?;
    }
    let text = found.text();
    let path = tools::root().join(PAGE);
    if args.write {
        return SECTION.write(&path, &text);
    }
    ensure!(
        fs::read_to_string(&path).context(PAGE)? == SECTION.page(&path, &text)?,
        "{PAGE} differs from the experiments; write it with: cargo x elsewhere --write\n{text}"
    );
    println!("{PAGE} has the numbers of the experiments");
    Ok(())
}

/// Lines of the table, and their factors.
#[derive(Default)]
struct Found {
    lines: Vec<Vec<String>>,
    factors: Vec<f64>,
    claims: usize,
    held: usize,
    sizes: usize,
}

impl Found {
    /// Adds the predicted rows and the verdicts of a report.
    fn add(&mut self, experiment: &str, report: &Value) -> Result<()> {
        for row in report["rows"].as_array().context("the report has no rows")? {
            let (Some(published), Some(ours)) = (row["published"].as_f64(), row["ours"].as_f64())
            else {
                continue;
            };
            if row["calibrated"] == true {
                continue;
            }
            let word = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
            let factor = ours / published;
            self.factors.push(factor);
            self.lines.push(vec![
                format!("`{experiment}`, {}: {}", word("variant"), word("row")),
                word("metric").replace('_', " "),
                quantity(published, &word("unit"))?,
                quantity(ours, &word("unit"))?,
                short(factor),
            ]);
        }
        for claim in report["claims"].as_array().context("the report has no claims")? {
            self.claims += 1;
            let at_all = |name: &str| !claim["points"].is_null() && claim[name] == claim["points"];
            self.held += usize::from(claim["holds"] == true && claim["control_holds"] == true);
            self.sizes += usize::from(at_all("size_at"));
        }
        Ok(())
    }

    fn text(&self) -> String {
        let heading = ["prediction", "metric", "published", "ours", "factor"];
        let mut lines = vec![heading.map(str::to_owned).to_vec()];
        lines.extend(self.lines.iter().cloned());
        let is_near = |factor: &&f64| (NEAR_FACTOR.recip()..=NEAR_FACTOR).contains(*factor);
        let near = self.factors.iter().filter(is_near).count();
        let mut text = table(&lines);
        let _ = write!(
            text,
            "\n{near} of {} rows are within a factor of {NEAR_FACTOR}. Of {} published effects, {} \
             have the\ndirection, and {} the size within {NEAR_FACTOR}.\n",
            self.factors.len(),
            self.claims,
            self.held,
            self.sizes,
        );
        text
    }
}

fn quantity(number: f64, unit: &str) -> Result<String> {
    Ok(match unit {
        "s" => format!("{} s", short(number)),
        "1/s" => format!("{} k/s", short(number / 1e3)),
        "B/s" => format!("{} MiB/s", short(number / f64::from(1 << 20))),
        other => bail!("no form for the unit {other}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_predictions_count() {
        let row = |ours: f64, calibrated: bool| {
            json!({
                "variant": "v", "row": "r", "metric": "latency_max", "unit": "s",
                "published": 2.0, "ours": ours, "calibrated": calibrated,
            })
        };
        let claim = |holds: bool, size_at: u64| {
            json!({
                "holds": holds, "control_holds": true, "points": 2,
                "size_at": size_at,
            })
        };
        let report = json!({
            "rows": [row(2.2, false), row(4.0, false), row(2.0, true)],
            "claims": [claim(true, 2), claim(true, 1), claim(false, 0)],
        });
        let mut found = Found::default();
        found.add("e", &report).expect("a report");
        let text = found.text();
        assert!(text.contains("1 of 2 rows"), "{text}");
        assert!(text.contains("Of 3 published effects, 2 have the\ndirection, and 1"), "{text}");
        assert!(text.contains("| latency max |    2.00 s | 2.20 s |   1.10 |"), "{text}");
    }
}
