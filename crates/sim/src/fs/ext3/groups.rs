//! Block groups: positions of bitmaps and inodes.
//!
//! ```text
//!   group 0   | S | d d .. | b | i | t t t .. | data ..      S super block, d group descriptors
//!   group n                | b | i | t t t .. | data ..      b block bitmap, i inode bitmap,
//!                                                            t inode table
//! ```
//!
//! Copies of the super block and descriptors in other groups are left out. A last group too short
//! for its tables is unused.

use super::super::{BLOCK_SECTORS, within};
use super::Ext3Config;

/// Descriptors in a block: 32 bytes each.
const BLOCK_DESCRIPTORS: u32 = 128;

/// Inodes in a block: 256 bytes each, the default of `mke2fs` since 2008.
const BLOCK_INODES: u32 = 16;

/// Bits of a bitmap of one block.
const BITMAP_BITS: u32 = 32_768;

/// Reserved inodes of group 0.
const INODES_RESERVED: u32 = 11;

/// Largest file system in blocks: a little less than 16 TiB, so that block numbers have 32 bits.
const BLOCKS_MAX: u64 = u32::MAX as u64 - BITMAP_BITS as u64;

/// The groups of a file system.
#[derive(Clone, Copy, Debug)]
pub(super) struct Groups {
    /// Number of blocks in all groups.
    pub(super) blocks: u32,
    /// Number of blocks in each group except the last.
    pub(super) group_blocks: u32,
    /// Number of groups.
    pub(super) groups: u32,
    group_inodes: u32,
}

impl Groups {
    /// The groups of a device of this size.
    pub(super) fn new(config: &Ext3Config, device_sectors: u64) -> Result<Self, String> {
        let Ext3Config { group_blocks, group_inodes, .. } = *config;
        within("group_blocks", group_blocks, 64, BITMAP_BITS)?;
        within("group_inodes", group_inodes, BLOCK_INODES, BITMAP_BITS)?;
        let tables = 2 + group_inodes.div_ceil(BLOCK_INODES);
        if tables >= group_blocks {
            return Err(format!(
                "group_inodes is {group_inodes}: bitmaps and inode table have {tables} blocks, but \
                 group_blocks is {group_blocks}"
            ));
        }
        let blocks = device_sectors / BLOCK_SECTORS;
        if blocks > BLOCKS_MAX {
            return Err(format!(
                "a device of {device_sectors} sectors is too large for ext3: at most {}",
                BLOCKS_MAX * BLOCK_SECTORS
            ));
        }
        let rest = blocks as u32 % group_blocks;
        let blocks = blocks as u32 - if rest <= tables { rest } else { 0 };
        let groups = blocks.div_ceil(group_blocks);
        let new = Self { blocks, group_blocks, groups, group_inodes };
        if groups == 0 || new.group_data(0) >= blocks.min(group_blocks) {
            return Err(format!(
                "a device of {device_sectors} sectors is too small for a block group of ext3: its \
                 tables alone have {} sectors",
                u64::from(tables + 2) * BLOCK_SECTORS
            ));
        }
        Ok(new)
    }

    /// The group of a block.
    pub(super) fn of(&self, block: u32) -> u32 {
        block / self.group_blocks
    }

    /// First block of a group.
    pub(super) fn start(&self, group: u32) -> u32 {
        group * self.group_blocks
    }

    /// The block with its descriptor.
    pub(super) fn descriptor(&self, group: u32) -> u32 {
        1 + group / BLOCK_DESCRIPTORS
    }

    /// Its block bitmap.
    pub(super) fn block_bitmap(&self, group: u32) -> u32 {
        let behind = if group == 0 { 1 + self.groups.div_ceil(BLOCK_DESCRIPTORS) } else { 0 };
        self.start(group) + behind
    }

    /// Its inode bitmap.
    pub(super) fn inode_bitmap(&self, group: u32) -> u32 {
        self.block_bitmap(group) + 1
    }

    /// The block with the inode of this index in the group.
    pub(super) fn inode(&self, group: u32, index: u32) -> u32 {
        assert!(index < self.group_inodes);
        self.block_bitmap(group) + 2 + index / BLOCK_INODES
    }

    /// The first block after its tables.
    pub(super) fn group_data(&self, group: u32) -> u32 {
        self.block_bitmap(group) + 2 + self.group_inodes.div_ceil(BLOCK_INODES)
    }

    /// The first inode of a group for files, and the end of its inodes.
    pub(super) fn inodes(&self, group: u32) -> (u32, u32) {
        (if group == 0 { INODES_RESERVED } else { 0 }, self.group_inodes)
    }

    /// Number of blocks after the tables.
    pub(super) fn data_blocks(&self) -> u64 {
        let tables = |group| u64::from(self.group_data(group) - self.start(group));
        u64::from(self.blocks) - (0..self.groups).map(tables).sum::<u64>()
    }
}
