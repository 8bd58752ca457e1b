//! What getting pages took: the figures that the argument of 2023 is about.

/// How far a bio had to go for its pages, in the words of the proposal of 2023.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// 1: the page allocator had all of them at once.
    #[default]
    Allocator,
    /// 2: some came from the reserve.
    Reserve,
    /// 3: the page allocator was asked again, with permission to reclaim.
    Reclaim,
    /// 4: it waited for pages to come back.
    Wait,
}

/// Bios by the last step that they came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCounts {
    /// Step 1.
    pub allocator: u64,
    /// Step 2.
    pub reserve: u64,
    /// Step 3.
    pub reclaim: u64,
    /// Step 4.
    pub wait: u64,
}

impl StepCounts {
    pub(super) fn add(&mut self, step: Step) {
        *match step {
            Step::Allocator => &mut self.allocator,
            Step::Reserve => &mut self.reserve,
            Step::Reclaim => &mut self.reclaim,
            Step::Wait => &mut self.wait,
        } += 1;
    }
}

/// Counted since the allocator was made; filling the reserve is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bios that got their pages.
    pub bios: u64,
    /// Segments that these have.
    pub segments: u64,
    /// Calls for one page.
    pub single_calls: u64,
    /// Calls for a block of more.
    pub block_calls: u64,
    /// Bulk calls.
    pub bulk_calls: u64,
    /// Calls that gave nothing, or less than they were asked for.
    pub short_calls: u64,
    /// Pages that calls gave.
    pub source_pages: u64,
    /// Pages out of the reserve.
    pub reserve_pages: u64,
    /// Most pages that were missing from the reserve at a time.
    pub reserve_used_max: u32,
    /// Times that a compound page of some order was not to be had, and a smaller one was tried.
    pub order_drops: u64,
    /// Times that the limit kept it from calling, or made a call smaller.
    pub limit_refusals: u64,
    /// Bios whose first round was not enough.
    pub second_rounds: u64,
    /// Bios that parked because others wait.
    pub mutex_waits: u64,
    /// Bios that parked because their second round was not enough.
    pub page_waits: u64,
    /// Blocks given back to the page allocator.
    pub frees: u64,
    /// Bios by the step that they came to.
    pub by_step: StepCounts,
}

impl Counters {
    /// Calls of the page allocator.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.single_calls + self.block_calls + self.bulk_calls
    }
}
