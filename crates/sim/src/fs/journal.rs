//! The journal (`fs/jbd`): a ring of blocks into which changed metadata is copied before it is
//! written in place.
//!
//! ```text
//!   | S | D m m m m R | D m m R | ...          S super block of the journal, outside the ring
//!         ^tail                  ^head         D descriptor, m copy of a metadata block, R record
//! ```
//!
//! A transaction consists of its descriptors and copies, in one run of the ring, and of the commit
//! record after them, which is written when they are on the device. A descriptor names at most 508
//! copies.
//!
//! The ring keeps a transaction until its blocks are written in place. That happens when the next
//! transaction does not fit (checkpoint): the oldest transactions are removed until a quarter of
//! the ring is free. Each block is written once, and only if no younger transaction has it too;
//! then the super block gets the ring's new start. Two details are simpler than in the kernel. Its
//! flushers also write committed metadata in place, about 30 s later; here only a full ring does.
//! And it checkpoints before tasks add to a transaction; here the checkpoint is the first step of
//! the commit that needs the room.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use super::{BLOCK_SECTORS, CommitStep};

/// Shortest journal in blocks (`JFS_MIN_JOURNAL_BLOCKS`; from memory).
pub(super) const JOURNAL_BLOCKS_MIN: u32 = 1024;

/// Copies named by a descriptor: tags of 8 bytes after a header of 12 and, with the first tag, 16
/// bytes of journal UUID.
const DESCRIPTOR_TAGS: usize = (4096 - 12 - 16) / 8;

/// The journal.
#[derive(Debug)]
pub(super) struct Journal {
    /// Its blocks. The first is the super block, the others are the ring.
    area: Vec<Range<u32>>,
    /// Length of the ring in blocks.
    ring: u32,
    /// Start of the next transaction in the ring.
    head: u32,
    /// Number of used blocks of the ring.
    kept: u32,
    /// Commit records are barriers.
    barriers: bool,
    /// Transactions in the ring, the oldest first: length in the ring, and metadata blocks.
    transactions: VecDeque<(u32, Vec<u32>)>,
    /// Number of the oldest transaction.
    oldest: u64,
    /// For each metadata block in the ring, its youngest transaction.
    youngest: BTreeMap<u32, u64>,
}

impl Journal {
    /// An empty journal in these blocks, in this order.
    pub(super) fn new(area: Vec<Range<u32>>, barriers: bool) -> Self {
        let blocks: u32 = area.iter().map(|run| run.end - run.start).sum();
        assert!(blocks >= JOURNAL_BLOCKS_MIN);
        Self {
            area,
            ring: blocks - 1,
            head: 0,
            kept: 0,
            barriers,
            transactions: VecDeque::new(),
            oldest: 0,
            youngest: BTreeMap::new(),
        }
    }

    /// Commits these metadata blocks. A transaction longer than a quarter of the ring is split,
    /// because the kernel would have closed it earlier.
    pub(super) fn commit(&mut self, metadata: &BTreeSet<u32>) -> Vec<CommitStep> {
        let mut steps = Vec::new();
        let metadata: Vec<u32> = metadata.iter().copied().collect();
        // This many copies fit with their descriptors and the record into a quarter of the ring.
        let quarter = (self.ring / 4) as usize;
        let copies_max = quarter - 1 - quarter.div_ceil(DESCRIPTOR_TAGS);
        for part in metadata.chunks(copies_max) {
            self.commit_part(part, &mut steps);
        }
        steps
    }

    /// Revokes metadata blocks that are free now: their copies are not written in place.
    pub(super) fn revoke(&mut self, blocks: impl IntoIterator<Item = u32>) {
        for block in blocks {
            self.youngest.remove(&block);
        }
    }

    fn commit_part(&mut self, metadata: &[u32], steps: &mut Vec<CommitStep>) {
        let logged = (metadata.len() + metadata.len().div_ceil(DESCRIPTOR_TAGS)) as u32;
        let needed = logged + 1;
        if self.ring - self.kept < needed {
            self.checkpoint(needed.max(self.ring / 4), steps);
        }
        let step = |writes| CommitStep { writes, preflush: false, fua: false };
        steps.push(step(self.ring_writes(self.head, logged)));
        self.head = (self.head + logged) % self.ring;
        let record = step(self.ring_writes(self.head, 1));
        steps.push(CommitStep { preflush: self.barriers, fua: self.barriers, ..record });
        self.head = (self.head + 1) % self.ring;
        self.kept += needed;
        let number = self.oldest + self.transactions.len() as u64;
        self.youngest.extend(metadata.iter().map(|block| (*block, number)));
        self.transactions.push_back((needed, metadata.to_vec()));
    }

    /// Makes room for this many blocks.
    fn checkpoint(&mut self, needed: u32, steps: &mut Vec<CommitStep>) {
        let mut in_place = BTreeSet::new();
        while self.ring - self.kept < needed {
            let (blocks, metadata) =
                self.transactions.pop_front().expect("what is kept belongs to a transaction");
            self.kept -= blocks;
            for block in metadata {
                if self.youngest.get(&block) == Some(&self.oldest) {
                    self.youngest.remove(&block);
                    in_place.insert(block);
                }
            }
            self.oldest += 1;
        }
        let step = |writes, flush| CommitStep { writes, preflush: flush, fua: flush };
        if !in_place.is_empty() {
            steps.push(step(runs(in_place), false));
        }
        let super_block = u64::from(self.area[0].start) * BLOCK_SECTORS;
        steps.push(step(vec![(super_block, BLOCK_SECTORS as u32)], self.barriers));
    }

    /// Positions of ring blocks on the device, split at the end of the ring and where the area is
    /// not contiguous.
    fn ring_writes(&self, from: u32, blocks: u32) -> Vec<(u64, u32)> {
        let end = from + blocks;
        let mut writes = Vec::new();
        self.area_writes(from..end.min(self.ring), &mut writes);
        self.area_writes(0..end.saturating_sub(self.ring), &mut writes);
        writes
    }

    fn area_writes(&self, ring: Range<u32>, writes: &mut Vec<(u64, u32)>) {
        // Positions in the area: the super block precedes the ring.
        let wanted = ring.start + 1..ring.end + 1;
        let mut position = 0;
        for run in &self.area {
            let run_end = position + (run.end - run.start);
            let part = wanted.start.max(position)..wanted.end.min(run_end);
            if !part.is_empty() {
                let block = run.start + (part.start - position);
                writes.push(write(block, part.end - part.start));
            }
            position = run_end;
        }
    }
}

/// Combines blocks in ascending order into few writes.
pub(super) fn runs(blocks: impl IntoIterator<Item = u32>) -> Vec<(u64, u32)> {
    let mut writes: Vec<(u64, u32)> = Vec::new();
    for block in blocks {
        let (sector, sectors) = write(block, 1);
        match writes.last_mut() {
            Some((start, len)) if *start + u64::from(*len) == sector => *len += sectors,
            _ => writes.push((sector, sectors)),
        }
    }
    writes
}

fn write(block: u32, blocks: u32) -> (u64, u32) {
    (u64::from(block) * BLOCK_SECTORS, blocks * BLOCK_SECTORS as u32)
}

#[cfg(test)]
mod tests {
    use std::iter::once;

    use blockyard_workload::random::Random;

    use super::*;

    /// Sectors of these blocks.
    fn at(block: u64, blocks: u32) -> (u64, u32) {
        (block * 8, blocks * 8)
    }

    fn journal() -> Journal {
        Journal::new(vec![1000..1600, 5000..5424], false)
    }

    fn blocks(range: Range<u32>) -> BTreeSet<u32> {
        range.collect()
    }

    #[test]
    fn a_transaction_is_descriptor_and_copies_then_the_record() {
        let steps = journal().commit(&BTreeSet::from([7, 3, 90]));
        let writes: Vec<_> = steps.iter().map(|step| step.writes.clone()).collect();
        assert_eq!(writes, [vec![at(1001, 4)], vec![at(1005, 1)]]);
        assert!(steps.iter().all(|step| !step.preflush && !step.fua));
        let mut journal = Journal::new(once(1000..2024).collect(), true);
        let steps = journal.commit(&BTreeSet::from([7]));
        let flags: Vec<_> = steps.iter().map(|step| (step.preflush, step.fua)).collect();
        assert_eq!(flags, [(false, false), (true, true)]);
    }

    #[test]
    fn a_descriptor_names_508_copies() {
        let mut journal = Journal::new(once(0..32_768).collect(), false);
        assert_eq!(journal.commit(&blocks(0..508))[0].writes, [at(1, 509)]);
        // 509 copies before the record of the first: two descriptors.
        assert_eq!(journal.commit(&blocks(0..509))[0].writes, [at(511, 511)]);
    }

    #[test]
    fn a_transaction_is_cut_where_the_area_has_a_gap_and_where_the_ring_ends() {
        let mut journal = journal();
        // Blocks 1 to 499 of the area, so 499 blocks of the ring are used.
        journal.commit(&blocks(0..247));
        journal.commit(&blocks(0..248));
        assert_eq!(journal.head, 499);
        let steps = journal.commit(&blocks(0..199));
        assert_eq!(steps[0].writes, [at(1500, 100), at(5000, 100)]);
        assert_eq!(steps[1].writes, [at(5100, 1)]);
        // The ring ends at block 5423; 200 copies need a checkpoint.
        journal.commit(&blocks(0..219));
        let steps = journal.commit(&blocks(0..200));
        let log = &steps[steps.len() - 2];
        assert_eq!(log.writes, [at(5322, 102), at(1001, 99)]);
        assert_eq!(steps.last().expect("two at least").writes, [at(1100, 1)]);
    }

    #[test]
    fn a_full_ring_writes_old_blocks_in_place_once_and_then_its_super_block() {
        let mut journal = journal();
        for _ in 0..4 {
            // Each uses 254 blocks of the ring; the last three have all blocks of the first except
            // ten.
            let steps = journal.commit(&blocks(100..352));
            assert_eq!(steps.len(), 2);
        }
        assert_eq!(journal.ring - journal.kept, 1023 - 4 * 254);
        let steps = journal.commit(&blocks(100..110));
        // No block is only in the first transaction.
        assert_eq!(steps[0].writes, [at(1000, 1)]);
        assert_eq!(steps.len(), 3);

        let mut journal = self::journal();
        journal.commit(&blocks(2000..2240));
        (0..3).for_each(|_| drop(journal.commit(&blocks(2010..2260))));
        let steps = journal.commit(&blocks(0..100));
        assert_eq!(steps[0].writes, [at(2000, 10)]);
        assert_eq!(steps[1].writes, [at(1000, 1)]);
        assert_eq!(steps.len(), 4);
    }

    #[test]
    fn a_copy_is_not_overwritten_before_its_block_is_in_place() {
        let mut journal = journal();
        let mut random = Random::new(1, 0);
        // The copy at each place of the ring, and the place of each block's youngest copy.
        let mut copies = BTreeMap::new();
        let mut youngest = BTreeMap::new();
        for _ in 0..3000 {
            let start = random.below(400) as u32;
            let metadata = blocks(start + 10_000..start + 10_001 + random.below(200) as u32);
            for step in journal.commit(&metadata) {
                let each = |write: &(u64, u32)| write.0 / 8..write.0 / 8 + u64::from(write.1 / 8);
                let written: Vec<u64> = step.writes.iter().flat_map(each).collect();
                if written[0] >= 10_000 {
                    youngest.retain(|block, _| !written.contains(block));
                } else if written.len() > 1 {
                    let blocks = metadata.iter().map(|block| u64::from(*block));
                    // Its only descriptor comes first.
                    for (place, block) in written[1..].iter().zip(blocks) {
                        youngest.insert(block, *place);
                        let old = copies.insert(*place, block).filter(|old| *old != block);
                        assert!(old.is_none_or(|old| youngest.get(&old) != Some(place)));
                    }
                }
            }
        }
    }

    #[test]
    fn revoked_blocks_are_not_written_in_place() {
        let mut journal = journal();
        journal.commit(&blocks(2000..2250));
        (0..3).for_each(|_| drop(journal.commit(&blocks(3000..3250))));
        journal.revoke(2000..2249);
        let steps = journal.commit(&blocks(0..100));
        assert_eq!(steps[0].writes, [at(2249, 1)]);
    }

    #[test]
    fn a_transaction_longer_than_a_quarter_of_the_ring_becomes_several() {
        let mut journal = journal();
        let steps = journal.commit(&blocks(10_000..10_600));
        assert_eq!(steps.len(), 6);
        let logged: u32 = steps.iter().flat_map(|step| &step.writes).map(|(_, len)| len / 8).sum();
        assert_eq!(logged, 600 + 3 + 3);
    }
}
