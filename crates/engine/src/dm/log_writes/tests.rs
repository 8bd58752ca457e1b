use alloc::vec;
use alloc::vec::Vec;

use super::super::testing::{bio, run, shard};
use super::*;
use crate::bio::Bio;
use crate::shard::Shard;
use crate::sq::Cqe;
use crate::time::Nanos;

const DEV: DevId = DevId(1);
const LOG: LogId = LogId(3);

fn log_writes() -> Shard {
    shard(LogWritesSpec { dev: DEV, log: LOG }, 1024)
}

#[test]
fn write_is_logged_with_its_bytes_after_the_device_has_it() {
    let write = Bio { fua: true, ..bio(Op::Write, 8, 8) };
    let sector = Sector(8);
    let written = SqeOp::Write { dev: DEV, sector, buf: write.buf, fua: true };
    let step = LogStep::Written { sector, fua: true };
    let (ops, status) = run(&mut log_writes(), write);
    assert_eq!(ops, [written, SqeOp::Log { log: LOG, step, buf: write.buf }]);
    assert_eq!(status, BlkStatus::Ok);
}

#[test]
fn flush_is_announced_before_and_logged_after() {
    let steps: Vec<_> = run(&mut log_writes(), bio(Op::Flush, 0, 0)).0;
    let log = |step| SqeOp::Log { log: LOG, step, buf: BufRef::NONE };
    let ended = LogStep::FlushEnded { is_stable: true };
    assert_eq!(steps, [log(LogStep::FlushStarts), SqeOp::Flush { dev: DEV }, log(ended)]);
}

#[test]
fn zeroes_are_logged_as_bytes_discards_without_and_reads_not_at_all() {
    let len_bytes = ZEROS_MAX_BYTES;
    let zeroes = bio(Op::WriteZeroes, 0, 2 * u64::from(len_bytes) / 512);
    let (ops, _) = run(&mut log_writes(), zeroes);
    let logged = |op: &&SqeOp| {
        matches!(op, SqeOp::Log { step: LogStep::Written { .. }, buf, .. }
            if *buf == BufRef::zeros(len_bytes))
    };
    assert_eq!(ops.iter().filter(logged).count(), 2);
    let (ops, _) = run(&mut log_writes(), bio(Op::Discard, 4, 4));
    let step = LogStep::Discarded { sector: Sector(4), len: Sector(4) };
    assert_eq!(ops[1], SqeOp::Log { log: LOG, step, buf: BufRef::NONE });
    assert_eq!(run(&mut log_writes(), bio(Op::Read, 4, 4)).0.len(), 1);
}

#[test]
fn failed_write_is_not_logged_and_a_failed_flush_makes_nothing_stable() {
    for (op, len, expected) in [(Op::Write, 8, vec![]), (Op::Flush, 0, vec![false])] {
        let mut shard = log_writes();
        shard.submit_bio(Nanos(0), bio(op, 0, len));
        let mut sqes = Vec::new();
        let mut stable = Vec::new();
        let mut done = Vec::new();
        while shard.in_flight() > 0 {
            shard.take_sq(&mut sqes);
            for sqe in sqes.drain(..) {
                let status = match sqe.op {
                    SqeOp::Write { .. } | SqeOp::Flush { .. } => BlkStatus::IoError,
                    _ => BlkStatus::Ok,
                };
                if let SqeOp::Log { step: LogStep::FlushEnded { is_stable }, .. } = sqe.op {
                    stable.push(is_stable);
                }
                shard.on_cqe(Nanos(0), Cqe { token: sqe.token, status });
            }
        }
        shard.take_done(&mut done);
        assert_eq!((done[0].status, stable), (BlkStatus::IoError, expected), "{op:?}");
        assert!(shard.is_idle());
    }
}

#[test]
fn device_and_log_are_two() {
    assert!(parse(&["/a", "/a"]).unwrap_err().contains("the same"));
    assert!(parse(&["/a"]).unwrap_err().contains("log-writes takes"));
}
