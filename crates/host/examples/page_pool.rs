//! Cost of each page allocator for one bio, measured on this machine with the pool of the real
//! world: take the pages, give them back. The pages are not touched, and the pool has no `struct
//! page` to initialise, so this is bookkeeping alone, far below a kernel's cost.
//!
//! Allocators alternate; the table has the median of the rounds and the share of rounds within 10 %
//! of it. Whole writes follow, which include the allocation.

#[path = "page_pool/pipeline.rs"]
mod pipeline;

use blockyard_engine::pages::{
    ALLOCATORS, Allocator, AllocatorSpec, BIO_PAGES_MAX, Effort, Outcome, PAGE_BYTES, PageSource,
    Sizes,
};
use blockyard_host::pages::PagePool;

/// Bios per round.
const BIOS: u32 = 100;
const ROUNDS: usize = 101;
const POOL_BYTES: usize = 64 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!(
        "{:<16} {:>8}  {:>12} {:>8}  {:<24}",
        "allocator", "write", "ns per bio", "within", ""
    );
    let states =
        [("whole", None), ("free blocks of 16 pages", Some(32)), ("single pages only", Some(2))];
    for (state, one_of) in states {
        for (write, pages) in [("4 KiB", 1), ("1 MiB", BIO_PAGES_MAX)] {
            let mut cases: Vec<Case> =
                ALLOCATORS.iter().map(|allocator| Case::new(allocator.name, one_of)).collect();
            for _ in 0..ROUNDS {
                cases.iter_mut().for_each(|case| case.round(pages));
            }
            for case in &mut cases {
                let (median, within) = case.median();
                println!("{:<16} {write:>8}  {median:>12.1} {within:>7.0}%  {state}", case.name);
            }
        }
    }
    pipeline::print()
}

struct Case {
    name: &'static str,
    pool: PagePool,
    client: Allocator<()>,
    /// Nanoseconds per bio.
    rounds: Vec<f64>,
}

impl Case {
    /// A pool in which one page of each `one_of` is in use.
    fn new(name: &'static str, one_of: Option<u32>) -> Self {
        let mut pool = PagePool::of_bytes(POOL_BYTES);
        if let Some(one_of) = one_of {
            let pages: Vec<_> = std::iter::from_fn(|| pool.alloc(0, Effort::NoWait)).collect();
            for page in pages.into_iter().filter(|page| page.0 % one_of != 0) {
                pool.free(page, 0);
            }
        }
        let spec = AllocatorSpec::parse(name).expect("the name is known");
        let limit_pages = u32::try_from(POOL_BYTES).expect("64 MiB") / PAGE_BYTES;
        let sizes = Sizes { reserve_pages: BIO_PAGES_MAX, limit_pages };
        let client = Allocator::new(spec, sizes, &mut pool).expect("a quarter of it is free");
        Self { name, pool, client, rounds: Vec::new() }
    }

    fn round(&mut self, pages: u32) {
        let start = pipeline::cpu_ns();
        for _ in 0..BIOS {
            let Outcome::Got((), pages) = self.client.get(pages, (), &mut self.pool) else {
                unreachable!("the pool has enough for one bio at a time");
            };
            self.client.put(std::hint::black_box(pages), &mut self.pool);
        }
        self.rounds.push((pipeline::cpu_ns() - start) / f64::from(BIOS));
    }

    fn median(&mut self) -> (f64, f64) {
        self.rounds.sort_by(f64::total_cmp);
        let median = self.rounds[self.rounds.len() / 2];
        let near = self.rounds.iter().filter(|round| (**round - median).abs() < median / 10.0);
        (median, near.count() as f64 * 100.0 / self.rounds.len() as f64)
    }
}
