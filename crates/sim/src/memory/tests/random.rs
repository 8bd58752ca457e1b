//! Random worlds: writers of all sizes, changing amounts of memory, failing calls.
//!
//! Checked in all of them: no page is given out twice, none is lost, the limit holds, and after the
//! page allocator has failed for good, the reserve alone lets every writer end.

use blockyard_engine::pages::{ALLOCATORS, FromReserve};

use super::*;

/// Result of a world.
struct End {
    parked: usize,
    held_max: u32,
    second_rounds: u64,
    waits: u64,
}

struct World {
    memory: PhysicalMemory,
    client: Allocator<u32>,
    random: Random,
    reserve: u32,
    /// By page: whether a bio has it.
    taken: Vec<bool>,
    running: Vec<BioPages>,
    asked: u32,
    got: u32,
    held_max: u32,
}

impl World {
    fn new(spec: &str, seed: u64) -> Self {
        let mut random = Random::new(seed, 9);
        let mut below = |end: u64| u32::try_from(random.below(end)).unwrap();
        let reserve = 1 + below(32);
        let limit = reserve + below(96);
        let pages = reserve + 1 + below(300);
        let mut config = MemoryConfig::of_pages(pages);
        let second = ZoneConfig { pages: 1 + below(100), watermark_pages: below(20) };
        config.zones.push(second);
        config.lists = ListSizes { batch_pages: 1 + below(16), high_pages: below(64) };
        config.seed = seed;
        let mut memory = PhysicalMemory::new(config);
        let sizes = Sizes { reserve_pages: reserve, limit_pages: limit };
        let spec = AllocatorSpec::parse(spec).unwrap();
        let client = Allocator::new(spec, sizes, &mut memory).unwrap();
        let taken = vec![false; memory.owners.len()];
        let running = Vec::new();
        let asked = 0;
        let got = 0;
        let held_max = 0;
        Self { memory, client, random, reserve, taken, running, asked, got, held_max }
    }

    fn below(&mut self, end: u32) -> u32 {
        u32::try_from(self.random.below(u64::from(end))).unwrap()
    }

    fn mark(&mut self, pages: &BioPages, taken: bool) {
        for segment in pages.segments() {
            let first = segment.first.0 as usize;
            for page in first..first + segment.pages() as usize {
                assert!(self.memory.zones.iter().any(|zone| zone.contains(segment.first.0)));
                let before = std::mem::replace(&mut self.taken[page], taken);
                assert_ne!(before, taken, "page {page} belongs to one bio at a time");
            }
        }
    }

    fn start(&mut self, pages: BioPages) {
        assert_eq!(pages.missing(), 0);
        let sum: u32 = pages.segments().iter().map(|segment| segment.pages()).sum();
        assert_eq!(sum, pages.wanted());
        self.mark(&pages, true);
        self.running.push(pages);
        self.got += 1;
    }

    fn submit(&mut self) {
        let wanted = match self.below(4) {
            0 => 1,
            1 => self.reserve,
            _ => 1 + self.below(self.reserve),
        };
        self.asked += 1;
        if let Outcome::Got(_, pages) = self.client.get(wanted, self.asked, &mut self.memory) {
            self.start(pages);
        }
    }

    fn end_one(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let count = u32::try_from(self.running.len()).unwrap();
        let index = self.below(count) as usize;
        let pages = self.running.swap_remove(index);
        self.mark(&pages, false);
        self.client.put(pages, &mut self.memory);
        self.resume();
    }

    fn resume(&mut self) {
        while let Some((_, pages)) = self.client.take_resumed() {
            self.start(pages);
        }
    }

    fn step(&mut self) {
        match self.below(100) {
            0..45 if self.client.parked() < 20 => self.submit(),
            0..80 => self.end_one(),
            80..90 => {
                let usable = self.below(200);
                self.memory.squeeze(usable);
            }
            90..95 => {
                self.client.retry(&mut self.memory);
                self.resume();
            }
            _ => {
                let order_min = self.below(3);
                let rate = [0, 50, 500, 1000][self.below(4) as usize];
                let order_min = u8::try_from(order_min).unwrap();
                let faults = AllocFaults { per_mille: rate, order_min, ..AllocFaults::default() };
                self.memory.set_faults(faults);
            }
        }
        self.held_max = self.held_max.max(self.client.held_pages());
    }

    /// Lets the page allocator fail for good; all running writes end.
    fn drain(mut self) -> End {
        self.memory.set_faults(AllocFaults { per_mille: 1000, ..AllocFaults::default() });
        self.memory.squeeze(0);
        while !self.running.is_empty() {
            self.end_one();
        }
        let counters = *self.client.counters();
        let parked = self.client.parked();
        let held_max = self.held_max;
        assert_eq!(u64::from(self.got), counters.bios);
        if parked == 0 {
            assert_eq!(self.got, self.asked, "every writer ended");
            assert!(self.client.is_idle() && self.client.held_pages() == self.reserve);
            assert!(self.taken.iter().all(|taken| !taken));
            self.client.release(&mut self.memory);
            self.memory.squeeze(u32::MAX);
            let all: u32 = self.memory.zones.iter().map(|zone| zone.buddy.pages()).sum();
            assert_eq!(self.memory.free_pages(), all, "no page is lost");
        }
        let waits = counters.page_waits + counters.mutex_waits;
        End { parked, held_max, second_rounds: counters.second_rounds, waits }
    }
}

fn run(spec: &str, seed: u64, steps: u32) -> (u32, End) {
    let mut world = World::new(spec, seed);
    let limit = world.client.limit_pages();
    (0..steps).for_each(|_| world.step());
    (limit, world.drain())
}

#[test]
fn writers_of_every_allocator_end_and_pages_are_neither_lost_nor_given_twice() {
    for allocator in ALLOCATORS {
        let mut waits = 0;
        let mut second_rounds = 0;
        for seed in 0..20 {
            let (limit, end) = run(allocator.name, seed, 5_000);
            assert_eq!(end.parked, 0, "{}, seed {seed}", allocator.name);
            assert!(end.held_max <= limit, "{}, seed {seed}", allocator.name);
            waits += end.waits;
            second_rounds += end.second_rounds;
        }
        assert!(waits > 1000, "{}: the worlds are tight", allocator.name);
        assert!(second_rounds > 100 || allocator.from_reserve == FromReserve::AllAtOnce);
    }
}

#[test]
fn no_seed_of_a_thousand_deadlocks_with_the_mutex_and_many_do_without() {
    for allocator in ALLOCATORS {
        let stuck = |mutex: &str| {
            let spec = format!("{},mutex={mutex}", allocator.name);
            (0..1000).filter(|seed| run(&spec, *seed, 120).1.parked > 0).count()
        };
        assert_eq!(stuck("on"), 0, "{}", allocator.name);
        match allocator.from_reserve {
            FromReserve::PageByPage => assert!(stuck("off") > 50, "{}", allocator.name),
            FromReserve::AllAtOnce => assert_eq!(stuck("off"), 0, "{}", allocator.name),
        }
    }
}

#[test]
fn compound_pages_that_do_not_count_pass_the_limit_in_most_worlds() {
    let passed = |spec| {
        let over = |seed: &u64| {
            let (limit, end) = run(spec, *seed, 1_000);
            end.held_max > limit
        };
        (0..100).filter(over).count()
    };
    assert!(passed("compound,accounting=off") > 50);
    assert_eq!(passed("compound"), 0);
}
