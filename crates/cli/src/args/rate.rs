//! Options for the limits of an export's rate.

use std::num::NonZeroU64;
use std::time::Duration;

use blockyard::RateLimits;
use clap::Args;

use crate::size::parse_size;
use crate::time::parse_time;

/// The longest burst.
pub(crate) const BURST_MAX: Duration = Duration::from_secs(3600);

/// Limits of the rate.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits of the rate")]
pub(crate) struct RateArgs {
    /// At most this many requests per second, of all clients together; flushes are free
    #[arg(long, value_name = "N", value_parser = parse_iops)]
    iops_limit: Option<NonZeroU64>,

    /// At most this many bytes per second, of all clients together; discards are free
    #[arg(long, value_name = "SIZE", value_parser = parse_bps)]
    bps_limit: Option<NonZeroU64>,

    /// Time whose unused requests and bytes may be made up for at once, up to 1h [default: 100ms]
    #[arg(long, value_name = "TIME", value_parser = parse_burst)]
    burst: Option<Duration>,
}

impl RateArgs {
    /// Whether a limit or a burst is named.
    pub(crate) fn names_a_limit(&self) -> bool {
        self.iops_limit.is_some() || self.bps_limit.is_some() || self.has_burst()
    }

    pub(crate) fn has_burst(&self) -> bool {
        self.burst.is_some()
    }

    /// The limits.
    pub(crate) fn limits(&self) -> Result<RateLimits, String> {
        rate_limits(self.iops_limit, self.bps_limit, self.burst)
    }
}

/// Limits from options or from keys of a configuration.
pub(crate) fn rate_limits(
    iops: Option<NonZeroU64>,
    bytes_per_s: Option<NonZeroU64>,
    burst: Option<Duration>,
) -> Result<RateLimits, String> {
    let usual = RateLimits::default();
    let limits = RateLimits { iops, bytes_per_s, burst: burst.unwrap_or(usual.burst) };
    if limits.is_none() && burst.is_some() {
        return Err("a burst needs a limit of requests or of bytes beside it".into());
    }
    Ok(limits)
}

fn parse_iops(text: &str) -> Result<NonZeroU64, String> {
    text.parse().map_err(|_| "the limit is a number of requests per second, 1 or more".into())
}

fn parse_bps(text: &str) -> Result<NonZeroU64, String> {
    let none = "the limit is a number of bytes per second, 1 or more; to stop the I/O of a volume, \
                suspend it";
    NonZeroU64::new(parse_size(text)?).ok_or_else(|| none.into())
}

/// Parses and checks a burst.
pub(crate) fn parse_burst(text: &str) -> Result<Duration, String> {
    let burst = parse_time(text)?;
    (burst <= BURST_MAX).then_some(burst).ok_or_else(|| "a burst is at most 1h".into())
}
