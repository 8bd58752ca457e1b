//! Detection of a device that queues requests (`bfq_update_hw_tag`).

use super::Bfq;

/// Requests in flight at a time that prove a device queue are more than this
/// (`BFQ_HW_QUEUE_THRESHOLD`).
const THRESHOLD: u32 = 3;
/// Number of completions under load that are observed for it (`BFQ_HW_QUEUE_SAMPLES`).
const SAMPLES: u32 = 32;

/// Whether the device queues requests (`hw_tag`).
#[derive(Debug, Default)]
pub(super) struct Hardware {
    /// `None`: unknown, and queueing is assumed.
    takes_several: Option<bool>,
    depth_seen: u32,
    samples: u32,
}

impl Hardware {
    pub(super) fn queues(&self) -> bool {
        self.takes_several.unwrap_or(true)
    }
}

impl Bfq {
    /// Updates the detection at the end of a request, which still counts as in flight. A device
    /// that has queued once keeps the flag.
    pub(super) fn watch_hardware(&mut self) {
        // Idling for a nearly empty queue keeps the depth low: that says nothing about the device.
        let is_starved = self.turn.as_ref().is_some_and(|turn| {
            let queue = self.queue(turn.queue);
            let has = queue.dispatched as usize + queue.waiting.len();
            let idles = queue.sync && queue.pattern.thinks_briefly && !queue.is_idle_class();
            idles && has < THRESHOLD as usize && self.in_flight < THRESHOLD
        });
        let has_load = self.in_flight as usize + self.waiting > THRESHOLD as usize;
        let hardware = &mut self.hardware;
        hardware.depth_seen = hardware.depth_seen.max(self.in_flight);
        if hardware.takes_several == Some(true) || !has_load || is_starved {
            return;
        }
        hardware.samples += 1;
        if hardware.samples > SAMPLES {
            hardware.takes_several = Some(hardware.depth_seen > THRESHOLD);
            hardware.depth_seen = 0;
            hardware.samples = 0;
        }
    }
}
