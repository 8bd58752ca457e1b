//! Pages for the ciphertext of a write (`crypt_alloc_buffer`), with a reserve that guarantees
//! progress.
//!
//! A write must not be encrypted in its own buffer, so it needs pages of equal size. Their
//! allocation is the greatest cost of such a write besides the cipher. In 2023 two proposals were
//! discussed: bulk allocation, or few compound pages. Both are implemented here, with their
//! predecessors and successors. To add an allocator: a file here with an [`AllocatorType`], and a
//! line in [`ALLOCATORS`].
//!
//! ```text
//!   get(n) ─ first round, nothing waits ─ all there? ──yes──> Got
//!               └no─> all back; mutex ─ second round ─ all there? ──yes──> Got
//!                                          └no─> Parked <──put, retry── tries again, oldest first
//! ```
//!
//! The invariant: the single pages in the reserve, with bios and with waiters are never fewer than
//! those of the largest bio. A waiter with part of its pages needs the rest, and gets it if no
//! other waiter holds it. The mutex (`bio_alloc_lock`) ensures that. Here the mutex is not a lock
//! but the rule that only the oldest waiter takes pages; it can be disabled to demonstrate the
//! deadlock.
//!
//! This module has no costs: a world's [`PageSource`] has them.

mod all_or_nothing;
mod allocator;
pub mod buddy;
mod bulk;
mod compound;
mod counters;
mod pool;
mod single;
mod source;
mod spec;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;

pub use all_or_nothing::ALL_OR_NOTHING;
pub use allocator::{Allocator, OutOfPages, Outcome, Sizes, Why};
pub use bulk::{BULK_ARRAY, BULK_CALLBACK, BULK_LIST};
pub use compound::COMPOUND;
pub use counters::{AllocationStep, Counters, StepCounts};
pub use pool::{Pool, pages_per_client};
pub use single::SINGLE;
pub use source::{BioPages, Consumer, Effort, Page, PageList, PageSource, Segment};
pub use spec::{AllocatorSpec, Options, SpecError};

use crate::time::Nanos;

/// Pages of the largest bio (`BIO_MAX_VECS`): 1 MiB.
pub const BIO_PAGES_MAX: u32 = 256;
/// Size of a page.
pub const PAGE_BYTES: u32 = 4096;
/// Largest order of a block (`MAX_PAGE_ORDER`).
pub const ORDER_MAX: u8 = 10;
/// Time after which a waiter tries again even if no page came back (`mempool_alloc`), because pages
/// of others may be free. Progress does not depend on it.
pub const RETRY: Nanos = Nanos::from_ms(5_000);

/// All allocators.
pub const ALLOCATORS: &[&AllocatorType] =
    &[&SINGLE, &BULK_LIST, &BULK_ARRAY, &BULK_CALLBACK, &COMPOUND, &ALL_OR_NOTHING];

/// Round of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// First round, beside others: it never waits, and returns all pages on failure.
    AtOnce,
    /// Round as the only waiter, with permission to wait.
    MayWait,
    /// Another round after pages came back.
    Woken,
}

/// Allocation strategy of a bio's pages.
pub trait Gather {
    /// Takes as many missing pages as possible.
    fn gather(&mut self, round: Round, pages: &mut BioPages, pool: &mut Pool<'_>);
}

/// Use of the reserve by an allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromReserve {
    /// One page at a time. Two waiters can each hold what the other one needs, unless a mutex
    /// prevents that.
    PageByPage,
    /// All missing pages or none: no waiter holds any of them.
    AllAtOnce,
}

/// Description and constructor of an allocator.
pub struct AllocatorType {
    /// Name.
    pub name: &'static str,
    /// Description in one line.
    pub about: &'static str,
    /// Use of the reserve.
    pub from_reserve: FromReserve,
    /// Creates an allocator.
    pub attach: fn(&Options) -> Box<dyn Gather + Send>,
}

impl AllocatorType {
    /// Finds an allocator by name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        ALLOCATORS.iter().find(|allocator| allocator.name == name).copied()
    }
}

impl core::fmt::Debug for AllocatorType {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name)
    }
}
