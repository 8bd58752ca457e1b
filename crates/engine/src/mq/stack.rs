//! A queue on a queue: clones in the lower one (`blk_insert_cloned_request`), and partly completed
//! requests in the upper one (`blk_update_request`).
//!
//! The upper queue schedules, so its clones bypass the scheduler of the lower one. If the lower
//! queue has no tag, the upper one keeps the request ([`RequestQueue::busy`]): there the later
//! requests still wait in the elevator and go on merging. If the lower queue kept it, the upper one
//! would run empty without merging (commit 396eaf21ee17: up to three times slower for sequential
//! I/O).
//!
//! A clone is a request without bios: the bios belong to the original, and end there.

use alloc::vec::Vec;

use super::{Busy, Issue, RequestQueue};
use crate::bio::{Bio, Op, Sector};
use crate::buf::BufRef;
use crate::request::{Request, RequestId, Stage, Tag};
use crate::time::Nanos;

/// An ended clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndedClone {
    /// Tag of the original.
    pub(crate) above: Tag,
    /// Length of its range.
    pub(crate) len: Sector,
}

impl RequestQueue {
    /// Clones a request that the queue above has issued, and issues the clone.
    ///
    /// # Errors
    /// When there is no tag: nothing has changed.
    ///
    /// # Panics
    /// When the request exceeds this queue's limits: those of the queue above must not be wider.
    pub(crate) fn issue_directly(&mut self, now: Nanos, above: &Issue) -> Result<Issue, Busy> {
        let id = self.clone_of(now, above)?;
        Ok(self.issued_request(now, id))
    }

    /// Clones a request into the dispatch list of a hardware queue, and returns that queue's
    /// number.
    ///
    /// # Errors
    /// When there is no tag: nothing has changed.
    pub(crate) fn insert_clone(&mut self, now: Nanos, above: &Issue) -> Result<u16, Busy> {
        let id = self.clone_of(now, above)?;
        self.hold(id);
        Ok(self.requests[id].hctx)
    }

    /// Issues the clones that wait at a hardware queue.
    pub(crate) fn run_hctx(&mut self, now: Nanos, hctx: u16, out: &mut Vec<Issue>) {
        self.now = now;
        self.dispatch_held(now, usize::from(hctx), usize::MAX, out);
    }

    /// Whether a hardware queue has clones that could be issued now.
    pub(crate) fn is_runnable(&self, now: Nanos, hctx: u16) -> bool {
        let hctx = &self.hctxs[usize::from(hctx)];
        !hctx.dispatch.is_empty() && !hctx.is_resting(now)
    }

    fn clone_of(&mut self, now: Nanos, above: &Issue) -> Result<RequestId, Busy> {
        self.now = now;
        let Issue { tag, op, sector, len, fua, origin, segments } = *above;
        let limits = self.config.limits;
        let moves_bytes = matches!(op, Op::Read | Op::Write);
        assert!(len <= Sector(u64::from(limits.max_sectors)) || !moves_bytes);
        assert!(segments <= limits.max_segments);
        let bio = Bio { fua, origin, ..Bio::new(op, sector, len, BufRef::NONE, 0) };
        let claim = self.claim(&bio);
        // Driver tags that are allocated as requests are counted there.
        let counted = self.allocates_tags;
        if counted && !self.allocation.take(now, claim) {
            return Err(Busy);
        }
        let index = self.hctxs[usize::from(claim.hctx)].tags.take().ok_or(Busy)?;
        let request = Request::new(&bio, u32::MAX);
        let hctx = claim.hctx;
        let index = Some(index);
        let above = Some(tag);
        let request = Request { counted, hctx, tag: index, above, segments, ..request };
        Ok(self.requests.insert(request))
    }

    /// Tag of a clone's original.
    ///
    /// # Panics
    /// When the device does not have a clone of this tag.
    pub(crate) fn above(&self, tag: Tag) -> Tag {
        let id = self.hctxs[usize::from(tag.hctx)].tags.owner(tag.index);
        self.requests[id].above.expect("clones are all that this queue has")
    }

    /// Ends a clone, successful or not, and frees its tag.
    ///
    /// # Panics
    /// When the device does not have a request of this tag, or the request is no clone.
    pub(crate) fn end_clone(&mut self, now: Nanos, tag: Tag) -> EndedClone {
        self.now = now;
        let id = self.take_back(tag);
        let Request { above, len, .. } = self.requests[id];
        let above = above.expect("clones are all that this queue has");
        self.requests.at(id).stage = Stage::Held;
        self.free_request(id);
        self.has_ended(now);
        EndedClone { above, len }
    }

    /// Completes the first `done` sectors of a request: the bios in them end. The rest of the
    /// request stays issued.
    ///
    /// # Panics
    /// When the device does not have a request of this tag, or `done` is all of it.
    pub(crate) fn advance(&mut self, tag: Tag, done: Sector) {
        let id = self.hctxs[usize::from(tag.hctx)].tags.owner(tag.index);
        let request = self.requests.at(id);
        assert!(done < request.len, "what is done in whole is completed");
        let (first, ended) = self.bios.advance(request.bios.first, done);
        // The data of a flush sequence is one bio, which ends with the sequence.
        assert!(ended == 0 || !request.is_flush_data());
        request.bios.first = first;
        request.segments -= ended;
        request.sector = request.sector + done;
        request.len = Sector(request.len.0 - done.0);
    }
}
