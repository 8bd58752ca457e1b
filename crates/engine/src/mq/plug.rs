//! Plugs: requests are held for a moment so that later bios can be merged.
//!
//! *Per submitter* (`struct blk_plug`): requests collect in a list of the submitter. The list is
//! flushed when the submitter unplugs, when it must wait for a request, or when it adds to 32
//! requests or to one that has reached 128 KiB. (The kernel's 64 is for plugs with requests for
//! several devices; a plug here belongs to one queue.) On single queues the list is flushed at 16
//! requests regardless of their size, and in sector order (`blk_flush_plug_list` of 3.8 to 4.20).
//!
//! *Per queue* (`blk_plug_device` of 2.6.30): requests are in the elevator at once. But a queue
//! that was empty dispatches nothing until 4 requests wait, 3 ms have passed, a request has ended,
//! or a submitter unplugs or must wait. 4, 3 ms and the completion are from memory.

use alloc::collections::BTreeMap;

use super::RequestQueue;
use super::config::PlugRule;
use super::list::List;
use super::merge::is_mergeable_request;
use crate::bio::IoContext;
use crate::elevator::Generation;
use crate::request::{RequestId, Requests, Stage};
use crate::time::Nanos;

/// Number of requests at which an addition flushes the plug (`BLK_MAX_REQUEST_COUNT`).
const PLUG_REQUESTS: u32 = 32;
/// Number of requests at which an addition flushes the plug of a single queue.
const PLUG_REQUESTS_SINGLE: u32 = 16;
/// Size of the last request at which an addition flushes the plug (`BLK_PLUG_FLUSH_SIZE`).
const PLUG_BYTES: u64 = 128 * 1024;
/// Number of requests that unplugs a queue (`unplug_thresh`).
const UNPLUG_THRESHOLD: u32 = 4;
/// Time that unplugs a queue (`unplug_delay`).
const UNPLUG_DELAY: Nanos = Nanos::from_ms(3);

/// Plugs of a queue's submitters.
#[derive(Debug, Default)]
pub(super) struct Plugs {
    /// Plugs by submitter. A plug stays here, closed and empty, until its submitter exits.
    by_context: BTreeMap<IoContext, Plug>,
    open: u32,
}

#[derive(Debug, Default)]
struct Plug {
    open: bool,
    list: List,
}

impl Plugs {
    fn open(&mut self, io_context: IoContext) {
        let plug = self.by_context.entry(io_context).or_default();
        if !plug.open {
            plug.open = true;
            self.open += 1;
        }
    }

    fn close(&mut self, io_context: IoContext) {
        if let Some(plug) = self.by_context.get_mut(&io_context)
            && plug.open
        {
            plug.open = false;
            self.open -= 1;
        }
    }

    pub(super) fn is_open(&self, io_context: IoContext) -> bool {
        self.open > 0 && self.by_context.get(&io_context).is_some_and(|plug| plug.open)
    }

    fn pop(&mut self, requests: &mut Requests, io_context: IoContext) -> Option<RequestId> {
        self.by_context.get_mut(&io_context)?.list.pop_front(requests)
    }
}

impl RequestQueue {
    /// Plugs a submitter: its requests are held until [`RequestQueue::unplug`]. A second call has
    /// no effect.
    pub fn plug(&mut self, io_context: IoContext) {
        if self.config.plug == PlugRule::PerContext {
            self.plugs.open(io_context);
        }
    }

    /// Unplugs a submitter, and the whole queue if that is plugged.
    pub fn unplug(&mut self, now: Nanos, io_context: IoContext) {
        self.plugs.close(io_context);
        self.flush_plug(now, io_context);
        self.unplug_queue();
        self.grant_waiters(now);
    }

    /// Adds a request to the plug of its submitter, if it has one.
    pub(super) fn add_to_plug(&mut self, now: Nanos, id: RequestId) -> bool {
        let io_context = self.requests[id].origin.io_context;
        if !self.plugs.is_open(io_context) {
            return false;
        }
        let list = &self.plugs.by_context[&io_context].list;
        let large = |last: RequestId| self.requests[last].len.bytes() >= PLUG_BYTES;
        let full = match self.config.generation {
            Generation::Single => list.len() >= PLUG_REQUESTS_SINGLE,
            Generation::Multi => list.len() >= PLUG_REQUESTS || list.back().is_some_and(large),
        };
        if full {
            self.flush_plug(now, io_context);
        }
        let request = self.requests.at(id);
        request.stage = Stage::Plugged;
        if is_mergeable_request(request) {
            self.hash.insert(&mut self.requests, id);
        }
        let plug = self.plugs.by_context.get_mut(&io_context).expect("it is open");
        plug.list.push_back(&mut self.requests, id);
        true
    }

    /// Moves a submitter's plugged requests to the elevator: on single queues in sector order,
    /// otherwise in the order of arrival.
    pub(super) fn flush_plug(&mut self, now: Nanos, io_context: IoContext) {
        if self.config.generation == Generation::Single {
            return self.flush_plug_sorted(now, io_context);
        }
        while let Some(id) = self.plugs.pop(&mut self.requests, io_context) {
            self.hash.remove(&mut self.requests, id);
            self.insert_request(now, id, true);
        }
    }

    fn flush_plug_sorted(&mut self, now: Nanos, io_context: IoContext) {
        let mut plugged = core::mem::take(&mut self.unplugging);
        while let Some(id) = self.plugs.pop(&mut self.requests, io_context) {
            self.hash.remove(&mut self.requests, id);
            plugged.push((self.requests[id].sector, plugged.len(), id));
        }
        plugged.sort_unstable(); // the second word keeps the order of equal sectors
        for (.., id) in plugged.drain(..) {
            self.insert_request(now, id, true);
        }
        self.unplugging = plugged;
    }

    pub(super) fn forget_plug(&mut self, now: Nanos, io_context: IoContext) {
        self.plugs.close(io_context);
        self.flush_plug(now, io_context);
        self.plugs.by_context.remove(&io_context);
    }

    /// Plugs the queue before its first request.
    pub(super) fn plug_queue(&mut self, now: Nanos) {
        if self.config.plug == PlugRule::PerQueue && self.waiting == 0 {
            self.queue_plug = Some(now + UNPLUG_DELAY);
        }
    }

    /// Unplugs the queue after an added request, at the threshold.
    pub(super) fn unplug_queue_at_threshold(&mut self) {
        if self.waiting >= UNPLUG_THRESHOLD {
            self.unplug_queue();
        }
    }

    pub(super) fn unplug_queue(&mut self) {
        self.queue_plug = None;
    }
}
