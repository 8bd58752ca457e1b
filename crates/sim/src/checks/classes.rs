//! Levels of requests, observed from outside the elevator (004-1, 004-5, 004-6).
//!
//! For every pair of kinds (class, operation, synchronous or not), one request waits when the other
//! arrives. If the second is dispatched first, it passes the first. The levels follow from all
//! pairs, if the elevator has levels.

use blockyard_engine::bio::Op;
use blockyard_engine::priority::PriorityClass;
use blockyard_engine::time::Nanos;
use blockyard_workload::random::Random;

use super::hand::{Hand, Kind, READ, SECTORS};
use super::{Check, Verdict, WorldResult};

/// Range of the requests' sectors.
const SECTORS_END: u64 = 1 << 28;

pub(super) const TWO_CLASSES: Check = Check {
    id: "004-1",
    about: "classic deadline: of every two of 9 kinds of request, in both orders of arrival and of \
            sectors, which passes which",
    run: |seed| {
        let seen = |name: &str| {
            let levels = Levels::of(name, seed);
            let is = |level: &[Kind], op| level.iter().all(|kind| kind.op == op);
            let holds = match &levels.groups[..] {
                [high, low] => levels.exact && is(high, Op::Read) && is(low, Op::Write),
                _ => false,
            };
            WorldResult { what: format!("{name}: {}", levels.describe()), holds }
        };
        Verdict::of(seen("deadline"), &[seen("noop"), seen("deadline-prio")])
    },
};

pub(super) const MIDDLE_LEVEL: Check = Check {
    id: "004-5",
    about: "deadline-prio: the same pairs; kinds of the middle level",
    run: |seed| {
        let seen = |name: &str| {
            let levels = Levels::of(name, seed);
            let expected: Vec<Kind> = Kind::all().filter(|kind| is_middle(*kind)).collect();
            let holds =
                levels.exact && matches!(&levels.groups[..], [_, middle, _] if *middle == expected);
            WorldResult { what: format!("{name}: {}", levels.describe()), holds }
        };
        Verdict::of(seen("deadline-prio"), &[seen("deadline")])
    },
};

pub(super) const LOWEST_LEVEL: Check = Check {
    id: "004-6",
    about: "deadline-prio: the same pairs, and after how long each kind is late: who is last, and \
            has the longest deadline",
    run: |seed| {
        let seen = |name: &str| {
            let levels = Levels::of(name, seed);
            let expected: Vec<Kind> = Kind::all().filter(|kind| is_lowest(*kind)).collect();
            let lowest = levels.groups.last().is_some_and(|level| *level == expected);
            let deadlines_ms = |lowest: bool| {
                let kinds = Kind::all().filter(move |kind| is_lowest(*kind) == lowest);
                kinds.map(|kind| deadline_ms(name, kind)).collect::<Vec<_>>()
            };
            let last = deadlines_ms(true);
            let others = deadlines_ms(false);
            let longest = last.iter().min() > others.iter().max();
            let what = format!(
                "{name}: {}; late after {last:?} ms, the other kinds after {others:?} ms",
                levels.describe()
            );
            WorldResult { what, holds: levels.exact && lowest && longest }
        };
        Verdict::of(seen("deadline-prio"), &[seen("deadline")])
    },
};

/// Best-effort reads, and synchronous writes of real time or best effort.
fn is_middle(kind: Kind) -> bool {
    match (kind.priority.class, kind.op) {
        (PriorityClass::Idle, _) | (PriorityClass::RealTime, Op::Read) => false,
        (PriorityClass::BestEffort, Op::Read) => true,
        _ => kind.sync,
    }
}

/// Asynchronous writes and the idle class. The mail does not mention asynchronous writes of the
/// real-time class; here they are asynchronous writes.
pub(super) fn is_lowest(kind: Kind) -> bool {
    kind.priority.class == PriorityClass::Idle || (kind.op != Op::Read && !kind.sync)
}

/// Kinds that do not pass each other, in groups, highest group first.
struct Levels {
    groups: Vec<Vec<Kind>>,
    /// The groups alone determine the passing.
    exact: bool,
    pairs: usize,
    passed: usize,
}

impl Levels {
    fn of(elevator: &str, seed: u64) -> Self {
        let kinds: Vec<Kind> = Kind::all().collect();
        let mut random = Random::new(seed, 0);
        let mut passes = Vec::new();
        let mut consistent = true;
        for second in &kinds {
            for first in &kinds {
                let below = second_passes(elevator, [*first, *second], &mut random, true);
                let above = second_passes(elevator, [*first, *second], &mut random, false);
                consistent &= below == above;
                passes.push(below);
            }
        }
        let passes_at = |second: usize, first: usize| passes[second * kinds.len() + first];
        let passed_by = |first| (0..kinds.len()).filter(|s| passes_at(*s, first)).count();
        let rank: Vec<usize> = (0..kinds.len()).map(passed_by).collect();
        let mut ranks = rank.clone();
        ranks.sort_unstable();
        ranks.dedup();
        let members = |of: &usize| {
            kinds.iter().zip(&rank).filter(|(_, rank)| *rank == of).map(|(k, _)| *k).collect()
        };
        let by_rank = (0..kinds.len())
            .all(|s| (0..kinds.len()).all(|f| passes_at(s, f) == (rank[s] < rank[f])));
        Self {
            groups: ranks.iter().map(members).collect(),
            exact: consistent && by_rank,
            pairs: 2 * passes.len(),
            passed: 2 * passes.iter().filter(|passes| **passes).count(),
        }
    }

    fn describe(&self) -> String {
        let group =
            |group: &Vec<Kind>| group.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
        let groups: Vec<String> = self.groups.iter().map(group).collect();
        let exact = if self.exact { "" } else { ", not by level alone" };
        let Self { pairs, passed, .. } = self;
        let levels = self.groups.len();
        format!(
            "{levels} level(s) from {passed} of {pairs} that pass{exact}: {}",
            groups.join(" > ")
        )
    }
}

/// Whether a request passes an earlier one, which is placed below or above it.
fn second_passes(elevator: &str, kinds: [Kind; 2], random: &mut Random, below: bool) -> bool {
    let mut hand = Hand::new(elevator);
    // Positions that are not adjacent.
    let place = |random: &mut Random, third: u64| {
        let third_sectors = SECTORS_END / 3;
        third * third_sectors + random.below(third_sectors / SECTORS - 1) * SECTORS
    };
    let busy = random.below(3);
    let [low, high] = match busy {
        0 => [1, 2],
        1 => [0, 2],
        _ => [0, 1],
    };
    // The device is busy with this request, so the others wait.
    hand.ask(Nanos(0), READ, place(random, busy));
    hand.next(Nanos(0)).expect("no other request waits");
    let low = place(random, low);
    let high = place(random, high);
    let (first, second) = if below { (high, low) } else { (low, high) };
    hand.ask(Nanos::from_ms(1), kinds[0], first);
    hand.ask(Nanos::from_ms(2), kinds[1], second);
    hand.next(Nanos::from_ms(3)) == Some(second)
}

/// The time after which a request is late, in milliseconds: then a batch starts with it and not
/// further up. Found by bisection.
pub(super) fn deadline_ms(elevator: &str, kind: Kind) -> u64 {
    // The limit of the tunables of `deadline-prio`.
    let mut early = 0u64;
    let mut late = 600_000;
    while early + 1 < late {
        let waited = early.midpoint(late);
        if is_late(elevator, kind, waited) {
            late = waited;
        } else {
            early = waited;
        }
    }
    late
}

fn is_late(elevator: &str, kind: Kind, waited_ms: u64) -> bool {
    let mut hand = Hand::new(&in_batches_of_one(elevator));
    hand.ask(Nanos(0), READ, 7_000);
    hand.next(Nanos(0)).expect("no other request waits");
    let [behind, head, upward] = [1_000, 2_000, 3_000];
    [head, behind, upward].into_iter().for_each(|sector| hand.ask(Nanos(0), kind, sector));
    let first = hand.next(Nanos(0));
    assert_eq!(first, Some(head), "the oldest goes first");
    hand.next(Nanos::from_ms(waited_ms)) == Some(behind)
}

/// Gives each request its own batch, so that the elevator chooses each time.
pub(super) fn in_batches_of_one(elevator: &str) -> String {
    // `deadline` has no quantum.
    let quantum = if elevator.starts_with("deadline-prio") { ",quantum=0" } else { "" };
    format!("{elevator},fifo_batch=1{quantum}")
}
