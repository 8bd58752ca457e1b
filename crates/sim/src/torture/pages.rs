//! Search for deadlocks: crypt lines with tiny page reserves, in failing memory.
//!
//! A shard, and a world that completes operations in any order. Memory is squeezed and relieved,
//! calls fail, writers write up to four reserves at once. Checked in each world: no page is in two
//! writes, and none is lost. Finally the page allocator fails for good, and all operations in
//! flight end. Then no writer may wait, unless two waiters hold each other's pages, which the mutex
//! prevents.

use std::collections::BTreeMap;
use std::sync::Arc;

use blockyard_engine::bio::{Bio, BlkStatus, Op, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::dm::bounce::Bounce;
use blockyard_engine::dm::crypt::CryptSpec;
use blockyard_engine::dm::crypt::pipeline::{Choice, PRESETS};
use blockyard_engine::dm::table::{Table, TableExtent};
use blockyard_engine::pages::{AllocatorSpec, PAGE_BYTES, Page, Sizes};
use blockyard_engine::shard::Shard;
use blockyard_engine::sq::{CipherId, Cqe, DevId, Owner, Sqe, SqeOp, Token};
use blockyard_engine::time::Nanos;
use blockyard_workload::random::Random;

use crate::memory::{
    AllocFaults, ListSizes, MemoryConfig, PhysicalMemory, SharedMemory, ZoneConfig,
};

const STREAM: u64 = 11;
/// Events before memory fails for good.
const STEPS: u32 = 150;
/// Sectors of a line.
const LINE: Sector = Sector(1 << 16);

/// Result of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Writes that wait forever.
    pub stuck: usize,
    /// Ended writes.
    pub writes: usize,
    /// Number of waits.
    pub waits: u64,
}

/// Runs the world of a seed.
///
/// # Panics
/// A page is in two writes or lost: a bug.
#[must_use]
pub fn run(spec: &AllocatorSpec, seed: u64) -> Ended {
    let mut world = World::new(spec, seed);
    (0..STEPS).for_each(|_| world.step());
    world.drain()
}

/// Operations in flight; each completes once.
struct Flying {
    token: Token,
    op: SqeOp,
}

struct World {
    random: Random,
    memory: SharedMemory,
    shard: Shard,
    lines: u64,
    reserve: u32,
    flying: Vec<Flying>,
    /// Page list of each write that has one.
    lists: BTreeMap<Token, Vec<Page>>,
    submitted: usize,
    ended: usize,
    all_pages: u32,
}

impl World {
    fn new(spec: &AllocatorSpec, seed: u64) -> Self {
        let mut random = Random::new(seed, STREAM);
        let mut below = |end: u32| u32::try_from(random.below(u64::from(end))).expect("below end");
        let lines = u64::from(1 + below(2));
        let reserve = 1 + below(32);
        let sizes = Sizes { reserve_pages: reserve, limit_pages: reserve + below(96) };
        let pages = 2 * reserve + 1 + below(300);
        let mut config = MemoryConfig { seed, ..MemoryConfig::of_pages(pages) };
        config.zones.push(ZoneConfig { pages: 1 + below(100), watermark_pages: below(20) });
        config.lists = ListSizes { batch_pages: 1 + below(16), high_pages: below(64) };
        let pipeline = PRESETS[below(u32::try_from(PRESETS.len()).expect("few")) as usize].pipeline;
        let memory = SharedMemory::new(PhysicalMemory::new(config));
        let all_pages = memory.lock().free_pages();
        let source = Box::new(memory.clone());
        let bounce = Bounce::Pages { spec: *spec, sizes, source };
        let shard = Shard::new(&table(lines, Choice::Fixed(pipeline)), bounce);
        let shard = shard.expect("memory has more pages than the reserves");
        let flying = Vec::new();
        let lists = BTreeMap::new();
        let submitted = 0;
        let ended = 0;
        Self { random, memory, shard, lines, reserve, flying, lists, submitted, ended, all_pages }
    }

    fn below(&mut self, end: u32) -> u32 {
        u32::try_from(self.random.below(u64::from(end))).expect("below end")
    }

    fn step(&mut self) {
        match self.below(100) {
            0..45 if self.shard.parked() < 20 => self.submit(),
            0..85 => self.answer_one(),
            85..92 => {
                let usable = self.below(200);
                self.memory.lock().squeeze(usable);
            }
            _ => {
                let order_min = u8::try_from(self.below(3)).expect("below 3");
                let per_mille = [0, 50, 500, 1000][self.below(4) as usize];
                let faults = AllocFaults { per_mille, order_min, ..AllocFaults::default() };
                self.memory.lock().set_faults(faults);
            }
        }
    }

    fn submit(&mut self) {
        let len = match self.below(4) {
            0 => 1,
            1 => 8 * self.reserve,
            _ => 1 + self.below(32 * self.reserve),
        };
        let line = self.random.below(self.lines);
        let at = self.random.below(LINE.0 - u64::from(len));
        let buf = BufRef { slot: BufRef::FIRST_WORLD_SLOT, offset_bytes: 0, len_bytes: len * 512 };
        let sector = Sector(line * LINE.0 + at);
        let len = Sector(u64::from(len));
        self.submitted += 1;
        self.shard.submit_bio(Nanos(0), Bio::new(Op::Write, sector, len, buf, 0));
        self.collect();
    }

    /// Completes any operation in flight. A timer fires when nothing else is in flight, or as one
    /// of many.
    fn answer_one(&mut self) {
        let Ok(count @ 1..) = u32::try_from(self.flying.len()) else { return };
        let index = self.below(count) as usize;
        self.answer(index);
    }

    fn answer(&mut self, index: usize) {
        let Flying { token, op } = self.flying.swap_remove(index);
        if matches!(op, SqeOp::Write { .. }) {
            self.lists.remove(&token);
        }
        // The pages of a failed write return too.
        let status = match (op, self.below(20)) {
            (SqeOp::Write { .. }, 0) => BlkStatus::IoError,
            _ => BlkStatus::Ok,
        };
        self.shard.on_cqe(Nanos(0), Cqe { token, status });
        self.collect();
    }

    fn collect(&mut self) {
        let mut sqes = Vec::new();
        let mut done = Vec::new();
        self.shard.take_sq(&mut sqes);
        for Sqe { token, op, linked, .. } in sqes {
            if let SqeOp::Crypt { dst, .. } = op {
                self.encrypts(token, dst);
            }
            if !linked {
                self.flying.push(Flying { token, op });
            }
        }
        self.shard.take_done(&mut done);
        self.ended += done.len();
    }

    /// A write has got its pages, which must be its own.
    fn encrypts(&mut self, token: Token, buf: BufRef) {
        assert!(buf.is_list());
        let of = |first: Page, count: u32| (first.0..first.0 + count).map(Page);
        let segments = self.shard.segments(buf.slot);
        let pages: Vec<Page> =
            segments.iter().flat_map(|segment| of(segment.first, segment.pages())).collect();
        assert_eq!(pages.len(), buf.len_bytes.div_ceil(PAGE_BYTES) as usize);
        for page in &pages {
            let taken = self.lists.values().any(|list| list.contains(page));
            assert!(!taken, "{page:?} is in two writes");
        }
        assert!(self.lists.insert(token, pages).is_none(), "a write is encrypted once");
    }

    /// Lets the page allocator fail for good; all operations in flight end.
    fn drain(mut self) -> Ended {
        let nothing = AllocFaults { per_mille: 1000, ..AllocFaults::default() };
        self.memory.lock().set_faults(nothing);
        self.memory.lock().squeeze(0);
        let timers = |world: &Self| {
            world.flying.iter().filter(|flying| flying.token.owner == Owner::Pages).count()
        };
        while self.flying.len() > timers(&self) {
            self.answer_one();
        }
        // A waiting writer has no other to wait for: a timer cannot replace memory.
        if !self.flying.is_empty() {
            self.answer(0);
        }
        let waits = |allocator: &blockyard_engine::pages::Counters| {
            allocator.page_waits + allocator.mutex_waits
        };
        let counters = self.shard.page_allocators().map(|allocator| waits(allocator.counters()));
        let waits = counters.sum();
        let stuck = self.shard.parked();
        if stuck == 0 {
            assert_eq!(self.ended, self.submitted, "every write ended once");
            assert!(self.shard.is_idle() && self.lists.is_empty());
        }
        drop(self.shard);
        self.memory.lock().squeeze(u32::MAX);
        assert_eq!(self.memory.lock().free_pages(), self.all_pages, "no page is lost");
        Ended { stuck, writes: self.ended, waits }
    }
}

fn table(lines: u64, pipeline: Choice) -> Table {
    let crypt = CryptSpec {
        dev: DevId(0),
        start: Sector(0),
        iv_offset: 0,
        sector_size_bytes: 512,
        cipher: CipherId(0),
        allow_discards: false,
        fuses_cipher: false,
        pipeline,
    };
    let line = |line| TableExtent::new(Sector(line * LINE.0), LINE, Arc::new(crypt));
    Table::new((0..lines).map(line).collect())
}

#[cfg(test)]
mod tests {
    use blockyard_engine::pages::{ALLOCATORS, FromReserve};

    use super::*;

    /// Of 300 worlds, the number that end with deadlocked writers, and the number of waits.
    fn hunt(spec: &str) -> (usize, u64) {
        let spec = AllocatorSpec::parse(spec).unwrap();
        let ends: Vec<Ended> = (0..300).map(|seed| run(&spec, seed)).collect();
        assert!(ends.iter().map(|end| end.writes).sum::<usize>() > 5_000);
        let stuck = ends.iter().filter(|end| end.stuck > 0).count();
        (stuck, ends.iter().map(|end| end.waits).sum())
    }

    #[test]
    fn writers_wait_for_each_other_without_the_mutex_and_never_with_it() {
        for allocator in ALLOCATORS {
            let (stuck, waits) = hunt(allocator.name);
            assert_eq!(stuck, 0, "{}", allocator.name);
            assert!(waits > 1_000, "{}: {waits}", allocator.name);
            let (stuck, _) = hunt(&format!("{},mutex=off", allocator.name));
            match allocator.from_reserve {
                FromReserve::PageByPage => assert!(stuck > 10, "{}: {stuck}", allocator.name),
                FromReserve::AllAtOnce => assert_eq!(stuck, 0, "{}", allocator.name),
            }
        }
    }

    #[test]
    fn world_of_a_seed_is_always_the_same() {
        let spec = AllocatorSpec::parse("compound").unwrap();
        (0..20).for_each(|seed| assert_eq!(run(&spec, seed), run(&spec, seed)));
    }
}
