//! Latency of calls in tiotest's form: average, maximum, and counts of very long calls.

use blockyard_engine::time::Nanos;

/// Latencies of one kind of call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Number of calls.
    pub count: u64,
    /// Sum of all latencies.
    pub sum: Nanos,
    /// Greatest latency.
    pub max: Nanos,
    /// Number of calls that took longer than 2 s.
    pub over_2_s: u64,
    /// Number of calls that took longer than 10 s.
    pub over_10_s: u64,
}

impl Latency {
    /// Adds a call.
    pub fn record(&mut self, latency: Nanos) {
        self.count += 1;
        self.sum = self.sum + latency;
        self.max = self.max.max(latency);
        self.over_2_s += u64::from(latency > Nanos::from_ms(2_000));
        self.over_10_s += u64::from(latency > Nanos::from_ms(10_000));
    }

    /// Adds the calls of another record.
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.sum = self.sum + other.sum;
        self.max = self.max.max(other.max);
        self.over_2_s += other.over_2_s;
        self.over_10_s += other.over_10_s;
    }

    /// Average in milliseconds; zero without calls.
    #[must_use]
    pub fn average_ms(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum.0 as f64 / 1e6 / self.count as f64 }
    }

    /// Number of calls in percent of all calls.
    #[must_use]
    pub fn percent(&self, calls: u64) -> f64 {
        if self.count == 0 { 0.0 } else { calls as f64 * 100.0 / self.count as f64 }
    }
}
