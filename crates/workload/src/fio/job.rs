//! A job: what one section of a fio job file says.

use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;

use super::buffers::Buffers;
use super::command_priority::CommandPriority;
use super::control::Controls;
use super::distribution::Distribution;
use super::ends::ExitWhat;
use super::lens::{Direction, Lens};
use super::log::Logs;
use super::map::UNITS_MAX;
use super::pace::RateProcess;
use super::percentiles::Percentiles;
use super::strides::Strides;
use super::value::KbBase;
use super::verify::{HEADER_BYTES, Sum, Verify};
use super::zoned::{self, ZoneRule};

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
    /// `trim`: nobody needs it any more, one block after the other.
    Trim,
    /// `randtrim`.
    RandTrim,
    /// `trimwrite`: each block is trimmed and then written.
    TrimWrite,
    /// `randtrimwrite`.
    RandTrimWrite,
}

impl Rw {
    /// All of them, in fio's order.
    pub const ALL: [Self; 10] = [
        Self::Read,
        Self::Write,
        Self::ReadWrite,
        Self::RandRead,
        Self::RandWrite,
        Self::RandReadWrite,
        Self::Trim,
        Self::RandTrim,
        Self::TrimWrite,
        Self::RandTrimWrite,
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
            Self::Trim => "trim",
            Self::RandTrim => "randtrim",
            Self::TrimWrite => "trimwrite",
            Self::RandTrimWrite => "randtrimwrite",
        }
    }

    /// Whether offsets are drawn.
    #[must_use]
    pub fn is_random(self) -> bool {
        matches!(
            self,
            Self::RandRead
                | Self::RandWrite
                | Self::RandReadWrite
                | Self::RandTrim
                | Self::RandTrimWrite
        )
    }

    /// Whether some of it reads.
    #[must_use]
    pub fn reads(self) -> bool {
        matches!(self, Self::Read | Self::RandRead | Self::ReadWrite | Self::RandReadWrite)
    }

    /// Whether some of it writes.
    #[must_use]
    pub fn writes(self) -> bool {
        !matches!(self, Self::Read | Self::RandRead | Self::Trim | Self::RandTrim)
    }

    /// Whether some of it trims.
    #[must_use]
    pub fn trims(self) -> bool {
        matches!(self, Self::Trim | Self::RandTrim | Self::TrimWrite | Self::RandTrimWrite)
    }

    /// Whether what is there before is gone behind it.
    #[must_use]
    pub fn destroys(self) -> bool {
        self.writes() || self.trims()
    }

    /// Whether requests of this direction are among it.
    pub(crate) fn has(self, direction: Direction) -> bool {
        match direction {
            Direction::Read => self.reads(),
            Direction::Write => self.writes(),
            Direction::Trim => self.trims(),
        }
    }
}

/// What the requests do for which no random place is drawn (`rw_sequencer`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sequencer {
    /// `sequential`: they follow the one before.
    #[default]
    Sequential,
    /// `identical`: they are the one before again.
    Identical,
}

/// What is measured of each request (`disable_slat` and its like).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Submission latency.
    pub slat: bool,
    /// Completion latency.
    pub clat: bool,
    /// Both together.
    pub lat: bool,
    /// Rates of half a second.
    pub rates: bool,
    /// `gtod_reduce`: none of these, and the clock is looked at now and then.
    pub is_seldom: bool,
}

impl Default for Kept {
    fn default() -> Self {
        Self { slat: true, clat: true, lat: true, rates: true, is_seldom: false }
    }
}

/// Behind which errors a clone goes on (`continue_on_error`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GoesOn {
    /// Of reads.
    pub read: bool,
    /// Of writes and trims.
    pub write: bool,
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
    /// `bs`: length of each request whose direction has no other.
    pub block_bytes: u64,
    /// `bs` of several directions, `bsrange`, `bssplit`: lengths of a direction, by its number.
    pub lens: [Option<Lens>; 3],
    /// `blockalign`: what random offsets are multiples of, by direction; else of the shortest
    /// length.
    pub align_bytes: [Option<u64>; 3],
    /// `random_distribution`.
    pub distribution: Distribution,
    /// `percentage_random`: of a hundred requests, how many are at random; by direction.
    pub random_percent: [u8; 3],
    /// Of `rw=randread:8`: a random place is drawn for every so many requests.
    pub random_every: u32,
    /// `rw_sequencer`: what the others do.
    pub sequencer: Sequencer,
    /// Of `rw=read:8k`: from the end of a request in order to the start of the next.
    pub leap_bytes: i64,
    /// `iodepth`: how many are in flight, of direct I/O; buffered I/O is one at a time.
    pub iodepth: u32,
    /// `numjobs`: clones; with [`Self::nodes`] so many on each.
    pub numjobs: u32,
    /// `numa_cpu_nodes`: sockets that the clones run on, those of the first first; empty is
    /// anywhere. (fio's own clones run on any of them, each.)
    pub nodes: Vec<u16>,
    /// `size`: length of the region that each clone works on, and of what it transfers in a pass.
    pub size_bytes: u64,
    /// `io_size`: what a clone transfers in a pass, if that is not [`Self::size_bytes`].
    pub io_size_bytes: Option<u64>,
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
    /// `thinktime_blocks_type=complete`: those that have ended are counted, not those started.
    pub thinks_of_completed: bool,
    /// `rate_ignore_thinktime`: a rate does not make up for what it missed while its job thought.
    pub rate_ignore_thinktime: bool,
    /// `rate`: no more bytes a second of each clone, by direction.
    pub rate_bytes_s: [Option<u64>; 3],
    /// `rate_iops`: the same in requests. `rate` goes first.
    pub rate_iops: [Option<u64>; 3],
    /// `rate_process`.
    pub rate_process: RateProcess,
    /// `rate_min`: a clone that is slower than so many bytes a second fails; by direction.
    pub rate_min_bytes_s: [Option<u64>; 3],
    /// `rate_iops_min`: the same in requests.
    pub rate_min_iops: [Option<u64>; 3],
    /// `rate_cycle`: over how long the minimum is looked at.
    pub rate_cycle: Nanos,
    /// `prioclass` and `prio`: `ionice` of the clones. Without one they have the default.
    pub priority: Option<Priority>,
    /// `number_ios`: no more than so many reads and writes of each clone.
    pub number_ios: Option<u64>,
    /// `runtime`: nothing is started after that.
    pub runtime: Option<Nanos>,
    /// `time_based`: pass after pass until `runtime` is over.
    pub time_based: bool,
    /// `randseed`: of offsets and lots. Clones draw differently.
    pub seed: u64,
    /// `ioengine=null`: requests go nowhere; what is measured is the generator.
    pub goes_nowhere: bool,
    /// `verify` and its options.
    pub verify: Verify,
    /// `kb_base`: what a `k` is in the options behind it.
    pub kb_base: KbBase,
    /// `stonewall`: starts when all jobs before it have ended.
    pub stonewall: bool,
    /// `wait_for`: starts when this job before it has ended, and those that started with it.
    pub wait_for: Option<String>,
    /// `new_group`: a group of results begins with it, as with `stonewall`.
    pub new_group: bool,
    /// `group_reporting`: a group is listed as one, not clone by clone.
    pub group_reporting: bool,
    /// `zonemode` and its lengths.
    pub strides: Strides,
    /// `zonemode=zbd` and its like.
    pub zoned: ZoneRule,
    /// `exitall`: when a clone ends, others do.
    pub exitall: bool,
    /// `exit_what`: which.
    pub exit_what: ExitWhat,
    /// `exitall_on_error`: when a clone fails, all end.
    pub exitall_on_error: bool,
    /// `continue_on_error`: what fails is counted, and no reason to end.
    pub goes_on: GoesOn,
    /// What else decides when a clone starts a request, and ends.
    pub controls: Controls,
    /// `cmdprio_percentage` and its like: some requests have another priority.
    pub command: CommandPriority,
    /// What is written.
    pub buffers: Buffers,
    /// What is measured of its requests.
    pub kept: Kept,
    /// What of its latencies is listed.
    pub percentiles: Percentiles,
    /// What is written down of its requests.
    pub logs: Logs,
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
            lens: [const { None }; 3],
            align_bytes: [None; 3],
            distribution: Distribution::default(),
            random_percent: [100; 3],
            random_every: 1,
            sequencer: Sequencer::default(),
            leap_bytes: 0,
            iodepth: 1,
            numjobs: 1,
            nodes: Vec::new(),
            size_bytes: 0,
            io_size_bytes: None,
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
            thinks_of_completed: false,
            rate_ignore_thinktime: false,
            rate_bytes_s: [None; 3],
            rate_iops: [None; 3],
            rate_process: RateProcess::default(),
            rate_min_bytes_s: [None; 3],
            rate_min_iops: [None; 3],
            rate_cycle: Nanos::from_ms(1000),
            priority: None,
            number_ios: None,
            runtime: None,
            time_based: false,
            seed: 0,
            goes_nowhere: false,
            verify: Verify::default(),
            kb_base: KbBase::default(),
            stonewall: false,
            wait_for: None,
            new_group: false,
            group_reporting: false,
            strides: Strides::default(),
            zoned: ZoneRule::default(),
            exitall: false,
            exit_what: ExitWhat::default(),
            exitall_on_error: false,
            goes_on: GoesOn::default(),
            controls: Controls::default(),
            command: CommandPriority::default(),
            buffers: Buffers::default(),
            kept: Kept::default(),
            percentiles: Percentiles::default(),
            logs: Logs::default(),
        }
    }

    /// How many clones it has, on all sockets.
    #[must_use]
    pub fn clones(&self) -> u32 {
        self.numjobs.saturating_mul(u32::try_from(self.nodes.len().max(1)).unwrap_or(u32::MAX))
    }

    /// Lengths of the requests of a direction.
    #[must_use]
    pub fn lens(&self, direction: Direction) -> Lens {
        self.lens[direction.index()].clone().unwrap_or(Lens::Fixed(self.block_bytes))
    }

    fn used(&self) -> impl Iterator<Item = Direction> {
        let rw = self.rw;
        Direction::ALL.into_iter().filter(move |direction| rw.has(*direction))
    }

    /// The shortest request.
    #[must_use]
    pub fn min_bytes(&self) -> u64 {
        self.used().map(|direction| self.lens(direction).min_bytes()).min().unwrap_or(0)
    }

    /// The longest request.
    #[must_use]
    pub fn max_bytes(&self) -> u64 {
        self.used().map(|direction| self.lens(direction).max_bytes()).max().unwrap_or(0)
    }

    /// What random offsets of a direction are multiples of.
    pub(crate) fn align_bytes(&self, direction: Direction) -> u64 {
        self.align_bytes[direction.index()].unwrap_or(self.lens(direction).min_bytes())
    }

    /// What random orders count in.
    pub(crate) fn unit_bytes(&self) -> u64 {
        self.used().map(|direction| self.align_bytes(direction)).min().unwrap_or(1)
    }

    /// Each unit is there once a pass. As in fio, other distributions and alignments have no map.
    pub(crate) fn has_map(&self) -> bool {
        !self.norandommap
            && self.distribution == Distribution::Uniform
            && self.align_bytes == [None; 3]
    }

    /// The map cannot be computed: not all requests are one unit, or not all of them are at random.
    pub(crate) fn needs_bitmap(&self) -> bool {
        let unit_bytes = self.unit_bytes();
        self.random_every > 1
            || self.random_percent != [100; 3]
            || self.used().any(|direction| self.lens(direction) != Lens::Fixed(unit_bytes))
    }

    /// Length of the region of a clone, in whole requests.
    pub(crate) fn region_bytes(&self) -> u64 {
        let parts = if self.divide { u64::from(self.clones()) } else { 1 };
        let min_bytes = self.min_bytes();
        self.size_bytes / min_bytes / parts * min_bytes
    }

    /// What a clone transfers in a pass.
    pub(crate) fn pass_bytes(&self) -> u64 {
        self.io_size_bytes.unwrap_or(self.region_bytes())
    }

    /// Where the region of a clone starts in its file.
    pub(crate) fn start_bytes(&self, clone: u32) -> u64 {
        let apart = if self.divide { self.region_bytes() } else { 0 };
        self.offset_bytes + u64::from(clone) * (apart + self.offset_increment_bytes)
    }

    /// Length that the file of a clone has at least.
    pub(crate) fn end_bytes(&self, clone: u32) -> u64 {
        let len_bytes = match self.divide {
            true => self.region_bytes(),
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
        self.overwrite || self.direct || self.rw.reads() || self.rw.trims() || self.rw.is_random()
    }

    /// Whether it can be run.
    ///
    /// # Errors
    /// When it cannot.
    pub fn check(&self) -> Result<(), JobError> {
        let refuse = |key: &str, problem: String| {
            Err(JobError { job: self.name.clone(), key: String::from(key), problem })
        };
        let is_whole = |bytes: u64| bytes > 0 && bytes.is_multiple_of(512);
        let lens = Direction::ALL.map(|direction| self.lens(direction));
        if !is_whole(self.block_bytes) || !lens.iter().all(|lens| lens.all(is_whole)) {
            return refuse("bs", "must be a multiple of 512 bytes, as in bs=4k".into());
        }
        if !self.align_bytes.iter().flatten().all(|bytes| is_whole(*bytes)) {
            return refuse("blockalign", "must be a multiple of 512 bytes".into());
        }
        if self.size_bytes < self.min_bytes() {
            let text = format!("must be one block of {} bytes at least", self.min_bytes());
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
        if self.divide && self.region_bytes() == 0 {
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
        self.check_order()?;
        self.check_strides()?;
        self.check_verify()?;
        let problem = self.controls.problem().or_else(|| self.command.problem());
        let problem = problem.or_else(|| zoned::problem(self));
        if let Some((key, problem)) = problem {
            return refuse(key, problem);
        }
        if self.time_based && self.runtime.is_none() {
            return refuse("time_based", "needs a runtime, as in runtime=60".into());
        }
        Ok(())
    }

    /// Whether what it writes can be known again.
    fn check_verify(&self) -> Result<(), JobError> {
        let refuse = |key: &str, problem: String| {
            Err(JobError { job: self.name.clone(), key: String::from(key), problem })
        };
        let Some(sum) = self.verify.sum else { return Ok(()) };
        if sum == Sum::Pattern && self.verify.pattern.is_none() {
            return refuse("verify", "is pattern, and needs verify_pattern, as in 0xaa55".into());
        }
        if self.goes_nowhere {
            return refuse("verify", "finds nothing behind ioengine=null".into());
        }
        let chunk_bytes = self.verify.interval_bytes.unwrap_or(self.min_bytes());
        let is_whole = |len: u64| len.is_multiple_of(chunk_bytes);
        let used = self.used().all(|direction| self.lens(direction).all(is_whole));
        if self.verify.interval_bytes.is_some() && !used {
            return refuse("verify_interval", "must divide all lengths of requests".into());
        }
        let behind = (HEADER_BYTES + sum.len()) as u64;
        let end = self.verify.offset_bytes.saturating_add(behind);
        if behind > chunk_bytes || end > chunk_bytes {
            let text = format!("has no room for a header of {behind} bytes in {chunk_bytes}");
            return refuse("verify_offset", text);
        }
        if self.verify.offset_bytes > 0 && self.verify.offset_bytes < behind {
            return refuse("verify_offset", format!("must be 0, or {behind} bytes at least"));
        }
        if self.verify.only && self.time_based {
            return refuse(
                "verify_only",
                "knows what a pass writes, so not with time_based".into(),
            );
        }
        if self.max_bytes() > VERIFIED_MAX_BYTES {
            return refuse("bs", format!("must be {VERIFIED_MAX_BYTES} at most with verify"));
        }
        Ok(())
    }

    /// Whether its zones can be gone through.
    fn check_strides(&self) -> Result<(), JobError> {
        let refuse = |key: &str, problem: &str| {
            Err(JobError { job: self.name.clone(), key: key.into(), problem: problem.into() })
        };
        let Strides { is_on, size_bytes, range_bytes, skip_bytes } = self.strides;
        if self.zoned.is_on {
            return Ok(());
        }
        if !is_on {
            let has_lens = size_bytes > 0 || range_bytes.is_some() || skip_bytes > 0;
            return match has_lens {
                true => refuse("zonesize", "and its like need zonemode=strided or zbd"),
                false => Ok(()),
            };
        }
        let range_bytes = self.strides.range_bytes();
        if size_bytes == 0 {
            return refuse("zonemode", "is strided, and needs a zonesize, as in 1m");
        }
        let lens = [size_bytes, range_bytes, skip_bytes];
        if !lens.iter().all(|bytes| bytes.is_multiple_of(self.unit_bytes())) {
            return refuse("zonesize", "and its like must be multiples of the shortest block");
        }
        if range_bytes < self.max_bytes() || range_bytes > self.region_bytes() {
            return refuse("zonerange", "must be one block at least, and no more than size");
        }
        if self.rw.trims() || self.leap_bytes != 0 {
            return refuse("zonemode", "is for reads and writes without a leap");
        }
        if self.rw.is_random() && self.has_map() && self.needs_bitmap() {
            return refuse("zonemode", "with blocks of several lengths needs norandommap=1");
        }
        Ok(())
    }

    /// Whether its offsets can be made.
    fn check_order(&self) -> Result<(), JobError> {
        let refuse = |key: &str, problem: String| {
            Err(JobError { job: self.name.clone(), key: String::from(key), problem })
        };
        if self.size_bytes < self.max_bytes() && self.rw.is_random() {
            return refuse("size", format!("must be {} bytes at least", self.max_bytes()));
        }
        if self.used().any(|direction| self.lens(direction).min_bytes() > self.region_bytes()) {
            return refuse("size", "must be one block of each direction at least".into());
        }
        if self.leap_bytes % 512 != 0 || self.leap_bytes.unsigned_abs() >= self.region_bytes() {
            let text = "with a leap takes one of a multiple of 512 bytes, less than size";
            return refuse("rw", text.into());
        }
        let units = self.region_bytes() / self.unit_bytes().max(1);
        let has_bitmap = self.rw.is_random() && self.has_map() && self.needs_bitmap();
        if has_bitmap && units > UNITS_MAX {
            let text = format!("has {units} units for a map of those done, more than {UNITS_MAX}");
            return refuse("size", text + "; take norandommap=1, or a longer smallest block");
        }
        if self.rw.is_random() && !self.has_map() && units == 0 {
            return refuse("blockalign", "is more than the region has".into());
        }
        Ok(())
    }
}

/// More is a slip of the pen. Ours.
pub(crate) const IODEPTH_MAX: u32 = 65_536;
/// As [`IODEPTH_MAX`].
pub(crate) const NUMJOBS_MAX: u32 = 4096;

/// The longest request whose bytes are looked at: what a client has memory for.
const VERIFIED_MAX_BYTES: u64 = 64 << 20;

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
