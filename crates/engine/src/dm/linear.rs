//! `linear`: a range of a device (`drivers/md/dm-linear.c`). Table: `<dev> <start>`.

use super::{Mapped, Part, Target, TargetCx};
use crate::bio::{BlkStatus, Op, Sector};
use crate::sq::DevId;

/// Adds an offset to the sector.
#[derive(Debug)]
pub struct Linear {
    /// The device below.
    pub dev: DevId,
    /// Start of the range on the device.
    pub start: Sector,
}

impl Target for Linear {
    fn map(&mut self, part: Part, _: &mut TargetCx<'_>) -> Mapped {
        Mapped::Remapped { dev: self.dev, sector: self.start + part.sector }
    }

    fn on_cqe(&mut self, _: u32, _: BlkStatus, _: &mut TargetCx<'_>) {
        unreachable!("linear pushes no SQE");
    }

    fn max_io(&self, _: Op, _: Sector) -> Sector {
        Sector(u64::MAX)
    }
}
