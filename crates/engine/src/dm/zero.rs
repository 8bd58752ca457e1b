//! `zero`: reads zeros, forgets writes (`drivers/md/dm-zero.c`). Table: no arguments.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use core::fmt;

use super::registry::{Arguments, Keys, Needs, Opened, TargetType};
use super::table::{Flushes, Reserve, TargetFacts, TargetSpec};
use super::{Mapped, Part, Target, TargetCx, words};
use crate::bio::{BlkStatus, Op, Sector};
use crate::sq::{Owner, Sqe, SqeOp, Token};

/// The target's type.
pub static ZERO: TargetType = TargetType {
    name: "zero",
    arguments: "",
    parse: |args, _| {
        words::none(args)?;
        Ok(Arc::new(ZeroSpec))
    },
};

/// A line, which has no arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroSpec;

impl Arguments for ZeroSpec {
    fn write(&self, _: Keys, _: &mut dyn fmt::Write) -> fmt::Result {
        Ok(())
    }

    fn needs(&self, _: Sector) -> Needs<'_> {
        Needs::default()
    }

    fn open(&self, _: Opened) -> Result<Arc<dyn TargetSpec>, String> {
        Ok(Arc::new(*self))
    }
}

impl TargetSpec for ZeroSpec {
    fn facts(&self) -> TargetFacts {
        TargetFacts { reads_zeros: true, ..TargetFacts::new(Flushes::To(vec![])) }
    }

    fn build(&self, number: u16, _: Reserve) -> Box<dyn Target> {
        Box::new(Zero { number })
    }
}

/// A zero device with a length.
#[derive(Debug)]
pub struct Zero {
    /// Its number in the table.
    pub number: u16,
}

impl Target for Zero {
    fn map(&mut self, part: Part, cx: &mut TargetCx<'_>) -> Mapped {
        if part.op != Op::Read {
            return Mapped::Ended(BlkStatus::Ok);
        }
        let token = Token { owner: Owner::Target(self.number), index: part.index };
        let op = SqeOp::Fill { buf: part.buf, byte: 0 };
        cx.push(Sqe { token, op, linked: false, origin: part.origin });
        Mapped::Submitted
    }

    fn on_cqe(&mut self, index: u32, status: BlkStatus, cx: &mut TargetCx<'_>) {
        cx.end(index, status);
    }

    fn max_io(&self, _: Op, _: Sector) -> Sector {
        Sector(u64::MAX)
    }
}
