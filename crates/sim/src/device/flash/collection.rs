//! The mapping of an SSD by pages, with garbage collection.
//!
//! A page is written into the open block, and its old copy becomes stale. When few blocks are free,
//! the block with the fewest valid pages is collected: its valid pages are written again, then it
//! is erased. The copies are spread over the writes that follow, so that the block is free when the
//! writes need it.
//!
//! The drive starts full: each of its pages was written before. The stale pages of its spare area
//! are spread evenly over the blocks, but for [`Collection::free_sectors`].

use std::collections::VecDeque;

use blockyard_engine::time::Nanos;

/// Number of free blocks below which blocks are collected.
const FREE_MIN: usize = 2;
/// Blocks of the spare area at least: the free ones, the open one, and one of stale pages.
const SPARE_BLOCKS_MIN: u64 = 4;

/// Parameters of the collection.
#[derive(Clone, Copy, Debug)]
pub struct Collection {
    /// Sectors of an erase block.
    pub block_sectors: u32,
    /// Spare area in percent of the drive's size; at least four blocks.
    pub spare_percent: u32,
    /// Sectors that are free at the start: writes before the collection begins.
    pub free_sectors: u64,
    /// Time to erase a block.
    pub erase: Nanos,
}

/// Work of the collection for one written page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Copied {
    /// Pages read and written again.
    pub(super) pages: u32,
    /// Blocks erased.
    pub(super) blocks: u32,
}

/// The block that is being collected.
#[derive(Debug)]
struct Victim {
    block: usize,
    /// Pages that were valid when the block was chosen.
    pages: Vec<u32>,
    /// Pages to copy for each written page.
    pace: usize,
}

/// The mapping.
#[derive(Debug)]
pub(super) struct Mapping {
    pages_per_block: usize,
    /// Pages of a block at the start.
    pages_at_start: usize,
    /// One more than the block of each page; zero while a page is where it was at the start.
    block_of: Vec<u32>,
    /// Number of valid pages by block.
    valid: Vec<usize>,
    /// Pages written into each block since its erasure.
    written: Vec<Vec<u32>>,
    free: VecDeque<usize>,
    open: usize,
    victim: Option<Victim>,
}

impl Mapping {
    pub(super) fn new(config: &Collection, sectors: u64, page_sectors: u32) -> Self {
        let pages = sectors.div_ceil(u64::from(page_sectors)) as usize;
        let pages_per_block = (config.block_sectors / page_sectors).max(1) as usize;
        let full = pages.div_ceil(pages_per_block);
        let spare = full as u64 * u64::from(config.spare_percent) / 100;
        let spare = spare.max(SPARE_BLOCKS_MIN) as usize;
        let asked = (config.free_sectors / u64::from(config.block_sectors)) as usize;
        // One free block is the open one at once; one holds stale pages.
        let free = (asked + FREE_MIN + 1).min(spare - 1);
        let used = full + spare - free;
        let pages_at_start = pages.div_ceil(used);
        let in_block = |block| pages.saturating_sub(block * pages_at_start).min(pages_at_start);
        let mut valid: Vec<usize> = (0..used).map(in_block).collect();
        valid.resize(full + spare, 0);
        Self {
            pages_per_block,
            pages_at_start,
            block_of: vec![0; pages],
            valid,
            written: vec![Vec::new(); full + spare],
            free: (used + 1..full + spare).collect(),
            open: used,
            victim: None,
        }
    }

    /// Writes a page; returns the work of the collection before it.
    pub(super) fn write(&mut self, page: u64) -> Copied {
        let copied = self.collect();
        self.place(page as u32);
        copied
    }

    fn block(&self, page: u32) -> usize {
        match self.block_of[page as usize] {
            0 => page as usize / self.pages_at_start,
            block => block as usize - 1,
        }
    }

    fn place(&mut self, page: u32) {
        if self.written[self.open].len() == self.pages_per_block {
            self.open = self.free.pop_front().expect("the collection keeps blocks free");
        }
        let old = self.block(page);
        self.valid[old] -= 1;
        self.valid[self.open] += 1;
        self.written[self.open].push(page);
        self.block_of[page as usize] = self.open as u32 + 1;
    }

    fn collect(&mut self) -> Copied {
        let mut victim = match self.victim.take() {
            Some(victim) => victim,
            None if self.free.len() >= FREE_MIN => return Copied::default(),
            None => self.choose(),
        };
        let mut copied = Copied::default();
        for _ in 0..victim.pace {
            let Some(page) = victim.pages.pop() else { break };
            if self.block(page) == victim.block {
                self.place(page);
                copied.pages += 1;
            }
        }
        if victim.pages.is_empty() {
            copied.blocks = 1;
            self.written[victim.block] = Vec::new();
            self.free.push_back(victim.block);
        } else {
            self.victim = Some(victim);
        }
        copied
    }

    /// The block with the fewest valid pages, the first of several.
    fn choose(&self) -> Victim {
        let is_used = |block: &usize| *block != self.open && !self.free.contains(block);
        let blocks = (0..self.valid.len()).filter(is_used);
        let block = blocks.min_by_key(|block| self.valid[*block]).expect("the drive is full");
        let first = block * self.pages_at_start;
        let at_start = first..(first + self.pages_at_start).min(self.block_of.len());
        let at_start = at_start.map(|page| page as u32);
        let pages = at_start.chain(self.written[block].iter().copied());
        let mut pages: Vec<u32> = pages.filter(|page| self.block(*page) == block).collect();
        // A page that was written twice into one block stands there twice.
        pages.sort_unstable();
        pages.dedup();
        let stale = self.pages_per_block.saturating_sub(pages.len()).max(1);
        let pace = pages.len().div_ceil(stale).max(1);
        Victim { block, pages, pace }
    }
}

#[cfg(test)]
mod tests {
    use blockyard_workload::random::Random;

    use super::*;

    const PAGES: u64 = 20_000;

    fn mapping(spare_percent: u32, free_sectors: u64) -> Mapping {
        let config =
            Collection { block_sectors: 512, spare_percent, free_sectors, erase: Nanos(3_000_000) };
        Mapping::new(&config, PAGES * 8, 8)
    }

    /// Copies for each written page, after `before` writes.
    fn copies(mapping: &mut Mapping, before: u32, mut page: impl FnMut() -> u64) -> f64 {
        for _ in 0..before {
            mapping.write(page());
        }
        let count = 40_000;
        let sum: u32 = (0..count).map(|_| mapping.write(page()).pages).sum();
        assert_eq!(mapping.valid.iter().sum::<usize>() as u64, PAGES, "no page is lost");
        f64::from(sum) / f64::from(count)
    }

    #[test]
    fn random_writes_copy_more_with_a_smaller_spare_area() {
        let copied = |spare_percent| {
            let mut random = Random::new(1, 0);
            copies(&mut mapping(spare_percent, 0), 60_000, || random.below(PAGES))
        };
        let small = copied(7);
        let large = copied(28);
        // Greedy collection under random writes: about (1 + s) / 2s writes for each of the host.
        assert!((4.0..9.0).contains(&small), "{small}");
        assert!((0.8..2.0).contains(&large), "{large}");
    }

    #[test]
    fn writes_in_order_copy_nearly_nothing() {
        let mut next = 0;
        let in_order = || {
            next = (next + 1) % PAGES;
            next
        };
        let copied = copies(&mut mapping(7, 0), 60_000, in_order);
        assert!(copied < 0.05, "{copied}");
    }

    #[test]
    fn collection_begins_when_the_free_space_is_written() {
        let mut random = Random::new(1, 0);
        let mut mapping = mapping(28, 3_000 * 8);
        let mut is_collecting =
            |mapping: &mut Mapping| mapping.write(random.below(PAGES)).pages > 0;
        let first = (0..10_000).position(|_| is_collecting(&mut mapping)).unwrap();
        assert!((2_900..3_300).contains(&first), "{first}");
    }
}
