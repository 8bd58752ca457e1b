//! Free blocks in groups, and block allocation of files (`fs/ext3/balloc.c`). A group can be
//! searched only if its bitmap is in memory.
//!
//! A growing file holds a reservation window: a run of blocks that other files do not use. Its next
//! block is the first free one in the window from the goal on. When the window is used up, or the
//! goal has left it, the file takes another window: from the goal on, the first sufficiently long
//! gap between other files' windows that starts at a free block. After a window with more than half
//! of its blocks used, the next one is twice as long, up to a limit. So files written concurrently
//! interleave window by window, in increasing lengths.
//!
//! ```text
//!   a = first file, b = second, both from the same goal, windows of 2 blocks at first
//!   aa bb aaaa bbbb aaaaaaaa bbbbbbbb ...
//! ```

use std::collections::BTreeMap;
use std::ops::Range;

/// The window of a file.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// Blocks in it, free or not; empty when the file has none.
    range: Range<u32>,
    /// Blocks that the file has taken from it.
    hits: u32,
    /// Length of the next window in blocks.
    blocks: u32,
    /// Limit of the length.
    blocks_max: u32,
}

impl Window {
    /// No window yet.
    pub(super) fn new(blocks_min: u32, blocks_max: u32) -> Self {
        assert!(0 < blocks_min && blocks_min <= blocks_max);
        Self { range: 0..0, hits: 0, blocks: blocks_min, blocks_max }
    }
}

/// Reason of an allocation without a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoBlock {
    /// The bitmap of this group has to be read.
    Unread(u32),
    /// The device is full.
    Full,
}

/// Free blocks and windows.
#[derive(Debug)]
pub(super) struct Blocks {
    /// A bit per block, set when it is in use.
    used: Vec<u64>,
    /// Number of free blocks of each group.
    group_free: Vec<u32>,
    /// Whether the bitmap of each group is in memory.
    in_memory: Vec<bool>,
    group_blocks: u32,
    blocks: u32,
    /// All windows: first block, and end. They do not overlap.
    windows: BTreeMap<u32, u32>,
}

impl Blocks {
    /// All blocks free.
    pub(super) fn new(blocks: u32, group_blocks: u32) -> Self {
        let mut group_free = vec![group_blocks; (blocks / group_blocks) as usize];
        if !blocks.is_multiple_of(group_blocks) {
            group_free.push(blocks % group_blocks);
        }
        let used = vec![0; blocks.div_ceil(64) as usize];
        let in_memory = vec![true; group_free.len()];
        Self { used, group_free, in_memory, group_blocks, blocks, windows: BTreeMap::new() }
    }

    /// No bitmap is in memory, as after a mount.
    pub(super) fn forget_bitmaps(&mut self) {
        self.in_memory.fill(false);
    }

    /// The bitmap of this group has been read.
    pub(super) fn bitmap_read(&mut self, group: u32) {
        self.in_memory[group as usize] = true;
    }

    /// Number of free blocks of a group.
    pub(super) fn free_in(&self, group: u32) -> u32 {
        self.group_free[group as usize]
    }

    /// Takes a block that is known to be free.
    pub(super) fn take(&mut self, block: u32) {
        let word = &mut self.used[(block / 64) as usize];
        let bit = 1 << (block % 64);
        assert!(*word & bit == 0, "block {block} is in use");
        *word |= bit;
        self.group_free[(block / self.group_blocks) as usize] -= 1;
    }

    /// Frees a block.
    pub(super) fn release(&mut self, block: u32) {
        let word = &mut self.used[(block / 64) as usize];
        let bit = 1 << (block % 64);
        assert!(*word & bit != 0, "block {block} is free");
        *word &= !bit;
        self.group_free[(block / self.group_blocks) as usize] += 1;
    }

    /// Allocates the next block of a file: in the group of the goal, then in the following groups,
    /// cyclically; finally without regard to windows.
    pub(super) fn allocate(&mut self, goal: u32, window: &mut Window) -> Result<u32, NoBlock> {
        let goal = if goal < self.blocks { goal } else { 0 };
        let groups = self.group_free.len() as u32;
        let first = goal / self.group_blocks;
        for step in 0..groups {
            let group = (first + step) % groups;
            // In another group a window must be worthwhile.
            let enough = if step == 0 { 0 } else { window.blocks / 2 };
            if self.free_in(group) <= enough {
                continue;
            }
            self.check_bitmap(group)?;
            let goal = (step == 0).then_some(goal);
            if let Some(block) = self.allocate_in_window(group, goal, window) {
                self.take(block);
                return Ok(block);
            }
        }
        let mut free = (0..groups).map(|step| (first + step) % groups);
        let group = free.find(|group| self.free_in(*group) > 0).ok_or(NoBlock::Full)?;
        self.check_bitmap(group)?;
        let block = self.first_free(self.group(group)).ok_or(NoBlock::Full)?;
        self.take(block);
        Ok(block)
    }

    fn check_bitmap(&self, group: u32) -> Result<(), NoBlock> {
        if self.in_memory[group as usize] { Ok(()) } else { Err(NoBlock::Unread(group)) }
    }

    /// Releases the window of a closed file; its next one is short again.
    pub(super) fn discard(&mut self, window: &mut Window, blocks_min: u32) {
        self.remove(window);
        window.blocks = blocks_min;
    }

    /// A free block of the group in the file's window, which may be replaced.
    fn allocate_in_window(
        &mut self,
        group: u32,
        mut goal: Option<u32>,
        window: &mut Window,
    ) -> Option<u32> {
        let group = self.group(group);
        loop {
            let inside = goal.is_none_or(|goal| window.range.contains(&goal));
            let start = window.range.start.max(goal.unwrap_or(group.start)).max(group.start);
            let end = window.range.end.min(group.end);
            if inside && let Some(block) = self.first_free(start..end) {
                window.hits += 1;
                return Some(block);
            }
            let start = goal.unwrap_or(group.start);
            self.move_window(&group, start, window)?;
            goal = goal.filter(|goal| window.range.contains(goal));
        }
    }

    /// Replaces the window of a file by the next one from `start` on that starts in the group at a
    /// free block. `None` without a window if there is no such place; `None` with the old window if
    /// that reaches into the next group.
    fn move_window(&mut self, group: &Range<u32>, start: u32, window: &mut Window) -> Option<()> {
        if !window.range.is_empty() {
            let crosses = group.contains(&window.range.start) && window.range.end > group.end;
            if crosses && start >= window.range.start {
                return None;
            }
            if window.hits > (window.range.end - window.range.start) / 2 {
                window.blocks = (window.blocks * 2).min(window.blocks_max);
            }
        }
        self.remove(window);
        let mut from = start;
        loop {
            from = self.gap(from, window.blocks, group.end)?;
            let free = self.first_free(from..group.end)?;
            let end = from.saturating_add(window.blocks).min(self.blocks);
            if free < end {
                window.range = from..end;
                self.windows.insert(from, end);
                return Some(());
            }
            from = free;
        }
    }

    /// The first gap between windows, from `from` on and before `end`, with this many blocks.
    fn gap(&self, from: u32, blocks: u32, end: u32) -> Option<u32> {
        let before = self.windows.range(..from).next_back();
        let mut at = before.map_or(from, |(_, window_end)| from.max(*window_end));
        for (start, window_end) in self.windows.range(from..) {
            if at >= end || at.saturating_add(blocks) <= *start {
                break;
            }
            at = *window_end;
        }
        (at < end).then_some(at)
    }

    fn remove(&mut self, window: &mut Window) {
        if !window.range.is_empty() {
            let removed = self.windows.remove(&window.range.start);
            assert!(removed == Some(window.range.end));
        }
        window.range = 0..0;
        window.hits = 0;
    }

    /// Blocks of a group.
    fn group(&self, group: u32) -> Range<u32> {
        let start = group * self.group_blocks;
        start..start.saturating_add(self.group_blocks).min(self.blocks)
    }

    /// The first free block of a range.
    pub(super) fn first_free(&self, blocks: Range<u32>) -> Option<u32> {
        let mut at = blocks.start;
        while at < blocks.end {
            let free = !self.used[(at / 64) as usize] >> (at % 64);
            if free != 0 {
                return Some(at + free.trailing_zeros()).filter(|block| *block < blocks.end);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The blocks of a growing file, with each goal after the previous block.
    fn grow(blocks: &mut Blocks, window: &mut Window, mut goal: u32, count: u32) -> Vec<u32> {
        let mut next = || {
            let block = blocks.allocate(goal, window).expect("there is room");
            goal = block + 1;
            block
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn a_window_keeps_others_out_until_it_is_given_up() {
        let mut blocks = Blocks::new(4096, 1024);
        let mut a = Window::new(8, 64);
        let mut b = Window::new(8, 64);
        assert_eq!(grow(&mut blocks, &mut a, 100, 3), [100, 101, 102]);
        assert_eq!(grow(&mut blocks, &mut b, 100, 2), [108, 109]);
        blocks.discard(&mut a, 8);
        let mut c = Window::new(4, 64);
        assert_eq!(grow(&mut blocks, &mut c, 100, 1), [103]);
    }

    #[test]
    fn a_gap_too_short_for_the_window_is_left() {
        let mut blocks = Blocks::new(4096, 1024);
        let mut a = Window::new(8, 64);
        let mut b = Window::new(8, 64);
        grow(&mut blocks, &mut a, 100, 1);
        assert_eq!(grow(&mut blocks, &mut b, 93, 1), [108]);
        blocks.discard(&mut b, 8);
        assert_eq!(grow(&mut blocks, &mut b, 92, 1), [92]);
    }

    #[test]
    fn a_used_window_is_followed_by_one_twice_as_long_up_to_the_limit() {
        let mut blocks = Blocks::new(4096, 4096);
        let mut window = Window::new(8, 30);
        let mut lengths = Vec::new();
        let mut goal = 0;
        for _ in 0..100 {
            goal = 1 + blocks.allocate(goal, &mut window).expect("there is room");
            let len = window.range.end - window.range.start;
            if lengths.last() != Some(&len) {
                lengths.push(len);
            }
        }
        assert_eq!(lengths, [8, 16, 30]);
    }

    #[test]
    fn a_window_left_half_used_is_not_doubled() {
        let mut blocks = Blocks::new(4096, 4096);
        let mut window = Window::new(8, 64);
        grow(&mut blocks, &mut window, 0, 4);
        grow(&mut blocks, &mut window, 2000, 1);
        assert_eq!(window.range, 2000..2008);
        grow(&mut blocks, &mut window, 2001, 4);
        grow(&mut blocks, &mut window, 3000, 1);
        assert_eq!(window.range, 3000..3016);
    }

    #[test]
    fn a_window_across_groups_is_used_in_both() {
        let mut blocks = Blocks::new(256, 128);
        let mut window = Window::new(16, 16);
        let got = grow(&mut blocks, &mut window, 120, 16);
        assert_eq!(got, (120..136).collect::<Vec<_>>());
        assert_eq!(window.range, 120..136);
    }

    #[test]
    fn a_group_is_searched_only_after_the_read_of_its_bitmap() {
        let mut blocks = Blocks::new(256, 128);
        let mut window = Window::new(16, 16);
        blocks.forget_bitmaps();
        assert_eq!(blocks.allocate(130, &mut window), Err(NoBlock::Unread(1)));
        blocks.bitmap_read(1);
        let got = grow(&mut blocks, &mut window, 130, 126);
        assert_eq!(got, (130..256).collect::<Vec<_>>());
        // A goal behind the device is its start.
        assert_eq!(blocks.allocate(256, &mut window), Err(NoBlock::Unread(0)));
    }

    #[test]
    fn the_last_blocks_are_taken_out_of_other_files_windows() {
        let mut blocks = Blocks::new(200, 128);
        let mut a = Window::new(64, 64);
        let mut b = Window::new(64, 64);
        grow(&mut blocks, &mut a, 0, 1);
        let mut got = grow(&mut blocks, &mut b, 0, 199);
        assert_eq!(blocks.allocate(0, &mut b), Err(NoBlock::Full));
        assert_eq!(blocks.allocate(0, &mut a), Err(NoBlock::Full));
        got.sort_unstable();
        assert_eq!(got, (1..200).collect::<Vec<_>>());
        assert_eq!(blocks.free_in(0) + blocks.free_in(1), 0);
    }
}
