//! A bio: one I/O on one contiguous range of a device (`include/linux/blk_types.h`).

use core::fmt;
use core::ops::Add;

use crate::buf::BufRef;

/// Shift from sectors to bytes.
pub const SECTOR_SHIFT: u32 = 9;

/// A position or a length in 512-byte units, whatever the device's sector size is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sector(pub u64);

impl Sector {
    /// The position in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.0 << SECTOR_SHIFT
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

/// What a bio asks for (`enum req_op`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Fill the buffer from the device.
    Read,
    /// Write the buffer to the device. The buffer is never changed.
    Write,
    /// Everything written and completed before is on stable storage when this completes.
    Flush,
    /// The range is no longer needed; what it reads as afterwards is undefined.
    Discard,
    /// The range reads as zeros afterwards.
    WriteZeroes,
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
    /// `BLK_STS_IOERR`.
    IoError,
}

impl fmt::Display for BlkStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::NotSupported => "operation not supported",
            Self::NoSpace => "no space left on the device",
            Self::Invalid => "range outside of the device or not aligned to its sectors",
            Self::IoError => "I/O error",
        })
    }
}

/// One I/O on one range.
#[derive(Clone, Copy, Debug)]
pub struct Bio {
    /// What to do.
    pub op: Op,
    /// With a write: on stable storage before it completes (`REQ_FUA`).
    pub fua: bool,
    /// First sector, relative to the device it is submitted to.
    pub sector: Sector,
    /// Length of the range; zero only for [`Op::Flush`].
    pub len: Sector,
    /// The bytes of a read or a write; its length is that of the range.
    pub buf: BufRef,
    /// The front end's own word, given back in [`Done`].
    pub user: u64,
}

/// A finished bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// [`Bio::user`] of the bio.
    pub user: u64,
    /// Its outcome. With several failing parts, the last one wins, as in the kernel.
    pub status: BlkStatus,
}
