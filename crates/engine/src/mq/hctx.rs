//! A hardware queue (`struct blk_mq_hw_ctx`).

use super::list::List;
use super::software::SoftwareQueues;
use super::tags::Tags;
use crate::time::Nanos;

/// Delay before a retry at a busy device, unless a request ends before (`BLK_MQ_RESOURCE_DELAY`;
/// from memory).
pub(super) const RESOURCE_DELAY: Nanos = Nanos::from_ms(3);

/// A hardware queue.
#[derive(Debug)]
pub(super) struct Hctx {
    pub(super) tags: Tags,
    /// Requests past the elevator: those that the busy device refused, and steps of flush
    /// sequences. Served before all others (`hctx->dispatch`).
    pub(super) dispatch: List,
    /// Time of the next attempt after the device was busy.
    pub(super) retry_at: Option<Nanos>,
    /// Without an elevator: waiting requests.
    pub(super) software: SoftwareQueues,
}

impl Hctx {
    pub(super) fn new(depth: u32, first_cpu: u16, cpus: u16) -> Self {
        Self {
            tags: Tags::new(depth),
            dispatch: List::default(),
            retry_at: None,
            software: SoftwareQueues::new(first_cpu, cpus),
        }
    }

    pub(super) fn is_resting(&self, now: Nanos) -> bool {
        self.retry_at.is_some_and(|retry_at| now < retry_at)
    }
}
