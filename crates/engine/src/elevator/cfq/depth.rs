//! Limit of a queue's requests in flight, and detection of device queueing.
//!
//! A device with a queue could be filled by one cfq queue, and synchronous requests would wait
//! behind it. So a queue gets at most `quantum` while other queues wait. Asynchronous requests wait
//! until no synchronous one is in flight, and ramp up gradually after a synchronous one was served
//! late.

use super::Cfq;
use super::queue::CfqqId;
use crate::time::Nanos;

/// Requests in flight at a time that prove a device queue (`CFQ_HW_QUEUE_MIN`).
const QUEUES_FROM: u32 = 5;
/// Number of completions under load that are observed for it.
const SAMPLES: u32 = 50;

/// Assumed time since the last late synchronous request, until there is one \[M\].
const CALM_AT_FIRST: Nanos = Nanos::from_ms(1000);

/// Whether the device queues requests (`hw_tag`).
#[derive(Debug, Default)]
pub(super) struct Hardware {
    /// `None`: unknown. Queueing is assumed, because that assumption is tested sooner \[M\].
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
    /// Updates the detection at the end of a request (`cfq_update_hw_tag`).
    pub(super) fn watch_hardware(&mut self) {
        if self.hardware.takes_several == Some(true) {
            return; // a device that has queued once keeps the flag
        }
        let in_device = self.in_flight[0] + self.in_flight[1];
        let in_device = in_device.saturating_sub(self.requeued);
        // Idling for a nearly empty active queue keeps the depth low: that says nothing about the
        // device.
        let starved_by_us = self.active.as_ref().is_some_and(|slice| {
            let queue = self.queue(slice.queue);
            let has = queue.dispatched as usize + queue.waiting.len();
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

    /// Whether the active queue may have one more request in flight (`cfq_may_dispatch`). If not, a
    /// request is in flight.
    pub(super) fn may_dispatch(&self, now: Nanos, id: CfqqId) -> bool {
        let queue = self.queue(id);
        let [in_flight_async, in_flight_sync] = self.in_flight;
        if in_flight_async > 0 && self.should_idle(queue) {
            return false; // writeback drains before an idling queue gets the disk
        }
        if in_flight_sync > 0 && !queue.sync {
            return false;
        }
        if !queue.sync && self.settings.low_latency && !self.ramp_allows(now, queue.dispatched) {
            return false;
        }
        self.contended_limit(now, id).is_none_or(|limit| queue.dispatched < limit)
    }

    /// The limit due to other queues.
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

    /// Whether the slice will be over after the requests in flight, at `slice_idle` each. Before
    /// the first completion the answer is yes.
    fn is_used_soon(&self, now: Nanos, dispatched: u32) -> bool {
        let end = self.active.as_ref().and_then(|slice| slice.end);
        let ahead = Nanos(self.settings.slice_idle.0 * u64::from(dispatched));
        end.is_none_or(|end| now + ahead > end)
    }

    /// Allows one asynchronous request per `slice_sync` since the last late synchronous request,
    /// and at least one. Multiplication instead of division, because the check runs for each
    /// request.
    fn ramp_allows(&self, now: Nanos, dispatched: u32) -> bool {
        let calm = self.last_delayed_sync.map_or(CALM_AT_FIRST, |last| now.since(last));
        let needed = (u64::from(dispatched) + 1).saturating_mul(self.settings.slice_sync.0);
        dispatched == 0 || needed <= calm.0
    }
}
