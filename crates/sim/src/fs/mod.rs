//! File systems: where the pages of files lie on the device, and what a commit writes.
//!
//! Plain data without time and without bytes. The world calls [`FileSystem::write`] when a task
//! writes, [`FileSystem::place`] when the page cache writes back, [`FileSystem::map`] when it
//! reads, and [`FileSystem::commit`] for an `fsync` and every [`FsConfig::commit_interval`]; it
//! makes the bios. A block is a page of 4 KiB, a sector has 512 bytes.
//!
//! Two of them: [`ext3`], which allocates at `write()` and overwrites in place behind a journal,
//! and [`log`], which allocates at write-back and only ever writes at the head of its log. Neither
//! reads metadata: indirect blocks, inodes and tables are taken to be in memory, which leaves out
//! the read of an indirect block before the first of its 1,024 pages.

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

/// Pages of a file that lie side by side on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First page of the file.
    pub page: u64,
    /// Where it starts.
    pub sector: u64,
    /// How many.
    pub pages: u64,
}

/// What a commit has to do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Files whose dirty data must be on the device before the first step (ordered mode), sorted.
    pub data_first: Vec<FileId>,
    /// Each waits for all writes of the one before.
    pub steps: Vec<CommitStep>,
}

/// Writes of a commit that go together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitStep {
    /// First sector and length in sectors of each.
    pub writes: Vec<(u64, u32)>,
    /// The device's cache is written out before.
    pub preflush: bool,
    /// They are on the medium when they end.
    pub fua: bool,
}

/// A file system. Files are in one directory.
pub trait FileSystem: Debug {
    /// The file is empty now; what it had is free. Metadata is dirty.
    fn create(&mut self, file: FileId);

    /// The file has been there since always, this long, as if it had been written in one go; what
    /// it had is free. No metadata is dirty.
    fn layout(&mut self, file: FileId, pages: u64);

    /// A `write()` to these pages: metadata is dirty, and ext3 allocates.
    ///
    /// # Panics
    /// When the device is full: see [`FsConfig::check`].
    fn write(&mut self, file: FileId, pages: Range<u64>);

    /// Where write-back of these pages goes, in the order of pages, appended to `out`; every page
    /// has been written. A log allocates here.
    ///
    /// # Panics
    /// When a page has not been written, or the device is full: see [`FsConfig::check`].
    fn place(&mut self, file: FileId, pages: Range<u64>, out: &mut Vec<Extent>);

    /// Where these pages are, in the order of pages, appended to `out`; without those that are
    /// nowhere.
    fn map(&self, file: FileId, pages: Range<u64>, out: &mut Vec<Extent>);

    /// Length of the file.
    fn file_pages(&self, file: FileId) -> u64;

    /// Closes the running transaction, if there is anything in it.
    fn commit(&mut self) -> Option<Commit>;
}

/// A file system before it is on a device.
#[derive(Clone, Copy, Debug)]
pub enum FsConfig {
    /// Block groups and a journal.
    Ext3(Ext3Config),
    /// A log.
    Log(LogConfig),
}

impl FsConfig {
    /// The file system, empty, on a device of this size.
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

    /// Whether the parameters make sense, and files of this length together fit on a device of this
    /// size.
    ///
    /// # Errors
    /// Says what is wrong, with the numbers.
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

    /// How often the world has to commit on its own.
    #[must_use]
    pub fn commit_interval(&self) -> Nanos {
        match self {
            Self::Ext3(config) => config.commit_interval,
            Self::Log(config) => config.commit_interval,
        }
    }
}

/// Appends where these pages of a file are; `blocks` is all its blocks, 0 where there is none.
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
            // A hole may be inside: its pages have block 0, which no page can follow.
            _ => {
                out.extend(last.take());
                last = (block != 0).then_some(Extent { page, sector, pages: 1 });
            }
        }
    }
    out.extend(last);
}

/// Whether a parameter is allowed.
fn within(name: &str, value: u32, min: u32, max: u32) -> Result<(), String> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(format!("{name} is {value}: it has to be from {min} to {max}"))
}
