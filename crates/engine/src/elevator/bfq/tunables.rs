//! Tunables: the names and units of `/sys/block/*/queue/iosched`.

use super::super::nearest::BackwardReach;
use super::super::{Facts, Tunable};
use crate::time::Nanos;

/// Default of `slice_idle`, in its unit and in that of `slice_idle_us`.
const SLICE_IDLE_MS: u64 = 8;
const SLICE_IDLE_US: u64 = SLICE_IDLE_MS * 1000;

/// Default, minimum and maximum, as in `blockyard elevators`.
pub(super) static TUNABLES: &[Tunable] = &[
    tunable("fifo_expire_sync", [125, 1, 600_000], "ms", "expiry of a synchronous request"),
    tunable("fifo_expire_async", [250, 1, 600_000], "ms", "expiry of an asynchronous request"),
    tunable("back_seek_max", [16_384, 0, 0xffff_ffff], "KiB", "greatest backward seek of the head"),
    tunable("back_seek_penalty", [2, 1, 1000], "", "cost factor of a backward seek"),
    tunable(
        "slice_idle",
        [SLICE_IDLE_MS, 0, 1000],
        "ms",
        "wait for a queue's next request; 0: never",
    ),
    tunable(
        "slice_idle_us",
        [SLICE_IDLE_US, 0, 1_000_000],
        "us",
        "slice_idle in microseconds; holds if it is not 8000",
    ),
    tunable("max_budget", [0, 0, 0x7fff_ffff], "sectors", "largest budget; 0: from the peak rate"),
    tunable("timeout_sync", [125, 1, 600_000], "ms", "longest turn of a queue"),
    tunable("strict_guarantees", [0, 0, 1], "", "1: one request at a time, and always idling"),
    tunable("low_latency", [1, 0, 1], "", "1: more weight for interactive and soft real time"),
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
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) fifo_expire_sync: Nanos,
    pub(super) fifo_expire_async: Nanos,
    pub(super) backward: BackwardReach,
    pub(super) slice_idle: Nanos,
    pub(super) max_budget: Option<u64>,
    pub(super) timeout: Nanos,
    pub(super) strict_guarantees: bool,
    pub(super) low_latency: bool,
    pub(super) rotational: bool,
}

impl Settings {
    /// Reads all values; `value` gives each tunable by its name.
    pub(super) fn new(value: impl Fn(&str) -> u64, facts: Facts) -> Self {
        let ms = |name| Nanos::from_ms(value(name));
        let slice_idle = match value("slice_idle_us") {
            SLICE_IDLE_US => ms("slice_idle"),
            us => Nanos(us * 1000),
        };
        let strict_guarantees = value("strict_guarantees") == 1;
        let least = Nanos::from_ms(if strict_guarantees { SLICE_IDLE_MS } else { 0 });
        Self {
            fifo_expire_sync: ms("fifo_expire_sync"),
            fifo_expire_async: ms("fifo_expire_async"),
            backward: BackwardReach {
                max_sectors: value("back_seek_max") * 2,
                penalty: value("back_seek_penalty"),
            },
            slice_idle: slice_idle.max(least),
            max_budget: Some(value("max_budget")).filter(|sectors| *sectors > 0),
            timeout: ms("timeout_sync"),
            strict_guarantees,
            low_latency: value("low_latency") == 1,
            rotational: facts.rotational,
        }
    }

    /// Time after which a request is overdue.
    pub(super) fn fifo_expire(&self, sync: bool) -> Nanos {
        if sync { self.fifo_expire_sync } else { self.fifo_expire_async }
    }
}
