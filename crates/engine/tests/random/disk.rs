//! A disk in memory that remembers which bio wrote each sector, and what a reader may find there.
//!
//! A read may return a write that had not ended when the read was submitted, or the last one that
//! had. "The last" is not always one: of two writes that overlapped in time either may stay. So a
//! found write is wrong only if another one was submitted after it had ended, and ended before the
//! read was submitted.
//!
//! The cache is volatile. A flush makes stable what had been written when the disk got it; a FUA
//! write is stable when it ends.

/// Sectors. Few, so that bios meet.
pub(crate) const SECTORS: u64 = 1024;

/// When something happened: steps of the world, which starts at 1.
pub(crate) type Step = u64;

/// A write that has not ended.
pub(crate) const NEVER: Step = Step::MAX;

pub(crate) struct Disk {
    /// By sector: number of the bio that wrote it, counted from one.
    content: Vec<usize>,
    /// By sector: latest submission of a write that has ended.
    submitted: Vec<Step>,
    /// Writes done so far.
    writes: u64,
    /// Writes that are stable for sure.
    stable: u64,
}

fn places(sector: u64, len: u64) -> std::ops::Range<usize> {
    assert!(sector + len <= SECTORS, "the world stays on the disk");
    sector as usize..(sector + len) as usize
}

impl Disk {
    pub(crate) fn new() -> Self {
        let sectors = SECTORS as usize;
        Self { content: vec![0; sectors], submitted: vec![0; sectors], writes: 0, stable: 0 }
    }

    /// Writes and says how many writes there have been.
    pub(crate) fn write(&mut self, sector: u64, len: u64, bio: usize) -> u64 {
        self.content[places(sector, len)].fill(bio + 1);
        self.writes += 1;
        self.writes
    }

    /// The bio that wrote each sector, or nothing.
    pub(crate) fn read(&self, sector: u64, len: u64) -> impl Iterator<Item = Option<usize>> {
        self.content[places(sector, len)].iter().map(|number| number.checked_sub(1))
    }

    /// A write has ended: who reads from now on finds it, or something submitted later than it.
    pub(crate) fn acknowledge(&mut self, sector: u64, len: u64, submitted: Step) {
        for latest in &mut self.submitted[places(sector, len)] {
            *latest = submitted.max(*latest);
        }
    }

    /// What a read that is submitted now must find, by sector: nothing that ended before this.
    pub(crate) fn expectation(&self, sector: u64, len: u64) -> &[Step] {
        &self.submitted[places(sector, len)]
    }

    /// What a flush that is issued now will make stable.
    pub(crate) fn writes(&self) -> u64 {
        self.writes
    }

    pub(crate) fn flushed(&mut self, writes: u64) {
        self.stable = writes.max(self.stable);
    }

    /// Whether these first writes are stable.
    pub(crate) fn is_stable(&self, writes: u64) -> bool {
        writes <= self.stable
    }
}
