//! The next points of a fit: a population that moves towards the rows.
//!
//! The first points are drawn evenly from the box. A later point is one of the best so far, moved
//! by a part of the difference between two others: so a trade of one side against another that
//! leaves the rows as they are is followed, and a side that the rows do not decide stays as wide
//! as the box. The moves are those of ter Braak, "A Markov chain Monte Carlo version of the genetic
//! algorithm Differential Evolution" (Statistics and Computing 16, 2006). A quarter of the points
//! is still drawn evenly.

use blockyard_workload::random::Random;

use crate::spec::fit::{Fit, Point, Side};

/// Points that are drawn evenly before the population is used.
const EVEN_AT_FIRST: usize = 32;
/// Points of the population that has not reached the bound. Accepted points are all part of it.
const POPULATION: usize = 12;
/// One of so many points is drawn evenly, and so is one of so many values of a list.
const EVEN_ONE_OF: u64 = 4;
/// A move has so much noise, as a part of the side: its standard deviation.
const NOISE: f64 = 0.02;
/// A share of a side is a part of 2^32.
const WHOLE: i64 = 1 << 32;

/// A point as shares of the sides, in their order.
pub(super) type Shares = Vec<u32>;

/// The source of the points of one search. It depends on the seed of the fit and on the distances
/// that it was told, in their order.
pub(super) struct Proposal<'a> {
    sides: &'a [Side],
    random: Random,
    /// Points that were run, the nearest first. The distance 1 is the bound of the worst row.
    seen: Vec<(f64, Shares)>,
}

impl<'a> Proposal<'a> {
    pub(super) fn new(fit: &'a Fit) -> Self {
        Self { sides: &fit.sides, random: Random::new(fit.seed, 0), seen: Vec::new() }
    }

    /// The next points, before any of them is run.
    pub(super) fn draw(&mut self, count: usize) -> Vec<Shares> {
        (0..count).map(|_| self.one()).collect()
    }

    /// The point at these shares.
    pub(super) fn point(&self, shares: &Shares) -> Point {
        let values = self.sides.iter().zip(shares).map(|(side, share)| side.at(*share));
        Point { values: values.collect() }
    }

    /// Learns the distance of a point that was run. All accepted points are equally near.
    pub(super) fn learn(&mut self, shares: Shares, distance: f64) {
        let distance = distance.max(1.0);
        let place = self.seen.partition_point(|(other, _)| *other <= distance);
        self.seen.insert(place, (distance, shares));
    }

    fn one(&mut self) -> Shares {
        let even = self.seen.len() < EVEN_AT_FIRST || self.random.below(EVEN_ONE_OF) == 0;
        if even {
            return (0..self.sides.len()).map(|_| self.share()).collect();
        }
        let [parent, from, to] = [0, 1, 2].map(|_| self.member());
        let sides = 0..self.sides.len();
        sides.map(|side| self.moved(side, parent[side], from[side], to[side])).collect()
    }

    fn population(&self) -> &[(f64, Shares)] {
        let accepted = self.seen.partition_point(|(distance, _)| *distance <= 1.0);
        &self.seen[..accepted.max(POPULATION).min(self.seen.len())]
    }

    fn member(&mut self) -> Shares {
        let place = self.random.below(self.population().len() as u64) as usize;
        self.seen[place].1.clone()
    }

    /// The parent's share, moved; of a list, the parent's value or any.
    fn moved(&mut self, side: usize, parent: u32, from: u32, to: u32) -> u32 {
        if self.sides[side].is_list() {
            let even = self.random.below(EVEN_ONE_OF) == 0;
            return if even { self.share() } else { parent };
        }
        let part = 2.38 / (2.0 * self.sides.len() as f64).sqrt();
        let difference = f64::from(to) - f64::from(from);
        let noise = self.normal() * NOISE * WHOLE as f64;
        reflect(i64::from(parent) + (difference * part + noise) as i64)
    }

    fn share(&mut self) -> u32 {
        u32::try_from(self.random.below(1 << 32)).expect("it is below 2^32")
    }

    /// A number of about the standard normal distribution: the sum of twelve even ones, which is
    /// equal on every machine, unlike a logarithm.
    fn normal(&mut self) -> f64 {
        let sum: i64 = (0..12).map(|_| i64::from(self.share())).sum();
        (sum - 6 * WHOLE) as f64 / WHOLE as f64
    }
}

/// Turns a share that lies outside the box back into it, as a mirror at its edge does.
fn reflect(share: i64) -> u32 {
    let share = share.rem_euclid(2 * WHOLE);
    let share = if share < WHOLE { share } else { 2 * WHOLE - 1 - share };
    u32::try_from(share).expect("it is below 2^32")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::fit::Values;
    use crate::spec::tree::{Origin, Value};

    fn fit(sides: Vec<Values>) -> Fit {
        let side = |values| Side { origin: Origin::Set("a test".into()), path: "p".into(), values };
        let sides = sides.into_iter().map(side).collect();
        let variants = vec![];
        let accept = vec![];
        let points = vec![];
        Fit {
            name: "f".into(),
            variants,
            sides,
            accept,
            draws: 0,
            keep: 1,
            seeds: 1,
            seed: 1,
            points,
        }
    }

    fn even(low: i64, high: i64) -> Values {
        Values::Even { low, high }
    }

    /// Points that are run until `keep` are accepted, and these. At most 4000 are run.
    fn run(fit: &Fit, keep: usize, distance: impl Fn(&[Value]) -> f64) -> (usize, Vec<Point>) {
        let mut proposal = Proposal::new(fit);
        let mut accepted = Vec::new();
        for drawn in 1..=4_000 {
            let shares = proposal.draw(1).remove(0);
            let point = proposal.point(&shares);
            let distance = distance(&point.values);
            proposal.learn(shares, distance);
            if distance <= 1.0 {
                accepted.push(point);
            }
            if accepted.len() == keep {
                return (drawn, accepted);
            }
        }
        (4_000, accepted)
    }

    fn number(value: &Value) -> f64 {
        match value {
            Value::Number(number) => *number as f64,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn first_points_fill_the_box() {
        let list = [5_400, 7_200, 10_000].map(Value::Number);
        let log = Values::Log { low: 1, high: 1_000_000 };
        let fit = fit(vec![even(-5, 5), log, Values::OneOf(list.to_vec())]);
        let mut proposal = Proposal::new(&fit);
        let points: Vec<Point> =
            proposal.draw(2_000).iter().map(|shares| proposal.point(shares)).collect();
        let count = |side: usize, is: &dyn Fn(f64) -> bool| {
            points.iter().filter(|point| is(number(&point.values[side]))).count()
        };
        for value in -5..=5 {
            assert!(count(0, &|at| at == f64::from(value)) > 100, "{value}: about 180 times");
        }
        let small = count(1, &|at| at <= 1_000.0);
        assert!((850..1_150).contains(&small), "half lie below the root: {small}");
        assert_eq!(count(1, &|at| (1.0..=1_000_000.0).contains(&at)), 2_000);
        for value in [5_400.0, 7_200.0, 10_000.0] {
            assert!(count(2, &|at| at == value) > 580, "{value}");
        }
    }

    #[test]
    fn population_finds_a_corner_that_even_draws_would_miss() {
        let fit = fit(vec![even(0, 1_000); 5]);
        // A cube of 60 in 1000: one point of 1.3 million.
        let far = |values: &[Value]| {
            values.iter().map(|value| (number(value) - 700.0).abs() / 30.0).fold(0.0, f64::max)
        };
        let (drawn, accepted) = run(&fit, 8, far);
        assert_eq!(accepted.len(), 8);
        assert!(drawn < 1_000, "{drawn}");
        assert_eq!(run(&fit, 8, far).1, accepted, "a search depends on its seed alone");
    }

    #[test]
    fn sides_of_which_only_the_sum_is_decided_stay_apart() {
        let fit = fit(vec![even(0, 1_000); 4]);
        let far = |values: &[Value]| (values.iter().map(number).sum::<f64>() - 1_200.0).abs() / 3.0;
        let (drawn, accepted) = run(&fit, 20, far);
        assert!(drawn < 1_500, "{drawn}: even draws need about 12000");
        for side in 0..4 {
            let values = accepted.iter().map(|point| number(&point.values[side]));
            let low = values.clone().fold(1e9, f64::min);
            let high = values.fold(0.0, f64::max);
            assert!(high - low > 250.0, "side {side}: {low} to {high}");
        }
    }

    #[test]
    fn side_that_no_row_decides_stays_as_wide_as_the_box() {
        let fit = fit(vec![even(0, 1_000), even(0, 1_000)]);
        let far = |values: &[Value]| (number(&values[0]) - 300.0).abs() / 10.0;
        let (_, accepted) = run(&fit, 40, far);
        let second: Vec<f64> = accepted.iter().map(|point| number(&point.values[1])).collect();
        let quarter =
            |from: f64| second.iter().filter(|value| (from..from + 250.0).contains(*value)).count();
        let quarters = [0.0, 250.0, 500.0, 750.0].map(quarter);
        assert!(quarters.iter().all(|count| *count >= 4), "{quarters:?}");
    }

    #[test]
    fn names_and_flags_are_drawn_and_the_right_ones_are_found() {
        let names = ["noop", "deadline", "cfq"].map(|name| Value::Text(name.into()));
        let flags = [false, true].map(Value::Flag);
        let fit =
            fit(vec![Values::OneOf(names.to_vec()), Values::OneOf(flags.to_vec()), even(0, 1_000)]);
        let far = |values: &[Value]| match (&values[0], &values[1]) {
            (Value::Text(name), Value::Flag(true)) if name == "cfq" => {
                (number(&values[2]) - 500.0).abs() / 5.0
            }
            _ => 1_000.0,
        };
        let (drawn, accepted) = run(&fit, 8, far);
        assert_eq!(accepted.len(), 8, "after {drawn}");
        assert!(accepted.iter().all(|point| point.values[1] == Value::Flag(true)));
    }

    #[test]
    fn share_outside_the_box_is_reflected_at_its_edge() {
        assert_eq!(reflect(-1), 0);
        assert_eq!(reflect(-1_000), 999);
        assert_eq!(reflect(WHOLE), u32::MAX);
        assert_eq!(reflect(WHOLE + 9), u32::MAX - 9);
        assert_eq!(reflect(5), 5);
    }
}
