//! `loop`: a file, block by block, like the dm-loop of the 2013 mail. Table: `<file> <start>`. The
//! syntax is our own, because that target was never in the kernel.
//!
//! The original mapped the blocks of a file to the disk of its file system. So it split every bio
//! at the file system's blocks of 4 KiB, and the layer above saw one small bio for each. This
//! target is `linear` with these splits.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use core::fmt;

use super::registry::{Arguments, Keys, Needs, Opened, TargetType};
use super::table::{Flushes, Reserve, TargetFacts, TargetSpec};
use super::words::device_area;
use super::{DeviceArea, Mapped, Part, Target, TargetCx};
use crate::bio::{BlkStatus, Op, Sector};
use crate::sq::DevId;

/// The target's type.
pub static LOOP: TargetType = TargetType {
    name: "loop",
    arguments: "<file> <start>",
    parse: |args, line| {
        let [file, start] = args else { return Err(LOOP.takes()) };
        Ok(Arc::new(Loop { area: device_area(file, start, line.len)? }))
    },
};

/// A block of the file system: 4 KiB.
const BLOCK: Sector = Sector(8);

/// The loop target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop<D> {
    /// The file, and the start in it.
    pub area: DeviceArea<D>,
}

impl Arguments for Loop<String> {
    fn write(&self, _: Keys, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, " {}", self.area)
    }

    fn needs(&self, len: Sector) -> Needs<'_> {
        Needs::of([&self.area], len)
    }

    fn open(&self, opened: Opened) -> Result<Arc<dyn TargetSpec>, String> {
        Ok(Arc::new(Loop { area: opened.area(0, &self.area) }))
    }
}

impl TargetSpec for Loop<DevId> {
    fn facts(&self) -> TargetFacts {
        let flushes = Flushes::To(vec![self.area.dev]);
        TargetFacts { window: Some(self.area), ..TargetFacts::new(flushes) }
    }

    fn build(&self, _: u16, _: Reserve) -> Box<dyn Target> {
        Box::new(*self)
    }
}

impl Target for Loop<DevId> {
    fn map(&mut self, part: Part, _: &mut TargetCx<'_>) -> Mapped {
        Mapped::Remapped { dev: self.area.dev, sector: self.area.start + part.sector }
    }

    fn on_cqe(&mut self, _: u32, _: BlkStatus, _: &mut TargetCx<'_>) {
        unreachable!("loop pushes no SQE");
    }

    /// Discards and zeroes are not split: one call frees or zeroes any range of a file.
    fn max_io(&self, op: Op, sector: Sector) -> Sector {
        match op {
            Op::Read | Op::Write => (self.area.start + sector).to_border(BLOCK),
            Op::Flush | Op::Discard | Op::WriteZeroes => Sector(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{bio, run, shard};
    use super::*;
    use crate::sq::SqeOp;

    #[test]
    fn transfers_are_cut_at_the_blocks_of_the_file() {
        let area = DeviceArea { dev: DevId(0), start: Sector(4) };
        let write = bio(Op::Write, 0, 16);
        let (ops, _) = run(&mut shard(Loop { area }, 64), write);
        let expected =
            [(4, 0, 4), (8, 4, 8), (16, 12, 4)].map(|(sector, skip, len)| SqeOp::Write {
                dev: DevId(0),
                sector: Sector(sector),
                buf: write.buf.part(skip * 512, len * 512),
                fua: false,
            });
        assert_eq!(ops, expected);
        let (ops, _) = run(&mut shard(Loop { area }, 64), bio(Op::Discard, 0, 64));
        assert_eq!(ops.len(), 1);
    }
}
