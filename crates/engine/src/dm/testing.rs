//! One target under test: a table of one line, and a world in which every SQE succeeds.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use super::bounce::Bounce;
use super::table::{Table, TableExtent, TargetSpec};
use crate::bio::{Bio, BlkStatus, Op, Sector};
use crate::buf::BufRef;
use crate::shard::Shard;
use crate::sq::{Cqe, SqeOp};
use crate::time::Nanos;

/// A shard of one line.
pub(super) fn shard(target: impl TargetSpec, len: u64) -> Shard {
    let extent = TableExtent::new(Sector(0), Sector(len), Arc::new(target));
    let bounce = Bounce::Slots { slots: 0, slot_bytes: 4096 };
    Shard::new(&Table::new(vec![extent]), bounce).unwrap()
}

/// A bio, with a buffer of its length if the operation has one.
pub(super) fn bio(op: Op, sector: u64, len: u64) -> Bio {
    let buf = match op {
        Op::Read | Op::Write => {
            let len_bytes = u32::try_from(len * 512).unwrap();
            BufRef { slot: BufRef::FIRST_WORLD_SLOT, offset_bytes: 0, len_bytes }
        }
        Op::Flush | Op::Discard | Op::WriteZeroes => BufRef::NONE,
    };
    Bio::new(op, Sector(sector), Sector(len), buf, 7)
}

/// All SQEs of one bio, and its status.
pub(super) fn run(shard: &mut Shard, bio: Bio) -> (Vec<SqeOp>, BlkStatus) {
    run_at(shard, Nanos(0), bio)
}

/// As [`run`], at a certain time.
pub(super) fn run_at(shard: &mut Shard, now: Nanos, bio: Bio) -> (Vec<SqeOp>, BlkStatus) {
    shard.submit_bio(now, bio);
    let mut ops = Vec::new();
    let mut sqes = Vec::new();
    loop {
        shard.take_sq(&mut sqes);
        if sqes.is_empty() {
            break;
        }
        for sqe in sqes.drain(..) {
            ops.push(sqe.op);
            shard.on_cqe(now, Cqe { token: sqe.token, status: BlkStatus::Ok });
        }
    }
    let mut done = Vec::new();
    shard.take_done(&mut done);
    assert_eq!((done.len(), done[0].user, shard.is_idle(), shard.parked()), (1, 7, true, 0));
    (ops, done[0].status)
}
