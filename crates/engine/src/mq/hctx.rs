//! A hardware queue and the software queues of its CPUs (`struct blk_mq_hw_ctx`, `blk_mq_ctx`).

use alloc::vec::Vec;

use super::list::List;
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
    /// Without an elevator: waiting requests by CPU, in the order of arrival.
    pub(super) software: Vec<List>,
    /// Index of the software queue that is served first.
    pub(super) first_software: usize,
    /// First CPU of this queue.
    pub(super) first_cpu: u16,
    /// Number of requests in the software queues.
    pub(super) waiting: u32,
}

impl Hctx {
    pub(super) fn new(depth: u32, first_cpu: u16, cpus: u16) -> Self {
        Self {
            tags: Tags::new(depth),
            dispatch: List::default(),
            retry_at: None,
            software: (0..cpus).map(|_| List::default()).collect(),
            first_software: 0,
            first_cpu,
            waiting: 0,
        }
    }

    /// The software queue of a CPU of this hardware queue.
    pub(super) fn software_of(&mut self, cpu: u16) -> &mut List {
        &mut self.software[usize::from(cpu - self.first_cpu)]
    }

    pub(super) fn is_resting(&self, now: Nanos) -> bool {
        self.retry_at.is_some_and(|retry_at| now < retry_at)
    }
}
