//! Compares runs of jobs, read from the JSON of fio or of `blockyard bench`.
//!
//! ```text
//!   a.json b.json -> Run each -> a table for each job: a row per figure, a column per run
//!                             -> a plot for each job: completion latency by percentile
//! ```

use std::collections::BTreeMap;

use blockyard_report::{Axis, CauseTable, Experiment, Plot, Series, Style, Unit, shown};
use serde_json::Value;

/// Limit of jobs in one run, about fio's own limit.
const JOBS_MAX: usize = 4096;
/// Percentiles shown: fio's name and ours.
const PERCENTILES: [(&str, &str); 4] =
    [("50.000000", "p50"), ("95.000000", "p95"), ("99.000000", "p99"), ("99.900000", "p99.9")];

/// One run of fio or of `blockyard bench`.
#[derive(Clone, Debug)]
pub struct Run {
    /// Heading of its column.
    name: String,
    /// Version of the tool, and the volume.
    origin: String,
    /// Results by job name and direction, in the order of the file.
    sides: Vec<((String, &'static str), Side)>,
}

/// Results of one direction of a job.
#[derive(Clone, Debug)]
struct Side {
    /// Name, value and unit.
    figures: Vec<(String, f64, Unit)>,
    /// Percentile and latency in seconds.
    percentiles: Vec<(f64, f64)>,
}

impl Run {
    /// Parses the JSON output of fio or `blockyard bench`.
    ///
    /// # Errors
    /// The text is no such JSON; the message names the missing part.
    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        let start = text.find('{').unwrap_or(0);
        // fio may print notes in front.
        let report: Value = serde_json::from_str(&text[start..])
            .map_err(|error| format!("is no JSON of fio or `blockyard bench --json`: {error}"))?;
        Self::of(name, &report)
    }

    /// Like [`Run::parse`], from parsed JSON.
    ///
    /// # Errors
    /// The JSON has no jobs; the message names the missing part.
    pub fn of(name: &str, report: &Value) -> Result<Self, String> {
        let jobs = report["jobs"].as_array().ok_or("has no \"jobs\", which fio's JSON has")?;
        if jobs.len() > JOBS_MAX {
            return Err(format!("has {} jobs; at most {JOBS_MAX} are shown", jobs.len()));
        }
        let version = report["fio version"].as_str().unwrap_or("of unknown origin");
        let volume = report["volume"].as_str().map(|volume| format!(", {volume}"));
        let origin = format!("{version}{}", volume.unwrap_or_default());
        let mut sides = Vec::new();
        for (number, job) in jobs.iter().enumerate() {
            let job_name = job["jobname"].as_str().map_or_else(|| number.to_string(), Into::into);
            for side in ["read", "write", "trim"] {
                if let Some(read) = Side::of(&job[side]) {
                    sides.push(((job_name.clone(), side), read));
                }
            }
        }
        if sides.is_empty() {
            return Err("has no job that transferred data".into());
        }
        Ok(Self { name: name.into(), origin, sides })
    }
}

impl Side {
    /// `None` without transferred bytes.
    fn of(side: &Value) -> Option<Self> {
        let number = |value: &Value| value.as_f64().filter(|number| number.is_finite());
        number(&side["io_bytes"]).filter(|bytes| *bytes > 0.0)?;
        let mut figures = Vec::new();
        let mut add = |name: &str, value: Option<f64>, unit| {
            figures.extend(value.map(|value| (name.to_owned(), value, unit)));
        };
        add("requests", number(&side["total_ios"]), Unit::Count);
        add("bytes", number(&side["io_bytes"]), Unit::Bytes);
        add("IOPS", number(&side["iops"]), Unit::PerSecond);
        add("rate", number(&side["bw_bytes"]), Unit::BytesPerSecond);
        let seconds = |value: &Value| number(value).map(|ns| ns / 1e9);
        add("latency, mean", seconds(&side["lat_ns"]["mean"]), Unit::Seconds);
        add("latency, max", seconds(&side["lat_ns"]["max"]), Unit::Seconds);
        let percentile = &side["clat_ns"]["percentile"];
        for (key, name) in PERCENTILES {
            add(&format!("completion, {name}"), seconds(&percentile[key]), Unit::Seconds);
        }
        let of = |(key, ns): (&String, &Value)| Some((key.parse().ok()?, seconds(ns)?));
        let percentiles = percentile.as_object().into_iter().flatten().filter_map(of).collect();
        Some(Self { figures, percentiles })
    }
}

/// A report of several runs side by side; the first is the reference for the others.
#[must_use]
pub fn page(title: &str, runs: &[Run]) -> Experiment {
    let mut sides: Vec<&(String, &'static str)> = Vec::new();
    for (key, _) in runs.iter().flat_map(|run| &run.sides) {
        if !sides.contains(&key) {
            sides.push(key);
        }
    }
    let of_run = |run: &Run| (run.name.clone(), run.origin.clone());
    Experiment {
        name: runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>().join(", "),
        title: title.into(),
        conditions: runs.iter().map(of_run).collect(),
        tables: sides.iter().map(|key| table(key, runs)).collect(),
        plots: sides.iter().filter_map(|key| plot(key, runs)).collect(),
        ..Experiment::default()
    }
}

fn side<'a>(run: &'a Run, key: &(String, &'static str)) -> Option<&'a Side> {
    run.sides.iter().find(|(known, _)| known == key).map(|(_, side)| side)
}

/// A row for each figure; a value is followed by its change from the first run.
fn table(key: &(String, &'static str), runs: &[Run]) -> CauseTable {
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    let by_name = |run: &Run| -> BTreeMap<String, (f64, Unit)> {
        let figures = side(run, key).into_iter().flat_map(|side| side.figures.clone());
        figures.map(|(name, value, unit)| (name, (value, unit))).collect()
    };
    let columns: Vec<_> = runs.iter().map(by_name).collect();
    let figures = runs.iter().filter_map(|run| side(run, key)).flat_map(|side| &side.figures);
    for (name, ..) in figures {
        if rows.iter().any(|(known, _)| known == name) {
            continue;
        }
        let first = columns[0].get(name).map(|(value, _)| *value);
        let cell = |(number, column): (usize, &BTreeMap<String, (f64, Unit)>)| {
            let Some((value, unit)) = column.get(name) else { return "-".into() };
            let text = shown(*unit, *value);
            match first.filter(|first| number > 0 && *first > 0.0) {
                Some(first) => format!("{text} ({:+.1} %)", (value / first - 1.0) * 100.0),
                None => text,
            }
        };
        rows.push((name.clone(), columns.iter().enumerate().map(cell).collect()));
    }
    CauseTable {
        title: format!("{}, {}", key.0, key.1),
        columns: runs.iter().map(|run| run.name.clone()).collect(),
        rows,
    }
}

fn plot(key: &(String, &'static str), runs: &[Run]) -> Option<Plot> {
    let series = |run: &Run| {
        let points: Vec<(f64, f64)> =
            side(run, key)?.percentiles.iter().map(|(percent, s)| (*percent, s * 1e6)).collect();
        let is_drawn = points.len() > 1;
        is_drawn.then(|| Series { name: run.name.clone(), style: Style::Line, points })
    };
    let series: Vec<Series> = runs.iter().filter_map(series).collect();
    (!series.is_empty()).then(|| Plot {
        title: format!("{}, {}: completion latency", key.0, key.1),
        x: Axis { label: "percentile".into(), log: false, shows: None },
        y: Axis { label: "latency, us".into(), log: true, shows: None },
        series,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(iops: f64) -> Value {
        json!({
            "fio version": "fio-3.33",
            "jobs": [{
                "jobname": "a",
                "read": {
                    "total_ios": 10, "io_bytes": 40960, "iops": iops, "bw_bytes": iops * 4096.0,
                    "lat_ns": {"mean": 2000.0, "max": 9000},
                    "clat_ns": {"percentile": {"50.000000": 1000, "99.000000": 8000}},
                },
                "write": {"total_ios": 0},
            }],
        })
    }

    #[test]
    fn runs_stand_side_by_side_with_their_differences() {
        let text = format!("fio: a note in front\n{}", report(1000.0));
        let one = Run::parse("one", &text).unwrap();
        let two = Run::of("two", &report(1500.0)).unwrap();
        let page = page("compared", &[one, two]);
        assert_eq!(page.tables.len(), 1, "nothing was written");
        let table = &page.tables[0];
        assert_eq!((table.title.as_str(), table.columns.len()), ("a, read", 2));
        let row = |name: &str| &table.rows.iter().find(|(known, _)| known == name).unwrap().1;
        assert!(row("IOPS")[1].ends_with("(+50.0 %)"), "{:?}", row("IOPS"));
        assert!(row("completion, p99")[0].contains("8"), "{:?}", row("completion, p99"));
        assert_eq!(page.plots[0].series[0].points, [(50.0, 1.0), (99.0, 8.0)]);
    }

    #[test]
    fn text_that_is_no_report_is_refused_by_its_missing_part() {
        for (text, wanted) in [
            ("hello", "no JSON"),
            ("{}", "has no \"jobs\""),
            ("{\"jobs\": []}", "transferred data"),
            ("{\"jobs\": [{\"read\": 3}]}", "transferred data"),
        ] {
            let error = Run::parse("x", text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
