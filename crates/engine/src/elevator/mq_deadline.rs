//! `mq-deadline` with priorities: three levels, batches of one direction in the order of the
//! sectors, a deadline for each request (`block/mq-deadline.c` since 5.14).
//!
//! ```text
//!               reads (sorted, FIFO)   writes (sorted, FIFO)   positions
//!   real time   ....                   ....                    r, w      served first
//!   best effort ....                   ....                    r, w
//!   idle        ....                   ....                    r, w      served last
//!               \_________________________________________________/
//!                 one batch, one direction, one count of passed writes for all levels
//! ```
//!
//! A level with a request waiting *or at the device* keeps all lower levels waiting. A request of a
//! lower level goes first nevertheless after it has waited for `prio_aging_expire`.
//!
//! The next request of a batch is the first one at or after the position of the last one, looked up
//! anew each time: an insertion after the position is seen. (`deadline` determines its next request
//! when it dispatches.) At the end of the disk the oldest request is next, not the one with the
//! lowest sector.
//!
//! Bound for the most urgent class in use, with `w = writes_starved` and `b = fifo_batch`: when a
//! request's deadline has passed and `k` of its class and direction came before it, at most `b + b
//! (k + 1) w + b k` requests pass a write, and `b + b k + b (1 + k / w)` pass a read (`w` at least
//! 1), unless a lower class has aged requests. A request of a lower class has no bound while new
//! ones of its own class come, because the kernel checks the age of the next request, not of the
//! oldest. Without new ones, all requests of its class go first after `prio_aging_expire`.
//!
//! Our choice: a check of an aged level that finds nothing changes nothing. In the kernel it may
//! reset the batch and count a batch of reads.
//! the batch and count a batch of reads.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::fifo::Fifo;
use super::sort::SortTree;
use super::{Attached, Candidate, Elevator, ElevatorType, Facts, Generation, Merged, Side};
use super::{Tunable, Tunables, Work};
use crate::bio::{IoContext, Op, Sector};
use crate::priority::PriorityClass;
use crate::request::{Request, RequestId, Requests};
use crate::time::Nanos;

/// Greatest value of a tunable in the kernel (`INT_MAX`).
const INT_MAX: u64 = i32::MAX as u64;

/// The elevator's type.
pub static MQ_DEADLINE: ElevatorType = ElevatorType {
    name: "mq-deadline",
    about: "sorted batches, a deadline for each request; more urgent priority classes go first",
    generation: Generation::Multi,
    tunables: &[
        Tunable {
            name: "read_expire",
            default: 500,
            min: 0,
            max: INT_MAX,
            unit: "ms",
            about: "a read that has waited this long starts the next batch of reads",
        },
        Tunable {
            name: "write_expire",
            default: 5000,
            min: 0,
            max: INT_MAX,
            unit: "ms",
            about: "a write that has waited this long starts the next batch of writes",
        },
        Tunable {
            name: "writes_starved",
            default: 2,
            min: 0,
            max: INT_MAX,
            unit: "",
            about: "batches of reads that may pass waiting writes",
        },
        Tunable {
            name: "front_merges",
            default: 1,
            min: 0,
            max: 1,
            unit: "",
            about: "merge bios to the front of a request",
        },
        Tunable {
            name: "fifo_batch",
            default: 16,
            min: 1,
            max: INT_MAX,
            unit: "",
            about: "requests of one batch, in the order of their sectors",
        },
        Tunable {
            name: "prio_aging_expire",
            default: 10_000,
            min: 0,
            max: INT_MAX,
            unit: "ms",
            about: "a request that has waited this long goes before more urgent classes",
        },
        Tunable {
            name: "async_depth",
            default: 0,
            min: 0,
            max: INT_MAX,
            unit: "",
            about: "limit of requests other than reads; 0: nr_requests",
        },
    ],
    attach,
};

fn attach(tunables: &Tunables<'_>, facts: Facts) -> Attached {
    let async_depth = match tunables.value("async_depth") {
        0 => facts.nr_requests,
        depth => {
            u32::try_from(depth).map_or(facts.nr_requests, |depth| depth.min(facts.nr_requests))
        }
    };
    let policy = MqDeadline {
        expire: ["read_expire", "write_expire"].map(|name| Nanos::from_ms(tunables.value(name))),
        writes_starved: tunables.value("writes_starved"),
        front_merges: tunables.value("front_merges") == 1,
        fifo_batch: tunables.value("fifo_batch"),
        prio_aging_expire: Nanos::from_ms(tunables.value("prio_aging_expire")),
        levels: Default::default(),
        places: Vec::new(),
        waiting: 0,
        batching: 0,
        starved: 0,
        last_direction: Direction::Write,
    };
    Attached { policy: Some(Box::new(policy)), async_depth: Some(async_depth) }
}

/// Read, or write, which includes all operations that change the device (`rq_data_dir`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

impl Direction {
    fn of(op: Op) -> Self {
        if op == Op::Read { Self::Read } else { Self::Write }
    }
}

/// Requests of one priority class (`struct dd_per_prio`). Arrays are by direction.
#[derive(Debug, Default)]
struct Level {
    sorted: [SortTree; 2],
    fifo: [Fifo; 2],
    /// Start of the last dispatched request (`latest_pos`).
    position: [Sector; 2],
    /// Number of inserted and not completed requests, including those at the device.
    queued: u32,
}

impl Level {
    fn is_waiting(&self, direction: Direction) -> bool {
        !self.fifo[direction as usize].is_empty()
    }

    /// The first request at or after the position (`deadline_next_request`).
    fn next(&self, direction: Direction) -> Option<RequestId> {
        self.sorted[direction as usize].first_from(self.position[direction as usize])
    }

    fn remove(&mut self, direction: Direction, request: RequestId) {
        self.sorted[direction as usize].remove(request);
        self.fifo[direction as usize].remove(request);
    }
}

/// Place of a request, from its insertion to its completion.
#[derive(Clone, Copy, Debug)]
struct Place {
    class: usize,
    direction: Direction,
    /// Insertion time of the request, or of an older one that it absorbed. The deadline is this
    /// time plus the expiry of the direction (`fifo_time`, `started_after`).
    started: Nanos,
}

/// The next request, and whether it starts a batch.
#[derive(Clone, Copy, Debug)]
struct Choice {
    request: RequestId,
    new_batch: bool,
}

/// The mq-deadline policy.
#[derive(Debug)]
pub struct MqDeadline {
    /// Expiry by direction.
    expire: [Nanos; 2],
    writes_starved: u64,
    front_merges: bool,
    fifo_batch: u64,
    prio_aging_expire: Nanos,
    /// Levels by class, most urgent first.
    levels: [Level; 3],
    /// Places by request.
    places: Vec<Option<Place>>,
    /// Number of requests of all levels that are not at the device.
    waiting: u32,
    /// Number of requests in the batch, of all levels.
    batching: u64,
    /// Number of read batches that have passed waiting writes.
    starved: u64,
    last_direction: Direction,
}

impl MqDeadline {
    fn place(&self, request: RequestId) -> Place {
        self.places[request.index()].expect("the request is inserted and not completed")
    }

    fn deadline(&self, request: RequestId) -> Nanos {
        let place = self.place(request);
        place.started + self.expire[place.direction as usize]
    }

    /// Time at which an aged request may go before more urgent classes.
    fn aged_at(&self, request: RequestId) -> Nanos {
        self.place(request).started + self.prio_aging_expire
    }

    /// Chooses an aged request of a lower class, otherwise one of the most urgent non-empty class.
    /// If all requests of that class are at the device, there is no choice (`dd_dispatch_request`).
    fn decide(&self, now: Nanos) -> Option<Choice> {
        let aged = |class| self.choose(class, now).filter(|next| self.aged_at(next.request) <= now);
        let mut queued = (0..self.levels.len()).filter(|class| self.levels[*class].queued > 0);
        let most_urgent = queued.next()?;
        if queued.next().is_some()
            && let Some(aged) = (1..self.levels.len()).find_map(aged)
        {
            return Some(aged);
        }
        self.choose(most_urgent, now)
    }

    /// Chooses within a class: the next of the batch, otherwise a new batch, of reads unless they
    /// have passed writes often enough. A new batch starts at the oldest request if that is expired
    /// or no request lies ahead (`__dd_dispatch_request`).
    fn choose(&self, class: usize, now: Nanos) -> Option<Choice> {
        let level = &self.levels[class];
        if self.batching < self.fifo_batch
            && let Some(request) = level.next(self.last_direction)
        {
            return Some(Choice { request, new_batch: false });
        }
        let direction = match [Direction::Read, Direction::Write].map(|way| level.is_waiting(way)) {
            [false, false] => return None,
            [true, false] => Direction::Read,
            [true, true] if self.starved < self.writes_starved => Direction::Read,
            [_, true] => Direction::Write,
        };
        let oldest = level.fifo[direction as usize].front().expect("a request waits");
        let ahead = level.next(direction).filter(|_| now < self.deadline(oldest));
        Some(Choice { request: ahead.unwrap_or(oldest), new_batch: true })
    }

    fn begin_batch(&mut self, place: Place) {
        self.batching = 0;
        self.last_direction = place.direction;
        match place.direction {
            Direction::Write => self.starved = 0,
            Direction::Read if self.levels[place.class].is_waiting(Direction::Write) => {
                self.starved += 1;
            }
            Direction::Read => {}
        }
    }

    /// Time at which the next request of a class that waits for more urgent ones may go because of
    /// its age.
    fn ages_at(&self, class: usize, now: Nanos) -> Option<Nanos> {
        let next = self.choose(class, now)?;
        let ages = self.aged_at(next.request);
        if !next.new_batch {
            return Some(ages);
        }
        // When the oldest request expires, it becomes the next one.
        let direction = self.place(next.request).direction;
        let oldest = self.levels[class].fifo[direction as usize].front().expect("a request waits");
        let late = self.deadline(oldest);
        Some(if ages < late { ages } else { self.aged_at(oldest).max(late) })
    }

    /// Removes a request from its level's counts.
    fn forget(&mut self, request: RequestId) {
        let place = self.place(request);
        self.places[request.index()] = None;
        self.levels[place.class].queued -= 1;
    }
}

impl Elevator for MqDeadline {
    fn allow_merge(&self, requests: &Requests, request: RequestId, candidate: &Candidate) -> bool {
        let front_of_bio = candidate.request.is_none() && candidate.side == Side::Front;
        class_of(requests[request].origin.priority.class)
            == class_of(candidate.origin.priority.class)
            && (self.front_merges || !front_of_bio)
    }

    fn insert(&mut self, now: Nanos, requests: &Requests, request: RequestId) {
        let Request { op, sector, origin, .. } = requests[request];
        let place = Place {
            class: class_of(origin.priority.class),
            direction: Direction::of(op),
            started: now,
        };
        if self.places.len() <= request.index() {
            self.places.resize(request.index() + 1, None);
        }
        assert!(self.places[request.index()].is_none(), "a request is inserted once");
        self.places[request.index()] = Some(place);
        let level = &mut self.levels[place.class];
        level.sorted[place.direction as usize].insert(request, sector);
        level.fifo[place.direction as usize].push_back(request);
        level.queued += 1;
        // The place, the level, and its list.
        requests.visit(3);
        requests.search(level.sorted[place.direction as usize].len());
        self.waiting += 1;
    }

    fn merged(&mut self, _: Nanos, requests: &Requests, request: RequestId, how: Merged) {
        let place = self.place(request);
        let way = place.direction as usize;
        match how {
            Merged::Back => {}
            Merged::Front => {
                let sorted = &mut self.levels[place.class].sorted[way];
                sorted.remove(request);
                sorted.insert(request, requests[request].sector);
            }
            Merged::Absorbed(absorbed) => {
                let gone = self.place(absorbed);
                assert!(gone.class == place.class, "merges stay inside a level");
                assert!(gone.direction == place.direction);
                let level = &mut self.levels[place.class];
                level.sorted[way].remove(absorbed);
                if gone.started < place.started {
                    level.fifo[way].take_place(request, absorbed);
                    self.places[request.index()] = Some(gone);
                } else {
                    level.fifo[way].remove(absorbed);
                }
                self.forget(absorbed);
                self.waiting -= 1;
            }
        }
    }

    fn dispatch(&mut self, now: Nanos, requests: &Requests) -> Option<RequestId> {
        // The levels, the batch, and the search at its position.
        requests.visit(1 + self.levels.len() as u32);
        let Choice { request, new_batch } = self.decide(now)?;
        let place = self.place(request);
        let len = self.levels[place.class].sorted[place.direction as usize].len();
        requests.search(len);
        if new_batch {
            self.begin_batch(place);
            // Both directions, the oldest request, and another search.
            requests.visit(3);
            requests.search(len);
        }
        // The list and the tree that the request leaves, and its place.
        requests.visit(2);
        requests.search(len);
        self.batching += 1;
        self.waiting -= 1;
        let level = &mut self.levels[place.class];
        level.remove(place.direction, request);
        level.position[place.direction as usize] = requests[request].sector;
        Some(request)
    }

    /// The request stays counted in its level, and so keeps lower ones waiting.
    fn requeued(&mut self, _: Nanos, _: &Requests, _: RequestId) {}

    fn completed(&mut self, _: Nanos, requests: &Requests, request: RequestId) {
        self.forget(request);
        requests.visit(2);
    }

    fn exit_context(&mut self, _: Nanos, _: &Requests, _: IoContext) {}

    fn work(&self, now: Nanos) -> Work {
        if self.waiting == 0 {
            return Work::None;
        }
        if self.decide(now).is_some() {
            return Work::Now;
        }
        let ages = (1..self.levels.len()).filter_map(|class| self.ages_at(class, now)).min();
        Work::At(ages.expect("what waits behind a more urgent class ages"))
    }
}

/// The level of a class.
fn class_of(class: PriorityClass) -> usize {
    match class {
        PriorityClass::RealTime => 0,
        PriorityClass::BestEffort => 1,
        PriorityClass::Idle => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::super::ElevatorSpec;
    use super::*;
    use crate::bio::Bio;
    use crate::buf::BufRef;
    use crate::priority::Priority;

    const FACTS: Facts = Facts { rotational: true, nr_requests: 64, queue_depth: 32 };

    fn attached(text: &str) -> Attached {
        ElevatorSpec::parse(text).unwrap().attach(FACTS)
    }

    fn request(requests: &mut Requests, op: Op, sector: u64, priority: Priority) -> RequestId {
        let mut bio = Bio::new(op, Sector(sector), Sector(8), BufRef::NONE, 0);
        bio.origin.priority = priority;
        requests.insert(Request::new(&bio, 0))
    }

    #[test]
    fn async_depth_of_nothing_or_of_too_much_is_that_of_the_queue() {
        for (text, depth) in [("", 64), (",async_depth=48", 48), (",async_depth=1000", 64)] {
            assert_eq!(attached(&alloc::format!("mq-deadline{text}")).async_depth, Some(depth));
        }
    }

    #[test]
    fn requests_that_came_back_from_the_device_still_block_lower_classes() {
        let mut policy = attached("mq-deadline").policy.unwrap();
        let mut requests = Requests::default();
        let urgent = request(&mut requests, Op::Read, 0, Priority::real_time(0));
        let other = request(&mut requests, Op::Read, 8, Priority::default());
        policy.insert(Nanos(0), &requests, urgent);
        policy.insert(Nanos(0), &requests, other);
        assert_eq!(policy.dispatch(Nanos(0), &requests), Some(urgent));
        policy.requeued(Nanos(0), &requests, urgent);
        assert_eq!(policy.dispatch(Nanos(0), &requests), None);
        assert_eq!(policy.work(Nanos(0)), Work::At(Nanos::from_ms(10_000)));
        policy.completed(Nanos(0), &requests, urgent);
        assert_eq!(policy.work(Nanos(0)), Work::Now);
        assert_eq!(policy.dispatch(Nanos(0), &requests), Some(other));
    }

    /// The time in `work` is exact: before it no request can be dispatched, at it one can.
    #[test]
    fn time_of_the_next_work_is_exact() {
        let mut seed = 1_u64;
        let mut draw = |below: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let mut sleeps = 0;
        for _ in 0..2000 {
            let text = alloc::format!(
                "mq-deadline,fifo_batch={},read_expire={},write_expire={},prio_aging_expire={}",
                1 + draw(3),
                draw(20),
                draw(20),
                draw(20),
            );
            let mut policy = attached(&text).policy.unwrap();
            let mut requests = Requests::default();
            let mut now = Nanos(0);
            for _ in 0..20 {
                now = now + Nanos(draw(4_000_000));
                let op = if draw(2) == 0 { Op::Read } else { Op::Write };
                let priorities = [Priority::real_time(0), Priority::default(), Priority::IDLE];
                let priority = priorities[usize::try_from(draw(3)).unwrap()];
                let id = request(&mut requests, op, draw(64), priority);
                policy.insert(now, &requests, id);
                // The dispatched request stays at the device.
                if draw(2) == 0 {
                    policy.dispatch(now, &requests);
                }
            }
            loop {
                match policy.work(now) {
                    Work::None => break,
                    Work::Now => assert!(policy.dispatch(now, &requests).is_some(), "{text}"),
                    Work::At(then) => {
                        assert!(then > now, "{text}");
                        assert_eq!(policy.dispatch(then - Nanos(1), &requests), None, "{text}");
                        now = then;
                        assert!(policy.dispatch(now, &requests).is_some(), "{text}");
                        sleeps += 1;
                    }
                    Work::AfterCompletion => panic!("{text}: what waits ages"),
                }
            }
        }
        assert!(sleeps > 1000, "{sleeps}");
    }
}
