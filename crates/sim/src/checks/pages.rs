//! Rules of the bulk page mempool (Yang Shi, linux-block, February 2023), against memory that
//! records requests and fails on command.

use std::collections::BTreeMap;

use blockyard_engine::pages::buddy::Buddy;
use blockyard_engine::pages::{
    AllocationStep, Allocator, AllocatorSpec, BioPages, Consumer, Effort, Outcome, Page,
    PageSource, Sizes,
};
use blockyard_workload::random::Random;

use super::{Check, Verdict, WorldResult};

pub(super) const ORDER_OF_ATTEMPTS: Check = Check {
    id: "003-5",
    about: "three bios of 4, 4 and 3 pages, a reserve of 4, and less memory for each bio",
    run: |_| Verdict::of(attempts("bulk-callback"), &[attempts("single")]),
};

pub(super) const ALWAYS_SUCCEEDS: Check = Check {
    id: "003-6",
    about: "2000 bios of up to 256 pages, a reserve of 256, half of all calls fail",
    run: |seed| Verdict::of(served(seed, "bulk-callback", 1), &[both_wait("single,mutex=off")]),
};

pub(super) const PART_OF_A_RESULT: Check = Check {
    id: "003-7",
    about: "a bio of 32 pages while memory ends after each number of them; all pages counted",
    run: |_| Verdict::of(balance(true), &[balance(false)]),
};

pub(super) const FILLED_PAGE_BY_PAGE: Check = Check {
    id: "003-8",
    about: "the calls that fill a reserve of 8 pages; control: those for a bio of 8",
    run: |_| {
        let (fill, bio) = fill_and_bio("bulk-callback");
        let seen = |what: String| WorldResult { holds: what == ["one"; 8].join(" "), what };
        Verdict::of(seen(fill), &[seen(bio)])
    },
};

pub(super) const THREE_CONSUMERS: Check = Check {
    id: "003-9",
    about: "5 pages of which memory has 3: by list, array and callback; control: compound",
    run: |_| {
        let seen = |names: &[&str]| {
            let each: Vec<String> = names.iter().map(|name| pages_and_reserve(name)).collect();
            let same = each.iter().all(|one| *one == each[0]);
            WorldResult { what: each.join("; "), holds: same && keeps() }
        };
        let bulk = ["bulk-list", "bulk-array", "bulk-callback"];
        Verdict::of(seen(&bulk), &[seen(&["bulk-array", "compound"])])
    },
};

/// Memory that keeps a list of calls.
struct Memory {
    buddy: Buddy,
    calls: Vec<String>,
    /// Calls that may not wait fail.
    is_tight: bool,
    /// Pages that are never given out.
    kept_back: u32,
    /// Number of calls during which half of them fail.
    faults: u32,
    random: Random,
}

impl Memory {
    fn new(pages: u32, seed: u64) -> Self {
        let buddy = Buddy::new(pages);
        let random = Random::new(seed, 0);
        Self { buddy, calls: Vec::new(), is_tight: false, kept_back: 0, faults: 0, random }
    }

    fn left(&mut self, effort: Effort) -> u32 {
        if self.faults > 0 {
            self.faults -= 1;
            if self.random.below(2) == 0 {
                return 0;
            }
        }
        if self.is_tight && effort == Effort::NoWait {
            0
        } else {
            self.buddy.free_pages().saturating_sub(self.kept_back)
        }
    }

    fn calls(&mut self) -> String {
        std::mem::take(&mut self.calls).join(" ")
    }
}

impl PageSource for Memory {
    fn alloc(&mut self, order: u8, effort: Effort) -> Option<Page> {
        let may = self.left(effort) >= 1 << order;
        self.calls.push(if order == 0 { "one".into() } else { format!("2^{order}") });
        may.then(|| self.buddy.alloc(order)).flatten().map(|(first, _)| Page(first))
    }

    fn alloc_bulk(&mut self, count: u32, effort: Effort, consumer: &mut Consumer<'_>) -> u32 {
        let given = count.min(self.left(effort));
        for _ in 0..given {
            consumer.take(Page(self.buddy.alloc(0).expect("they were counted").0));
        }
        let waits = if effort == Effort::Reclaim { " waiting" } else { "" };
        self.calls.push(format!("bulk{waits} {given}/{count}"));
        given
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn free(&mut self, first: Page, order: u8) {
        self.buddy.free(first.0, order);
    }
}

fn client(name: &str, reserve_pages: u32, limit_pages: u32, memory: &mut Memory) -> Allocator<u32> {
    let spec = AllocatorSpec::parse(name).expect("an allocator of this crate's own");
    let sizes = Sizes { reserve_pages, limit_pages };
    Allocator::new(spec, sizes, memory).expect("memory has the reserve")
}

/// The calls of each of three bios, and the step that served it.
fn attempts(name: &str) -> WorldResult {
    let mut memory = Memory::new(12, 0);
    let mut client = client(name, 4, 100, &mut memory);
    memory.calls();
    let mut what = Vec::new();
    let mut first = None;
    for (wanted, kept_back) in [(4, 6), (4, 4), (3, 4)] {
        memory.kept_back = kept_back;
        let outcome = client.get(wanted, wanted, &mut memory);
        let how = match &outcome {
            Outcome::Got(_, pages) => format!("{:?}", pages.step()),
            Outcome::Parked => "parked".into(),
        };
        what.push(format!("{}: {how}", memory.calls()));
        if let (Outcome::Got(_, pages), None) = (outcome, &first) {
            first = Some(pages);
            memory.is_tight = true;
        }
    }
    if let Some(pages) = first {
        client.put(pages, &mut memory);
    }
    let step = client.take_resumed().map(|(_, pages)| pages.step());
    what.push(format!("pages come back: {step:?}"));
    let holds = what
        == [
            "bulk 2/4: Reserve",
            "bulk 0/4 bulk 0/4 bulk waiting 2/2: Reclaim",
            "bulk 0/3 bulk 0/3 bulk waiting 0/3: parked",
            "pages come back: Some(Wait)",
        ];
    WorldResult { what: what.join("; "), holds }
}

/// Bios of random sizes, some of them held for a while, under a plan of faults that ends.
fn served(seed: u64, name: &str, bios_held: usize) -> WorldResult {
    const BIOS: u32 = 2000;
    let mut memory = Memory::new(1024, seed);
    let mut client = client(name, 256, 1024, &mut memory);
    memory.faults = 4 * BIOS;
    let mut random = Random::new(seed, 1);
    let mut held: BTreeMap<u32, BioPages> = BTreeMap::new();
    let mut served = 0;
    for bio in 0..BIOS {
        let wanted = 1 + random.below(256) as u32;
        if let Outcome::Got(bio, pages) = client.get(wanted, bio, &mut memory) {
            held.insert(bio, pages);
        }
        while held.len() > bios_held + random.below(8) as usize {
            let (_, pages) = held.pop_first().expect("more than none are held");
            served += 1;
            client.put(pages, &mut memory);
            held.extend(std::iter::from_fn(|| client.take_resumed()));
        }
    }
    while let Some((_, pages)) = held.pop_first() {
        served += 1;
        client.put(pages, &mut memory);
        held.extend(std::iter::from_fn(|| client.take_resumed()));
    }
    let what = format!("{served} of {BIOS} served, {} left waiting", client.parked());
    WorldResult { what, holds: served == BIOS && client.parked() == 0 }
}

/// Two bios of 256 pages without memory except the reserve, a third of which has returned half of
/// it.
fn both_wait(name: &str) -> WorldResult {
    let mut memory = Memory::new(256, 0);
    let mut client = client(name, 256, 1024, &mut memory);
    let holders: Vec<Outcome<u32>> =
        (0..256).map(|page| client.get(1, page, &mut memory)).collect();
    let first = client.get(256, 256, &mut memory);
    let second = client.get(256, 257, &mut memory);
    let parked = [&first, &second].iter().filter(|bio| ***bio == Outcome::Parked).count();
    for holder in holders {
        if let Outcome::Got(_, pages) = holder {
            client.put(pages, &mut memory);
        }
    }
    let resumed = std::iter::from_fn(|| client.take_resumed()).count();
    let what = format!("{name}: {resumed} of {parked} waiting bios continued");
    WorldResult { what, holds: resumed == parked }
}

/// Counts pages at the start and at the end, with memory running out at each point.
fn balance(gives_back: bool) -> WorldResult {
    const PAGES: u32 = 64;
    let mut points = 0;
    let mut missing = 0;
    for available in 0..=32 {
        let mut memory = Memory::new(PAGES, 0);
        let mut client = client("bulk-callback", 32, PAGES, &mut memory);
        memory.kept_back = 32 - available;
        let mut bios: Vec<BioPages> = Vec::new();
        for bio in 0..2 {
            if let Outcome::Got(_, pages) = client.get(32, bio, &mut memory) {
                bios.push(pages);
            }
        }
        if !gives_back {
            // The unused part of a result.
            bios.pop();
        }
        while let Some(pages) = bios.pop() {
            client.put(pages, &mut memory);
            bios.extend(std::iter::from_fn(|| client.take_resumed()).map(|(_, pages)| pages));
        }
        client.abandon(&mut memory);
        points += 1;
        missing += PAGES - memory.buddy.free_pages();
    }
    WorldResult { what: format!("{points} points, {missing} pages lost"), holds: missing == 0 }
}

/// The calls that fill a reserve, and those for the pages of a bio.
fn fill_and_bio(name: &str) -> (String, String) {
    let mut memory = Memory::new(32, 0);
    let mut client = client(name, 8, 32, &mut memory);
    let fill = memory.calls();
    client.get(8, 0, &mut memory);
    (fill, memory.calls())
}

fn pages_and_reserve(name: &str) -> String {
    let mut memory = Memory::new(12, 0);
    let mut client = client(name, 6, 100, &mut memory);
    memory.kept_back = 3;
    let Outcome::Got(_, bio) = client.get(5, 0, &mut memory) else { return "parked".into() };
    let mut pages: Vec<u32> = bio
        .segments()
        .iter()
        .flat_map(|segment| segment.first.0..segment.first.0 + segment.pages())
        .collect();
    pages.sort_unstable();
    let by_reserve = bio.step() == AllocationStep::Reserve;
    let calls = memory.calls();
    format!("pages {pages:?}, reserve {}, asked it: {by_reserve}, {calls}", client.reserve_left())
}

/// Whether an array keeps its pages until they are read, and a callback hands over all at once.
fn keeps() -> bool {
    let mut memory = Memory::new(4, 0);
    let mut array = Vec::new();
    memory.alloc_bulk(2, Effort::NoWait, &mut Consumer::Array(&mut array));
    let mut handed_over = 0;
    memory.alloc_bulk(2, Effort::NoWait, &mut Consumer::Callback(&mut |_| handed_over += 1));
    array.len() == 2 && handed_over == 2
}
