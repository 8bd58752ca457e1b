//! Directories of files that a program creates while it runs (`fs/ext3/namei.c`, `ialloc.c`).
//!
//! ```text
//!   create ── inode bitmap, read once ──> inode ──> entry in the last block ──> journal
//!                                                     └ full: a new block of the directory
//! ```
//! Metadata that a creation dirties: the inode, the bitmap and the descriptor of its group; the
//! block with the new entry, and the directory's inode. A new block of the directory adds the block
//! bitmap, and from the 13th block on the block of pointers to it. A creation waits for a locked
//! transaction, for copies that the journal writes of these blocks, and for the inode bitmap.
//!
//! All directories are in the group of the root: Orlov's allocator keeps those below the first
//! level with their parent, until its debt is 128 of them (`find_group_orlov`).
//!
//! Entries lie in the order of creation, as without an index (`dir_index`). With one the hash of a
//! name decides about the block, so files of one transaction dirty more of them.

use blockyard_workload::program::FileId;

use super::super::{BLOCK_BYTES, BLOCK_SECTORS, Needs};
use super::{Ext3, Ext3Config, Groups};

/// Most directories in the group of their parent.
const DIRECTORIES_MAX: u32 = 128;

/// An entry: 8 bytes and a name of 40, as `fs_mark` makes them.
const ENTRY_BYTES: u32 = 48;

/// The entries for itself and for its parent, in the first block of a directory.
const DOTS_BYTES: u32 = 24;

/// The number of a directory as a file. Files of programs have the lowest numbers.
fn as_file(directory: u32) -> FileId {
    FileId(u32::MAX - directory)
}

pub(super) fn is_directory(file: FileId) -> bool {
    file.0 > u32::MAX - DIRECTORIES_MAX
}

/// Entries of a directory.
#[derive(Debug)]
struct Entries {
    blocks: u64,
    /// Room in the last block.
    room: u32,
}

/// The directories, and the inode bitmaps in memory.
#[derive(Debug)]
pub(super) struct Directories {
    all: Vec<Entries>,
    inode_bitmaps: Vec<bool>,
}

impl Directories {
    pub(super) fn new(groups: u32, in_memory: bool) -> Self {
        Self { all: Vec::new(), inode_bitmaps: vec![in_memory; groups as usize] }
    }

    pub(super) fn inode_bitmap_read(&mut self, group: u32) {
        self.inode_bitmaps[group as usize] = true;
    }
}

impl Ext3Config {
    /// Checks that so many files and directories have inodes.
    pub(in crate::fs) fn check_files(
        &self,
        device_sectors: u64,
        files: u64,
        directories: u32,
    ) -> Result<(), String> {
        let groups = Groups::new(self, device_sectors)?;
        let of = |group| groups.inodes(group).1 - groups.inodes(group).0;
        let inodes: u64 = (0..groups.groups).map(|group| u64::from(of(group))).sum();
        if directories > DIRECTORIES_MAX {
            let most = DIRECTORIES_MAX;
            return Err(format!("{directories} directories are too many: {most} at most"));
        }
        let of_directories = of(self.directory_group);
        if directories > of_directories {
            return Err(format!(
                "the program has {directories} directories, but the group of directories has \
                 {of_directories} inodes here: have fewer, or raise group_inodes"
            ));
        }
        if files + u64::from(directories) > inodes {
            return Err(format!(
                "the program creates {files} files, but ext3 has {inodes} inodes here: create \
                 fewer files, raise group_inodes, or make the device larger"
            ));
        }
        Ok(())
    }
}

impl Ext3 {
    /// Defines empty directories up to this number. Their bitmaps are read as those of others.
    pub(super) fn make_directories_until(&mut self, count: u32) {
        let have = self.directories.all.len() as u32;
        let running = std::mem::take(&mut self.running);
        for number in have..count {
            let id = as_file(number);
            self.insert(id, self.config.directory_group);
            self.allocate(id, 0..1);
            self.give_up_window(id);
            let room = (BLOCK_BYTES as u32 - DOTS_BYTES) / ENTRY_BYTES;
            self.directories.all.push(Entries { blocks: 1, room });
        }
        self.running = running;
        if have < count && self.config.read_bitmaps {
            self.blocks.forget_bitmaps();
        }
    }

    /// A directory allocates without a reservation.
    fn give_up_window(&mut self, directory: FileId) {
        let file = self.files.get_mut(&directory).expect("it was made");
        self.blocks.discard(&mut file.window, self.config.window_blocks_min);
    }

    /// Adds a new file to a directory.
    pub(super) fn try_add(&mut self, file: FileId, directory: u32) -> Result<(), Needs> {
        let group = self.group_of_next_inode(file);
        let inode_bitmap = self.groups.inode_bitmap(group);
        if !self.directories.inode_bitmaps[group as usize] {
            return Err(Needs::Metadata(u64::from(inode_bitmap) * BLOCK_SECTORS));
        }
        let id = as_file(directory);
        let entries = &self.directories.all[directory as usize];
        let directory_inode = self.files[&id].inode;
        let pages = self.files[&id].pointers.pages();
        let inode = self.groups.inode(group, self.inodes[group as usize]);
        let entry = pages[entries.blocks as usize - 1];
        let changes = [inode, inode_bitmap, self.groups.descriptor(group), directory_inode, entry];
        if self.config.writes_wait && changes.iter().any(|block| self.must_wait(*block)) {
            return Err(Needs::Copies);
        }
        if entries.room == 0 {
            self.extend_directory(directory)?;
        }
        let entries = &mut self.directories.all[directory as usize];
        entries.room -= 1;
        let entry = self.files[&id].pointers.pages()[entries.blocks as usize - 1];
        self.insert(file, group);
        self.running.metadata.extend([entry, directory_inode]);
        let new = self.files.get_mut(&file).expect("just inserted");
        new.closes = true;
        Ok(())
    }

    /// Whether a change of a block waits for its copy in the journal.
    fn must_wait(&self, block: u32) -> bool {
        self.copied.contains(&block) && !self.running.metadata.contains(&block)
    }

    /// Adds a block to a directory.
    fn extend_directory(&mut self, directory: u32) -> Result<(), Needs> {
        let id = as_file(directory);
        let next = self.directories.all[directory as usize].blocks;
        self.try_allocate(id, next..next + 1).map_err(|unread| {
            Needs::Metadata(u64::from(self.groups.block_bitmap(unread)) * BLOCK_SECTORS)
        })?;
        self.give_up_window(id);
        let entries = &mut self.directories.all[directory as usize];
        entries.blocks += 1;
        entries.room = BLOCK_BYTES as u32 / ENTRY_BYTES;
        Ok(())
    }
}
