//! ext3 (`fs/ext3`) with blocks of 4 KiB: block groups, reservation windows, indirect blocks, and a
//! journal.
//!
//! Blocks are allocated when a task writes, a page at a time, like in the kernel before delayed
//! allocation: the order of the tasks' writes determines the positions of pages, and write-back
//! only writes them there. All files are in one directory; their inodes are in its group until that
//! is full, then in the next group with room, and a file starts in the group of its inode. A group
//! has 16 start positions for files, so that tasks do not collide at once: the kernel selects one
//! by process number, this model by file number.
//!
//! Metadata that a change dirties, once per transaction: the inode's block, at every write; for
//! each new block also the bitmap and the descriptor of its group and the block of pointers to it.
//! A write to existing blocks dirties only the inode, for its times, which have full seconds
//! (`s_time_gran`): once a second.
//!
//! While the journal writes copies of metadata blocks, the blocks themselves are its buffers
//! (`BJ_Shadow`), and a `write()` that changes one waits (`do_get_write_access`). A block that the
//! running transaction has changed before that has a copy in memory, and nobody waits. Blocks that
//! count here are the inode's and the group descriptor's, which each allocation changes; bitmaps
//! and pointer blocks change only together with the latter.
//!
//! Ordered mode writes the data of files with new blocks first. The kernel of 2009 did so for all
//! pages written in the transaction, including overwritten ones.
//!
//! The first search for a block in a group reads the group's bitmap, and the writer waits
//! (`read_block_bitmap`). Other metadata is in memory: few inodes, and pointer blocks in repeated
//! use.
//!
//! Creation of a file in a numbered directory may wait too (`directories`).
//!
//! Released blocks are free after the next commit, or as soon as no others are left.
//!
//! Constants come from the kernel's source and from `mke2fs` of the time unless noted.

mod directories;
mod groups;
mod pointers;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use blockyard_engine::time::Nanos;
use blockyard_workload::program::FileId;

use super::blocks::{Blocks, NoBlock, Window};
use super::journal::{JOURNAL_BLOCKS_MIN, Journal};
use super::{
    BLOCK_BYTES, BLOCK_SECTORS, Commit, Creation, Extent, FileSystem, Needs, WaitingWrites,
    extents, within,
};
use directories::Directories;
use groups::Groups;
use pointers::Pointers;

/// Mount options and parameters of `mke2fs`.
// 13 fields: the options of one mount and one mke2fs, each an independent choice.
#[derive(Clone, Copy, Debug)]
pub struct Ext3Config {
    /// Whether data is written before the commit that makes it reachable.
    pub mode: DataMode,
    /// A commit record is a barrier: flush, write, flush. Off by default in 2009.
    pub barriers: bool,
    /// Blocks of the journal: at least 1,024.
    pub journal_blocks: u32,
    /// Position of the journal.
    pub journal_place: JournalPlace,
    /// Blocks of a group: at most 32,768, the bits of one bitmap.
    pub group_blocks: u32,
    /// Inodes of a group.
    pub group_inodes: u32,
    /// The group of the directory, where files start.
    pub directory_group: u32,
    /// Start positions of files in a group, evenly spread and assigned by file number.
    pub start_places: u32,
    /// Length of a file's first reservation window in blocks.
    pub window_blocks_min: u32,
    /// Limit of the length.
    pub window_blocks_max: u32,
    /// Interval of periodic commits.
    pub commit_interval: Nanos,
    /// Bitmaps are read at their first use; otherwise they are in memory.
    pub read_bitmaps: bool,
    /// A `write()` waits for the journal; otherwise it never does.
    pub writes_wait: bool,
}

/// `data=` of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataMode {
    /// Data and metadata are written independently.
    Writeback,
    /// The data of files that got new blocks is written before the commit.
    Ordered,
}

/// Position of the journal by `mke2fs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalPlace {
    /// In the first groups, before the files.
    Start,
    /// From the middle group on.
    Middle,
}

impl Ext3Config {
    /// Default mount options of 2009, on a large disk with default `mke2fs`. From memory: the
    /// length and position of the journal, and the number of inodes.
    #[must_use]
    pub fn of_2009() -> Self {
        Self {
            mode: DataMode::Ordered,
            barriers: false,
            journal_blocks: 32_768,
            journal_place: JournalPlace::Middle,
            group_blocks: 32_768,
            group_inodes: 8192,
            directory_group: 0,
            start_places: 16,
            window_blocks_min: 8,
            window_blocks_max: 1027,
            commit_interval: Nanos::from_ms(5000),
            read_bitmaps: true,
            writes_wait: true,
        }
    }

    /// Checks the parameters for a device of this size; returns the capacity for files. One
    /// fourteenth of the free space is reserved for pointer blocks: a file of 13 pages has 14
    /// blocks, and no file has more per page.
    pub(super) fn capacity_bytes(&self, device_sectors: u64) -> Result<u64, String> {
        let groups = Groups::new(self, device_sectors)?;
        within("directory_group", self.directory_group, 0, groups.groups - 1)?;
        within("start_places", self.start_places, 1, self.group_blocks)?;
        within("window_blocks_max", self.window_blocks_max, 1, self.group_blocks)?;
        within("window_blocks_min", self.window_blocks_min, 1, self.window_blocks_max)?;
        within("journal_blocks", self.journal_blocks, JOURNAL_BLOCKS_MIN, 1 << 30)?;
        // The directory has one block.
        let taken = u64::from(self.journal_blocks) + 1;
        let Some(free) = groups.data_blocks().checked_sub(taken).filter(|free| *free > 0) else {
            return Err(format!(
                "a device of {device_sectors} sectors is too small for ext3 with a journal of {} \
                 blocks: {} blocks are left for journal and files; choose a smaller journal_blocks \
                 or a larger device",
                self.journal_blocks,
                groups.data_blocks()
            ));
        };
        Ok((free - free.div_ceil(14)) * BLOCK_BYTES)
    }
}

/// A file.
#[derive(Debug)]
struct File {
    /// The block of its inode.
    inode: u32,
    /// Preferred position of its first block.
    start: u32,
    pointers: Pointers,
    window: Window,
    /// The second of its times.
    changed_s: u64,
    /// The window is given up at a `close` (`ext3_release_file`). Files of the only directory keep
    /// it: their programs close them once, at their end.
    closes: bool,
}

/// Changes since the last commit.
#[derive(Debug, Default)]
struct Transaction {
    /// Metadata blocks.
    metadata: BTreeSet<u32>,
    /// Files with new blocks.
    grown: BTreeSet<FileId>,
}

/// The file system.
#[derive(Debug)]
pub struct Ext3 {
    config: Ext3Config,
    groups: Groups,
    blocks: Blocks,
    /// The next free inode of each group.
    inodes: Vec<u32>,
    /// The block of the directory.
    directory: u32,
    /// Further directories.
    directories: Directories,
    files: BTreeMap<FileId, File>,
    running: Transaction,
    /// Metadata blocks whose copies the journal is writing.
    copied: BTreeSet<u32>,
    /// Metadata blocks of the last commit.
    committed: BTreeSet<u32>,
    /// Blocks released in the running transaction.
    given_up: Vec<u32>,
    journal: Journal,
}

impl Ext3 {
    /// An empty file system; the configuration is valid.
    pub(super) fn new(config: Ext3Config, device_sectors: u64) -> Self {
        let groups =
            Groups::new(&config, device_sectors).expect("the configuration has been checked");
        let mut blocks = Blocks::new(groups.blocks, groups.group_blocks);
        for group in 0..groups.groups {
            (groups.start(group)..groups.group_data(group)).for_each(|block| blocks.take(block));
        }
        let journal_group = match config.journal_place {
            JournalPlace::Start => 0,
            JournalPlace::Middle => groups.groups / 2,
        };
        let area = take_area(&mut blocks, &groups, journal_group, config.journal_blocks);
        let directory = take_area(&mut blocks, &groups, config.directory_group, 1)[0].start;
        if config.read_bitmaps {
            blocks.forget_bitmaps();
        }
        Self {
            config,
            groups,
            blocks,
            inodes: (0..groups.groups).map(|group| groups.inodes(group).0).collect(),
            directory,
            directories: Directories::new(groups.groups, !config.read_bitmaps),
            files: BTreeMap::new(),
            running: Transaction::default(),
            copied: BTreeSet::new(),
            committed: BTreeSet::new(),
            given_up: Vec::new(),
            journal: Journal::new(area, config.barriers),
        }
    }

    /// Adds a new file to the directory.
    fn add(&mut self, file: FileId) {
        let group = self.group_of_next_inode(file);
        self.insert(file, group);
        // The directory has a new entry, and its inode a new time.
        let directory_inode = self.groups.inode(self.config.directory_group, 0);
        self.running.metadata.extend([self.directory, directory_inode]);
    }

    /// The group of the next file's inode.
    fn group_of_next_inode(&self, file: FileId) -> u32 {
        let groups = &self.groups;
        let config = &self.config;
        let order = (0..groups.groups).map(|step| (config.directory_group + step) % groups.groups);
        let has_inode = |group: &u32| self.inodes[*group as usize] < groups.inodes(*group).1;
        let has_room = |group: &u32| has_inode(group) && self.blocks.free_in(*group) > 0;
        let group = order.clone().find(has_room).or_else(|| order.clone().find(has_inode));
        group.unwrap_or_else(|| {
            panic!("no inode is left for file {}: group_inodes is too small", file.0)
        })
    }

    /// Takes the next inode of a group for a new file.
    fn insert(&mut self, file: FileId, group: u32) {
        let groups = &self.groups;
        let config = &self.config;
        let inode = groups.inode(group, self.inodes[group as usize]);
        self.inodes[group as usize] += 1;
        let place = u64::from(file.0 % config.start_places) * u64::from(config.group_blocks)
            / u64::from(config.start_places);
        let start = groups.start(group) + place as u32;
        let pointers = Pointers::default();
        let window = Window::new(config.window_blocks_min, config.window_blocks_max);
        let changed_s = 0;
        let closes = false;
        self.files.insert(file, File { inode, start, pointers, window, changed_s, closes });
        let metadata = [inode, groups.inode_bitmap(group), groups.descriptor(group)];
        self.running.metadata.extend(metadata);
    }

    /// Truncates a file to zero; returns its former blocks.
    fn truncate(&mut self, file: FileId) -> Vec<u32> {
        let Some(file) = self.files.get_mut(&file) else {
            return Vec::new();
        };
        let pointers = std::mem::take(&mut file.pointers);
        self.blocks.discard(&mut file.window, self.config.window_blocks_min);
        for node in pointers.nodes() {
            self.running.metadata.remove(&node);
        }
        self.journal.revoke(pointers.nodes());
        let pages = pointers.pages().iter().copied().filter(|block| *block != 0);
        pages.chain(pointers.nodes()).collect()
    }

    /// Whether a write changes a block whose copy the journal is writing.
    fn changes_copied(&self, file: &File, now_s: u64, pages: &Range<u64>) -> bool {
        if self.copied.is_empty() {
            return false;
        }
        let blocks = file.pointers.pages();
        let has_block = |page: u64| blocks.get(page as usize).is_some_and(|block| *block != 0);
        let new = pages.clone().find(|page| !has_block(*page));
        let must_wait =
            |block| self.copied.contains(&block) && !self.running.metadata.contains(&block);
        let descriptor = new.is_some_and(|page| {
            let goal = file.pointers.goal(page.min(blocks.len() as u64)).unwrap_or(file.start);
            must_wait(self.groups.descriptor(self.groups.of(goal)))
        });
        let inode_changes = new.is_some() || file.changed_s != now_s;
        descriptor || (inode_changes && must_wait(file.inode))
    }

    /// Allocates blocks for the pages without one, and reads bitmaps at no cost.
    fn allocate(&mut self, id: FileId, pages: Range<u64>) {
        while let Err(group) = self.try_allocate(id, pages.clone()) {
            self.blocks.bitmap_read(group);
        }
    }

    /// Allocates blocks for the pages without one. The error is a group without a bitmap in memory;
    /// the pages before it have their blocks then.
    fn try_allocate(&mut self, id: FileId, pages: Range<u64>) -> Result<(), u32> {
        let limit = u64::from(self.groups.blocks);
        assert!(
            pages.end <= limit,
            "file {} would have {} pages, and the device has {limit}",
            id.0,
            pages.end
        );
        let file = self.files.get_mut(&id).expect("the caller has looked");
        file.pointers.extend(pages.end);
        let Transaction { metadata, grown } = &mut self.running;
        for page in pages {
            if file.pointers.pages()[page as usize] != 0 {
                continue;
            }
            // The blocks of a directory are metadata.
            if !directories::is_directory(id) {
                grown.insert(id);
            }
            metadata.insert(file.inode);
            let mut goal = file.pointers.goal(page).unwrap_or(file.start);
            let mut next = |named_by: u32| {
                let window = &mut file.window;
                let mut found = self.blocks.allocate(goal, window);
                if found == Err(NoBlock::Full) {
                    self.given_up.drain(..).for_each(|block| self.blocks.release(block));
                    found = self.blocks.allocate(goal, window);
                }
                let block = match found {
                    Ok(block) => block,
                    Err(NoBlock::Unread(group)) => return Err(group),
                    Err(NoBlock::Full) => full(id),
                };
                let group = self.groups.of(block);
                metadata.extend([named_by, self.groups.block_bitmap(group)]);
                metadata.insert(self.groups.descriptor(group));
                goal = block + 1;
                Ok(block)
            };
            let mut named_by = file.inode;
            for node in Pointers::path(page) {
                let block = file.pointers.node(node);
                if *block == 0 {
                    *block = next(named_by)?;
                }
                named_by = *block;
            }
            let block = next(named_by)?;
            file.pointers.set(page, block);
        }
        Ok(())
    }
}

impl WaitingWrites for Ext3 {
    fn try_write(&mut self, now: Nanos, id: FileId, pages: Range<u64>) -> Result<(), Needs> {
        if !self.files.contains_key(&id) {
            self.add(id);
        }
        let now_s = now.0 / 1_000_000_000;
        if self.config.writes_wait && self.changes_copied(&self.files[&id], now_s, &pages) {
            return Err(Needs::Copies);
        }
        let file = self.files.get_mut(&id).expect("just added");
        if file.changed_s != now_s {
            file.changed_s = now_s;
            self.running.metadata.insert(file.inode);
        }
        self.try_allocate(id, pages).map_err(|unread| {
            Needs::Metadata(u64::from(self.groups.block_bitmap(unread)) * BLOCK_SECTORS)
        })
    }

    fn close(&mut self, file: FileId) {
        if let Some(file) = self.files.get_mut(&file).filter(|file| file.closes) {
            self.blocks.discard(&mut file.window, self.config.window_blocks_min);
        }
    }

    fn copies(&mut self, are_written: bool) {
        let blocks = std::mem::take(&mut self.committed);
        self.copied = if are_written { BTreeSet::new() } else { blocks };
    }

    fn metadata_read(&mut self, sector: u64) {
        let block = u32::try_from(sector / BLOCK_SECTORS).expect("blocks have 32 bits");
        let group = self.groups.of(block);
        if block == self.groups.inode_bitmap(group) {
            self.directories.inode_bitmap_read(group);
        } else {
            self.blocks.bitmap_read(group);
        }
    }
}

impl Creation for Ext3 {
    fn create(&mut self, file: FileId) {
        if !self.files.contains_key(&file) {
            self.add(file);
        }
        let had = self.truncate(file);
        for block in &had {
            let group = self.groups.of(*block);
            let metadata = [self.groups.block_bitmap(group), self.groups.descriptor(group)];
            self.running.metadata.extend(metadata);
        }
        self.given_up.extend(had);
        self.running.metadata.insert(self.files[&file].inode);
    }

    fn make_directories(&mut self, count: u32) {
        self.make_directories_until(count);
    }

    fn try_create(&mut self, file: FileId, directory: u32) -> Result<(), Needs> {
        if self.files.contains_key(&file) {
            self.create(file);
            return Ok(());
        }
        self.try_add(file, directory)
    }
}

impl FileSystem for Ext3 {
    fn layout(&mut self, file: FileId, pages: u64) {
        let had = self.truncate(file);
        had.into_iter().for_each(|block| self.blocks.release(block));
        let running = std::mem::take(&mut self.running);
        if !self.files.contains_key(&file) {
            self.add(file);
        }
        self.allocate(file, 0..pages);
        let window = &mut self.files.get_mut(&file).expect("just added").window;
        self.blocks.discard(window, self.config.window_blocks_min);
        self.running = running;
    }

    fn write(&mut self, file: FileId, pages: Range<u64>) {
        if !self.files.contains_key(&file) {
            self.add(file);
        }
        self.allocate(file, pages);
        self.running.metadata.insert(self.files[&file].inode);
    }

    fn place(&mut self, file: FileId, pages: Range<u64>, out: &mut Vec<Extent>) {
        let found = out.len();
        self.map(file, pages.clone(), out);
        let placed: u64 = out[found..].iter().map(|extent| extent.pages).sum();
        assert!(
            placed == pages.end - pages.start,
            "pages {pages:?} of file {} are written back, but {placed} of them were ever written",
            file.0
        );
    }

    fn map(&self, file: FileId, pages: Range<u64>, out: &mut Vec<Extent>) {
        if let Some(file) = self.files.get(&file) {
            extents(file.pointers.pages(), pages, out);
        }
    }

    fn file_pages(&self, file: FileId) -> u64 {
        self.files.get(&file).map_or(0, |file| file.pointers.pages().len() as u64)
    }

    fn commit(&mut self) -> Option<Commit> {
        let Transaction { metadata, grown } = std::mem::take(&mut self.running);
        if metadata.is_empty() {
            return None;
        }
        self.given_up.drain(..).for_each(|block| self.blocks.release(block));
        let data_first = match self.config.mode {
            DataMode::Writeback => Vec::new(),
            DataMode::Ordered => grown.into_iter().collect(),
        };
        let steps = self.journal.commit(&metadata);
        self.committed = metadata;
        Some(Commit { data_first, steps })
    }
}

/// Takes the first free blocks from the start of a group on, then from the start of the device.
fn take_area(blocks: &mut Blocks, groups: &Groups, group: u32, len: u32) -> Vec<Range<u32>> {
    let start = groups.start(group);
    let mut area: Vec<Range<u32>> = Vec::new();
    let mut at = start;
    for _ in 0..len {
        let free = blocks.first_free(at..groups.blocks).or_else(|| blocks.first_free(0..start));
        let block = free.expect("the check has left room for it");
        blocks.take(block);
        match area.last_mut() {
            Some(run) if run.end == block => run.end += 1,
            _ => area.push(block..block + 1),
        }
        at = block + 1;
    }
    area
}

fn full(file: FileId) -> ! {
    panic!(
        "the device is full: file {} needs a block of {BLOCK_BYTES} bytes, and 0 bytes are \
         available (FsConfig::check tells beforehand)",
        file.0
    )
}
