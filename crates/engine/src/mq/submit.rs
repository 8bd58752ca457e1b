//! Submission: from a bio to a waiting request (`blk_mq_submit_bio`, `__make_request`).

use super::bios;
use super::merge::{is_mergeable, is_mergeable_request};
use super::wait::Claim;
use super::{RequestQueue, Submitted};
use crate::bio::{Bio, BlkStatus, Op};
use crate::elevator::Generation;
use crate::request::{Request, RequestId, Stage};
use crate::time::Nanos;

impl RequestQueue {
    /// Submits a bio. A bio above the device's limits is split.
    ///
    /// # Panics
    /// When the bio is empty and no flush, or reaches past the last sector of a `u64`.
    pub fn submit_bio(&mut self, now: Nanos, mut bio: Bio) -> Submitted {
        assert!(bio.op == Op::Flush || bio.len.0 > 0, "only a flush has no length");
        assert!(bio.sector.0.checked_add(bio.len.0).is_some(), "the range ends somewhere");
        self.now = now;
        self.counters.bios += 1;
        if !self.config.write_cache && !self.drop_useless_flags(&mut bio) {
            return Submitted::Accepted;
        }
        let max_sectors = self.config.limits.max_sectors;
        let mut parked = false;
        if bio.len.0 <= u64::from(max_sectors) {
            parked = self.submit_part(now, &bio, None);
        } else {
            let count = bios::pieces(&bio, max_sectors).count();
            let count = u32::try_from(count).expect("a bio has fewer than 2^32 pieces");
            let split = self.bios.split(count);
            for piece in bios::pieces(&bio, max_sectors) {
                parked |= self.submit_part(now, &piece, Some(split));
            }
        }
        self.grant_waiters(now);
        if parked { Submitted::Parked } else { Submitted::Accepted }
    }

    /// Drops flags without effect on a device without a cache. A flush ends at once (false is
    /// returned); a FUA or preflush write stays synchronous.
    fn drop_useless_flags(&mut self, bio: &mut Bio) -> bool {
        bio.origin.sync |= bio.fua || bio.preflush;
        (bio.fua, bio.preflush) = (false, false);
        if bio.op == Op::Flush {
            self.bios.end_at_once(bio);
        }
        bio.op != Op::Flush
    }

    /// Merges a bio, makes it a request, or parks it; returns true if it is parked.
    fn submit_part(&mut self, now: Nanos, bio: &Bio, split: Option<u32>) -> bool {
        let part = self.bios.insert(*bio, split);
        if is_mergeable(bio) && self.merge_bio(now, part) {
            return false;
        }
        let claim = self.claim(bio);
        if self.allocation.take(now, claim) {
            self.start_request(now, part, claim.hctx);
            return false;
        }
        self.counters.parked += 1;
        self.bios.park(part);
        self.allocation.park(part, claim);
        // A sleeping submitter must not hold requests that others wait for.
        self.flush_plug(now, bio.origin.io_context);
        self.unplug_queue();
        true
    }

    pub(super) fn claim(&self, bio: &Bio) -> Claim {
        Claim {
            io_context: bio.origin.io_context,
            sync: self.counts_as_sync(bio.op, bio.is_sync()),
            hctx: self.hctx_by_cpu[usize::from(self.config.cpu_of(bio.origin.cpu))],
        }
    }

    /// Whether a request counts as synchronous. With tags, only synchronous reads are exempt from
    /// the asynchronous limit (`dd_limit_depth`).
    fn counts_as_sync(&self, op: Op, sync: bool) -> bool {
        match self.config.generation {
            Generation::Single => sync,
            Generation::Multi => sync && matches!(op, Op::Read | Op::Flush),
        }
    }

    /// Gives free requests to waiters, without another attempt to merge, as in the kernel. The last
    /// step of each event.
    #[inline]
    pub(super) fn grant_waiters(&mut self, now: Nanos) {
        while !self.allocation.is_nobody_parked()
            && let Some(part) = self.allocation.next_waiter(now)
        {
            self.bios.unpark(part);
            let hctx = self.claim(self.bios.bio(part)).hctx;
            self.start_request(now, part, hctx);
        }
    }

    /// Starts a request for this bio; the allocation is done.
    fn start_request(&mut self, now: Nanos, part: u32, hctx: u16) {
        let bio = self.bios.bio(part);
        let mut request = Request::new(bio, part);
        request.counted = true;
        request.hctx = hctx;
        let flushes = bio.op == Op::Flush || bio.preflush || bio.fua;
        if self.allocates_tags {
            let tag = self.hctxs[usize::from(hctx)].tags.take();
            request.tag = Some(tag.expect("without an elevator each request has a driver tag"));
        }
        let id = self.requests.insert(request);
        if flushes && !self.begin_flush(now, id) {
            return;
        }
        if !self.add_to_plug(now, id) {
            self.insert_request(now, id, false);
        }
    }

    /// Inserts a request, which waits for the device from now on.
    pub(super) fn insert_request(&mut self, now: Nanos, id: RequestId, from_plug: bool) {
        let mergeable = is_mergeable_request(&self.requests[id]);
        // Before per-submitter plugs no merge was tried here.
        let merges = from_plug || self.config.generation == Generation::Multi;
        if self.elevator.is_some() && mergeable && merges && self.merge_on_insert(now, id) {
            return;
        }
        self.plug_queue(now);
        // The hash, or the list of a software queue.
        self.requests.visit(1);
        let tick = self.tick(now);
        let request = self.requests.at(id);
        request.stage = Stage::Waiting;
        request.inserted = tick;
        request.in_elevator = self.elevator.is_some();
        if mergeable {
            self.hash.insert(&mut self.requests, id);
        }
        match &mut self.elevator {
            Some(elevator) => {
                elevator.insert(tick, &self.requests, id);
                if mergeable && self.last_merge.is_none() {
                    self.last_merge = Some(id);
                }
            }
            None => {
                let request = &self.requests[id];
                let cpu = self.config.cpu_of(request.origin.cpu);
                let hctx = &mut self.hctxs[usize::from(request.hctx)];
                hctx.software.push(&mut self.requests, cpu, id);
            }
        }
        self.waiting += 1;
        self.unplug_queue_at_threshold();
    }

    /// Ends a request and its bios.
    pub(super) fn end_request(&mut self, id: RequestId, status: BlkStatus) {
        assert!(self.requests[id].above.is_none(), "a clone has no bios");
        self.bios.end_chain(self.requests[id].bios.first, status);
        self.free_request(id);
    }

    /// Frees a request. Its bios have ended, or belong to another request.
    pub(super) fn free_request(&mut self, id: RequestId) {
        let request = &self.requests[id];
        assert!(!request.hashed && request.stage != Stage::Issued, "nobody knows it any more");
        if let Some(tag) = request.tag {
            self.hctxs[usize::from(request.hctx)].tags.put(tag);
        }
        if request.counted {
            let sync = self.counts_as_sync(request.op, request.sync);
            self.allocation.put(sync, request.hctx);
        }
        self.requests.remove(id);
    }
}
