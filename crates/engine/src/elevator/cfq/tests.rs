//! The numbers behind the decisions; the decisions themselves are in the golden traces.

mod random;

use super::*;
use crate::elevator::Facts;

/// A policy with these tunables, and the others at their defaults.
fn cfq(tunables: &[(&str, u64)], rotational: bool) -> Cfq {
    let value = |name: &str| {
        let given = tunables.iter().find(|(given, _)| *given == name);
        let default = || TUNABLES.iter().find(|tunable| tunable.name == name).unwrap().default;
        given.map_or_else(default, |(_, value)| *value)
    };
    let facts = Facts { rotational, nr_requests: 128, queue_depth: 32 };
    Cfq::new(Settings::new(value, facts))
}
