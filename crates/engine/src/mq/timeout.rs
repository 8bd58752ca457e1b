//! Requests that the device has had for too long (`block/blk-timeout.c`).
//!
//! Everybody has the same time, so the issued requests are in the order of their deadlines. A world
//! that is told of one decides what to do; the request stays the device's until it is completed.

use alloc::vec::Vec;

use super::RequestQueue;
use crate::request::{RequestId, Tag};
use crate::time::Nanos;

impl RequestQueue {
    /// The clock of a request that the device gets runs from now on.
    pub(super) fn start_timeout(&mut self, now: Nanos, id: RequestId) {
        if let Some(timeout) = self.config.timeout {
            self.requests.at(id).deadline = now + timeout;
            self.issued.push_back(&mut self.requests, id);
        }
    }

    /// The device has given it back.
    pub(super) fn stop_timeout(&mut self, id: RequestId) {
        if self.config.timeout.is_some() {
            self.issued.remove(&mut self.requests, id);
        }
    }

    /// When the oldest issued request is late.
    pub(super) fn timeout_at(&self) -> Option<Nanos> {
        self.issued.front().map(|id| self.requests[id].deadline)
    }

    /// The requests that the device has had for longer than the timeout, each once per timeout.
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
