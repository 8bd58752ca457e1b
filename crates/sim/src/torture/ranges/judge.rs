//! Judges the contents of cells by the start and acknowledgement of each write.
//!
//! A write is superseded in a cell once another write of that cell, started after its end, is
//! acknowledged. A superseded write must never return. Of two writes that overlap in time either
//! may persist.

use std::ops::Range;

use super::disk::{GARBAGE, Stamp};
use crate::oracle::{Finding, must};

/// A write, from its request to its end.
struct Write {
    began: u64,
    /// [`u64::MAX`] while in flight.
    ended: u64,
    cells: Range<usize>,
}

#[derive(Clone, Default)]
struct Cell {
    /// Start and stamp of the acknowledged write that began last; writes that ended before are
    /// superseded.
    latest: (u64, Stamp),
    /// Number of writes in flight.
    open: u32,
    /// End of the last write.
    last_end: u64,
}

/// The stamps that a read may find.
pub(super) struct Expected {
    began: u64,
    /// For each of its cells, see [`Cell::latest`].
    latest: Vec<(u64, Stamp)>,
}

/// The writes of all clients. Times are event numbers, so no two events coincide.
pub(super) struct Judge {
    /// By stamp. Number 0 is the initial content.
    writes: Vec<Write>,
    cells: Vec<Cell>,
}

impl Judge {
    pub(super) fn new(cells: usize) -> Self {
        let first = Write { began: 0, ended: 0, cells: 0..cells };
        Self { writes: vec![first], cells: vec![Cell::default(); cells] }
    }

    /// Notes the start of a client's write.
    pub(super) fn begin(&mut self, now: u64, cells: Range<usize>) -> Stamp {
        self.cells[cells.clone()].iter_mut().for_each(|cell| cell.open += 1);
        self.writes.push(Write { began: now, ended: u64::MAX, cells });
        Stamp::try_from(self.writes.len() - 1).expect("few writes")
    }

    /// Notes its acknowledgement, or the end of its connection without anything in flight.
    pub(super) fn end(&mut self, now: u64, stamp: Stamp, is_acknowledged: bool) {
        let write = &mut self.writes[stamp as usize];
        write.ended = now;
        for cell in &mut self.cells[write.cells.clone()] {
            cell.open -= 1;
            cell.last_end = now;
            if is_acknowledged {
                cell.latest = cell.latest.max((write.began, stamp));
            }
        }
    }

    /// Notes the start of a client's read.
    pub(super) fn begin_read(&self, now: u64, cells: Range<usize>) -> Expected {
        let latest = self.cells[cells].iter().map(|cell| cell.latest).collect();
        Expected { began: now, latest }
    }

    /// Judges the stamps of a read.
    pub(super) fn judge_read(
        &self,
        expected: &Expected,
        first: usize,
        stamps: &[Stamp],
    ) -> Result<(), Finding> {
        for ((place, &stamp), &latest) in (first..).zip(stamps).zip(&expected.latest) {
            let cell = &self.cells[place];
            // A read beside a write of the same cell may find anything.
            if stamp == GARBAGE && (cell.open > 0 || cell.last_end > expected.began) {
                continue;
            }
            self.judge(place, stamp, latest, "a read found")?;
        }
        Ok(())
    }

    /// Judges the disk's content.
    pub(super) fn judge_disk(&self, cells: Range<usize>, disk: &[Stamp]) -> Result<(), Finding> {
        cells.into_iter().try_for_each(|place| {
            self.judge(place, disk[place], self.cells[place].latest, "the disk holds")
        })
    }

    fn judge(
        &self,
        place: usize,
        stamp: Stamp,
        (began, by): (u64, Stamp),
        how: &str,
    ) -> Result<(), Finding> {
        must!(Data, stamp != GARBAGE, "{how} garbage in cell {place}, which no write covers");
        let write = &self.writes[stamp as usize];
        must!(
            Data,
            write.cells.contains(&place),
            "{how} write {stamp} in cell {place}, outside it"
        );
        let is_old = write.ended < began;
        must!(Data, !is_old, "{how} write {stamp} in cell {place} behind acknowledged write {by}");
        Ok(())
    }
}
