//! Fitting: points of the box are proposed, their calibrated rows are run, and the points that are
//! near enough are accepted.
//!
//! All accepted points are equally good: nothing is optimised among them, and a report shows the
//! interval over all of them. The bound is on the factor between ours and the published value, so
//! that half and double are equally wrong. The accepted points depend on the seed of the fit
//! alone, never on the number of cores.

mod proposal;

use self::proposal::Proposal;
use super::execute::{Done, Key, Progress, Run, RunOptions, execute};
use super::results::{interval, values};
use super::spec::fit::{Accept, Fit, Point};
use super::spec::tree::Value;
use super::spec::{Experiment, Variant};
use crate::Error;

/// Points that are run side by side, before the search learns of them.
const BATCH: usize = 16;

/// Result of a search.
#[derive(Clone, Debug)]
pub struct Found {
    /// Points with all rows within the bound.
    pub accepted: Vec<Point>,
    /// Number of points that were run.
    pub drawn: u32,
    /// The nearest point, and the factor of its worst row.
    nearest: Option<(Point, f64)>,
    /// The rows that decide, in the order of the fit.
    rows: Vec<RowCount>,
}

/// One deciding row over all points that were run.
#[derive(Clone, Debug)]
struct RowCount {
    /// The best factor minus one.
    best: f64,
    /// Points that miss its bound.
    missed: u32,
    /// Points that miss its bound and no other.
    missed_alone: u32,
}

impl Found {
    fn new(fit: &Fit) -> Self {
        let row = RowCount { best: f64::INFINITY, missed: 0, missed_alone: 0 };
        Self { accepted: Vec::new(), drawn: 0, nearest: None, rows: vec![row; fit.accept.len()] }
    }

    /// Counts a point by the factors of its rows, and accepts it if all are within their bounds.
    fn count(&mut self, fit: &Fit, point: Point, factors: &[f64]) {
        self.drawn += 1;
        let misses: Vec<bool> =
            factors.iter().zip(&fit.accept).map(|(factor, row)| !row.admits(*factor)).collect();
        let missed = misses.iter().filter(|miss| **miss).count();
        for ((row, factor), miss) in self.rows.iter_mut().zip(factors).zip(&misses) {
            row.best = row.best.min(factor - 1.0);
            row.missed += u32::from(*miss);
            row.missed_alone += u32::from(*miss && missed == 1);
        }
        let worst = factors.iter().copied().fold(1.0, f64::max);
        if self.nearest.as_ref().is_none_or(|(_, nearest)| worst < *nearest) {
            self.nearest = Some((point.clone(), worst));
        }
        if missed == 0 {
            self.accepted.push(point);
        }
    }

    /// The outcome in lines of text; `fit` is the one that was searched. The rows show how often
    /// each of them rejected a point, and the sides how wide the answer is.
    #[must_use]
    pub fn summary(&self, fit: &Fit) -> Vec<String> {
        let accepted = self.accepted.len();
        let drawn = self.drawn;
        let mut lines = vec![format!("fit {}: {accepted} of {drawn} points accepted", fit.name)];
        for (accept, row) in fit.accept.iter().zip(&self.rows) {
            let best = row.best * 100.0;
            let bound = accept.error_max * 100.0;
            let missed = row.missed;
            let alone = row.missed_alone;
            lines.push(format!(
                "    {accept}: at best {best:.1} % off, bound {bound} %; missed by {missed}, \
                 as the only row by {alone}"
            ));
        }
        match &self.nearest {
            Some((point, factor)) if self.accepted.is_empty() => {
                let sides = named_values(fit, point);
                lines.push(format!("    nearest, off by a factor of {factor:.2}: {sides}"));
            }
            _ => lines.extend(self.spans(fit)),
        }
        lines
    }

    /// The part of each side that the accepted points span.
    fn spans(&self, fit: &Fit) -> Vec<String> {
        let line = |(place, side): (usize, &super::spec::fit::Side)| {
            let values: Vec<&Value> =
                self.accepted.iter().map(|point| &point.values[place]).collect();
            let span = side.span(&values)?;
            Some(format!("    {}: {span}", side.path))
        };
        fit.sides.iter().enumerate().filter_map(line).collect()
    }
}

fn named_values(fit: &Fit, point: &Point) -> String {
    let values = fit.sides.iter().zip(&point.values);
    let values: Vec<String> =
        values.map(|(side, value)| format!("{} = {value}", side.path)).collect();
    values.join(", ")
}

/// Searches the parameter box of a fit. `searched` receives the numbers of drawn and of accepted
/// points after each batch.
///
/// # Errors
/// When the box contains an invalid configuration, or a run fails.
pub fn search(
    experiment: &Experiment,
    fit: &Fit,
    mut searched: impl FnMut(u32, usize),
    progress: Progress<'_>,
) -> Result<Found, Error> {
    let mut found = Found::new(fit);
    let aim = |factors: &[f64]| distance(fit, factors);
    explore(experiment, fit, aim, progress, |point, factors| {
        found.count(fit, point, factors);
        let is_enough = found.accepted.len() == fit.keep as usize;
        if (found.drawn as usize).is_multiple_of(BATCH) && !is_enough {
            searched(found.drawn, found.accepted.len());
        }
        !is_enough
    })?;
    Ok(found)
}

/// Searches for the point whose rows are nearest on average. `searched` receives the number of
/// drawn points.
pub(crate) fn nearest(
    experiment: &Experiment,
    fit: &Fit,
    mut searched: impl FnMut(u32),
) -> Result<Point, Error> {
    let mean =
        |factors: &[f64]| factors.iter().map(|f| miss(*f)).sum::<f64>() / factors.len() as f64;
    let mut nearest: Option<(Point, f64)> = None;
    let mut drawn = 0;
    // No point is accepted: the search goes on until the last draw.
    let aim = |factors: &[f64]| 1.0 + mean(factors);
    explore(experiment, fit, aim, &|_, _| (), |point, factors| {
        let miss = mean(factors);
        if nearest.as_ref().is_none_or(|(_, nearest)| miss < *nearest) {
            nearest = Some((point, miss));
        }
        drawn += 1;
        searched(drawn);
        true
    })?;
    let point = nearest.map(|(point, _)| point);
    point.ok_or_else(|| Error::new(format!("fit {} draws no point", fit.name)))
}

/// The miss of a row by its factor, from 0 to 1: half and double miss by one half. A row that is
/// far off counts little more than one off by a factor of ten, so that it does not decide alone.
pub(crate) fn miss(factor: f64) -> f64 {
    1.0 - 1.0 / factor
}

/// Runs proposed points of the box up to the fit's number of draws, or until `each` returns false
/// for a point and the factors of its rows. `aim` is the distance from which the search learns.
fn explore(
    experiment: &Experiment,
    fit: &Fit,
    aim: impl Fn(&[f64]) -> f64,
    progress: Progress<'_>,
    mut each: impl FnMut(Point, &[f64]) -> bool,
) -> Result<(), Error> {
    check(experiment, fit, &corners(fit))?;
    let mut proposal = Proposal::new(fit);
    let mut left = fit.draws as usize;
    while left > 0 {
        let batch = proposal.draw(left.min(BATCH));
        left -= batch.len();
        let points: Vec<Point> = batch.iter().map(|shares| proposal.point(shares)).collect();
        check(experiment, fit, &points)?;
        let rows = run_batch(experiment, fit, &points, progress)?;
        for ((shares, point), values) in batch.into_iter().zip(points).zip(rows) {
            let factors = factors(experiment, fit, &values);
            proposal.learn(shares, aim(&factors));
            if !each(point, &factors) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The box with all sides at their lowest, at their highest, and with one side at either end. A
/// search takes long, so the points that are most likely to be invalid are checked before it.
fn corners(fit: &Fit) -> Vec<Point> {
    let ends = |share: u32| Point { values: fit.sides.iter().map(|side| side.at(share)).collect() };
    let mut points = vec![ends(0), ends(u32::MAX)];
    for place in 0..fit.sides.len() {
        for share in [0, u32::MAX] {
            let mut point = fit.middle();
            point.values[place] = fit.sides[place].at(share);
            points.push(point);
        }
    }
    points
}

fn check(experiment: &Experiment, fit: &Fit, points: &[Point]) -> Result<(), Error> {
    let variants = experiment.variants.iter().filter(|one| fit.variants.contains(&one.name));
    for variant in variants {
        for point in points {
            experiment.setup(variant, Some(point), &[], &[]).map_err(|error| {
                let values = named_values(fit, point);
                let fit = &fit.name;
                error.at(format!("the box of fit {fit} has an invalid configuration ({values})"))
            })?;
        }
    }
    Ok(())
}

/// How far the worst row is off, in units of its bound: at most 1 is accepted.
fn distance(fit: &Fit, factors: &[f64]) -> f64 {
    let rows = factors.iter().zip(&fit.accept);
    rows.map(|(factor, row)| (factor - 1.0) / row.error_max).fold(0.0, f64::max)
}

/// Runs a batch; returns the values of the fit's rows for each point.
fn run_batch(
    experiment: &Experiment,
    fit: &Fit,
    batch: &[Point],
    progress: Progress<'_>,
) -> Result<Vec<Vec<f64>>, Error> {
    let seeds = seeds_of(experiment, fit);
    let decides = |variant: &&Variant| {
        let mut cells = fit.accept.iter().flat_map(Accept::cells);
        cells.any(|cell| cell.variant == variant.name)
    };
    let variants: Vec<&Variant> = experiment.variants.iter().filter(decides).collect();
    let options = RunOptions { experiment, set: &[], elevator: None, progress, check: false };
    let mut runs = Vec::new();
    for (number, point) in batch.iter().enumerate() {
        for (variant, &seed) in variants.iter().flat_map(|one| seeds.iter().map(move |s| (one, s)))
        {
            let control = String::new();
            let key = Key { variant: variant.name.clone(), point: number, seed, control };
            let point = Some(point.clone());
            runs.push(Run { key, variant, point, control: &[], record: false });
        }
    }
    let done = execute(options, &runs)?;
    let row = |number: usize| {
        let cells = fit.accept.iter();
        cells
            .map(|accept| {
                decided(accept, &done, number, seeds)
                    .ok_or_else(|| Error::new(format!("fit {}: no job yields {accept}", fit.name)))
            })
            .collect()
    };
    (0..batch.len()).map(row).collect()
}

/// The seeds whose median decides.
pub(crate) fn seeds_of<'a>(experiment: &'a Experiment, fit: &Fit) -> &'a [u64] {
    &experiment.seeds[..fit.seeds.min(experiment.seeds.len())]
}

/// Our value of a deciding row or ratio at a point: the median over these seeds. `None` if it was
/// not run with all of them.
pub(crate) fn decided(accept: &Accept, done: &Done, point: usize, seeds: &[u64]) -> Option<f64> {
    let cells: Vec<_> = accept.cells().map(|cell| values(done, cell, "")).collect();
    let of = |seed: &u64| {
        let mut of_cells = cells.iter().map(|values| values.get(&(point, *seed)).copied());
        let first = of_cells.next()??;
        match of_cells.next() {
            None => Some(first),
            Some(to) => to.map(|to| first / to),
        }
    };
    let values = seeds.iter().map(of).collect::<Option<Vec<f64>>>()?;
    interval(values).map(|found| found.median)
}

/// Whether each row is within the bound of its published value.
pub(crate) fn is_accepted(experiment: &Experiment, fit: &Fit, values: &[f64]) -> bool {
    let factors = factors(experiment, fit, values);
    factors.iter().zip(&fit.accept).all(|(factor, row)| row.admits(*factor))
}

/// The factor between ours and the published value of each row; 1 means equal.
fn factors(experiment: &Experiment, fit: &Fit, values: &[f64]) -> Vec<f64> {
    let factor = |(accept, ours): (&Accept, &f64)| {
        let published = |cell| experiment.published_at(cell).map_or(f64::NAN, |row| row.value);
        let to = accept.to.as_ref().map_or(1.0, published);
        let published = published(&accept.cell) / to;
        let factor = (ours / published).max(published / ours);
        if factor.is_finite() { factor } else { f64::INFINITY }
    };
    fit.accept.iter().zip(values).map(factor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::metric::Cell;

    fn small() -> Experiment {
        let text = include_str!("spec/testdata/small.toml");
        Experiment::parse("small.toml", text, None).unwrap()
    }

    #[test]
    fn row_that_rejects_alone_is_counted_and_the_span_of_the_sides_is_printed() {
        let fit = &small().fits[0];
        let mut found = Found::new(fit);
        let bounds: Vec<f64> = fit.accept.iter().map(|row| 1.0 + row.error_max).collect();
        let rows = bounds.len();
        assert!(rows >= 1);
        found.count(fit, fit.middle(), &bounds);
        let mut last_misses = bounds.clone();
        last_misses[rows - 1] += 0.01;
        found.count(fit, fit.middle(), &last_misses);
        let counts = |row: &RowCount| (row.missed, row.missed_alone);
        assert_eq!(counts(&found.rows[rows - 1]), (1, 1));
        assert!(found.rows[..rows - 1].iter().all(|row| counts(row) == (0, 0)));
        let summary = found.summary(fit);
        assert_eq!(summary[0], format!("fit {}: 1 of 2 points accepted", fit.name));
        assert!(summary[rows].ends_with("missed by 1, as the only row by 1"));
        assert_eq!(summary.len(), 1 + rows + fit.sides.len(), "{summary:?}");
    }

    #[test]
    fn half_and_double_are_equally_far_and_zero_is_never_accepted() {
        let experiment = small();
        let mut fit = experiment.fits[0].clone();
        fit.accept.truncate(1);
        fit.accept[0].cell =
            Cell { variant: "old".into(), row: "fsync".into(), metric: "fsync_median" };
        fit.accept[0].error_max = 1.0;
        let published = experiment.published_at(&fit.accept[0].cell).unwrap().value;
        for (factor, accepted) in [(0.5, true), (2.0, true), (0.49, false), (2.01, false)] {
            assert_eq!(is_accepted(&experiment, &fit, &[published * factor]), accepted);
        }
        for odd in [0.0, f64::NAN, f64::INFINITY] {
            assert!(!is_accepted(&experiment, &fit, &[odd]), "{odd}");
        }
    }
}
