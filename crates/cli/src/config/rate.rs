//! Limits of the rate in a configuration.
//!
//! ```toml
//! [exports.home]
//! volume = "home.img"
//! limit_group = "tenant"     # or iops_limit, bps_limit and burst of its own
//!
//! [limit_groups.tenant]      # shared by all exports of the group
//! iops_limit = 500
//! bps_limit = "100M"
//! burst = "2s"
//! ```

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use blockyard::RateLimits;
use serde::Deserialize;

use super::export::{ExportText, SizeText};
use super::{ExportSpec, of_key};
use crate::args::{parse_burst, rate_limits};
use crate::failure::{Failure, printable};

/// Limits of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RateSpec {
    /// Without limits.
    None,
    /// Its own.
    Own(RateLimits),
    /// Those of a group, with other exports.
    Group(String),
}

impl RateSpec {
    pub(crate) fn of(limits: RateLimits) -> Self {
        if limits.is_none() { Self::None } else { Self::Own(limits) }
    }
}

/// Limits that exports share.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GroupText {
    iops_limit: Option<NonZeroU64>,
    bps_limit: Option<SizeText>,
    burst: Option<String>,
}

impl GroupText {
    fn limits(&self) -> Result<RateLimits, Failure> {
        let none = || of_key("bps_limit", &"the limit is 1 or more".to_owned());
        let bytes = self.bps_limit.as_ref().map(SizeText::bytes).transpose()?;
        let bytes = bytes.map(|bytes| NonZeroU64::new(bytes).ok_or_else(none)).transpose()?;
        let burst = self.burst.as_deref().map(parse_burst).transpose();
        let burst = burst.map_err(|error| of_key("burst", &error))?;
        rate_limits(self.iops_limit, bytes, burst).map_err(|error| of_key("burst", &error))
    }
}

/// The groups of limits. Each has a limit, and an export.
pub(super) fn groups(
    texts: &BTreeMap<String, GroupText>,
    exports: &[ExportSpec],
    place: &str,
) -> Result<BTreeMap<String, RateLimits>, Failure> {
    let mut groups = BTreeMap::new();
    for (name, text) in texts {
        let at = format!("{place}: limit_groups.{}", printable(name));
        let limits = text.limits().map_err(|failure| failure.at(&at))?;
        if limits.is_none() {
            let problem = "the group has no limit; give `iops_limit` or `bps_limit`";
            return Err(Failure::failed(problem).at(&at));
        }
        groups.insert(name.clone(), limits);
    }
    for export in exports {
        let RateSpec::Group(group) = &export.rate else { continue };
        if !groups.contains_key(group) {
            let at = format!("{place}: exports.{}", printable(&export.name));
            let group = printable(group);
            let problem = format!("`limit_group`: there is no table [limit_groups.{group}]");
            return Err(Failure::failed(problem).at(at));
        }
    }
    Ok(groups)
}

impl ExportText {
    /// Its own limits, or the name of its group.
    pub(super) fn rate(&self) -> Result<RateSpec, Failure> {
        let Self { iops_limit, bps_limit, burst, limit_group, .. } = self;
        let has_own = iops_limit.is_some() || bps_limit.is_some() || burst.is_some();
        match limit_group {
            Some(_) if has_own => Err(Failure::failed(
                "an export has either `limit_group` or limits of its own (`iops_limit`, \
                 `bps_limit`, `burst`)",
            )),
            Some(group) => Ok(RateSpec::Group(group.clone())),
            None => {
                let bps_limit = bps_limit.clone();
                let own = GroupText { iops_limit: *iops_limit, bps_limit, burst: burst.clone() };
                Ok(RateSpec::of(own.limits()?))
            }
        }
    }
}
