//! Random submitters on a random device: no request is lost or dispatched twice, classes are served
//! in their order, merges stay within one queue, nothing stalls, and no wait exceeds the bound in
//! the policy's documentation.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::super::*;
use crate::bio::{Bio, Op, Origin};
use crate::buf::BufRef;
use crate::elevator::Side;
use crate::priority::{Priority, PriorityClass};
use crate::request::Request;

const SEEDS: u64 = 25;
const OPERATIONS: u32 = 40_000;
const CONTEXTS: u64 = 6;
const MS: u64 = 1_000_000;
/// Longest service time of a request.
const DEVICE_MS: u64 = 20;
const WAITING_MAX: usize = 96;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % limit
    }

    fn one_in(&mut self, limit: u64) -> bool {
        self.below(limit) == 0
    }
}

/// The model's state of a waiting request.
#[derive(Clone, Copy)]
struct Waiting {
    since: Nanos,
    /// Number of older requests in its queue.
    older: u64,
}

// 18 fields: the policy, the model of it, the random load, and counts.
struct World {
    seed: u64,
    random: Random,
    requests: Requests,
    cfq: Cfq,
    now: Nanos,
    tick: Nanos,
    depth: usize,
    waiting: BTreeMap<RequestId, Waiting>,
    /// End of each request in flight, by the device.
    in_flight: Vec<(Nanos, RequestId)>,
    given: u64,
    ended: u64,
    absorbed: u64,
    inserted: u64,
    /// Next sector and priority of each submitter.
    cursors: [u64; CONTEXTS as usize],
    levels: [u8; CONTEXTS as usize],
    with_real_time: bool,
    queues_max: u64,
    /// Longest wait, in thousandths of its bound.
    nearest_to_bound: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let mut pick = |values: &[u64]| values[random.below(values.len() as u64) as usize];
        let tunables = [
            ("service_trees", pick(&[0, 1, 1])),
            ("low_latency", pick(&[0, 1])),
            ("slice_idle", pick(&[0, 8, 8, 8])),
            ("quantum", pick(&[1, 8])),
            ("starved_after", pick(&[100, 500])),
            ("back_seek_max", pick(&[0, 16_384])),
        ];
        let rotational = pick(&[0, 1, 1]) == 1;
        let cfq = super::cfq(&tunables, rotational);
        let tick = Nanos(pick(&[1, MS, 4 * MS]));
        let depth = pick(&[1, 2, 8]) as usize;
        let with_real_time = pick(&[0, 1]) == 1;
        Self {
            seed,
            requests: Requests::default(),
            cfq,
            now: Nanos(0),
            tick,
            depth,
            with_real_time,
            random,
            waiting: BTreeMap::new(),
            in_flight: Vec::new(),
            given: 0,
            ended: 0,
            absorbed: 0,
            inserted: 0,
            cursors: [0; CONTEXTS as usize],
            levels: [4; CONTEXTS as usize],
            queues_max: 0,
            nearest_to_bound: 0,
        }
    }

    fn jiffies(&self) -> Nanos {
        self.now.tick_before(self.tick)
    }

    fn priority(&self, context: u64) -> Priority {
        let level = self.levels[context as usize];
        match context {
            0 => Priority::IDLE,
            1 | 2 if self.with_real_time => Priority::real_time(level),
            _ => Priority::best_effort(level),
        }
    }

    fn random_bio(&mut self) -> Bio {
        let context = self.random.below(CONTEXTS);
        let len = [8, 8, 64, 256][self.random.below(4) as usize];
        let sector = match self.random.below(8) {
            0 => self.random.below(1 << 24),
            // Before or after some submitter's next request, with a gap.
            1 => self.cursors[context as usize].saturating_sub(2 * len),
            2 => self.cursors[self.random.below(CONTEXTS) as usize] + 8 * self.random.below(4),
            _ => self.cursors[context as usize],
        };
        self.cursors[context as usize] = sector + len;
        let op = if self.random.one_in(3) { Op::Write } else { Op::Read };
        let mut bio = Bio::new(op, Sector(sector), Sector(len), BufRef::NONE, 0);
        bio.origin = Origin {
            io_context: IoContext(context as u32),
            priority: self.priority(context),
            sync: op == Op::Read || self.random.one_in(3),
            ..Origin::default()
        };
        bio
    }

    /// Submits a bio as the queue does: merges it if allowed, otherwise adds a request.
    fn submit(&mut self) {
        let bio = self.random_bio();
        let fits = |request: &Request| {
            let touches = request.end() == bio.sector || request.sector == bio.sector + bio.len;
            request.op == bio.op && touches && request.len.0 < 1024
        };
        let found = self.waiting.keys().copied().find(|id| fits(&self.requests[*id]));
        if let Some(id) = found {
            let is_back = self.requests[id].end() == bio.sector;
            let side = if is_back { Side::Back } else { Side::Front };
            let op = bio.op;
            let sync = bio.is_sync();
            let origin = bio.origin;
            let candidate = Candidate { op, sync, origin, side, request: None };
            if self.cfq.allow_merge(&self.requests, id, &candidate) {
                self.check_merge(id, sync, &origin);
                return self.grow(id, &bio, is_back);
            }
        }
        if self.waiting.len() < WAITING_MAX {
            let id = self.requests.insert(Request::new(&bio, 0));
            let now = self.jiffies();
            self.inserted += 1;
            self.cfq.insert(now, &self.requests, id);
            let queue = self.cfq.entry(id).queue;
            let older = self.cfq.queue(queue).waiting.len() as u64 - 1;
            assert!(self.waiting.insert(id, Waiting { since: self.now, older }).is_none());
        }
    }

    fn grow(&mut self, id: RequestId, bio: &Bio, is_back: bool) {
        let now = self.jiffies();
        let request = self.requests.at(id);
        request.len = request.len + bio.len;
        if is_back {
            self.cfq.merged(now, &self.requests, id, Merged::Back);
        } else {
            request.sector = bio.sector;
            self.cfq.merged(now, &self.requests, id, Merged::Front);
        }
        self.coalesce(id);
    }

    /// Merges the request with its new neighbour.
    fn coalesce(&mut self, id: RequestId) {
        let own = self.requests[id];
        let fits = |other: &Request| own.op == other.op && own.end() == other.sector;
        let found = self.waiting.keys().copied().find(|other| fits(&self.requests[*other]));
        let Some(other) = found.filter(|other| *other != id) else { return };
        let absorbed = self.requests[other];
        let op = absorbed.op;
        let sync = absorbed.sync;
        let origin = absorbed.origin;
        let candidate = Candidate { op, sync, origin, side: Side::Back, request: Some(other) };
        if !self.cfq.allow_merge(&self.requests, id, &candidate) {
            return;
        }
        self.check_merge(id, sync, &origin);
        self.requests.at(id).len = own.len + absorbed.len;
        let now = self.jiffies();
        self.cfq.merged(now, &self.requests, id, Merged::Absorbed(other));
        self.requests.remove(other);
        let gone = self.waiting.remove(&other).unwrap();
        let survivor = self.waiting.get_mut(&id).unwrap();
        if gone.since < survivor.since {
            *survivor = gone;
        }
        self.absorbed += 1;
    }

    fn check_merge(&self, id: RequestId, sync: bool, origin: &Origin) {
        let request = &self.requests[id];
        let is_shared = self.cfq.queue(self.cfq.entry(id).queue).shared;
        assert_eq!(request.sync, sync, "seed {}", self.seed);
        let same = if sync {
            is_shared || request.origin.io_context == origin.io_context
        } else {
            request.origin.priority == origin.priority
        };
        assert!(same, "seed {}: merged across queues", self.seed);
    }

    /// Dispatches as many requests as the device takes.
    fn pump(&mut self) {
        let now = self.jiffies();
        while self.in_flight.len() < self.depth {
            let work = self.cfq.work(now);
            let given = self.cfq.dispatch(now, &self.requests);
            match work {
                Work::None => assert!(self.waiting.is_empty() && given.is_none()),
                Work::At(_) | Work::AfterCompletion => assert!(given.is_none()),
                Work::Now => {}
            }
            let Some(id) = given else { break };
            let waited = self.waiting.remove(&id);
            let waited = waited.unwrap_or_else(|| panic!("seed {}: {id:?} again", self.seed));
            self.check_class(id);
            self.check_bound(id, waited);
            self.given += 1;
            let end = self.now + Nanos(1 + self.random.below(DEVICE_MS * MS - 1));
            self.in_flight.push((end, id));
            if self.random.one_in(16) {
                self.cfq.requeued(now, &self.requests, id);
            }
        }
        self.queues_max = self.queues_max.max(self.cfq.queues.len() as u64);
    }

    fn check_class(&self, id: RequestId) {
        let class = self.requests[id].origin.priority.class;
        let classes = self.waiting.keys().map(|id| self.requests[*id].origin.priority.class);
        assert!(classes.min().is_none_or(|other| class <= other), "seed {}: class", self.seed);
    }

    fn check_bound(&mut self, id: RequestId, waiting: Waiting) {
        let highest =
            if self.with_real_time { PriorityClass::RealTime } else { PriorityClass::BestEffort };
        let request = &self.requests[id];
        if request.origin.priority.class != highest {
            return;
        }
        let settings = &self.cfq.settings;
        let slice = settings.slice_sync.0.max(settings.slice_async.0) / 5 * 9;
        let turn = 3 * (DEVICE_MS * MS + self.tick.0) + slice + settings.slice_idle.0;
        let workload = settings.target_latency.0.max(2 * settings.slice_idle.0);
        let count = self.queues_max;
        let round = (count + 1) * (turn + workload)
            + count * settings.slice_sync.0 / 5 * 7
            + slice
            + settings.starved_after.unwrap().0;
        let bound = settings.fifo_expire(request.sync).0 + (waiting.older + 1) * round;
        let waited = self.now.since(waiting.since).0;
        assert!(waited <= bound, "seed {}: waited {waited} ns, not {bound}", self.seed);
        self.nearest_to_bound = self.nearest_to_bound.max(waited * 1000 / bound);
    }

    /// Advances the time; all due events happen in order.
    fn advance(&mut self, by: Nanos) {
        let until = self.now + by;
        loop {
            self.in_flight.sort();
            let ends = self.in_flight.first().map(|(end, _)| *end);
            let wakes = match self.cfq.work(self.jiffies()) {
                // The elevator's clock must have reached the time.
                Work::At(at) => Some(Nanos(at.0.next_multiple_of(self.tick.0))),
                _ => None,
            };
            let Some(next) = ends.into_iter().chain(wakes).min().filter(|at| *at <= until) else {
                break;
            };
            self.now = self.now.max(next);
            if ends == Some(next) {
                self.complete(0);
            }
            self.pump();
        }
        self.now = until;
        self.pump();
    }

    fn complete(&mut self, index: usize) {
        let (_, id) = self.in_flight.remove(index);
        let now = self.jiffies();
        self.cfq.completed(now, &self.requests, id);
        self.requests.remove(id);
        self.ended += 1;
    }

    fn operation(&mut self) {
        match self.random.below(100) {
            0..60 => self.submit(),
            60..90 => {
                let scale = [10_000, MS, 30 * MS][self.random.below(3) as usize];
                let by = Nanos(self.random.below(scale));
                self.advance(by);
            }
            90..96 if !self.in_flight.is_empty() => {
                let index = self.random.below(self.in_flight.len() as u64) as usize;
                self.complete(index);
            }
            96 => {
                let context = IoContext(self.random.below(CONTEXTS) as u32);
                let now = self.jiffies();
                self.cfq.exit_context(now, &self.requests, context);
            }
            97 => {
                let context = self.random.below(CONTEXTS) as usize;
                self.levels[context] = self.random.below(8) as u8;
            }
            98 => self.drain(),
            _ => {}
        }
        self.pump();
    }

    /// Without new requests, all requests end.
    fn drain(&mut self) {
        for _ in 0..10_000 {
            if self.waiting.is_empty() && self.in_flight.is_empty() {
                return;
            }
            if self.in_flight.is_empty() {
                let work = self.cfq.work(self.jiffies());
                assert!(matches!(work, Work::At(_)), "seed {}: stuck, {work:?}", self.seed);
            }
            self.advance(Nanos(DEVICE_MS * MS));
        }
        panic!("seed {}: requests wait for ever", self.seed);
    }

    fn check_counters(&self) {
        let seed = self.seed;
        let cfq = &self.cfq;
        assert_eq!(self.inserted, self.ended + self.absorbed + self.count(), "seed {seed}");
        assert_eq!(cfq.waiting, self.waiting.len(), "seed {seed}");
        assert_eq!(cfq.in_flight.iter().sum::<u32>() as usize, self.in_flight.len());
        let in_flight = self.in_flight.iter().map(|(_, id)| *id);
        let requests = self.waiting.keys().copied().chain(in_flight);
        let mut ids: BTreeSet<_> = requests.map(|id| cfq.entry(id).queue).collect();
        ids.extend(cfq.contexts.iter().filter_map(|context| context.sync_queue));
        ids.extend(cfq.async_queues.iter().flatten());
        ids.extend(cfq.active.iter().map(|slice| slice.queue));
        let targets: Vec<_> = ids.iter().filter_map(|id| cfq.queue(*id).merge_into).collect();
        ids.extend(targets);
        assert_eq!(ids.len(), cfq.queues.len(), "seed {seed}: a queue is leaked");
        let queues = || ids.iter().map(|id| cfq.queue(*id));
        let len: usize = queues().map(|queue| queue.waiting.len()).sum();
        let dispatched: u32 = queues().map(|queue| queue.dispatched).sum();
        let busy = queues().filter(|queue| queue.place.is_some()).count();
        let busy_sync = queues().filter(|queue| queue.sync && queue.place.is_some()).count();
        assert_eq!((len, dispatched as usize), (cfq.waiting, self.in_flight.len()), "seed {seed}");
        assert_eq!((busy, busy_sync), (cfq.service.busy as usize, cfq.service.busy_sync as usize));
        for queue in queues() {
            let is_active = |id: CfqqId| cfq.active.as_ref().is_some_and(|slice| slice.queue == id);
            assert!(queue.is_empty() == queue.waiting.next().is_none());
            assert!(
                !queue.is_empty() || queue.place.is_none() || ids.iter().any(|id| is_active(*id))
            );
        }
        let found: usize = cfq.positions.iter().map(SortTree::len).sum();
        let findable = queues().filter(|queue| queue.position.is_some()).count();
        assert_eq!(found, findable, "seed {seed}");
    }

    fn count(&self) -> u64 {
        (self.waiting.len() + self.in_flight.len()) as u64
    }
}

#[test]
fn random_submitters_lose_nothing_and_wait_within_the_bound() {
    let mut given = 0;
    let mut nearest = 0;
    let mut merged = 0;
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        for step in 0..OPERATIONS {
            world.operation();
            if step % 64 == 0 {
                world.check_counters();
            }
        }
        world.drain();
        for context in 0..CONTEXTS {
            let now = world.jiffies();
            world.cfq.exit_context(now, &world.requests, IoContext(context as u32));
        }
        world.check_counters();
        let shared = world.cfq.async_queues.iter().flatten().count();
        assert_eq!(world.cfq.queues.len(), shared, "seed {seed}: a queue outlived its submitter");
        given += world.given;
        merged += world.absorbed;
        nearest = nearest.max(world.nearest_to_bound);
    }
    // The test requires a minimum of activity.
    assert!(given > 100_000 && merged > 100, "given {given}, merged {merged}");
    assert!(nearest > 20, "the longest wait was {nearest} thousandths of the bound");
}
