//! Fitting: points are drawn from the box, their calibrated rows are run, and what comes near
//! enough is kept.
//!
//! All kept points are equally good: nothing is optimised, and a report shows the interval over all
//! of them. The bound is on the factor between ours and the published value, so that half and
//! double are equally wrong. Which points are kept depends on the seed of the fit alone, never on
//! how many cores there are.

use blockyard_workload::random::Random;

use super::execute::{Key, Manner, Progress, Run, execute};
use super::results::values;
use super::spec::fit::{Fit, Point, Side};
use super::spec::{Experiment, Variant};
use crate::Error;

/// Points that are run before it is looked whether there are enough.
const BATCH: usize = 16;

/// The outcome of a search.
#[derive(Clone, Debug)]
pub struct Found {
    /// Points whose rows are all near enough.
    pub accepted: Vec<Point>,
    /// Points that were run, until enough were accepted.
    pub drawn: u32,
    /// The nearest point, and the factor by which its worst row is off.
    nearest: Option<(Point, f64)>,
    /// The best of each row over all points: factor minus one.
    best_by_row: Vec<f64>,
}

impl Found {
    /// The outcome in lines of text; `fit` is the one that was searched.
    #[must_use]
    pub fn summary(&self, fit: &Fit) -> Vec<String> {
        let (accepted, drawn) = (self.accepted.len(), self.drawn);
        let mut lines = vec![format!("fit {}: {accepted} of {drawn} points accepted", fit.name)];
        for (accept, best) in fit.accept.iter().zip(&self.best_by_row) {
            let (best, bound) = (best * 100.0, accept.error_max * 100.0);
            lines.push(format!("    {}: at best {best:.1} % off, bound {bound:.0} %", accept.cell));
        }
        if let (true, Some((point, factor))) = (self.accepted.is_empty(), &self.nearest) {
            let sides = fit.sides.iter().zip(&point.values);
            let sides: Vec<String> =
                sides.map(|(side, value)| format!("{} = {value}", side.path)).collect();
            lines
                .push(format!("    nearest, off by a factor of {factor:.2}: {}", sides.join(", ")));
        }
        lines
    }
}

/// Searches the parameter box of a fit. `told` receives the numbers of drawn and of accepted points
/// after each batch.
///
/// # Errors
/// When the box contains an invalid world, or a run fails.
pub fn search(
    experiment: &Experiment,
    fit: &Fit,
    mut told: impl FnMut(u32, usize),
    progress: Progress<'_>,
) -> Result<Found, Error> {
    let points = draw(fit);
    check(experiment, fit, &points)?;
    let mut found = Found {
        accepted: Vec::new(),
        drawn: 0,
        nearest: None,
        best_by_row: vec![f64::INFINITY; fit.accept.len()],
    };
    for batch in points.chunks(BATCH) {
        let rows = run_batch(experiment, fit, batch, progress)?;
        for (point, values) in batch.iter().zip(rows) {
            found.drawn += 1;
            note(experiment, fit, point, &values, &mut found);
            if is_accepted(experiment, fit, &values) {
                found.accepted.push(point.clone());
            }
            if found.accepted.len() == fit.keep as usize {
                return Ok(found);
            }
        }
        if found.drawn < fit.draws {
            told(found.drawn, found.accepted.len());
        }
    }
    Ok(found)
}

/// A search takes long: whether each point is a world is asked before it begins.
fn check(experiment: &Experiment, fit: &Fit, points: &[Point]) -> Result<(), Error> {
    let variants = experiment.variants.iter().filter(|one| fit.variants.contains(&one.name));
    for variant in variants {
        for point in points {
            experiment.setup(variant, Some(point), &[], &[]).map_err(|error| {
                let values = fit.sides.iter().zip(&point.values);
                let values: Vec<String> =
                    values.map(|(side, value)| format!("{} = {value}", side.path)).collect();
                let (fit, values) = (&fit.name, values.join(", "));
                error.at(format!("the box of fit {fit} has points that are no world ({values})"))
            })?;
        }
    }
    Ok(())
}

fn note(experiment: &Experiment, fit: &Fit, point: &Point, values: &[f64], found: &mut Found) {
    let factors = factors(experiment, fit, values);
    for (best, factor) in found.best_by_row.iter_mut().zip(&factors) {
        *best = best.min(factor - 1.0);
    }
    let worst = factors.into_iter().fold(1.0, f64::max);
    if found.nearest.as_ref().is_none_or(|(_, nearest)| worst < *nearest) {
        found.nearest = Some((point.clone(), worst));
    }
}

/// All points that may be looked at, in order.
pub(crate) fn draw(fit: &Fit) -> Vec<Point> {
    let mut random = Random::new(fit.seed, 0);
    let value = |random: &mut Random, side: &Side| {
        side.at(u32::try_from(random.below(1 << 32)).expect("it is below 2^32"))
    };
    let point = |random: &mut Random| Point {
        values: fit.sides.iter().map(|side| value(random, side)).collect(),
    };
    (0..fit.draws).map(|_| point(&mut random)).collect()
}

/// The rows that decide, of each point.
fn run_batch(
    experiment: &Experiment,
    fit: &Fit,
    batch: &[Point],
    progress: Progress<'_>,
) -> Result<Vec<Vec<f64>>, Error> {
    let seed = experiment.seeds[0];
    let decides =
        |variant: &&Variant| fit.accept.iter().any(|accept| accept.cell.variant == variant.name);
    let variants: Vec<&Variant> = experiment.variants.iter().filter(decides).collect();
    let manner = Manner { experiment, set: &[], elevator: None, progress, check: false };
    let mut runs = Vec::new();
    for (number, point) in batch.iter().enumerate() {
        for variant in &variants {
            let control = String::new();
            let key = Key { variant: variant.name.clone(), point: number, seed, control };
            let point = Some(point.clone());
            runs.push(Run { key, variant, point, control: &[], look: false });
        }
    }
    let done = execute(manner, &runs)?;
    let row = |number: usize| {
        let cells = fit.accept.iter();
        cells
            .map(|accept| {
                values(&done, &accept.cell, "").get(&(number, seed)).copied().ok_or_else(|| {
                    let cell = &accept.cell;
                    Error::new(format!("fit {}: no job yields {cell}", fit.name))
                })
            })
            .collect()
    };
    (0..batch.len()).map(row).collect()
}

/// Whether each row is near enough to what was published.
pub(crate) fn is_accepted(experiment: &Experiment, fit: &Fit, values: &[f64]) -> bool {
    let factors = factors(experiment, fit, values);
    factors.iter().zip(&fit.accept).all(|(factor, accept)| *factor <= 1.0 + accept.error_max)
}

/// By which factor ours and the published value differ: 1 is equal.
fn factors(experiment: &Experiment, fit: &Fit, values: &[f64]) -> Vec<f64> {
    let factor = |(accept, ours): (&super::spec::fit::Accept, &f64)| {
        let published = experiment.published_at(&accept.cell).map_or(f64::NAN, |row| row.value);
        let factor = (ours / published).max(published / ours);
        if factor.is_finite() { factor } else { f64::INFINITY }
    };
    fit.accept.iter().zip(values).map(factor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::fit::Values;
    use crate::spec::metric::Cell;
    use crate::spec::tree::Origin;

    fn side(values: Values) -> Side {
        let origin = Origin::Set("a test".into());
        Side { origin, path: "device.seek_average_us".into(), values }
    }

    fn fit(sides: Vec<Side>, draws: u32) -> Fit {
        Fit {
            name: "f".into(),
            variants: vec![],
            sides,
            accept: vec![],
            draws,
            keep: 1,
            seed: 1,
            points: vec![],
        }
    }

    #[test]
    fn points_fill_the_box_and_are_the_same_each_time() {
        let sides = vec![
            side(Values::Even { low: -5, high: 5 }),
            side(Values::Log { low: 1, high: 1_000_000 }),
            side(Values::OneOf(vec![5_400, 7_200, 10_000])),
        ];
        let fit = fit(sides, 2_000);
        let points = draw(&fit);
        assert_eq!(points, draw(&fit));
        let first = |value| points.iter().filter(|point| point.values[0] == value).count();
        assert!((-5..=5).all(|value| first(value) > 100), "each of eleven, about 180 times");
        let small = points.iter().filter(|point| point.values[1] <= 1_000).count();
        assert!((850..1_150).contains(&small), "half lie below the root: {small}");
        assert!(points.iter().all(|point| (1..=1_000_000).contains(&point.values[1])));
        let third = |value| points.iter().filter(|point| point.values[2] == value).count();
        assert!([5_400, 7_200, 10_000].map(third).iter().all(|count| *count > 580));
    }

    #[test]
    fn half_and_double_are_equally_far_and_zero_is_never_accepted() {
        let text = include_str!("spec/testdata/small.toml");
        let experiment = Experiment::parse("small.toml", text, None).unwrap();
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
