//! Timeouts of requests at the device (`block/blk-timeout.c`).
//!
//! All requests have the same timeout, so the issued ones are in the order of their deadlines. The
//! world decides what to do with an expired request; it stays at the device until it is completed.

use alloc::vec::Vec;

use super::RequestQueue;
use crate::request::{RequestId, Tag};
use crate::time::Nanos;

impl RequestQueue {
    /// Starts the timeout of an issued request.
    pub(super) fn start_timeout(&mut self, now: Nanos, id: RequestId) {
        if let Some(timeout) = self.config.timeout {
            self.requests.at(id).deadline = now + timeout;
            self.issued.push_back(&mut self.requests, id);
        }
    }

    /// Stops the timeout of a returned request.
    pub(super) fn stop_timeout(&mut self, id: RequestId) {
        if self.config.timeout.is_some() {
            self.issued.remove(&mut self.requests, id);
        }
    }

    /// Deadline of the oldest issued request.
    pub(super) fn timeout_at(&self) -> Option<Nanos> {
        self.issued.front().map(|id| self.requests[id].deadline)
    }

    /// Moves the tags of expired requests to `out`, each once per timeout.
    pub fn timed_out(&mut self, now: Nanos, out: &mut Vec<Tag>) {
        let Some(timeout) = self.config.timeout else { return };
        while let Some(id) = self.issued.front() {
            let request = &self.requests[id];
            if request.deadline > now {
                return;
            }
            let index = request.tag.expect("an issued request has a tag");
            out.push(Tag { hctx: request.hctx, index });
            self.issued.remove(&mut self.requests, id);
            self.requests.at(id).deadline = now + timeout;
            self.issued.push_back(&mut self.requests, id);
        }
    }
}
