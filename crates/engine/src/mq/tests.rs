//! Cases that golden traces cannot show: two queues, other elevators, content, the flush guarantee.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::*;
use crate::bio::BlkStatus;
use crate::buf::BufRef;
use crate::elevator::fifo::Fifo;
use crate::elevator::{Candidate, ElevatorType, Merged, Tunables};
use crate::priority::Priority;

const MS: fn(u64) -> Nanos = Nanos::from_ms;

fn read(sector: u64, user: u64) -> Bio {
    Bio::new(Op::Read, Sector(sector), Sector(8), BufRef::zeros(4096), user)
}

fn write(sector: u64, user: u64) -> Bio {
    Bio { op: Op::Write, ..read(sector, user) }
}

fn named(name: &str) -> ElevatorSpec {
    ElevatorSpec::parse(name).unwrap()
}

fn dispatch(queue: &mut RequestQueue, now: Nanos) -> Vec<Issue> {
    let mut out = Vec::new();
    queue.dispatch(now, &mut out);
    out
}

fn users(queue: &RequestQueue, tag: Tag) -> Vec<u64> {
    queue.bios(tag).map(|bio| bio.user).collect()
}

fn done(queue: &mut RequestQueue) -> Vec<u64> {
    let mut out = Vec::new();
    queue.take_done(&mut out);
    out.iter().map(|done| done.user).collect()
}

/// A probe elevator: first come, first served; idles for 10 ms after each request; at most one
/// asynchronous request. It checks the consistency of all its calls.
#[derive(Default)]
struct Probe {
    queue: Fifo,
    dispatched: i32,
    idle_until: Nanos,
}

static PROBE: ElevatorType = ElevatorType {
    name: "probe",
    about: "for tests",
    generation: Generation::Multi,
    tunables: &[],
    attach: |_: &Tunables<'_>, _: Facts| Attached {
        policy: Some(Box::new(Probe::default())),
        async_depth: Some(1),
    },
};

/// Tick of the probe's clock.
const TICK: Nanos = Nanos::from_ms(4);

impl Elevator for Probe {
    fn allow_merge(&self, _: &Requests, request: RequestId, _: &Candidate) -> bool {
        assert!(self.queue.contains(request), "asked about what it does not have");
        false
    }

    fn insert(&mut self, now: Nanos, requests: &Requests, request: RequestId) {
        assert_eq!((now.0 % TICK.0, requests[request].inserted), (0, now));
        self.queue.push_back(request);
    }

    fn merged(&mut self, _: Nanos, _: &Requests, _: RequestId, _: Merged) {
        panic!("it does not allow merging");
    }

    fn dispatch(&mut self, now: Nanos, _: &Requests) -> Option<RequestId> {
        if now < self.idle_until {
            return None;
        }
        self.dispatched += i32::from(!self.queue.is_empty());
        self.queue.pop_front()
    }

    fn requeued(&mut self, _: Nanos, _: &Requests, _: RequestId) {
        assert!(self.dispatched > 0);
    }

    fn completed(&mut self, now: Nanos, _: &Requests, _: RequestId) {
        self.dispatched -= 1;
        assert!(self.dispatched >= 0, "told of the end of what it did not give");
        self.idle_until = now + MS(10);
    }

    fn exit_context(&mut self, _: Nanos, _: &Requests, _: IoContext) {}

    fn work(&self, now: Nanos) -> Work {
        match self.queue.front() {
            None => Work::None,
            Some(_) if now < self.idle_until => Work::At(self.idle_until),
            Some(_) => Work::Now,
        }
    }
}

fn probed(queue_depth: u32) -> RequestQueue {
    let config = QueueConfig { queue_depth, tick: TICK, ..QueueConfig::default() };
    RequestQueue::new(config, &ElevatorSpec::of(&PROBE))
}

#[test]
fn elevator_sees_ticks_and_is_woken_when_its_clock_has_come_so_far() {
    let mut queue = probed(1);
    queue.submit_bio(MS(5), read(0, 1));
    queue.submit_bio(MS(5), read(100, 2));
    let first = dispatch(&mut queue, MS(5))[0];
    assert_eq!(queue.wake_at(), None, "the device is full");
    queue.complete(MS(6), first.tag, BlkStatus::Ok);
    // The probe's clock shows 4 ms, so it idles until 14 ms, which the clock reaches at 16 ms only.
    assert_eq!(queue.wake_at(), Some(MS(16)));
    assert!(dispatch(&mut queue, MS(15)).is_empty());
    assert_eq!(dispatch(&mut queue, MS(16)).len(), 1);
}

#[test]
fn elevator_is_not_told_of_flushes_and_of_requests_past_it() {
    let mut queue = probed(4);
    queue.submit_bio(MS(0), Bio { preflush: true, fua: true, ..write(0, 1) });
    for _ in 0..3 {
        let issue = dispatch(&mut queue, MS(0))[0];
        queue.busy(MS(0), issue.tag);
        let again = dispatch(&mut queue, MS(3))[0];
        queue.complete(MS(3), again.tag, BlkStatus::Ok);
    }
    assert_eq!(done(&mut queue), [1]);
    assert_eq!((queue.counters().flushes, queue.counters().requeued), (2, 3));
    assert!(queue.is_idle());
}

/// The device may keep the data for any time.
#[test]
fn flush_waits_five_seconds_for_data_of_others_and_then_goes() {
    let mut queue = RequestQueue::new(QueueConfig::default(), &named("none"));
    queue.submit_bio(MS(0), Bio { fua: true, ..write(0, 1) });
    let data = dispatch(&mut queue, MS(0))[0];
    assert_eq!((data.op, queue.wake_at()), (Op::Write, None));
    queue.submit_bio(MS(7), Bio::new(Op::Flush, Sector(0), Sector(0), BufRef::NONE, 2));
    queue.submit_bio(MS(9), Bio::new(Op::Flush, Sector(0), Sector(0), BufRef::NONE, 3));
    assert!(dispatch(&mut queue, MS(9)).is_empty(), "its flush is likely to follow");
    assert_eq!(queue.wake_at(), Some(MS(5007)));
    assert!(dispatch(&mut queue, MS(5006)).is_empty());
    let flush = dispatch(&mut queue, MS(5007))[0];
    assert_eq!((flush.op, queue.wake_at()), (Op::Flush, None));
    queue.complete(MS(5008), flush.tag, BlkStatus::Ok);
    assert_eq!(done(&mut queue), [2, 3], "one flush serves both");
}

#[test]
fn asynchronous_requests_are_limited_and_synchronous_ones_pass_their_waiters() {
    let mut queue = probed(4);
    assert_eq!(queue.submit_bio(MS(0), write(0, 1)), Submitted::Accepted);
    assert_eq!(queue.submit_bio(MS(0), write(100, 2)), Submitted::Parked);
    assert_eq!(queue.submit_bio(MS(0), read(200, 3)), Submitted::Accepted);
    let issues = dispatch(&mut queue, MS(0));
    assert_eq!(issues.len(), 2);
    queue.complete(MS(0), issues[1].tag, BlkStatus::Ok);
    let mut unparked = Vec::new();
    queue.take_unparked(&mut unparked);
    assert!(unparked.is_empty(), "a read's end is no room for a write");
    queue.complete(MS(0), issues[0].tag, BlkStatus::Ok);
    queue.take_unparked(&mut unparked);
    assert_eq!(unparked, [2]);
}

/// Pitfall 32, and `ioprio_best`.
#[test]
fn merged_request_keeps_its_sync_and_gets_the_most_urgent_priority() {
    let mut queue = RequestQueue::new(QueueConfig::of(Generation::Single), &named("noop"));
    let mut bios = [write(0, 1), write(8, 2), write(16, 3)];
    bios[1].origin.priority = Priority::real_time(3);
    bios[2].origin.sync = true;
    for bio in bios {
        queue.submit_bio(MS(0), bio);
    }
    let issues = dispatch(&mut queue, MS(0));
    assert_eq!(users(&queue, issues[0].tag), [1, 2, 3]);
    let origin = issues[0].origin;
    assert_eq!((origin.sync, origin.priority), (false, Priority::real_time(3)));
    assert_eq!((issues[0].len, issues[0].segments), (Sector(24), 3));
}

/// A clone takes one of the tags that are also requests.
#[test]
fn clone_without_an_elevator_counts_as_a_request() {
    let config = QueueConfig { queue_depth: 1, plug: PlugRule::Off, ..QueueConfig::default() };
    let mut upper = RequestQueue::new(config, &named("none"));
    let mut lower = RequestQueue::new(config, &named("none"));
    upper.submit_bio(MS(0), read(0, 1));
    let above = dispatch(&mut upper, MS(0))[0];
    let issue = lower.issue_directly(MS(0), &above).unwrap();
    assert_eq!(lower.submit_bio(MS(0), read(100, 2)), Submitted::Parked);
    assert_eq!(lower.end_clone(MS(0), issue.tag).above, above.tag);
    assert_eq!(lower.issue_directly(MS(0), &above), Err(Busy), "the waiter was first");
    assert_eq!(dispatch(&mut lower, MS(0)).len(), 1);
}

#[test]
#[should_panic(expected = "the tag is of an issued request")]
fn completion_that_comes_twice_is_a_programmer_error() {
    let mut queue = RequestQueue::new(QueueConfig::default(), &named("none"));
    queue.submit_bio(MS(0), read(0, 1));
    let tag = dispatch(&mut queue, MS(0))[0].tag;
    queue.complete(MS(0), tag, BlkStatus::Ok);
    queue.complete(MS(0), tag, BlkStatus::Ok);
}

/// A device with a volatile cache, and the invariants of each step.
#[derive(Default)]
struct World {
    /// A linear congruential generator with a fixed seed.
    seed: u64,
    time: Nanos,
    issued: Vec<Issue>,
    /// By `user`: sectors in flight, and whether the data is in the cache only.
    bios: Vec<Sent>,
    /// Flushes at the device, with the writes that had ended when the flush was issued.
    covered: Vec<(Tag, Vec<u64>)>,
}

struct Sent {
    bio: Bio,
    sectors_left: u64,
    ended: bool,
    stable: bool,
    /// Writes that had ended at the submission.
    before: Vec<u64>,
}

impl World {
    fn random(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        (self.seed >> 33) % below
    }

    fn writes_that(&self, is: fn(&Sent) -> bool) -> Vec<u64> {
        let is = |sent: &&Sent| sent.bio.op == Op::Write && !sent.stable && is(sent);
        self.bios.iter().filter(is).map(|sent| sent.bio.user).collect()
    }

    /// Ended writes that the next flush must cover.
    fn volatile(&self) -> Vec<u64> {
        self.writes_that(|sent| sent.ended)
    }

    fn are_stable(&self, users: &[u64]) -> bool {
        users.iter().all(|user| self.bios[usize::try_from(*user).unwrap()].stable)
    }

    fn submit(&mut self, queue: &mut RequestQueue) {
        let user = self.bios.len() as u64;
        let len = 4 * (1 + self.random(6));
        let buf = BufRef::zeros(u32::try_from(len * 512).unwrap());
        let op = [Op::Read, Op::Write, Op::Write, Op::Flush][self.random(4) as usize];
        let mut bio = Bio::new(op, Sector(4 * self.random(64)), Sector(len), buf, user);
        if op == Op::Flush {
            (bio.len, bio.buf) = (Sector(0), BufRef::NONE);
        }
        bio.fua = op == Op::Write && self.random(8) == 0;
        bio.preflush = op == Op::Write && self.random(8) == 0;
        bio.origin.io_context = IoContext(u32::try_from(self.random(3)).unwrap());
        bio.origin.cpu = u16::try_from(self.random(4)).unwrap();
        bio.origin.sync = self.random(2) == 0;
        let flushes = op == Op::Flush || bio.preflush;
        let before = if flushes { self.volatile() } else { Vec::new() };
        let sectors_left = bio.len.0;
        self.bios.push(Sent { bio, sectors_left, ended: false, stable: false, before });
        queue.submit_bio(self.time, bio);
    }

    fn dispatch(&mut self, queue: &mut RequestQueue) {
        for issue in dispatch(queue, self.time) {
            if issue.op == Op::Flush {
                // Writes in the device's cache so far; a write in flight may be there too.
                let covered = self.writes_that(|sent| sent.sectors_left == 0);
                self.covered.push((issue.tag, covered));
            }
            let mut sector = issue.sector;
            let mut pieces = 0;
            for bio in queue.bios(issue.tag).filter(|_| issue.op != Op::Flush) {
                let Sent { bio: sent, before, .. } = &self.bios[usize::try_from(bio.user).unwrap()];
                assert!(self.are_stable(before), "the preflush comes before the data");
                assert_eq!((bio.sector, bio.op), (sector, issue.op), "in sector order");
                assert!(sent.sector <= bio.sector && bio.buf.len_bytes as u64 == bio.len.bytes());
                let skipped = bio.sector.0 - sent.sector.0;
                assert_eq!(u64::from(bio.buf.offset_bytes), skipped * 512, "its own bytes");
                sector = sector + bio.len;
                pieces += 1;
            }
            assert_eq!(sector, issue.sector + issue.len);
            assert!(issue.len.0 <= 16 && pieces <= 4, "the limits hold");
            self.issued.push(issue);
        }
    }

    fn end_one(&mut self, queue: &mut RequestQueue) {
        if self.issued.is_empty() {
            return;
        }
        let place = self.random(self.issued.len() as u64) as usize;
        let issue = self.issued.swap_remove(place);
        if self.random(8) == 0 {
            self.covered.retain(|(tag, _)| *tag != issue.tag);
            queue.busy(self.time, issue.tag);
            return;
        }
        for bio in queue.bios(issue.tag).filter(|_| issue.op != Op::Flush) {
            let sent = &mut self.bios[usize::try_from(bio.user).unwrap()];
            sent.sectors_left -= bio.len.0;
            sent.stable |= issue.fua;
        }
        if issue.op == Op::Flush {
            let place = self.covered.iter().position(|(tag, _)| *tag == issue.tag).unwrap();
            for user in self.covered.swap_remove(place).1 {
                self.bios[usize::try_from(user).unwrap()].stable = true;
            }
        }
        queue.complete(self.time, issue.tag, BlkStatus::Ok);
        self.check_done(queue);
    }

    fn check_done(&mut self, queue: &mut RequestQueue) {
        for user in done(queue) {
            let sent = &mut self.bios[usize::try_from(user).unwrap()];
            assert!(!sent.ended && sent.sectors_left == 0, "bio {user} ends once, when it is done");
            sent.ended = true;
            assert!(sent.stable || !sent.bio.fua, "a FUA write that has ended is stable");
            let before = core::mem::take(&mut sent.before);
            assert!(self.are_stable(&before), "flush {user} covers what ended before it");
        }
    }

    fn run(&mut self, queue: &mut RequestQueue, steps: u32) {
        for _ in 0..steps {
            let io_context = IoContext(u32::try_from(self.random(3)).unwrap());
            match self.random(16) {
                0..3 => self.submit(queue),
                3 => queue.plug(io_context),
                4 => queue.unplug(self.time, io_context),
                5..8 => self.dispatch(queue),
                8 => self.time = self.time + MS(self.random(4)),
                _ => self.end_one(queue),
            }
        }
        (0..3).for_each(|io_context| queue.unplug(self.time, IoContext(io_context)));
        while !queue.is_idle() {
            self.dispatch(queue);
            assert!(!self.issued.is_empty() || queue.wake_at().is_some(), "it goes on by itself");
            self.time = queue.wake_at().filter(|_| self.issued.is_empty()).unwrap_or(self.time);
            self.end_one(queue);
        }
        self.check_done(queue);
        assert!(self.bios.iter().all(|sent| sent.ended));
    }
}

#[test]
fn every_bio_ends_once_with_its_own_bytes_and_flushes_cover_earlier_writes() {
    let generations = [
        (Generation::Single, PlugRule::PerQueue, 1),
        (Generation::Single, PlugRule::PerContext, 1),
        (Generation::Multi, PlugRule::PerContext, 1),
        (Generation::Multi, PlugRule::PerContext, 2),
    ];
    let mut merges = [0; 3];
    for (generation, plug, hw_queues) in generations {
        for (seed, elevator) in [(1, "none"), (2, "noop"), (3, "deadline"), (4, "mq-deadline")] {
            for fua in [false, true] {
                let config = QueueConfig {
                    generation,
                    plug,
                    hw_queues,
                    fua,
                    cpus: 4,
                    queue_depth: 6,
                    nr_requests: 16,
                    limits: Limits { max_sectors: 16, max_segments: 4 },
                    ..QueueConfig::default()
                };
                let mut queue = RequestQueue::new(config, &named(elevator));
                World { seed, ..World::default() }.run(&mut queue, 3000);
                let counters = queue.counters();
                merges[0] += counters.back_merges;
                merges[1] += counters.front_merges;
                merges[2] += counters.request_merges;
                assert!(counters.parked > 0, "the limit was reached");
            }
        }
    }
    assert!(merges.iter().all(|count| *count > 10), "{merges:?} of each kind were seen");
}

/// Software queues in order of their CPUs, each dispatch from behind the last one: also beyond the
/// first word of the bitmap, and around its end.
#[test]
fn software_queues_of_many_cpus_take_turns() {
    const CPUS: u16 = 200;
    let config = QueueConfig {
        cpus: CPUS,
        queue_depth: 1024,
        nr_requests: 1024,
        plug: PlugRule::Off,
        ..QueueConfig::default()
    };
    let mut queue = RequestQueue::new(config, &named("none"));
    let mut waiting = [(); CPUS as usize].map(|()| Vec::new());
    let mut first = 0;
    for user in 0..900_u64 {
        let cpu = (user * 71 + user / 7) as u16 % CPUS;
        let origin = Origin { cpu, ..Origin::default() };
        queue.submit_bio(MS(0), Bio { origin, ..read(user * 64, user) });
        waiting[usize::from(cpu)].insert(0, user);
        // Some dispatches find several queues with requests, and the last ones empty them all.
        let count = if user % 3 == 0 || user > 700 { 2 } else { 0 };
        for _ in 0..count {
            let mut out = Vec::new();
            queue.dispatch_at_most(MS(0), 1, &mut out);
            let order = (first..waiting.len()).chain(0..first);
            let next = order.into_iter().find(|cpu| !waiting[*cpu].is_empty());
            let expected = next.and_then(|cpu| {
                first = (cpu + 1) % waiting.len();
                waiting[cpu].pop()
            });
            let dispatched = out.first().map(|issue| users(&queue, issue.tag)[0]);
            assert_eq!(dispatched, expected, "request {user}");
            out.iter().for_each(|issue| queue.complete(MS(0), issue.tag, BlkStatus::Ok));
        }
    }
}
