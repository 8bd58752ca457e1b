use alloc::vec;
use alloc::vec::Vec;

use super::super::testing::{bio, run_at, shard};
use super::*;
use crate::shard::Shard;

const UP: Nanos = Nanos::from_ms(1999);
const DOWN: Nanos = Nanos::from_ms(2000);

/// Two seconds up, one down.
fn flakey(features: &str) -> Shard {
    let mut words = vec!["/dev/a", "100", "2", "1"];
    words.extend(features.split_ascii_whitespace());
    let spec = parse(&words, 64).unwrap();
    let FlakeySpec { up_s, down_s, reads, writes, .. } = spec;
    let area = DeviceArea { dev: DevId(0), start: Sector(100) };
    shard(FlakeySpec { area, up_s, down_s, reads, writes }, 64)
}

fn status(shard: &mut Shard, now: Nanos, op: Op) -> (usize, BlkStatus) {
    let len = if op == Op::Flush { 0 } else { 8 };
    let (ops, status) = run_at(shard, now, bio(op, 0, len));
    (ops.len(), status)
}

const DONE: (usize, BlkStatus) = (1, BlkStatus::Ok);
const FAILED: (usize, BlkStatus) = (0, BlkStatus::IoError);
const DROPPED: (usize, BlkStatus) = (0, BlkStatus::Ok);

#[test]
fn everything_fails_while_it_is_down_and_nothing_while_it_is_up() {
    let mut flakey = flakey("");
    for op in [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes] {
        for (second, expected) in [(0, DONE), (1, DONE), (2, FAILED), (3, DONE), (5, FAILED)] {
            let now = Nanos::from_ms(second * 1000);
            assert_eq!(status(&mut flakey, now, op), expected, "{op:?}, second {second}");
        }
    }
    let (ops, _) = run_at(&mut flakey, UP, bio(Op::Discard, 4, 8));
    let dev = DevId(0);
    let sector = Sector(104);
    let len = Sector(8);
    assert_eq!(ops, [SqeOp::Discard { dev, sector, len }]);
}

#[test]
fn each_feature_spares_bios_that_it_does_not_name() {
    let cases = [
        ("1 error_reads", FAILED, DONE),
        ("1 error_writes", DONE, FAILED),
        ("1 drop_writes", DONE, DROPPED),
        ("2 error_reads drop_writes", FAILED, DROPPED),
    ];
    for (features, reads, writes) in cases {
        let mut flakey = flakey(features);
        assert_eq!(status(&mut flakey, DOWN, Op::Read), reads, "{features}");
        for op in [Op::Write, Op::Flush, Op::Discard] {
            assert_eq!(status(&mut flakey, DOWN, op), writes, "{features}, {op:?}");
        }
        assert_eq!(status(&mut flakey, UP, Op::Write), DONE, "{features}");
    }
}

#[test]
fn corrupted_byte_is_replaced_once_the_read_is_done_and_only_while_down() {
    let mut flakey = flakey("5 corrupt_bio_byte 513 r 7 0");
    let read = bio(Op::Read, 0, 2);
    let done = SqeOp::Read { dev: DevId(0), sector: Sector(100), buf: read.buf };
    let corrupted = SqeOp::Fill { buf: read.buf.part(512, 1), byte: 7 };
    assert_eq!(run_at(&mut flakey, DOWN, read).0, [done, corrupted]);
    assert_eq!(run_at(&mut flakey, UP, read).0, [done]);
    assert_eq!(run_at(&mut flakey, DOWN, bio(Op::Read, 0, 1)).0.len(), 1, "it is too short");
    assert_eq!(status(&mut flakey, DOWN, Op::Write), DONE);
}

#[test]
fn wrong_arguments_name_what_is_wrong() {
    let problem = |text: &str| {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        parse(&words, 64).unwrap_err()
    };
    assert!(problem("/a 0 1").contains("flakey takes"));
    assert!(problem("/a 0 0 0").contains("both zero"));
    assert!(problem("/a 0 4294967296 0").contains("up interval 4294967296 is more than"));
    assert!(problem("/a 18446744073709551615 1 1").contains("2^64 bytes"));
    assert!(problem("/a 0 1 1 2 drop_writes").contains("announces 2 feature words"));
    assert!(problem("/a 0 1 1 2 drop_writes error_writes").contains("contradicts"));
    assert!(problem("/a 0 1 1 1 burn").contains("feature `burn` is unknown"));
    assert!(problem("/a 0 1 1 2 random_read_corrupt 5").contains("corrupt_bio_byte is"));
    let corrupt = |words: &str| problem(&alloc::format!("/a 0 1 1 5 corrupt_bio_byte {words}"));
    assert!(corrupt("0 r 1 0").contains("not one of 1 to"));
    assert!(corrupt("1 w 1 0").contains("never changed"));
    assert!(corrupt("1 x 1 0").contains("neither r nor w"));
    assert!(corrupt("1 r 256 0").contains("not a byte"));
    assert!(corrupt("1 r 1 32").contains("must be 0"));
    assert!(problem("/a 0 1 1 1 corrupt_bio_byte").contains("corrupt_bio_byte takes"));
}
