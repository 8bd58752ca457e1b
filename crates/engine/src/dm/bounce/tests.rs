//! A crypt line with pages: waiting, wake-ups, and the place of all pages afterwards.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::*;
use crate::bio::{Bio, BlkStatus, Op, Sector};
use crate::dm::crypt::CryptSpec;
use crate::dm::crypt::pipeline::{Choice, find};
use crate::dm::table::{Table, TableExtent};
use crate::pages::buddy::Buddy;
use crate::pages::{ALLOCATORS, Consumer, Effort, Page, Why};
use crate::shard::Shard;
use crate::sq::{CipherId, Cqe, DevId};
use crate::time::Nanos;

const NOW: Nanos = Nanos(0);
const MEMORY_PAGES: u32 = 64;

/// Memory with refusals and free pages under the test's control.
#[derive(Clone, Default)]
struct Knobs {
    refuses: Arc<AtomicBool>,
    free: Arc<AtomicU32>,
}

impl Knobs {
    fn free(&self) -> u32 {
        self.free.load(Ordering::Relaxed)
    }
}

struct Memory {
    buddy: Buddy,
    knobs: Knobs,
    shared: bool,
}

impl Memory {
    fn tell(&self) {
        self.knobs.free.store(self.buddy.free_pages(), Ordering::Relaxed);
    }
}

impl PageSource for Memory {
    fn alloc(&mut self, order: u8, _: Effort) -> Option<Page> {
        if self.knobs.refuses.load(Ordering::Relaxed) {
            return None;
        }
        let block = self.buddy.alloc(order);
        self.tell();
        block.map(|(first, _)| Page(first))
    }

    fn alloc_bulk(&mut self, count: u32, effort: Effort, consumer: &mut Consumer<'_>) -> u32 {
        for given in 0..count {
            let Some(page) = self.alloc(0, effort) else { return given };
            consumer.take(page);
        }
        count
    }

    fn is_shared(&self) -> bool {
        self.shared
    }

    fn free(&mut self, first: Page, order: u8) {
        self.buddy.free(first.0, order);
        self.tell();
    }
}

struct World {
    shard: Shard,
    knobs: Knobs,
}

/// A shard with `lines` crypt lines of 1024 sectors each.
fn try_world(spec: &str, sizes: Sizes, lines: u64, shared: bool) -> Result<World, OutOfPages> {
    let knobs = Knobs::default();
    let source = Memory { buddy: Buddy::new(MEMORY_PAGES), knobs: knobs.clone(), shared };
    let crypt = CryptSpec {
        dev: DevId(0),
        start: Sector(0),
        iv_offset: 0,
        sector_size_bytes: 512,
        cipher: CipherId(0),
        allow_discards: false,
        fuses_cipher: false,
        pipeline: Choice::Fixed(find("E").unwrap().pipeline),
    };
    let extent = |line| TableExtent::new(Sector(line * 1024), Sector(1024), Arc::new(crypt));
    let table = Table::new((0..lines).map(extent).collect());
    let spec = AllocatorSpec::parse(spec).unwrap();
    let shard = Shard::new(&table, Bounce::Pages { spec, sizes, source: Box::new(source) })?;
    Ok(World { shard, knobs })
}

fn world(spec: &str, reserve_pages: u32, limit_pages: u32) -> World {
    try_world(spec, Sizes { reserve_pages, limit_pages }, 1, true).unwrap()
}

impl World {
    fn write(&mut self, sector: u64, pages: u32) {
        let len_bytes = pages * PAGE_BYTES;
        let buf = BufRef { slot: BufRef::FIRST_WORLD_SLOT, offset_bytes: 0, len_bytes };
        let len = Sector::holding(u64::from(len_bytes));
        self.shard.submit_bio(NOW, Bio::new(Op::Write, Sector(sector), len, buf, sector));
    }

    fn sqes(&mut self) -> Vec<Sqe> {
        let mut out = Vec::new();
        self.shard.take_sq(&mut out);
        out
    }

    /// Token and buffer of each pair of cipher and write, without timers.
    fn pairs(&mut self) -> Vec<(Token, BufRef)> {
        let mut sqes = self.sqes();
        sqes.retain(|sqe| sqe.token.owner != Owner::Pages);
        let pair = |pair: &[Sqe]| {
            let (SqeOp::Crypt { dst, .. }, SqeOp::Write { buf, .. }) = (pair[0].op, pair[1].op)
            else {
                panic!("a pair: {pair:?}");
            };
            assert_eq!(dst, buf);
            (pair[1].token, buf)
        };
        sqes.chunks(2).map(pair).collect()
    }

    fn answer(&mut self, token: Token) {
        self.shard.on_cqe(NOW, Cqe { token, status: BlkStatus::Ok });
    }

    fn refuse(&self, refuses: bool) {
        self.knobs.refuses.store(refuses, Ordering::Relaxed);
    }

    /// Number of pages of a list.
    fn pages(&self, buf: BufRef) -> u32 {
        assert!(buf.is_list());
        self.shard.segments(buf.slot).iter().map(|segment| segment.pages()).sum()
    }

    fn done(&mut self) -> usize {
        let mut done = Vec::new();
        self.shard.take_done(&mut done);
        assert!(done.iter().all(|done| done.status == BlkStatus::Ok));
        done.len()
    }
}

#[test]
fn write_is_encrypted_into_pages_that_go_back_when_it_ends() {
    for allocator in ALLOCATORS {
        let mut world = world(allocator.name, 8, 32);
        world.write(8, 5);
        let [(token, buf)] = world.pairs()[..] else { panic!("one pair") };
        assert_eq!((buf.offset_bytes, buf.len_bytes, world.pages(buf)), (0, 5 * PAGE_BYTES, 5));
        assert!(!world.shard.is_idle());
        world.answer(token);
        assert_eq!((world.done(), world.shard.is_idle()), (1, true));
        assert_eq!(world.knobs.free(), MEMORY_PAGES - 8, "{}", allocator.name);
        drop(world.shard);
        assert_eq!(world.knobs.free(), MEMORY_PAGES, "{}", allocator.name);
    }
}

#[test]
fn no_part_is_longer_than_the_reserve() {
    let mut world = world("compound", 8, 64);
    world.write(0, 20);
    let pairs = world.pairs();
    let pages: Vec<u32> = pairs.iter().map(|(_, buf)| world.pages(*buf)).collect();
    assert_eq!(pages, [8, 8, 4]);
}

#[test]
fn write_without_pages_goes_on_when_another_ends() {
    for allocator in ALLOCATORS {
        let mut world = world(allocator.name, 8, 32);
        world.refuse(true);
        world.write(0, 8);
        world.write(64, 8);
        assert_eq!(world.shard.parked(), 1, "{}", allocator.name);
        let sqes = world.sqes();
        let [crypt, _, timer] = sqes[..] else { panic!("a pair and a timer: {sqes:?}") };
        assert_eq!((timer.op, timer.token.owner), (SqeOp::Timeout { after: RETRY }, Owner::Pages));
        world.answer(crypt.token);
        assert_eq!((world.done(), world.shard.parked()), (1, 0));
        let [(token, _)] = world.pairs()[..] else { panic!("the one that waited") };
        world.answer(token);
        assert!(world.shard.is_idle());
        world.answer(timer.token);
        assert!(world.sqes().is_empty(), "nobody waits: no other timer");
    }
}

#[test]
fn waiter_tries_again_when_the_timer_ends_and_only_one_timer_runs() {
    let mut world = world("bulk-callback", 8, 32);
    world.refuse(true);
    for sector in [0, 64, 128] {
        world.write(sector, 8);
    }
    let timers: Vec<Sqe> =
        world.sqes().into_iter().filter(|sqe| sqe.token.owner == Owner::Pages).collect();
    assert_eq!(timers.len(), 1);
    world.answer(timers[0].token);
    let [timer] = world.sqes()[..] else { panic!("still nothing: the timer runs again") };
    world.refuse(false);
    world.answer(timer.token);
    assert_eq!((world.pairs().len(), world.shard.parked()), (2, 0));
}

#[test]
fn memory_of_ones_own_needs_no_timer() {
    let sizes = Sizes { reserve_pages: 8, limit_pages: 32 };
    let mut world = try_world("single", sizes, 1, false).unwrap();
    world.refuse(true);
    world.write(0, 8);
    world.write(64, 8);
    assert_eq!((world.pairs().len(), world.shard.parked()), (1, 1));
}

#[test]
fn client_at_its_limit_waits_and_a_higher_limit_wakes_it() {
    let mut world = world("single", 4, 6);
    world.write(0, 4);
    world.write(64, 4);
    assert_eq!(world.pairs().len(), 1);
    let allocator = world.shard.page_allocators().next().unwrap();
    let held = (allocator.held_pages(), allocator.limit_pages(), allocator.parked_for(Why::Limit));
    assert_eq!(held, (6, 6, 1));
    world.shard.set_page_limit(NOW, 16);
    assert_eq!((world.shard.parked(), world.pairs().len()), (0, 1));
}

#[test]
fn each_line_is_a_client_and_one_reserve_does_not_serve_the_other() {
    let sizes = Sizes { reserve_pages: 8, limit_pages: 8 };
    let mut world = try_world("single", sizes, 2, true).unwrap();
    world.write(0, 8);
    world.write(1024, 8);
    assert_eq!(world.pairs().len(), 2);
    world.write(64, 8);
    world.write(1024 + 64, 8);
    let parked: Vec<usize> = world.shard.page_allocators().map(Allocator::parked).collect();
    assert_eq!(parked, [1, 1]);
}

#[test]
fn dropped_shard_gives_back_pages_in_flight_and_pages_of_waiters() {
    for allocator in ALLOCATORS {
        let mut world = world(allocator.name, 8, 32);
        world.write(0, 8);
        world.write(64, 5);
        world.refuse(true);
        world.write(128, 8);
        world.write(192, 8);
        assert!(world.shard.parked() > 0);
        drop(world.shard);
        assert_eq!(world.knobs.free(), MEMORY_PAGES, "{}", allocator.name);
    }
}

#[test]
fn too_little_memory_for_the_reserves_is_said_and_nothing_is_kept() {
    let sizes = Sizes { reserve_pages: 40, limit_pages: 40 };
    let refused = try_world("single", sizes, 2, true).map(drop).unwrap_err();
    assert_eq!(refused, OutOfPages { wanted: 40, had: 24 });
}
