//! `ram`: memory as a disk (`drivers/block/brd.c`). Table: no arguments. The memory is as long as
//! the line. The syntax is our own, because brd is no target.
//!
//! The world provides the memory as a device. Unwritten ranges read as zeroes and take no memory; a
//! discard frees memory. There is no cache to flush.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use core::fmt;

use super::registry::{Arguments, Keys, Needs, Opened, TargetType};
use super::table::{Flushes, Reserve, TargetFacts, TargetSpec};
use super::{DeviceArea, Mapped, Part, Target, TargetCx, words};
use crate::bio::{BlkStatus, Op, Sector};
use crate::sq::DevId;

/// The target's type.
pub static RAM: TargetType = TargetType {
    name: "ram",
    arguments: "",
    parse: |args, _| {
        words::none(args)?;
        Ok(Arc::new(RamLine))
    },
};

/// A line, which has no arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RamLine;

impl Arguments for RamLine {
    fn write(&self, _: Keys, _: &mut dyn fmt::Write) -> fmt::Result {
        Ok(())
    }

    fn needs(&self, len: Sector) -> Needs<'_> {
        Needs { memory: Some(len), ..Needs::default() }
    }

    fn open(&self, opened: Opened) -> Result<Arc<dyn TargetSpec>, String> {
        Ok(Arc::new(Ram { dev: opened.memory.expect("the line needs memory") }))
    }
}

/// The ram target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ram {
    /// The memory.
    pub dev: DevId,
}

impl TargetSpec for Ram {
    fn facts(&self) -> TargetFacts {
        let window = Some(DeviceArea { dev: self.dev, start: Sector(0) });
        TargetFacts { window, ..TargetFacts::new(Flushes::To(vec![])) }
    }

    fn build(&self, _: u16, _: Reserve) -> Box<dyn Target> {
        Box::new(*self)
    }
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
    use crate::sq::SqeOp;

    #[test]
    fn memory_is_asked_and_never_flushed() {
        let mut ram = shard(Ram { dev: DevId(0) }, 64);
        let read = bio(Op::Read, 8, 8);
        let read_op = SqeOp::Read { dev: DevId(0), sector: Sector(8), buf: read.buf };
        assert_eq!(run(&mut ram, read), (alloc::vec![read_op], BlkStatus::Ok));
        assert_eq!(run(&mut ram, bio(Op::Flush, 0, 0)), (alloc::vec![], BlkStatus::Ok));
    }
}
