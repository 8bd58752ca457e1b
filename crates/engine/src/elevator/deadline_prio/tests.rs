//! The rules one by one; random operations test their combination. Longer scenarios are golden
//! traces.

use super::super::deadline_queue::by_hand::{ByHand, origin};
use super::super::deadline_queue::random::{Observed, Watched, play};
use super::*;
use crate::bio::Origin;
use crate::request::Request;

/// A policy without a quantum, on a disk.
fn deadline_prio(tunables: &str) -> ByHand {
    ByHand::new(&alloc::format!("deadline-prio,quantum=0{tunables}"), true)
}

#[test]
fn every_class_and_kind_has_its_level() {
    let level = |op, sync, class| Lane::of(op, sync, class).level;
    let classes = [PriorityClass::RealTime, PriorityClass::BestEffort, PriorityClass::Idle];
    assert_eq!(classes.map(|class| level(Op::Read, true, class)), [0, 1, 2]);
    assert_eq!(classes.map(|class| level(Op::Write, true, class)), [1, 1, 2]);
    assert_eq!(classes.map(|class| level(Op::Write, false, class)), [2, 2, 2]);
    assert_eq!(classes.map(|class| level(Op::Discard, false, class)), [2, 2, 2]);
}

#[test]
fn levels_go_in_order_and_real_time_starves_the_rest() {
    let mut queue = deadline_prio(",fifo_batch=1,async_starved=1");
    queue.write(10);
    queue.read(20);
    queue.insert(Op::Write, 30, origin("be:4", true));
    for sector in [40, 50, 60, 70] {
        queue.insert(Op::Read, sector, origin("rt:0", false));
    }
    assert_eq!(queue.drain(), [40, 50, 60, 70, 20, 10, 30]);
}

#[test]
fn synchronous_write_goes_before_a_read_that_is_due_later() {
    let mut queue = deadline_prio("");
    queue.insert(Op::Write, 900, origin("be:4", true));
    queue.now_ms = 1;
    for sector in [100, 200] {
        queue.read(sector);
    }
    assert_eq!(queue.drain(), [900, 100, 200]);
}

#[test]
fn real_time_read_waits_for_the_end_of_a_batch_unless_it_may_cut_it() {
    for (tunable, order) in [("", [20, 30, 5]), (",rt_preempt=1", [5, 20, 30])] {
        let mut queue = deadline_prio(tunable);
        for sector in [10, 20, 30] {
            queue.read(sector);
        }
        assert_eq!(queue.dispatch(), Some(10));
        queue.insert(Op::Read, 5, origin("rt:0", false));
        assert_eq!(queue.drain(), order);
    }
}

#[test]
fn batch_ends_when_both_its_length_and_its_time_are_used_up() {
    let mut queue = ByHand::new("deadline-prio,quantum=40,fifo_batch=2", true);
    for sector in [10, 20, 30, 40, 50] {
        queue.read(sector);
    }
    assert_eq!(queue.dispatch(), Some(10));
    queue.insert(Op::Read, 5, origin("rt:0", false));
    queue.now_ms = 39;
    assert_eq!(queue.take(3), [20, 30, 40]); // longer than fifo_batch, but before 40 ms
    queue.now_ms = 40;
    assert_eq!(queue.drain(), [5, 50]);

    for sector in [10, 20, 30] {
        queue.read(sector);
    }
    assert_eq!(queue.dispatch(), Some(10));
    queue.insert(Op::Read, 5, origin("rt:0", false));
    queue.now_ms = 100; // the quantum is over, but the batch had only one request
    assert_eq!(queue.drain(), [20, 5, 30]);
}

#[test]
fn batch_for_a_late_request_starts_a_third_of_a_batch_before_it() {
    let mut queue = deadline_prio(",fifo_batch=6,sync_expire=10");
    queue.read(500);
    queue.now_ms = 1;
    for sector in [100, 200, 300, 400, 600, 700, 800, 900] {
        queue.read(sector);
    }
    queue.now_ms = 10;
    assert_eq!(queue.take(6), [300, 400, 500, 600, 700, 800]);
    // 100 is not overdue before 11 ms: the next batch continues upward.
    assert_eq!(queue.drain(), [900, 100, 200]);
}

#[test]
fn newcomers_do_not_keep_a_late_request_from_its_batch() {
    let mut queue = deadline_prio(",fifo_batch=6,sync_expire=10");
    queue.read(500);
    queue.now_ms = 9;
    queue.read(100);
    queue.now_ms = 10;
    assert_eq!(queue.dispatch(), Some(100)); // fixed: next is 500, one may go before it
    let mut queue = deadline_prio(",fifo_batch=6,sync_expire=10");
    queue.read(500);
    queue.now_ms = 9;
    for sector in [100, 200] {
        queue.read(sector);
    }
    queue.now_ms = 10;
    assert_eq!(queue.dispatch(), Some(100));
    queue.read(300);
    assert_eq!(queue.dispatch(), Some(200)); // 300 is next in order, but two went before 500
    assert_eq!(queue.drain(), [500, 300]);
}

#[test]
fn without_seeks_reads_go_by_age_and_writes_by_sector() {
    let mut queue = ByHand::new("deadline-prio,quantum=0", false);
    for sector in [500, 100, 300] {
        queue.read(sector);
        queue.write(sector);
    }
    assert_eq!(queue.drain(), [500, 100, 300, 500, 100, 300]);
    for sector in [100, 500, 300] {
        queue.write(sector);
    }
    assert_eq!(queue.drain(), [100, 300, 500]);
}

#[test]
fn batch_that_ran_out_does_not_go_on_with_later_requests() {
    let mut queue = ByHand::new("deadline-prio", false);
    queue.insert(Op::Read, 10, origin("idle", false));
    assert_eq!(queue.drain(), [10]);
    queue.insert(Op::Read, 20, origin("idle", false));
    queue.read(30);
    assert_eq!(queue.drain(), [30, 20]);
}

#[test]
fn merging_stays_within_a_level() {
    let mut queue = deadline_prio("");
    let asynchronous = queue.write(100);
    let synchronous = queue.insert(Op::Write, 108, origin("be:4", true));
    let idle = queue.insert(Op::Write, 116, origin("idle", true));
    let read = queue.read(200);
    let allows = |id, priority, sync| queue.allows(id, origin(priority, sync), Side::Back);
    assert!(allows(asynchronous, "rt:0", false));
    assert!(!allows(asynchronous, "be:4", true));
    assert!(allows(synchronous, "rt:0", true));
    assert!(!allows(synchronous, "idle", true));
    assert!(!allows(read, "rt:0", false));
    assert!(!queue.allows_request(asynchronous, synchronous));
    assert!(queue.allows_request(asynchronous, idle));
    assert!(!deadline_prio(",front_merges=0").allows_front_of_a_read());
}

impl ByHand {
    fn allows_front_of_a_read(&mut self) -> bool {
        let read = self.read(100);
        self.allows(read, Origin::default(), Side::Front)
    }
}

#[test]
fn request_that_got_more_urgent_by_merging_is_found_where_it_was() {
    let mut queue = deadline_prio("");
    let idle = queue.insert(Op::Write, 100, origin("idle", true));
    let best_effort = queue.write(108);
    queue.absorb(idle, best_effort);
    queue.make_urgent(idle, "be:4"); // synchronous and best effort now: it would be level 1
    assert!(queue.allows(idle, origin("be:4", false), Side::Back));
    assert_eq!(queue.drain(), [100]);
}

impl Watched for DeadlinePrio {
    fn group(request: &Request) -> usize {
        Lane::of(request.op, request.sync, request.origin.priority.class).level
    }

    fn merges_within(candidate: &Candidate) -> usize {
        let Candidate { op, sync, origin, .. } = candidate;
        let lane = Lane::of(*op, *sync, origin.priority.class);
        lane.level * 2 + usize::from(lane.direction == Write)
    }

    fn expire(&self, group: usize) -> Nanos {
        self.tuning.expire[group]
    }

    fn about_to_dispatch(&self, _: &mut Observed) {}

    /// A decision is a batch, whose length is counted here too.
    fn dispatched(&self, seen: &mut Observed, _: &Request, now: Nanos) {
        let Tuning { fifo_batch, quantum, rt_preempt, .. } = self.tuning;
        let level = self.batch.lane.level;
        if self.batch.len == 1 {
            // The batch may have been at its end.
            let cut = rt_preempt && level == REAL_TIME && seen.batch_group != REAL_TIME;
            seen.cuts += u64::from(cut);
            seen.decisions[REAL_TIME] += 1;
            let counts = u64::from(level != REAL_TIME);
            seen.decisions[SYNC] += counts;
            seen.decisions[ASYNC] += counts;
            (seen.batch_len, seen.batch_started, seen.batch_group) = (1, now, level);
        } else {
            seen.batch_len += 1;
            let is_due = seen.batch_len > fifo_batch && now.since(seen.batch_started) >= quantum;
            assert!(!is_due, "{:?} is too long: {seen:?}", self.batch);
            assert_eq!(seen.batch_group, level);
        }
    }

    fn bound(&self, group: usize, ahead: u64, cuts: u64) -> u64 {
        let own = ahead + cuts;
        match group {
            REAL_TIME => ahead,
            SYNC => own + 1 + (own - 1) / self.tuning.async_starved,
            _ => own * (self.tuning.async_starved + 1),
        }
    }

    fn assert_consistent(&self, requests: &Requests) {
        for level in &self.levels {
            level.reads.assert_consistent(requests);
            level.writes.assert_consistent(requests);
        }
        let Batch { lane, next, late, .. } = self.batch;
        let waits = |id| self.queue(lane).contains(id);
        assert!(next.is_none_or(waits), "the batch goes on with one that waits");
        assert!(late.is_none_or(|late| waits(late.request)), "who is late waits");
    }
}

#[test]
fn random_operations_lose_nothing_and_nobody_is_later_than_the_bound() {
    let ms = Nanos::from_ms;
    let disk = Tuning {
        expire: [ms(20), ms(50), ms(500)],
        async_starved: 2,
        fifo_batch: 16,
        quantum: ms(4),
        rt_preempt: false,
        front_merges: true,
        reads_by_age: false,
    };
    let short = Tuning { fifo_batch: 3, quantum: ms(0), async_starved: 1, ..disk };
    play(DeadlinePrio::new(disk), 1);
    play(DeadlinePrio::new(Tuning { reads_by_age: true, ..disk }), 2);
    play(DeadlinePrio::new(Tuning { rt_preempt: true, ..short }), 3);
    play(DeadlinePrio::new(short), 4);
}
