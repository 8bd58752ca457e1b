//! Counters of page allocation: the figures of the discussion of 2023.

/// Last step of a bio's allocation, in the words of the proposal of 2023.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum AllocationStep {
    /// 1: the page allocator had all pages at once.
    #[default]
    Allocator,
    /// 2: some pages came from the reserve.
    Reserve,
    /// 3: the page allocator was asked again, with permission to reclaim.
    Reclaim,
    /// 4: the bio waited for returned pages.
    Wait,
}

/// Number of bios by last step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCounts {
    /// AllocationStep 1.
    pub allocator: u64,
    /// AllocationStep 2.
    pub reserve: u64,
    /// AllocationStep 3.
    pub reclaim: u64,
    /// AllocationStep 4.
    pub wait: u64,
}

impl StepCounts {
    pub(super) fn add(&mut self, step: AllocationStep) {
        *match step {
            AllocationStep::Allocator => &mut self.allocator,
            AllocationStep::Reserve => &mut self.reserve,
            AllocationStep::Reclaim => &mut self.reclaim,
            AllocationStep::Wait => &mut self.wait,
        } += 1;
    }
}

/// Counters since the allocator was created, without the filling of the reserve.
// 16 fields: each counts one kind of event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bios with all their pages.
    pub bios: u64,
    /// Their segments.
    pub segments: u64,
    /// Calls for a single page.
    pub single_calls: u64,
    /// Calls for a larger block.
    pub block_calls: u64,
    /// Bulk calls.
    pub bulk_calls: u64,
    /// Calls that returned fewer pages than requested, or none.
    pub short_calls: u64,
    /// Pages from the page allocator.
    pub source_pages: u64,
    /// Pages from the reserve.
    pub reserve_pages: u64,
    /// Greatest number of pages missing from the reserve at a time.
    pub reserve_used_max: u32,
    /// Unsuccessful calls for a compound page, after which a smaller order was tried.
    pub order_drops: u64,
    /// Calls that the limit prevented or reduced.
    pub limit_refusals: u64,
    /// Bios that needed a second round.
    pub second_rounds: u64,
    /// Bios that parked because others waited.
    pub mutex_waits: u64,
    /// Bios that parked after their second round.
    pub page_waits: u64,
    /// Blocks returned to the page allocator.
    pub frees: u64,
    /// Bios by last step.
    pub by_step: StepCounts,
}

impl Counters {
    /// Number of calls of the page allocator.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.single_calls + self.block_calls + self.bulk_calls
    }
}
