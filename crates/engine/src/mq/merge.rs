//! Merging: a bio into a request, a request into a request (`block/blk-merge.c`, `elv_merge`).
//!
//! One hash finds touching requests, by the sector after a request and by its first. It holds the
//! requests that may still grow: those in plugs, in software queues, in the elevator. Order of the
//! search:
//!
//! ```text
//!   plug of the submitter ─> last request merged ─> one that ends here ─> one that starts after
//!          (back, front)          (back, front)        (back merge)          (front merge)
//! ```
//!
//! For requests in the elevator its `allow_merge` decides, and after a merge the request and its
//! new neighbour may be merged. Never merged: flushes, FUA and preflush writes, discards, reads
//! with writes, dispatched requests, and, with tags, different priorities. In the single-queue
//! generation a merged request gets the more urgent of both priorities (`ioprio_best`).

use alloc::vec::Vec;

use super::RequestQueue;
use crate::bio::{Bio, IoContext, Op, Sector};
use crate::elevator::{Candidate, Generation, Merged, Side};
use crate::request::{BioChain, Links, Request, RequestId, Requests, Stage};
use crate::time::Nanos;

/// Greatest number of tried requests that touch at one sector. The kernel tries one in its hash and
/// eight in a software queue. Our choice.
const TRIES: usize = 8;

/// Hash of requests by their ends and by their starts.
#[derive(Debug)]
pub(super) struct MergeHash {
    /// Buckets by end (for `ELEVATOR_BACK_MERGE`), and by first sector.
    buckets: [Vec<Option<RequestId>>; 2],
    /// Bits of a bucket's index.
    bits: u32,
    /// Bios do not look here.
    is_skipped: bool,
}

/// Edge of a request that touches.
#[derive(Clone, Copy, Debug)]
enum Edge {
    End = 0,
    Start = 1,
}

impl Edge {
    fn sector(self, request: &Request) -> Sector {
        match self {
            Self::End => request.end(),
            Self::Start => request.sector,
        }
    }
}

impl MergeHash {
    /// A hash for about `requests` requests: four buckets each, so that most are empty.
    pub(super) fn new(requests: u32) -> Self {
        let buckets = requests.clamp(16, 1 << 16) * 4;
        let bits = buckets.next_power_of_two().ilog2();
        let empty = || core::iter::repeat_n(None, 1 << bits).collect();
        Self { buckets: [empty(), empty()], bits, is_skipped: false }
    }

    fn bucket(&mut self, edge: Edge, sector: Sector) -> &mut Option<RequestId> {
        let place = self.place(sector);
        &mut self.buckets[edge as usize][place]
    }

    /// Bucket of a sector. Multiplication by 2^64 / phi spreads regular distances.
    fn place(&self, sector: Sector) -> usize {
        let hash = sector.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - self.bits);
        usize::try_from(hash).expect("a bucket's number has few bits")
    }

    pub(super) fn insert(&mut self, requests: &mut Requests, id: RequestId) {
        let request = requests.at(id);
        assert!(!request.hashed);
        request.hashed = true;
        self.link(requests, id, Edge::End);
        self.link(requests, id, Edge::Start);
    }

    /// Removes a request, if present.
    pub(super) fn remove(&mut self, requests: &mut Requests, id: RequestId) {
        let request = requests.at(id);
        if request.hashed {
            request.hashed = false;
            self.unlink(requests, id, Edge::End);
            self.unlink(requests, id, Edge::Start);
        }
    }

    fn link(&mut self, requests: &mut Requests, id: RequestId, edge: Edge) {
        let request = requests.at(id);
        let next = self.bucket(edge, edge.sector(request)).replace(id);
        request.hash[edge as usize] = Links { prev: None, next };
        if let Some(next) = next {
            requests.at(next).hash[edge as usize].prev = Some(id);
        }
    }

    fn unlink(&mut self, requests: &mut Requests, id: RequestId, edge: Edge) {
        let request = &requests[id];
        let Links { prev, next } = request.hash[edge as usize];
        match prev {
            Some(prev) => requests.at(prev).hash[edge as usize].next = next,
            None => *self.bucket(edge, edge.sector(request)) = next,
        }
        if let Some(next) = next {
            requests.at(next).hash[edge as usize].prev = prev;
        }
    }

    /// Whether a search may succeed: usually not.
    fn may_touch(&self, edge: Edge, sector: Sector) -> bool {
        self.buckets[edge as usize][self.place(sector)].is_some()
    }

    /// Requests with this edge at a sector, the latest first.
    fn touching(
        &self,
        requests: &Requests,
        edge: Edge,
        sector: Sector,
    ) -> impl Iterator<Item = RequestId> {
        let first = self.buckets[edge as usize][self.place(sector)];
        core::iter::successors(first, move |id| requests[*id].hash[edge as usize].next)
            .filter(move |id| edge.sector(&requests[*id]) == sector)
            .take(TRIES)
    }
}

/// A bio, or an unhashed request, to be merged into a request.
#[derive(Clone, Copy, Debug)]
struct Joiner {
    candidate: Candidate,
    sector: Sector,
    len: Sector,
    segments: u16,
    bios: BioChain,
}

impl Joiner {
    fn of(request: &Request, side: Side, id: Option<RequestId>) -> Self {
        let Request { op, sync, origin, sector, len, segments, bios, .. } = *request;
        let candidate = Candidate { op, sync, origin, side, request: id };
        Self { candidate, sector, len, segments, bios }
    }

    fn of_bio(bio: &Bio, part: u32) -> Self {
        let sync = bio.is_sync();
        let side = Side::Back;
        let candidate = Candidate { op: bio.op, sync, origin: bio.origin, side, request: None };
        let sector = bio.sector;
        let len = bio.len;
        let bios = BioChain { first: part, last: part };
        Self { candidate, sector, len, segments: 1, bios }
    }

    fn on(&self, side: Side) -> Self {
        Self { candidate: Candidate { side, ..self.candidate }, ..*self }
    }

    fn end(&self) -> Sector {
        self.sector + self.len
    }
}

/// Whether this kind of bio is ever merged.
pub(super) fn is_mergeable(bio: &Bio) -> bool {
    matches!(bio.op, Op::Read | Op::Write) && !bio.fua && !bio.preflush
}

/// Whether a waiting request may be merged.
pub(super) fn is_mergeable_request(request: &Request) -> bool {
    matches!(request.op, Op::Read | Op::Write) && !request.fua && !request.is_flush_data()
}

impl RequestQueue {
    /// Merges a bio into a request, if there is a suitable one.
    pub(super) fn merge_bio(&mut self, now: Nanos, part: u32) -> bool {
        let bio = self.bios.bio(part);
        let io_context = bio.origin.io_context;
        let joiner = Joiner::of_bio(bio, part);
        let plugged = self.plugs.is_open(io_context);
        let target = if plugged { self.plugged_target(&joiner, io_context) } else { None };
        let looks = self.waiting > 0 && !self.hash.is_skipped;
        // Both edges in the hash.
        self.requests.visit(if looks { 2 } else { 0 });
        let others = || if looks { self.waiting_target(&joiner) } else { None };
        let Some((id, side)) = target.or_else(others) else {
            return false;
        };
        match side {
            Side::Back => self.counters.back_merges += 1,
            Side::Front => self.counters.front_merges += 1,
        }
        self.join(now, id, &joiner.on(side));
        true
    }

    /// Whether later bios skip the look-up of a waiting request outside of their submitter's plug:
    /// mq-deadline's patch of January 2024 does so while others hold its lock.
    pub fn skip_merge_lookups(&mut self, skips: bool) {
        self.hash.is_skipped = skips;
    }

    /// A request of the submitter's own plug. The elevator does not know plugged requests and is
    /// not asked.
    fn plugged_target(&self, joiner: &Joiner, io_context: IoContext) -> Option<(RequestId, Side)> {
        let own = |request: &Request| {
            request.stage == Stage::Plugged && request.origin.io_context == io_context
        };
        self.find(Side::Back, joiner, own).or_else(|| self.find(Side::Front, joiner, own))
    }

    /// A request of the elevator, or of the same software queue.
    fn waiting_target(&self, joiner: &Joiner) -> Option<(RequestId, Side)> {
        if self.waiting == 0 {
            return None;
        }
        let waits = |request: &Request| request.stage == Stage::Waiting;
        if let Some(last) = self.last_merge {
            let touches = [
                (Side::Back, self.requests[last].end() == joiner.sector),
                (Side::Front, self.requests[last].sector == joiner.end()),
            ];
            for (side, touches) in touches {
                if touches && self.may_join(last, &joiner.on(side)) {
                    return Some((last, side));
                }
            }
        }
        self.find(Side::Back, joiner, waits).or_else(|| self.find(Side::Front, joiner, waits))
    }

    fn find(
        &self,
        side: Side,
        joiner: &Joiner,
        where_it_is: impl Fn(&Request) -> bool,
    ) -> Option<(RequestId, Side)> {
        let (edge, sector) = match side {
            Side::Back => (Edge::End, joiner.sector),
            Side::Front => (Edge::Start, joiner.end()),
        };
        if !self.hash.may_touch(edge, sector) {
            return None;
        }
        let mut touching = self.hash.touching(&self.requests, edge, sector);
        let fits = |id: &RequestId| {
            where_it_is(&self.requests[*id]) && self.may_join(*id, &joiner.on(side))
        };
        touching.find(fits).map(|id| (id, side))
    }

    /// Checks all conditions but the sector: limits, kind, priority, and the elevator's
    /// `allow_merge`.
    fn may_join(&self, id: RequestId, joiner: &Joiner) -> bool {
        let request = &self.requests[id];
        let candidate = &joiner.candidate;
        let limits = self.config.limits;
        let fits = request.op == candidate.op
            && request.len.0 + joiner.len.0 <= u64::from(limits.max_sectors)
            && u32::from(request.segments) + u32::from(joiner.segments)
                <= u32::from(limits.max_segments);
        let tagged = self.config.generation == Generation::Multi;
        if !fits || (tagged && request.origin.priority != candidate.origin.priority) {
            return false;
        }
        match (&self.elevator, request.stage) {
            (Some(elevator), Stage::Waiting) => elevator.allow_merge(&self.requests, id, candidate),
            (None, Stage::Waiting) => {
                let cpu = |cpu| self.config.cpu_of(cpu);
                !tagged || cpu(request.origin.cpu) == cpu(candidate.origin.cpu)
            }
            _ => true,
        }
    }

    /// Merges into a request, and notifies the elevator if it has the request.
    fn join(&mut self, now: Nanos, id: RequestId, joiner: &Joiner) {
        self.grow(id, joiner);
        if self.requests[id].stage == Stage::Waiting {
            self.tell_merged(now, id, joiner.candidate.side);
        }
    }

    /// Attaches a chain of bios to an end of a request.
    fn grow(&mut self, id: RequestId, joiner: &Joiner) {
        let edge = match joiner.candidate.side {
            Side::Back => Edge::End,
            Side::Front => Edge::Start,
        };
        self.hash.unlink(&mut self.requests, id, edge);
        let request = self.requests.at(id);
        match joiner.candidate.side {
            Side::Back => {
                self.bios.link(request.bios.last, joiner.bios.first);
                request.bios.last = joiner.bios.last;
            }
            Side::Front => {
                self.bios.link(joiner.bios.last, request.bios.first);
                request.bios.first = joiner.bios.first;
                request.sector = joiner.sector;
            }
        }
        request.len = request.len + joiner.len;
        request.segments += joiner.segments;
        request.origin.priority = request.origin.priority.min(joiner.candidate.origin.priority);
        self.hash.link(&mut self.requests, id, edge);
    }

    fn tell_merged(&mut self, now: Nanos, id: RequestId, side: Side) {
        let tick = self.tick(now);
        let Some(elevator) = &mut self.elevator else { return };
        let how = match side {
            Side::Back => Merged::Back,
            Side::Front => Merged::Front,
        };
        elevator.merged(tick, &self.requests, id, how);
        self.last_merge = Some(id);
        self.coalesce(now, id, side);
    }

    /// Merges the request with the neighbour that it touches since its growth
    /// (`attempt_back_merge`, `attempt_front_merge`). The one in front survives.
    fn coalesce(&mut self, now: Nanos, id: RequestId, side: Side) {
        let waits = |request: &Request| request.stage == Stage::Waiting;
        let pair = match side {
            Side::Back => {
                let end = self.requests[id].end();
                let mut behind = self.hash.touching(&self.requests, Edge::Start, end);
                behind.find(|next| waits(&self.requests[*next])).map(|next| (id, next))
            }
            Side::Front => {
                let start = self.requests[id].sector;
                let mut before = self.hash.touching(&self.requests, Edge::End, start);
                before.find(|prev| waits(&self.requests[*prev])).map(|prev| (prev, id))
            }
        };
        let Some((survivor, absorbed)) = pair else { return };
        let joiner = Joiner::of(&self.requests[absorbed], Side::Back, Some(absorbed));
        if !self.may_join(survivor, &joiner) {
            return;
        }
        self.hash.remove(&mut self.requests, absorbed);
        self.grow(survivor, &joiner);
        let tick = self.tick(now);
        let elevator = self.elevator.as_mut().expect("only an elevator's requests coalesce");
        elevator.merged(tick, &self.requests, survivor, Merged::Absorbed(absorbed));
        self.last_merge = Some(survivor);
        self.waiting -= 1;
        self.counters.request_merges += 1;
        self.free_request(absorbed);
    }

    /// Merges a new request into the end of one in the elevator (`elv_attempt_insert_merge`); the
    /// new one is freed then.
    pub(super) fn merge_on_insert(&mut self, now: Nanos, id: RequestId) -> bool {
        let joiner = Joiner::of(&self.requests[id], Side::Back, None);
        let last = self.last_merge.filter(|last| self.requests[*last].end() == joiner.sector);
        let target = last.filter(|last| self.may_join(*last, &joiner)).or_else(|| {
            let waits = |request: &Request| request.stage == Stage::Waiting;
            self.find(Side::Back, &joiner, waits).map(|(id, _)| id)
        });
        let Some(target) = target else { return false };
        self.counters.request_merges += 1;
        self.join(now, target, &joiner);
        self.free_request(id);
        true
    }
}
