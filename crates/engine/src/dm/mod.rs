//! Device mapper: a table of targets, each of which maps parts of bios (`drivers/md/dm.c`).
//!
//! To add a target: a file here with a [`registry::TargetType`], and a line in
//! [`registry::TARGETS`].

pub mod bounce;
pub mod control;
pub mod crypt;
pub mod delay;
pub mod error;
pub mod flakey;
pub mod line;
pub mod linear;
pub mod log_writes;
pub mod loop_file;
pub mod multipath;
pub mod null;
pub mod ram;
pub mod registry;
pub mod striped;
pub mod table;
#[cfg(test)]
mod testing;
pub mod words;
pub mod zero;

use alloc::vec::Vec;
use core::fmt;

use self::bounce::PageBounce;
use self::control::TargetControl;
use self::crypt::Crypt;
use self::crypt::pipeline::Load;
use crate::bio::{BlkStatus, Op, Origin, Sector};
use crate::buf::BufRef;
use crate::sq::{DevId, Owner, Sqe, SqeOp, Token};
use crate::time::Nanos;

/// An area of a device below, as in the kernel's `device_area_is_invalid`; its length follows from
/// the line. `D` is the device's path, or its number once it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceArea<D> {
    /// The device.
    pub dev: D,
    /// First sector on it.
    pub start: Sector,
}

/// `<device> <start>`, as in a line.
impl<D: fmt::Display> fmt::Display for DeviceArea<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.dev, self.start.0)
    }
}

/// A part of a bio within one target.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Number of the bio; a target returns it at the part's end.
    pub index: u32,
    /// Operation.
    pub op: Op,
    /// `REQ_FUA`: data on stable storage before the end.
    pub fua: bool,
    /// First sector, relative to the target.
    pub sector: Sector,
    /// Length.
    pub len: Sector,
    /// Buffer of a read or a write.
    pub buf: BufRef,
    /// Submitter of the bio.
    pub origin: Origin,
}

impl Part {
    /// The operation on a device below, with the same buffer.
    #[must_use]
    pub fn at(&self, dev: DevId, sector: Sector) -> SqeOp {
        let Self { op, buf, len, fua, .. } = *self;
        match op {
            Op::Read => SqeOp::Read { dev, sector, buf },
            Op::Write => SqeOp::Write { dev, sector, buf, fua },
            Op::Discard => SqeOp::Discard { dev, sector, len },
            Op::WriteZeroes => SqeOp::WriteZeroes { dev, sector, len },
            Op::Flush => SqeOp::Flush { dev },
        }
    }
}

/// Result of [`Target::map`] (`DM_MAPIO_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapped {
    /// The target pushed SQEs or parked the part, and will end it (`DM_MAPIO_SUBMITTED`).
    Submitted,
    /// The part goes to `dev` unchanged (`DM_MAPIO_REMAPPED`).
    Remapped {
        /// The device below.
        dev: DevId,
        /// First sector there.
        sector: Sector,
    },
    /// The part has ended with this status (`DM_MAPIO_KILL` if refused).
    Ended(BlkStatus),
}

/// Actions of a target in an event.
pub struct TargetCx<'a> {
    /// Time since the table was loaded; zero if no target of the table needs it
    /// ([`table::TargetFacts::reads_clock`]).
    pub now: Nanos,
    /// Current load, including decisions of this event.
    pub load: &'a mut Load,
    /// Pages, if the shard's crypt lines have pages instead of slots.
    pub(crate) pages: Option<&'a mut PageBounce>,
    pub(crate) sq: &'a mut Vec<Sqe>,
    pub(crate) ended: &'a mut Vec<(u32, BlkStatus)>,
}

impl TargetCx<'_> {
    /// Pushes an SQE.
    pub fn push(&mut self, sqe: Sqe) {
        self.sq.push(sqe);
    }

    /// Sends a part to `dev` unchanged; the shard ends it. The later counterpart of
    /// [`Mapped::Remapped`].
    pub fn remap(&mut self, part: &Part, dev: DevId, sector: Sector) {
        let token = Token { owner: Owner::Shard, index: part.index };
        self.push(Sqe { token, op: part.at(dev, sector), linked: false, origin: part.origin });
    }

    /// Ends a part that was [`Mapped::Submitted`].
    pub fn end(&mut self, part_index: u32, status: BlkStatus) {
        self.ended.push((part_index, status));
    }
}

/// The data path of a target (`struct target_type`). Each shard has its own targets.
pub trait Target: Send {
    /// Maps a part, in the submitter's context.
    fn map(&mut self, part: Part, cx: &mut TargetCx<'_>) -> Mapped;

    /// Handles the CQE of an SQE that this target pushed with `index` in its token.
    fn on_cqe(&mut self, index: u32, status: BlkStatus, cx: &mut TargetCx<'_>);

    /// Continues waiting parts that may have their pages now. Only crypt takes pages.
    fn resume(&mut self, _: &mut TargetCx<'_>) {}

    /// Greatest length of a part from `sector` on, which is relative to the target (`max_io_len`).
    fn max_io(&self, op: Op, sector: Sector) -> Sector;

    /// Number of writes that wait or may be sent again, and of other parts that wait without an SQE
    /// in flight. A connection whose shard has one receives nothing, because the write may still
    /// need the receive buffer.
    fn parked(&self) -> usize {
        0
    }

    /// The control path, if the target has one.
    fn control(&mut self) -> Option<&mut dyn TargetControl> {
        None
    }

    /// The target itself, if it is a crypt target.
    fn crypt(&self) -> Option<&Crypt> {
        None
    }

    /// Whether no part is in flight in the target.
    fn is_idle(&self) -> bool {
        true
    }
}
