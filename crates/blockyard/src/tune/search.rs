//! Search through the settings: one axis after the other, starting from the default.
//!
//! Each axis is a comparison of its values with the best settings so far, with other settings
//! unchanged. A second pass finds changes that follow from later axes. In the end the default, the
//! best settings, and the rivals (popular choices) are compared in fresh rounds: only settings that
//! are clearly better than the default there are recommended. Rivals that have lost to the default
//! before do not take part.

use super::comparison::{Outcome, Rules, compare};

/// Each axis is tried twice; differences after two passes depend on chance.
const PASSES: usize = 2;
/// Rounds of a comparison on an axis, in percent of the last one's.
const AXIS_ROUNDS_PERCENT: usize = 50;

/// A space of settings to search.
pub trait Space {
    /// A value for each axis.
    type Settings: Clone + PartialEq;
    /// One dimension of the settings.
    type Axis: Copy;
    /// Error of a measurement.
    type Error;

    /// The axes, the most important first.
    fn axes(&self) -> Vec<Self::Axis>;

    /// Settings that differ from the base on this axis.
    fn others(&self, axis: Self::Axis, base: &Self::Settings) -> Vec<Self::Settings>;

    /// Checks whether the settings are possible.
    ///
    /// # Errors
    /// The reason if they are not, as text.
    fn check(&mut self, settings: &Self::Settings) -> Result<(), String>;

    /// Score of the settings: positive, and higher is better. In a round the workload is the same
    /// for all candidates, in other rounds it differs.
    ///
    /// # Errors
    /// The measurement failed; the search ends.
    fn measure(&mut self, settings: &Self::Settings, round: usize) -> Result<f64, Self::Error>;

    /// A comparison on an axis or the last one begins: candidates of earlier ones are not measured
    /// again. Returns whether there is time for it; the last one always runs.
    fn begins(&mut self, is_last: bool) -> bool;

    /// True if there is time for another round.
    fn goes_on(&self) -> bool;
}

/// A comparison on an axis, or the last one.
#[derive(Clone, Debug)]
pub struct Comparison<A, S> {
    /// `None` for the last one, of the default, the best settings, and the rivals.
    pub axis: Option<A>,
    /// The incumbent first.
    pub candidates: Vec<S>,
    /// The measurements.
    pub outcome: Outcome,
    /// Impossible settings, and the reasons.
    pub left_out: Vec<(S, String)>,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Found<A, S> {
    /// The recommended settings.
    pub best: S,
    /// The comparisons on axes.
    pub comparisons: Vec<Comparison<A, S>>,
    /// The last comparison.
    pub last: Comparison<A, S>,
    /// The time ran out before each comparison had a clear result.
    pub is_cut_short: bool,
}

/// The comparison type of a space.
type Of<P> = Comparison<<P as Space>::Axis, <P as Space>::Settings>;

/// Searches from the default on. The rivals take part in the last comparison. `progress` receives
/// each comparison at its end.
///
/// # Errors
/// See [`Space::measure`].
pub fn search<P: Space>(
    space: &mut P,
    default: &P::Settings,
    rivals: &[P::Settings],
    rules: Rules,
    progress: &mut dyn FnMut(&Of<P>),
) -> Result<Found<P::Axis, P::Settings>, P::Error> {
    let mut best = default.clone();
    let mut steps: Vec<Of<P>> = Vec::new();
    // The base settings and the winner of the last comparison, by axis.
    let axes = space.axes();
    let mut seen: Vec<Option<P::Settings>> = vec![None; axes.len()];
    let mut is_cut_short = false;
    let mut seed = rules.seed;
    for _ in 0..PASSES {
        for (&axis, seen) in axes.iter().zip(&mut seen) {
            if seen.as_ref() == Some(&best) {
                continue;
            }
            if !space.begins(false) {
                is_cut_short = true;
                continue;
            }
            seed = seed.wrapping_add(1);
            let others = space.others(axis, &best);
            let rounds_max = rules.rounds_max.saturating_mul(AXIS_ROUNDS_PERCENT) / 100;
            let rules = Rules { rounds_max, seed };
            let Some(step) = step(space, Some(axis), &best, others, rules)? else {
                continue;
            };
            best = step.candidates[step.outcome.winner].clone();
            *seen = Some(best.clone());
            progress(&step);
            steps.push(step);
        }
    }
    let mut others: Vec<P::Settings> = Vec::new();
    for rival in std::iter::once(&best).chain(rivals) {
        if rival != default && !others.contains(rival) && !went_early(rival, default, &steps) {
            others.push(rival.clone());
        }
    }
    let rules = Rules { seed: seed.wrapping_add(1), ..rules };
    space.begins(true);
    let last = match step(space, None, default, others, rules)? {
        Some(last) => last,
        None => alone(space, best, rules)?,
    };
    progress(&last);
    is_cut_short |= !last.outcome.is_clear && !space.goes_on();
    let best = last.candidates[last.outcome.winner].clone();
    Ok(Found { best, comparisons: steps, last, is_cut_short })
}

/// True if this rival lost a comparison with the default.
fn went_early<A, S: PartialEq>(rival: &S, default: &S, steps: &[Comparison<A, S>]) -> bool {
    steps.iter().filter(|step| step.candidates[0] == *default).any(|step| {
        let mut standings = step.candidates.iter().zip(&step.outcome.standings);
        standings.any(|(candidate, standing)| candidate == rival && !standing.is_finalist)
    })
}

/// A comparison of the others with the base; `None` without others.
fn step<P: Space>(
    space: &mut P,
    axis: Option<P::Axis>,
    base: &P::Settings,
    others: Vec<P::Settings>,
    rules: Rules,
) -> Result<Option<Of<P>>, P::Error> {
    let mut candidates = vec![base.clone()];
    let mut left_out = Vec::new();
    for other in others {
        match space.check(&other) {
            Ok(()) => candidates.push(other),
            Err(why) => left_out.push((other, why)),
        }
    }
    if candidates.len() == 1 {
        return Ok(None);
    }
    let outcome = run(space, &candidates, rules)?;
    Ok(Some(Comparison { axis, candidates, outcome, left_out }))
}

fn alone<P: Space>(space: &mut P, best: P::Settings, rules: Rules) -> Result<Of<P>, P::Error> {
    let candidates = vec![best];
    let score = space.measure(&candidates[0], 0)?;
    let mut outcome = run(space, &candidates, rules)?;
    outcome.standings[0].scores.push(score);
    Ok(Comparison { axis: None, candidates, outcome, left_out: Vec::new() })
}

fn run<P: Space>(
    space: &mut P,
    candidates: &[P::Settings],
    rules: Rules,
) -> Result<Outcome, P::Error> {
    let shared = std::cell::RefCell::new(space);
    compare(
        candidates.len(),
        rules,
        |candidate, round| shared.borrow_mut().measure(&candidates[candidate], round),
        || shared.borrow().goes_on(),
    )
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;

    use super::*;

    /// A hill over two axes, whose ridge is oblique; one value is impossible.
    struct Hill {
        measured: Cell<usize>,
        measured_max: usize,
    }

    impl Space for Hill {
        type Settings = (u32, u32);
        type Axis = char;
        type Error = Infallible;

        fn axes(&self) -> Vec<char> {
            vec!['x', 'y']
        }

        fn others(&self, axis: char, base: &(u32, u32)) -> Vec<(u32, u32)> {
            let at = |value| if axis == 'x' { (value, base.1) } else { (base.0, value) };
            (0..8).map(at).filter(|other| other != base).collect()
        }

        fn check(&mut self, settings: &(u32, u32)) -> Result<(), String> {
            if settings.0 == 7 { Err("7 is unavailable".into()) } else { Ok(()) }
        }

        fn measure(&mut self, settings: &(u32, u32), round: usize) -> Result<f64, Infallible> {
            self.measured.set(self.measured.get() + 1);
            let x = f64::from(settings.0);
            let y = f64::from(settings.1);
            let height = 200.0 - (x - 4.0).powi(2) * 3.0 - (y - 5.0).powi(2) * 3.0 + x * y / 8.0;
            Ok(height * (1.0 + 0.001 * f64::from(round as u32 % 2)))
        }

        fn begins(&mut self, is_last: bool) -> bool {
            is_last || self.goes_on()
        }

        fn goes_on(&self) -> bool {
            self.measured.get() < self.measured_max
        }
    }

    const RULES: Rules = Rules { rounds_max: 12, seed: 1 };

    #[test]
    fn search_climbs_to_the_top_and_names_what_cannot_be_had() {
        let mut hill = Hill { measured: Cell::new(0), measured_max: usize::MAX };
        let found = search(&mut hill, &(0, 0), &[(1, 1)], RULES, &mut |_| ()).unwrap();
        assert_eq!((found.best, found.is_cut_short), ((4, 5), false));
        assert_eq!(found.comparisons[0].left_out, [((7, 0), "7 is unavailable".into())]);
        assert_eq!(found.last.candidates, [(0, 0), (4, 5), (1, 1)]);
    }

    /// On the first axis `(4, 0)` is the best; `(0, 0)` is the default.
    #[test]
    fn rival_that_has_lost_to_the_default_before_stays_away() {
        let mut hill = Hill { measured: Cell::new(0), measured_max: usize::MAX };
        let found = search(&mut hill, &(0, 0), &[(6, 0), (0, 7)], RULES, &mut |_| ()).unwrap();
        assert_eq!(found.last.candidates, [(0, 0), (4, 5), (0, 7)]);
    }

    #[test]
    fn greatest_rules_do_not_panic() {
        let mut hill = Hill { measured: Cell::new(0), measured_max: 200 };
        let rules = Rules { rounds_max: usize::MAX, seed: u64::MAX };
        let found = search(&mut hill, &(0, 0), &[], rules, &mut |_| ()).unwrap();
        assert!(!found.comparisons.is_empty());
    }

    #[test]
    fn rival_that_is_better_wins_in_the_end() {
        let mut hill = Hill { measured: Cell::new(0), measured_max: 0 };
        let found = search(&mut hill, &(0, 0), &[(4, 5), (3, 3)], RULES, &mut |_| ()).unwrap();
        assert_eq!((found.best, found.is_cut_short), ((4, 5), true));
        assert!(found.comparisons.is_empty());
    }
}
