//! The phases of a part, step by step, and the reserve of one.

use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::bio::{Bio, Done};
use crate::dm::table::{Table, TableExtent, TargetSpec};
use crate::shard::Shard;
use crate::sq::Cqe;
use crate::time::Nanos;

const SLOT_BYTES: u32 = 64 << 10;
const NOW: Nanos = Nanos(0);

fn spec() -> CryptSpec {
    CryptSpec {
        dev: DevId(0),
        start: Sector(4096),
        iv_offset: 100,
        sector_size_bytes: 512,
        cipher: CipherId(0),
        allow_discards: false,
        fuses_cipher: false,
        fan_out_min_bytes: None,
    }
}

fn shard(spec: CryptSpec, slots: u32) -> Shard {
    let extent =
        TableExtent { start: Sector(0), len: Sector(1 << 20), target: TargetSpec::Crypt(spec) };
    Shard::new(&Table::new(vec![extent]), slots, SLOT_BYTES)
}

fn bio(op: Op, sector: u64, len_bytes: u32) -> Bio {
    let buf = BufRef { slot: BufRef::FIRST_WORLD_SLOT, offset_bytes: 0, len_bytes };
    let len = Sector::holding(u64::from(len_bytes));
    Bio::new(op, Sector(sector), len, buf, sector)
}

fn sqes(shard: &mut Shard) -> Vec<Sqe> {
    let mut out = Vec::new();
    shard.take_sq(&mut out);
    out
}

fn dones(shard: &mut Shard) -> Vec<Done> {
    let mut out = Vec::new();
    shard.take_done(&mut out);
    out
}

fn answer(shard: &mut Shard, sqe: &Sqe, status: BlkStatus) {
    shard.on_cqe(NOW, Cqe { token: sqe.token, status });
}

#[test]
fn write_is_encrypted_into_a_bounce_slot_then_written_from_it() {
    let mut shard = shard(spec(), 1);
    let write = bio(Op::Write, 8, 4096);
    shard.submit_bio(NOW, write);
    let [encrypt] = sqes(&mut shard)[..] else { panic!("one SQE") };
    let SqeOp::Crypt { direction, iv_sector, src, dst, .. } = encrypt.op else { panic!("cipher") };
    assert_eq!((direction, iv_sector, src), (Direction::Encrypt, 108, write.buf));
    assert_eq!(dst, BufRef { slot: 0, offset_bytes: 0, len_bytes: 4096 });
    answer(&mut shard, &encrypt, BlkStatus::Ok);
    let [written] = sqes(&mut shard)[..] else { panic!("one SQE") };
    let (dev, sector) = (DevId(0), Sector(4104));
    assert_eq!(written.op, SqeOp::Write { dev, sector, buf: dst, fua: false });
    assert!(dones(&mut shard).is_empty());
    answer(&mut shard, &written, BlkStatus::Ok);
    assert_eq!(dones(&mut shard), [Done { user: 8, status: BlkStatus::Ok }]);
    assert!(shard.is_idle());
}

#[test]
fn read_is_decrypted_in_place_after_it_has_been_read() {
    let mut shard = shard(spec(), 1);
    let bio = bio(Op::Read, 8, 512);
    shard.submit_bio(NOW, bio);
    let [read] = sqes(&mut shard)[..] else { panic!("one SQE") };
    assert_eq!(read.op, SqeOp::Read { dev: DevId(0), sector: Sector(4104), buf: bio.buf });
    answer(&mut shard, &read, BlkStatus::Ok);
    let [decrypt] = sqes(&mut shard)[..] else { panic!("one SQE") };
    let SqeOp::Crypt { direction, src, dst, .. } = decrypt.op else { panic!("cipher") };
    assert_eq!((direction, src, dst), (Direction::Decrypt, bio.buf, bio.buf));
    answer(&mut shard, &decrypt, BlkStatus::Ok);
    assert_eq!(dones(&mut shard).len(), 1);
}

#[test]
fn fused_device_gets_linked_pairs_and_no_slot_is_taken() {
    let mut shard = shard(CryptSpec { fuses_cipher: true, ..spec() }, 1);
    shard.submit_bio(NOW, bio(Op::Write, 0, 1 << 20));
    shard.submit_bio(NOW, bio(Op::Read, 0, 1 << 20));
    let pairs = sqes(&mut shard);
    assert_eq!(pairs.iter().map(|sqe| sqe.linked).collect::<Vec<_>>(), [true, false, true, false]);
    assert!(matches!(pairs[0].op, SqeOp::Crypt { dst, .. } if dst == BufRef::linked(1 << 20)));
    assert!(matches!(pairs[2].op, SqeOp::Read { buf, .. } if buf == BufRef::linked(1 << 20)));
    for pair in pairs.chunks_exact(2) {
        assert_eq!(pair[0].token, pair[1].token);
        answer(&mut shard, &pair[1], BlkStatus::Ok);
    }
    assert_eq!(dones(&mut shard).len(), 2);
    assert!(shard.is_idle());
}

#[test]
fn reserve_of_one_slot_serves_many_writes_in_order() {
    let mut shard = shard(spec(), 1);
    for sector in 0..5 {
        shard.submit_bio(NOW, bio(Op::Write, sector, 512));
    }
    assert_eq!(shard.parked(), 4);
    let mut written = Vec::new();
    while shard.in_flight() > 0 {
        let [sqe] = sqes(&mut shard)[..] else { panic!("one at a time") };
        if let SqeOp::Write { sector, .. } = sqe.op {
            written.push(sector.0 - 4096);
        }
        answer(&mut shard, &sqe, BlkStatus::Ok);
    }
    assert_eq!(written, [0, 1, 2, 3, 4]);
    assert!(shard.is_idle());
}

#[test]
fn failed_write_ends_once_with_its_error_and_gives_its_slot_back() {
    let mut shard = shard(spec(), 1);
    shard.submit_bio(NOW, bio(Op::Write, 0, 2 * SLOT_BYTES));
    let [encrypt] = sqes(&mut shard)[..] else { panic!("the second half is parked") };
    answer(&mut shard, &encrypt, BlkStatus::Ok);
    let [write] = sqes(&mut shard)[..] else { panic!("one SQE") };
    answer(&mut shard, &write, BlkStatus::NoSpace);
    while let [sqe] = sqes(&mut shard)[..] {
        answer(&mut shard, &sqe, BlkStatus::Ok);
    }
    assert_eq!(dones(&mut shard), [Done { user: 0, status: BlkStatus::NoSpace }]);
    assert!(shard.is_idle());
}

#[test]
fn zeroes_are_written_encrypted_and_discards_only_when_allowed() {
    let mut crypt = shard(spec(), 2);
    crypt.submit_bio(NOW, bio(Op::WriteZeroes, 0, 4096));
    let [encrypt] = sqes(&mut crypt)[..] else { panic!("one SQE") };
    assert!(matches!(encrypt.op, SqeOp::Crypt { src, .. } if src == BufRef::zeros(4096)));
    crypt.submit_bio(NOW, bio(Op::Discard, 0, 4096));
    assert_eq!(dones(&mut crypt)[0].status, BlkStatus::NotSupported);
    let mut crypt = shard(CryptSpec { allow_discards: true, ..spec() }, 2);
    crypt.submit_bio(NOW, bio(Op::Discard, 8, 4096));
    let [discard] = sqes(&mut crypt)[..] else { panic!("one SQE") };
    let (dev, sector, len) = (DevId(0), Sector(4104), Sector(8));
    assert_eq!(discard.op, SqeOp::Discard { dev, sector, len });
}

#[test]
fn part_not_aligned_to_the_sector_size_is_refused() {
    let mut shard = shard(CryptSpec { sector_size_bytes: 4096, ..spec() }, 1);
    shard.submit_bio(NOW, bio(Op::Read, 1, 4096));
    shard.submit_bio(NOW, bio(Op::Write, 0, 512));
    let statuses: Vec<_> = dones(&mut shard).iter().map(|done| done.status).collect();
    assert_eq!(statuses, [BlkStatus::Invalid; 2]);
    assert!(sqes(&mut shard).is_empty());
}

#[test]
fn parts_above_the_threshold_go_to_a_worker() {
    let mut shard = shard(CryptSpec { fan_out_min_bytes: Some(8192), ..spec() }, 2);
    shard.submit_bio(NOW, bio(Op::Write, 0, 4096));
    shard.submit_bio(NOW, bio(Op::Write, 8, 8192));
    let places: Vec<_> = sqes(&mut shard)
        .iter()
        .map(|sqe| match sqe.op {
            SqeOp::Crypt { place, .. } => place,
            _ => panic!("cipher"),
        })
        .collect();
    assert_eq!(places, [Place::Inline, Place::Unbound]);
}
