//! `error`: fails every bio (`drivers/md/dm-target.c`, `io_err`). Table: no arguments.

use super::{Mapped, Part, Target, TargetCx};
use crate::bio::{BlkStatus, Op, Sector};

/// Fails everything.
#[derive(Debug)]
pub struct Error;

impl Target for Error {
    fn map(&mut self, _: Part, _: &mut TargetCx<'_>) -> Mapped {
        Mapped::Ended(BlkStatus::IoError)
    }

    fn on_cqe(&mut self, _: u32, _: BlkStatus, _: &mut TargetCx<'_>) {
        unreachable!("error pushes no SQE");
    }

    fn max_io(&self, _: Op, _: Sector) -> Sector {
        Sector(u64::MAX)
    }
}
