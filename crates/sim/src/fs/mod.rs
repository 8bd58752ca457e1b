//! File systems: positions of files' pages on the device, and the writes of a commit.
//!
//! Plain data without time or contents. The world calls [`FileSystem::write`] when a task writes,
//! [`FileSystem::place`] when the page cache writes back, [`FileSystem::map`] when it reads, and
//! [`FileSystem::commit`] for an `fsync` and every [`FsConfig::commit_interval`]; the world builds
//! the bios. A block is a page of 4 KiB, a sector has 512 bytes.
//!
//! There are two: [`ext3`], which allocates at `write()` and overwrites in place behind a journal,
//! and [`log`], which allocates at write-back and writes only at the head of its log. Of
//! metadata, ext3 reads the bitmaps of its groups; indirect blocks, inodes and tables count as
//! cached, so the read of an indirect block before the first of its 1,024 pages is left out.

mod blocks;
pub mod ext3;
mod journal;
pub mod log;
pub mod raw;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::ops::Range;

use blockyard_engine::time::Nanos;
use blockyard_workload::program::FileId;

use ext3::{Ext3, Ext3Config};
use log::{Log, LogConfig};

/// Sectors of a block, which is also a page.
const BLOCK_SECTORS: u64 = 8;

/// Bytes of a block.
const BLOCK_BYTES: u64 = 4096;

/// Pages of a file that are contiguous on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First page of the file.
    pub page: u64,
    /// First sector.
    pub sector: u64,
    /// Number of pages.
    pub pages: u64,
}

impl Extent {
    /// The block after its last.
    pub(crate) fn end_block(&self) -> u64 {
        self.sector / BLOCK_SECTORS + self.pages
    }
}

/// Actions of a commit, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Files whose dirty data must be on the device before the first step (ordered mode), sorted.
    pub data_first: Vec<FileId>,
    /// Steps; each waits for all writes of the previous one.
    pub steps: Vec<CommitStep>,
}

/// Writes of one step of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitStep {
    /// First sector and length in sectors of each.
    pub writes: Vec<(u64, u32)>,
    /// A flush of the device's cache precedes them.
    pub preflush: bool,
    /// FUA: they are on the medium at their end.
    pub fua: bool,
}

/// The synchronous writes of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncRule {
    /// All that `fsync` writes, and all of a commit for which somebody waits (`WRITE_SYNC`).
    EachWrite,
    /// The last of each partial segment, regardless of waiters (`nilfs_segbuf_write`): one that
    /// ends with a segment of this many blocks, and the last of a commit.
    SegmentEnd {
        /// Blocks of a segment.
        blocks: u64,
    },
}

/// Reason for which a `write()` must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// The block of metadata at this sector must be read: [`WaitingWrites::metadata_read`].
    Metadata(u64),
    /// The journal is writing a block that the write changes: [`WaitingWrites::copies`].
    Copies,
}

/// Writes that may have to wait, and the ends of what they wait for.
pub trait WaitingWrites {
    /// A `write()` to these pages at a time, as [`FileSystem::write`]. If it must wait, the call is
    /// repeated afterwards.
    ///
    /// # Panics
    /// The device is full: see [`FsConfig::check`].
    ///
    /// # Errors
    /// The reason of the wait.
    fn try_write(&mut self, now: Nanos, file: FileId, pages: Range<u64>) -> Result<(), Needs>;

    /// A file is closed: nothing stays reserved for its next writes.
    fn close(&mut self, _file: FileId) {}

    /// The block of metadata at this sector is in memory.
    fn metadata_read(&mut self, _sector: u64) {}

    /// The journal begins to write the copies of a commit, or has written them: from the first step
    /// of the commit until its last step, the record.
    fn copies(&mut self, _are_written: bool) {}
}

/// The creation of files.
pub trait Creation {
    /// Creates a file, or truncates it to zero. Metadata is dirty.
    fn create(&mut self, file: FileId);

    /// Defines empty directories with the numbers from 0 to this. No metadata is dirty.
    fn make_directories(&mut self, _count: u32) {}

    /// As [`Creation::create`], in one of these directories; it may have to wait, and is repeated
    /// then.
    ///
    /// # Errors
    /// The reason of the wait.
    fn try_create(&mut self, file: FileId, _directory: u32) -> Result<(), Needs> {
        self.create(file);
        Ok(())
    }
}

/// A file system. Files are in one directory, but for those of [`Creation::try_create`].
pub trait FileSystem: Debug + WaitingWrites + Creation {
    /// Defines an existing file of this length, as if written sequentially; its former blocks are
    /// free. No metadata is dirty.
    fn layout(&mut self, file: FileId, pages: u64);

    /// A `write()` to these pages: metadata is dirty, and ext3 allocates.
    ///
    /// # Panics
    /// The device is full: see [`FsConfig::check`].
    fn write(&mut self, file: FileId, pages: Range<u64>);

    /// Appends the target positions of a write-back of these pages to `out`, in the order of pages;
    /// every page was written before. A log allocates here.
    ///
    /// # Panics
    /// A page was not written, or the device is full: see [`FsConfig::check`].
    fn place(&mut self, file: FileId, pages: Range<u64>, out: &mut Vec<Extent>);

    /// Appends the positions of these pages to `out`, in the order of pages, without unallocated
    /// ones.
    fn map(&self, file: FileId, pages: Range<u64>, out: &mut Vec<Extent>);

    /// Length of the file.
    fn file_pages(&self, file: FileId) -> u64;

    /// Its synchronous writes.
    fn sync_rule(&self) -> SyncRule {
        SyncRule::EachWrite
    }

    /// Closes the running transaction, unless it is empty.
    fn commit(&mut self) -> Option<Commit>;
}

/// Parameters of a file system.
#[derive(Clone, Copy, Debug)]
pub enum FsConfig {
    /// Block groups and a journal.
    Ext3(Ext3Config),
    /// A log.
    Log(LogConfig),
}

impl FsConfig {
    /// An empty file system on a device of this size.
    ///
    /// # Panics
    /// With the error of [`FsConfig::check`] for no bytes.
    #[must_use]
    pub fn build(&self, device_sectors: u64) -> Box<dyn FileSystem> {
        self.check(device_sectors, 0).unwrap_or_else(|error| panic!("{error}"));
        match self {
            Self::Ext3(config) => Box::new(Ext3::new(*config, device_sectors)),
            Self::Log(config) => Box::new(Log::new(*config, device_sectors)),
        }
    }

    /// Checks the parameters, and that files of this total length fit on a device of this size.
    ///
    /// # Errors
    /// The parameters are invalid or the files do not fit; the message has the numbers.
    pub fn check(&self, device_sectors: u64, needed_bytes: u64) -> Result<(), String> {
        let (name, capacity) = match self {
            Self::Ext3(config) => ("ext3", config.capacity_bytes(device_sectors)?),
            Self::Log(config) => ("log", config.capacity_bytes(device_sectors)?),
        };
        if needed_bytes > capacity {
            let device_bytes = device_sectors.saturating_mul(512);
            return Err(format!(
                "the files need {needed_bytes} bytes, but the {name} file system on a device of \
                 {device_bytes} bytes holds {capacity}: make the files smaller or the device larger"
            ));
        }
        Ok(())
    }

    /// Checks that so many files and directories fit on a device of this size.
    ///
    /// # Errors
    /// There are fewer inodes, or the directories are too many; the message has the numbers.
    pub fn check_files(
        &self,
        device_sectors: u64,
        files: u64,
        directories: u32,
    ) -> Result<(), String> {
        match self {
            Self::Ext3(config) => config.check_files(device_sectors, files, directories),
            Self::Log(_) => Ok(()),
        }
    }

    /// Interval of periodic commits.
    #[must_use]
    pub fn commit_interval(&self) -> Nanos {
        match self {
            Self::Ext3(config) => config.commit_interval,
            Self::Log(config) => config.commit_interval,
        }
    }
}

/// Appends the extents of these pages of a file; `blocks` has all its blocks, 0 for none.
fn extents(blocks: &[u32], pages: Range<u64>, out: &mut Vec<Extent>) {
    let end = pages.end.min(blocks.len() as u64);
    let mut last: Option<Extent> = None;
    for page in pages.start..end {
        let block = blocks[page as usize];
        let sector = u64::from(block) * BLOCK_SECTORS;
        match &mut last {
            Some(extent) if extent.sector + extent.pages * BLOCK_SECTORS == sector => {
                extent.pages += 1;
            }
            // It may contain holes: their pages have block 0, which no page can follow.
            _ => {
                out.extend(last.take());
                last = (block != 0).then_some(Extent { page, sector, pages: 1 });
            }
        }
    }
    out.extend(last);
}

/// Checks the range of a parameter.
fn within(name: &str, value: u32, min: u32, max: u32) -> Result<(), String> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(format!("{name} is {value}: it has to be from {min} to {max}"))
}
