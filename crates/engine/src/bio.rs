//! A bio: one I/O on one contiguous range of a device (`include/linux/blk_types.h`).

use core::fmt;
use core::ops::Add;

use crate::buf::BufRef;
use crate::priority::Priority;

/// Shift from sectors to bytes.
pub const SECTOR_SHIFT: u32 = 9;

/// A position or a length in 512-byte units, regardless of the device's sector size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sector(pub u64);

impl Sector {
    /// The position in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.0 << SECTOR_SHIFT
    }

    /// Length from here to the next multiple of `unit`.
    #[must_use]
    pub fn to_border(self, unit: Self) -> Self {
        Self(unit.0 - self.0 % unit.0)
    }

    /// The sector that holds byte `bytes`: rounds down.
    #[must_use]
    pub fn holding(bytes: u64) -> Self {
        Self(bytes >> SECTOR_SHIFT)
    }
}

impl Add for Sector {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

/// Operation of a bio (`enum req_op`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Fill the buffer from the device.
    Read,
    /// Write the buffer to the device. The buffer is never changed.
    Write,
    /// All acknowledged writes are on stable storage when this completes.
    Flush,
    /// The range is no longer needed; its content afterwards is undefined.
    Discard,
    /// The range reads as zeroes afterwards.
    WriteZeroes,
}

impl Op {
    /// All operations.
    pub const ALL: [Self; 5] =
        [Self::Read, Self::Write, Self::Flush, Self::Discard, Self::WriteZeroes];
}

/// Outcome of a bio (`blk_status_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlkStatus {
    /// `BLK_STS_OK`.
    Ok,
    /// `BLK_STS_NOTSUPP`.
    NotSupported,
    /// `BLK_STS_NOSPC`.
    NoSpace,
    /// `BLK_STS_INVAL`: outside of the device or not aligned to its sectors.
    Invalid,
    /// `BLK_STS_TRANSPORT`: the connection to the device is lost; the operation may or may not have
    /// been done.
    Transport,
    /// `BLK_STS_MEDIUM`: the device was reached, and its medium failed.
    Medium,
    /// `BLK_STS_IOERR`.
    IoError,
}

impl BlkStatus {
    /// All outcomes of failed bios.
    pub const FAILURES: [Self; 6] = [
        Self::NotSupported,
        Self::NoSpace,
        Self::Invalid,
        Self::Transport,
        Self::Medium,
        Self::IoError,
    ];
}

impl fmt::Display for BlkStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::NotSupported => "operation not supported",
            Self::NoSpace => "no space left on the device",
            Self::Invalid => "range outside of the device or not aligned to its sectors",
            Self::Transport => "connection to the device lost",
            Self::Medium => "the device's medium failed",
            Self::IoError => "I/O error",
        })
    }
}

/// Identity of a submitter for the scheduler (`struct io_context`): a task in the kernel, a client
/// or a job here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct IoContext(pub u32);

impl IoContext {
    /// Placeholder: a world substitutes the io-context of the submitting task.
    pub const OF_TASK: Self = Self(u32::MAX);
}

/// Number of a bio among those whose time the world measures; zero for all others. The engine has
/// no clock; it copies the number to each SQE of the bio.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample(pub u8);

impl Sample {
    /// A bio without time measurement.
    pub const NONE: Self = Self(0);
}

/// Origin of a bio: its submitter, and whether the submitter waits. The origin stays with the I/O
/// down to the device's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The submitter.
    pub io_context: IoContext,
    /// CPU of the submission.
    pub cpu: u16,
    /// Its I/O priority (`bi_ioprio`).
    pub priority: Priority,
    /// `REQ_SYNC` of a write: the submitter waits for it. Reads are always synchronous: see
    /// [`Bio::is_sync`].
    pub sync: bool,
    /// `REQ_NOIDLE` of a synchronous write: the submitter announces no further one.
    pub noidle: bool,
    /// Number of the bio if the world measures its time.
    pub sample: Sample,
}

/// One I/O on one range.
#[derive(Clone, Copy, Debug)]
pub struct Bio {
    /// Operation.
    pub op: Op,
    /// `REQ_PREFLUSH` of a write: all completed writes are on stable storage before it starts.
    pub preflush: bool,
    /// `REQ_FUA` of a write: the data is on stable storage before it completes.
    pub fua: bool,
    /// First sector, relative to the device of submission.
    pub sector: Sector,
    /// Length of the range; zero only for [`Op::Flush`].
    pub len: Sector,
    /// Buffer of a read or a write, as long as the range.
    pub buf: BufRef,
    /// Submitter.
    pub origin: Origin,
    /// Opaque number of the front end, returned in [`Done`].
    pub user: u64,
}

impl Bio {
    /// A bio without flags and with the default origin.
    #[must_use]
    pub fn new(op: Op, sector: Sector, len: Sector, buf: BufRef, user: u64) -> Self {
        let origin = Origin::default();
        Self { op, preflush: false, fua: false, sector, len, buf, origin, user }
    }

    /// Whether the bio is synchronous (`op_is_sync`): a read, a flush, or a write with `REQ_SYNC`,
    /// `REQ_FUA` or `REQ_PREFLUSH`.
    #[must_use]
    pub fn is_sync(&self) -> bool {
        match self.op {
            Op::Read | Op::Flush => true,
            Op::Write => self.origin.sync || self.fua || self.preflush,
            Op::Discard | Op::WriteZeroes => self.origin.sync,
        }
    }
}

/// A finished bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// [`Bio::user`] of the bio.
    pub user: u64,
    /// Its outcome. With several failing parts, the last one wins, as in the kernel.
    pub status: BlkStatus,
}

/// Numbers of failed bios, by operation and outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// The sum of `counts`: a reader compares it, and copies the rest only after a failure.
    total: u64,
    /// By operation, in the order of [`BlkStatus::FAILURES`].
    counts: [[u64; BlkStatus::FAILURES.len()]; Op::ALL.len()],
}

impl Failures {
    /// Counts a failed bio.
    pub fn count(&mut self, op: Op, status: BlkStatus) {
        let is_it = |failure: &BlkStatus| *failure == status;
        if let Some(place) = BlkStatus::FAILURES.iter().position(is_it) {
            self.total += 1;
            self.counts[op as usize][place] += 1;
        }
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.total += other.total;
        let counts = self.counts.as_flattened_mut().iter_mut();
        counts.zip(other.counts.as_flattened()).for_each(|(count, more)| *count += more);
    }

    /// Numbers of an operation's failures, in the order of [`BlkStatus::FAILURES`].
    #[must_use]
    pub fn of(&self, op: Op) -> [u64; BlkStatus::FAILURES.len()] {
        self.counts[op as usize]
    }

    /// Number of all failed bios.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_by_operation_and_outcome() {
        let mut failures = Failures::default();
        failures.count(Op::Write, BlkStatus::NoSpace);
        failures.count(Op::Write, BlkStatus::IoError);
        failures.count(Op::Flush, BlkStatus::Ok);
        let mut both = failures;
        both.add(&failures);
        assert_eq!(both.total(), 4);
        assert_eq!(both.of(Op::Write), [0, 2, 0, 0, 0, 2]);
        assert_eq!((both.of(Op::Flush), both.of(Op::Read)), ([0; 6], [0; 6]));
    }
}
