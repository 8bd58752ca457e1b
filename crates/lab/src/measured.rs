//! Measures of claims, computed from the results: cell by cell at one point and seed, then reduced
//! to one number.

use std::collections::{BTreeMap, BTreeSet};

use super::execute::Done;
use super::results::{Place, values};
use super::spec::measure::{Cells, Measure, Over, Quantity, Side};

/// The value of a measure in each run. Compared cells have the same point and seed. A run in which
/// no cell meets the condition has no value.
pub(crate) fn measured(measure: &Measure, done: &Done, control: &str) -> BTreeMap<Place, f64> {
    let of = PerRun::of(&measure.quantity, done, control);
    let condition = measure.condition.as_ref();
    let condition =
        condition.map(|(quantity, bounds)| (PerRun::of(quantity, done, control), bounds));
    let braces = measure.quantity.braces();
    let mut found = BTreeMap::new();
    for place in of.places() {
        let Some(numbers) = of.at(place, &measure.quantity) else { continue };
        let kept: Option<Vec<bool>> = match (&condition, &measure.condition) {
            (Some((runs, bounds)), Some((quantity, _))) => runs
                .at(place, quantity)
                .map(|numbers| numbers.iter().map(|number| bounds.have(*number)).collect()),
            _ => Some(vec![true; numbers.len()]),
        };
        let Some(kept) = kept else { continue };
        let cells: Vec<(usize, f64)> =
            numbers.into_iter().enumerate().filter(|(at, _)| kept[*at]).collect();
        found.extend(reduce(measure.over, &cells, &braces).map(|number| (place, number)));
    }
    found
}

/// Values of all cells of all sides.
struct PerRun(Vec<Vec<Vec<BTreeMap<Place, f64>>>>);

impl PerRun {
    fn of(quantity: &Quantity, done: &Done, control: &str) -> Self {
        let list = |list: &Cells| -> Vec<BTreeMap<Place, f64>> {
            list.cells.iter().map(|cell| values(done, cell, control)).collect()
        };
        let side = |side: &Side| side.lists().iter().map(list).collect();
        Self(quantity.sides().into_iter().map(side).collect())
    }

    fn places(&self) -> BTreeSet<Place> {
        let cells = self.0.iter().flatten().flatten();
        cells.flat_map(|values| values.keys().copied()).collect()
    }

    /// The quantity of each cell; `None` if a cell was not measured.
    fn at(&self, place: Place, quantity: &Quantity) -> Option<Vec<f64>> {
        let list = |list: &Vec<BTreeMap<Place, f64>>| -> Option<Vec<f64>> {
            list.iter().map(|values| values.get(&place).copied()).collect()
        };
        let mut sides = Vec::new();
        for (side, values) in quantity.sides().into_iter().zip(&self.0) {
            let lists: Vec<Vec<f64>> = values.iter().map(list).collect::<Option<_>>()?;
            sides.push(joined(side, &lists));
        }
        let cells = sides.iter().map(Vec::len).max()?;
        // A side of one cell is used for every cell.
        let number = |side: usize, cell: usize| {
            let side = &sides[side];
            if side.len() == 1 { side[0] } else { side[cell] }
        };
        let one = |cell: usize| match quantity {
            Quantity::Value(_) => number(0, cell),
            Quantity::Ratio(..) => number(0, cell) / number(1, cell),
            Quantity::RatioOfRatios(_) => {
                number(0, cell) / number(1, cell) / (number(2, cell) / number(3, cell))
            }
            Quantity::Recovered(_) => {
                (number(0, cell) - number(1, cell)) / (number(0, cell) - number(2, cell))
            }
        };
        Some((0..cells).map(one).collect())
    }
}

/// The values of a side, cell by cell.
fn joined(side: &Side, lists: &[Vec<f64>]) -> Vec<f64> {
    let by_cell = |join: fn(f64, f64) -> f64| -> Vec<f64> {
        let of = |cell| lists.iter().map(|list| list[cell]).reduce(join);
        (0..lists[0].len()).filter_map(of).collect()
    };
    match side {
        Side::Cells(_) => lists[0].clone(),
        Side::Largest(_) => lists[0].iter().copied().reduce(f64::max).into_iter().collect(),
        Side::Best(_) => by_cell(f64::max),
        Side::Worst(_) => by_cell(f64::min),
    }
}

/// Reduces several cells, each with its index, to one number.
fn reduce(over: Over, cells: &[(usize, f64)], braces: &[usize]) -> Option<f64> {
    let numbers = || cells.iter().map(|(_, number)| *number);
    match over {
        Over::One => numbers().next(),
        Over::Smallest => numbers().reduce(f64::min),
        Over::Largest => numbers().reduce(f64::max),
        Over::Median => super::results::interval(numbers()).map(|interval| interval.median),
        Over::Share(bounds) => {
            let inside = numbers().filter(|number| bounds.have(*number)).count();
            (!cells.is_empty()).then(|| inside as f64 / cells.len() as f64)
        }
        Over::PlaceOfLargest => place_of_largest(cells).map(|place| place as f64 + 1.0),
        Over::DifferentPlaces => {
            let words = braces.last().copied().filter(|words| *words > 0)?;
            let mut groups: BTreeMap<usize, Vec<(usize, f64)>> = BTreeMap::new();
            for (at, number) in cells {
                groups.entry(at / words).or_default().push((at % words, *number));
            }
            let places: BTreeSet<usize> =
                groups.values().filter_map(|group| place_of_largest(group)).collect();
            (!places.is_empty()).then_some(places.len() as f64)
        }
        Over::RankCorrelation(along) => {
            let behind: usize = braces[along + 1..].iter().product();
            let places = cells.iter().map(|(at, _)| (at / behind % braces[along]) as f64);
            spearman(&places.collect::<Vec<_>>(), &numbers().collect::<Vec<_>>())
        }
    }
}

/// Index of the largest value; of equal values the first.
fn place_of_largest(cells: &[(usize, f64)]) -> Option<usize> {
    let larger = |best: (usize, f64), one: (usize, f64)| if one.1 > best.1 { one } else { best };
    cells.iter().copied().reduce(larger).map(|(at, _)| at)
}

/// Spearman's rank correlation; equal numbers share a rank. `None` if one side is constant.
fn spearman(xs: &[f64], ys: &[f64]) -> Option<f64> {
    let xs = ranks(xs);
    let ys = ranks(ys);
    let mean = (xs.len() as f64 + 1.0) / 2.0;
    let product = |left: &[f64], right: &[f64]| -> f64 {
        left.iter().zip(right).map(|(left, right)| (left - mean) * (right - mean)).sum()
    };
    let spread = (product(&xs, &xs) * product(&ys, &ys)).sqrt();
    (spread > 0.0).then(|| product(&xs, &ys) / spread)
}

fn ranks(numbers: &[f64]) -> Vec<f64> {
    let rank = |number: &f64| {
        let below = numbers.iter().filter(|other| *other < number).count();
        let equal = numbers.iter().filter(|other| *other == number).count();
        below as f64 + (equal as f64 + 1.0) / 2.0
    };
    numbers.iter().map(rank).collect()
}

#[cfg(test)]
mod tests {
    use super::super::spec::measure::Bounds;
    use super::*;

    fn of(over: Over, numbers: &[f64], braces: &[usize]) -> Option<f64> {
        let cells: Vec<(usize, f64)> = numbers.iter().copied().enumerate().collect();
        reduce(over, &cells, braces)
    }

    #[test]
    fn many_cells_become_one_number() {
        let numbers = [1.0, 4.0, 2.0, 3.0];
        assert_eq!(of(Over::Median, &numbers, &[4]), Some(2.5));
        assert_eq!(of(Over::Smallest, &numbers, &[4]), Some(1.0));
        assert_eq!(of(Over::Largest, &numbers, &[4]), Some(4.0));
        assert_eq!(of(Over::PlaceOfLargest, &numbers, &[4]), Some(2.0));
        let bounds = Bounds { min: Some(2.5), max: None };
        assert_eq!(of(Over::Share(bounds), &numbers, &[4]), Some(0.5));
        assert_eq!(of(Over::Median, &[], &[0]), None, "no cell, no number");
    }

    #[test]
    fn different_places_are_counted_over_the_words_of_the_other_braces() {
        let same = [1.0, 2.0, 0.0, 5.0, 9.0, 0.0];
        assert_eq!(of(Over::DifferentPlaces, &same, &[2, 3]), Some(1.0));
        let moved = [1.0, 2.0, 0.0, 9.0, 5.0, 0.0];
        assert_eq!(of(Over::DifferentPlaces, &moved, &[2, 3]), Some(2.0));
    }

    #[test]
    fn rank_correlation_follows_the_braces_that_along_names() {
        // Rises with the first braces; does not depend on the second.
        let numbers = [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 9.0, 9.0, 9.0];
        assert_eq!(of(Over::RankCorrelation(0), &numbers, &[3, 3]), Some(1.0));
        assert_eq!(of(Over::RankCorrelation(1), &numbers, &[3, 3]), Some(0.0));
        assert_eq!(of(Over::RankCorrelation(0), &[1.0; 4], &[2, 2]), None);
        // 1 - 6 * (1 + 1) / (4 * 15)
        let found = of(Over::RankCorrelation(0), &[1.0, 3.0, 2.0, 4.0], &[4]).unwrap();
        assert!((found - 0.8).abs() < 1e-12, "{found}");
    }
}
