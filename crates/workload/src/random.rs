//! Random numbers that depend on a seed only (SplitMix64).
//!
//! Each task and each model of the simulator has its own stream. So a task that draws more often
//! leaves the numbers of the others unchanged.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream `number` of a seed; each task of a program has its own number.
    #[must_use]
    pub fn new(seed: u64, number: u64) -> Self {
        Self(seed ^ number.wrapping_add(1).wrapping_mul(0xd134_2543_de82_ef95))
    }

    /// A uniformly distributed number below `end`.
    ///
    /// # Panics
    /// When `end` is zero.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0);
        // The high half of a 128-bit product: no bias that a test could see.
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// Any 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_evenly_and_streams_differ() {
        let mut random = Random::new(1, 0);
        let mut counts = [0u32; 10];
        (0..100_000).for_each(|_| counts[random.below(10) as usize] += 1);
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
        let draw = |seed, number| Random::new(seed, number).below(u64::MAX);
        assert_ne!(draw(1, 1), draw(1, 2));
        assert_eq!(draw(7, 3), draw(7, 3));
    }
}
