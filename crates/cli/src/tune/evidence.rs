//! The measurements, as tables and as JSON.
//!
//! A row has the mean of its rounds, its ratio to the first row of its table, and the ratio's
//! confidence interval (99 %). Only common rounds are compared, so an early dropped row has a wide
//! interval, or none if it is too wide.

use std::fmt::Write as _;

use blockyard::tune::{Comparison, Found, Ratio, Standing};
use blockyard_report::{Axis, CauseTable, Experiment, Plot, Series, Style};
use serde::{Serialize, Serializer};

use crate::failure::with_options;

/// The name of the last comparison.
const AGAIN: &str = "measured again";

/// Wider intervals are not shown.
const INTERVAL_MAX: f64 = 3.0;

/// One comparison.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Table {
    axis: &'static str,
    rows: Vec<Row>,
    /// The label of the best row.
    winner: String,
    #[serde(skip)]
    winner_row: usize,
    #[serde(rename = "clear")]
    is_clear: bool,
    left_out: Vec<LeftOut>,
}

#[derive(Clone, Debug, Serialize)]
struct Row {
    #[serde(rename = "settings")]
    label: String,
    /// In the goal's unit.
    value: f64,
    rounds: usize,
    #[serde(rename = "ratio_to_first")]
    against_first: Option<Ratio>,
    #[serde(rename = "finalist")]
    is_finalist: bool,
}

/// Impossible settings.
#[derive(Clone, Debug, Serialize)]
struct LeftOut {
    #[serde(rename = "settings")]
    label: String,
    why: String,
}

/// All measurements of a search.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Evidence {
    /// Volume, workload, machine, and length of a measurement.
    #[serde(serialize_with = "as_map")]
    pub(crate) conditions: Vec<(&'static str, String)>,
    pub(crate) unit: &'static str,
    #[serde(rename = "races")]
    pub(crate) tables: Vec<Table>,
    /// The settings that are recommended.
    pub(crate) best: String,
    /// Ratio to the default in the last comparison; `None` if the default is best.
    #[serde(rename = "against_default")]
    pub(crate) gain: Option<Ratio>,
    #[serde(rename = "cut_short")]
    pub(crate) is_cut_short: bool,
}

fn as_map<S: Serializer>(pairs: &[(&'static str, String)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(pairs.iter().map(|(key, value)| (key, value)))
}

impl Table {
    /// A comparison, with the name of its axis, the labels of the candidates, and their scores in
    /// the goal's unit.
    pub(crate) fn new<A, S>(
        comparison: &Comparison<A, S>,
        axis: Option<&'static str>,
        label: impl Fn(&S) -> String,
        shown: impl Fn(f64) -> f64,
    ) -> Self {
        let row = |(candidate, standing): (&S, &Standing)| Row {
            label: label(candidate),
            value: shown(standing.score()),
            against_first: standing.against_incumbent,
            rounds: standing.scores.len(),
            is_finalist: standing.is_finalist,
        };
        let left_out = comparison.left_out.iter();
        let left_out = left_out
            .map(|(settings, why)| LeftOut { label: label(settings), why: with_options(why) });
        Self {
            axis: axis.unwrap_or(AGAIN),
            rows: comparison
                .candidates
                .iter()
                .zip(&comparison.outcome.standings)
                .map(row)
                .collect(),
            winner: label(&comparison.candidates[comparison.outcome.winner]),
            winner_row: comparison.outcome.winner,
            is_clear: comparison.outcome.is_clear,
            left_out: left_out.collect(),
        }
    }

    /// Table as text.
    pub(crate) fn print(&self, unit: &str) -> String {
        let width =
            self.rows.iter().map(|row| row.label.len()).max().unwrap_or(0).max(self.axis.len());
        let mut text = format!("{:<width$}  {:>12}  rounds\n", self.axis, unit);
        for (number, row) in self.rows.iter().enumerate() {
            let _ = write!(text, "{:<width$}  {:>12.1}  {:>6}", row.label, row.value, row.rounds);
            if let Some(ratio) = row.against_first {
                let _ = write!(text, "  {}", printed(ratio));
            }
            let is_kept = self.winner_row == 0 && self.axis != AGAIN;
            text += match (number == self.winner_row, row.is_finalist) {
                (true, _) if is_kept => "  kept",
                (true, _) => "  best",
                (false, true) => "",
                (false, false) => "  out",
            };
            text += "\n";
        }
        for LeftOut { label, why } in &self.left_out {
            let _ = writeln!(text, "{label:<width$}  left out: {why}");
        }
        if !self.is_clear {
            text += "the difference between the last candidates is not clear\n";
        }
        text
    }

    /// Table for a page.
    fn table(&self, unit: &str) -> CauseTable {
        let row = |(number, row): (usize, &Row)| {
            let against = row.against_first.map_or_else(String::new, printed);
            let verdict = if number == self.winner_row { "best" } else { "" };
            let cells = [format!("{:.1}", row.value), row.rounds.to_string(), against];
            (row.label.clone(), cells.into_iter().chain([verdict.into()]).collect())
        };
        let left_out = self.left_out.iter().map(|LeftOut { label, why }| {
            let empty = ["-".into(), "0".into(), String::new()];
            (label.clone(), empty.into_iter().chain([format!("left out: {why}")]).collect())
        });
        CauseTable {
            title: self.axis.into(),
            columns: vec![unit.into(), "rounds".into(), "against the first".into(), String::new()],
            rows: self.rows.iter().enumerate().map(row).chain(left_out).collect(),
        }
    }

    /// Plot over an axis of numbers; `None` for an axis of names.
    fn plot(&self, unit: &str) -> Option<Plot> {
        let number = |label: &str| label.split(' ').next()?.parse::<f64>().ok();
        let points = self.rows.iter().filter_map(|row| Some((number(&row.label)?, row.value)));
        let mut points: Vec<(f64, f64)> = points.collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        // A logarithmic axis has no zero: it would be drawn at the smallest number.
        let log = points.iter().all(|point| point.0 > 0.0);
        (points.len() > 2).then(|| Plot {
            title: self.axis.into(),
            x: Axis { label: self.axis.into(), log, shows: None },
            y: Axis { label: unit.into(), log: false, shows: None },
            series: vec![Series { name: "mean".into(), style: Style::Line, points }],
        })
    }
}

impl Evidence {
    /// The result of a search, without its conditions: `name` names an axis, `label` has the value
    /// of settings on an axis, or all of them.
    pub(crate) fn new<A: Copy, S>(
        found: &Found<A, S>,
        unit: &'static str,
        (name, label): (impl Fn(A) -> &'static str, impl Fn(&S, Option<A>) -> String),
        shown: impl Fn(f64) -> f64,
    ) -> Self {
        let comparisons = found.comparisons.iter().chain([&found.last]);
        let winner = &found.last.outcome.standings[found.last.outcome.winner];
        let table = |one: &Comparison<A, S>| {
            Table::new(one, one.axis.map(&name), |settings| label(settings, one.axis), &shown)
        };
        Self {
            conditions: Vec::new(),
            unit,
            tables: comparisons.map(table).collect(),
            best: label(&found.best, None),
            gain: winner.against_incumbent,
            is_cut_short: found.is_cut_short,
        }
    }

    /// The last lines: the recommendation.
    pub(crate) fn result(&self) -> String {
        let mut text = format!("best: {}\n", self.best);
        if let Some(gain) = self.gain {
            let _ = writeln!(text, "against the default: {}", printed(gain));
        }
        if self.is_cut_short {
            text += "the time ran out before the result was clear; use a longer --time\n";
        }
        text
    }

    /// All measurements as a page.
    pub(crate) fn page(&self) -> Experiment {
        let said = |(key, value): &(&'static str, String)| ((*key).to_owned(), value.clone());
        Experiment {
            name: "blockyard tune".into(),
            title: format!("Best settings: {}", self.best),
            about: self.result().lines().map(Into::into).collect(),
            conditions: self.conditions.iter().map(said).collect(),
            tables: self.tables.iter().map(|table| table.table(self.unit)).collect(),
            plots: self.tables.iter().filter_map(|table| table.plot(self.unit)).collect(),
            ..Experiment::default()
        }
    }
}

/// `12.0 % better (+10.1 to +14.2)`, for any unit.
fn printed(ratio: Ratio) -> String {
    let percent = |factor: f64| (factor - 1.0) * 100.0;
    let Ratio { mean, low, high } = ratio;
    let word = if mean < 1.0 { "worse" } else { "better" };
    let text = format!("{:.1} % {word}", percent(mean).abs());
    if high < INTERVAL_MAX {
        format!("{text} ({:+.1} to {:+.1})", percent(low), percent(high))
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use blockyard::tune::Outcome;

    use super::*;

    fn last() -> Comparison<&'static str, u32> {
        let standing = |score: f64, against_incumbent| Standing {
            scores: vec![score; 2],
            is_finalist: score > 5.0,
            against_incumbent,
        };
        let ratio = |mean| Some(Ratio { mean, low: mean - 0.01, high: mean + 0.01 });
        let standings =
            vec![standing(10.0, None), standing(12.0, ratio(1.2)), standing(3.0, ratio(0.3))];
        Comparison {
            axis: None,
            candidates: vec![10, 12, 3],
            outcome: Outcome { standings, winner: 1, is_clear: true },
            left_out: vec![(7, "there is no `elevator` 7".into())],
        }
    }

    #[test]
    fn table_names_the_best_and_what_could_not_be_had() {
        let table = Table::new(&last(), None, |s| format!("depth {s}"), |score| score);
        let text = table.print("IOPS");
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(
            line("depth 12").ends_with("best") && line("depth 12").contains("20.0 % better"),
            "{text}"
        );
        assert!(line("depth 7").contains("there is no --elevator 7"), "{text}");
    }

    #[test]
    fn gain_is_that_of_the_best_over_the_default() {
        let found = Found { best: 12, comparisons: vec![], last: last(), is_cut_short: false };
        let words = (|axis| axis, |settings: &u32, _: Option<&str>| settings.to_string());
        let evidence = Evidence::new(&found, "IOPS", words, |score| score);
        assert!((evidence.gain.unwrap().mean - 1.2).abs() < 0.001, "{:?}", evidence.gain);
        let json = serde_json::to_value(&evidence).unwrap();
        assert_eq!((&json["best"], &json["races"][0]["winner"]), (&"12".into(), &"12".into()));
        assert_eq!(json["races"][0]["axis"], AGAIN);
        let page = evidence.page();
        assert!(page.plots[0].x.log);
        assert_eq!(page.title, "Best settings: 12");
        assert_eq!(page.tables[0].rows.len(), 4);
        // In the order of the axis, not of the candidates.
        let xs: Vec<f64> = page.plots[0].series[0].points.iter().map(|point| point.0).collect();
        assert_eq!(xs, [3.0, 10.0, 12.0]);
    }

    #[test]
    fn axis_with_zero_is_linear_so_that_zero_and_one_stand_apart() {
        let table = Table::new(&last(), None, |s| (s % 3).to_string(), |score| score);
        assert!(!table.plot("IOPS").unwrap().x.log);
    }
}
