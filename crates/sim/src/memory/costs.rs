//! Costs of the page allocator's work.
//!
//! One number comes from a measurement: the proposal of 2023 attributes 6 % of a write to page
//! allocation before its patches. Such a write took 765.71 us, so one page cost 180 ns by single
//! calls. Therefore `call + take + prepare` are 180 ns; their division, and every other number, is
//! ours. Nothing is fitted to measurements *after* the patches.

use blockyard_engine::time::Nanos;

/// Durations; those marked as ours are estimates for a server of 2022.
// 14 fields: each is one cost of the page allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// One call: through the mempool to the zone, its watermark and back. Fitted, see above.
    pub call: Nanos,
    /// Taking a page from a per-CPU list. Fitted with `call`; the share is ours.
    pub take: Nanos,
    /// Preparing a page (`prep_new_page`). Fitted with `call`; the share is ours.
    pub prepare: Nanos,
    /// Setting up a tail page of a block (`prep_compound_page`), and clearing it when freed. Ours.
    pub tail: Nanos,
    /// The uncontended zone lock. Ours.
    pub lock: Nanos,
    /// Additional wait for the lock. Ours; zero by default, a switch of the experiment.
    pub contention: Nanos,
    /// One split or merge of a block, or a look at an empty order. Ours.
    pub buddy_step: Nanos,
    /// Adding a page to a list and walking to it later. Ours.
    pub to_list: Nanos,
    /// Storing a page in an array and reading it later. Ours.
    pub to_array: Nanos,
    /// Passing a page to a function. Ours.
    pub to_callback: Nanos,
    /// One call that frees a block, including its checks. Ours.
    pub free: Nanos,
    /// Direct reclaim of one batch of clean pages. Ours.
    pub reclaim: Nanos,
    /// Scan of one range of pages by compaction. Ours.
    pub compact_scan: Nanos,
    /// Migration of one page by compaction: copy and unmap. Ours.
    pub compact_move: Nanos,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            call: Nanos(140),
            take: Nanos(15),
            prepare: Nanos(25),
            tail: Nanos(3),
            lock: Nanos(40),
            contention: Nanos(0),
            buddy_step: Nanos(10),
            to_list: Nanos(6),
            to_array: Nanos(3),
            to_callback: Nanos(3),
            free: Nanos(50),
            reclaim: Nanos(20_000),
            compact_scan: Nanos(1_000),
            compact_move: Nanos(1_500),
        }
    }
}
