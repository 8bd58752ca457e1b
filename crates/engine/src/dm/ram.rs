//! `ram`: memory as a disk (`drivers/block/brd.c`). Table: no arguments. The memory is as long as
//! the line. The syntax is our own, because brd is no target.
//!
//! The world provides the memory as a device. Unwritten ranges read as zeroes and take no memory; a
//! discard frees memory. There is no cache to flush.

use super::{Mapped, Part, Target, TargetCx};
use crate::bio::{BlkStatus, Op, Sector};
use crate::sq::DevId;

/// The ram target.
#[derive(Debug)]
pub struct Ram {
    /// The memory.
    pub dev: DevId,
}

impl Target for Ram {
    fn map(&mut self, part: Part, _: &mut TargetCx<'_>) -> Mapped {
        Mapped::Remapped { dev: self.dev, sector: part.sector }
    }

    fn on_cqe(&mut self, _: u32, _: BlkStatus, _: &mut TargetCx<'_>) {
        unreachable!("ram pushes no SQE");
    }

    fn max_io(&self, _: Op, _: Sector) -> Sector {
        Sector(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{bio, run, shard};
    use super::*;
    use crate::dm::table::TargetSpec;
    use crate::sq::SqeOp;

    #[test]
    fn memory_is_asked_and_never_flushed() {
        let mut ram = shard(TargetSpec::Ram { dev: DevId(0) }, 64);
        let read = bio(Op::Read, 8, 8);
        let read_op = SqeOp::Read { dev: DevId(0), sector: Sector(8), buf: read.buf };
        assert_eq!(run(&mut ram, read), (alloc::vec![read_op], BlkStatus::Ok));
        assert_eq!(run(&mut ram, bio(Op::Flush, 0, 0)), (alloc::vec![], BlkStatus::Ok));
    }
}
