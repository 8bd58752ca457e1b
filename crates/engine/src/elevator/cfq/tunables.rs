//! Tunables: the names and units of `/sys/block/*/queue/iosched`, and two of our own.

use super::super::nearest::BackwardReach;
use super::super::{Facts, Tunable};
use crate::time::Nanos;

/// Default, minimum and maximum, as in `blockyard elevators`.
pub(super) static TUNABLES: &[Tunable] = &[
    tunable("quantum", [8, 1, 1024], "", "requests in flight per queue while others wait"),
    tunable("fifo_expire_sync", [125, 1, 600_000], "ms", "expiry of a synchronous request"),
    tunable("fifo_expire_async", [250, 1, 600_000], "ms", "expiry of an asynchronous request"),
    tunable("back_seek_max", [16_384, 0, 0xffff_ffff], "KiB", "greatest backward seek of the head"),
    tunable("back_seek_penalty", [2, 1, 1000], "", "cost factor of a backward seek"),
    tunable("slice_sync", [100, 1, 10_000], "ms", "slice of a synchronous queue at level 4"),
    tunable("slice_async", [40, 1, 10_000], "ms", "slice of an asynchronous queue at level 4"),
    tunable("slice_async_rq", [2, 1, 1000], "", "times 2(8 - level): requests of such a slice"),
    tunable("slice_idle", [8, 0, 1000], "ms", "wait for a queue's next request; 0: never"),
    tunable("low_latency", [1, 0, 1], "", "1: shorter slices under contention, less writeback"),
    tunable(
        "target_latency",
        [300, 1, 10_000],
        "ms",
        "time for one slice of every synchronous queue",
    ),
    tunable("service_trees", [1, 0, 1], "", "0: one tree per class, as in 2.6.30 (own tunable)"),
    tunable(
        "starved_after",
        [2000, 0, 600_000],
        "ms",
        "overdue slice that blocks preemption; 0: none (own tunable)",
    ),
];

const fn tunable(
    name: &'static str,
    [default, min, max]: [u64; 3],
    unit: &'static str,
    about: &'static str,
) -> Tunable {
    Tunable { name, default, min, max, unit, about }
}

/// Values in the units of the decisions, and facts about the device.
// 13 fields: one for each tunable, backward seeks together, and a fact about the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) quantum: u32,
    pub(super) fifo_expire_sync: Nanos,
    pub(super) fifo_expire_async: Nanos,
    pub(super) backward: BackwardReach,
    pub(super) slice_sync: Nanos,
    pub(super) slice_async: Nanos,
    pub(super) slice_async_rq: u32,
    pub(super) slice_idle: Nanos,
    pub(super) low_latency: bool,
    pub(super) target_latency: Nanos,
    pub(super) service_trees: bool,
    pub(super) starved_after: Option<Nanos>,
    pub(super) rotational: bool,
}

impl Settings {
    /// Reads all values; `value` gives each tunable by its name.
    pub(super) fn new(value: impl Fn(&str) -> u64, facts: Facts) -> Self {
        let ms = |name| Nanos::from_ms(value(name));
        let count = |name| u32::try_from(value(name)).expect("its range is below 2^32");
        let on = |name| value(name) == 1;
        Self {
            quantum: count("quantum"),
            fifo_expire_sync: ms("fifo_expire_sync"),
            fifo_expire_async: ms("fifo_expire_async"),
            backward: BackwardReach {
                max_sectors: value("back_seek_max") * 2,
                penalty: value("back_seek_penalty"),
            },
            slice_sync: ms("slice_sync"),
            slice_async: ms("slice_async"),
            slice_async_rq: count("slice_async_rq"),
            slice_idle: ms("slice_idle"),
            low_latency: on("low_latency"),
            target_latency: ms("target_latency"),
            service_trees: on("service_trees"),
            starved_after: Some(ms("starved_after")).filter(|limit| limit.0 > 0),
            rotational: facts.rotational,
        }
    }

    /// Time after which a request is overdue.
    pub(super) fn fifo_expire(&self, sync: bool) -> Nanos {
        if sync { self.fifo_expire_sync } else { self.fifo_expire_async }
    }
}
