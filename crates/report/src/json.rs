//! An experiment as JSON. The keys are a stable interface for scripts.

use serde::Serialize;

use crate::model::{Claim, Experiment, Held, Row};

#[derive(Serialize)]
struct Document<'a> {
    experiment: &'a str,
    rows: Vec<JsonRow<'a>>,
    claims: Vec<JsonClaim<'a>>,
}

#[derive(Serialize)]
struct JsonRow<'a> {
    variant: &'a str,
    row: &'a str,
    metric: &'a str,
    unit: &'static str,
    published: Option<f64>,
    ours: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    error: Option<f64>,
    calibrated: bool,
}

#[derive(Serialize)]
struct JsonClaim<'a> {
    id: &'a str,
    text: &'a str,
    threshold: &'a str,
    ours: &'a str,
    /// `null` without a verdict; `true` if it holds at every point.
    holds: Option<bool>,
    held_at: Option<usize>,
    points: Option<usize>,
    size_at: Option<usize>,
    control: Option<&'a str>,
    control_holds: Option<bool>,
    note: Option<&'a str>,
}

/// Rows and claims as JSON, numbers in base units. `ours` is the median, `error` is ours /
/// published - 1. Absent values and non-finite numbers are null.
#[must_use]
pub fn json(experiment: &Experiment) -> String {
    let document = Document {
        experiment: &experiment.name,
        rows: experiment.rows.iter().map(row).collect(),
        claims: experiment.claims.iter().map(claim).collect(),
    };
    serde_json::to_string_pretty(&document).expect("strings and numbers always have a JSON form")
}

fn row(row: &Row) -> JsonRow<'_> {
    JsonRow {
        variant: &row.variant,
        row: &row.row,
        metric: &row.metric,
        unit: row.unit.symbol(),
        published: row.published,
        ours: row.ours.map(|ours| ours.median),
        low: row.ours.map(|ours| ours.low),
        high: row.ours.map(|ours| ours.high),
        error: row.error(),
        calibrated: row.calibrated,
    }
}

fn claim(claim: &Claim) -> JsonClaim<'_> {
    JsonClaim {
        id: &claim.id,
        text: &claim.text,
        threshold: &claim.threshold,
        ours: &claim.ours,
        holds: claim.held.map(Held::everywhere),
        held_at: claim.held.map(|held| held.at),
        points: claim.held.or(claim.size).map(|held| held.of),
        size_at: claim.size.map(|size| size.at),
        control: claim.control.as_deref(),
        control_holds: claim.control_holds,
        note: claim.note.as_deref(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::model::{Interval, Unit};

    fn parsed(experiment: &Experiment) -> Value {
        serde_json::from_str(&json(experiment)).unwrap()
    }

    fn write_row(published: Option<f64>, ours: Option<Interval>) -> Row {
        Row {
            variant: "cfq".into(),
            row: "Write".into(),
            metric: "phase_time".into(),
            unit: Unit::Seconds,
            published,
            ours,
            calibrated: false,
            artefact: false,
        }
    }

    #[test]
    fn document_has_exactly_the_documented_keys_in_base_units() {
        let ours = Interval { low: 90.0, median: 125.0, high: 140.0 };
        let experiment = Experiment {
            name: "deadline-2009".into(),
            rows: vec![write_row(Some(100.0), Some(ours))],
            claims: vec![Claim {
                id: "004-17".into(),
                text: "\"faster\"".into(),
                threshold: ">= 1.2".into(),
                ours: "1.01".into(),
                held: Some(Held { at: 0, of: 8 }),
                note: Some("no cause is given".into()),
                ..Claim::default()
            }],
            ..Experiment::default()
        };
        let expected = serde_json::json!({
            "experiment": "deadline-2009",
            "rows": [{
                "variant": "cfq", "row": "Write", "metric": "phase_time", "unit": "s",
                "published": 100.0, "ours": 125.0, "low": 90.0, "high": 140.0,
                "error": 0.25, "calibrated": false,
            }],
            "claims": [{
                "id": "004-17", "text": "\"faster\"", "threshold": ">= 1.2", "ours": "1.01",
                "holds": false, "held_at": 0, "points": 8,
                "size_at": null, "control": null, "control_holds": null,
                "note": "no cause is given",
            }],
        });
        assert_eq!(parsed(&experiment), expected);
    }

    #[test]
    fn absent_values_are_null() {
        let two = Interval { low: 2.0, median: 2.0, high: 2.0 };
        let nan = Interval { low: f64::NAN, median: f64::NAN, high: f64::INFINITY };
        let rows = [
            write_row(None, Some(two)),
            write_row(Some(0.0), Some(two)),
            write_row(Some(1.0), None),
            write_row(Some(1.0), Some(nan)),
        ];
        let experiment = Experiment { rows: rows.into(), ..Experiment::default() };
        let document = parsed(&experiment);
        for row in document["rows"].as_array().unwrap() {
            assert_eq!(row["error"], Value::Null, "{row}");
        }
        assert_eq!(document["rows"][0]["published"], Value::Null);
        assert_eq!(document["rows"][2]["ours"], Value::Null);
        assert_eq!(document["rows"][3]["high"], Value::Null);
    }

    #[test]
    fn units_have_their_documented_words() {
        use Unit::{Bytes, BytesPerSecond, Count, Fraction, PerSecond, Seconds};
        let units = [Seconds, BytesPerSecond, Bytes, PerSecond, Fraction, Count];
        let rows = units.map(|unit| Row { unit, ..write_row(None, None) });
        let experiment = Experiment { rows: rows.into(), ..Experiment::default() };
        let document = parsed(&experiment);
        let said = document["rows"].as_array().unwrap().iter().map(|row| row["unit"].as_str());
        let expected = ["s", "B/s", "B", "1/s", "fraction", "count"];
        assert!(said.eq(expected.map(Some)));
    }
}
