//! Points in time and durations in nanoseconds, on any clock of the world.
//!
//! The engine never reads a clock; a world passes the time in. Only differences have a meaning.

use core::ops::{Add, Sub};

/// Nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Milliseconds as nanoseconds; saturates.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// Time since `earlier`; zero if that is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// The last tick of a clock with this period: rounds down, like `jiffies` for the kernel's
    /// schedulers.
    #[must_use]
    pub fn tick_before(self, tick: Self) -> Self {
        assert!(tick.0 > 0);
        Self(self.0 - self.0 % tick.0)
    }
}

impl Add for Nanos {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Nanos {
    type Output = Self;

    /// # Panics
    /// When the result would be negative: see [`Nanos::since`].
    fn sub(self, other: Self) -> Self {
        Self(self.0.checked_sub(other.0).expect("a duration is not negative"))
    }
}
/// The earlier of two times, if there is one.
#[must_use]
pub fn earlier(one: Option<Nanos>, other: Option<Nanos>) -> Option<Nanos> {
    match (one, other) {
        (Some(one), Some(other)) if other < one => Some(other),
        (None, other) => other,
        (one, _) => one,
    }
}
