//! No file system: every file is the device itself.

use std::ops::Range;

use blockyard_engine::time::Nanos;
use blockyard_workload::program::FileId;

use super::{Commit, CommitStep, Creation, Extent, FileSystem, Needs, WaitingWrites};
use crate::cache::PAGE_SECTORS;

/// The device as a file; `fsync` flushes its cache.
#[derive(Debug)]
pub struct Raw {
    pages: u64,
    written: bool,
}

impl Raw {
    /// A device.
    #[must_use]
    pub fn new(device_sectors: u64) -> Self {
        Self { pages: device_sectors / PAGE_SECTORS, written: false }
    }

    fn extent(&self, pages: Range<u64>, out: &mut Vec<Extent>) {
        let end = pages.end.min(self.pages);
        if pages.start < end {
            let sector = pages.start * PAGE_SECTORS;
            out.push(Extent { page: pages.start, sector, pages: end - pages.start });
        }
    }
}

impl WaitingWrites for Raw {
    fn try_write(&mut self, _: Nanos, file: FileId, pages: Range<u64>) -> Result<(), Needs> {
        self.write(file, pages);
        Ok(())
    }
}

impl Creation for Raw {
    fn create(&mut self, _: FileId) {}
}

impl FileSystem for Raw {
    fn layout(&mut self, _: FileId, _: u64) {}

    fn write(&mut self, _: FileId, pages: Range<u64>) {
        assert!(pages.end <= self.pages, "a write is within the device");
        self.written = true;
    }

    fn place(&mut self, _: FileId, pages: Range<u64>, out: &mut Vec<Extent>) {
        self.extent(pages, out);
    }

    fn map(&self, _: FileId, pages: Range<u64>, out: &mut Vec<Extent>) {
        self.extent(pages, out);
    }

    fn file_pages(&self, _: FileId) -> u64 {
        self.pages
    }

    fn commit(&mut self) -> Option<Commit> {
        let flush = CommitStep { writes: Vec::new(), preflush: true, fua: false };
        std::mem::take(&mut self.written)
            .then(|| Commit { data_first: Vec::new(), steps: vec![flush] })
    }
}
