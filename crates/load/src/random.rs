//! Random numbers of a task: they depend on its seed only (SplitMix64).

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of a seed; each task of a program has its own `number`.
    #[must_use]
    pub fn new(seed: u64, number: u64) -> Self {
        Self(seed ^ number.wrapping_add(1).wrapping_mul(0xd134_2543_de82_ef95))
    }

    /// A number below `end`, each as likely as the others.
    ///
    /// # Panics
    /// When there is none.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0);
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        // The high half of a 128-bit product: no bias that a test could see.
        ((u128::from(z) * u128::from(end)) >> 64) as u64
    }
}
