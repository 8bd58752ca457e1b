use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::bio::Done;
use crate::dm::line::LineTarget;
use crate::dm::table::TargetSpec;
use crate::dm::testing::{bio, shard};
use crate::shard::Shard;
use crate::sq::Cqe;

/// A shard and devices that are reached or not. SQEs are answered when it is said so.
struct World {
    shard: Shard,
    now: Nanos,
    /// By device: what it answers.
    answers: Vec<BlkStatus>,
    /// With the devices.
    sqes: Vec<Sqe>,
    timers: Vec<(Nanos, Token)>,
    done: Vec<Done>,
    submitted: u64,
}

impl World {
    fn new(line: &str) -> Self {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let LineTarget::Multipath(multipath) = super::super::line::parse(&words).unwrap() else {
            panic!("multipath")
        };
        let devs: Vec<DevId> = (0..).map(DevId).take(multipath.paths().count()).collect();
        let answers = vec![BlkStatus::Ok; devs.len()];
        let spec = MultipathTargetSpec { multipath, devs };
        Self {
            shard: shard(TargetSpec::Multipath(spec), 64),
            now: Nanos(0),
            answers,
            sqes: Vec::new(),
            timers: Vec::new(),
            done: Vec::new(),
            submitted: 0,
        }
    }

    fn submit(&mut self, op: Op) -> u64 {
        let user = self.submitted;
        self.submitted += 1;
        let len = if op == Op::Flush { 0 } else { 8 };
        self.shard.submit_bio(self.now, crate::bio::Bio { user, ..bio(op, 8, len) });
        self.collect();
        user
    }

    fn message(&mut self, text: &str) {
        self.shard.message(self.now, 0, text).unwrap();
        self.collect();
    }

    fn collect(&mut self) {
        let mut sqes = Vec::new();
        self.shard.take_sq(&mut sqes);
        for sqe in sqes {
            match sqe.op {
                SqeOp::Timeout { after } => self.timers.push((self.now + after, sqe.token)),
                _ => self.sqes.push(sqe),
            }
        }
        self.shard.take_done(&mut self.done);
    }

    fn dev(sqe: &Sqe) -> usize {
        let (SqeOp::Read { dev, .. }
        | SqeOp::Write { dev, .. }
        | SqeOp::Discard { dev, .. }
        | SqeOp::WriteZeroes { dev, .. }
        | SqeOp::Flush { dev }
        | SqeOp::Check { dev }) = sqe.op
        else {
            panic!("{sqe:?}")
        };
        usize::from(dev.0)
    }

    /// One of the SQEs is answered.
    fn answer(&mut self, index: usize) {
        let sqe = self.sqes.remove(index);
        let status = self.answers[Self::dev(&sqe)];
        self.shard.on_cqe(self.now, Cqe { token: sqe.token, status });
        self.collect();
    }

    /// All are, and those that follow.
    fn answer_all(&mut self) {
        while !self.sqes.is_empty() {
            self.answer(0);
        }
    }

    /// Time passes until the next timeout, which ends. Whether there was one.
    fn tick(&mut self) -> bool {
        let first = self.timers.iter().enumerate().min_by_key(|(_, (at, _))| *at);
        let Some((index, _)) = first else { return false };
        let (at, token) = self.timers.remove(index);
        self.now = at;
        self.shard.on_cqe(at, Cqe { token, status: BlkStatus::Ok });
        self.collect();
        true
    }

    fn taken_done(&mut self) -> Vec<(u64, BlkStatus)> {
        self.done.drain(..).map(|done| (done.user, done.status)).collect()
    }

    fn info(&mut self) -> String {
        self.shard.status(0).unwrap().info
    }
}

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
fn suspending_without_a_flush_keeps_what_waits() {
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
    let mut shard = shard(TargetSpec::Zero, 8);
    let refused = shard.message(Nanos(0), 0, "fail_if_no_path").unwrap_err();
    assert_eq!(refused.to_string(), "this target takes no messages");
    assert_eq!(shard.status(0), None);
}

/// What may happen next.
#[derive(Clone, Debug)]
enum Step {
    Submit(Op),
    Answer(prop::sample::Index),
    Dev(prop::sample::Index, BlkStatus),
    Tick,
    Message(&'static str),
    Suspend(Suspend),
    Resume,
}

fn step() -> impl Strategy<Value = Step> {
    let ops = vec![Op::Read, Op::Write, Op::Write, Op::Flush, Op::Discard];
    let statuses = vec![BlkStatus::Ok, BlkStatus::Ok, BlkStatus::Transport];
    let messages = vec![
        "fail_path /a",
        "reinstate_path /a",
        "reinstate_path /b",
        "switch_group 2",
        "disable_group 1",
        "enable_group 1",
    ];
    let index = any::<prop::sample::Index>;
    prop_oneof![
        6 => prop::sample::select(ops).prop_map(Step::Submit),
        6 => index().prop_map(Step::Answer),
        2 => (index(), prop::sample::select(statuses)).prop_map(|(dev, is)| Step::Dev(dev, is)),
        2 => Just(Step::Tick),
        1 => prop::sample::select(messages).prop_map(Step::Message),
        1 => prop_oneof![Just(Step::Suspend(Suspend::NoFlush)), Just(Step::Resume)],
    ]
}

fn happens(world: &mut World, step: &Step) {
    match *step {
        Step::Submit(op) => drop(world.submit(op)),
        Step::Answer(_) if world.sqes.is_empty() => {}
        Step::Answer(which) => world.answer(which.index(world.sqes.len())),
        Step::Dev(dev, is) => {
            let dev = dev.index(world.answers.len());
            world.answers[dev] = is;
        }
        Step::Tick => drop(world.tick()),
        Step::Message(text) => {
            let _ = world.shard.message(world.now, 0, text);
            world.collect();
        }
        Step::Suspend(how) => {
            world.shard.suspend(world.now, how);
            world.collect();
        }
        Step::Resume => {
            world.shard.resume_targets(world.now);
            world.collect();
        }
    }
}

/// Every device is reached and the operator takes back what was failed: then all ends.
fn recover(world: &mut World) {
    world.answers.fill(BlkStatus::Ok);
    world.shard.resume_targets(world.now);
    world.collect();
    ["/a", "/b", "/c"]
        .into_iter()
        .for_each(|path| world.message(&alloc::format!("reinstate_path {path}")));
    loop {
        world.answer_all();
        if !world.tick() {
            break;
        }
    }
}

proptest! {
    #[test]
    fn whatever_paths_do_no_error_is_seen_and_each_bio_ends_once(
        steps in prop::collection::vec(step(), 1..150),
        selector in prop::sample::select(vec!["round-robin", "queue-length", "service-time",
            "historical-service-time"]),
    ) {
        let groups = alloc::format!("{selector} 0 2 0 /a /b {selector} 0 1 0 /c");
        let line = alloc::format!("1 queue_if_no_path 0 2 1 {groups}");
        let mut world = World::new(&line);
        for step in &steps {
            happens(&mut world, step);
            let in_flight = world.submitted as usize - world.done.len();
            prop_assert_eq!(world.shard.in_flight(), in_flight);
        }
        recover(&mut world);
        let submitted = world.submitted;
        let mut done = world.taken_done();
        done.sort_by_key(|(user, _)| *user);
        let all: Vec<_> = (0..submitted).map(|user| (user, BlkStatus::Ok)).collect();
        prop_assert_eq!(done, all);
        prop_assert!(world.shard.is_idle() && world.shard.parked() == 0);
    }
}
