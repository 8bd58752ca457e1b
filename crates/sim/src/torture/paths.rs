//! Paths to one disk: their number, failures and returns.
//!
//! Each path has its own device model for time and faults; the disk's content is shared. A failing
//! path loses its commands: each ends with a lost connection. Of a split request some first sectors
//! are done and reported; of the rest some may be written. Commands to a path that is down end
//! likewise. A check finds a path that has returned. An operator sends messages. Of the errors of a
//! path's device some are the disk's, which must be passed up.

use blockyard_engine::bio::BlkStatus;
use blockyard_engine::dm::line::parse;
use blockyard_engine::dm::multipath::line::{MultipathSpec, QueueMode};
use blockyard_engine::dm::multipath::stacked::{CloneInsert, CompleteBy, RunBy, Stacking};
use blockyard_engine::elevator::Generation;
use blockyard_engine::mq::{PlugRule, QueueConfig};
use blockyard_engine::time::Nanos;
use blockyard_workload::random::Random;

use super::contexts::Contexts;
use super::plan::{Plan, SECTORS, one_of};
use super::sabotage::Sabotage;
use crate::device::Device;
use crate::fault::{Faults, Faulty, chance};

const MS: u64 = 1_000_000;

/// Behaviour of the paths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outages {
    /// Mean time up; zero means forever.
    up: Nanos,
    /// Mean time down.
    down: Nanos,
    /// Per thousand changes of a path: operator messages.
    operator: u32,
    /// Per thousand successful requests: partial completions.
    shorts: u32,
    /// Per thousand errors: errors of the disk.
    medium: u32,
}

/// The paths of a world.
#[derive(Clone, Debug)]
pub(super) struct Paths {
    /// Table line of the paths.
    pub(super) line: String,
    pub(super) count: u16,
    groups: u16,
    /// Whether bios or requests choose their paths.
    pub(super) mode: QueueMode,
    /// Queue of each path.
    pub(super) lower: QueueConfig,
    pub(super) stacking: Stacking,
    pub(super) outages: Outages,
    pub(super) contexts: Contexts,
    /// No path ever fails, so the elevator's bounds hold.
    pub(super) is_steady: bool,
}

impl Paths {
    /// Failures and returns that are as rare as these pauses ask for: a path that fails is up for
    /// many bios, and down for some.
    pub(super) fn lengthen(&mut self, pause: Nanos) {
        let Outages { up, down, .. } = &mut self.outages;
        if *up > Nanos(0) {
            *up = Nanos(20 * pause.0);
            *down = Nanos(pause.0 / 2);
        }
    }

    /// Draws the paths of a world with this queue.
    pub(super) fn draw(
        random: &mut Random,
        queue: &QueueConfig,
        sabotage: Option<Sabotage>,
    ) -> Self {
        let mode = one_of(random, &[QueueMode::Request, QueueMode::Request, QueueMode::Bio]);
        let of_requests = sabotage.is_some_and(Sabotage::needs_requests);
        let mode = if of_requests { QueueMode::Request } else { mode };
        let count = 2 + random.below(3) as u16;
        let groups = 1 + random.below(2) as u16;
        let waits = random.below(3) > 0;
        let mut line = format!("0 {SECTORS} multipath ");
        line += if waits { "1 queue_if_no_path " } else { "0 " };
        line += &format!("0 {groups} 1");
        let first = if groups == 1 { count } else { 1 + random.below(u64::from(count) - 1) as u16 };
        for paths in [0..first, first..count].iter().filter(|paths| !paths.is_empty()) {
            let selectors =
                ["round-robin", "queue-length", "service-time", "historical-service-time"];
            line += &format!(" {} 0 {} 0", one_of(random, &selectors), paths.len());
            paths.clone().for_each(|path| line += &format!(" p{path}"));
        }
        let lower = match mode {
            QueueMode::Bio => QueueConfig { plug: PlugRule::Off, ..*queue },
            QueueMode::Request => lower(random, queue),
        };
        let inserts = [
            CloneInsert::Direct,
            CloneInsert::Direct,
            CloneInsert::Queued(RunBy::Caller),
            CloneInsert::Queued(RunBy::Worker),
        ];
        let stacking = Stacking { insert: one_of(random, &inserts), ..Stacking::TODAY };
        let up = match mode {
            // A long bio, which is resent as a whole, must eventually succeed.
            QueueMode::Bio => one_of(random, &[0, 3_000 * MS, 10_000 * MS]),
            QueueMode::Request => one_of(random, &[0, 20 * MS, 100 * MS, 1_000 * MS, 10_000 * MS]),
        };
        let outages = Outages {
            up: Nanos(up),
            down: Nanos(one_of(random, &[MS, 100 * MS, 3_000 * MS])),
            operator: one_of(random, &[0, 50, 300]),
            shorts: one_of(random, &[0, 20, 200]),
            medium: one_of(random, &[0, 200, 1000]),
        };
        let paths = Self {
            line,
            count,
            groups,
            mode,
            lower,
            stacking,
            outages,
            contexts: Contexts::ONE,
            is_steady: false,
        };
        match mode {
            QueueMode::Bio => paths,
            QueueMode::Request => paths.with_contexts(random, sabotage),
        }
    }

    /// Draws the contexts of completion and dispatch; some worlds have no failures.
    fn with_contexts(mut self, random: &mut Random, sabotage: Option<Sabotage>) -> Self {
        self.contexts = Contexts::draw(random, sabotage);
        self.stacking.run_on_completion = random.below(4) == 0;
        if self.contexts.softirq_max > Nanos(0) {
            self.stacking.complete_by = CompleteBy::Softirq;
        }
        self.is_steady = random.below(4) == 0 || sabotage == Some(Sabotage::HeldClone);
        if self.is_steady {
            // A clone in a path's list waits for that path's device while others pass it.
            self.stacking.insert = CloneInsert::Direct;
            self.outages = Outages { up: Nanos(0), shorts: 0, ..self.outages };
        }
        self
    }

    /// The faults of the paths' devices: few if a long bio is resent as a whole after a failure.
    pub(super) fn faults(&self, faults: Faults) -> Faults {
        let Faults { errors, hangs, .. } = faults;
        if self.is_steady {
            return Faults { errors: 0, hangs: 0, ..faults };
        }
        match self.mode {
            QueueMode::Bio => Faults { errors: errors.min(2), hangs: hangs.min(2), ..faults },
            QueueMode::Request => faults,
        }
    }

    /// The parsed table line.
    pub(super) fn spec(&self) -> MultipathSpec {
        let mut devices = parse(&self.line, &[]).expect("the line is one");
        let line = devices.remove(0).lines.remove(0);
        line.arguments.downcast::<MultipathSpec>().expect("the line says multipath").clone()
    }
}

/// The queue of a path below this one.
fn lower(random: &mut Random, upper: &QueueConfig) -> QueueConfig {
    let cpus = upper.cpus;
    let mut limits = upper.limits;
    limits.max_segments += one_of(random, &[0, 7]);
    QueueConfig {
        generation: Generation::Multi,
        hw_queues: one_of(random, &[1, 1, 2, 4]).min(cpus),
        queue_depth: one_of(random, &[1, 2, 4, 32]),
        limits,
        plug: PlugRule::Off,
        ..*upper
    }
}

/// One path.
pub(super) struct Path {
    pub(super) device: Faulty<Box<dyn Device>>,
    pub(super) is_up: bool,
    /// Number of its failures; earlier commands are lost.
    pub(super) outages: u32,
    changes_at: Option<Nanos>,
}

/// Actual outcome of a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fate {
    pub(super) status: BlkStatus,
    /// Number of done sectors from its start.
    pub(super) done_sectors: u64,
}

/// All paths of a world, or its devices.
pub(super) struct PathSet {
    pub(super) paths: Vec<Path>,
    plan: Option<Paths>,
    random: Random,
    is_calm: bool,
}

impl PathSet {
    pub(super) fn new(plan: &Plan, random: Random, mut faults: impl FnMut() -> Random) -> Self {
        let paths = (0..plan.ways()).map(|_| Path {
            device: Faulty::new(plan.model.build(), plan.faults, faults()),
            is_up: true,
            outages: 0,
            changes_at: None,
        });
        let paths = paths.collect();
        let mut set = Self { paths, plan: plan.paths.clone(), random, is_calm: false };
        set.plan_changes(plan.start);
        set
    }

    fn plan_changes(&mut self, now: Nanos) {
        let Some(outages) = self.plan.as_ref().map(|plan| plan.outages) else { return };
        for path in &mut self.paths {
            path.changes_at = outages.next(now, path.is_up, &mut self.random);
        }
    }

    /// Time of the next change.
    pub(super) fn next_event(&self) -> Option<Nanos> {
        let events =
            |path: &Path| path.device.next_event().into_iter().chain(path.changes_at).min();
        self.paths.iter().filter_map(events).min()
    }

    /// The paths that fail or return now.
    pub(super) fn take_changes(&mut self, now: Nanos, out: &mut Vec<u16>) {
        let Some(outages) = self.plan.as_ref().map(|plan| plan.outages) else { return };
        for (number, path) in (0..).zip(&mut self.paths) {
            if path.changes_at.is_some_and(|at| at <= now) {
                path.is_up = !path.is_up;
                path.outages += u32::from(!path.is_up);
                path.changes_at = outages.next(now, path.is_up, &mut self.random);
                out.push(number);
            }
        }
    }

    /// An operator's order after a change of a path.
    pub(super) fn operator(&mut self) -> Option<Order> {
        let plan = self.plan.as_ref()?;
        let random = &mut self.random;
        if !chance(random, plan.outages.operator) {
            return None;
        }
        let path = random.below(plan.count.into());
        let group = 1 + random.below(plan.groups.into());
        Some(match random.below(10) {
            0 | 1 => Order::Message(format!("fail_path p{path}")),
            2 | 3 => Order::Message(format!("reinstate_path p{path}")),
            4 => Order::Message(format!("disable_group {group}")),
            5 => Order::Message(format!("switch_group {group}")),
            6 => Order::Message("fail_if_no_path".into()),
            7 => Order::Message("queue_if_no_path".into()),
            8 => Order::Suspend { flushes: random.below(2) == 0 },
            _ => Order::Resume,
        })
    }

    /// Orders that undo an operator's orders. Without orders, paths return by themselves.
    pub(super) fn amends(&self) -> Vec<Order> {
        let Some(plan) = self.plan.as_ref().filter(|plan| plan.outages.operator > 0) else {
            return Vec::new();
        };
        let paths = (0..plan.count).map(|path| format!("reinstate_path p{path}"));
        let groups = (1..=plan.groups).map(|group| format!("enable_group {group}"));
        let orders = paths.chain(groups).map(Order::Message);
        std::iter::once(Order::Resume).chain(orders).collect()
    }

    /// Outcome of a command whose device reports `status`.
    pub(super) fn fate(
        &mut self,
        path: u16,
        sent_after: u32,
        status: BlkStatus,
        sectors: u64,
    ) -> Fate {
        let all = |status| Fate { status, done_sectors: sectors };
        let Some(plan) = &self.plan else {
            let done_sectors = if status == BlkStatus::Ok { sectors } else { 0 };
            return Fate { status, done_sectors };
        };
        let outages = plan.outages;
        let random = &mut self.random;
        let cuts = plan.mode == QueueMode::Request;
        let mut first =
            |least| if cuts && sectors > least { least + random.below(sectors - least) } else { 0 };
        let lost = !self.paths[usize::from(path)].is_up
            || self.paths[usize::from(path)].outages != sent_after;
        if lost {
            return Fate { status: BlkStatus::Transport, done_sectors: first(0) };
        }
        if status != BlkStatus::Ok {
            let done_sectors = first(0);
            let is_medium = chance(random, outages.medium);
            let status = if is_medium { BlkStatus::Medium } else { status };
            return Fate { status, done_sectors };
        }
        if self.is_calm || sectors < 2 || !cuts {
            return all(status);
        }
        let done_sectors = first(1);
        if chance(random, outages.shorts) { Fate { status, done_sectors } } else { all(status) }
    }

    /// Disables faults: every path is up.
    pub(super) fn calm(&mut self, now: Nanos) {
        self.is_calm = true;
        for path in &mut self.paths {
            path.device.calm(now);
            path.is_up = true;
            path.changes_at = None;
        }
    }

    /// Enables faults.
    pub(super) fn set_faults(&mut self, now: Nanos, faults: Faults) {
        self.is_calm = false;
        self.paths.iter_mut().for_each(|path| path.device.set_faults(faults));
        self.plan_changes(now);
    }
}

impl Outages {
    /// Time of the next failure or return; sometimes the path flaps.
    fn next(&self, now: Nanos, is_up: bool, random: &mut Random) -> Option<Nanos> {
        let mean = if is_up { self.up } else { self.down };
        let haste = one_of(random, &[1, 1, 100]);
        (self.up > Nanos(0)).then(|| now + Nanos(1 + random.below(2 * mean.0) / haste))
    }
}

/// An operator's order.
#[derive(Clone, Debug)]
pub(super) enum Order {
    Message(String),
    Suspend { flushes: bool },
    Resume,
}
