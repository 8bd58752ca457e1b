//! What the page allocator's work takes.
//!
//! One number comes from a measurement: the proposal of 2023 puts page allocation at 6 % of a write
//! before its patches, and such a write took 765.71 us, so that one page cost 180 ns by single
//! calls. `call + take + prepare` are 180 ns for that reason; how they are shared out, and every
//! other number, is ours. Nothing is fitted to what the proposal measured *after* its patches.

use blockyard_engine::time::Nanos;

/// Durations; those marked as ours are guesses of the right size for a server of 2022.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// One call: through the mempool to the zone, its watermark and back. Fitted: see above.
    pub call: Nanos,
    /// A page off a list of this CPU. Fitted with `call`; the share is ours.
    pub take: Nanos,
    /// A page is made ready (`prep_new_page`). Fitted with `call`; the share is ours.
    pub prepare: Nanos,
    /// Each page of a block after the first is told its head (`prep_compound_page`), and forgets
    /// it when it is freed. Ours.
    pub tail: Nanos,
    /// The zone's lock, when nobody else wants it. Ours.
    pub lock: Nanos,
    /// What others' use of the lock adds. Ours; none by default, a switch of the experiment.
    pub contention: Nanos,
    /// A block is split or merged once, or an empty order is looked at. Ours.
    pub buddy_step: Nanos,
    /// A page goes to a list and is walked to again. Ours.
    pub to_list: Nanos,
    /// A page goes into an array and is read there. Ours.
    pub to_array: Nanos,
    /// A page is handed to a function. Ours.
    pub to_callback: Nanos,
    /// One call that frees a block, its checks included. Ours.
    pub free: Nanos,
    /// Direct reclaim of one batch of clean pages. Ours.
    pub reclaim: Nanos,
    /// Compaction looks at one range of pages. Ours.
    pub compact_scan: Nanos,
    /// Compaction moves one page: copy, and unmap from wherever it is used. Ours.
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
