//! Points in time and durations: nanoseconds on whatever clock the world has.
//!
//! The engine never asks for the time; a world passes it in. Only differences have a meaning.

use core::ops::{Add, Sub};

/// Nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Milliseconds as nanoseconds, at most the largest value.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// Time from `earlier` to this one; zero if that lies behind it.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// The last tick of a clock that advances every `tick`: rounds down. What the kernel's
    /// schedulers see of the time is `jiffies`.
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
