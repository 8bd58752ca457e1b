//! The software queues of a hardware queue: waiting requests by CPU (`struct blk_mq_ctx`), and a
//! bitmap of those that have some (`ctx_map`), so that a dispatch visits no empty ones.

use alloc::vec::Vec;

use super::list::List;
use crate::request::{RequestId, Requests};

/// Software queues of neighbouring CPUs.
#[derive(Debug)]
pub(super) struct SoftwareQueues {
    /// In the order of arrival.
    by_cpu: Vec<List>,
    /// A bit for each queue with requests.
    busy: Vec<u64>,
    first_cpu: u16,
    /// Index of the queue that is served first.
    first_served: usize,
    /// Number of requests in all.
    waiting: u32,
}

impl SoftwareQueues {
    pub(super) fn new(first_cpu: u16, cpus: u16) -> Self {
        let by_cpu: Vec<List> = (0..cpus).map(|_| List::default()).collect();
        let busy = core::iter::repeat_n(0, by_cpu.len().div_ceil(64)).collect();
        Self { by_cpu, busy, first_cpu, first_served: 0, waiting: 0 }
    }

    pub(super) fn push(&mut self, requests: &mut Requests, cpu: u16, id: RequestId) {
        let queue = usize::from(cpu - self.first_cpu);
        self.by_cpu[queue].push_back(requests, id);
        self.busy[queue / 64] |= 1 << (queue % 64);
        self.waiting += 1;
    }

    /// The next request and its queue: CPUs in order, from the one that is served first.
    #[inline]
    pub(super) fn next(&self) -> Option<(usize, RequestId)> {
        if self.waiting == 0 {
            return None;
        }
        let first = self.first_served;
        if let Some(id) = self.by_cpu[first].front() {
            return Some((first, id));
        }
        let ahead = self.first_busy(first, self.by_cpu.len());
        let queue = ahead.or_else(|| self.first_busy(0, first))?;
        Some((queue, self.by_cpu[queue].front()?))
    }

    /// Removes the first request of a queue.
    #[inline]
    pub(super) fn pop(&mut self, requests: &mut Requests, queue: usize) {
        let popped = self.by_cpu[queue].pop_front(requests);
        assert!(popped.is_some(), "the queue has a request");
        self.waiting -= 1;
        if self.by_cpu[queue].is_empty() {
            self.busy[queue / 64] &= !(1 << (queue % 64));
        }
    }

    /// Serves the queue behind this one first.
    pub(super) fn rotate_behind(&mut self, queue: usize) {
        self.first_served = (queue + 1) % self.by_cpu.len();
    }

    /// The first queue with requests in a range.
    fn first_busy(&self, start: usize, end: usize) -> Option<usize> {
        let mut at = start;
        while at < end {
            let word = self.busy[at / 64] >> (at % 64);
            if word != 0 {
                let first = at + word.trailing_zeros() as usize;
                return (first < end).then_some(first);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}
