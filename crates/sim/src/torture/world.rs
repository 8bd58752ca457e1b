//! One world: submitters, their stack, and the main loop.

use std::cell::Cell;

use blockyard_engine::bio::{Bio, BlkStatus, Done, IoContext, Op, Origin, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::mq::Submitted;
use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;
use blockyard_workload::random::Random;

use super::plan::{Plan, SECTORS, one_of};
use super::sabotage::Saboteur;
use super::stack::{Stack, Witnesses};
use super::trace::{Event, Log, Trace};
use super::{Pace, Report, STREAM_PACE, STREAM_PLAN, STREAM_TRAFFIC, TortureConfig};
use crate::fault::chance;
use crate::oracle::bound::Waits;
use crate::oracle::ledger::Ledger;
use crate::oracle::{Finding, must};

/// Limit of consecutive wake-ups without an issue or completion, before a world counts as stuck. A
/// full write cache causes some hundreds.
const IDLE_WAKES_MAX: u32 = 5000;

/// A submitter of bios.
struct Submitter {
    io_context: IoContext,
    cpu: u16,
    priority: Priority,
    /// Time of its next action; `None` while it waits for one of its bios.
    acts_at: Option<Nanos>,
    under_way: u32,
    parked: u32,
    /// Its plug is open and may contain these bios.
    plug: Option<Vec<u64>>,
    /// Start and end of its last bio.
    last: (u64, u64),
}

/// A world.
// 13 fields: the plan, the stack, the submitters, and the witnesses.
pub(super) struct World<'c, 'l> {
    seed: u64,
    bios: u32,
    plan: Plan,
    random: Random,
    clock: &'c Cell<Nanos>,
    stack: Stack,
    by: Witnesses<'l>,
    submitters: Vec<Submitter>,
    contexts: u32,
    /// By bio: index and io-context of its submitter.
    owners: Vec<(usize, IoContext)>,
    parked: Vec<u64>,
    idle_wakes: u32,
    report: Report,
}

impl<'c, 'l> World<'c, 'l> {
    pub(super) fn new(
        seed: u64,
        config: &TortureConfig,
        clock: &'c Cell<Nanos>,
        log: Option<Log<'l>>,
    ) -> Self {
        let mut plan = Plan::draw(&mut Random::new(seed, STREAM_PLAN), config);
        if config.pace == Pace::Long {
            plan.lengthen(&mut Random::new(seed, STREAM_PACE));
        }
        clock.set(plan.start);
        let mut log = log;
        if let Some(log) = &mut log {
            log(&plan.to_string());
        }
        let contexts = u64::from(plan.traffic.submitters);
        let by = Witnesses {
            ledger: ledger(&plan),
            waits: waits(&plan, contexts),
            trace: Trace::new(log),
        };
        let mut world = Self {
            seed,
            bios: config.bios,
            random: Random::new(seed, STREAM_TRAFFIC),
            clock,
            stack: Stack::new(&plan, Saboteur::new(config.sabotage, seed), seed),
            plan,
            by,
            submitters: Vec::new(),
            contexts: 0,
            owners: Vec::new(),
            parked: Vec::new(),
            idle_wakes: 0,
            report: Report::default(),
        };
        for _ in 0..world.plan.traffic.submitters {
            let submitter = world.submitter();
            world.submitters.push(submitter);
        }
        world
    }

    fn submitter(&mut self) -> Submitter {
        self.contexts += 1;
        Submitter {
            io_context: IoContext(self.contexts),
            cpu: self.random.below(4) as u16,
            priority: one_of(&mut self.random, self.plan.traffic.priorities),
            acts_at: Some(self.now()),
            under_way: 0,
            parked: 0,
            plug: None,
            last: (0, 0),
        }
    }

    fn now(&self) -> Nanos {
        self.clock.get()
    }

    /// Runs all rounds.
    pub(super) fn live(mut self) -> Result<Report, Finding> {
        for cut in self.plan.cuts.clone() {
            let bios =
                if cut { 1 + self.random.below(u64::from(self.bios)) } else { self.bios.into() };
            self.traffic(self.by.ledger.next_user() + bios)?;
            if cut {
                self.power_cut()?;
            } else {
                self.quiet()?;
            }
        }
        self.stack.count(&mut self.report);
        self.report.bios = self.owners.iter().filter(|(_, owner)| *owner != NOBODY).count() as u64;
        self.report.hash = self.by.trace.hash();
        self.report.time = self.now() - self.plan.start;
        Ok(self.report)
    }

    /// Submits bios up to this number, or until all wait for a path that does not return.
    fn traffic(&mut self, bios: u64) -> Result<(), Finding> {
        while self.by.ledger.next_user() < bios && !self.stack.is_cut_off() {
            let acts = self.submitters.iter().enumerate();
            let acts = acts.filter_map(|(place, who)| who.acts_at.map(|at| (at, place))).min();
            let event = self.stack.next_event();
            match (acts, event) {
                (Some((at, place)), event) if event.is_none_or(|event| at < event) => {
                    self.clock.set(at.max(self.now()));
                    self.act(place)?;
                    self.idle_wakes = 0;
                }
                (_, Some(event)) => self.advance(event)?,
                (_, None) => return self.stuck(),
            }
        }
        Ok(())
    }

    fn stuck(&self) -> Result<(), Finding> {
        let open = self.by.ledger.open();
        let parked = self.parked.len();
        must!(Progress, false, "{open} bios wait ({parked} parked), but no event is scheduled");
        Ok(())
    }

    fn advance(&mut self, event: Nanos) -> Result<(), Finding> {
        let now = event.max(self.now());
        self.clock.set(now);
        let before = self.stack.activity();
        self.stack.advance(now, &mut self.by)?;
        let idle = self.stack.activity() == before;
        self.idle_wakes = if idle { self.idle_wakes + 1 } else { 0 };
        must!(Progress, self.idle_wakes < IDLE_WAKES_MAX, "woken up repeatedly without progress");
        self.settle()
    }

    /// Stops submitters and faults, and lets all bios end.
    fn quiet(&mut self) -> Result<(), Finding> {
        let now = self.now();
        self.by.trace.note(now, Event::Quiet);
        for place in 0..self.submitters.len() {
            self.unplug(place);
        }
        self.stack.calm(now, &mut self.by);
        self.stack.run(now, &mut self.by)?;
        self.settle()?;
        while self.by.ledger.open() > 0 {
            match self.stack.next_event() {
                Some(event) => self.advance(event)?,
                None => return self.stuck(),
            }
        }
        self.stack.is_at_rest()?;
        must!(Leak, self.parked.is_empty(), "{:?} have ended and are parked", self.parked);
        let now = self.now();
        self.stack.set_faults(now, self.plan.faults);
        Ok(())
    }

    fn power_cut(&mut self) -> Result<(), Finding> {
        self.stack.power_cut(&self.plan, self.seed, &mut self.report, &mut self.by)?;
        // The ledger counts the found content as a bio.
        self.owners.push((0, NOBODY));
        self.parked.clear();
        let now = self.now();
        for submitter in &mut self.submitters {
            (submitter.under_way, submitter.parked) = (0, 0);
            submitter.plug = None;
            submitter.acts_at = Some(now);
        }
        Ok(())
    }

    /// Performs a submitter's next action.
    fn act(&mut self, place: usize) -> Result<(), Finding> {
        let now = self.now();
        if chance(&mut self.random, 10) {
            self.exit(place);
        }
        if self.submitters[place].plug.is_none() && chance(&mut self.random, 500) {
            self.plug(place);
        }
        for _ in 0..=self.random.below(self.plan.traffic.burst) {
            let submitter = &self.submitters[place];
            if submitter.under_way >= self.plan.traffic.depth || submitter.parked > 0 {
                break;
            }
            self.submit(place)?;
        }
        if chance(&mut self.random, 700) {
            self.unplug(place);
        }
        let submitter = &self.submitters[place];
        if submitter.under_way >= self.plan.traffic.depth || submitter.parked > 0 {
            // A sleeping submitter must not hold bios back.
            self.unplug(place);
            self.submitters[place].acts_at = None;
        } else {
            self.think(place);
        }
        self.stack.run(now, &mut self.by)?;
        self.settle()
    }

    fn think(&mut self, place: usize) {
        let pause = self.random.below(2 * self.plan.traffic.think.0 + 1);
        self.submitters[place].acts_at = Some(self.now() + Nanos(pause));
    }

    fn plug(&mut self, place: usize) {
        let submitter = &mut self.submitters[place];
        submitter.plug = Some(Vec::new());
        let io_context = submitter.io_context;
        self.by.trace.note(self.clock.get(), Event::Plug(io_context.0));
        self.stack.plug(io_context);
    }

    fn unplug(&mut self, place: usize) {
        let Some(plugged) = self.submitters[place].plug.take() else { return };
        let now = self.now();
        let io_context = self.submitters[place].io_context;
        self.by.trace.note(now, Event::Unplug(io_context.0));
        self.stack.unplug(now, io_context);
        plugged.iter().for_each(|user| self.by.waits.waits(now, *user));
    }

    /// Replaces a submitter by a new one.
    fn exit(&mut self, place: usize) {
        let now = self.now();
        let io_context = self.submitters[place].io_context;
        self.by.trace.note(now, Event::Exit(io_context.0));
        self.stack.exit_context(now, io_context);
        let plugged = self.submitters[place].plug.take();
        plugged.iter().flatten().for_each(|user| self.by.waits.waits(now, *user));
        self.submitters[place] = self.submitter();
    }

    fn submit(&mut self, place: usize) -> Result<(), Finding> {
        let now = self.now();
        let bio = self.bio(place);
        self.by.trace.note(now, Event::Submit(&bio));
        self.by.ledger.submitted(&bio);
        self.by.waits.submitted(&bio);
        self.owners.push((place, bio.origin.io_context));
        let submitter = &mut self.submitters[place];
        submitter.under_way += 1;
        if self.stack.submit(now, &bio) == Submitted::Parked {
            self.by.trace.note(now, Event::Park(bio.user));
            submitter.parked += 1;
            self.parked.push(bio.user);
        } else {
            self.waits(place, bio.user);
        }
        self.settle()
    }

    /// Starts the wait of a bio with a request, unless it may be in a plug.
    fn waits(&mut self, place: usize, user: u64) {
        let plugs = self.plan.plugs();
        match &mut self.submitters[place].plug {
            Some(plugged) if plugs => plugged.push(user),
            _ => self.by.waits.waits(self.clock.get(), user),
        }
    }

    fn bio(&mut self, place: usize) -> Bio {
        let random = &mut self.random;
        let traffic = &self.plan.traffic;
        let submitter = &mut self.submitters[place];
        let reads = traffic.reads;
        let flushes = traffic.flushes;
        let discards = traffic.discards;
        let draw = random.below(100);
        let op = match draw {
            _ if draw < flushes => Op::Flush,
            _ if draw < flushes + discards => one_of(random, &[Op::Discard, Op::WriteZeroes]),
            _ if random.below(100) < reads => Op::Read,
            _ => Op::Write,
        };
        let len = if random.below(100) < 97 { 1 + random.below(8) } else { 1 + random.below(200) };
        let (last, last_len) = submitter.last;
        let sector = match random.below(10) {
            0..5 => last + last_len,
            5..7 => last.saturating_sub(len),
            7..9 => random.below(traffic.hot),
            _ => random.below(SECTORS),
        };
        let sector = if sector + len > SECTORS { random.below(SECTORS - len) } else { sector };
        let (sector, len) = if op == Op::Flush { (0, 0) } else { (sector, len) };
        let len_bytes = u32::try_from(len * 512).expect("a short bio");
        let moves_bytes = matches!(op, Op::Read | Op::Write);
        let buf = if moves_bytes { BufRef::zeros(len_bytes) } else { BufRef::NONE };
        let user = self.by.ledger.next_user();
        let mut bio = Bio::new(op, Sector(sector), Sector(len), buf, user);
        if op == Op::Write {
            bio.preflush = random.below(100) < traffic.stable;
            bio.fua = random.below(100) < traffic.stable;
        }
        if op != Op::Flush {
            submitter.last = (sector, len);
        }
        let Submitter { io_context, cpu, priority, .. } = *submitter;
        let sync = random.below(100) < traffic.sync;
        bio.origin = Origin { io_context, cpu, priority, sync, ..Origin::default() };
        bio
    }

    /// Takes ended bios, and bios that have got their request.
    fn settle(&mut self) -> Result<(), Finding> {
        let now = self.now();
        let mut unparked = Vec::new();
        self.stack.take_unparked(&mut unparked);
        for user in unparked {
            self.by.trace.note(now, Event::Unpark(user));
            let place = self.parked.iter().position(|parked| *parked == user);
            let Some(place) = place else {
                must!(ExactlyOnce, false, "bio {user} is unparked and was not parked");
                continue;
            };
            self.parked.swap_remove(place);
            let (place, io_context) = self.owners[user as usize];
            if self.submitters[place].io_context == io_context {
                self.submitters[place].parked -= 1;
                self.waits(place, user);
                self.goes_on(place);
            } else {
                self.by.waits.waits(now, user);
            }
        }
        self.stack.excuse(&mut self.by);
        let mut ended = Vec::new();
        self.stack.take_done(&mut ended);
        for done in ended {
            self.done(done)?;
        }
        Ok(())
    }

    fn done(&mut self, done: Done) -> Result<(), Finding> {
        let now = self.now();
        self.by.trace.note(now, Event::Done(done));
        self.by.ledger.done(&done, self.stack.stamps())?;
        self.by.waits.ended(done.user);
        self.report.failed += u64::from(done.status != BlkStatus::Ok);
        let (place, io_context) = self.owners[done.user as usize];
        if self.submitters[place].io_context == io_context {
            self.submitters[place].under_way -= 1;
            self.goes_on(place);
        }
        Ok(())
    }

    /// A submitter that waited for a bio may continue.
    fn goes_on(&mut self, place: usize) {
        let submitter = &self.submitters[place];
        let waits = submitter.under_way >= self.plan.traffic.depth || submitter.parked > 0;
        if submitter.acts_at.is_none() && !waits {
            self.think(place);
        }
    }
}

fn ledger(plan: &Plan) -> Ledger {
    let ledger = Ledger::new(plan.settings.elevator.name, plan.issuing());
    if plan.has_shard() { ledger.below_mapped_device() } else { ledger }
}

/// The watch of the elevator's bounds. They apply to one device that accepts requests, not to
/// failing paths or to several devices.
fn waits(plan: &Plan, contexts: u64) -> Waits {
    let has_bound = plan.one_class();
    match &plan.paths {
        Some(paths) if !paths.is_steady => Waits::nothing(plan.settings.clone(), plan.queue),
        None if plan.devices.is_some() => Waits::nothing(plan.settings.clone(), plan.queue),
        _ => Waits::new(plan.settings.clone(), plan.queue, contexts, has_bound),
    }
}

/// Io-context of the content found after a power cut.
const NOBODY: IoContext = IoContext(0);
