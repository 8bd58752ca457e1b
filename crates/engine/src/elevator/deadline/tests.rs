//! The rules one by one; random operations test their combination. Longer scenarios are golden
//! traces.

use alloc::vec;

use super::super::deadline_queue::by_hand::ByHand;
use super::super::deadline_queue::random::{Observed, Watched, play};
use super::*;
use crate::bio::{Op, Origin, Sector};
use crate::request::Request;

fn deadline(tunables: &str) -> ByHand {
    ByHand::new(&alloc::format!("deadline{tunables}"), true)
}

#[test]
fn request_behind_the_head_waits_for_another_batch_even_if_there_is_room_in_this_one() {
    let mut queue = deadline("");
    for sector in [100, 300] {
        queue.read(sector);
    }
    assert_eq!(queue.dispatch(), Some(100));
    queue.read(200); // 300 is already determined as the next one
    queue.read(400);
    assert_eq!(queue.drain(), [300, 400, 200]);
}

#[test]
fn end_of_the_sectors_goes_on_with_the_oldest_not_with_the_lowest() {
    let mut queue = deadline("");
    for sector in [500, 900, 300, 100] {
        queue.read(sector);
    }
    assert_eq!(queue.drain(), [500, 900, 300, 100]);
}

#[test]
fn writes_are_passed_by_batches_of_reads_and_not_by_requests() {
    let mut queue = deadline(",fifo_batch=2,writes_starved=2");
    for sector in [10, 20, 30, 40, 50, 60, 70, 80] {
        queue.read(sector);
    }
    for sector in [15, 25, 35] {
        queue.write(sector);
    }
    // Two batches of reads, one of writes; then the reads continue from the oldest.
    assert_eq!(queue.drain(), [10, 20, 30, 40, 15, 25, 50, 60, 70, 80, 35]);
}

#[test]
fn reads_that_pass_nobody_are_not_counted() {
    let mut queue = deadline(",fifo_batch=1,writes_starved=1");
    for sector in [10, 20, 30, 40, 50] {
        queue.read(sector);
    }
    assert_eq!(queue.take(2), [10, 20]);
    queue.write(5);
    assert_eq!(queue.drain(), [30, 5, 40, 50]);
}

#[test]
fn expired_request_does_not_interrupt_a_batch() {
    let mut queue = deadline(",fifo_batch=3,read_expire=10");
    queue.read(900);
    queue.now_ms = 9;
    assert_eq!(queue.dispatch(), Some(900)); // from the oldest; no higher sectors
    for sector in [500, 100, 200, 600, 700, 800] {
        queue.read(sector);
    }
    assert_eq!(queue.dispatch(), Some(500));
    queue.now_ms = 19;
    assert_eq!(queue.take(2), [600, 700]);
    assert_eq!(queue.take(3), [100, 200, 800]); // 19 ms is not before 100's deadline: overdue
}

#[test]
fn survivor_of_a_merge_has_the_earlier_deadline() {
    let mut queue = deadline(",fifo_batch=1,read_expire=10");
    let absorbed = queue.read(108);
    queue.read(50);
    queue.read(60);
    queue.now_ms = 5;
    let survivor = queue.read(100);
    queue.absorb(survivor, absorbed);
    assert_eq!(queue.dispatch(), Some(100));
}

#[test]
fn absorbed_next_request_hands_the_batch_to_the_one_behind() {
    let mut queue = deadline("");
    let [_, next] = [100, 208].map(|sector| queue.read(sector));
    assert_eq!(queue.dispatch(), Some(100));
    let survivor = queue.read(200);
    queue.read(300);
    queue.absorb(survivor, next); // the oldest, but not next
    assert_eq!(queue.drain(), [300, 200]);
}

#[test]
fn alias_leaves_at_once_and_takes_the_batch_with_it() {
    let mut queue = deadline("");
    for sector in [10, 20] {
        queue.read(sector);
    }
    let first = queue.write(50);
    queue.write(60);
    assert_eq!(queue.dispatch(), Some(10));
    queue.write(50);
    assert!(!queue.allows(first, Origin::default(), Side::Back));
    // The older 50 leaves; 60 follows, and the batch is not used up.
    assert_eq!(queue.drain(), [50, 60, 20, 50]);
}

#[test]
fn front_merge_onto_the_start_of_another_pushes_that_out() {
    let mut queue = deadline("");
    queue.read(500);
    let merged = queue.read(100);
    queue.read(92);
    queue.merge_front(merged);
    assert_eq!(queue.dispatch(), Some(92));
    assert_eq!(queue.drain(), [500, 92]);
}

#[test]
fn front_merges_can_be_forbidden() {
    for (tunable, allowed) in [("", true), (",front_merges=0", false)] {
        let mut queue = deadline(tunable);
        let request = queue.read(100);
        let absorbed = queue.read(108);
        assert_eq!(queue.allows(request, Origin::default(), Side::Front), allowed);
        assert!(queue.allows(request, Origin::default(), Side::Back));
        assert!(queue.allows_request(request, absorbed));
    }
}

#[test]
fn request_without_data_waits_with_the_writes() {
    let mut queue = deadline("");
    queue.insert(Op::Discard, 10, Origin::default());
    queue.read(90);
    assert_eq!(queue.drain(), vec![90, 10]);
}

impl Watched for Deadline {
    fn group(request: &Request) -> usize {
        usize::from(request.op != Op::Read)
    }

    fn merges_within(candidate: &Candidate) -> usize {
        usize::from(candidate.op != Op::Read)
    }

    fn expire(&self, group: usize) -> Nanos {
        [self.tuning.read_expire, self.tuning.write_expire][group]
    }

    fn about_to_dispatch(&self, seen: &mut Observed) {
        seen.is_decided = !self.pushed_out.is_empty();
    }

    fn dispatched(&self, seen: &mut Observed, _: &Request, _: Nanos) {
        if !seen.is_decided {
            seen.decisions = seen.decisions.map(|count| count + 1);
        }
    }

    fn bound(&self, group: usize, ahead: u64, _: u64) -> u64 {
        let Tuning { writes_starved, fifo_batch, .. } = self.tuning;
        match group {
            0 => (ahead + 1 + (ahead - 1) / writes_starved) * fifo_batch,
            _ => ahead * (writes_starved + 1) * fifo_batch,
        }
    }

    fn assert_consistent(&self, requests: &Requests) {
        self.reads.assert_consistent(requests);
        self.writes.assert_consistent(requests);
        let waits = |id| self.waits(requests, id);
        assert!(self.next.is_none_or(waits), "the batch goes on with one that waits");
        assert!(self.pushed_out.iter().all(|id| !waits(*id)), "pushed out and yet there");
        let at_own_sector = |id: RequestId| {
            let queue = self.queue(DataDirection::of(requests[id].op));
            queue.at(requests, Sector(requests[id].sector.0)) == Some(id)
        };
        assert!(self.next.is_none_or(at_own_sector), "no two start at the same sector");
    }
}

#[test]
fn random_operations_lose_nothing_and_nobody_is_later_than_the_bound() {
    for (seed, writes_starved, fifo_batch) in [(1, 2, 16), (2, 1, 1), (3, 5, 3)] {
        let tuning = Tuning {
            read_expire: Nanos::from_ms(50),
            write_expire: Nanos::from_ms(500),
            writes_starved,
            fifo_batch,
            front_merges: true,
        };
        play(Deadline::new(tuning), seed);
    }
}
