//! Numbers behind the decisions, and effects over many requests. The decisions themselves are in
//! the golden traces.

mod random;
mod shares;
mod wf2q;

use super::*;
use crate::bio::{Bio, Op};
use crate::buf::BufRef;

/// A policy with these tunables and defaults for the others.
fn bfq(tunables: &[(&str, u64)], rotational: bool) -> Bfq {
    let value = |name: &str| {
        let given = tunables.iter().find(|(given, _)| *given == name);
        let default = || TUNABLES.iter().find(|tunable| tunable.name == name).unwrap().default;
        given.map_or_else(default, |(_, value)| *value)
    };
    let facts = Facts { rotational, nr_requests: 128, queue_depth: 32 };
    Bfq::new(Settings::new(value, facts))
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % limit
    }

    fn one_in(&mut self, limit: u64) -> bool {
        self.below(limit) == 0
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}

#[test]
fn slice_idle_has_two_names_and_strict_guarantees_a_least_one() {
    let idle_us = |tunables: &[(&str, u64)]| bfq(tunables, true).settings.slice_idle.0 / 1000;
    assert_eq!(idle_us(&[]), 8000);
    assert_eq!(idle_us(&[("slice_idle", 2)]), 2000);
    assert_eq!(idle_us(&[("slice_idle_us", 500)]), 500);
    assert_eq!(idle_us(&[("slice_idle_us", 0)]), 0);
    assert_eq!(idle_us(&[("slice_idle", 0), ("strict_guarantees", 1)]), 8000);
}
