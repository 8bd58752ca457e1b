//! A comparison of candidates: finds the best, and whether it is clear.
//!
//! ```text
//! round 1   A B C D E F     each once, in a random order
//! round 2   C F A E B D
//! the worse half is dropped; the incumbent (the first) stays
//! rounds…   A D F           clearly worse ones are dropped, until none is
//! better than the leader
//! ```
//!
//! Rounds are interleaved because a machine changes during a measurement: candidates are compared
//! *within a round*, never across rounds. The confidence interval of the mean ratio is Student's,
//! of the logarithms. It is computed after every round, so it is one of 99 %, where 95 % would do
//! for a single test.
//!
//! Successive halving is by Jamieson and Talwalkar (2016), pairing is ours.

use blockyard_workload::random::Random;
use serde::Serialize;

/// Rounds before the worse half is dropped.
const ROUNDS_A_RUNG: usize = 2;
/// This many are compared to the end; after two rounds, intervals are too wide to distinguish more.
const FINALISTS: usize = 3;
/// A smaller difference to the incumbent does not matter.
const SAME: f64 = 0.01;
/// Smaller differences between two candidates that would both replace the incumbent do not matter.
/// A third of the difference needs nine times the rounds.
const NEAR: f64 = 0.03;

/// Limits of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Limit of rounds.
    pub rounds_max: usize,
    /// Seed of the candidates' order in each round.
    pub seed: u64,
}

impl Default for Rules {
    /// 24 rounds: a smaller difference is not worth more time.
    fn default() -> Self {
        Self { rounds_max: 24, seed: 1 }
    }
}

/// The measurements of one candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// Scores of its rounds: higher is better.
    pub scores: Vec<f64>,
    /// It was not dropped.
    pub is_finalist: bool,
    /// Ratio to the incumbent in common rounds; `None` for the incumbent.
    pub against_incumbent: Option<Ratio>,
}

impl Standing {
    /// The mean score of comparisons, which is geometric.
    #[must_use]
    pub fn score(&self) -> f64 {
        mean_log(&self.scores).exp()
    }
}

/// Ratio of the scores of two candidates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// 1 means equal, 2 twice as good.
    pub mean: f64,
    /// Lower end of the confidence interval (99 %).
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Result of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// One for each candidate.
    pub standings: Vec<Standing>,
    /// The number of the best; the incumbent unless another is clearly better.
    pub winner: usize,
    /// More rounds would not change it.
    pub is_clear: bool,
}

/// Compares this many candidates; the first is the incumbent. `measure` returns the score of a
/// candidate in a round: positive, and higher is better. `goes_on` is called before each round
/// except the first two.
pub(super) fn compare<E>(
    candidates: usize,
    rules: Rules,
    mut measure: impl FnMut(usize, usize) -> Result<f64, E>,
    mut goes_on: impl FnMut() -> bool,
) -> Result<Outcome, E> {
    assert!(candidates > 0, "there is an incumbent");
    let mut random = Random::new(rules.seed, 0);
    let mut scores: Vec<Vec<f64>> = vec![Vec::new(); candidates];
    let mut alive: Vec<usize> = (0..candidates).collect();
    let mut is_clear = candidates == 1;
    for round in 0..rules.rounds_max {
        if is_clear || (round >= ROUNDS_A_RUNG && !goes_on()) {
            break;
        }
        shuffle(&mut alive, &mut random);
        for &candidate in &alive {
            let score = measure(candidate, round)?;
            scores[candidate].push(score);
        }
        let rounds = round + 1;
        if alive.len() > FINALISTS && rounds.is_multiple_of(ROUNDS_A_RUNG) {
            halve(&mut alive, &scores);
        } else if alive.len() <= FINALISTS {
            drop_beaten(&mut alive, &scores);
            is_clear = is_settled(&alive, &scores);
        }
    }
    let against = |candidate: usize| match candidate {
        0 => None,
        _ => Some(ratio(&scores[candidate], &scores[0])),
    };
    let standings: Vec<Standing> = (0..candidates)
        .map(|candidate| Standing {
            scores: scores[candidate].clone(),
            is_finalist: alive.contains(&candidate),
            against_incumbent: against(candidate),
        })
        .collect();
    let winner = winner(&alive, &scores);
    Ok(Outcome { standings, winner, is_clear })
}

fn shuffle(order: &mut [usize], random: &mut Random) {
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last as u64 + 1) as usize);
    }
}

/// Drops the worse half, but keeps the number of finalists, and the incumbent.
fn halve(alive: &mut Vec<usize>, scores: &[Vec<f64>]) {
    let keep = alive.len().div_ceil(2).max(FINALISTS);
    alive.sort_by(|one, other| {
        let by_score = mean_log(&scores[*other]).total_cmp(&mean_log(&scores[*one]));
        by_score.then(one.cmp(other))
    });
    if alive.iter().position(|one| *one == 0).is_some_and(|place| place >= keep) {
        alive.truncate(keep - 1);
        alive.push(0);
    } else {
        alive.truncate(keep);
    }
}

/// Drops candidates that are clearly worse than the leader, except the incumbent.
fn drop_beaten(alive: &mut Vec<usize>, scores: &[Vec<f64>]) {
    let leader = leader(alive, scores);
    alive.retain(|&one| {
        one == 0 || one == leader || ratio(&scores[leader], &scores[one]).low <= 1.0
    });
}

/// True if no other is better than the leader by a difference that matters.
fn is_settled(alive: &[usize], scores: &[Vec<f64>]) -> bool {
    let leader = leader(alive, scores);
    alive.iter().filter(|one| **one != leader).all(|&one| {
        let margin = if leader == 0 || one == 0 { SAME } else { NEAR };
        ratio(&scores[leader], &scores[one]).low > 1.0 - margin
    })
}

fn leader(alive: &[usize], scores: &[Vec<f64>]) -> usize {
    let best = alive.iter().copied().max_by(|one, other| {
        let by_score = mean_log(&scores[*one]).total_cmp(&mean_log(&scores[*other]));
        // Of equal ones the first, which is the simplest.
        by_score.then(other.cmp(one))
    });
    best.expect("the incumbent is never dropped")
}

/// The leader, if it is better than the incumbent by a significant difference that matters.
fn winner(alive: &[usize], scores: &[Vec<f64>]) -> usize {
    let leader = leader(alive, scores);
    let Ratio { mean, low, .. } = ratio(&scores[leader], &scores[0]);
    if low > 1.0 && mean > 1.0 + SAME { leader } else { 0 }
}

/// Mean of the logarithms of scores, for comparisons.
fn mean_log(scores: &[f64]) -> f64 {
    scores.iter().map(|score| score.ln()).sum::<f64>() / scores.len().max(1) as f64
}

/// Ratio of two candidates in their common rounds, which are the first ones.
fn ratio(one: &[f64], other: &[f64]) -> Ratio {
    let logs: Vec<f64> = one.iter().zip(other).map(|(one, other)| (one / other).ln()).collect();
    let count = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / count.max(1.0);
    if logs.len() < 2 {
        return Ratio { mean: mean.exp(), low: 0.0, high: f64::INFINITY };
    }
    let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
    let half = student_99(logs.len() - 1) * (squares / (count - 1.0) / count).sqrt();
    Ratio { mean: mean.exp(), low: (mean - half).exp(), high: (mean + half).exp() }
}

/// Student's t for 99 %, two-sided, by degrees of freedom; between two entries the larger one.
fn student_99(freedom: usize) -> f64 {
    const TABLE: [(usize, f64); 14] = [
        (1, 63.66),
        (2, 9.925),
        (3, 5.841),
        (4, 4.604),
        (5, 4.032),
        (6, 3.707),
        (7, 3.499),
        (8, 3.355),
        (9, 3.250),
        (10, 3.169),
        (12, 3.055),
        (15, 2.947),
        (20, 2.845),
        (30, 2.750),
    ];
    let below = TABLE.iter().rev().find(|(known, _)| *known <= freedom);
    below.expect("two rounds leave one degree of freedom").1
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    const RULES: Rules = Rules { rounds_max: 24, seed: 7 };

    /// Each candidate's speed, times a factor of the round, times its own noise.
    fn run(speeds: &[f64], noise: f64) -> (Outcome, usize) {
        let mut random = Random::new(3, 1);
        let mut measured = 0;
        let outcome = compare(
            speeds.len(),
            RULES,
            |candidate, round| {
                measured += 1;
                let machine = 1.0 + 0.5 * f64::from(round % 3 == 0);
                let own = 1.0 + noise * (random.below(2001) as f64 / 1000.0 - 1.0);
                Ok::<f64, Infallible>(speeds[candidate] * machine * own)
            },
            || true,
        );
        (outcome.unwrap(), measured)
    }

    #[test]
    fn comparison_finds_the_best_of_many_though_the_machine_changes() {
        let speeds = [100.0, 60.0, 90.0, 112.0, 30.0, 105.0, 80.0, 95.0];
        let (outcome, measured) = run(&speeds, 0.02);
        assert_eq!((outcome.winner, outcome.is_clear), (3, true));
        assert!(measured < 8 * 8, "the worse ones were dropped: {measured} measurements");
        let ratio = outcome.standings[3].against_incumbent.unwrap();
        assert!(ratio.low < 1.12 && 1.12 < ratio.high, "{ratio:?}");
        assert!(!outcome.standings[4].is_finalist && outcome.standings[4].scores.len() == 2);
    }

    #[test]
    fn comparison_without_a_difference_stays_with_the_incumbent() {
        let (outcome, _) = run(&[100.0, 100.0, 100.0], 0.004);
        assert_eq!((outcome.winner, outcome.is_clear), (0, true));
        let (outcome, _) = run(&[100.0, 100.5], 0.3);
        assert_eq!((outcome.winner, outcome.is_clear), (0, false));
    }

    /// Two nearly equal ones are both better than the incumbent: the choice does not matter.
    #[test]
    fn comparison_ends_when_nothing_that_matters_is_open() {
        let (outcome, measured) = run(&[100.0, 130.0, 131.0], 0.01);
        assert!(outcome.is_clear && outcome.winner != 0, "{outcome:?}");
        assert!(measured < 3 * 10, "{measured} measurements");
    }

    #[test]
    fn incumbent_stays_in_the_comparison_though_it_is_the_worst() {
        let (outcome, _) = run(&[10.0, 60.0, 90.0, 112.0, 30.0, 105.0], 0.02);
        assert!(outcome.standings[0].is_finalist);
        assert_eq!(outcome.winner, 3);
    }

    #[test]
    fn comparison_ends_early_when_time_is_over() {
        let mut rounds = 0;
        let score = |candidate: usize, round: usize| {
            rounds = rounds.max(round + 1);
            Ok::<f64, Infallible>(1.0 + 0.001 * (candidate + round) as f64)
        };
        let outcome = compare(9, RULES, score, || false).unwrap();
        assert_eq!((outcome.is_clear, rounds), (false, 2));
    }

    #[test]
    fn intervals_are_students() {
        let ratio = ratio(&[2.0, 2.0, 8.0], &[1.0, 1.0, 1.0]);
        // Logarithms: ln 2, ln 2, ln 8; mean 5/3 ln 2, deviation 2/sqrt(3) ln 2, t = 9.925.
        let half = 9.925 * (2.0 / 3f64.sqrt()) / 3f64.sqrt();
        assert!((ratio.mean.log2() - 5.0 / 3.0).abs() < 1e-9);
        assert!((ratio.high.log2() - (5.0 / 3.0 + half)).abs() < 1e-9, "{ratio:?}");
    }
}
