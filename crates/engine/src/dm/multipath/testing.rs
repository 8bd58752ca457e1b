//! Requests and answers for tests of selectors, and a world for both targets.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::selector::{Ask, PathSelector, Served};
use super::target::MultipathTargetSpec;
use crate::bio::{Bio, BlkStatus, Done, Op};
use crate::dm::control::Suspend;
use crate::dm::multipath::stacked::StackedConfig;
use crate::dm::testing::{bio, shard};
use crate::shard::Shard;
use crate::sq::{Cqe, DevId, Sqe, SqeOp, Token};
use crate::time::Nanos;

/// An I/O at time zero on CPU zero.
pub(super) fn ask(len_bytes: u64) -> Ask {
    Ask { now: Nanos(0), cpu: 0, len_bytes }
}

/// An I/O of 4 KiB.
pub(super) fn ask_at(now_ns: u64) -> Ask {
    Ask { now: Nanos(now_ns), ..ask(4096) }
}

/// An I/O that was served between two times.
pub(super) fn served(len_bytes: u64, started_at_ns: u64, ended_at_ns: u64) -> Served {
    let started_at = Nanos(started_at_ns);
    let ended_at = Nanos(ended_at_ns);
    Served { len_bytes, started_at, ended_at }
}

/// Choices for `count` I/Os of 512 bytes, none of which starts.
pub(super) fn choices(selector: &mut dyn PathSelector, count: usize) -> Vec<usize> {
    (0..count).map(|_| selector.choose(&ask(512)).unwrap()).collect()
}

/// A shard and devices that are reachable or not. The test decides when SQEs complete.
pub(super) struct World {
    pub(super) shard: Shard,
    pub(super) now: Nanos,
    /// Answer of each device.
    pub(super) answers: Vec<BlkStatus>,
    /// SQEs at the devices.
    pub(super) sqes: Vec<Sqe>,
    pub(super) timers: Vec<(Nanos, Token)>,
    wakes: Vec<Token>,
    /// Whether the submitter has more to come.
    pub(super) is_plugged: bool,
    pub(super) done: Vec<Done>,
    pub(super) submitted: u64,
}

impl World {
    /// A world with this line for bios.
    pub(super) fn new(line: &str) -> Self {
        Self::of(line, None)
    }

    /// A world with this line for requests.
    pub(super) fn of_requests(line: &str, config: StackedConfig) -> Self {
        Self::of(line, Some(config))
    }

    fn of(line: &str, requests: Option<StackedConfig>) -> Self {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let multipath = super::line::parse(&words).unwrap();
        let devs: Vec<DevId> = (0..).map(DevId).take(multipath.paths().count()).collect();
        let answers = vec![BlkStatus::Ok; devs.len()];
        let spec = MultipathTargetSpec { multipath, devs, requests };
        Self {
            shard: shard(spec, 1024),
            now: Nanos(0),
            answers,
            sqes: Vec::new(),
            timers: Vec::new(),
            wakes: Vec::new(),
            is_plugged: false,
            done: Vec::new(),
            submitted: 0,
        }
    }

    pub(super) fn submit(&mut self, op: Op) -> u64 {
        let len = if op == Op::Flush { 0 } else { 8 };
        self.submit_bio(bio(op, 8, len))
    }

    pub(super) fn submit_bio(&mut self, bio: Bio) -> u64 {
        let user = self.submitted;
        self.submitted += 1;
        self.shard.submit_bio(self.now, Bio { user, ..bio });
        self.collect();
        user
    }

    pub(super) fn message(&mut self, text: &str) {
        self.shard.message(self.now, 0, text).unwrap();
        self.collect();
    }

    pub(super) fn collect(&mut self) {
        let mut sqes = Vec::new();
        self.shard.take_sq(&mut sqes);
        for sqe in sqes {
            match sqe.op {
                SqeOp::Timeout { after } => self.timers.push((self.now + after, sqe.token)),
                SqeOp::Wake => self.wakes.push(sqe.token),
                _ => self.sqes.push(sqe),
            }
        }
        self.shard.take_done(&mut self.done);
        if !self.is_plugged && !self.wakes.is_empty() {
            self.unplug();
        }
    }

    /// Ends the submitter's burst.
    pub(super) fn unplug(&mut self) {
        self.is_plugged = false;
        for token in core::mem::take(&mut self.wakes) {
            self.shard.on_cqe(self.now, Cqe { token, status: BlkStatus::Ok });
        }
        self.collect();
    }

    pub(super) fn dev(sqe: &Sqe) -> usize {
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

    /// Completes one SQE.
    pub(super) fn answer(&mut self, index: usize) {
        let sqe = self.sqes.remove(index);
        let status = self.answers[Self::dev(&sqe)];
        self.shard.on_cqe(self.now, Cqe { token: sqe.token, status });
        self.collect();
    }

    /// Completes all SQEs, and those that follow.
    pub(super) fn answer_all(&mut self) {
        while !self.sqes.is_empty() {
            self.answer(0);
        }
    }

    /// Advances to the next timeout and ends it. Returns whether there was one.
    pub(super) fn tick(&mut self) -> bool {
        let first = self.timers.iter().enumerate().min_by_key(|(_, (at, _))| *at);
        let Some((index, _)) = first else { return false };
        let (at, token) = self.timers.remove(index);
        self.now = at;
        self.shard.on_cqe(at, Cqe { token, status: BlkStatus::Ok });
        self.collect();
        true
    }

    pub(super) fn taken_done(&mut self) -> Vec<(u64, BlkStatus)> {
        self.done.drain(..).map(|done| (done.user, done.status)).collect()
    }

    pub(super) fn info(&mut self) -> String {
        self.shard.status(0).unwrap().info
    }

    /// Asserts that after any steps and a recovery no bio has failed, and each has ended.
    pub(super) fn survives(mut self, steps: &[Step]) -> Result<(), TestCaseError> {
        for step in steps {
            happens(&mut self, step);
            let in_flight = self.submitted as usize - self.done.len();
            prop_assert_eq!(self.shard.in_flight(), in_flight);
        }
        recover(&mut self);
        let submitted = self.submitted;
        let mut done = self.taken_done();
        done.sort_by_key(|(user, _)| *user);
        let all: Vec<_> = (0..submitted).map(|user| (user, BlkStatus::Ok)).collect();
        prop_assert_eq!(done, all);
        prop_assert!(self.shard.is_idle() && self.shard.parked() == 0);
        Ok(())
    }
}

/// A possible next event.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Submit(Op),
    Answer(prop::sample::Index),
    Dev(prop::sample::Index, BlkStatus),
    Tick,
    Message(&'static str),
    Suspend(Suspend),
    Plug,
    Unplug,
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
        1 => prop_oneof![Just(Step::Plug), Just(Step::Unplug)],
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
        Step::Plug => world.is_plugged = true,
        Step::Unplug => world.unplug(),
        Step::Resume => {
            world.shard.resume_targets(world.now);
            world.collect();
        }
    }
}

/// Makes every device reachable, reinstates the operator's failed paths, and ends all I/O.
fn recover(world: &mut World) {
    world.unplug();
    world.answers.fill(BlkStatus::Ok);
    world.shard.resume_targets(world.now);
    world.collect();
    ["/a", "/b", "/c"]
        .into_iter()
        .for_each(|path| world.message(&format!("reinstate_path {path}")));
    loop {
        world.answer_all();
        if !world.tick() {
            break;
        }
    }
}

/// A line of three paths with `queue_if_no_path`, and random steps.
#[derive(Clone, Debug)]
pub(super) struct Steps {
    pub(super) line: String,
    pub(super) steps: Vec<Step>,
}

pub(super) fn steps() -> impl Strategy<Value = Steps> {
    let selectors = vec!["round-robin", "queue-length", "service-time", "historical-service-time"];
    let steps = prop::collection::vec(step(), 1..150);
    (steps, prop::sample::select(selectors)).prop_map(|(steps, selector)| {
        let groups = format!("{selector} 0 2 0 /a /b {selector} 0 1 0 /c");
        Steps { line: format!("1 queue_if_no_path 0 2 1 {groups}"), steps }
    })
}
