//! Which block is next: in order, or in a random order that has each block once.
//!
//! fio marks the blocks that it has had in a bitmap. Here the order is a permutation that is
//! computed: a Feistel network over the next power of four, walked until it lands inside. It needs
//! no memory and no search.

use crate::random::Random;

/// Enough that neighbours do not stay neighbours; a test looks.
const ROUNDS: usize = 6;

/// The blocks of a region, pass after pass.
#[derive(Clone, Debug)]
pub(crate) struct Offsets {
    blocks: u64,
    /// Place in the pass.
    next: u64,
    order: Order,
}

#[derive(Clone, Debug)]
enum Order {
    Sequential,
    /// Each once a pass.
    Permuted(Random, Permutation),
    /// Whatever comes.
    Drawn(Random),
}

impl Offsets {
    pub(crate) fn in_order(blocks: u64) -> Self {
        Self { blocks, next: 0, order: Order::Sequential }
    }

    pub(crate) fn at_random(blocks: u64, mut random: Random) -> Self {
        let permutation = Permutation::draw(blocks, &mut random);
        Self { blocks, next: 0, order: Order::Permuted(random, permutation) }
    }

    pub(crate) fn drawn(blocks: u64, random: Random) -> Self {
        Self { blocks, next: 0, order: Order::Drawn(random) }
    }

    /// The next block. A pass follows the other; each has a random order of its own.
    pub(crate) fn next(&mut self) -> u64 {
        if self.next == self.blocks {
            self.next = 0;
            if let Order::Permuted(random, permutation) = &mut self.order {
                *permutation = Permutation::draw(self.blocks, random);
            }
        }
        let place = self.next;
        self.next += 1;
        match &mut self.order {
            Order::Sequential => place,
            Order::Permuted(_, permutation) => permutation.at(place),
            Order::Drawn(random) => random.below(self.blocks),
        }
    }
}

/// A permutation of `0..blocks`.
#[derive(Clone, Debug)]
struct Permutation {
    blocks: u64,
    /// Bits of each half.
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    fn draw(blocks: u64, random: &mut Random) -> Self {
        let bits = (blocks - 1).checked_ilog2().map_or(0, |highest| highest + 1);
        let keys = [(); ROUNDS].map(|()| random.below(u64::MAX));
        Self { blocks, half_bits: bits.div_ceil(2).max(1), keys }
    }

    /// Where a place of the pass lies. The network permutes less than four times as many numbers as
    /// there are blocks, so a few steps lead inside.
    fn at(&self, place: u64) -> u64 {
        let mut number = self.scramble(place);
        while number >= self.blocks {
            number = self.scramble(number);
        }
        number
    }

    fn scramble(&self, number: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        for key in self.keys {
            let mixed = (right ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (left, right) = (right, left ^ (mixed >> (64 - self.half_bits)));
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(offsets: &mut Offsets, blocks: u64) -> Vec<u64> {
        (0..blocks).map(|_| offsets.next()).collect()
    }

    #[test]
    fn random_order_has_each_block_once_a_pass_and_differs_from_pass_to_pass() {
        for blocks in [1, 2, 3, 5, 16, 17, 256, 1000, 4097] {
            let mut offsets = Offsets::at_random(blocks, Random::new(7, 0));
            let (first, second) = (pass(&mut offsets, blocks), pass(&mut offsets, blocks));
            for pass in [&first, &second] {
                let mut sorted = pass.clone();
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..blocks), "{blocks}: {pass:?}");
            }
            assert!(blocks < 16 || first != second);
        }
    }

    #[test]
    fn random_order_jumps_as_far_as_chance_would() {
        let blocks = 10_000;
        for seed in 0..20 {
            let order = pass(&mut Offsets::at_random(blocks, Random::new(seed, 0)), blocks);
            let jumps = order.windows(2).map(|pair| pair[0].abs_diff(pair[1]));
            let mean = jumps.sum::<u64>() / (blocks - 1);
            assert!((3100..3570).contains(&mean), "a third of all blocks: {mean}");
            let ascents = order.windows(2).filter(|pair| pair[0] < pair[1]).count();
            assert!((4700..5300).contains(&ascents), "half: {ascents}");
        }
    }

    #[test]
    fn blocks_in_order_start_again_at_the_end() {
        assert_eq!(pass(&mut Offsets::in_order(3), 5), [0, 1, 2, 0, 1]);
    }
}
