//! The disk of a world of ranges: cells with the request that wrote them last.

use std::ops::Range;

use blockyard_workload::random::Random;

/// Unit of the contents: half of the smallest sector, so that a sector has parts.
pub(super) const CELL_BYTES: u64 = 256;

/// The request that wrote a cell.
pub(super) type Stamp = u32;
/// Stands for a stamp: the cell was read during a write of its sector.
pub(super) const GARBAGE: Stamp = Stamp::MAX;

/// A read or a write in flight.
#[derive(Debug)]
pub(super) struct Io {
    /// Its claim.
    pub(super) user: u64,
    pub(super) cells: Range<usize>,
    pub(super) is_write: bool,
    /// One stamp per cell: to be written, or read so far.
    pub(super) stamps: Vec<Stamp>,
    /// Number of done cells.
    done: usize,
    /// The next sector is being written.
    is_torn: bool,
}

/// Result of a step of the disk.
pub(super) struct Step {
    /// Written cells.
    pub(super) written: Range<usize>,
    /// The operation, if this step was its last.
    pub(super) ended: Option<Io>,
}

/// Executes reads and writes in any order, sector by sector.
pub(super) struct Disk {
    pub(super) cells: Vec<Stamp>,
    pub(super) sector_cells: usize,
    /// A sector cannot be read while it is written: each write takes two steps.
    pub(super) tears: bool,
    /// Number of writes in progress of each sector.
    being_written: Vec<u32>,
    ios: Vec<Io>,
}

impl Disk {
    pub(super) fn new(cells: usize, sector_cells: usize, tears: bool) -> Self {
        let being_written = vec![0; cells / sector_cells];
        Self { cells: vec![0; cells], sector_cells, tears, being_written, ios: Vec::new() }
    }

    pub(super) fn read(&mut self, user: u64, cells: Range<usize>) {
        let stamps = Vec::with_capacity(cells.len());
        self.ios.push(Io { user, cells, is_write: false, stamps, done: 0, is_torn: false });
    }

    pub(super) fn write(&mut self, user: u64, first: usize, stamps: Vec<Stamp>) {
        let cells = first..first + stamps.len();
        self.ios.push(Io { user, cells, is_write: true, stamps, done: 0, is_torn: false });
    }

    pub(super) fn is_idle(&self) -> bool {
        self.ios.is_empty()
    }

    /// Whether an operation of one of these claims is in flight.
    pub(super) fn has_io_of(&self, of: impl Fn(u64) -> bool) -> bool {
        self.ios.iter().any(|io| of(io.user))
    }

    /// Executes one sector, or the read part of it, of a random operation in flight.
    pub(super) fn step(&mut self, random: &mut Random) -> Step {
        let index = random.below(self.ios.len() as u64) as usize;
        let io = &mut self.ios[index];
        let at = io.cells.start + io.done;
        let sector = at / self.sector_cells;
        let end = io.cells.end.min((sector + 1) * self.sector_cells);
        let mut written = at..at;
        if io.is_write && self.tears && !io.is_torn {
            io.is_torn = true;
            self.being_written[sector] += 1;
            return Step { written, ended: None };
        }
        if io.is_write {
            if std::mem::take(&mut io.is_torn) {
                self.being_written[sector] -= 1;
            }
            self.cells[at..end].copy_from_slice(&io.stamps[io.done..][..end - at]);
            written = at..end;
        } else if self.being_written[sector] > 0 {
            io.stamps.extend((at..end).map(|_| GARBAGE));
        } else {
            io.stamps.extend_from_slice(&self.cells[at..end]);
        }
        io.done += end - at;
        let has_ended = io.done == io.cells.len();
        Step { written, ended: has_ended.then(|| self.ios.swap_remove(index)) }
    }
}
