//! Bios in flight. Their numbers travel through the queue and are reused.

use std::collections::BTreeMap;

use blockyard_engine::bio::Op;
use blockyard_workload::program::FileId;

use crate::cache::PAGE_SECTORS;
use crate::fs::Extent;

/// A bio to be submitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Out {
    pub(super) op: Op,
    pub(super) sector: u64,
    pub(super) sectors: u32,
    pub(super) mark: Mark,
    pub(super) preflush: bool,
    pub(super) fua: bool,
    pub(super) purpose: Purpose,
}

/// Flags of a bio for the elevator. Reads need none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// No task waits for it (`WRITE`).
    Async,
    /// A task waits for it (`WRITE_ODIRECT`).
    Sync,
    /// Somebody waits, and no further write is announced (`WRITE_SYNC`).
    SyncNoidle,
}

/// Purpose of a bio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Purpose {
    /// Reads pages into memory.
    Pages { file: FileId, page: u64, pages: u64 },
    /// Writes pages back.
    WriteBack { file: FileId, page: u64, pages: u64, number: u64 },
    /// Reads a block of metadata.
    Metadata { sector: u64 },
    /// Part of a commit.
    Commit,
    /// Part of a direct operation.
    Direct { id: u32 },
}

/// A bio in the queue or the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub(super) thread: u32,
    pub(super) purpose: Purpose,
    pub(super) bytes: u64,
}

#[derive(Debug, Default)]
pub(super) struct InFlights {
    slots: Vec<Option<InFlight>>,
    free: Vec<u64>,
}

impl InFlights {
    pub(super) fn insert(&mut self, bio: InFlight) -> u64 {
        match self.free.pop() {
            Some(number) => {
                self.slots[number as usize] = Some(bio);
                number
            }
            None => {
                self.slots.push(Some(bio));
                self.slots.len() as u64 - 1
            }
        }
    }

    /// The thread that has submitted a bio.
    pub(super) fn thread(&self, number: u64) -> u32 {
        self.slots[number as usize].expect("the bio has not ended").thread
    }

    /// Length of a bio.
    pub(super) fn bytes(&self, number: u64) -> u64 {
        self.slots[number as usize].map_or(0, |bio| bio.bytes)
    }

    /// # Panics
    /// The bio does not exist: it has ended twice.
    pub(super) fn remove(&mut self, number: u64) -> InFlight {
        self.free.push(number);
        self.slots[number as usize].take().expect("a bio ends once")
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// Write-back submitted up to a moment; later write-back is not awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WritesUpTo(pub(super) u64);

/// Write-back in flight by file, numbered in the order of its start.
#[derive(Debug, Default)]
pub(super) struct WriteBacks {
    /// Number of remaining bios of each extent.
    running: BTreeMap<FileId, BTreeMap<u64, u64>>,
    begun: u64,
}

impl WriteBacks {
    /// Starts to write an extent with bios of this maximum length; returns its number.
    pub(super) fn begin(&mut self, file: FileId, extent: Extent, bio_sectors: u32) -> u64 {
        self.begun += 1;
        let bios = extent.pages.div_ceil(u64::from(bio_sectors) / PAGE_SECTORS);
        self.running.entry(file).or_default().insert(self.begun, bios);
        self.begun
    }

    pub(super) fn end_bio(&mut self, file: FileId, number: u64) {
        let running = self.running.get_mut(&file).expect("the file is being written");
        let bios = running.get_mut(&number).expect("the extent is being written");
        *bios -= 1;
        if *bios == 0 {
            running.remove(&number);
        }
    }

    /// All write-back started so far.
    pub(super) fn so_far(&self) -> WritesUpTo {
        WritesUpTo(self.begun)
    }

    /// A file of which some write-back up to a moment is in flight.
    pub(super) fn running(&self, writes: WritesUpTo) -> Option<FileId> {
        self.running.keys().copied().find(|file| self.are_running(*file, writes))
    }

    /// Whether some of a file's write-back up to a moment is in flight.
    pub(super) fn are_running(&self, file: FileId, writes: WritesUpTo) -> bool {
        let oldest = self.running.get(&file).and_then(|running| running.keys().next());
        oldest.is_some_and(|oldest| *oldest <= writes.0)
    }
}
