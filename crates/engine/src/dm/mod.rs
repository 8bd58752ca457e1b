//! Device mapper: a table of targets, each of which maps parts of bios (`drivers/md/dm.c`).
//!
//! To add a target: one file here, its table syntax in [`line`], one arm in
//! [`table::TargetSpec::build`].

pub mod crypt;
pub mod error;
pub mod line;
pub mod linear;
pub mod table;
pub mod zero;

use alloc::vec::Vec;

use crate::bio::{BlkStatus, Op, Origin, Sector};
use crate::buf::BufRef;
use crate::sq::{DevId, Sqe};

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
    pub(crate) sq: &'a mut Vec<Sqe>,
    pub(crate) ended: &'a mut Vec<(u32, BlkStatus)>,
}

impl TargetCx<'_> {
    /// Sends an SQE.
    pub fn push(&mut self, sqe: Sqe) {
        self.sq.push(sqe);
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

    /// The longest part it takes in one go (`max_io_len`).
    fn max_io(&self, op: Op) -> Sector;

    /// How many parts wait for memory.
    fn parked(&self) -> usize {
        0
    }

    /// Whether nothing is in flight in it.
    fn is_idle(&self) -> bool {
        true
    }
}
