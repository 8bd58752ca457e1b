//! The argument of 2023 as a table: the cost of each page allocator for a write of 4 KiB and of 1
//! MiB, in the model of [`blockyard_sim::memory`], with whole, fragmented and scarce memory.
//!
//! All numbers come from the model. Others measured one of its constants before the patches of 2023
//! (see `memory/costs.rs`); the rest are ours. The same allocators on this machine's pool: `cargo
//! run --release -p blockyard-host --example page_pool`.

use std::collections::VecDeque;

use blockyard_engine::pages::{
    ALLOCATORS, Allocator, AllocatorSpec, BIO_PAGES_MAX, BioPages, Counters, ORDER_MAX, Outcome,
    Sizes,
};
use blockyard_engine::time::Nanos;
use blockyard_sim::memory::{MemoryConfig, PhysicalMemory, ZoneConfig};

/// 1 GiB.
const MEMORY_PAGES: u32 = 1 << 18;
/// Pages that no allocation may take: 4 MiB. Ours.
const WATERMARK_PAGES: u32 = 1024;
const WARM_UP: u32 = 200;
const BIOS: u32 = 1000;

/// State of memory during the writes.
#[derive(Clone, Copy)]
struct State {
    name: &'static str,
    /// No free block of this order or a larger one.
    fragmented: Option<u8>,
    /// Before each bio, others take memory until this many pages are available without waiting.
    usable_pages: Option<u32>,
    /// Pages that the client may have beyond its reserve.
    beyond_reserve: u32,
    /// Number of bios that have their pages at a time.
    in_flight: usize,
    /// Wait for the zone lock because of other users.
    contention: Nanos,
}

const WHOLE: State = State {
    name: "whole, plenty",
    fragmented: None,
    usable_pages: None,
    beyond_reserve: MEMORY_PAGES,
    in_flight: 1,
    contention: Nanos(0),
};

const STATES: [State; 8] = [
    WHOLE,
    State { name: "medium fragmentation: blocks of 16 pages", fragmented: Some(5), ..WHOLE },
    State { name: "heavy fragmentation: single pages only", fragmented: Some(1), ..WHOLE },
    State { name: "zone lock contended, 20 us a hold", contention: Nanos(20_000), ..WHOLE },
    State { name: "light pressure: 192 pages available", usable_pages: Some(192), ..WHOLE },
    State {
        name: "light pressure, medium fragmentation",
        usable_pages: Some(192),
        fragmented: Some(5),
        ..WHOLE
    },
    State { name: "heavy pressure: no page available", usable_pages: Some(0), ..WHOLE },
    State { name: "at the limit, two writers", beyond_reserve: 128, in_flight: 2, ..WHOLE },
];

/// Averages per bio, or as noted.
struct Row {
    calls: f64,
    pages_per_call: f64,
    segments: f64,
    reserve_pages: f64,
    /// Percent of bios with a second round, and with a wait.
    second_rounds: f64,
    waits: f64,
    get_ns: f64,
    put_ns: f64,
    compactions: f64,
}

impl Row {
    fn total_ns(&self) -> f64 {
        self.get_ns + self.put_ns
    }
}

fn main() {
    println!("MODEL: memory of 1 GiB, lists of up to 1024 pages, batches of 63; per bio:");
    for state in STATES {
        println!("\n{}", state.name);
        println!(
            "  {:<30} {:>5} {:>8} {:>10} {:>8} {:>8} {:>7} {:>6} {:>9} {:>8} {:>9}",
            "allocator",
            "write",
            "calls",
            "pages/call",
            "segments",
            "reserve",
            "again%",
            "wait%",
            "get ns",
            "free ns",
            "compacts"
        );
        for (write, pages) in [("4K", 1), ("1M", BIO_PAGES_MAX)] {
            for spec in specs() {
                let row = run(&spec, state, pages);
                println!(
                    "  {spec:<30} {write:>5} {:>8.2} {:>10.2} {:>8.2} {:>8.2} {:>7.1} {:>6.1} \
                     {:>9.0} {:>8.0} {:>9.2}",
                    row.calls,
                    row.pages_per_call,
                    row.segments,
                    row.reserve_pages,
                    row.second_rounds,
                    row.waits,
                    row.get_ns,
                    row.put_ns,
                    row.compactions
                );
            }
        }
    }
    crossover();
    against_the_mail();
}

/// All allocators, and the compound one with compaction, the risk named in the mail.
fn specs() -> Vec<String> {
    let names = ALLOCATORS.iter().map(|allocator| allocator.name.to_string());
    names.chain(["compound,compaction=on".to_string()]).collect()
}

fn run(spec: &str, state: State, pages: u32) -> Row {
    let mut config = MemoryConfig::of_pages(MEMORY_PAGES);
    config.zones = vec![ZoneConfig { pages: MEMORY_PAGES, watermark_pages: WATERMARK_PAGES }];
    config.costs.contention = state.contention;
    let mut memory = PhysicalMemory::new(config);
    let spec = AllocatorSpec::parse(spec).expect("the name is known");
    let limit_pages = BIO_PAGES_MAX + state.beyond_reserve;
    let sizes = Sizes { reserve_pages: BIO_PAGES_MAX, limit_pages };
    let client = Allocator::new(spec, sizes, &mut memory).expect("1 GiB has a reserve");
    if let Some(order) = state.fragmented {
        memory.fragment(order, 1000, 2023);
    }
    let mut writer =
        Writer { memory, client, running: VecDeque::new(), get: Nanos(0), put: Nanos(0) };
    (0..WARM_UP).for_each(|_| writer.write(pages, state));
    let before = *writer.client.counters();
    let compactions = writer.memory.counters().compactions;
    (writer.get, writer.put) = (Nanos(0), Nanos(0));
    (0..BIOS).for_each(|_| writer.write(pages, state));
    let compactions = writer.memory.counters().compactions - compactions;
    row(&before, &writer, compactions)
}

fn row(before: &Counters, writer: &Writer, compactions: u64) -> Row {
    let after = writer.client.counters();
    let bios = (after.bios - before.bios) as f64;
    let calls = (after.calls() - before.calls()) as f64;
    let waits = after.page_waits + after.mutex_waits - before.page_waits - before.mutex_waits;
    Row {
        calls: calls / bios,
        pages_per_call: (after.source_pages - before.source_pages) as f64 / calls.max(1.0),
        segments: (after.segments - before.segments) as f64 / bios,
        reserve_pages: (after.reserve_pages - before.reserve_pages) as f64 / bios,
        second_rounds: (after.second_rounds - before.second_rounds) as f64 * 100.0 / bios,
        waits: waits as f64 * 100.0 / bios,
        get_ns: writer.get.0 as f64 / bios,
        put_ns: writer.put.0 as f64 / bios,
        compactions: compactions as f64 / bios,
    }
}

struct Writer {
    memory: PhysicalMemory,
    client: Allocator<()>,
    running: VecDeque<BioPages>,
    /// Time in calls that allocate pages, including waiters, and in calls that free pages.
    get: Nanos,
    put: Nanos,
}

impl Writer {
    fn write(&mut self, pages: u32, state: State) {
        if let Some(usable) = state.usable_pages {
            self.memory.squeeze(usable);
            self.memory.take_spent();
        }
        if let Outcome::Got((), pages) = self.client.get(pages, (), &mut self.memory) {
            self.running.push_back(pages);
        }
        self.get = self.get + self.memory.take_spent();
        while self.running.len() + self.client.parked() >= state.in_flight {
            let oldest = self.running.pop_front().expect("a waiter waits for a running bio");
            self.client.put(oldest, &mut self.memory);
            self.put = self.put + self.memory.take_spent();
            while let Some(((), pages)) = self.client.take_resumed() {
                self.running.push_back(pages);
            }
        }
    }
}

/// Prints the size of free blocks from which on compound pages pay off.
fn crossover() {
    println!("\n1 MiB, get and free, ns, by the largest free block");
    println!("  {:>6} {:>9} {:>9} {:>9}  {:<9}", "pages", "compound", "bulk", "single", "fastest");
    for order in 0..=ORDER_MAX {
        let fragmented = (order < ORDER_MAX).then_some(order + 1);
        let total = |spec| run(spec, State { fragmented, ..WHOLE }, BIO_PAGES_MAX).total_ns();
        let compound = total("compound");
        let bulk = total("bulk-callback");
        let fastest = if compound < bulk { "compound" } else { "bulk" };
        let single = total("single");
        println!("  {:>6} {compound:>9.0} {bulk:>9.0} {single:>9.0}  {fastest}", 1u32 << order);
    }
}

/// The one comparison with published numbers: 1 MiB writes of one job, before and after.
fn against_the_mail() {
    let total = |spec| run(spec, WHOLE, BIO_PAGES_MAX).total_ns();
    let single = total("single");
    let bulk = total("bulk-callback");
    // 60 s for 78060 writes before, 84098 after.
    let before_us = 60.001e6 / 78_060.0;
    let after_us = 60.001e6 / 84_098.0;
    let saved_us = (single - bulk) / 1e3;
    let ratio = |saved: f64| before_us / (before_us - saved);
    println!("\n1 MiB writes against the mail of 2023 (one row fitted: page cost before)");
    println!("  saved per write: published {:.1} us, model {saved_us:.1} us", before_us - after_us);
    println!(
        "  writes a second, after over before: published {:.3}, model {:.3}",
        before_us / after_us,
        ratio(saved_us)
    );
    let compound_us = (single - total("compound")) / 1e3;
    println!("  the same with compound pages: model {:.3}, nothing published", ratio(compound_us));
}
