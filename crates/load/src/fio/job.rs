//! A job: what one section of a fio job file says.

use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;

/// Direction and order (`rw=`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rw {
    /// `read`: reads, one block after the other.
    #[default]
    Read,
    /// `write`.
    Write,
    /// `rw`: each block is read or written by lot, and reads and writes each follow each other.
    ReadWrite,
    /// `randread`: reads at random, each block once a pass.
    RandRead,
    /// `randwrite`.
    RandWrite,
    /// `randrw`: each block once a pass, read or written by lot.
    RandReadWrite,
}

impl Rw {
    /// All of them, in fio's order.
    pub const ALL: [Self; 6] = [
        Self::Read,
        Self::Write,
        Self::ReadWrite,
        Self::RandRead,
        Self::RandWrite,
        Self::RandReadWrite,
    ];

    /// As options say it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::ReadWrite => "rw",
            Self::RandRead => "randread",
            Self::RandWrite => "randwrite",
            Self::RandReadWrite => "randrw",
        }
    }

    /// Whether offsets are drawn.
    #[must_use]
    pub fn is_random(self) -> bool {
        matches!(self, Self::RandRead | Self::RandWrite | Self::RandReadWrite)
    }

    /// Whether some of it reads.
    #[must_use]
    pub fn reads(self) -> bool {
        !matches!(self, Self::Write | Self::RandWrite)
    }

    /// Whether some of it writes.
    #[must_use]
    pub fn writes(self) -> bool {
        !matches!(self, Self::Read | Self::RandRead)
    }
}

/// One section of a job file. What it does not say is as fio has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Of the section.
    pub name: String,
    /// `filename`: jobs and clones that name the same share the file. Without one each clone has a
    /// file of its own.
    pub filename: Option<String>,
    /// `rw`.
    pub rw: Rw,
    /// `rwmixread`: of a hundred blocks of a mix, how many are read.
    pub read_percent: u8,
    /// `bs`: length of each read and write.
    pub block_bytes: u64,
    /// `iodepth`: how many are in flight, of direct I/O; buffered I/O is one at a time.
    pub iodepth: u32,
    /// `numjobs`: clones; with [`Self::nodes`] so many on each.
    pub numjobs: u32,
    /// `numa_cpu_nodes`: sockets that the clones run on, those of the first first; empty is
    /// anywhere. (fio's own clones run on any of them, each.)
    pub nodes: Vec<u16>,
    /// `size`: length of the region that each clone works on, and of what it transfers in a pass.
    pub size_bytes: u64,
    /// `offset`: where the region starts in the file.
    pub offset_bytes: u64,
    /// `offset_increment`: the region of each clone starts so much behind the one before.
    pub offset_increment_bytes: u64,
    /// `divide` (ours): the region is cut into equal ones, in the clones' order; what is left over
    /// at its end belongs to none.
    pub divide: bool,
    /// `direct`: past the page cache, many in flight (`libaio`); else through it (`psync`).
    pub direct: bool,
    /// `overwrite`: the file is there, in full, before it is written.
    pub overwrite: bool,
    /// `fsync`: after so many writes; 0 is never.
    pub fsync_every: u32,
    /// `end_fsync`: once more behind the last write.
    pub end_fsync: bool,
    /// `norandommap`: random blocks are drawn anew each time, so that some come twice in a pass.
    pub norandommap: bool,
    /// `loops`: so many passes; `number_ios` is of each.
    pub loops: u32,
    /// `startdelay`: before the first block.
    pub start_delay: Nanos,
    /// `ramp_time`: so long it runs before anything counts; `runtime` comes on top.
    pub ramp_time: Nanos,
    /// `thinktime`: a pause after [`Self::thinktime_blocks`], with nothing in flight.
    pub thinktime: Nanos,
    /// `thinktime_blocks`.
    pub thinktime_blocks: u32,
    /// `rate`: no more bytes a second of each clone, of reads and of writes.
    pub rate_bytes_s: Option<u64>,
    /// `rate_iops`: the same in blocks. `rate` goes first.
    pub rate_iops: Option<u64>,
    /// `prioclass` and `prio`: `ionice` of the clones.
    pub priority: Priority,
    /// `number_ios`: no more than so many reads and writes of each clone.
    pub number_ios: Option<u64>,
    /// `runtime`: nothing is started after that.
    pub runtime: Option<Nanos>,
    /// `time_based`: pass after pass until `runtime` is over.
    pub time_based: bool,
    /// `randseed`: of offsets and lots. Clones draw differently.
    pub seed: u64,
    /// `stonewall`: starts when all jobs before it have ended.
    pub stonewall: bool,
}

impl Job {
    /// A job with fio's defaults; it needs a size.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            filename: None,
            rw: Rw::default(),
            read_percent: 50,
            block_bytes: 4096,
            iodepth: 1,
            numjobs: 1,
            nodes: Vec::new(),
            size_bytes: 0,
            offset_bytes: 0,
            offset_increment_bytes: 0,
            divide: false,
            direct: false,
            overwrite: false,
            fsync_every: 0,
            end_fsync: false,
            norandommap: false,
            loops: 1,
            start_delay: Nanos(0),
            ramp_time: Nanos(0),
            thinktime: Nanos(0),
            thinktime_blocks: 1,
            rate_bytes_s: None,
            rate_iops: None,
            priority: Priority::default(),
            number_ios: None,
            runtime: None,
            time_based: false,
            seed: 0,
            stonewall: false,
        }
    }

    /// How many clones it has, on all sockets.
    #[must_use]
    pub fn clones(&self) -> u32 {
        self.numjobs.saturating_mul(u32::try_from(self.nodes.len().max(1)).unwrap_or(u32::MAX))
    }

    /// Blocks of a pass of one clone.
    pub(crate) fn blocks(&self) -> u64 {
        let parts = if self.divide { u64::from(self.clones()) } else { 1 };
        self.size_bytes / self.block_bytes / parts
    }

    /// Where the region of a clone starts in its file.
    pub(crate) fn start_bytes(&self, clone: u32) -> u64 {
        let apart = if self.divide { self.blocks() * self.block_bytes } else { 0 };
        self.offset_bytes + u64::from(clone) * (apart + self.offset_increment_bytes)
    }

    /// Length that the file of a clone has at least.
    pub(crate) fn end_bytes(&self, clone: u32) -> u64 {
        let len_bytes = match self.divide {
            true => self.blocks() * self.block_bytes,
            false => self.size_bytes,
        };
        self.start_bytes(clone) + len_bytes
    }

    /// On which socket a clone runs.
    pub(crate) fn socket(&self, clone: u32) -> Option<u16> {
        self.nodes.get((clone / self.numjobs) as usize).copied()
    }

    /// Whether the file must be there in full. Sequential buffered writes make it as they go; fio
    /// allocates files ahead of all others (`fallocate=native`).
    pub(crate) fn wants_file(&self) -> bool {
        self.overwrite || self.direct || self.rw.reads() || self.rw.is_random()
    }

    /// Whether it can be run.
    ///
    /// # Errors
    /// When it cannot.
    pub fn check(&self) -> Result<(), JobError> {
        let refuse = |key: &str, problem: String| {
            Err(JobError { job: self.name.clone(), key: String::from(key), problem })
        };
        if self.block_bytes == 0 || !self.block_bytes.is_multiple_of(512) {
            return refuse("bs", "must be a multiple of 512 bytes, as in bs=4k".into());
        }
        if self.size_bytes < self.block_bytes {
            let text = format!("must be one block of {} bytes at least", self.block_bytes);
            return refuse("size", text + ", as in size=1g");
        }
        for (key, bytes) in
            [("offset", self.offset_bytes), ("offset_increment", self.offset_increment_bytes)]
        {
            if !bytes.is_multiple_of(512) {
                return refuse(key, "must be a multiple of 512 bytes".into());
            }
        }
        for (key, value, max) in [
            ("iodepth", self.iodepth, IODEPTH_MAX),
            ("numjobs", self.numjobs, NUMJOBS_MAX),
            ("numjobs", self.clones(), NUMJOBS_MAX),
        ] {
            if value == 0 || value > max {
                return refuse(key, format!("must be a number from 1 to {max}, on all nodes"));
            }
        }
        if self.divide && self.blocks() == 0 {
            let text = format!("must be one block for each of {} clones at least", self.clones());
            return refuse("size", text);
        }
        let apart_bytes = self.offset_increment_bytes.checked_mul(self.clones().into());
        let end_bytes = apart_bytes
            .and_then(|apart| apart.checked_add(self.offset_bytes))
            .and_then(|start| start.checked_add(self.size_bytes));
        if end_bytes.is_none_or(|end| end > 1 << 62) {
            return refuse("size", "and offset together are more than a file can have".into());
        }
        if self.read_percent > 100 {
            return refuse("rwmixread", "must be a number from 0 to 100".into());
        }
        if self.time_based && self.runtime.is_none() {
            return refuse("time_based", "needs a runtime, as in runtime=60".into());
        }
        Ok(())
    }
}

/// More is a slip of the pen. Ours.
pub(crate) const IODEPTH_MAX: u32 = 65_536;
/// As [`IODEPTH_MAX`].
pub(crate) const NUMJOBS_MAX: u32 = 4096;

/// What is wrong with a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobError {
    /// Which one.
    pub job: String,
    /// Which option.
    pub key: String,
    /// What of it, and what would be right.
    pub problem: String,
}

impl std::fmt::Display for JobError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "job {}: {} {}", self.job, self.key, self.problem)
    }
}

impl std::error::Error for JobError {}
