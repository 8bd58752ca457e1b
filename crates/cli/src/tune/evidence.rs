//! What was measured, as tables for people and as JSON.
//!
//! A row is the mean of its rounds and how it compares with the first row of its table, with the
//! interval in which that lies for 99 of 100 such runs. Only rounds that both were in are compared,
//! so a row that went early has a wide one, or none where it says nothing.

use std::fmt::Write as _;

use blockyard_report::{Axis, CauseTable, Experiment, Plot, Series, Style};
use serde_json::{Value, json};

use super::race::{Ratio, Standing, mean_log};
use super::search::{AGAIN, Found, Step};

/// An interval that reaches further says nothing.
const INTERVAL_MAX: f64 = 3.0;

/// One race.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    axis: &'static str,
    rows: Vec<Row>,
    /// The row that won.
    winner: usize,
    is_clear: bool,
    left_out: Vec<(String, String)>,
}

#[derive(Clone, Debug)]
struct Row {
    label: String,
    /// In the goal's unit.
    value: f64,
    against_first: Option<Ratio>,
    rounds: usize,
    is_finalist: bool,
}

/// All of it.
#[derive(Clone, Debug)]
pub(crate) struct Evidence {
    /// What was tuned, for what, for how long.
    pub(crate) conditions: Vec<(&'static str, String)>,
    pub(crate) unit: &'static str,
    pub(crate) tables: Vec<Table>,
    /// What is recommended.
    pub(crate) best: String,
    /// Against the default, in the last race; none if it is the default.
    pub(crate) gain: Option<Ratio>,
    pub(crate) is_cut_short: bool,
}

impl Table {
    /// A race, with what candidates are called and how a score is shown.
    pub(crate) fn new<S>(
        step: &Step<S>,
        label: impl Fn(&S) -> String,
        shown: impl Fn(f64) -> f64,
    ) -> Self {
        let row = |(candidate, standing): (&S, &Standing)| Row {
            label: label(candidate),
            value: shown(mean_log(&standing.scores).exp()),
            against_first: standing.against_incumbent,
            rounds: standing.scores.len(),
            is_finalist: standing.is_finalist,
        };
        let left_out = step.left_out.iter().map(|(settings, why)| (label(settings), why.clone()));
        Self {
            axis: step.axis,
            rows: step.candidates.iter().zip(&step.outcome.standings).map(row).collect(),
            winner: step.outcome.winner,
            is_clear: step.outcome.is_clear,
            left_out: left_out.collect(),
        }
    }

    /// As text.
    pub(crate) fn print(&self, unit: &str) -> String {
        let width =
            self.rows.iter().map(|row| row.label.len()).max().unwrap_or(0).max(self.axis.len());
        let mut text = format!("{:<width$}  {:>12}  rounds\n", self.axis, unit);
        for (number, row) in self.rows.iter().enumerate() {
            let _ = write!(text, "{:<width$}  {:>12.1}  {:>6}", row.label, row.value, row.rounds);
            if let Some(ratio) = row.against_first {
                let _ = write!(text, "  {}", printed(ratio));
            }
            let is_kept = self.winner == 0 && self.axis != AGAIN;
            text += match (number == self.winner, row.is_finalist) {
                (true, _) if is_kept => "  kept",
                (true, _) => "  best",
                (false, true) => "",
                (false, false) => "  out",
            };
            text += "\n";
        }
        for (label, why) in &self.left_out {
            let _ = writeln!(text, "{label:<width$}  left out: {why}");
        }
        if !self.is_clear {
            text += "the difference between the last ones is not clear\n";
        }
        text
    }

    /// For a page.
    fn table(&self, unit: &str) -> CauseTable {
        let row = |(number, row): (usize, &Row)| {
            let against = row.against_first.map_or_else(String::new, printed);
            let verdict = if number == self.winner { "best" } else { "" };
            let cells = [format!("{:.1}", row.value), row.rounds.to_string(), against];
            (row.label.clone(), cells.into_iter().chain([verdict.into()]).collect())
        };
        let left_out = self.left_out.iter().map(|(label, why)| {
            let empty = ["-".into(), "0".into(), String::new()];
            (label.clone(), empty.into_iter().chain([format!("left out: {why}")]).collect())
        });
        CauseTable {
            title: self.axis.into(),
            columns: vec![unit.into(), "rounds".into(), "against the first".into(), String::new()],
            rows: self.rows.iter().enumerate().map(row).chain(left_out).collect(),
        }
    }

    /// What an axis of numbers looks like; none for one of names.
    fn plot(&self, unit: &str) -> Option<Plot> {
        let number = |label: &str| label.split(' ').next()?.parse::<f64>().ok();
        let points = self.rows.iter().filter_map(|row| Some((number(&row.label)?, row.value)));
        let mut points: Vec<(f64, f64)> = points.collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        // Zero has no place on a logarithmic axis: it would stand where the least number does.
        let log = points.iter().all(|point| point.0 > 0.0);
        (points.len() > 2).then(|| Plot {
            title: self.axis.into(),
            x: Axis { label: self.axis.into(), log },
            y: Axis { label: unit.into(), log: false },
            series: vec![Series { name: "mean".into(), style: Style::Line, points }],
        })
    }

    fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            json!({
                "settings": row.label,
                "value": row.value,
                "rounds": row.rounds,
                "ratio_to_first": row.against_first.map(ratio_json),
                "finalist": row.is_finalist,
            })
        });
        let left_out = self.left_out.iter();
        let left_out = left_out.map(|(label, why)| json!({ "settings": label, "why": why }));
        json!({
            "axis": self.axis,
            "rows": rows.collect::<Vec<_>>(),
            "winner": self.rows[self.winner].label,
            "clear": self.is_clear,
            "left_out": left_out.collect::<Vec<_>>(),
        })
    }
}

fn ratio_json(ratio: Ratio) -> Value {
    json!({ "mean": ratio.mean, "low": ratio.low, "high": ratio.high })
}

impl Evidence {
    /// What a search found, without its conditions.
    pub(crate) fn new<S>(
        found: &Found<S>,
        unit: &'static str,
        label: impl Fn(&S, &str) -> String,
        shown: impl Fn(f64) -> f64,
    ) -> Self {
        let steps = found.steps.iter().chain([&found.last]);
        let winner = &found.last.outcome.standings[found.last.outcome.winner];
        let table = |step: &Step<S>| Table::new(step, |s| label(s, step.axis), &shown);
        Self {
            conditions: Vec::new(),
            unit,
            tables: steps.map(table).collect(),
            best: label(&found.best, AGAIN),
            gain: winner.against_incumbent,
            is_cut_short: found.is_cut_short,
        }
    }

    /// The end of it: what is recommended.
    pub(crate) fn result(&self) -> String {
        let mut text = format!("best: {}\n", self.best);
        if let Some(gain) = self.gain {
            let _ = writeln!(text, "against the default: {}", printed(gain));
        }
        if self.is_cut_short {
            text += "time was over before all was clear; more of it (--time) may find more\n";
        }
        text
    }

    /// All of it on a page.
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

    /// All of it.
    pub(crate) fn json(&self) -> Value {
        let conditions = self.conditions.iter();
        let conditions = conditions.map(|(key, value)| ((*key).into(), value.clone().into()));
        json!({
            "conditions": conditions.collect::<serde_json::Map<String, Value>>(),
            "unit": self.unit,
            "races": self.tables.iter().map(Table::json).collect::<Vec<_>>(),
            "best": self.best,
            "against_default": self.gain.map(ratio_json),
            "cut_short": self.is_cut_short,
        })
    }
}

/// `12.0 % better (+10.1 to +14.2)`, whatever the unit.
fn printed(ratio: Ratio) -> String {
    let percent = |factor: f64| (factor - 1.0) * 100.0;
    let Ratio { mean, low, high } = ratio;
    let word = if mean < 1.0 { "worse" } else { "better" };
    let text = format!("{:.1} % {word}", percent(mean).abs());
    match high < INTERVAL_MAX {
        true => format!("{text} ({:+.1} to {:+.1})", percent(low), percent(high)),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::super::race::{Outcome, Rules, race};
    use super::*;

    fn step() -> Step<u32> {
        let candidates = vec![10, 12, 3];
        let score = |candidate: usize, round: usize| {
            let wobble = f64::from(u8::from(round.is_multiple_of(2))) * 0.01;
            Ok::<f64, ()>(f64::from([10u32, 12, 3][candidate]) * (1.0 + wobble))
        };
        let rules = Rules { rounds_max: 8, seed: 1 };
        let outcome: Outcome = race(3, rules, score, || true).unwrap();
        Step { axis: AGAIN, candidates, outcome, left_out: vec![(7, "there is no 7".into())] }
    }

    #[test]
    fn table_names_the_best_and_what_could_not_be_had() {
        let table = Table::new(&step(), |s| format!("depth {s}"), |score| score);
        let text = table.print("IOPS");
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(
            line("depth 12").ends_with("best") && line("depth 12").contains("20.0 % better"),
            "{text}"
        );
        assert!(line("depth 7").contains("there is no 7"), "{text}");
    }

    #[test]
    fn gain_is_that_of_the_best_over_the_default() {
        let found = Found { best: 12, steps: vec![], last: step(), is_cut_short: false };
        let evidence = Evidence::new(&found, "IOPS", |s, _| s.to_string(), |score| score);
        assert!((evidence.gain.unwrap().mean - 1.2).abs() < 0.001, "{:?}", evidence.gain);
        assert_eq!(evidence.json()["best"], "12");
        let page = evidence.page();
        assert!(page.plots[0].x.log);
        assert_eq!(page.title, "Best settings: 12");
        assert_eq!(page.tables[0].rows.len(), 4);
        // By the value of the axis, not in the order of the race.
        let xs: Vec<f64> = page.plots[0].series[0].points.iter().map(|point| point.0).collect();
        assert_eq!(xs, [3.0, 10.0, 12.0]);
    }

    #[test]
    fn axis_with_zero_is_linear_so_that_zero_and_one_stand_apart() {
        let table = Table::new(&step(), |s| (s % 3).to_string(), |score| score);
        assert!(!table.plot("IOPS").unwrap().x.log);
    }
}
