//! How many requests of a queue may be in flight, and whether the device takes several at a time.
//!
//! A device that queues would let one queue fill it up, and synchronous requests would wait behind
//! that: so a queue gets `quantum` at most while others want a turn, asynchronous requests wait
//! until no synchronous one is in flight, and are let in gradually after a synchronous one was
//! served late.

use super::Cfq;
use super::queue::CfqqId;
use crate::time::Nanos;

/// In flight at a time, so many show that the device queues (`CFQ_HW_QUEUE_MIN`).
const QUEUES_FROM: u32 = 5;
/// Completions under load that are watched for it.
const SAMPLES: u32 = 50;

/// As if so much time had passed, until a synchronous request is late for the first time \[M\].
const CALM_AT_FIRST: Nanos = Nanos::from_ms(1000);

/// Whether the device takes several requests at a time (`hw_tag`).
#[derive(Debug, Default)]
pub(super) struct Hardware {
    /// Not known yet: taken for one that does, which finds out sooner \[M\].
    takes_several: Option<bool>,
    depth_seen: u32,
    samples: u32,
}

impl Hardware {
    pub(super) fn queues(&self) -> bool {
        self.takes_several.unwrap_or(true)
    }

    #[cfg(test)]
    pub(super) fn takes_several(&self) -> Option<bool> {
        self.takes_several
    }
}

impl Cfq {
    /// Learns from the requests in flight when one ends (`cfq_update_hw_tag`).
    pub(super) fn watch_hardware(&mut self) {
        if self.hardware.takes_several == Some(true) {
            return; // it does not forget how
        }
        let in_device = self.in_flight[0] + self.in_flight[1];
        let in_device = in_device.saturating_sub(self.requeued);
        // The active queue is waited for and has little to do: that is no fault of the device.
        let starved_by_us = self.active.as_ref().is_some_and(|slice| {
            let queue = self.queue(slice.queue);
            let has = queue.dispatched as usize + queue.len();
            queue.idle_window && has < QUEUES_FROM as usize && in_device < QUEUES_FROM
        });
        let hardware = &mut self.hardware;
        hardware.depth_seen = hardware.depth_seen.max(in_device);
        let has_load = self.waiting > QUEUES_FROM as usize || in_device > QUEUES_FROM;
        if !has_load || starved_by_us {
            return;
        }
        if hardware.samples < SAMPLES {
            hardware.samples += 1;
            return;
        }
        hardware.takes_several = Some(hardware.depth_seen >= QUEUES_FROM);
    }

    /// Whether the active queue may have one more in flight (`cfq_may_dispatch`). If not, something
    /// is in flight.
    pub(super) fn may_dispatch(&self, now: Nanos, id: CfqqId) -> bool {
        let queue = self.queue(id);
        let [in_flight_async, in_flight_sync] = self.in_flight;
        if in_flight_async > 0 && self.should_idle(queue) {
            return false; // writeback drains before a queue has the disk for itself
        }
        if in_flight_sync > 0 && !queue.sync {
            return false;
        }
        if !queue.sync && self.settings.low_latency && !self.ramp_allows(now, queue.dispatched) {
            return false;
        }
        self.contended_limit(now, id).is_none_or(|limit| queue.dispatched < limit)
    }

    /// The limit that other queues impose.
    fn contended_limit(&self, now: Nanos, id: CfqqId) -> Option<u32> {
        let queue = self.queue(id);
        if queue.is_idle_class() {
            return Some(1);
        }
        let throttled = (self.settings.quantum / 2).max(1);
        if queue.dispatched < throttled {
            return Some(throttled);
        }
        let is_only_sync = queue.sync && self.service.busy_sync == 1;
        if self.service.busy == 1 || is_only_sync {
            None
        } else if self.is_used_soon(now, queue.dispatched) {
            Some(throttled)
        } else {
            Some(self.settings.quantum)
        }
    }

    /// Whether the slice will be over when what is in flight has ended, at `slice_idle` each.
    /// Before the first completion that is not known, and supposed.
    fn is_used_soon(&self, now: Nanos, dispatched: u32) -> bool {
        let end = self.active.as_ref().and_then(|slice| slice.end);
        let ahead = Nanos(self.settings.slice_idle.0 * u64::from(dispatched));
        end.is_none_or(|end| now + ahead > end)
    }

    /// One asynchronous request per `slice_sync` that has passed since a synchronous one was served
    /// late; the first in any case. Multiplied, not divided: this is asked for each request.
    fn ramp_allows(&self, now: Nanos, dispatched: u32) -> bool {
        let calm = self.last_delayed_sync.map_or(CALM_AT_FIRST, |last| now.since(last));
        let needed = (u64::from(dispatched) + 1).saturating_mul(self.settings.slice_sync.0);
        dispatched == 0 || needed <= calm.0
    }
}
