//! Limits of the rate of exports.

use std::num::NonZeroU64;
use std::time::Duration;

use blockyard_engine::throttle::{BURST_MAX, BURST_USUAL, Limits};
use blockyard_engine::time::Nanos;

/// Limits of an export's rate, or of all exports of a group together: requests of all clients
/// count. A request without tokens waits in front of the queue. Flushes never wait.
///
/// A token bucket holds the tokens of the burst time. A request may start while its bucket has no
/// debt, so a single long request is not refused; later ones pay for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimits {
    /// Requests per second that read, write, zero or discard.
    pub iops: Option<NonZeroU64>,
    /// Bytes per second that are read, written or zeroed. Discards have none.
    pub bytes_per_s: Option<NonZeroU64>,
    /// Time whose unused tokens are kept: at most an hour.
    pub burst: Duration,
}

impl Default for RateLimits {
    fn default() -> Self {
        Self { iops: None, bytes_per_s: None, burst: Duration::from_nanos(BURST_USUAL.0) }
    }
}

impl RateLimits {
    /// Whether nothing is limited.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.iops.is_none() && self.bytes_per_s.is_none()
    }
}

impl From<RateLimits> for Limits {
    fn from(RateLimits { iops, bytes_per_s, burst }: RateLimits) -> Self {
        let burst = Nanos(u64::try_from(burst.as_nanos()).unwrap_or(u64::MAX));
        Self { iops, bytes_per_s, burst: burst.min(BURST_MAX) }
    }
}
