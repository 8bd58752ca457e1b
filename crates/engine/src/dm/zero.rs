//! `zero`: reads zeros, forgets writes (`drivers/md/dm-zero.c`). Table: no arguments.

use super::{Mapped, Part, Target, TargetCx};
use crate::bio::{BlkStatus, Op, Sector};
use crate::sq::{Owner, Sqe, SqeOp, Token};

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
