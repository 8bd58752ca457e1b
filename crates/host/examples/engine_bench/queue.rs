//! The request queue in a steady state, with fixed numbers of dispatched and waiting requests: one
//! ends, a bio comes, one is dispatched. Four submitters, two bios of three are reads, 10 us
//! between two completions on a disk without seeks.
//!
//! Each elevator runs in the generation that it was written for. `none` runs in the single-queue
//! one: with tags, waiting bios without an elevator have no requests.

use std::hint::black_box;
use std::time::Instant;

use blockyard_engine::bio::{Bio, BlkStatus, Done, IoContext, Op, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::elevator::{ELEVATORS, ElevatorSpec, ElevatorType, Generation};
use blockyard_engine::mq::{Issue, Limits, PlugRule, QueueConfig, RequestQueue};
use blockyard_engine::request::Tag;
use blockyard_engine::time::Nanos;

const DEPTH: usize = 32;
const WAITING: usize = 128;
const SUBMITTERS: usize = 4;
const SECTORS_OF_A_BIO: u64 = 8;
/// Bios per request, where they are merged.
const MERGED: usize = 8;

const ROUNDS: usize = 300;
const REQUESTS_OF_A_ROUND: usize = 1000;

/// Position of the next bio.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pattern {
    /// Random: nothing is merged.
    Random,
    /// Sequential per submitter: requests of [`MERGED`] bios.
    Sequential,
}

pub(crate) fn print(json: bool) {
    for (pattern, word) in [(Pattern::Random, "queue"), (Pattern::Sequential, "queue merging")] {
        let mut lines: Vec<Line> =
            ELEVATORS.iter().map(|elevator| Line::new(elevator, pattern)).collect();
        for _ in 0..ROUNDS {
            lines.iter_mut().for_each(Line::round);
        }
        let none = lines.iter().find(|line| line.name == "none").map_or(0.0, |line| line.ns);
        for Line { name, ns, .. } in lines {
            if json {
                let case = format!("{word}, {name}");
                println!(
                    "{{\"bench\": \"engine\", \"case\": \"{case}\", \"ns_per_bio\": {ns:.1}}}"
                );
            } else {
                let case = format!("{word}, {name}");
                let over = ns - none;
                let at = format!("{DEPTH} at the device, {WAITING} waiting");
                println!("{case:<28} {ns:6.1} ns per 4 KiB bio, {at}; {over:+.1} to none");
            }
        }
    }
}

/// A queue and its traffic.
struct Line {
    name: &'static str,
    pattern: Pattern,
    queue: RequestQueue,
    now: Nanos,
    seed: u64,
    /// Position of each submitter's next bio in a sequential pattern.
    positions: [u64; SUBMITTERS],
    bios: u64,
    /// Dispatched tags, the oldest first, from `first` on.
    flying: std::collections::VecDeque<Tag>,
    issues: Vec<Issue>,
    done: Vec<Done>,
    /// Number of bios in flight.
    open: usize,
    /// Time of the best round.
    ns: f64,
}

impl Line {
    fn new(elevator: &'static ElevatorType, pattern: Pattern) -> Self {
        let none = elevator.name == "none";
        let generation = if none { Generation::Single } else { elevator.generation };
        let max_sectors = MERGED as u32 * SECTORS_OF_A_BIO as u32;
        let config = QueueConfig {
            queue_depth: DEPTH as u32,
            nr_requests: 1024,
            limits: Limits { max_sectors, max_segments: 128 },
            rotational: false,
            plug: PlugRule::Off,
            ..QueueConfig::of(generation)
        };
        let mut line = Self {
            name: elevator.name,
            pattern,
            queue: RequestQueue::new(config, &ElevatorSpec::of(elevator)),
            now: Nanos(0),
            seed: 1,
            positions: std::array::from_fn(|submitter| (submitter as u64) << 40),
            bios: 0,
            flying: std::collections::VecDeque::new(),
            issues: Vec::new(),
            done: Vec::new(),
            open: 0,
            ns: f64::MAX,
        };
        line.run();
        line
    }

    fn round(&mut self) {
        let start = Instant::now();
        let bios = self.run();
        self.ns = self.ns.min(start.elapsed().as_nanos() as f64 / bios as f64);
    }

    /// Runs a number of completions; returns the number of ended bios.
    fn run(&mut self) -> usize {
        let bios_of_a_request = if self.pattern == Pattern::Random { 1 } else { MERGED };
        let target = (DEPTH + WAITING) * bios_of_a_request;
        let mut completions = 0;
        let mut ended = 0;
        while completions < REQUESTS_OF_A_ROUND {
            while self.open < target {
                self.submit();
            }
            self.queue.dispatch(self.now, &mut self.issues);
            self.flying.extend(black_box(&self.issues).iter().map(|issue| issue.tag));
            self.issues.clear();
            let Some(tag) = self.flying.pop_front() else {
                // The elevator idles.
                self.now = self.queue.wake_at().expect("a queue with bios goes on");
                continue;
            };
            self.now = self.now + Nanos(10_000);
            self.queue.complete(self.now, tag, BlkStatus::Ok);
            self.queue.take_done(&mut self.done);
            completions += 1;
            ended += self.done.len();
            self.open -= self.done.len();
            self.done.clear();
        }
        ended
    }

    fn submit(&mut self) {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let random = self.seed >> 20;
        let submitter = self.bios as usize / MERGED % SUBMITTERS;
        let sector = match self.pattern {
            Pattern::Random => (random % (1 << 28)) * SECTORS_OF_A_BIO,
            Pattern::Sequential => {
                self.positions[submitter] += SECTORS_OF_A_BIO;
                self.positions[submitter]
            }
        };
        let writes = match self.pattern {
            Pattern::Random => random.is_multiple_of(3),
            Pattern::Sequential => submitter == 0,
        };
        let op = if writes { Op::Write } else { Op::Read };
        let mut bio =
            Bio::new(op, Sector(sector), Sector(SECTORS_OF_A_BIO), BufRef::zeros(4096), 0);
        bio.origin.io_context = IoContext(submitter as u32);
        self.queue.submit_bio(self.now, black_box(bio));
        self.bios += 1;
        self.open += 1;
    }
}
