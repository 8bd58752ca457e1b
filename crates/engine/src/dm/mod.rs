//! Device mapper: a table of targets, each of which maps parts of bios (`drivers/md/dm.c`).
//!
//! To add a target: one file here with its arguments' parser, one arm in [`line`], one in
//! [`table::TargetSpec::build`].

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
pub mod striped;
pub mod table;
#[cfg(test)]
mod testing;
pub mod zero;

use alloc::vec::Vec;

use self::bounce::PageBounce;
use self::control::TargetControl;
use self::crypt::Crypt;
use self::crypt::pipeline::Load;
use crate::bio::{BlkStatus, Op, Origin, Sector};
use crate::buf::BufRef;
use crate::sq::{DevId, Owner, Sqe, SqeOp, Token};
use crate::time::Nanos;

/// Where a range starts on a device below. `D` is the device's path, or its number once it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg<D> {
    /// The device.
    pub dev: D,
    /// First sector on it.
    pub start: Sector,
}

/// A piece of a bio that lies in one target.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The bio it is of; a target gives it back when the part has ended.
    pub index: u32,
    /// What to do.
    pub op: Op,
    /// On stable storage before it ends.
    pub fua: bool,
    /// First sector, relative to the target.
    pub sector: Sector,
    /// Length.
    pub len: Sector,
    /// The bytes of a read or a write.
    pub buf: BufRef,
    /// Who submitted the bio.
    pub origin: Origin,
}

impl Part {
    /// The operation on a device below, with its bytes where they are.
    pub(crate) fn at(&self, dev: DevId, sector: Sector) -> SqeOp {
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

/// What [`Target::map`] did with a part (`DM_MAPIO_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapped {
    /// The target pushed SQEs or parked; it will end the part (`DM_MAPIO_SUBMITTED`).
    Submitted,
    /// The part goes to `dev` as it is (`DM_MAPIO_REMAPPED`).
    Remapped {
        /// The device below.
        dev: DevId,
        /// First sector there.
        sector: Sector,
    },
    /// Nothing more to do: answered, or refused (`DM_MAPIO_KILL`).
    Ended(BlkStatus),
}

/// What a target may do while it handles an event.
pub struct TargetCx<'a> {
    /// Time since the table was loaded; zero where no target of the table asks for it
    /// ([`table::TargetSpec::reads_clock`]).
    pub now: Nanos,
    /// What else goes on, with what has been decided meanwhile.
    pub load: &'a mut Load,
    /// Where the shard's crypt lines have pages instead of slots.
    pub(crate) pages: Option<&'a mut PageBounce>,
    pub(crate) sq: &'a mut Vec<Sqe>,
    pub(crate) ended: &'a mut Vec<(u32, BlkStatus)>,
}

impl TargetCx<'_> {
    /// Sends an SQE.
    pub fn push(&mut self, sqe: Sqe) {
        self.sq.push(sqe);
    }

    /// Sends a part to `dev` as it is; the shard ends it. Late what [`Mapped::Remapped`] does at
    /// once.
    pub fn remap(&mut self, part: &Part, dev: DevId, sector: Sector) {
        let token = Token { owner: Owner::Shard, index: part.index };
        self.push(Sqe { token, op: part.at(dev, sector), linked: false, origin: part.origin });
    }

    /// Ends a part that was [`Mapped::Submitted`].
    pub fn end(&mut self, part_index: u32, status: BlkStatus) {
        self.ended.push((part_index, status));
    }
}

/// The data path of a target (`struct target_type`). Each shard has targets of its own.
pub trait Target: Send {
    /// Maps a part, in the submitter's context.
    fn map(&mut self, part: Part, cx: &mut TargetCx<'_>) -> Mapped;

    /// The answer to an SQE that this target pushed with `index` in its token.
    fn on_cqe(&mut self, index: u32, status: BlkStatus, cx: &mut TargetCx<'_>);

    /// Parts that waited may have their pages now. Of all targets only crypt takes pages.
    fn resume(&mut self, _: &mut TargetCx<'_>) {}

    /// The longest part that it takes in one go from `sector` on, which is relative to the target
    /// (`max_io_len`).
    fn max_io(&self, op: Op, sector: Sector) -> Sector;

    /// How many parts wait, and need the bytes of their submitter.
    fn parked(&self) -> usize {
        0
    }

    /// What is told to it and asked of it while it runs, if there is something.
    fn control(&mut self) -> Option<&mut dyn TargetControl> {
        None
    }

    /// The target itself, if it has a cipher.
    fn crypt(&self) -> Option<&Crypt> {
        None
    }

    /// Whether nothing is in flight in it.
    fn is_idle(&self) -> bool {
        true
    }
}
