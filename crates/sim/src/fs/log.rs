//! A log-structured file system, after nilfs2 (`fs/nilfs2`).
//!
//! The device is divided into segments. All writes go to the head of the log, in the order of
//! write-back: file data, and at each commit the metadata, whose last block is the start of a
//! mount. The blocks between two commits, or until the end of the segment, are a partial segment
//! with a summary block before it. So random writes are sequential on the device, and a file
//! written at random is read at random.
//!
//! ```text
//!   segment  | S data data data M M | S data M M | S data data ....... |   S summary, M metadata
//!                                 ^commit      ^commit                ^the next free segment
//! ```
//!
//! A segment is free again when it has no live blocks and a commit has passed. The head moves to
//! the next free one, cyclically. When only one is left, a simple cleaner copies the live blocks of
//! the segment with the fewest to the head, and so frees that segment.
//!
//! Simpler than nilfs2: the next commit writes the summaries, not before their data. The metadata
//! of a commit has a fixed length, and old checkpoints are not kept. A partial segment has one
//! summary block, regardless of its number of files. The cleaner reads at no cost, writes with the
//! next commit, and frees its segment before that. Segment 0 is reserved for the super block, which
//! is never written.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use blockyard_engine::time::Nanos;
use blockyard_workload::program::FileId;

use super::journal::runs;
use super::{
    BLOCK_BYTES, BLOCK_SECTORS, Commit, CommitStep, Creation, Extent, FileSystem, Needs, SyncRule,
    WaitingWrites, extents, within,
};

/// Parameters of a log.
#[derive(Clone, Copy, Debug)]
pub struct LogConfig {
    /// Blocks of a segment.
    pub segment_blocks: u32,
    /// Blocks of inode file, address table, segment usage, checkpoint and super root in each
    /// commit.
    pub metadata_blocks_per_commit: u32,
    /// A commit is a barrier: flush, write, flush.
    pub barriers: bool,
    /// Interval of periodic commits.
    pub commit_interval: Nanos,
}

impl LogConfig {
    /// Defaults of nilfs2 in 2009: segments of 8 MiB, a commit every 5 s, barriers (from memory).
    /// The 8 metadata blocks are ours: one or two of each metadata file.
    #[must_use]
    pub fn of_2009() -> Self {
        Self {
            segment_blocks: 2048,
            metadata_blocks_per_commit: 8,
            barriers: true,
            commit_interval: Nanos::from_ms(5000),
        }
    }

    /// Checks the parameters for a device of this size; returns the capacity for files. One
    /// twentieth of the segments is reserved for the cleaner, like in nilfs2 (from memory), and two
    /// more for the head and the cleaner's target.
    pub(super) fn capacity_bytes(&self, device_sectors: u64) -> Result<u64, String> {
        within("segment_blocks", self.segment_blocks, 16, 1 << 20)?;
        let metadata_max = self.segment_blocks / 2;
        within("metadata_blocks_per_commit", self.metadata_blocks_per_commit, 1, metadata_max)?;
        let segment_sectors = u64::from(self.segment_blocks) * BLOCK_SECTORS;
        let segments = (device_sectors / segment_sectors).saturating_sub(1);
        let blocks =
            segments.saturating_sub(segments.div_ceil(20) + 2) * u64::from(self.segment_blocks - 1);
        let metadata = u64::from(self.metadata_blocks_per_commit);
        let Some(files) = blocks.checked_sub(metadata).filter(|files| *files > 0) else {
            return Err(format!(
                "a device of {device_sectors} sectors is too small for a log with segments of {} \
                 blocks: it needs 5 segments, {} sectors; choose a smaller segment_blocks or a \
                 larger device",
                self.segment_blocks,
                5 * segment_sectors
            ));
        };
        if device_sectors / BLOCK_SECTORS > u64::from(u32::MAX) {
            return Err(format!(
                "a device of {device_sectors} sectors is too large for a log: at most {}",
                u64::from(u32::MAX) * BLOCK_SECTORS
            ));
        }
        Ok(files * BLOCK_BYTES)
    }
}

/// Owner of a block in a segment.
#[derive(Clone, Copy, Debug)]
enum Owner {
    Summary,
    Metadata,
    /// A page of a file.
    Page(FileId, u32),
}

/// A segment.
#[derive(Clone, Debug, Default)]
struct Segment {
    /// Owners of its written blocks, from its start on.
    owners: Vec<Owner>,
    /// Number of live blocks.
    live: u32,
}

/// The file system.
#[derive(Debug)]
pub struct Log {
    config: LogConfig,
    /// All segments except segment 0.
    segments: Vec<Segment>,
    /// The segment of the head.
    head: usize,
    /// Number of unwritten segments, without the head's.
    free: u32,
    /// The next block belongs to the partial segment of a written summary.
    partial: bool,
    /// Segments without live blocks since the last commit.
    emptied: Vec<usize>,
    /// The block of each page; 0 for none.
    files: BTreeMap<FileId, Vec<u32>>,
    /// Blocks of the last commit's metadata.
    metadata: Vec<u32>,
    /// Summaries and copies for the next commit.
    unwritten: BTreeSet<u32>,
    /// Something has changed since the last commit.
    dirty: bool,
}

impl Log {
    /// An empty file system; the configuration is valid.
    pub(super) fn new(config: LogConfig, device_sectors: u64) -> Self {
        let blocks = device_sectors / BLOCK_SECTORS;
        let segments = (blocks / u64::from(config.segment_blocks)) as usize - 1;
        Self {
            config,
            segments: vec![Segment::default(); segments],
            head: 0,
            free: segments as u32 - 1,
            partial: false,
            emptied: Vec::new(),
            files: BTreeMap::new(),
            metadata: Vec::new(),
            unwritten: BTreeSet::new(),
            dirty: false,
        }
    }

    /// First block of a segment.
    fn start(&self, segment: usize) -> u32 {
        (segment as u32 + 1) * self.config.segment_blocks
    }

    /// Appends a block at the head; returns its position.
    fn append(&mut self, owner: Owner) -> u32 {
        let room = if self.partial { 1 } else { 2 };
        if self.segments[self.head].owners.len() + room > self.config.segment_blocks as usize {
            self.next_segment();
        }
        if !self.partial {
            let summary = self.push(Owner::Summary);
            self.unwritten.insert(summary);
            self.partial = true;
        }
        self.segments[self.head].live += 1;
        self.push(owner)
    }

    fn push(&mut self, owner: Owner) -> u32 {
        let block = self.start(self.head) + self.segments[self.head].owners.len() as u32;
        self.segments[self.head].owners.push(owner);
        assert!(self.segments[self.head].owners.len() <= self.config.segment_blocks as usize);
        block
    }

    /// A block is no longer live.
    fn release(&mut self, block: u32) {
        let segment = (block / self.config.segment_blocks) as usize - 1;
        let live = &mut self.segments[segment].live;
        *live = live.checked_sub(1).expect("a block is released once");
        if *live == 0 && segment != self.head {
            self.emptied.push(segment);
        }
    }

    /// Moves the head to the next free segment, with room for at least one more block.
    fn next_segment(&mut self) {
        if self.segments[self.head].live == 0 {
            self.emptied.push(self.head);
        }
        self.partial = false;
        if self.free < 2 {
            // A commit without a write; nilfs2 would write.
            self.free_emptied();
        }
        let from = self.head;
        let cyclic = (1..=self.segments.len()).map(|step| (from + step) % self.segments.len());
        let mut cyclic = cyclic.filter(|segment| self.segments[*segment].owners.is_empty());
        self.head = cyclic.next().expect("the cleaner leaves one");
        self.free -= 1;
        if self.free == 0 {
            self.clean();
        }
    }

    /// Copies the live blocks of the segment with the fewest, and frees it.
    fn clean(&mut self) {
        let candidates = (0..self.segments.len()).filter(|segment| *segment != self.head);
        let victim = candidates
            .min_by_key(|segment| self.segments[*segment].live)
            .expect("there are several segments");
        let live = self.segments[victim].live;
        assert!(
            live + 2 <= self.config.segment_blocks,
            "the device is full: the log needs a block of {BLOCK_BYTES} bytes, and 0 bytes are \
             available (FsConfig::check tells beforehand)"
        );
        let start = self.start(victim);
        let owners = std::mem::take(&mut self.segments[victim].owners);
        for (block, owner) in (start..).zip(&owners) {
            if self.is_live(*owner, block) {
                let copy = self.append(*owner);
                self.unwritten.insert(copy);
                *self.place_of(*owner, block).expect("it is live") = copy;
            }
        }
        self.segments[victim].owners = owners;
        self.segments[victim].live = 0;
        self.free_segment(victim);
    }

    fn is_live(&mut self, owner: Owner, block: u32) -> bool {
        self.place_of(owner, block).is_some()
    }

    /// The reference to a live block.
    fn place_of(&mut self, owner: Owner, block: u32) -> Option<&mut u32> {
        let place = match owner {
            Owner::Summary => None,
            Owner::Metadata => self.metadata.iter_mut().find(|place| **place == block),
            Owner::Page(file, page) => {
                self.files.get_mut(&file).and_then(|blocks| blocks.get_mut(page as usize))
            }
        };
        place.filter(|place| **place == block)
    }

    fn free_emptied(&mut self) {
        for segment in std::mem::take(&mut self.emptied) {
            assert!(self.segments[segment].live == 0, "only the head's segment is written to");
            self.free_segment(segment);
        }
    }

    fn free_segment(&mut self, segment: usize) {
        let start = self.start(segment);
        let gone = self.unwritten.range(start..start + self.config.segment_blocks);
        for block in gone.copied().collect::<Vec<_>>() {
            self.unwritten.remove(&block);
        }
        assert!(!self.segments[segment].owners.is_empty(), "a segment becomes free once");
        self.segments[segment].owners.clear();
        self.free += 1;
    }

    /// Appends pages of a file at the head.
    fn append_pages(&mut self, file: FileId, pages: Range<u64>) {
        for page in pages {
            let blocks = self.files.get_mut(&file).expect("the caller has looked");
            let old = std::mem::take(&mut blocks[page as usize]);
            if old != 0 {
                self.release(old);
            }
            let block = self.append(Owner::Page(file, page as u32));
            self.files.get_mut(&file).expect("still there")[page as usize] = block;
        }
    }

    /// Truncates the file to zero.
    fn truncate(&mut self, file: FileId) {
        let blocks = self.files.insert(file, Vec::new()).unwrap_or_default();
        for block in blocks.into_iter().filter(|block| *block != 0) {
            self.release(block);
        }
    }

    fn extend(&mut self, file: FileId, pages: u64) {
        let limit = self.segments.len() as u64 * u64::from(self.config.segment_blocks);
        assert!(
            pages <= limit,
            "file {} would have {pages} pages, and the device has {limit}",
            file.0
        );
        let blocks = self.files.entry(file).or_default();
        if blocks.len() < pages as usize {
            blocks.resize(pages as usize, 0);
        }
    }
}

impl WaitingWrites for Log {
    fn try_write(&mut self, _: Nanos, file: FileId, pages: Range<u64>) -> Result<(), Needs> {
        self.write(file, pages);
        Ok(())
    }
}

impl Creation for Log {
    fn create(&mut self, file: FileId) {
        self.truncate(file);
        self.dirty = true;
    }
}

impl FileSystem for Log {
    fn layout(&mut self, file: FileId, pages: u64) {
        let unwritten = self.unwritten.clone();
        self.truncate(file);
        self.extend(file, pages);
        self.partial = false;
        self.append_pages(file, 0..pages);
        self.partial = false;
        self.unwritten.retain(|block| unwritten.contains(block));
    }

    fn write(&mut self, file: FileId, pages: Range<u64>) {
        self.extend(file, pages.end);
        self.dirty = true;
    }

    fn place(&mut self, file: FileId, pages: Range<u64>, out: &mut Vec<Extent>) {
        let len = self.file_pages(file);
        assert!(
            pages.end <= len,
            "pages {pages:?} of file {} are written back, but it has {len}",
            file.0
        );
        self.append_pages(file, pages.clone());
        self.dirty = true;
        self.map(file, pages, out);
    }

    fn map(&self, file: FileId, pages: Range<u64>, out: &mut Vec<Extent>) {
        if let Some(blocks) = self.files.get(&file) {
            extents(blocks, pages, out);
        }
    }

    fn file_pages(&self, file: FileId) -> u64 {
        self.files.get(&file).map_or(0, |blocks| blocks.len() as u64)
    }

    fn sync_rule(&self) -> SyncRule {
        SyncRule::SegmentEnd { blocks: u64::from(self.config.segment_blocks) }
    }

    fn commit(&mut self) -> Option<Commit> {
        if !self.dirty {
            return None;
        }
        for block in std::mem::take(&mut self.metadata) {
            self.release(block);
        }
        for _ in 0..self.config.metadata_blocks_per_commit {
            let block = self.append(Owner::Metadata);
            self.metadata.push(block);
        }
        let mut blocks = std::mem::take(&mut self.unwritten);
        blocks.extend(&self.metadata);
        self.partial = false;
        self.dirty = false;
        self.free_emptied();
        let barriers = self.config.barriers;
        let step = CommitStep { writes: runs(blocks), preflush: barriers, fua: barriers };
        Some(Commit { data_first: Vec::new(), steps: vec![step] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Segments of 16 blocks: 63 of them, the first at block 16.
    fn log() -> Log {
        let config =
            LogConfig { segment_blocks: 16, metadata_blocks_per_commit: 3, ..LogConfig::of_2009() };
        Log::new(config, 64 * 16 * BLOCK_SECTORS)
    }

    const FILE: FileId = FileId(0);

    /// Positions of these pages by write-back: block and length of each extent.
    fn place(log: &mut Log, pages: Range<u64>) -> Vec<(u64, u64)> {
        log.write(FILE, pages.clone());
        let mut out = Vec::new();
        log.place(FILE, pages, &mut out);
        out.iter().map(|extent| (extent.sector / BLOCK_SECTORS, extent.pages)).collect()
    }

    /// Writes of a commit: block and length of each.
    fn commit(log: &mut Log) -> Vec<(u64, u32)> {
        let commit = log.commit().expect("there is something to do");
        assert_eq!(commit.data_first, []);
        let [CommitStep { writes, preflush: true, fua: true }] = &commit.steps[..] else {
            panic!("one step that is a barrier: {commit:?}");
        };
        writes.iter().map(|(sector, len)| (sector / BLOCK_SECTORS, len / 8)).collect()
    }

    #[test]
    fn pages_lie_in_the_order_in_which_they_were_written_back() {
        let mut log = log();
        // A summary comes first.
        assert_eq!(place(&mut log, 5..8), [(17, 3)]);
        assert_eq!(place(&mut log, 0..2), [(20, 2)]);
        let mut out = Vec::new();
        log.map(FILE, 0..8, &mut out);
        let found: Vec<_> = out.iter().map(|e| (e.page, e.sector / 8, e.pages)).collect();
        assert_eq!(found, [(0, 20, 2), (5, 17, 3)]);
    }

    #[test]
    fn rewriting_moves_pages_to_the_head() {
        let mut log = log();
        assert_eq!(place(&mut log, 0..4), [(17, 4)]);
        assert_eq!(place(&mut log, 1..3), [(21, 2)]);
        let mut out = Vec::new();
        log.map(FILE, 0..4, &mut out);
        let found: Vec<_> = out.iter().map(|e| (e.page, e.sector / 8, e.pages)).collect();
        assert_eq!(found, [(0, 17, 1), (1, 21, 2), (3, 20, 1)]);
    }

    #[test]
    fn a_commit_writes_summaries_and_the_metadata_at_the_head() {
        let mut log = log();
        place(&mut log, 0..4);
        assert_eq!(commit(&mut log), [(16, 1), (21, 3)]);
        // The following blocks have a new summary.
        assert_eq!(place(&mut log, 4..5), [(25, 1)]);
        assert_eq!(commit(&mut log), [(24, 1), (26, 3)]);
    }

    #[test]
    fn a_partial_segment_ends_with_its_segment() {
        let mut log = log();
        assert_eq!(place(&mut log, 0..20), [(17, 15), (33, 5)]);
        assert_eq!(commit(&mut log), [(16, 1), (32, 1), (38, 3)]);
        place(&mut log, 20..22);
        assert_eq!(commit(&mut log), [(41, 1), (44, 3)]);
        // One block is left in the segment, too little for a summary and a block.
        assert_eq!(place(&mut log, 22..23), [(49, 1)]);
    }

    #[test]
    fn a_segment_without_needed_blocks_is_free_after_the_commit_and_used_in_turn() {
        let mut log = log();
        place(&mut log, 0..15);
        place(&mut log, 0..15);
        assert_eq!(log.free, 61);
        commit(&mut log);
        assert_eq!(log.free, 61 - 1 + 1);
        // The head continues: it returns after a full cycle.
        let blocks: Vec<u64> = (0..70).map(|_| place(&mut log, 0..15)[0].0).collect();
        assert!(blocks.windows(2).all(|pair| pair[0] < pair[1] || pair[1] < 40), "{blocks:?}");
        assert!(blocks.iter().any(|block| *block < 32), "{blocks:?}");
    }

    #[test]
    fn the_cleaner_copies_what_is_needed_of_the_emptiest_segment() {
        let mut log = log();
        // 61 segments full of pages of a file, and half of the 62nd.
        place(&mut log, 0..61 * 15 + 8);
        commit(&mut log);
        assert_eq!(log.free, 1);
        // Five pages of the eleventh segment are still live.
        let gone = 10 * 15..10 * 15 + 10;
        let victim = log.files[&FILE][10 * 15 + 10];
        place(&mut log, gone);
        let writes = commit(&mut log);
        let copies: Vec<u32> = log.files[&FILE][10 * 15 + 10..11 * 15].to_vec();
        assert!(!copies.contains(&victim) && copies.windows(2).all(|pair| pair[0] + 1 == pair[1]));
        let written = |block: u32| {
            let block = u64::from(block);
            writes.iter().any(|(start, len)| (*start..start + u64::from(*len)).contains(&block))
        };
        assert!(copies.iter().all(|block| written(*block)), "{copies:?} {writes:?}");
        assert_eq!(log.free, 1);
    }
}
