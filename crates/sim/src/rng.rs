//! Random numbers that depend on a seed and on nothing else (SplitMix64).
//!
//! Each model takes a stream of its own, so that one that draws more often does not change what
//! the others see.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream with this number of a seed.
    #[must_use]
    pub fn stream(seed: u64, number: u64) -> Self {
        let mut rng = Self(seed ^ number.wrapping_mul(0xd134_2543_de82_ef95));
        rng.word();
        rng
    }

    /// 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, each as likely as the others.
    ///
    /// # Panics
    /// When there is none.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0);
        // The high half of a 128-bit product; its bias is below 2^-64 times `end`.
        ((u128::from(self.word()) * u128::from(end)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_evenly_and_streams_differ() {
        let mut rng = Rng::stream(1, 0);
        let mut counts = [0u32; 10];
        (0..100_000).for_each(|_| counts[rng.below(10) as usize] += 1);
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
        assert_ne!(Rng::stream(1, 1).word(), Rng::stream(1, 2).word());
        assert_eq!(Rng::stream(7, 3).word(), Rng::stream(7, 3).word());
    }
}
