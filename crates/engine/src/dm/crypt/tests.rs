//! The phases of a part, step by step, and the reserve of a single slot.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use super::pipeline::{Adaptive, Context, Decisions, Order, Pipeline, Tally, find};
use super::*;
use crate::bio::{Bio, Done, IoContext, Origin};
use crate::dm::bounce::Bounce;
use crate::dm::table::{Table, TableExtent};
use crate::priority::Priority;
use crate::shard::Shard;
use crate::sq::{Cqe, Place};
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
        pipeline: fixed("F"),
    }
}

fn fixed(preset: &str) -> Choice {
    Choice::Fixed(find(preset).unwrap().pipeline)
}

fn shard(spec: CryptSpec, slots: u32) -> Shard {
    let extent = TableExtent::new(Sector(0), Sector(1 << 20), Arc::new(spec));
    let bounce = Bounce::Slots { slots, slot_bytes: SLOT_BYTES };
    Shard::new(&Table::new(vec![extent]), bounce).unwrap()
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

/// The thread's wake-up, which submits one write.
fn woken(shard: &mut Shard) -> Sqe {
    let [wake] = sqes(shard)[..] else { panic!("one SQE") };
    assert_eq!(wake.op, SqeOp::Wake);
    answer(shard, &wake, BlkStatus::Ok);
    let [write] = sqes(shard)[..] else { panic!("one SQE") };
    write
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
    let written = woken(&mut shard);
    let dev = DevId(0);
    let sector = Sector(4104);
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
    let write = woken(&mut shard);
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
    let dev = DevId(0);
    let sector = Sector(4104);
    let len = Sector(8);
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

/// The encrypting CPU submits: cipher and write are one pair with a single CQE.
#[test]
fn write_submitted_where_encrypted_is_a_pair_around_its_slot() {
    let mut shard = shard(CryptSpec { pipeline: fixed("E"), ..spec() }, 1);
    shard.submit_bio(NOW, bio(Op::Write, 8, 4096));
    let [encrypt, write] = sqes(&mut shard)[..] else { panic!("a pair") };
    let buf = BufRef { slot: 0, offset_bytes: 0, len_bytes: 4096 };
    assert!(encrypt.linked && !write.linked && encrypt.token == write.token);
    assert!(matches!(encrypt.op, SqeOp::Crypt { dst, place: Place::Unbound, .. } if dst == buf));
    let dev = DevId(0);
    let sector = Sector(4104);
    assert_eq!(write.op, SqeOp::Write { dev, sector, buf, fua: false });
    answer(&mut shard, &write, BlkStatus::Ok);
    assert_eq!(dones(&mut shard).len(), 1);
    assert!(shard.is_idle());
}

/// The sectors in the order in which the thread submits them, if encryption ends in this order, and
/// the number of wake-ups; `late` ends after the first wake-up.
fn submitted(preset: &str, ended: [u64; 4], late: u64) -> (Vec<u64>, usize) {
    let mut shard = shard(CryptSpec { pipeline: fixed(preset), ..spec() }, 8);
    for sector in 0..5 {
        shard.submit_bio(NOW, bio(Op::Write, sector, 512));
    }
    let encrypts = sqes(&mut shard);
    let end = |shard: &mut Shard, sector: u64| {
        answer(shard, &encrypts[sector as usize], BlkStatus::Ok);
        sqes(shard)
    };
    let mut wakes: Vec<Sqe> = ended.iter().flat_map(|sector| end(&mut shard, *sector)).collect();
    assert_eq!(wakes.len(), 1, "woken only when the batch was empty");
    let mut order = Vec::new();
    let mut count = 0;
    while let Some(wake) = wakes.pop() {
        count += 1;
        answer(&mut shard, &wake, BlkStatus::Ok);
        for write in sqes(&mut shard) {
            let SqeOp::Write { sector, .. } = write.op else { panic!("writes only") };
            order.push(sector.0 - 4096);
            answer(&mut shard, &write, BlkStatus::Ok);
        }
        if count == 1 {
            wakes = end(&mut shard, late);
        }
    }
    assert!(shard.is_idle());
    (order, count)
}

#[test]
fn thread_takes_the_whole_batch_and_sorts_it_if_told() {
    assert_eq!(submitted("F", [4, 2, 3, 1], 0), (vec![4, 2, 3, 1, 0], 2));
    assert_eq!(submitted("G", [4, 2, 3, 1], 0), (vec![1, 2, 3, 4, 0], 2));
}

/// Priority and sync stay the submitter's; the io-context only if the pipeline says so.
#[test]
fn encrypted_write_carries_the_name_that_the_pipeline_says() {
    let origin = Origin {
        io_context: IoContext(7),
        cpu: 3,
        priority: Priority::real_time(1),
        sync: true,
        ..Origin::default()
    };
    for (context, expected) in
        [(Context::Task, IoContext::OF_TASK), (Context::Submitter, origin.io_context)]
    {
        for submit in [Submit::WhereEncrypted, Submit::Thread(Order::Fifo)] {
            let pipeline = Pipeline { context, submit, ..find("E").unwrap().pipeline };
            let mut shard = shard(CryptSpec { pipeline: Choice::Fixed(pipeline), ..spec() }, 1);
            shard.submit_bio(NOW, Bio { origin, ..bio(Op::Write, 0, 512) });
            let first = sqes(&mut shard);
            let write = match first[..] {
                [encrypt] => {
                    answer(&mut shard, &encrypt, BlkStatus::Ok);
                    woken(&mut shard)
                }
                [_, write] => write,
                _ => panic!("a cipher, or a pair"),
            };
            assert_eq!(write.origin, Origin { io_context: expected, ..origin });
            assert_eq!(first[0].origin, origin);
        }
    }
}

#[test]
fn parts_are_as_long_as_the_pipeline_lets_them() {
    let mut shard = shard(CryptSpec { pipeline: fixed("linux-today"), ..spec() }, 1);
    shard.submit_bio(NOW, bio(Op::Read, 0, 300 << 10));
    let lengths: Vec<u32> = sqes(&mut shard)
        .iter()
        .map(|sqe| match sqe.op {
            SqeOp::Read { buf, .. } => buf.len_bytes >> 10,
            _ => panic!("reads"),
        })
        .collect();
    assert_eq!(lengths, [128, 128, 44]);
}

#[test]
fn parts_above_the_threshold_go_to_a_worker() {
    let adaptive = Adaptive { fan_out_min_bytes: Some(8192), seeks: false, queues: true };
    let mut shard = shard(CryptSpec { pipeline: Choice::Adaptive(adaptive), ..spec() }, 2);
    shard.submit_bio(NOW, bio(Op::Write, 0, 4096));
    shard.submit_bio(NOW, bio(Op::Write, 8, 8192));
    let places: Vec<_> = sqes(&mut shard)
        .iter()
        .filter_map(|sqe| match sqe.op {
            SqeOp::Crypt { place, .. } => Some(place),
            _ => None,
        })
        .collect();
    assert_eq!(places, [Place::Inline, Place::Unbound]);
}

/// Slots are shorter than the least bytes that pay; handed-over bytes count for later parts.
#[test]
fn write_that_is_cut_goes_to_workers_until_they_have_their_share() {
    let adaptive = Adaptive { fan_out_min_bytes: Some(2 * SLOT_BYTES), seeks: false, queues: true };
    let mut shard = shard(CryptSpec { pipeline: Choice::Adaptive(adaptive), ..spec() }, 16);
    shard.set_load(Load { idle_cpus: 1, is_awaited: true, ..Load::default() });
    shard.submit_bio(NOW, bio(Op::Write, 0, 8 * SLOT_BYTES));
    let is_unbound = |sqe: &Sqe| match sqe.op {
        SqeOp::Crypt { place, .. } => Some(place == Place::Unbound),
        _ => None,
    };
    let places: Vec<bool> = sqes(&mut shard).iter().filter_map(is_unbound).collect();
    assert_eq!(places, [true, true, true, false, false, false, false, false]);
}

/// Each read alone is too short to pay.
#[test]
fn reads_whose_data_comes_at_once_go_to_workers() {
    let adaptive = Adaptive { fan_out_min_bytes: Some(8192), seeks: false, queues: true };
    for (at_once, expected) in [(1, Place::Inline), (2, Place::Unbound)] {
        let mut shard = shard(CryptSpec { pipeline: Choice::Adaptive(adaptive), ..spec() }, 1);
        (0..2).for_each(|number| shard.submit_bio(NOW, bio(Op::Read, 8 * number, 4096)));
        let reads = sqes(&mut shard);
        let cqes: Vec<Cqe> = reads[..at_once]
            .iter()
            .map(|sqe| Cqe { token: sqe.token, status: BlkStatus::Ok })
            .collect();
        let at_once_bytes = shard.arriving_bytes(&cqes);
        assert_eq!(at_once_bytes, 4096 * at_once as u64);
        shard.set_load(Load { at_once_bytes, ..Load::default() });
        cqes.iter().for_each(|cqe| shard.on_cqe(NOW, *cqe));
        for sqe in sqes(&mut shard) {
            assert!(matches!(sqe.op, SqeOp::Crypt { place, .. } if place == expected), "{sqe:?}");
        }
    }
}

#[test]
fn decisions_count_each_part_once_and_sorted_ones_besides() {
    let tally = |parts, bytes| Tally { parts, bytes };
    let adaptive =
        Choice::Adaptive(Adaptive { fan_out_min_bytes: Some(8192), seeks: false, queues: true });
    let mut apart = shard(CryptSpec { pipeline: adaptive, ..spec() }, 4);
    apart.submit_bio(NOW, bio(Op::Write, 0, 4096));
    apart.submit_bio(NOW, bio(Op::Write, 8, 8192));
    let read = CryptSpec { fuses_cipher: true, pipeline: adaptive, ..spec() };
    let mut fused = shard(read, 0);
    fused.submit_bio(NOW, bio(Op::Read, 0, 512));
    let mut decisions = apart.decisions();
    decisions.add(fused.decisions());
    let expected =
        Decisions { inline: tally(2, 4608), fanned_out: tally(1, 8192), sorted: tally(0, 0) };
    assert_eq!(decisions, expected);

    let mut sorting = shard(CryptSpec { pipeline: fixed("G"), ..spec() }, 1);
    sorting.submit_bio(NOW, bio(Op::Write, 0, 4096));
    sorting.submit_bio(NOW, bio(Op::Write, 8, 4096));
    let decisions = sorting.decisions();
    assert_eq!((decisions.fanned_out, decisions.sorted), (tally(1, 4096), tally(1, 4096)));
}
