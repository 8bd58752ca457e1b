//! Length and offset of a slice, both by priority level.
//!
//! ```text
//!   level        0    1    2    3    4    5    6    7
//!   sync, ms   180  160  140  120  100   80   60   40      base + base / 5 · (4 - level)
//!   async, ms   72   64   56   48   40   32   24   16
//!   requests    32   28   24   20   16   12    8    4      of an asynchronous turn
//! ```

use super::Cfq;
use super::queue::{Cfqq, CfqqId};
use super::tunables::Settings;
use crate::priority::Priority;
use crate::time::Nanos;

impl Settings {
    /// Slice of a level, before `low_latency`.
    pub(super) fn slice(&self, sync: bool, level: u8) -> Nanos {
        debug_assert!(level <= Priority::LEVEL_MAX);
        let base = if sync { self.slice_sync } else { self.slice_async };
        Nanos(base.0 / 5 * (9 - u64::from(level)))
    }

    /// Requests per slice that an asynchronous queue may dispatch while others wait
    /// (`cfq_prio_to_maxrq`).
    pub(super) fn async_quota(&self, level: u8) -> u32 {
        2 * self.slice_async_rq * (8 - u32::from(level))
    }
}

impl Cfq {
    /// Delay of a queue's slice: the difference to the longest slice, once per other queue
    /// (`cfq_slice_offset`).
    pub(super) fn slice_offset(&self, queue: &Cfqq) -> Nanos {
        let others = u64::from(self.service.busy.saturating_sub(1));
        let longest = self.settings.slice(queue.sync, 0);
        let own = self.settings.slice(queue.sync, queue.priority.level);
        Nanos(others * (longest - own).0)
    }

    /// Current slice of a queue. With `low_latency`, if a round of the synchronous queues would
    /// exceed `target_latency`, slices shrink in proportion, but not below twice `slice_idle`
    /// scaled by level (`cfq_scaled_cfqq_slice`; details \[M\]).
    pub(super) fn scaled_slice(&mut self, id: CfqqId) -> Nanos {
        let Cfqq { sync, priority, .. } = *self.queue(id);
        let settings = &self.settings;
        let slice = settings.slice(sync, priority.level);
        if !settings.low_latency {
            return slice;
        }
        let sync_slice = settings.slice_sync;
        let target = settings.target_latency;
        let idle = settings.slice_idle;
        let round = Nanos(sync_slice.0 * self.service.average_busy(priority.class));
        if round <= target {
            return slice;
        }
        let least = slice.min(scale(slice, 2 * idle.0, sync_slice.0));
        scale(slice, target.0, round.0).max(least)
    }
}

/// `time · numerator / denominator`, rounded down.
pub(super) fn scale(time: Nanos, numerator: u64, denominator: u64) -> Nanos {
    if let Some(product) = time.0.checked_mul(numerator) {
        return Nanos(product / denominator); // the usual case; wide divisions are slow
    }
    let scaled = u128::from(time.0) * u128::from(numerator) / u128::from(denominator);
    Nanos(u64::try_from(scaled).unwrap_or(u64::MAX))
}
