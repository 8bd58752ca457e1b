//! The flush machine (`block/blk-flush.c`): execution of flushes, preflushes and FUA writes on a
//! device with a volatile cache.
//!
//! A bio with one of these flags becomes a sequence of up to three steps:
//!
//! ```text
//!                            device with FUA        without
//!   flush                    PREFLUSH               PREFLUSH
//!   write + preflush         PREFLUSH DATA          PREFLUSH DATA
//!   write + fua              (an ordinary write)    DATA POSTFLUSH
//!   write + preflush + fua   PREFLUSH DATA          PREFLUSH DATA POSTFLUSH
//! ```
//!
//! One flush of the device serves all sequences that waited when it was issued. No second flush is
//! issued while it runs: later sequences wait on the other of two lists. A flush also waits while
//! the data of a sequence is in flight, because a POSTFLUSH is likely to follow, but at most 5 s.
//! So a flush always starts after the submission of its sequences, and covers every write that had
//! ended by then.
//!
//! DATA after a PREFLUSH bypasses the elevator. DATA as the first step passes through it, as since
//! 6.5 (from memory). There is one machine per queue; the kernel has one per hardware queue.

use super::RequestQueue;
use super::list::List;
use crate::bio::{Bio, BlkStatus, Op, Sector};
use crate::buf::BufRef;
use crate::request::{Request, RequestId, Stage, Steps};
use crate::time::Nanos;

/// Longest wait of a flush for the data of other sequences (`FLUSH_PENDING_TIMEOUT`).
const PENDING_TIMEOUT: Nanos = Nanos::from_ms(5000);

/// The flush machine of a queue.
#[derive(Debug, Default)]
pub(super) struct FlushMachine {
    /// Sequences that wait for a flush: those of the running one, and later ones.
    pending: [List; 2],
    /// Index of the list for new sequences; the other list belongs to the running flush.
    adds_to: usize,
    /// Time since which the oldest sequence of that list waits.
    pending_since: Nanos,
    /// Number of sequences with DATA in flight.
    data_under_way: u32,
    /// The running flush.
    running: Option<RequestId>,
}

impl FlushMachine {
    /// Due time of the next flush, if only the data of other sequences delays it.
    fn due_at(&self) -> Option<Nanos> {
        let held = self.running.is_none() && self.waits();
        held.then(|| self.pending_since + PENDING_TIMEOUT)
    }

    /// Whether sequences wait for a flush that has not started.
    pub(super) fn waits(&self) -> bool {
        !self.pending[self.adds_to].is_empty()
    }

    pub(super) fn is_running(&self, id: RequestId) -> bool {
        self.running == Some(id)
    }
}

impl RequestQueue {
    /// End of a flush's wait for data.
    pub(super) fn flush_due_at(&self) -> Option<Nanos> {
        self.flush.due_at()
    }

    /// Starts the flush sequence of a new request; true if the request needs none.
    pub(super) fn begin_flush(&mut self, now: Nanos, id: RequestId) -> bool {
        let config = &self.config;
        assert!(config.write_cache, "without a cache there is nothing to flush");
        let request = self.requests.at(id);
        let bio = self.bios.bio(request.bios.first);
        let steps = Steps {
            preflush: bio.op == Op::Flush || bio.preflush,
            data: bio.op != Op::Flush,
            postflush: bio.fua && !config.fua,
        };
        request.fua = bio.fua && config.fua;
        if !steps.preflush && !steps.postflush {
            return true;
        }
        request.steps = steps;
        if !steps.preflush {
            self.flush.data_under_way += 1;
            return true;
        }
        self.next_step(now, id);
        self.kick_flush(now);
        false
    }

    /// Moves a sequence to its next step.
    fn next_step(&mut self, now: Nanos, id: RequestId) {
        let request = self.requests.at(id);
        let Steps { preflush, data, postflush } = request.steps;
        if preflush || (!data && postflush) {
            let pending = &mut self.flush.pending[self.flush.adds_to];
            if pending.is_empty() {
                self.flush.pending_since = now;
            }
            pending.push_back(&mut self.requests, id);
        } else if data {
            self.flush.data_under_way += 1;
            self.hold(id);
        } else {
            self.end_request(id, BlkStatus::Ok);
        }
    }

    /// Issues a flush if sequences wait, none is running, and no data with a possible POSTFLUSH is
    /// in flight.
    pub(super) fn kick_flush(&mut self, now: Nanos) {
        let flush = &self.flush;
        let Some(first) = flush.pending[flush.adds_to].front() else { return };
        let waits = flush.data_under_way > 0 && now.since(flush.pending_since) < PENDING_TIMEOUT;
        if flush.running.is_some() || waits {
            return;
        }
        let first = &self.requests[first];
        let origin = first.origin;
        let hctx = first.hctx;
        // Without an elevator the flush borrows the first sequence's tag: there may be no other.
        let tag = if self.allocates_tags { first.tag } else { None };
        let mut bio = Bio::new(Op::Flush, Sector(0), Sector(0), BufRef::NONE, 0);
        bio.origin = origin;
        let id = self.requests.insert(Request { hctx, tag, ..Request::new(&bio, u32::MAX) });
        self.flush.running = Some(id);
        self.flush.adds_to ^= 1;
        self.counters.flushes += 1;
        self.hold(id);
    }

    /// Handles the end of the running flush.
    pub(super) fn flush_ended(&mut self, now: Nanos, status: BlkStatus) {
        let id = self.flush.running.take().expect("a flush that ends was running");
        self.requests.remove(id);
        let served = self.flush.adds_to ^ 1;
        while let Some(id) = self.flush.pending[served].pop_front(&mut self.requests) {
            let steps = &mut self.requests.at(id).steps;
            if steps.preflush {
                steps.preflush = false;
            } else {
                steps.postflush = false;
            }
            self.step_ended(now, id, status);
        }
        self.kick_flush(now);
    }

    /// Handles the end of a sequence's data.
    pub(super) fn flush_data_ended(&mut self, now: Nanos, id: RequestId, status: BlkStatus) {
        self.flush.data_under_way -= 1;
        let request = self.requests.at(id);
        request.steps.data = false;
        request.stage = Stage::Held;
        self.step_ended(now, id, status);
        self.kick_flush(now);
    }

    fn step_ended(&mut self, now: Nanos, id: RequestId, status: BlkStatus) {
        if status == BlkStatus::Ok {
            self.next_step(now, id);
        } else {
            self.end_request(id, status);
        }
    }
}
