//! Pages for the ciphertext of a write (`crypt_alloc_buffer`), with a reserve that never runs dry.
//!
//! A write may not be encrypted where it lies, so it needs as many pages as it has. Getting them is
//! most of what such a write costs beside the cipher, and in 2023 two proposals were argued about:
//! pages in bulk, or few compound pages. Both are here, with what was there before and what came
//! after. To add one: a file here that says what it is in an [`AllocatorType`], and a line in
//! [`ALLOCATORS`].
//!
//! ```text
//!   get(n) ─ first round, nothing waits ─ all there? ──yes──> Got
//!               └no─> all back; mutex ─ second round ─ all there? ──yes──> Got
//!                                          └no─> Parked <──put, retry── tries again, oldest first
//! ```
//!
//! The invariant: single pages in the reserve, with bios and with waiters are never fewer than the
//! largest bio has. Who waits with part of them needs the rest, and gets it, if no other waiter
//! holds it: that is what the mutex is for (`bio_alloc_lock`). It is not a lock here but the rule
//! that only the oldest waiter takes pages, and it can be switched off to see the deadlock.
//!
//! This module does not know what a page costs: a world is a [`PageSource`] and does.

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
pub use counters::{Counters, Step, StepCounts};
pub use pool::{Pool, pages_per_client};
pub use single::SINGLE;
pub use source::{BioPages, Consumer, Effort, Page, PageList, PageSource, Segment};
pub use spec::{AllocatorSpec, Options, SpecError};

use crate::time::Nanos;

/// Pages of the largest bio (`BIO_MAX_VECS`): 1 MiB.
pub const BIO_PAGES_MAX: u32 = 256;
/// Bytes of a page.
pub const PAGE_BYTES: u32 = 4096;
/// The largest order of a block (`MAX_PAGE_ORDER`).
pub const ORDER_MAX: u8 = 10;
/// A waiter tries again after this time even if no page came back (`mempool_alloc`): pages of
/// others may be free by then. Progress does not depend on it.
pub const RETRY: Nanos = Nanos::from_ms(5_000);

/// All there are.
pub const ALLOCATORS: &[&AllocatorType] =
    &[&SINGLE, &BULK_LIST, &BULK_ARRAY, &BULK_CALLBACK, &COMPOUND, &ALL_OR_NOTHING];

/// How often a bio has been tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// For the first time, beside others: nothing waits, and all goes back if it is not enough.
    AtOnce,
    /// As the only one, with permission to wait.
    MayWait,
    /// Again, since pages came back.
    Woken,
}

/// How a bio gets its pages.
pub trait Gather {
    /// Takes what can be had of the pages that are missing.
    fn gather(&mut self, round: Round, pages: &mut BioPages, pool: &mut Pool<'_>);
}

/// How an allocator takes pages from the reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromReserve {
    /// One at a time. Two waiters can each hold what the other one needs, unless a mutex keeps
    /// them apart.
    PageByPage,
    /// All that are missing or none: no waiter holds any of them.
    AllAtOnce,
}

/// What there is to know about an allocator before there is one.
pub struct AllocatorType {
    /// Its name.
    pub name: &'static str,
    /// One line.
    pub about: &'static str,
    /// What it does to the reserve.
    pub from_reserve: FromReserve,
    /// Makes one.
    pub attach: fn(&Options) -> Box<dyn Gather + Send>,
}

impl AllocatorType {
    /// The allocator of this name.
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
