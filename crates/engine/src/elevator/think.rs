//! Think time of a client under `cfq` and `bfq`: its pause between an answer and its next request.

use crate::time::Nanos;

/// Weight of the samples from which a mean is valid; the third sample reaches it (`sample_valid`).
const WEIGHT_VALID: u64 = 80;
/// Fixed-point one.
const ONE: u64 = 256;

/// Mean think time: from the end of one request to the next one, over about eight samples
/// (`cfq_ttime`, `bfq_ttime`).
#[derive(Clone, Copy, Debug, Default)]
pub struct ThinkTime {
    last_end: Option<Nanos>,
    weight: u64,
    total: u64,
}

impl ThinkTime {
    /// Notes the end of a request.
    pub fn ended(&mut self, now: Nanos) {
        self.last_end = Some(now);
    }

    /// Notes the next request. A sample is limited to twice `slice_idle`.
    pub fn came(&mut self, now: Nanos, slice_idle: Nanos) {
        let pause = self.last_end.map_or(Nanos(0), |end| now.since(end));
        let pause = pause.min(Nanos(2 * slice_idle.0));
        self.weight = (7 * self.weight + ONE) / 8;
        self.total = (7 * self.total + ONE * pause.0) / 8;
    }

    /// Whether the mean exceeds `limit`; `None` without enough samples. Multiplication instead of
    /// division, because the check runs for each request.
    #[must_use]
    pub fn is_longer_than(&self, limit: Nanos) -> Option<bool> {
        let is_longer = self.total > limit.0.saturating_mul(self.weight);
        (self.weight > WEIGHT_VALID).then_some(is_longer)
    }
}
