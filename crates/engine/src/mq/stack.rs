//! A queue on a queue (request-based device mapper, `blk_insert_cloned_request`).
//!
//! The upper queue schedules, so what it dispatches goes past the scheduler of the lower one. When
//! the lower one has no tag it says so, and the upper one keeps the request (its own
//! [`RequestQueue::busy`]): there the requests behind it still wait in the elevator and go on
//! merging. Had the lower queue kept it, the upper one would have run empty without merging
//! (commit 396eaf21ee17: up to three times slower for sequential I/O).

use super::request::{Request, RequestId};
use super::{Busy, Issue, RequestQueue};
use crate::bio::{Bio, Sector};
use crate::time::Nanos;

impl RequestQueue {
    /// Makes one request of the bios of an upper queue's request, as they are to be on this device,
    /// and issues it. They end as bios of this queue.
    ///
    /// # Errors
    /// When there is no tag: nothing has been taken.
    ///
    /// # Panics
    /// When the bios are none, do not follow each other, or exceed this queue's limits: those of
    /// the queue above must not be wider.
    pub fn issue_directly(
        &mut self,
        now: Nanos,
        bios: impl IntoIterator<Item = Bio>,
    ) -> Result<Issue, Busy> {
        self.now = now;
        let mut bios = bios.into_iter();
        let first = bios.next().expect("a request has a bio");
        let id = self.take_direct(now, &first)?;
        for bio in bios {
            let part = self.bios.insert(bio, None);
            let request = self.requests.at(id);
            assert!(request.op == bio.op && request.end() == bio.sector, "bios of one request");
            self.bios.link(request.last_bio, part);
            request.last_bio = part;
            request.len = request.len + bio.len;
            request.segments += 1;
        }
        let Request { len, segments, .. } = self.requests[id];
        let limits = self.config.limits;
        assert!(len <= Sector(u64::from(limits.max_sectors)) && segments <= limits.max_segments);
        Ok(self.issued_request(now, id))
    }

    fn take_direct(&mut self, now: Nanos, first: &Bio) -> Result<RequestId, Busy> {
        let claim = self.claim(first);
        // Where driver tags are what is allocated, they are counted there.
        let counted = self.allocates_tags;
        if counted && !self.allocation.take(now, claim) {
            return Err(Busy);
        }
        let tag = self.hctxs[usize::from(claim.hctx)].tags.take().ok_or(Busy)?;
        let part = self.bios.insert(*first, None);
        self.counters.bios += 1;
        let request = Request::new(first, part);
        Ok(self.requests.insert(Request { counted, hctx: claim.hctx, tag: Some(tag), ..request }))
    }
}
