//! Random submitters on a random device: no request is lost or dispatched twice, the counters are
//! right, nothing stalls, and no request is passed by more than the bound in the policy's
//! documentation.

use alloc::collections::BTreeSet;

use super::*;

const SEEDS: u64 = 40;
const OPERATIONS: u32 = 20_000;
const CONTEXTS: u64 = 6;
const MS: u64 = 1_000_000;
/// Longest service time of a request.
const DEVICE_MS: u64 = 20;
const WAITING_MAX: usize = 96;
const SECTORS: [u64; 4] = [8, 8, 64, 256];

/// The model's state of a waiting request.
struct Waiting {
    deadline: Nanos,
    /// Number of older requests in its queue.
    older: u64,
    /// Sectors of its class that have passed it since it is overdue.
    passed: u64,
}

struct World {
    seed: u64,
    random: Random,
    requests: Requests,
    bfq: Bfq,
    now: Nanos,
    depth: usize,
    priorities: Vec<Priority>,
    waiting: BTreeMap<RequestId, Waiting>,
    /// End of each request in flight.
    in_flight: Vec<(Nanos, RequestId)>,
    given: u64,
    largest_budget: u64,
    /// Nearest approach to the bound, in thousandths of it.
    nearest_to_bound: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let tunables = [
            ("slice_idle", random.one_of(&[0, 8, 8, 8])),
            ("max_budget", random.one_of(&[0, 0, 300, 5000])),
            ("low_latency", seed % 2),
            ("strict_guarantees", u64::from(random.one_in(5))),
            ("back_seek_max", random.one_of(&[0, 16_384])),
        ];
        let highest = random.one_of(&[Priority::real_time(0), Priority::best_effort(0)]);
        let priorities = (0..CONTEXTS).map(|context| {
            let level = random.one_of(&[0, 4, 4, 7]);
            match context {
                0 => Priority::IDLE,
                1..4 => Priority { level, ..highest },
                _ => Priority::best_effort(level),
            }
        });
        let priorities = priorities.collect();
        Self {
            seed,
            requests: Requests::default(),
            bfq: bfq(&tunables, random.one_in(2)),
            now: Nanos(0),
            depth: random.one_of(&[1, 2, 8]),
            priorities,
            random,
            waiting: BTreeMap::new(),
            in_flight: Vec::new(),
            given: 0,
            largest_budget: 0,
            nearest_to_bound: 0,
        }
    }

    fn submit(&mut self) {
        if self.waiting.len() >= WAITING_MAX {
            return;
        }
        let context = self.random.below(CONTEXTS);
        let len = self.random.one_of(&SECTORS);
        let far = self.random.one_in(2);
        let sector = context << 20 | self.random.below(if far { 1 << 20 } else { 1 << 8 });
        let op = if self.random.one_in(3) { Op::Write } else { Op::Read };
        let mut bio = Bio::new(op, Sector(sector), Sector(len), BufRef::NONE, 0);
        bio.origin = Origin {
            io_context: IoContext(context as u32),
            priority: self.priorities[context as usize],
            sync: op == Op::Read || self.random.one_in(3),
            ..Origin::default()
        };
        let id = self.requests.insert(Request::new(&bio, 0));
        self.bfq.insert(self.now, &self.requests, id);
        let Entry { queue, deadline } = self.bfq.entry(id);
        let older = self.bfq.queue(queue).waiting.len() as u64 - 1;
        let waiting = Waiting { deadline, older, passed: 0 };
        assert!(self.waiting.insert(id, waiting).is_none());
    }

    /// Dispatches as many requests as the device takes.
    fn pump(&mut self) {
        while self.in_flight.len() < self.depth {
            self.largest_budget = self.largest_budget.max(self.bfq.largest_budget());
            let work = self.bfq.work(self.now);
            let given = self.bfq.dispatch(self.now, &self.requests);
            match work {
                Work::None => assert!(self.waiting.is_empty() && given.is_none()),
                Work::At(_) | Work::AfterCompletion => assert!(given.is_none()),
                Work::Now => {}
            }
            let Some(id) = given else { break };
            let waited = self.waiting.remove(&id);
            let waited = waited.unwrap_or_else(|| panic!("seed {}: {id:?} again", self.seed));
            self.check_bound(id, &waited);
            self.pass(id);
            self.given += 1;
            let end = self.now + Nanos(1 + self.random.below(DEVICE_MS * MS - 1));
            self.in_flight.push((end, id));
            if self.random.one_in(16) {
                self.bfq.requeued(self.now, &self.requests, id);
            }
        }
    }

    /// Counts a dispatched request for all overdue ones of its class.
    fn pass(&mut self, id: RequestId) {
        let rq = &self.requests[id];
        let class = rq.origin.priority.class;
        for (other, waiting) in &mut self.waiting {
            let is_of_class = self.requests[*other].origin.priority.class == class;
            if waiting.deadline <= self.now && is_of_class {
                waiting.passed += rq.len.0;
            }
        }
    }

    fn check_bound(&mut self, id: RequestId, waiting: &Waiting) {
        let priority = self.requests[id].origin.priority;
        if self.bfq.settings.low_latency || priority.class != self.priorities[1].class {
            return;
        }
        // Queues of its class: one for each submitter, and one for each priority.
        let queues = 2 * CONTEXTS;
        let weights = queues * 80;
        let weight = (8 - u64::from(priority.level)) * 10;
        let turn = self.largest_budget + 3 * SECTORS[3];
        let bound = (waiting.older + 1) * (2 * weights * turn / weight + queues * turn);
        let passed = waiting.passed;
        assert!(passed <= bound, "seed {}: {passed} sectors passed, not {bound}", self.seed);
        self.nearest_to_bound = self.nearest_to_bound.max(passed * 1000 / bound);
    }

    /// Advances the time; all due events happen in order.
    fn advance(&mut self, by: Nanos) {
        let until = self.now + by;
        loop {
            self.in_flight.sort();
            let ends = self.in_flight.first().map(|(end, _)| *end);
            let wakes = match self.bfq.work(self.now) {
                Work::At(at) => Some(at),
                _ => None,
            };
            let next = ends.into_iter().chain(wakes).min().filter(|at| *at <= until);
            let Some(next) = next else { break };
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
        self.bfq.completed(self.now, &self.requests, id);
        self.requests.remove(id);
    }

    fn operation(&mut self) {
        match self.random.below(100) {
            0..60 => self.submit(),
            60..90 => {
                let scale = self.random.one_of(&[10_000, MS, 30 * MS]);
                let by = Nanos(self.random.below(scale));
                self.advance(by);
            }
            90..96 if !self.in_flight.is_empty() => {
                let index = self.random.below(self.in_flight.len() as u64) as usize;
                self.complete(index);
            }
            96 => {
                let context = IoContext(self.random.below(CONTEXTS) as u32);
                self.bfq.exit_context(self.now, &self.requests, context);
            }
            97 if self.random.one_in(20) => self.drain(),
            98 if self.random.one_in(20) && self.bfq.settings.low_latency => self.reprioritise(),
            _ => {}
        }
        self.pump();
    }

    /// Gives a submitter another priority; its waiting requests keep theirs.
    fn reprioritise(&mut self) {
        let context = self.random.below(CONTEXTS) as usize;
        let level = self.random.below(8) as u8;
        let classes = [Priority::IDLE, Priority::real_time(level), Priority::best_effort(level)];
        self.priorities[context] = self.random.one_of(&classes);
    }

    /// Without new requests, all requests end.
    fn drain(&mut self) {
        for _ in 0..10_000 {
            if self.waiting.is_empty() && self.in_flight.is_empty() {
                return;
            }
            if self.in_flight.is_empty() {
                let work = self.bfq.work(self.now);
                assert!(matches!(work, Work::At(_)), "seed {}: stuck, {work:?}", self.seed);
            }
            self.advance(Nanos(DEVICE_MS * MS));
        }
        panic!("seed {}: requests wait for ever", self.seed);
    }

    fn check_counters(&self) {
        let seed = self.seed;
        let bfq = &self.bfq;
        let in_flight = self.in_flight.iter().map(|(_, id)| *id);
        let requests = self.waiting.keys().copied().chain(in_flight);
        let mut ids: BTreeSet<BfqqId> = requests.map(|id| bfq.entry(id).queue).collect();
        ids.extend(bfq.sync_queues.values());
        ids.extend(bfq.async_queues.iter().flatten());
        ids.extend(bfq.turn.iter().map(|turn| turn.queue));
        assert_eq!(ids.len(), bfq.queues.len(), "seed {seed}: a queue is leaked");
        let queues = || ids.iter().map(|id| bfq.queue(*id));
        let waiting: usize = queues().map(|queue| queue.waiting.len()).sum();
        assert_eq!((waiting, waiting), (bfq.waiting, self.waiting.len()), "seed {seed}");
        let in_flight: u32 = queues().map(|queue| queue.dispatched).sum();
        assert_eq!((in_flight, self.in_flight.len()), (bfq.in_flight, in_flight as usize));
        let busy = || queues().filter(|queue| queue.is_busy);
        assert_eq!(busy().count(), bfq.classes.busy() as usize, "seed {seed}");
        let in_trees: usize = bfq.classes.trees().iter().map(|tree| tree.len()).sum();
        assert_eq!(in_trees + usize::from(bfq.turn.is_some()), busy().count(), "seed {seed}");
        let raised = busy().filter(|queue| queue.raising.is_raised()).count();
        assert_eq!(raised, bfq.raised_busy as usize, "seed {seed}");
        let counted = queues().filter(|queue| queue.counted.is_some()).count();
        assert_eq!(counted, bfq.weights.count() as usize, "seed {seed}");
        for queue in queues() {
            let is_active = queue.is_busy || queue.dispatched > 0;
            assert!(queue.counted.is_none() || is_active, "seed {seed}: an idle queue counts");
            assert!(queue.waiting.is_empty() || queue.is_busy, "seed {seed}: a queue is forgotten");
        }
    }
}

#[test]
fn random_submitters_lose_nothing_and_are_passed_within_the_bound() {
    let mut given = 0;
    let mut nearest = 0;
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
            world.bfq.exit_context(world.now, &world.requests, IoContext(context as u32));
        }
        world.check_counters();
        let shared = world.bfq.async_queues.iter().flatten().count();
        assert_eq!(world.bfq.queues.len(), shared, "seed {seed}: a queue outlived its submitter");
        given += world.given;
        nearest = nearest.max(world.nearest_to_bound);
    }
    // The test requires a minimum of activity.
    assert!(given > 100_000 && nearest > 20, "given {given}, nearest {nearest} thousandths");
}
