//! Data mode: the content of a device's medium and volatile cache, as one stamp per sector.
//!
//! A stamp identifies the bio that wrote the sector, and so its writer and generation; no bytes
//! move. Each sector has its durable stamp and the writes that no flush has covered:
//!
//! ```text
//!              durable   in the cache, oldest first
//!   sector 7 │  #12    │  #15  #31                   read now: #31
//!                         └ a flush that began here makes #15 the durable one
//!   power cut: #12, #15 or #31, for each sector by itself
//! ```
//! This is the weakest device that keeps its promises: it may destage in any order, or never.
//! Writes in flight at a power cut may be partly written. A FUA write is durable at its end;
//! without a volatile cache every write is. If a volume spans several devices, each has its own
//! cache, and a flush reaches one of them.
//! a cache of its own, and a flush reaches one of them.

use std::collections::{BTreeMap, VecDeque};

use blockyard_workload::random::Random;

/// Writer of a sector: the number of a bio, from one; zero is the initial content.
pub type Stamp = u32;

/// Sectors stored together.
const CHUNK: u64 = 64;

/// Number of a write, in the order of effect.
pub type WriteNumber = u64;

/// One sector.
#[derive(Clone, Debug, Default)]
struct Cell {
    durable: Stamp,
    /// The durable stamp before the current one.
    older: Stamp,
    /// Later writes, oldest first.
    cached: Vec<(WriteNumber, Stamp)>,
}

impl Cell {
    fn settle(&mut self, stable: WriteNumber) {
        let count = self.cached.iter().take_while(|(number, _)| *number <= stable).count();
        for (_, stamp) in self.cached.drain(..count) {
            self.older = std::mem::replace(&mut self.durable, stamp);
        }
    }

    fn newest(&self) -> Stamp {
        self.cached.last().map_or(self.durable, |(_, stamp)| *stamp)
    }
}

/// The volatile cache of one device.
#[derive(Clone, Debug, Default)]
struct Cache {
    /// Writes up to this one are durable.
    stable: WriteNumber,
    /// The other writes, oldest first.
    unstable: VecDeque<WriteNumber>,
}

/// The content of a device, or of several devices of one volume.
#[derive(Debug)]
pub struct Stamps {
    volatile: bool,
    /// The device of each sector; missing ones are on the first.
    owners: Vec<u16>,
    /// Caches by device.
    caches: Vec<Cache>,
    /// By first sector divided by [`CHUNK`]; missing chunks equal `untouched`.
    chunks: BTreeMap<u64, Vec<Cell>>,
    untouched: Cell,
    written: WriteNumber,
}

impl Stamps {
    /// Untouched devices, with or without volatile caches. `owners` gives the device of each
    /// sector; without it there is one device.
    #[must_use]
    pub fn new(volatile: bool, owners: Vec<u16>) -> Self {
        let last = owners.iter().max().map_or(0, |last| usize::from(*last));
        let caches = vec![Cache::default(); last + 1];
        let chunks = BTreeMap::new();
        let untouched = Cell::default();
        Self { volatile, owners, caches, chunks, untouched, written: 0 }
    }

    fn owner(&self, sector: u64) -> usize {
        let sector = usize::try_from(sector).expect("an address");
        self.owners.get(sector).copied().unwrap_or(0).into()
    }

    fn cell(&mut self, sector: u64) -> &mut Cell {
        let chunk = self.chunks.entry(sector / CHUNK);
        let chunk = chunk.or_insert_with(|| vec![self.untouched.clone(); CHUNK as usize]);
        &mut chunk[(sector % CHUNK) as usize]
    }

    /// A write takes effect on one device.
    pub fn write(&mut self, sector: u64, sectors: u64, stamp: Stamp, fua: bool) -> WriteNumber {
        self.written += 1;
        let owner = self.owner(sector);
        let stable = self.caches[owner].stable;
        let number = self.written;
        let durable = fua || !self.volatile;
        if !durable {
            self.caches[owner].unstable.push_back(number);
        }
        for sector in sector..sector + sectors {
            let cell = self.cell(sector);
            cell.settle(stable);
            cell.cached.push((number, stamp));
            if durable {
                cell.settle(number);
            }
        }
        number
    }

    fn found(&self, sector: u64) -> &Cell {
        let chunk = self.chunks.get(&(sector / CHUNK));
        chunk.map_or(&self.untouched, |chunk| &chunk[(sector % CHUNK) as usize])
    }

    /// The stamp that a read finds in a sector.
    #[must_use]
    pub fn read(&self, sector: u64) -> Stamp {
        self.found(sector).newest()
    }

    /// The oldest stamp that a power cut may leave in a sector.
    #[must_use]
    pub fn durable(&self, sector: u64) -> Stamp {
        let cell = self.found(sector);
        let stable = self.caches[self.owner(sector)].stable;
        let settled = cell.cached.iter().rfind(|(number, _)| *number <= stable);
        settled.map_or(cell.durable, |(_, stamp)| *stamp)
    }

    /// The stamp of a sector before its current one; for canaries.
    #[must_use]
    pub fn read_older(&self, sector: u64) -> Stamp {
        let cell = self.found(sector);
        match cell.cached.len() {
            0 => cell.older,
            1 => cell.durable,
            len => cell.cached[len - 2].1,
        }
    }

    /// The last write so far: a flush that starts now covers it.
    #[must_use]
    pub fn written(&self) -> WriteNumber {
        self.written
    }

    /// A flush of this device ended; `covers` was the last write at its start.
    pub fn flushed(&mut self, device: u16, covers: WriteNumber) {
        let Cache { stable, unstable } = &mut self.caches[usize::from(device)];
        *stable = (*stable).max(covers);
        while unstable.pop_front_if(|number| *number <= covers).is_some() {}
    }

    /// Whether these first writes are durable, on all devices.
    #[must_use]
    pub fn is_durable(&self, number: WriteNumber) -> bool {
        let first = |cache: &Cache| cache.unstable.front().copied();
        self.caches.iter().filter_map(first).all(|first| first > number)
    }

    /// Cuts the power. Each sector keeps its durable stamp or any later one; returns the number of
    /// sectors that lost their newest.
    pub fn power_cut(&mut self, random: &mut Random) -> u64 {
        let Self { chunks, caches, owners, .. } = self;
        let mut lost = 0;
        let sectors = |(chunk, cells): (&u64, _)| (chunk * CHUNK..).zip(cells);
        for (sector, cell) in chunks.iter_mut().flat_map(sectors) {
            let owner = owners.get(sector as usize).copied().unwrap_or(0);
            cell.settle(caches[usize::from(owner)].stable);
            if !cell.cached.is_empty() {
                let kept = random.below(cell.cached.len() as u64 + 1) as usize;
                lost += u64::from(kept < cell.cached.len());
                cell.cached.truncate(kept);
                cell.settle(WriteNumber::MAX);
            }
        }
        caches.fill(Cache { stable: self.written, unstable: VecDeque::new() });
        lost
    }

    /// A power cut that reverts some durable sectors; for canaries.
    pub fn lose_durable(&mut self, random: &mut Random) {
        for cell in self.chunks.values_mut().flatten() {
            if random.below(4) == 0 {
                cell.durable = cell.older;
            }
        }
    }

    /// The sectors around all writes, with the stamps that a read finds.
    pub fn sectors(&self) -> impl Iterator<Item = (u64, Stamp)> {
        self.chunks.iter().flat_map(|(chunk, cells)| {
            let sector = move |place: usize| chunk * CHUNK + place as u64;
            cells.iter().enumerate().map(move |(place, cell)| (sector(place), cell.newest()))
        })
    }

    /// Attributes the current content to this bio, as durable.
    pub fn adopt(&mut self, stamp: Stamp) {
        self.chunks.clear();
        self.untouched = Cell { durable: stamp, older: stamp, cached: Vec::new() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stamps that a power cut may leave in sector 7.
    fn survivors(stamps: impl Fn() -> Stamps) -> Vec<Stamp> {
        let mut found: Vec<Stamp> = (0..100)
            .map(|seed| {
                let mut stamps = stamps();
                stamps.power_cut(&mut Random::new(seed, 0));
                stamps.read(7)
            })
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    #[test]
    fn power_cut_leaves_the_durable_write_or_any_later_one() {
        let written = || {
            let mut stamps = Stamps::new(true, Vec::new());
            stamps.write(0, 16, 1, false);
            let covers = stamps.written();
            stamps.write(4, 8, 2, false);
            stamps.flushed(0, covers);
            stamps.write(7, 1, 3, false);
            stamps
        };
        assert_eq!(written().read(7), 3);
        assert_eq!(survivors(written), [1, 2, 3]);
        assert!(written().is_durable(1) && !written().is_durable(2));
    }

    #[test]
    fn fua_write_survives_and_so_does_every_write_without_a_cache() {
        let written = |volatile, fua| {
            let mut stamps = Stamps::new(volatile, Vec::new());
            stamps.write(7, 1, 1, false);
            stamps.write(7, 1, 2, fua);
            stamps
        };
        assert_eq!(survivors(|| written(true, true)), [2]);
        assert_eq!(survivors(|| written(false, false)), [2]);
        assert_eq!(survivors(|| written(true, false)), [0, 1, 2]);
    }

    #[test]
    fn sectors_of_one_write_may_be_torn_apart() {
        let torn = (0..100).any(|seed| {
            let mut stamps = Stamps::new(true, Vec::new());
            stamps.write(0, 2, 1, false);
            stamps.power_cut(&mut Random::new(seed, 0));
            stamps.read(0) != stamps.read(1)
        });
        assert!(torn);
    }

    #[test]
    fn flush_of_one_device_leaves_the_writes_of_the_other_in_its_cache() {
        let written = |device| {
            let mut stamps = Stamps::new(true, vec![0, 0, 0, 0, 1, 1, 1, 1]);
            stamps.write(0, 4, 1, false);
            stamps.write(4, 4, 1, false);
            stamps.flushed(device, stamps.written());
            stamps
        };
        assert_eq!(survivors(|| written(0)), [0, 1]);
        assert_eq!(survivors(|| written(1)), [1]);
        assert_eq!((written(0).durable(0), written(0).durable(7)), (1, 0));
        assert!(written(0).is_durable(1) && !written(0).is_durable(2));
        assert!(!written(1).is_durable(1));
    }
}
