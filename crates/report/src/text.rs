//! An experiment for a terminal: the workload's own tables, published and our numbers, the claims,
//! and the causes.
//!
//! Variants of one published number stand below each other for comparison. Wide names make wide
//! tables; the rest fits 120 columns.

use crate::model::{CauseTable, Claim, Experiment, Held, Role, Row, Tally};
use crate::quantity::Scale;
use crate::table::{Align, clean, table, wrap};

/// Width of prose; tables may be wider.
const WIDTH: usize = 100;

/// A row is near within this factor.
const NEAR_FACTOR: f64 = 1.5;

/// The experiment as aligned text. Plots and the description are on the page only.
#[must_use]
pub fn text(experiment: &Experiment) -> String {
    let mut sections = vec![heading(experiment)];
    for listing in &experiment.listings {
        sections.push(format!("{}\n{}\n", clean(&listing.title), listing.text.trim_end()));
    }
    if !experiment.rows.is_empty() {
        sections.push(rows(&experiment.rows));
    }
    if !experiment.claims.is_empty() {
        sections.push(claims(&experiment.claims));
    }
    sections.extend(experiment.tables.iter().chain(&experiment.causes).map(causes));
    sections.join("\n")
}

fn heading(experiment: &Experiment) -> String {
    let mut out = format!("{}: {}\n", clean(&experiment.name), clean(&experiment.title));
    let names = experiment.conditions.iter().map(|(name, _)| name.chars().count());
    let width = names.max().unwrap_or(0);
    for (name, value) in &experiment.conditions {
        let first = format!("  {:<width$}  ", clean(name));
        out += &hanging(&first, value);
    }
    out
}

/// `first`, then the text with a hanging indent.
fn hanging(first: &str, text: &str) -> String {
    let indent = first.chars().count();
    let lines = wrap(text, WIDTH.saturating_sub(indent));
    let body = lines.join(&format!("\n{}", " ".repeat(indent)));
    format!("{}\n", format!("{first}{body}").trim_end())
}

fn rows(rows: &[Row]) -> String {
    use Align::{Left, Right};
    let headings = ["row", "metric", "variant", "published", "ours", "[low .. high]", "error", ""];
    let mut cells = vec![headings.map(str::to_owned).to_vec()];
    let mut before: Option<&Row> = None;
    for row in grouped(rows) {
        let same_row = before.is_some_and(|before| before.row == row.row);
        let same_metric = same_row && before.is_some_and(|before| before.metric == row.metric);
        let once = |name: &str, said: bool| if said { String::new() } else { name.to_owned() };
        let scale = Scale::of(row.unit, &[row.published, row.ours.map(|ours| ours.median)]);
        let number = |number: Option<f64>| {
            number.map_or_else(|| "-".to_owned(), |number| scale.with_unit(number))
        };
        cells.push(vec![
            once(&row.row, same_row),
            once(&row.metric, same_metric),
            row.variant.clone(),
            number(row.published),
            number(row.ours.map(|ours| ours.median)),
            row.ours.map_or_else(String::new, |ours| scale.range(ours)),
            row.error_text(),
            row.role().mark().0.to_owned(),
        ]);
        before = Some(row);
    }
    let aligns = [Left, Left, Left, Right, Right, Left, Right, Left];
    table(&aligns, &cells) + &legend(rows) + &factors(rows)
}

/// The nearness of calibrated rows and that of predicted ones. A calibrated row proves little.
fn factors(rows: &[Row]) -> String {
    let line = |role: Role| {
        let of_role = rows.iter().filter(|row| row.role() == role);
        let mut factors: Vec<f64> = of_role.filter_map(Row::factor).collect();
        factors.sort_by(f64::total_cmp);
        let upper = factors.get(factors.len() / 2)?;
        let middle = (upper + factors[(factors.len() - 1) / 2]) / 2.0;
        let near = factors.iter().filter(|factor| **factor <= NEAR_FACTOR).count();
        let of = factors.len();
        let name = role.mark().1;
        Some(format!(
            "{name}: middle factor {middle:.2} ({near} of {of} rows within {NEAR_FACTOR})\n"
        ))
    };
    [Role::Calibrated, Role::Predicted].into_iter().filter_map(line).collect()
}

/// Rows grouped by name and metric, in the order of their first occurrence.
pub(crate) fn grouped(rows: &[Row]) -> Vec<&Row> {
    let first = |like: &dyn Fn(&Row) -> bool| rows.iter().position(like);
    let mut order: Vec<_> = rows
        .iter()
        .map(|row| {
            let name = first(&|other| other.row == row.row);
            let metric = first(&|other| other.row == row.row && other.metric == row.metric);
            (name, metric, row)
        })
        .collect();
    order.sort_by_key(|(name, metric, _)| (*name, *metric));
    order.into_iter().map(|(_, _, row)| row).collect()
}

/// Explanation of the marks that occur.
fn legend(rows: &[Row]) -> String {
    let mut roles: Vec<_> = rows.iter().map(Row::role).collect();
    roles.sort();
    roles.dedup();
    let meanings = roles.iter().filter_map(|role| match role {
        Role::Calibrated => Some("C calibrated: a fit may use this row"),
        Role::Predicted => Some("P predicted"),
        Role::Artefact => Some("A artefact: published, outside the model, not judged"),
        Role::Measured => None,
    });
    let line = meanings.collect::<Vec<_>>().join("   ");
    if line.is_empty() { line } else { format!("{line}\n") }
}

fn claims(claims: &[Claim]) -> String {
    let id_width = claims.iter().map(|claim| claim.id.chars().count()).max().unwrap_or(0);
    let indent = " ".repeat(2 + 8 + 2 + id_width + 2);
    let mut out = format!("claims: {}\n", Tally::of(claims));
    for claim in claims {
        let first = format!("  {:<8}  {:<id_width$}  ", verdict(claim.held), clean(&claim.id));
        out += &hanging(&first, &claim.text);
        if !claim.threshold.is_empty() {
            out += &hanging(&format!("{indent}asked:   "), &claim.threshold);
        }
        if !claim.ours.is_empty() {
            out += &hanging(&format!("{indent}ours:    "), &claim.ours);
        }
        if let Some(control) = &claim.control {
            let word = if claim.control_holds == Some(false) { "FAILS" } else { "ok" };
            out += &hanging(&format!("{indent}control: "), &format!("{word} {control}"));
        }
        if let Some(Held { at, of }) = claim.size {
            let size = format!("as published at {at} of {of} points");
            out += &hanging(&format!("{indent}size:    "), &size);
        }
        if let Some(note) = &claim.note {
            out += &hanging(&format!("{indent}note:    "), note);
        }
    }
    out
}

fn verdict(held: Option<Held>) -> String {
    match held {
        Some(held) if held.everywhere() => "ok".into(),
        Some(held) if held.nowhere() => "FAILS".into(),
        Some(Held { at, of }) => format!("{at} of {of}"),
        None => "-".into(),
    }
}

fn causes(causes: &CauseTable) -> String {
    let mut cells = vec![vec![String::new()]];
    cells[0].extend(causes.columns.iter().cloned());
    for (name, values) in &causes.rows {
        let mut row = vec![name.clone()];
        row.extend(values.iter().cloned());
        cells.push(row);
    }
    format!("{}\n{}", clean(&causes.title), table(&[Align::Left], &cells))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Interval, Listing, Unit};

    fn row(variant: &str, row: &str, published: Option<f64>, ours: Option<f64>) -> Row {
        Row {
            variant: variant.into(),
            row: row.into(),
            metric: "latency_avg".into(),
            unit: Unit::Seconds,
            published,
            ours: ours.map(|median| Interval { low: median / 2.0, median, high: median * 2.0 }),
            calibrated: variant == "original",
            artefact: false,
        }
    }

    fn with_rows(rows: Vec<Row>) -> Experiment {
        Experiment { name: "e".into(), title: "t".into(), rows, ..Experiment::default() }
    }

    #[test]
    fn published_stands_beside_ours_with_the_error_and_its_role() {
        let mut artefact = row("cfq", "Read", Some(2.0), Some(1.0));
        artefact.artefact = true;
        let experiment = with_rows(vec![
            row("original", "Write", Some(0.004_122), Some(0.004)),
            row("original", "Read", Some(0.008), None),
            row("cfq", "Write", Some(0.005_362), Some(0.0201)),
            artefact,
            row("cfq", "Idle", None, Some(1.5)),
        ]);
        let expected = "\
e: t

row    metric       variant   published      ours  [low .. high]       error
-----  -----------  --------  ---------  --------  -----------------  ------  -
Write  latency_avg  original   4.122 ms  4.000 ms  [2.000 .. 8.000]   -3.0 %  C
                    cfq        5.362 ms  20.10 ms  [10.05 .. 40.20]   x 3.75  P
Read   latency_avg  original   8.000 ms         -                          -  C
                    cfq         2.000 s   1.000 s  [0.5000 .. 2.000]       -  A
Idle   latency_avg  cfq               -   1.500 s  [0.7500 .. 3.000]       -
C calibrated: a fit may use this row   P predicted   \
A artefact: published, outside the model, not judged
calibrated: middle factor 1.03 (1 of 1 rows within 1.5)
predicted: middle factor 3.75 (0 of 1 rows within 1.5)
";
        assert_eq!(text(&experiment), expected);
    }

    #[test]
    fn too_little_is_as_far_as_too_much_and_the_middle_of_two_lies_between_them() {
        let predicted = |ours: f64| row("cfq", "Write", Some(1.0), Some(ours));
        let said = |ours: &[f64]| factors(&ours.iter().copied().map(predicted).collect::<Vec<_>>());
        assert_eq!(
            said(&[0.5, 1.5, 4.0]),
            "predicted: middle factor 2.00 (1 of 3 rows within 1.5)\n"
        );
        assert_eq!(said(&[2.0, 1.2]), "predicted: middle factor 1.60 (1 of 2 rows within 1.5)\n");
        assert_eq!(said(&[0.0]), "predicted: middle factor inf (0 of 1 rows within 1.5)\n");
        assert_eq!(said(&[]), "");
    }

    #[test]
    fn failing_claims_and_failing_controls_are_loud() {
        let claim = |id: &str, at: Option<usize>| Claim {
            id: id.into(),
            text: "It is faster.".into(),
            threshold: "ratio <= 0.3".into(),
            ours: "0.12".into(),
            held: at.map(|at| Held { at, of: 8 }),
            ..Claim::default()
        };
        let experiment = Experiment {
            claims: vec![
                Claim {
                    control: Some("without the flag: 0.13".into()),
                    control_holds: Some(false),
                    note: Some("open".into()),
                    ..claim("004-2", None)
                },
                claim("004-17", Some(0)),
                claim("004-18", Some(3)),
                Claim { size: Some(Held { at: 2, of: 8 }), ..claim("004-19", Some(8)) },
            ],
            ..with_rows(Vec::new())
        };
        let expected = "\
e: t

claims: 1 hold, 1 hold at some points, 1 fail, 1 without a verdict (1 because the negative \
control fails); 0 of 1 sizes reproduced
  -         004-2   It is faster.
                    asked:   ratio <= 0.3
                    ours:    0.12
                    control: FAILS without the flag: 0.13
                    note:    open
  FAILS     004-17  It is faster.
                    asked:   ratio <= 0.3
                    ours:    0.12
  3 of 8    004-18  It is faster.
                    asked:   ratio <= 0.3
                    ours:    0.12
  ok        004-19  It is faster.
                    asked:   ratio <= 0.3
                    ours:    0.12
                    size:    as published at 2 of 8 points
";
        assert_eq!(text(&experiment), expected);
    }

    #[test]
    fn conditions_listings_and_causes_have_their_places() {
        let experiment = Experiment {
            conditions: vec![("seeds".into(), "1, 2, 3".into()), ("cpu".into(), "2".into())],
            listings: vec![Listing { title: "cfq".into(), text: "| Write |\n".into() }],
            causes: vec![CauseTable {
                title: "disk".into(),
                columns: vec!["requests".into(), "idle".into()],
                rows: vec![("cfq".into(), vec!["12".into(), "3.1 s".into()])],
            }],
            ..with_rows(Vec::new())
        };
        let expected = "\
e: t
  seeds  1, 2, 3
  cpu    2

cfq
| Write |

disk
     requests   idle
---  --------  -----
cfq        12  3.1 s
";
        assert_eq!(text(&experiment), expected);
    }

    #[test]
    fn long_prose_is_broken_at_a_hundred_columns() {
        let claim = Claim { id: "1".into(), text: "word ".repeat(60), ..Claim::default() };
        let said = text(&Experiment { claims: vec![claim], ..with_rows(Vec::new()) });
        assert!(said.lines().all(|line| line.chars().count() <= 100), "{said}");
        assert_eq!(said.matches("word").count(), 60);
    }
}
