//! A job: one section of a fio job file.

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
    /// `read`: sequential reads.
    #[default]
    Read,
    /// `write`: sequential writes.
    Write,
    /// `rw`: a random mix of reads and writes, each direction sequential.
    ReadWrite,
    /// `randread`: random reads, each block once a pass.
    RandRead,
    /// `randwrite`: random writes, each block once a pass.
    RandWrite,
    /// `randrw`: a random mix of reads and writes, each block once a pass.
    RandReadWrite,
    /// `trim`: sequential discards.
    Trim,
    /// `randtrim`: random discards.
    RandTrim,
    /// `trimwrite`: a discard and then a write of each block, in order.
    TrimWrite,
    /// `randtrimwrite`: a discard and then a write of each block, at random.
    RandTrimWrite,
}

impl Rw {
    /// All values, in fio's order.
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

    /// The option's value.
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

    /// Whether offsets are random.
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

    /// Whether the job reads.
    #[must_use]
    pub fn reads(self) -> bool {
        matches!(self, Self::Read | Self::RandRead | Self::ReadWrite | Self::RandReadWrite)
    }

    /// Whether the job writes.
    #[must_use]
    pub fn writes(self) -> bool {
        !matches!(self, Self::Read | Self::RandRead | Self::Trim | Self::RandTrim)
    }

    /// Whether the job trims.
    #[must_use]
    pub fn trims(self) -> bool {
        matches!(self, Self::Trim | Self::RandTrim | Self::TrimWrite | Self::RandTrimWrite)
    }

    /// Whether the job destroys existing content.
    #[must_use]
    pub fn destroys(self) -> bool {
        self.writes() || self.trims()
    }

    /// Whether the job has requests of this direction.
    pub(crate) fn has(self, direction: Direction) -> bool {
        match direction {
            Direction::Read => self.reads(),
            Direction::Write => self.writes(),
            Direction::Trim => self.trims(),
        }
    }
}

/// Offsets of the requests between two random ones (`rw_sequencer`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sequencer {
    /// `sequential`: each request follows the one before.
    #[default]
    Sequential,
    /// `identical`: each request repeats the one before.
    Identical,
}

/// Measurements of each request (`disable_slat` and its like).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Submission latency.
    pub slat: bool,
    /// Completion latency.
    pub clat: bool,
    /// Total latency, submission and completion.
    pub lat: bool,
    /// Rates of each half second.
    pub rates: bool,
    /// `gtod_reduce`: no measurement, and few readings of the clock.
    pub is_seldom: bool,
}

impl Default for Kept {
    fn default() -> Self {
        Self { slat: true, clat: true, lat: true, rates: true, is_seldom: false }
    }
}

/// Errors after which a clone goes on (`continue_on_error`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GoesOn {
    /// Read errors.
    pub read: bool,
    /// Write and trim errors.
    pub write: bool,
}

/// One section of a job file. A missing option has fio's default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Name of the section.
    pub name: String,
    /// `filename`: jobs and clones with the same name share the file. Without a name each clone has
    /// its own file.
    pub filename: Option<String>,
    /// `rw`.
    pub rw: Rw,
    /// `rwmixread`: percentage of reads in a mix.
    pub read_percent: u8,
    /// `bs`: length of each request, unless `lens` has another one.
    pub block_bytes: u64,
    /// `bs` of several directions, `bsrange`, `bssplit`: lengths by direction.
    pub lens: [Option<Lens>; 3],
    /// `blockalign`: alignment of random offsets by direction; `None`: the shortest length.
    pub align_bytes: [Option<u64>; 3],
    /// `random_distribution`.
    pub distribution: Distribution,
    /// `percentage_random`: percentage of random requests, by direction.
    pub random_percent: [u8; 3],
    /// `rw=randread:N`: number of requests per random offset.
    pub random_every: u32,
    /// `rw_sequencer`: offsets of the other requests.
    pub sequencer: Sequencer,
    /// `rw=read:8k`: distance from the end of a sequential request to the start of the next.
    pub leap_bytes: i64,
    /// `iodepth`: number of direct requests in flight; buffered I/O has one.
    pub iodepth: u32,
    /// `numjobs`: number of clones; with [`Self::nodes`] the number on each node.
    pub numjobs: u32,
    /// `numa_cpu_nodes`: sockets of the clones, in order of the clones; empty: any socket. (In fio
    /// each clone may run on all of these nodes.)
    pub nodes: Vec<u16>,
    /// `size`: length of each clone's region, and of a pass.
    pub size_bytes: u64,
    /// `io_size`: bytes of a pass, if not [`Self::size_bytes`].
    pub io_size_bytes: Option<u64>,
    /// `offset`: start of the region in the file.
    pub offset_bytes: u64,
    /// `offset_increment`: distance between the regions of two successive clones.
    pub offset_increment_bytes: u64,
    /// `divide` (our own option): the region is divided evenly between the clones, in their order.
    /// The remainder at the end is unused.
    pub divide: bool,
    /// `direct`: direct I/O with many requests in flight (`libaio`); otherwise buffered (`psync`).
    pub direct: bool,
    /// `overwrite`: the file is laid out in full before it is written.
    pub overwrite: bool,
    /// `fsync`: number of writes between two `fsync` calls; 0: never.
    pub fsync_every: u32,
    /// `end_fsync`: one more `fsync` after the last write.
    pub end_fsync: bool,
    /// `norandommap`: random blocks are drawn with replacement, so that a pass may repeat some.
    pub norandommap: bool,
    /// `loops`: number of passes; `number_ios` applies to each.
    pub loops: u32,
    /// `startdelay`: delay before the first block.
    pub start_delay: Nanos,
    /// `ramp_time`: unmeasured time at the start, before `runtime` begins.
    pub ramp_time: Nanos,
    /// `thinktime`: pause after [`Self::thinktime_blocks`], without requests in flight.
    pub thinktime: Nanos,
    /// `thinktime_blocks`.
    pub thinktime_blocks: u32,
    /// `thinktime_blocks_type=complete`: count ended blocks, not started ones.
    pub thinks_of_completed: bool,
    /// `rate_ignore_thinktime`: a rate limit makes no allowance for the think time.
    pub rate_ignore_thinktime: bool,
    /// `rate`: limit of each clone in bytes per second, by direction.
    pub rate_bytes_s: [Option<u64>; 3],
    /// `rate_iops`: limit of each clone in requests per second, by direction; `rate` has
    /// precedence.
    pub rate_iops: [Option<u64>; 3],
    /// `rate_process`.
    pub rate_process: RateProcess,
    /// `rate_min`: least rate in bytes per second, by direction; a slower clone fails.
    pub rate_min_bytes_s: [Option<u64>; 3],
    /// `rate_iops_min`: least rate in requests per second, by direction; a slower clone fails.
    pub rate_min_iops: [Option<u64>; 3],
    /// `rate_cycle`: interval over which the least rate is checked.
    pub rate_cycle: Nanos,
    /// `prioclass` and `prio`: priority of the clones (`ionice`); `None`: the default.
    pub priority: Option<Priority>,
    /// `number_ios`: greatest number of reads and writes of each clone.
    pub number_ios: Option<u64>,
    /// `runtime`: no request starts later than this.
    pub runtime: Option<Nanos>,
    /// `time_based`: repeat passes until `runtime` is over.
    pub time_based: bool,
    /// `randseed`: seed of offsets and mixes. Each clone has its own stream.
    pub seed: u64,
    /// `ioengine=null`: requests go to no device, so the job measures the generator.
    pub goes_nowhere: bool,
    /// `verify` and its options.
    pub verify: Verify,
    /// `kb_base`: the meaning of `k` in later options.
    pub kb_base: KbBase,
    /// `stonewall`: start after all jobs before it have ended.
    pub stonewall: bool,
    /// `wait_for`: start after this earlier job, and the jobs that started with it, have ended.
    pub wait_for: Option<String>,
    /// `new_group`: begin a new reporting group, as with `stonewall`.
    pub new_group: bool,
    /// `group_reporting`: list a group as one result instead of clone by clone.
    pub group_reporting: bool,
    /// `zonemode` and its lengths.
    pub strides: Strides,
    /// `zonemode=zbd` and its options.
    pub zoned: ZoneRule,
    /// `exitall`: the end of a clone ends others.
    pub exitall: bool,
    /// `exit_what`: the others that end.
    pub exit_what: ExitWhat,
    /// `exitall_on_error`: the failure of a clone ends all.
    pub exitall_on_error: bool,
    /// `continue_on_error`: errors that are counted and do not end the clone.
    pub goes_on: GoesOn,
    /// Further rules for starting requests and ending a clone.
    pub controls: Controls,
    /// `cmdprio_percentage` and its like: priorities of single requests.
    pub command: CommandPriority,
    /// Content of the writes.
    pub buffers: Buffers,
    /// Measurements of each request.
    pub kept: Kept,
    /// Listed percentiles.
    pub percentiles: Percentiles,
    /// Logs.
    pub logs: Logs,
}

impl Job {
    /// A job with fio's defaults. The size is still missing.
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

    /// Number of clones on all sockets.
    #[must_use]
    pub fn clones(&self) -> u32 {
        self.numjobs.saturating_mul(u32::try_from(self.nodes.len().max(1)).unwrap_or(u32::MAX))
    }

    /// Request lengths of a direction.
    #[must_use]
    pub fn lens(&self, direction: Direction) -> Lens {
        self.lens[direction.index()].clone().unwrap_or(Lens::Fixed(self.block_bytes))
    }

    fn used(&self) -> impl Iterator<Item = Direction> {
        let rw = self.rw;
        Direction::ALL.into_iter().filter(move |direction| rw.has(*direction))
    }

    /// Length of the shortest request.
    #[must_use]
    pub fn min_bytes(&self) -> u64 {
        self.used().map(|direction| self.lens(direction).min_bytes()).min().unwrap_or(0)
    }

    /// Length of the longest request.
    #[must_use]
    pub fn max_bytes(&self) -> u64 {
        self.used().map(|direction| self.lens(direction).max_bytes()).max().unwrap_or(0)
    }

    /// Alignment of a direction's random offsets.
    pub(crate) fn align_bytes(&self, direction: Direction) -> u64 {
        self.align_bytes[direction.index()].unwrap_or(self.lens(direction).min_bytes())
    }

    /// Unit of random orders.
    pub(crate) fn unit_bytes(&self) -> u64 {
        self.used().map(|direction| self.align_bytes(direction)).min().unwrap_or(1)
    }

    /// Whether each unit occurs once a pass. As in fio, other distributions and alignments have no
    /// map.
    pub(crate) fn has_map(&self) -> bool {
        !self.norandommap
            && self.distribution == Distribution::Uniform
            && self.align_bytes == [None; 3]
    }

    /// Whether the map must be stored: requests have several lengths, or some are not random.
    pub(crate) fn needs_bitmap(&self) -> bool {
        let unit_bytes = self.unit_bytes();
        self.random_every > 1
            || self.random_percent != [100; 3]
            || self.used().any(|direction| self.lens(direction) != Lens::Fixed(unit_bytes))
    }

    /// Length of a clone's region, in whole requests.
    pub(crate) fn region_bytes(&self) -> u64 {
        let parts = if self.divide { u64::from(self.clones()) } else { 1 };
        let min_bytes = self.min_bytes();
        self.size_bytes / min_bytes / parts * min_bytes
    }

    /// Bytes that a clone transfers in a pass.
    pub(crate) fn pass_bytes(&self) -> u64 {
        self.io_size_bytes.unwrap_or(self.region_bytes())
    }

    /// Start of a clone's region in its file.
    pub(crate) fn start_bytes(&self, clone: u32) -> u64 {
        let apart = if self.divide { self.region_bytes() } else { 0 };
        self.offset_bytes + u64::from(clone) * (apart + self.offset_increment_bytes)
    }

    /// Least length of a clone's file.
    pub(crate) fn end_bytes(&self, clone: u32) -> u64 {
        let len_bytes = match self.divide {
            true => self.region_bytes(),
            false => self.size_bytes,
        };
        self.start_bytes(clone) + len_bytes
    }

    /// Socket of a clone.
    pub(crate) fn socket(&self, clone: u32) -> Option<u16> {
        self.nodes.get((clone / self.numjobs) as usize).copied()
    }

    /// Whether the file must be laid out in full. Sequential buffered writes create it as they go;
    /// fio allocates such files in advance (`fallocate=native`).
    pub(crate) fn wants_file(&self) -> bool {
        self.overwrite || self.direct || self.rw.reads() || self.rw.trims() || self.rw.is_random()
    }

    /// Checks that the job is valid.
    ///
    /// # Errors
    /// The invalid option.
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
            let text = format!("must be at least one block of {} bytes", self.min_bytes());
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
            let text = format!("must be at least one block for each of {} clones", self.clones());
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

    /// Checks that written data can be verified.
    fn check_verify(&self) -> Result<(), JobError> {
        let refuse = |key: &str, problem: String| {
            Err(JobError { job: self.name.clone(), key: String::from(key), problem })
        };
        let Some(sum) = self.verify.sum else { return Ok(()) };
        if sum == Sum::Pattern && self.verify.pattern.is_none() {
            return refuse("verify", "is pattern, and needs verify_pattern, as in 0xaa55".into());
        }
        if self.goes_nowhere {
            return refuse("verify", "cannot read data back from ioengine=null".into());
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
                "computes the writes of a pass, so it excludes time_based".into(),
            );
        }
        if self.max_bytes() > VERIFIED_MAX_BYTES {
            return refuse("bs", format!("must be {VERIFIED_MAX_BYTES} at most with verify"));
        }
        Ok(())
    }

    /// Checks the strided zones.
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
                true => refuse("zonesize", "and its options need zonemode=strided or zbd"),
                false => Ok(()),
            };
        }
        let range_bytes = self.strides.range_bytes();
        if size_bytes == 0 {
            return refuse("zonemode", "is strided, and needs a zonesize, as in 1m");
        }
        let lens = [size_bytes, range_bytes, skip_bytes];
        if !lens.iter().all(|bytes| bytes.is_multiple_of(self.unit_bytes())) {
            return refuse("zonesize", "and its options must be multiples of the shortest block");
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

    /// Checks the order of the requests.
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
            let text = "with a leap must be a multiple of 512 bytes below size";
            return refuse("rw", text.into());
        }
        let units = self.region_bytes() / self.unit_bytes().max(1);
        let has_bitmap = self.rw.is_random() && self.has_map() && self.needs_bitmap();
        if has_bitmap && units > UNITS_MAX {
            let text = format!("needs a map of {units} units, more than {UNITS_MAX}");
            return refuse("size", text + "; use norandommap=1, or a longer smallest block");
        }
        if self.rw.is_random() && !self.has_map() && units == 0 {
            return refuse("blockalign", "exceeds the region".into());
        }
        Ok(())
    }
}

/// Greatest `iodepth`; more is a mistake. Our choice.
pub(crate) const IODEPTH_MAX: u32 = 65_536;
/// Greatest `numjobs`, likewise.
pub(crate) const NUMJOBS_MAX: u32 = 4096;

/// Longest request that can be verified; a client has memory for no more.
const VERIFIED_MAX_BYTES: u64 = 64 << 20;

/// An error in a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobError {
    /// Name of the job.
    pub job: String,
    /// The option.
    pub key: String,
    /// The problem, and its remedy.
    pub problem: String,
}

impl std::fmt::Display for JobError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "job {}: {} {}", self.job, self.key, self.problem)
    }
}

impl std::error::Error for JobError {}
