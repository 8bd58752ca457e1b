//! Direction, length and order of a job's requests.

use super::super::distribution::Distribution;
use super::super::lens::{Direction, Lens};
use super::super::strides::Strides;
use super::super::zoned::ZoneRule;

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

/// Direction, length and order of the requests.
// 14 fields: each is one option, or one group of options, about the next request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
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
    /// `norandommap`: random blocks are drawn with replacement, so that a pass may repeat some.
    pub norandommap: bool,
    /// `randseed`: seed of offsets and mixes. Each clone has its own stream.
    pub seed: u64,
    /// `zonemode` and its lengths.
    pub strides: Strides,
    /// `zonemode=zbd` and its options.
    pub zoned: ZoneRule,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
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
            norandommap: false,
            seed: 0,
            strides: Strides::default(),
            zoned: ZoneRule::default(),
        }
    }
}

impl Shape {
    /// Request lengths of a direction.
    #[must_use]
    pub fn lens(&self, direction: Direction) -> Lens {
        self.lens[direction.index()].clone().unwrap_or(Lens::Fixed(self.block_bytes))
    }

    /// The directions that the job has.
    pub(super) fn used(&self) -> impl Iterator<Item = Direction> {
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
}
