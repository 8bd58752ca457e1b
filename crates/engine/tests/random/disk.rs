//! A disk in memory that remembers which bio wrote each sector, and the valid results of a read.
//!
//! A read may return a write in flight at the read's submission, or the last ended one. "The last"
//! is ambiguous: of two writes that overlapped in time either may remain. So a found write is wrong
//! only if another write was submitted after its end, and ended before the read was submitted.
//!
//! The cache is volatile. A flush makes stable all that had been written when the disk got it; a
//! FUA write is stable when it ends.

/// Number of sectors: few, so that bios overlap.
pub(crate) const SECTORS: u64 = 1024;

/// Time in steps of the world, which starts at 1.
pub(crate) type Step = u64;

/// End of a write in flight.
pub(crate) const NEVER: Step = Step::MAX;

pub(crate) struct Disk {
    /// By sector: number of its last bio, counted from one.
    content: Vec<usize>,
    /// By sector: latest submission of an ended write.
    submitted: Vec<Step>,
    /// Number of writes so far.
    writes: u64,
    /// Number of writes that are certainly stable.
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

    /// Writes, and returns the number of writes so far.
    pub(crate) fn write(&mut self, sector: u64, len: u64, bio: usize) -> u64 {
        self.content[places(sector, len)].fill(bio + 1);
        self.writes += 1;
        self.writes
    }

    /// The bio that wrote each sector, if any.
    pub(crate) fn read(&self, sector: u64, len: u64) -> impl Iterator<Item = Option<usize>> {
        self.content[places(sector, len)].iter().map(|number| number.checked_sub(1))
    }

    /// Notes the end of a write: later reads must find it, or one submitted later.
    pub(crate) fn acknowledge(&mut self, sector: u64, len: u64, submitted: Step) {
        for latest in &mut self.submitted[places(sector, len)] {
            *latest = submitted.max(*latest);
        }
    }

    /// By sector, the latest submission that a read submitted now must not miss.
    pub(crate) fn expectation(&self, sector: u64, len: u64) -> &[Step] {
        &self.submitted[places(sector, len)]
    }

    /// Number of writes that a flush issued now makes stable.
    pub(crate) fn writes(&self) -> u64 {
        self.writes
    }

    pub(crate) fn flushed(&mut self, writes: u64) {
        self.stable = writes.max(self.stable);
    }

    /// Whether the first `writes` writes are stable.
    pub(crate) fn is_stable(&self, writes: u64) -> bool {
        writes <= self.stable
    }
}
