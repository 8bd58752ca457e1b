use alloc::vec;
use alloc::vec::Vec;

use super::super::testing::{bio, run, shard};
use super::*;
use crate::shard::Shard;

fn null(options: &str, memory: Option<DevId>) -> Shard {
    let words: Vec<&str> = options.split_ascii_whitespace().collect();
    let options = parse(&words, LineRange { start: 0, len: 64 }).unwrap();
    shard(NullSpec { options, memory }, 64)
}

#[test]
fn without_memory_nothing_is_kept_and_reads_give_zeros() {
    let mut plain = null("", None);
    assert_eq!(run(&mut plain, bio(Op::Write, 0, 8)), (vec![], BlkStatus::Ok));
    let read = bio(Op::Read, 0, 8);
    let zeros = SqeOp::Fill { buf: read.buf, byte: 0 };
    assert_eq!(run(&mut plain, read), (vec![zeros], BlkStatus::Ok));
    assert_eq!(run(&mut plain, bio(Op::Discard, 0, 8)).1, BlkStatus::NotSupported);
    assert_eq!(run(&mut null("1 stale_reads:1", None), read), (vec![], BlkStatus::Ok));
    assert_eq!(run(&mut null("1 discard:1", None), bio(Op::Discard, 0, 8)).1, BlkStatus::Ok);
}

#[test]
fn timer_comes_after_the_transfer() {
    let mut null = null("3 irqmode:timer completion_nsec:70 memory_backed:1", Some(DevId(2)));
    let write = bio(Op::Write, 8, 8);
    let (ops, status) = run(&mut null, write);
    let dev = DevId(2);
    let sector = Sector(8);
    let transfer = SqeOp::Write { dev, sector, buf: write.buf, fua: false };
    assert_eq!(ops, [transfer, SqeOp::Timeout { after: Nanos(70) }]);
    assert_eq!(status, BlkStatus::Ok);
}

#[test]
fn timer_alone_takes_its_usual_time() {
    let ops = run(&mut null("1 irqmode:2", None), bio(Op::Write, 0, 8)).0;
    assert_eq!(ops, [SqeOp::Timeout { after: Nanos(10_000) }]);
}

#[test]
fn bad_blocks_fail_and_their_neighbours_do_not() {
    let status = |op, sector, len| run(&mut null("1 badblocks:8-9", None), bio(op, sector, len)).1;
    assert_eq!(status(Op::Read, 7, 1), BlkStatus::Ok);
    assert_eq!(status(Op::Write, 7, 2), BlkStatus::IoError);
    assert_eq!(status(Op::Read, 9, 8), BlkStatus::IoError);
    assert_eq!(status(Op::Write, 10, 8), BlkStatus::Ok);
}

#[test]
fn request_not_aligned_to_the_block_size_is_refused() {
    let mut null = null("1 blocksize:4096", None);
    assert_eq!(run(&mut null, bio(Op::Write, 4, 8)).1, BlkStatus::Invalid);
    assert_eq!(run(&mut null, bio(Op::Write, 8, 8)).1, BlkStatus::Ok);
}

#[test]
fn wrong_options_name_what_is_wrong() {
    let problem = |words: &[&str]| parse(words, LineRange { start: 0, len: 64 }).unwrap_err();
    assert!(problem(&["2", "discard:1"]).contains("announces 2 options"));
    assert!(problem(&["1", "discard"]).contains("name:value"));
    assert!(problem(&["1", "discard:2"]).contains("0 or 1"));
    assert!(problem(&["1", "irqmode:3"]).contains("irqmode `3`"));
    assert!(problem(&["1", "hw_queue_depth:64"]).contains("request queue"));
    assert!(problem(&["1", "gb:4"]).contains("unknown"));
    assert!(problem(&["1", "badblocks:9-8"]).contains("end before"));
    assert!(problem(&["1", "blocksize:8192"]).contains("none of 512"));
    let unaligned = parse(&["1", "blocksize:4096"], LineRange { start: 0, len: 9 }).unwrap_err();
    assert!(unaligned.contains("not multiples of the block size"));
}
