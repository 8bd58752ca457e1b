//! Distribution of random offsets: `random_distribution`.
//!
//! Zipf's law as in Gray and others, "Quickly generating billion-record synthetic databases"
//! (SIGMOD 1994): the rank of a draw is computed from a sum over all ranks, which is made once. A
//! hash spreads the ranks over the region, so that several can fall on one block, as in fio.
//! `normal` has its centre in the middle. fio's `zoned` and `zoned_abs` give parts of the region a
//! share of the requests each.

use crate::random::Random;

/// Number of ranks whose weights are summed exactly; more would not change the visible digits. From
/// fio.
const ZIPF_RANKS_MAX: u64 = 10_000_000;
/// Ranks whose weights are added one by one.
const ZIPF_RANKS_SUMMED: u64 = 1000;

/// A part of the region with its share of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Share of the requests in percent.
    pub requests_percent: u32,
    /// Length of the part.
    pub len: ZoneLen,
}

/// Length of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneLen {
    /// In percent of the region.
    Percent(u32),
    /// In bytes.
    Bytes(u64),
}

/// Distribution of random offsets. Parameters are thousandths, so that jobs can be compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Distribution {
    /// `random`: all blocks with equal probability.
    #[default]
    Uniform,
    /// `zipf:THETA`: the block of rank n is n^-theta times as likely as the first.
    Zipf(u32),
    /// `pareto:H`: a share `h` of the blocks gets `1 - h` of the requests.
    Pareto(u32),
    /// `normal:DEV`: around the middle, with a deviation in percent of the region.
    Normal(u32),
    /// `zoned`, `zoned_abs`: the zones in order.
    Zoned(Vec<Zone>),
}

/// A stream of blocks `0..blocks`.
#[derive(Clone, Debug)]
pub(super) struct Draw {
    blocks: u64,
    random: Random,
    /// Block of rank 0.
    first: u64,
    shape: Shape,
}

#[derive(Clone, Debug)]
enum Shape {
    Uniform,
    Zipf {
        theta: f64,
        zeta: f64,
        alpha: f64,
        eta: f64,
    },
    Pareto {
        power: f64,
    },
    Normal {
        deviation: f64,
    },
    /// For each percent of the requests, start and length of its zone.
    Zoned(Vec<(u64, u64)>),
}

impl Draw {
    pub(super) fn new(
        distribution: &Distribution,
        blocks: u64,
        block_bytes: u64,
        mut random: Random,
    ) -> Self {
        let part = |thousandths: u32| f64::from(thousandths) / 1000.0;
        let shape = match distribution {
            Distribution::Uniform => Shape::Uniform,
            Distribution::Zipf(theta) => zipf(part(*theta), blocks),
            Distribution::Pareto(h) => {
                Shape::Pareto { power: part(*h).ln() / (1.0 - part(*h)).ln() }
            }
            Distribution::Normal(deviation) => {
                let blocks = blocks as f64;
                let deviation = (part(*deviation) * blocks / 100.0).ceil();
                Shape::Normal { deviation: deviation.min(blocks / 2.0) }
            }
            Distribution::Zoned(zones) => Shape::Zoned(table(zones, blocks, block_bytes)),
        };
        let is_spread = matches!(shape, Shape::Zipf { .. } | Shape::Pareto { .. });
        let first = if is_spread { random.below(blocks) } else { 0 };
        Self { blocks, random, first, shape }
    }

    pub(super) fn next(&mut self) -> u64 {
        let unit = |random: &mut Random| random.below(1 << 53) as f64 / (1u64 << 53) as f64;
        match &self.shape {
            Shape::Uniform => self.random.below(self.blocks),
            Shape::Zipf { theta, zeta, alpha, eta } => {
                let lot = unit(&mut self.random);
                let rank = match lot * zeta {
                    ..1.0 => 0,
                    part if part < 1.0 + 0.5f64.powf(*theta) => 1,
                    _ => (self.blocks as f64 * (eta * lot - eta + 1.0).powf(*alpha)) as u64,
                };
                self.spread(rank)
            }
            Shape::Pareto { power } => {
                let lot = unit(&mut self.random);
                let rank = (self.blocks - 1) as f64 * lot.powf(*power);
                self.spread(rank as u64)
            }
            Shape::Normal { deviation } => {
                // The sum of twelve uniform numbers has a deviation of one.
                let sum: f64 = (0..12).map(|_| unit(&mut self.random)).sum();
                let at = self.blocks as f64 / 2.0 + (sum - 6.0) * deviation;
                (at.max(0.0) as u64).min(self.blocks - 1)
            }
            Shape::Zoned(table) => {
                let (start, len) = table[self.random.below(table.len() as u64) as usize];
                start + self.random.below(len)
            }
        }
    }

    /// The block of a rank: scattered but fixed. The factor is odd, as in fio, so no two ranks
    /// share a block if the number of blocks is a power of two; otherwise some do.
    fn spread(&self, rank: u64) -> u64 {
        let mixed = u128::from(rank.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let place = (mixed + u128::from(self.first)) % u128::from(self.blocks);
        place as u64
    }
}

fn zipf(theta: f64, blocks: u64) -> Shape {
    let zeta = zeta(theta, blocks.min(ZIPF_RANKS_MAX));
    let zeta_2 = 1.0 + 2.0_f64.powf(-theta);
    let eta = (1.0 - (2.0 / blocks as f64).powf(1.0 - theta)) / (1.0 - zeta_2 / zeta);
    Shape::Zipf { theta, zeta, alpha: 1.0 / (1.0 - theta), eta }
}

/// Sum of the weights of all ranks, for a theta other than 1: the first ones one by one, and the
/// rest by the formula of Euler and Maclaurin, whose next term is below 1e-12 here. A job file with
/// many clones would otherwise take seconds to start.
fn zeta(theta: f64, ranks: u64) -> f64 {
    let weight = |rank: u64| (rank as f64).powf(-theta);
    let first: f64 = (1..=ranks.min(ZIPF_RANKS_SUMMED)).map(weight).sum();
    if ranks <= ZIPF_RANKS_SUMMED {
        return first;
    }
    let [from, to] = [ZIPF_RANKS_SUMMED as f64, ranks as f64];
    let integral = (to.powf(1.0 - theta) - from.powf(1.0 - theta)) / (1.0 - theta);
    let ends = (to.powf(-theta) - from.powf(-theta)) / 2.0;
    let slopes = theta / 12.0 * (from.powf(-theta - 1.0) - to.powf(-theta - 1.0));
    first + integral + ends + slopes
}

/// The zone of each percent of the requests. A zone shorter than a block gets one block.
fn table(zones: &[Zone], blocks: u64, block_bytes: u64) -> Vec<(u64, u64)> {
    let mut table = Vec::new();
    let mut start = 0u64;
    for zone in zones {
        let len = match zone.len {
            ZoneLen::Percent(percent) => (u128::from(blocks) * u128::from(percent) / 100) as u64,
            ZoneLen::Bytes(bytes) => bytes / block_bytes,
        };
        let first = start.min(blocks - 1);
        let len = len.clamp(1, blocks - first);
        (0..zone.requests_percent).for_each(|_| table.push((first, len)));
        start = first + len;
    }
    table
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const BLOCKS: u64 = 10_000;
    const DRAWS: u32 = 100_000;

    fn counts(distribution: &Distribution) -> BTreeMap<u64, u32> {
        let mut draw = Draw::new(distribution, BLOCKS, 4096, Random::new(5, 0));
        let mut counts = BTreeMap::new();
        (0..DRAWS).for_each(|_| *counts.entry(draw.next()).or_insert(0) += 1);
        assert!(counts.keys().all(|block| *block < BLOCKS));
        counts
    }

    /// Share of the requests in the hottest `blocks` blocks.
    fn hot(counts: &BTreeMap<u64, u32>, blocks: usize) -> f64 {
        let mut counts: Vec<u32> = counts.values().copied().collect();
        counts.sort_unstable_by(|one, other| other.cmp(one));
        f64::from(counts.iter().take(blocks).sum::<u32>()) / f64::from(DRAWS)
    }

    #[test]
    fn sum_of_the_weights_is_that_of_each_one() {
        for theta in [0.001, 0.5, 0.999, 1.001, 1.2, 2.0, 9.999] {
            for ranks in [1_u32, 2, 999, 1000, 1001, 1_000_000] {
                let each: f64 = (1..=ranks).map(|rank| f64::from(rank).powf(-theta)).sum();
                let error = zeta(theta, u64::from(ranks)) / each - 1.0;
                assert!(error.abs() < 1e-10, "{theta} {ranks}: {error}");
            }
        }
    }

    #[test]
    fn zipf_and_pareto_have_the_hot_blocks_that_their_laws_say() {
        // Of 10000 ranks with theta 1.2, the first ten have 0.57 of all draws.
        let share = hot(&counts(&Distribution::Zipf(1200)), 10);
        assert!((0.52..0.62).contains(&share), "{share}");
        // A fifth of the ranks has four fifths of the requests; some ranks share a block.
        let share = hot(&counts(&Distribution::Pareto(200)), 2000);
        assert!((0.78..0.90).contains(&share), "{share}");
        let share = hot(&counts(&Distribution::Uniform), 2000);
        assert!(share < 0.32, "{share}");
    }

    #[test]
    fn normal_is_around_the_middle() {
        let counts = counts(&Distribution::Normal(10_000));
        let within: u32 = counts.range(4000..6000).map(|(_, count)| count).sum();
        let share = f64::from(within) / f64::from(DRAWS);
        assert!((0.67..0.70).contains(&share), "within one deviation: {share}");
    }

    #[test]
    fn zones_have_their_shares_of_requests_and_blocks() {
        let zone =
            |requests_percent, percent| Zone { requests_percent, len: ZoneLen::Percent(percent) };
        let counts = counts(&Distribution::Zoned(vec![zone(50, 5), zone(30, 15), zone(20, 80)]));
        let part = |range| counts.range::<u64, _>(range).map(|(_, count)| count).sum::<u32>();
        assert!((49_000..51_000).contains(&part(0..500)));
        assert!((29_000..31_000).contains(&part(500..2000)));
        let bytes = vec![Zone { requests_percent: 100, len: ZoneLen::Bytes(8192) }];
        let mut draw = Draw::new(&Distribution::Zoned(bytes), 1, 4096, Random::new(5, 0));
        assert_eq!(draw.next(), 0, "a zone that is longer than the region is the region");
    }
}
