//! Results over all points and seeds: a value for each run, and the interval of the values.

use std::collections::BTreeMap;

use blockyard_report::{Interval, Row, Unit};

use super::execute::Done;
use super::spec::metric::{Base, Cell, METRICS, Metric};
use super::spec::{Experiment, Role, Variant};

/// Point and seed of a variant's run.
pub(crate) type Place = (usize, u64);

/// A cell's value in each run under a control; an empty control means the experiment itself.
pub(crate) fn values(done: &Done, cell: &Cell, control: &str) -> BTreeMap<Place, f64> {
    let mut values = BTreeMap::new();
    for (key, jobs) in done {
        if key.variant != cell.variant || key.control != control {
            continue;
        }
        let mut measured = jobs.iter().flat_map(|job| &job.measured);
        let wanted =
            |row: &&super::execute::Measured| row.row == cell.row && row.metric == cell.metric;
        if let Some(measured) = measured.find(wanted) {
            values.insert((key.point, key.seed), measured.value);
        }
    }
    values
}

/// Smallest value, median and largest value; `None` without values.
pub(crate) fn interval(values: impl IntoIterator<Item = f64>) -> Option<Interval> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = sorted.first().zip(sorted.last())?;
    let middle = sorted.len() / 2;
    let median = match sorted.len() % 2 {
        0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    };
    Some(Interval { low: *low, median, high: *high })
}

/// The rows of these variants, in the order of their jobs; rows that are only published follow.
pub(crate) fn rows(experiment: &Experiment, variants: &[&Variant], done: &Done) -> Vec<Row> {
    let mut rows = Vec::new();
    for variant in variants {
        for name in row_names(experiment, &variant.name, done) {
            for metric in METRICS {
                let cell =
                    Cell { variant: variant.name.clone(), row: name.clone(), metric: metric.name };
                rows.extend(row(experiment, done, &cell, metric));
            }
        }
    }
    rows
}

fn row_names(experiment: &Experiment, variant: &str, done: &Done) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let own = done.iter().find(|(key, _)| key.variant == variant && key.control.is_empty());
    let measured = own.into_iter().flat_map(|(_, jobs)| jobs.iter().flat_map(|job| &job.measured));
    let published = experiment.published.iter().filter(|row| row.cell.variant == variant);
    for name in measured.map(|row| &row.row).chain(published.map(|row| &row.cell.row)) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

fn row(experiment: &Experiment, done: &Done, cell: &Cell, metric: &Metric) -> Option<Row> {
    let published = experiment.published_at(cell);
    let ours = interval(values(done, cell, "").into_values());
    if published.is_none() && ours.is_none() {
        return None;
    }
    Some(Row {
        variant: cell.variant.clone(),
        row: cell.row.clone(),
        metric: cell.metric.into(),
        unit: unit(metric.base),
        published: published.map(|row| row.value),
        ours,
        calibrated: published.is_some_and(|row| row.role == Role::Calibrate) && !metric.artefact,
        artefact: metric.artefact,
    })
}

fn unit(base: Base) -> Unit {
    match base {
        Base::Seconds => Unit::Seconds,
        Base::BytesPerSecond => Unit::BytesPerSecond,
        Base::PerSecond => Unit::PerSecond,
        Base::Fraction => Unit::Fraction,
        Base::Bytes => Unit::Bytes,
        Base::Count => Unit::Count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_has_the_middle_of_an_even_number_between_two() {
        assert_eq!(interval([]), None);
        let found = interval([4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((found.low, found.median, found.high), (1.0, 2.5, 4.0));
        assert_eq!(interval([7.0]).unwrap().median, 7.0);
    }
}
