use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::super::testing::{Steps, World, steps};
use super::*;
use crate::dm::multipath::stacked::{StackedConfig, Stacking};
use crate::dm::testing::bio;
use crate::elevator::ElevatorSpec;
use crate::mq::QueueConfig;

const TWO: &str = "0 0 1 1 round-robin 0 2 0 /a /b";
const TWO_QUEUE: &str = "1 queue_if_no_path 0 1 1 round-robin 0 2 0 /a /b";

fn config(elevator: &str) -> StackedConfig {
    let elevator = ElevatorSpec::parse(elevator).unwrap();
    let usual = QueueConfig::of(elevator.elevator.generation);
    let upper = QueueConfig { fua: true, ..usual };
    let lower = QueueConfig { fua: true, limits: upper.limits, ..QueueConfig::default() };
    StackedConfig { upper, elevator, lower, stacking: Stacking::TODAY }
}

fn world(line: &str) -> World {
    World::of_requests(line, config("mq-deadline"))
}

/// A write of 4 KiB at this block, with its own buffer.
fn write(block: u64) -> Bio {
    let bio = bio(Op::Write, 8 * block, 8);
    let slot = BufRef::FIRST_WORLD_SLOT + u32::try_from(2 * block).unwrap();
    Bio { buf: BufRef { slot, ..bio.buf }, ..bio }
}

/// Device, first sector and length of the writes in flight at the devices.
fn writes(world: &World) -> Vec<(u16, u64, u32)> {
    let of = |sqe: &Sqe| match sqe.op {
        SqeOp::Write { dev, sector, buf, .. } => (dev.0, sector.0, buf.len_bytes / 512),
        _ => panic!("{sqe:?}"),
    };
    world.sqes.iter().map(of).collect()
}

#[test]
fn neighbours_of_one_plug_are_one_request_and_take_one_path() {
    let mut world = world(TWO);
    world.is_plugged = true;
    for block in 0..3 {
        world.submit_bio(write(block));
    }
    assert!(world.sqes.is_empty(), "there may be more to come");
    world.unplug();
    assert_eq!(writes(&world), [(0, 0, 8), (0, 8, 8), (0, 16, 8)]);
    world.answer_all();
    assert_eq!(world.taken_done().len(), 3);
    assert!(world.shard.is_idle());
}

#[test]
fn buffers_in_succession_in_memory_are_one_piece() {
    let mut world = world(TWO);
    world.is_plugged = true;
    let first = write(0);
    let second = BufRef { offset_bytes: 4096, ..first.buf };
    world.submit_bio(first);
    world.submit_bio(Bio { buf: second, ..write(1) });
    world.unplug();
    assert_eq!(writes(&world), [(0, 0, 16)]);
}

#[test]
fn full_plug_is_pulled() {
    let mut world = world(TWO);
    world.is_plugged = true;
    for block in 0..PLUG_MAX as u64 {
        world.submit_bio(write(2 * block));
    }
    assert_eq!(world.sqes.len(), PLUG_MAX);
}

#[test]
fn pieces_before_the_first_that_failed_end_and_the_rest_takes_the_other_path() {
    let mut world = world(TWO);
    world.is_plugged = true;
    let users = [0, 1, 2, 3].map(|block| world.submit_bio(write(block)));
    world.unplug();
    world.answers[0] = BlkStatus::Transport;
    // The third and the second are lost, the others are done.
    world.answer(2);
    world.answer(1);
    world.answers[0] = BlkStatus::Ok;
    world.answer(1);
    assert!(world.done.is_empty(), "the clone has a piece that is not answered");
    world.answer(0);
    assert_eq!(world.taken_done(), [(users[0], BlkStatus::Ok)]);
    assert_eq!(writes(&world), [(1, 8, 8), (1, 16, 8), (1, 24, 8)]);
    assert!(world.info().contains("/a F 1 /b A 0"), "{}", world.info());
    world.answer_all();
    assert_eq!(world.taken_done().len(), 3);
    assert!(world.shard.is_idle() && world.shard.parked() == 0);
}

#[test]
fn error_of_the_disk_goes_up_and_fails_no_path() {
    let mut world = world(TWO_QUEUE);
    world.answers.fill(BlkStatus::Medium);
    let user = world.submit(Op::Read);
    world.answer_all();
    assert_eq!(world.taken_done(), [(user, BlkStatus::Medium)]);
    assert!(world.info().ends_with("/a A 0 /b A 0 "));
}

#[test]
fn operations_without_bytes_go_to_a_path_as_they_are() {
    let mut world = world(TWO);
    let expected = [
        (Op::Discard, SqeOp::Discard { dev: DevId(0), sector: Sector(8), len: Sector(8) }),
        (Op::WriteZeroes, SqeOp::WriteZeroes { dev: DevId(1), sector: Sector(8), len: Sector(8) }),
        (Op::Flush, SqeOp::Flush { dev: DevId(0) }),
    ];
    for (op, sqe) in expected {
        let user = world.submit(op);
        assert_eq!(world.sqes.iter().map(|sqe| sqe.op).collect::<Vec<_>>(), [sqe]);
        world.answer_all();
        assert_eq!(world.taken_done(), [(user, BlkStatus::Ok)]);
    }
}

#[test]
fn fua_is_every_pieces() {
    let mut world = world(TWO);
    world.submit_bio(Bio { fua: true, ..write(0) });
    assert!(matches!(world.sqes[0].op, SqeOp::Write { fua: true, .. }));
}

#[test]
fn path_without_a_tag_leaves_requests_above_where_they_merge() {
    let lower = QueueConfig { queue_depth: 1, ..config("mq-deadline").lower };
    let config = StackedConfig { lower, ..config("mq-deadline") };
    let mut world = World::of_requests("0 0 1 1 round-robin 0 1 0 /a", config);
    for block in [0, 10, 20] {
        world.submit_bio(write(block));
    }
    assert_eq!(writes(&world), [(0, 0, 8)]);
    world.submit_bio(write(21));
    assert!(world.tick(), "it is tried again");
    assert_eq!(world.sqes.len(), 1);
    world.answer(0);
    assert_eq!(writes(&world), [(0, 80, 8)]);
    world.answer(0);
    assert_eq!(writes(&world), [(0, 160, 8), (0, 168, 8)], "one request of two pieces");
    world.answer_all();
    assert!(world.shard.is_idle());
}

#[test]
fn without_a_path_io_waits_for_the_check_the_operator_or_the_suspend() {
    let mut world = world(TWO_QUEUE);
    world.answers.fill(BlkStatus::Transport);
    let first = world.submit(Op::Write);
    let second = world.submit(Op::Read);
    world.answer_all();
    assert_eq!((world.shard.parked(), world.done.len()), (2, 0));
    world.answers[1] = BlkStatus::Ok;
    while world.sqes.is_empty() {
        assert!(world.tick(), "a check is planned");
    }
    assert_eq!(world.now, Nanos::from_ms(1000));
    world.answer_all();
    let mut done = world.taken_done();
    done.sort_by_key(|(user, _)| *user);
    assert_eq!(done, [(first, BlkStatus::Ok), (second, BlkStatus::Ok)]);
    world.message("fail_path /b");
    world.message("fail_path /a");
    let third = world.submit(Op::Write);
    assert_eq!((world.shard.parked(), world.done.len()), (1, 0));
    world.message("fail_if_no_path");
    assert_eq!(world.taken_done(), [(third, BlkStatus::IoError)]);
    world.message("queue_if_no_path");
    let fourth = world.submit(Op::Write);
    world.shard.suspend(world.now, Suspend::Flush);
    world.collect();
    assert_eq!(world.taken_done(), [(fourth, BlkStatus::IoError)]);
    let refused = world.shard.message(world.now, 0, "reinstate_path /b").unwrap_err();
    assert_eq!(refused.to_string(), "the device is suspended; resume it first");
    world.shard.resume_targets(world.now);
    world.message("reinstate_path /b");
    let fifth = world.submit(Op::Write);
    world.answer_all();
    assert_eq!(world.taken_done(), [(fifth, BlkStatus::Ok)]);
}

#[test]
fn reads_do_not_need_their_submitters_bytes_while_a_path_has_them() {
    let mut world = world(TWO_QUEUE);
    world.submit(Op::Write);
    world.submit(Op::Read);
    assert_eq!(world.shard.parked(), 1);
}

proptest! {
    #[test]
    fn whatever_paths_do_no_error_is_seen_and_each_bio_ends_once(
        steps in steps(),
        elevator in prop::sample::select(vec!["none", "mq-deadline", "cfq", "deadline"]),
        depth in 1_u32..4,
    ) {
        let Steps { line, steps } = steps;
        let mut config = config(elevator);
        config.lower.queue_depth = depth;
        World::of_requests(&line, config).survives(&steps)?;
    }
}
