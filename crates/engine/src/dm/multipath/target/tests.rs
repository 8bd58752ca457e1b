use alloc::string::ToString;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::super::testing::{Steps, World, steps};
use super::*;
use crate::dm::testing::shard;
use crate::dm::zero::ZeroSpec;

const TWO: &str = "0 0 1 1 round-robin 0 2 0 /a /b";
const TWO_QUEUE: &str = "1 queue_if_no_path 0 1 1 round-robin 0 2 0 /a /b";

#[test]
fn part_of_a_path_that_dies_goes_to_the_other_as_it_is() {
    let mut world = World::new(TWO);
    world.answers[0] = BlkStatus::Transport;
    for op in [Op::Write, Op::Read, Op::Discard, Op::WriteZeroes] {
        let user = world.submit(op);
        let first = world.sqes[0];
        if World::dev(&first) == 0 {
            world.answer(0);
            let with_dev = |sqe: &Sqe| match sqe.op {
                SqeOp::Write { sector, buf, fua, .. } => (sector, buf, fua),
                _ => panic!("the first one writes"),
            };
            assert_eq!(with_dev(&world.sqes[0]), with_dev(&first));
        }
        assert_eq!(World::dev(&world.sqes[0]), 1, "{op:?}");
        world.answer(0);
        assert_eq!(world.taken_done(), [(user, BlkStatus::Ok)], "{op:?}");
    }
    assert_eq!(world.info(), "2 0 0 0 1 1 A 0 2 0 /a F 1 /b A 0 ");
    assert!(world.shard.is_idle());
}

#[test]
fn error_of_the_disk_goes_up_and_fails_no_path() {
    let mut world = World::new(TWO_QUEUE);
    for status in [BlkStatus::Medium, BlkStatus::NoSpace, BlkStatus::NotSupported] {
        world.answers.fill(status);
        let user = world.submit(Op::Write);
        world.answer(0);
        assert_eq!(world.taken_done(), [(user, status)]);
    }
    assert!(world.info().ends_with("/a A 0 /b A 0 "));
    assert!(world.timers.is_empty());
}

#[test]
fn without_a_path_io_fails_at_once() {
    let mut world = World::new(TWO);
    world.answers.fill(BlkStatus::Transport);
    let first = world.submit(Op::Read);
    world.answer_all();
    assert_eq!(world.taken_done(), [(first, BlkStatus::Transport)], "the path's own error");
    let second = world.submit(Op::Write);
    assert_eq!(world.taken_done(), [(second, BlkStatus::IoError)]);
    assert!(world.shard.is_idle());
}

#[test]
fn with_queue_if_no_path_io_waits_for_a_path_and_goes_on_in_order() {
    let mut world = World::new(TWO_QUEUE);
    world.answers.fill(BlkStatus::Transport);
    let users = [world.submit(Op::Write), world.submit(Op::Read)];
    world.answer_all();
    let flush = world.submit(Op::Flush);
    assert_eq!((world.shard.parked(), world.done.len(), world.sqes.len()), (3, 0, 0));
    world.answers[1] = BlkStatus::Ok;
    while world.sqes.is_empty() {
        assert!(world.tick(), "a check is planned");
    }
    assert_eq!(world.now, Nanos::from_ms(1000));
    world.answer_all();
    let ok = |user: u64| (user, BlkStatus::Ok);
    let parked = [ok(users[1]), ok(users[0]), ok(flush)];
    assert_eq!(world.taken_done(), parked, "the first one tried the second path behind the other");
    assert_eq!(world.shard.parked(), 0);
    assert!(world.shard.is_idle());
}

#[test]
fn waiting_ends_when_the_operator_or_a_suspend_says_so() {
    type End = fn(&mut World);
    let end: [(&str, End); 2] = [
        ("fail_if_no_path", |world| world.message("fail_if_no_path")),
        ("suspend", |world| {
            world.shard.suspend(world.now, Suspend::Flush);
            world.collect();
        }),
    ];
    for (what, end) in end {
        let mut world = World::new(TWO_QUEUE);
        ["fail_path /a", "fail_path /b"].into_iter().for_each(|message| world.message(message));
        let users = [world.submit(Op::Read), world.submit(Op::Write)];
        assert_eq!(world.shard.parked(), 2);
        end(&mut world);
        let failed = users.map(|user| (user, BlkStatus::IoError));
        let mut done = world.taken_done();
        done.sort_by_key(|(user, _)| *user);
        assert_eq!(done, failed, "{what}");
        assert!(world.shard.is_idle());
    }
}

#[test]
fn suspending_without_a_flush_keeps_waiting_bios() {
    let mut world = World::new(TWO_QUEUE);
    ["fail_path /a", "fail_path /b"].into_iter().for_each(|message| world.message(message));
    let user = world.submit(Op::Write);
    world.shard.suspend(world.now, Suspend::NoFlush);
    world.collect();
    assert_eq!((world.shard.parked(), world.done.len()), (1, 0));
    let refused = world.shard.message(world.now, 0, "reinstate_path /b").unwrap_err();
    assert_eq!(refused.to_string(), "the device is suspended; resume it first");
    world.shard.resume_targets(world.now);
    world.message("reinstate_path /b");
    world.answer_all();
    assert_eq!(world.taken_done(), [(user, BlkStatus::Ok)]);
}

#[test]
fn flush_goes_to_one_live_path() {
    let mut world = World::new(TWO);
    world.message("fail_path /a");
    for _ in 0..3 {
        world.submit(Op::Flush);
    }
    let ops: Vec<SqeOp> = world.sqes.iter().map(|sqe| sqe.op).collect();
    assert_eq!(ops, [SqeOp::Flush { dev: DevId(1) }; 3]);
    world.answer_all();
    assert_eq!(world.done.len(), 3);
}

#[test]
fn writes_need_their_submitters_bytes_until_they_end() {
    let mut world = World::new(TWO);
    world.submit(Op::Write);
    world.submit(Op::Read);
    assert_eq!(world.shard.parked(), 1, "the write may go again");
    world.answer_all();
    assert_eq!(world.shard.parked(), 0);
}

#[test]
fn checks_are_timed_each_on_its_own() {
    let mut world = World::new(TWO_QUEUE);
    world.answers[0] = BlkStatus::Transport;
    world.message("fail_path /b");
    world.submit(Op::Read);
    world.answer_all();
    let mut times = Vec::new();
    for _ in 0..5 {
        assert!(world.tick());
        times.push(world.now.0 / 1_000_000_000);
        assert_eq!(
            world.sqes.iter().map(|sqe| sqe.op).collect::<Vec<_>>(),
            [SqeOp::Check { dev: DevId(0) }]
        );
        world.answer_all();
    }
    assert_eq!(times, [1, 3, 7, 15, 31]);
    // Its next check is in 32 s; the other path, failing now, has its own in 1 s.
    world.message("reinstate_path /b");
    world.answers[1] = BlkStatus::Transport;
    world.answer_all();
    world.tick();
    assert_eq!((world.now, World::dev(&world.sqes[0])), (Nanos::from_ms(32_000), 1));
}

#[test]
fn table_without_messages_refuses_them() {
    let mut shard = shard(ZeroSpec, 8);
    let refused = shard.message(Nanos(0), 0, "fail_if_no_path").unwrap_err();
    assert_eq!(refused.to_string(), "this target takes no messages");
    assert_eq!(shard.status(0), None);
}

proptest! {
    #[test]
    fn whatever_paths_do_no_error_is_seen_and_each_bio_ends_once(steps in steps()) {
        let Steps { line, steps } = steps;
        World::new(&line).survives(&steps)?;
    }
}
