//! Random operations on a policy with deadlines, checked against a model that knows only the
//! general rules: the waiting requests, their deadlines, and the bound on requests that pass them.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::bio::{Bio, IoContext, Op, Origin, Sector};
use crate::buf::BufRef;
use crate::elevator::{Candidate, Elevator, Merged, Side, Work};
use crate::priority::Priority;
use crate::request::{Request, RequestId, Requests};
use crate::time::Nanos;

/// Operations of a run. A policy is run with three or more sets of tunables: a million operations
/// in all.
const OPERATIONS: u64 = 350_000;
/// Greatest number of requests that wait or are at the device.
const NR_REQUESTS: usize = 128;
/// Number of sectors: few, so that requests touch, overlap and start at the same place.
const SECTORS: u64 = 4096;

/// The test's knowledge of a policy.
pub(in crate::elevator) trait Watched: Elevator {
    /// Group of a request; a group is dispatched in one order of deadlines.
    fn group(request: &Request) -> usize;

    /// Merge group: requests merge only within one, and only in the same direction.
    fn merges_within(candidate: &Candidate) -> usize;

    /// Expiry of the group.
    fn expire(&self, group: usize) -> Nanos;

    /// Called before a dispatch, to note the state.
    fn about_to_dispatch(&self, seen: &mut Observed);

    /// Called after a dispatch: counts decisions for the bound of each group, and checks the rules
    /// of batches.
    fn dispatched(&self, seen: &mut Observed, request: &Request, now: Nanos);

    /// Greatest number of decisions until one of `ahead` overdue requests is dispatched, with
    /// `cuts` of the batches cut short.
    fn bound(&self, group: usize, ahead: u64, cuts: u64) -> u64;

    /// Asserts that the policy's queues are consistent.
    fn assert_consistent(&self, requests: &Requests);
}

/// Observations so far.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::elevator) struct Observed {
    /// Decisions by group.
    pub(in crate::elevator) decisions: [u64; 3],
    pub(in crate::elevator) cuts: u64,
    /// Whether the next dispatch was decided before.
    pub(in crate::elevator) is_decided: bool,
    pub(in crate::elevator) batch_len: u64,
    pub(in crate::elevator) batch_started: Nanos,
    pub(in crate::elevator) batch_group: usize,
}

/// A waiting request.
#[derive(Clone, Copy, Debug)]
struct Shadow {
    group: usize,
    merges_within: usize,
    deadline: Nanos,
    /// State since the deadline has passed.
    late: Option<Late>,
}

#[derive(Clone, Copy, Debug)]
struct Late {
    ahead: u64,
    decisions: u64,
    cuts: u64,
}

/// xorshift64*: equal numbers on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % bound
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

struct Game<P> {
    policy: P,
    seed: u64,
    random: Random,
    now: Nanos,
    requests: Requests,
    waiting: BTreeMap<RequestId, Shadow>,
    /// Deadlines and requests by group.
    deadlines: [BTreeSet<(Nanos, RequestId)>; 3],
    dispatched: Vec<RequestId>,
    seen: Observed,
    /// Number of requests dispatched after their deadline.
    late: u64,
}

/// Runs random operations on a policy; a failure names the seed.
pub(in crate::elevator) fn play<P: Watched>(policy: P, seed: u64) {
    let mut game = Game {
        policy,
        seed,
        random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
        now: Nanos(0),
        requests: Requests::default(),
        waiting: BTreeMap::new(),
        deadlines: Default::default(),
        dispatched: Vec::new(),
        seen: Observed::default(),
        late: 0,
    };
    let mut merges = [0; 3];
    for operation in 0..OPERATIONS {
        game.step(&mut merges);
        if operation % 1000 == 0 {
            game.policy.assert_consistent(&game.requests);
        }
    }
    assert!(merges.iter().all(|count| *count > 1000), "seed {seed}: merges {merges:?}");
    assert!(game.late > 1000, "seed {seed}: only {} were late", game.late);
    while !game.waiting.is_empty() {
        game.now = game.now + Nanos::from_ms(1);
        game.dispatch();
    }
    assert_eq!(game.policy.work(game.now), Work::None, "seed {seed}: nothing is left");
    assert_eq!(game.policy.dispatch(game.now, &game.requests), None, "seed {seed}");
}

impl<P: Watched> Game<P> {
    fn step(&mut self, merges: &mut [u64; 3]) {
        // In a lull all requests become overdue; in a rush many events share a tick.
        let lull = self.random.chance(1);
        let pause_us = self.random.below(if lull { 300_000 } else { 600 });
        self.now = self.now + Nanos(pause_us * 1000);
        let in_queue = self.waiting.len() + self.dispatched.len();
        match self.random.below(100) {
            0..38 if in_queue < NR_REQUESTS => self.insert(),
            38..44 => merges[0] += self.merge_bio(Side::Back),
            44..50 => merges[1] += self.merge_bio(Side::Front),
            50..58 => merges[2] += self.merge_requests(),
            58..80 => self.dispatch(),
            80..83 => self.requeue(),
            83..84 => self.exit_context(),
            _ => self.complete(),
        }
    }

    fn random_origin(&mut self) -> Origin {
        let priority = match self.random.below(100) {
            // Few enough that level 0 does not starve the others forever.
            0..5 => Priority::real_time(0),
            5..25 => Priority::IDLE,
            _ => Priority::default(),
        };
        let io_context = IoContext(u32::try_from(self.random.below(4)).unwrap());
        Origin { io_context, cpu: 0, priority, sync: self.random.chance(40), ..Origin::default() }
    }

    fn random_bio(&mut self, sector: u64) -> Bio {
        let op = match self.random.below(10) {
            0..5 => Op::Read,
            5..9 => Op::Write,
            _ => Op::Discard,
        };
        let len = Sector(1 + self.random.below(16));
        let origin = self.random_origin();
        Bio { origin, ..Bio::new(op, Sector(sector), len, BufRef::NONE, 0) }
    }

    fn random_waiting(&mut self) -> Option<RequestId> {
        let place = self.random.below(u64::from(u32::MAX));
        let id = RequestId(u32::try_from(place % 128).unwrap());
        let behind = self.waiting.range(id..).next().or(self.waiting.first_key_value());
        behind.map(|(id, _)| *id)
    }

    /// Inserts a request at a random place, or directly after or before another one.
    fn insert(&mut self) {
        let anywhere = self.random.below(SECTORS);
        let sector = match self.random_waiting() {
            Some(other) if self.random.chance(60) => match self.random.below(3) {
                0 => self.requests[other].sector.0,
                _ => self.requests[other].end().0,
            },
            _ => anywhere,
        };
        let bio = self.random_bio(sector);
        let id = self.requests.insert(Request::new(&bio, 0));
        self.policy.insert(self.now, &self.requests, id);
        let Request { op, sync, origin, .. } = self.requests[id];
        let candidate = Candidate { op, sync, origin, side: Side::Back, request: None };
        let group = P::group(&self.requests[id]);
        let deadline = self.now + self.policy.expire(group);
        let merges_within = P::merges_within(&candidate);
        self.deadlines[group].insert((deadline, id));
        self.waiting.insert(id, Shadow { group, merges_within, deadline, late: None });
    }

    fn merge_bio(&mut self, side: Side) -> u64 {
        let Some(id) = self.random_waiting() else { return 0 };
        let bio = self.random_bio(0);
        let request = self.requests[id];
        let too_low = side == Side::Front && bio.len > request.sector;
        if (bio.op == Op::Read) != (request.op == Op::Read) || too_low {
            return 0;
        }
        let sync = bio.is_sync();
        let origin = bio.origin;
        let candidate = Candidate { op: bio.op, sync, origin, side, request: None };
        if !self.policy.allow_merge(&self.requests, id, &candidate) {
            return 0;
        }
        let seed = self.seed;
        assert_eq!(P::merges_within(&candidate), self.waiting[&id].merges_within, "seed {seed}");
        let request = self.requests.at(id);
        request.len = request.len + bio.len;
        request.origin.priority = request.origin.priority.min(origin.priority);
        let how = match side {
            Side::Back => Merged::Back,
            Side::Front => {
                request.sector = Sector(request.sector.0 - bio.len.0);
                Merged::Front
            }
        };
        self.policy.merged(self.now, &self.requests, id, how);
        1
    }

    fn merge_requests(&mut self) -> u64 {
        let Some(id) = self.random_waiting() else { return 0 };
        let survivor = self.requests[id];
        let fits = |other: &RequestId| {
            let other = &self.requests[*other];
            other.sector == survivor.end() && (other.op == Op::Read) == (survivor.op == Op::Read)
        };
        let Some(absorbed) = self.waiting.keys().copied().find(fits) else { return 0 };
        let Request { op, sync, origin, .. } = self.requests[absorbed];
        let candidate = Candidate { op, sync, origin, side: Side::Back, request: Some(absorbed) };
        if !self.policy.allow_merge(&self.requests, id, &candidate) {
            return 0;
        }
        let len = self.requests[absorbed].len;
        let request = self.requests.at(id);
        request.len = request.len + len;
        request.origin.priority = request.origin.priority.min(origin.priority);
        self.policy.merged(self.now, &self.requests, id, Merged::Absorbed(absorbed));
        self.requests.remove(absorbed);

        let gone = self.waiting.remove(&absorbed).expect("it was waiting");
        self.deadlines[gone.group].remove(&(gone.deadline, absorbed));
        let shadow = self.waiting.get_mut(&id).expect("it waits");
        let seed = self.seed;
        assert_eq!(gone.merges_within, shadow.merges_within, "seed {seed}: {id:?} {absorbed:?}");
        if gone.deadline < shadow.deadline {
            self.deadlines[gone.group].remove(&(shadow.deadline, id));
            self.deadlines[gone.group].insert((gone.deadline, id));
            (shadow.deadline, shadow.late) = (gone.deadline, gone.late);
        }
        1
    }

    /// Marks requests with expired deadlines as late.
    fn note_late(&mut self) {
        for (group, deadlines) in self.deadlines.iter().enumerate() {
            for (place, (_, id)) in deadlines.range(..=(self.now, RequestId(u32::MAX))).enumerate()
            {
                let shadow = self.waiting.get_mut(id).expect("it waits");
                if shadow.late.is_none() {
                    let end = (shadow.deadline, RequestId(u32::MAX));
                    let same = deadlines.range((shadow.deadline, *id)..=end).count();
                    shadow.late = Some(Late {
                        ahead: (place + same) as u64,
                        decisions: self.seen.decisions[group],
                        cuts: self.seen.cuts,
                    });
                }
            }
        }
    }

    fn dispatch(&mut self) {
        self.note_late();
        let seed = self.seed;
        self.policy.about_to_dispatch(&mut self.seen);
        let Some(id) = self.policy.dispatch(self.now, &self.requests) else {
            assert!(self.waiting.is_empty(), "seed {seed}: {:?} wait", self.waiting);
            return;
        };
        let shadow = self.waiting.remove(&id);
        let shadow = shadow.unwrap_or_else(|| panic!("seed {seed}: {id:?} does not wait"));
        self.deadlines[shadow.group].remove(&(shadow.deadline, id));
        self.policy.dispatched(&mut self.seen, &self.requests[id], self.now);
        if let Some(late) = shadow.late {
            self.late += 1;
            let decisions = self.seen.decisions[shadow.group] - late.decisions;
            let cuts = self.seen.cuts - late.cuts;
            let bound = self.policy.bound(shadow.group, late.ahead, cuts);
            assert!(decisions <= bound, "seed {seed}: {decisions} > {bound} for {shadow:?}");
        }
        self.dispatched.push(id);
    }

    fn random_dispatched(&mut self) -> Option<usize> {
        let len = self.dispatched.len();
        (len > 0).then(|| usize::try_from(self.random.below(len as u64)).unwrap())
    }

    fn requeue(&mut self) {
        if let Some(place) = self.random_dispatched() {
            self.policy.requeued(self.now, &self.requests, self.dispatched[place]);
        }
    }

    fn exit_context(&mut self) {
        let io_context = IoContext(u32::try_from(self.random.below(4)).unwrap());
        self.policy.exit_context(self.now, &self.requests, io_context);
    }

    fn complete(&mut self) {
        if let Some(place) = self.random_dispatched() {
            let id = self.dispatched.swap_remove(place);
            self.policy.completed(self.now, &self.requests, id);
            self.requests.remove(id);
        }
    }
}
