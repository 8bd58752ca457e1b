//! Hand-made cases of the model; random worlds are in [`random`].

mod random;

use blockyard_engine::pages::{
    AllocationStep, Allocator, AllocatorSpec, BIO_PAGES_MAX, BioPages, Outcome, Sizes,
};

use super::*;

/// More pages than a test needs.
const PLENTY: u32 = 1 << 16;

fn bulk(memory: &mut PhysicalMemory, count: u32, effort: Effort) -> Vec<Page> {
    let mut pages = Vec::new();
    let given = memory.alloc_bulk(count, effort, &mut Consumer::Array(&mut pages));
    assert_eq!(given as usize, pages.len());
    pages
}

fn client(spec: &str, memory: &mut PhysicalMemory) -> Allocator<()> {
    let sizes = Sizes { reserve_pages: BIO_PAGES_MAX, limit_pages: PLENTY };
    Allocator::new(AllocatorSpec::parse(spec).unwrap(), sizes, memory).unwrap()
}

fn got(client: &mut Allocator<()>, memory: &mut PhysicalMemory) -> BioPages {
    match client.get(BIO_PAGES_MAX, (), memory) {
        Outcome::Got((), pages) => pages,
        Outcome::Parked => panic!("it parked"),
    }
}

#[test]
fn single_page_off_a_full_list_takes_what_was_measured() {
    let mut memory = PhysicalMemory::new(MemoryConfig::of_pages(PLENTY));
    let page = memory.alloc(0, Effort::NoWait).unwrap();
    memory.free(page, 0);
    memory.take_spent();
    memory.alloc(0, Effort::NoWait).unwrap();
    // 6 % of 765.71 us for 256 pages.
    assert_eq!(memory.take_spent(), Nanos(180));
}

#[test]
fn bulk_call_takes_no_lock_while_the_list_has_the_pages_and_one_for_each_batch_otherwise() {
    let mut memory = PhysicalMemory::new(MemoryConfig::of_pages(PLENTY));
    let pages = bulk(&mut memory, 256, Effort::NoWait);
    assert_eq!(memory.counters().zone_locks, 5, "five batches of 63 are 256 pages and more");
    pages.into_iter().for_each(|page| memory.free(page, 0));
    memory.take_spent();
    bulk(&mut memory, 256, Effort::NoWait);
    assert_eq!((memory.counters().zone_locks, memory.counters().calls), (5, 2));
    assert_eq!(memory.take_spent(), Nanos(140 + 256 * (15 + 25 + 3)));
}

#[test]
fn list_of_a_thousand_pages_serves_three_large_bios_without_the_lock() {
    let mut memory = PhysicalMemory::new(MemoryConfig::of_pages(PLENTY));
    let mut bios =
        || -> Vec<Vec<Page>> { (0..3).map(|_| bulk(&mut memory, 256, Effort::NoWait)).collect() };
    let first = bios();
    first.into_iter().flatten().for_each(|page| memory.free(page, 0));
    let locks = memory.counters().zone_locks;
    (0..3).for_each(|_| assert_eq!(bulk(&mut memory, 256, Effort::NoWait).len(), 256));
    assert_eq!(memory.counters().zone_locks, locks);
    // On another CPU the lists are empty.
    let mut config = MemoryConfig::of_pages(PLENTY);
    config.cpus = 2;
    let mut memory = PhysicalMemory::new(config);
    let page = memory.alloc(0, Effort::NoWait).unwrap();
    memory.free(page, 0);
    memory.run_on(1);
    memory.alloc(0, Effort::NoWait).unwrap();
    assert_eq!(memory.counters().zone_locks, 2);
}

#[test]
fn list_that_is_too_long_gives_a_batch_back() {
    let mut memory = PhysicalMemory::new(MemoryConfig::of_pages(PLENTY));
    let pages = bulk(&mut memory, 2000, Effort::NoWait);
    pages.into_iter().for_each(|page| memory.free(page, 0));
    assert!(memory.zones[0].listed_pages() <= 1024);
    assert_eq!(memory.free_pages(), PLENTY);
}

#[test]
fn fragmented_memory_has_no_block_of_that_order() {
    for order in 1..=ORDER_MAX {
        let mut memory = PhysicalMemory::new(MemoryConfig::of_pages(1 << 14));
        memory.fragment(order, 1000, 7);
        assert_eq!(memory.order_free_max(), Some(order - 1));
        assert_eq!(memory.free_pages(), (1 << 14) - (1 << (14 - order)));
    }
    let mut half = PhysicalMemory::new(MemoryConfig::of_pages(1 << 14));
    half.fragment(4, 500, 7);
    let pinned = (1 << 14) - half.free_pages();
    assert!((400..624).contains(&pinned), "{pinned} of 1024 ranges");
}

#[test]
fn watermark_forbids_what_reclaim_makes_possible_and_that_takes_time() {
    let mut config = MemoryConfig::of_pages(4096);
    config.zones[0].watermark_pages = 100;
    let mut memory = PhysicalMemory::new(config);
    memory.squeeze(10);
    assert_eq!((memory.usable_pages(), memory.free_pages()), (10, 110));
    assert_eq!(bulk(&mut memory, 11, Effort::NoWait).len(), 1, "one page instead of eleven");
    memory.squeeze(0);
    assert_eq!(memory.alloc(0, Effort::NoWait), None);
    memory.take_spent();
    assert!(memory.alloc(0, Effort::Reclaim).is_some());
    assert!(memory.take_spent() >= memory.costs.reclaim);
    memory.squeeze(PLENTY);
    assert_eq!(memory.free_pages(), 4096 - 2);
}

#[test]
fn compaction_runs_only_for_blocks_and_only_if_reclaim_is_allowed() {
    let run = |spec| {
        let mut memory = PhysicalMemory::new(MemoryConfig::of_pages(PLENTY));
        memory.fragment(5, 1000, 3);
        let mut client = client(spec, &mut memory);
        let pages = got(&mut client, &mut memory);
        (memory.counters().compactions, pages.segments().len())
    };
    assert_eq!(run("compound"), (0, 16));
    assert_eq!(run("bulk-callback"), (0, 256));
    let (compactions, segments) = run("compound,compaction=on");
    assert_eq!((compactions, segments), (1, 1), "a block was made free for it");
}

#[test]
fn compaction_moves_pinned_pages_and_loses_none() {
    let mut memory = PhysicalMemory::new(MemoryConfig::of_pages(1024));
    memory.fragment(3, 1000, 5);
    let free = memory.free_pages();
    let block = memory.alloc(5, Effort::Reclaim).unwrap();
    assert_eq!((memory.counters().pages_moved, memory.free_pages()), (4, free - 32));
    let pinned = memory.owners.iter().filter(|owner| **owner == Owner::Pinned).count();
    assert_eq!(pinned, 128);
    memory.free(block, 5);
    assert_eq!(memory.free_pages(), free);
}

#[test]
fn call_that_was_named_fails_and_the_bio_goes_on() {
    for (spec, step) in [
        ("single", AllocationStep::Reserve),
        ("bulk-callback", AllocationStep::Reserve),
        ("compound", AllocationStep::Allocator),
        ("all-or-nothing", AllocationStep::Allocator),
    ] {
        let mut memory = PhysicalMemory::new(MemoryConfig::of_pages(PLENTY));
        let mut client = client(spec, &mut memory);
        let next = memory.counters().calls;
        memory.set_faults(AllocFaults { calls: [next].into(), ..AllocFaults::default() });
        assert_eq!(got(&mut client, &mut memory).step(), step, "{spec}");
        assert_eq!(memory.counters().faults, 1);
    }
}

#[test]
fn faults_can_be_of_blocks_only() {
    let mut memory = PhysicalMemory::new(MemoryConfig::of_pages(PLENTY));
    memory.set_faults(AllocFaults { per_mille: 1000, order_min: 4, ..AllocFaults::default() });
    assert_eq!(memory.alloc(4, Effort::Reclaim), None);
    assert!(memory.alloc(3, Effort::NoWait).is_some());
    memory.set_faults(AllocFaults { per_mille: 1000, ..AllocFaults::default() });
    assert!(bulk(&mut memory, 64, Effort::NoWait).len() < 64);
}

#[test]
fn bulk_or_compound_is_faster_depends_on_fragmentation_and_on_the_lock() {
    let spent = |spec, order: Option<u8>, contention| {
        let mut config = MemoryConfig::of_pages(PLENTY);
        config.costs.contention = Nanos(contention);
        let mut memory = PhysicalMemory::new(config);
        if let Some(order) = order {
            memory.fragment(order, 1000, 11);
        }
        let mut client = client(spec, &mut memory);
        for _ in 0..8 {
            let pages = got(&mut client, &mut memory);
            client.put(pages, &mut memory);
        }
        memory.take_spent();
        let pages = got(&mut client, &mut memory);
        client.put(pages, &mut memory);
        memory.take_spent()
    };
    let compound = "compound";
    let bulk = "bulk-callback";
    let single = "single";
    assert!(spent(compound, None, 0) < spent(bulk, None, 0));
    assert!(spent(compound, Some(1), 0) > spent(bulk, Some(1), 0));
    assert!(spent(compound, None, 100_000) > spent(bulk, None, 100_000));
    assert!(spent(compound, None, 0).0 * 2 < spent(single, None, 0).0);
}
