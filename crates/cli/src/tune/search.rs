//! Walking through the settings: one axis after the other, from the default on.
//!
//! Each axis is a race of its values against the best settings so far, all else as there. A second
//! pass sees whether what was taken later changes what was best before. In the end the default, the
//! settings that were found, and the rivals, which people take without measuring, run against each
//! other once more, in fresh rounds: what is not clearly better than the default there is not
//! recommended. Rivals that have raced against the default before, and went early, stay away.

use super::race::{Outcome, Rules, race};

/// Each axis is looked at again once; what two passes do not settle depends on chance.
const PASSES: usize = 2;
/// Of a race on an axis, in percent of the last race's.
const AXIS_ROUNDS_PERCENT: usize = 50;

/// What is told of each step.
pub(crate) type Told<'a, S> = Box<dyn Fn(&Step<S>) + 'a>;

/// A thing that can be tuned, for settings of type `S`.
pub(crate) trait Space {
    /// All values together.
    type Settings: Clone + PartialEq;
    /// Why something could not be measured.
    type Error;

    /// What can be changed, what matters most first.
    fn axes(&self) -> Vec<&'static str>;

    /// The base with other values on this axis, without the base itself.
    fn others(&self, axis: &str, base: &Self::Settings) -> Vec<Self::Settings>;

    /// Whether these settings can be had; why not, if not.
    fn check(&mut self, settings: &Self::Settings) -> Result<(), String>;

    /// How good they are: more is better, and it is above zero. Rounds of one race have the same
    /// workload, and other rounds another one.
    fn measure(&mut self, settings: &Self::Settings, round: usize) -> Result<f64, Self::Error>;

    /// A race begins, on an axis or the last one: nothing of those before will be measured again.
    /// Whether there is time for it; for the last one there is.
    fn begins(&mut self, is_last: bool) -> bool;

    /// Whether there is time for another round of it.
    fn goes_on(&self) -> bool;

    /// For whoever watches.
    fn tell(&self, step: &Step<Self::Settings>);
}

/// A race on an axis, or the last one.
#[derive(Clone, Debug)]
pub(crate) struct Step<S> {
    pub(crate) axis: &'static str,
    /// The incumbent first.
    pub(crate) candidates: Vec<S>,
    pub(crate) outcome: Outcome,
    /// What could not be had, and why.
    pub(crate) left_out: Vec<(S, String)>,
}

/// What a search found.
#[derive(Clone, Debug)]
pub(crate) struct Found<S> {
    pub(crate) best: S,
    /// The races on axes.
    pub(crate) steps: Vec<Step<S>>,
    /// The last race: the default, what was found, and the rivals.
    pub(crate) last: Step<S>,
    /// Time was over before each race had a clear end.
    pub(crate) is_cut_short: bool,
}

/// The name of the last race.
pub(crate) const AGAIN: &str = "measured again";

/// Searches from the default on. The rivals run in the last race.
pub(crate) fn search<P: Space>(
    space: &mut P,
    default: &P::Settings,
    rivals: &[P::Settings],
    rules: Rules,
) -> Result<Found<P::Settings>, P::Error> {
    let mut best = default.clone();
    let mut steps: Vec<Step<P::Settings>> = Vec::new();
    // By axis: the settings that its last race began with or ended in.
    let axes = space.axes();
    let mut seen: Vec<Option<P::Settings>> = vec![None; axes.len()];
    let (mut is_cut_short, mut seed) = (false, rules.seed);
    for _ in 0..PASSES {
        for (axis, seen) in axes.iter().zip(&mut seen) {
            if seen.as_ref() == Some(&best) {
                continue;
            }
            if !space.begins(false) {
                is_cut_short = true;
                continue;
            }
            seed += 1;
            let others = space.others(axis, &best);
            let rules = Rules { rounds_max: rules.rounds_max * AXIS_ROUNDS_PERCENT / 100, seed };
            let Some(step) = step(space, axis, &best, others, rules)? else {
                continue;
            };
            best = step.candidates[step.outcome.winner].clone();
            *seen = Some(best.clone());
            space.tell(&step);
            steps.push(step);
        }
    }
    let mut others: Vec<P::Settings> = Vec::new();
    for rival in std::iter::once(&best).chain(rivals) {
        if rival != default && !others.contains(rival) && !went_early(rival, default, &steps) {
            others.push(rival.clone());
        }
    }
    let rules = Rules { seed: seed + 1, ..rules };
    space.begins(true);
    let last = match step(space, AGAIN, default, others, rules)? {
        Some(last) => last,
        None => alone(space, best, rules)?,
    };
    space.tell(&last);
    is_cut_short |= !last.outcome.is_clear && !space.goes_on();
    let best = last.candidates[last.outcome.winner].clone();
    Ok(Found { best, steps, last, is_cut_short })
}

/// Whether this rival has lost a race that the default was in.
fn went_early<S: PartialEq>(rival: &S, default: &S, steps: &[Step<S>]) -> bool {
    steps.iter().filter(|step| step.candidates[0] == *default).any(|step| {
        let mut standings = step.candidates.iter().zip(&step.outcome.standings);
        standings.any(|(candidate, standing)| candidate == rival && !standing.is_finalist)
    })
}

/// A race of the others against the base; none if there is no other.
fn step<P: Space>(
    space: &mut P,
    axis: &'static str,
    base: &P::Settings,
    others: Vec<P::Settings>,
    rules: Rules,
) -> Result<Option<Step<P::Settings>>, P::Error> {
    let (mut candidates, mut left_out) = (vec![base.clone()], Vec::new());
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
    Ok(Some(Step { axis, candidates, outcome, left_out }))
}

fn alone<P: Space>(
    space: &mut P,
    best: P::Settings,
    rules: Rules,
) -> Result<Step<P::Settings>, P::Error> {
    let candidates = vec![best];
    let score = space.measure(&candidates[0], 0)?;
    let mut outcome = run(space, &candidates, rules)?;
    outcome.standings[0].scores.push(score);
    Ok(Step { axis: AGAIN, candidates, outcome, left_out: Vec::new() })
}

fn run<P: Space>(
    space: &mut P,
    candidates: &[P::Settings],
    rules: Rules,
) -> Result<Outcome, P::Error> {
    let shared = std::cell::RefCell::new(space);
    race(
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

    /// A hill over two axes, whose ridge is oblique; one value cannot be had.
    struct Hill {
        measured: Cell<usize>,
        measured_max: usize,
    }

    impl Space for Hill {
        type Settings = (u32, u32);
        type Error = Infallible;

        fn axes(&self) -> Vec<&'static str> {
            vec!["x", "y"]
        }

        fn others(&self, axis: &str, base: &(u32, u32)) -> Vec<(u32, u32)> {
            let at = |value| if axis == "x" { (value, base.1) } else { (base.0, value) };
            (0..8).map(at).filter(|other| other != base).collect()
        }

        fn check(&mut self, settings: &(u32, u32)) -> Result<(), String> {
            if settings.0 == 7 { Err("there is no 7".into()) } else { Ok(()) }
        }

        fn measure(&mut self, settings: &(u32, u32), round: usize) -> Result<f64, Infallible> {
            self.measured.set(self.measured.get() + 1);
            let (x, y) = (f64::from(settings.0), f64::from(settings.1));
            let height = 200.0 - (x - 4.0).powi(2) * 3.0 - (y - 5.0).powi(2) * 3.0 + x * y / 8.0;
            Ok(height * (1.0 + 0.001 * f64::from(round as u32 % 2)))
        }

        fn begins(&mut self, is_last: bool) -> bool {
            is_last || self.goes_on()
        }

        fn goes_on(&self) -> bool {
            self.measured.get() < self.measured_max
        }

        fn tell(&self, _: &Step<(u32, u32)>) {}
    }

    const RULES: Rules = Rules { rounds_max: 12, seed: 1 };

    #[test]
    fn search_climbs_to_the_top_and_names_what_cannot_be_had() {
        let mut hill = Hill { measured: Cell::new(0), measured_max: usize::MAX };
        let found = search(&mut hill, &(0, 0), &[(1, 1)], RULES).unwrap();
        assert_eq!((found.best, found.is_cut_short), ((4, 5), false));
        assert_eq!(found.steps[0].left_out, [((7, 0), "there is no 7".into())]);
        assert_eq!(found.last.candidates, [(0, 0), (4, 5), (1, 1)]);
    }

    /// On the first axis `(4, 0)` is the best; `(0, 0)` is the default.
    #[test]
    fn rival_that_has_lost_to_the_default_before_stays_away() {
        let mut hill = Hill { measured: Cell::new(0), measured_max: usize::MAX };
        let found = search(&mut hill, &(0, 0), &[(6, 0), (0, 7)], RULES).unwrap();
        assert_eq!(found.last.candidates, [(0, 0), (4, 5), (0, 7)]);
    }

    #[test]
    fn rival_that_is_better_wins_in_the_end() {
        let mut hill = Hill { measured: Cell::new(0), measured_max: 0 };
        let found = search(&mut hill, &(0, 0), &[(4, 5), (3, 3)], RULES).unwrap();
        assert_eq!((found.best, found.is_cut_short), ((4, 5), true));
        assert!(found.steps.is_empty());
    }
}
