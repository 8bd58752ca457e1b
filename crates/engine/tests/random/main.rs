//! Random bios through the whole queue, for every elevator of the registry and both generations.
//!
//! A seed determines each world: limits, depths, tunables, plugs, the submitters' actions, the
//! disk's answers, refusals and failures. The invariants are in `world.rs`. A failure prints the
//! command that replays it: `BLOCKYARD_SEED=<seed> cargo test -p blockyard-engine --test random`;
//! with the variable set every elevator runs that world only.

mod bound;
mod canary;
mod disk;
mod rng;
mod world;

use blockyard_engine::elevator::{ELEVATORS, ElevatorType, Generation};

use blockyard_engine::mq::Counters;

use world::World;

/// Random operations per elevator, both generations together.
const OPERATIONS: u64 = 1_000_000;

/// Operations per world.
const OPERATIONS_OF_A_WORLD: u64 = 2500;

const GENERATIONS: [Generation; 2] = [Generation::Single, Generation::Multi];

/// Names the world of a failed check, here or in the engine.
struct Replay {
    elevator: &'static str,
    generation: Generation,
    seed: u64,
}

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { elevator, generation, seed } = self;
            eprintln!(
                "in the world of {elevator}, {generation:?}, seed {seed}; to replay it:\n  \
                 BLOCKYARD_SEED={seed} cargo test -p blockyard-engine --test random"
            );
        }
    }
}

/// Runs a world to its end; returns the hash of its trace and the queue's counters.
fn live(elevator: &'static ElevatorType, generation: Generation, seed: u64) -> (u64, Counters) {
    let _replay = Replay { elevator: elevator.name, generation, seed };
    match World::new(elevator, generation, seed).live(OPERATIONS_OF_A_WORLD) {
        Ok(life) => life,
        Err(problem) => panic!("{problem}"),
    }
}

/// The seeds to run; a single one if the environment gives it.
fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("BLOCKYARD_SEED") {
        Ok(seed) => vec![seed.parse().expect("BLOCKYARD_SEED is a number")],
        Err(_) => (0..count).map(|number| rng::mix(number + 1) >> 16).collect(),
    }
}

#[test]
fn no_elevator_loses_doubles_mixes_up_or_forgets_a_bio() {
    let worlds = OPERATIONS / OPERATIONS_OF_A_WORLD / GENERATIONS.len() as u64;
    for elevator in ELEVATORS {
        for generation in GENERATIONS {
            let lives = seeds(worlds).into_iter().map(|seed| live(elevator, generation, seed).1);
            let lives: Vec<Counters> = lives.collect();
            if lives.len() > 1 {
                assert_busy(elevator, generation, &lives);
            }
        }
    }
}

/// Asserts that the worlds exercise the queue.
fn assert_busy(elevator: &ElevatorType, generation: Generation, lives: &[Counters]) {
    let sum = |count: fn(&Counters) -> u64| lives.iter().map(count).sum::<u64>();
    // They merge bios only.
    let coalesces = !["none", "kyber"].contains(&elevator.name);
    let counts = [
        (sum(|life| life.back_merges), 1000),
        (sum(|life| life.front_merges), 100),
        (sum(|life| life.request_merges), if coalesces { 100 } else { 0 }),
        (sum(|life| life.requeued), 1000),
        (sum(|life| life.parked), 1000),
        (sum(|life| life.flushes), 1000),
        (sum(|life| life.issued), 100_000),
    ];
    let enough = counts.iter().all(|(count, least)| count >= least);
    assert!(enough, "{}, {generation:?}: too little of something: {counts:?}", elevator.name);
}

#[test]
fn same_seed_gives_the_same_trace_and_another_seed_another() {
    for elevator in ELEVATORS {
        for generation in GENERATIONS {
            let all = || -> Vec<u64> {
                seeds(4).into_iter().map(|seed| live(elevator, generation, seed).0).collect()
            };
            let hashes = all();
            assert_eq!(all(), hashes, "{}, {generation:?}", elevator.name);
            assert!(hashes.windows(2).all(|pair| pair[0] != pair[1]), "{hashes:?}");
        }
    }
}
