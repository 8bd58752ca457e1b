//! Each allocator by hand, against a source that records its calls.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::buddy::Buddy;
use super::*;

/// Memory that records each call: order or count, `?` without reclaim and `!` with it.
struct Script {
    buddy: Buddy,
    log: Vec<String>,
    /// Whether calls without reclaim fail.
    tight: bool,
    /// Number of free pages that no call gets.
    kept_back: u32,
    /// Greatest order of a block.
    order_max: u8,
}

impl Script {
    fn with(pages: u32) -> Self {
        let buddy = Buddy::new(pages);
        Self { buddy, log: Vec::new(), tight: false, kept_back: 0, order_max: ORDER_MAX }
    }

    fn log(&mut self) -> String {
        core::mem::take(&mut self.log).join(" ")
    }

    fn left(&self, effort: Effort) -> u32 {
        if self.tight && effort == Effort::NoWait {
            0
        } else {
            self.buddy.free_pages().saturating_sub(self.kept_back)
        }
    }

    fn mark(effort: Effort) -> char {
        if effort == Effort::Reclaim { '!' } else { '?' }
    }
}

impl PageSource for Script {
    fn alloc(&mut self, order: u8, effort: Effort) -> Option<Page> {
        let may = self.left(effort) >= 1 << order && order <= self.order_max;
        let page = may.then(|| self.buddy.alloc(order)).flatten().map(|(first, _)| Page(first));
        let result = if page.is_some() { "+" } else { "-" };
        self.log.push(format!("{order}{}{result}", Self::mark(effort)));
        page
    }

    fn alloc_bulk(&mut self, count: u32, effort: Effort, consumer: &mut Consumer<'_>) -> u32 {
        let given = count.min(self.left(effort));
        for _ in 0..given {
            consumer.take(Page(self.buddy.alloc(0).expect("counted").0));
        }
        self.log.push(format!("bulk{}{given}/{count}", Self::mark(effort)));
        given
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn free(&mut self, first: Page, order: u8) {
        self.buddy.free(first.0, order);
    }
}

fn client(spec: &str, reserve: u32, limit: u32, source: &mut Script) -> Allocator<char> {
    let spec = AllocatorSpec::parse(spec).unwrap();
    let sizes = Sizes { reserve_pages: reserve, limit_pages: limit };
    let client = Allocator::new(spec, sizes, source).unwrap();
    source.log.clear();
    client
}

fn got(outcome: Outcome<char>) -> BioPages {
    match outcome {
        Outcome::Got(_, pages) => pages,
        Outcome::Parked => panic!("it parked"),
    }
}

fn orders(pages: &BioPages) -> Vec<u8> {
    pages.segments().iter().map(|segment| segment.order).collect()
}

const BULK: [&str; 3] = ["bulk-list", "bulk-array", "bulk-callback"];
const PAGES_1_MIB: u32 = 256;

#[test]
fn reserve_is_filled_page_by_page_and_given_back() {
    for allocator in ALLOCATORS {
        let mut source = Script::with(8);
        let sizes = Sizes { reserve_pages: 4, limit_pages: 8 };
        let client: Allocator<()> =
            Allocator::new(AllocatorSpec::of(allocator), sizes, &mut source).unwrap();
        assert_eq!(source.log(), "0!+ 0!+ 0!+ 0!+");
        client.release(&mut source);
        assert_eq!(source.buddy.free_pages(), 8);
        let sizes = Sizes { reserve_pages: 9, limit_pages: 9 };
        let refused = Allocator::<()>::new(AllocatorSpec::of(allocator), sizes, &mut source);
        assert_eq!(
            refused.unwrap_err().to_string(),
            "the page reserve needs 9 pages, but memory has 8; choose a smaller reserve"
        );
        assert_eq!(source.buddy.free_pages(), 8);
    }
}

#[test]
fn calls_for_one_mebibyte_in_memory_that_has_it() {
    let calls = |name| {
        let mut source = Script::with(4096);
        let mut client = client(name, PAGES_1_MIB, 4096, &mut source);
        let pages = got(client.get(PAGES_1_MIB, 'a', &mut source));
        let counters = *client.counters();
        assert_eq!(counters.by_step.allocator, 1);
        client.put(pages, &mut source);
        client.release(&mut source);
        assert_eq!(source.buddy.free_pages(), 4096);
        (counters.calls(), counters.segments)
    };
    assert_eq!(calls("single"), (256, 256));
    BULK.iter().for_each(|name| assert_eq!(calls(name), (1, 256)));
    assert_eq!(calls("all-or-nothing"), (1, 256));
    assert_eq!(calls("compound"), (1, 1));
}

#[test]
fn single_fails_at_once_then_waits_with_the_mutex() {
    let mut source = Script::with(5);
    let mut client = client("single", 3, 100, &mut source);
    let first = got(client.get(3, 'a', &mut source));
    assert_eq!(source.log(), "0?+ 0?+ 0?-");
    assert_eq!((client.reserve_left(), first.step()), (2, AllocationStep::Reserve));
    assert_eq!(client.get(3, 'b', &mut source), Outcome::Parked);
    // Two pages of the reserve, then none, and all go back; then again, and a call that may wait.
    assert_eq!(source.log(), "0?- 0?- 0?- 0?- 0?- 0?- 0!-");
    assert_eq!(client.get(1, 'c', &mut source), Outcome::Parked);
    assert_eq!(source.log(), "", "the mutex is taken");
    assert_eq!((client.parked_for(Why::Memory), client.parked_for(Why::Mutex)), (1, 1));
    client.put(first, &mut source);
    let (who, pages) = client.take_resumed().unwrap();
    assert_eq!((who, pages.step()), ('b', AllocationStep::Wait));
    assert_eq!(client.take_resumed().unwrap().0, 'c');
    assert_eq!(client.counters().mutex_waits, 1);
}

#[test]
fn bulk_goes_its_four_steps_in_order() {
    for name in BULK {
        let mut source = Script::with(12);
        let mut client = client(name, 4, 100, &mut source);
        source.kept_back = 6;
        let _first = got(client.get(4, 'a', &mut source));
        // 1: two pages from memory; 2: two from the reserve.
        assert_eq!((source.log().as_str(), client.reserve_left()), ("bulk?2/4", 2));
        source.tight = true;
        source.kept_back = 4;
        let second = got(client.get(4, 'b', &mut source));
        // First round: two pages of the reserve are too few. Second: 1 none; 2 two; 3 the other
        // two.
        assert_eq!(source.log(), "bulk?0/4 bulk?0/4 bulk!2/2", "{name}");
        assert_eq!((second.step(), client.reserve_left()), (AllocationStep::Reclaim, 0));
    }
}

#[test]
fn bulk_takes_the_rest_after_reclaim_and_waits_only_for_missing_pages() {
    for name in BULK {
        let mut source = Script::with(8);
        let mut client = client(name, 4, 100, &mut source);
        source.kept_back = 4;
        let first = got(client.get(3, 'a', &mut source));
        source.tight = true;
        source.kept_back = 2;
        source.log();
        assert_eq!(client.get(4, 'b', &mut source), Outcome::Parked);
        assert_eq!(source.log(), "bulk?0/4 bulk?0/4 bulk!2/3", "{name}");
        client.put(first, &mut source);
        assert_eq!(source.log(), "bulk!0/1", "{name}");
        let (_, pages) = client.take_resumed().unwrap();
        assert_eq!((pages.missing(), pages.step()), (0, AllocationStep::Wait));
        assert_eq!(client.reserve_left(), 2);
    }
}

#[test]
fn three_consumers_give_the_same_pages_and_leave_the_same_reserve() {
    let pages = |name| {
        let mut source = Script::with(12);
        let mut client = client(name, 6, 100, &mut source);
        source.kept_back = 3;
        let pages = got(client.get(5, 'a', &mut source));
        let mut numbers: Vec<Page> = pages.segments().iter().map(|part| part.first).collect();
        numbers.sort();
        (numbers, client.reserve_left())
    };
    assert_eq!(pages("bulk-list"), pages("bulk-array"));
    assert_eq!(pages("bulk-array"), pages("bulk-callback"));
    assert_eq!(pages("bulk-array").1, 4);
}

#[test]
fn compound_needs_as_many_blocks_as_the_number_has_ones() {
    let mut source = Script::with(1024);
    let mut client = client("compound", PAGES_1_MIB, 1024, &mut source);
    for wanted in 1..=PAGES_1_MIB {
        let pages = got(client.get(wanted, 'a', &mut source));
        assert_eq!(pages.segments().len(), wanted.count_ones() as usize);
        client.put(pages, &mut source);
    }
    let pages = got(client.get(100, 'a', &mut source));
    assert_eq!(orders(&pages), [6, 5, 2]);
}

#[test]
fn compound_does_not_try_a_larger_order_again() {
    let mut source = Script::with(64);
    let mut client = client("compound", 16, 64, &mut source);
    source.order_max = 1;
    let pages = got(client.get(7, 'a', &mut source));
    assert_eq!(source.log(), "2?- 1?+ 1?+ 1?+ 0?+");
    assert_eq!((orders(&pages), client.counters().order_drops), (alloc::vec![1, 1, 1, 0], 1));
}

#[test]
fn compound_takes_single_pages_in_its_second_round() {
    let mut source = Script::with(12);
    let mut client = client("compound", 4, 100, &mut source);
    source.kept_back = 6;
    let first = got(client.get(4, 'a', &mut source));
    assert_eq!(source.log(), "2?- 1?+ 1?- 0?- 0?-");
    source.tight = true;
    source.kept_back = 2;
    let second = got(client.get(4, 'b', &mut source));
    assert_eq!(source.log(), "2?- 1?- 0?- 0?- 0?- 0?- 0?- 0?- 0!+ 0?- 0!+");
    assert_eq!(orders(&second), [0; 4]);
    client.put(first, &mut source);
    client.put(second, &mut source);
    client.release(&mut source);
    assert_eq!(source.buddy.free_pages(), 12);
}

#[test]
fn blocks_are_worth_reclaim_only_if_that_is_switched_on() {
    let mut source = Script::with(64);
    let mut client = client("compound,compaction=on", 4, 64, &mut source);
    got(client.get(4, 'a', &mut source));
    assert_eq!(source.log(), "2!+");
}

#[test]
fn all_or_nothing_never_holds_part_of_the_reserve() {
    let mut source = Script::with(6);
    let mut client = client("all-or-nothing", 4, 100, &mut source);
    let first = got(client.get(3, 'a', &mut source));
    assert_eq!((source.log().as_str(), client.reserve_left()), ("bulk?2/3 0?-", 3));
    assert_eq!(client.get(4, 'b', &mut source), Outcome::Parked);
    assert_eq!(source.log(), "bulk?0/4 0?- 0!-");
    assert_eq!(client.reserve_left(), 3, "three of four are not taken");
    client.put(first, &mut source);
    let (who, pages) = client.take_resumed().unwrap();
    assert_eq!((who, pages.wanted(), client.reserve_left()), ('b', 4, 2));
}

/// Result of two writers of four pages each when a third one frees four pages, one by one.
fn two_writers(spec: &str) -> (usize, Allocator<char>) {
    let mut source = Script::with(4);
    let mut client = client(spec, 4, 100, &mut source);
    let lent = got(client.get(4, 'a', &mut source));
    assert_eq!(client.get(4, 'b', &mut source), Outcome::Parked);
    assert_eq!(client.get(4, 'c', &mut source), Outcome::Parked);
    client.put(lent, &mut source);
    let mut ended = 0;
    while let Some((_, pages)) = client.take_resumed() {
        ended += 1;
        client.put(pages, &mut source);
    }
    for _ in 0..100 {
        client.retry(&mut source);
    }
    (ended, client)
}

#[test]
fn two_writers_wait_for_each_other_for_ever_without_the_mutex() {
    for name in ["single", "bulk-list", "bulk-array", "bulk-callback", "compound"] {
        let (ended, client) = two_writers(&format!("{name},mutex=off"));
        assert_eq!((ended, client.parked(), client.reserve_left()), (0, 2, 0), "{name}");
        let (ended, client) = two_writers(name);
        assert_eq!((ended, client.parked(), client.is_idle()), (2, 0, true), "{name}");
    }
    assert_eq!(two_writers("all-or-nothing,mutex=off").0, 2, "it needs no mutex");
}

#[test]
fn limit_leaves_a_client_its_reserve_and_counts_as_no_error() {
    for allocator in ALLOCATORS {
        let mut source = Script::with(64);
        let mut client = client(allocator.name, 4, 6, &mut source);
        let first = got(client.get(4, 'a', &mut source));
        assert_eq!((client.counted_pages(), client.held_pages()), (6, 6), "{}", allocator.name);
        assert_eq!(client.get(4, 'b', &mut source), Outcome::Parked);
        assert_eq!(client.parked_for(Why::Limit), 1);
        client.set_limit(8, &mut source);
        assert_eq!(client.take_resumed().unwrap().0, 'b');
        assert_eq!(client.held_pages(), 8);
        client.put(first, &mut source);
    }
}

#[test]
fn compound_pages_that_do_not_count_pass_the_limit() {
    let held = |spec| {
        let mut source = Script::with(64);
        let mut client = client(spec, 4, 8, &mut source);
        let mut bios = 0;
        while let Outcome::Got(..) = client.get(4, 'a', &mut source) {
            bios += 1;
        }
        (bios, client.held_pages(), client.counted_pages())
    };
    // The reserve has 4 pages and counts; another 4 may be taken.
    assert_eq!(held("compound"), (2, 8, 8));
    // All of memory; then four pages of the reserve.
    assert_eq!(held("compound,accounting=off"), (16, 64, 4));
}

#[test]
fn client_has_a_share_of_memory_but_at_least_sixteen_large_bios() {
    assert_eq!(pages_per_client(0, 1), 4096);
    assert_eq!(pages_per_client(1_000_000, 1), 20_000);
    assert_eq!(pages_per_client(1_000_000, 2), 10_000);
    assert_eq!(pages_per_client(1_000_000, 0), 20_000);
}

#[test]
#[should_panic(expected = "the reserve holds the largest bio")]
fn bio_larger_than_the_reserve_is_a_programmer_error() {
    let mut source = Script::with(64);
    let mut client = client("single", 4, 64, &mut source);
    let _ = client.get(5, 'a', &mut source);
}
