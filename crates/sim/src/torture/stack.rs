//! The queue, the device below it, and its content, with oracles at every interface.
//!
//! ```text
//!   submitters ── ledger ──> queue ── ledger, waits ──> faults ──> model of a device
//!        <─────── ledger ───────┘ <─────── stamps ────────┘
//! ```
//! With several paths the queue is multipath, and each path has its own faults and model; the
//! stamps are those of one disk. With several devices a table is above their queues; ledger and
//! stamps use the volume's sectors.
//!
//! The saboteur, if any, acts only between an oracle and its subject.

use std::collections::BTreeMap;

use blockyard_engine::bio::{Bio, BlkStatus, Done, IoContext, Op, Sector};
use blockyard_engine::dm::multipath::is_path_error;
use blockyard_engine::mq::{Issue, QueueConfig, Submitted};
use blockyard_engine::request::Tag;
use blockyard_engine::time::Nanos;
use blockyard_workload::random::Random;

use super::below::Below;
use super::contexts::{Contexts, Later, Raised};
use super::devices::Devices;
use super::paths::{Fate, PathSet};
use super::plan::{Plan, SECTORS};
use super::sabotage::{Sabotage, Saboteur};
use super::trace::{Event, Trace};
use super::{Report, STREAM_CONTENTS, STREAM_CONTEXTS, STREAM_FAULTS, STREAM_PATHS};
use crate::device::{Command, CommandOp, Device};
use crate::fault::{FaultCounters, Faults, chance};
use crate::oracle::bound::Waits;
use crate::oracle::ledger::{Ledger, contiguous};
use crate::oracle::stamps::{Stamps, WriteNumber};
use crate::oracle::{Finding, must};

/// Limit of consecutive path changes without an issue, before a round ends.
const CHANGES_MAX: u64 = 1000;

/// All observers.
pub(super) struct Witnesses<'a> {
    pub(super) ledger: Ledger,
    pub(super) waits: Waits,
    pub(super) trace: Trace<'a>,
}

/// A request at the device.
struct Flight {
    path: u16,
    /// Number of the path's failures at the issue.
    outages: u32,
    issue: Issue,
    pieces: Vec<Bio>,
    /// For a flush: the last write that it covers.
    covers: WriteNumber,
    started: Nanos,
}

/// A queue and what is below it.
// 19 fields: the queue, the devices, operations in flight, and the planted bugs.
pub(super) struct Stack {
    queue: Below,
    /// The configuration given to the queue; the ledger has the true one.
    config: QueueConfig,
    /// The true timeout of requests.
    timeout: Option<Nanos>,
    devices: PathSet,
    /// The volume's layout on several devices.
    layout: Option<Devices>,
    /// Paths may fail, so an error may be a path's.
    has_paths: bool,
    stamps: Stamps,
    /// By number of the command.
    flights: BTreeMap<u32, Flight>,
    /// Softirqs and workers.
    later: Later,
    saboteur: Saboteur,
    random: Random,
    /// Last time passed to the queue.
    told: Nanos,
    /// End of the last plain write.
    last_end: u64,
    /// Late writes of a path: time, start, sectors, bio.
    late: Vec<(Nanos, u64, u64, u64)>,
    /// False completions of the saboteur.
    forged: Vec<Done>,
    /// Number of issues and completions.
    activity: u64,
    /// Path changes since then.
    changes: u64,
    /// Requests with a part of a FUA write.
    fua_parts: u64,
    boots: u64,
}

/// The configuration given to the queue.
fn told(plan: &Plan, saboteur: &Saboteur) -> QueueConfig {
    let mut config = plan.lowest();
    if saboteur.is(Sabotage::ShortTimeout) {
        config.timeout = config.timeout.map(|timeout| Nanos(timeout.0 / 2));
    }
    if saboteur.is(Sabotage::TooLarge) {
        config.limits.max_sectors *= 2;
    }
    if saboteur.is(Sabotage::TooDeep) {
        config.queue_depth += 1;
    }
    config
}

impl Stack {
    pub(super) fn new(plan: &Plan, saboteur: Saboteur, seed: u64) -> Self {
        let config = told(plan, &saboteur);
        Self {
            queue: Below::new(plan, config),
            config,
            timeout: plan.lowest().timeout,
            devices: devices(plan, seed, 0),
            layout: plan.devices.clone(),
            has_paths: plan.paths.is_some(),
            stamps: stamps(plan),
            flights: BTreeMap::new(),
            later: later(plan, seed),
            saboteur,
            random: Random::new(seed, STREAM_CONTENTS),
            told: Nanos(0),
            last_end: 0,
            late: Vec::new(),
            forged: Vec::new(),
            activity: 0,
            changes: 0,
            fua_parts: 0,
            boots: 0,
        }
    }

    /// Grows with every issue, completion and path change.
    pub(super) fn activity(&self) -> u64 {
        self.activity + self.changes
    }

    /// Whether only path changes happen any more.
    pub(super) fn is_cut_off(&self) -> bool {
        self.changes > CHANGES_MAX
    }

    /// Disables faults.
    pub(super) fn calm(&mut self, now: Nanos, by: &mut Witnesses<'_>) {
        self.changes = 0;
        self.devices.calm(now);
        for order in self.devices.amends() {
            by.trace.note(now, Event::Order(&order));
            self.queue.order(now, &order);
            self.excuse(by);
        }
    }

    pub(super) fn set_faults(&mut self, now: Nanos, faults: Faults) {
        self.devices.set_faults(now, faults);
    }

    /// Bios may fail if there is no path and no waiting for one.
    pub(super) fn excuse(&mut self, by: &mut Witnesses<'_>) {
        if self.queue.fails_for_want_of_a_path() {
            by.ledger.excuse();
        }
    }

    pub(super) fn stamps(&self) -> &Stamps {
        &self.stamps
    }

    fn tell(&mut self, now: Nanos) -> Result<(), Finding> {
        must!(Clock, now >= self.told, "{now:?} comes after {:?}", self.told);
        self.told = now;
        Ok(())
    }

    pub(super) fn submit(&mut self, now: Nanos, bio: &Bio) -> Submitted {
        let mut bio = *bio;
        if self.saboteur.strikes(Sabotage::ForgottenPreflush) {
            bio.preflush = false;
        }
        if self.saboteur.is(Sabotage::MergeAcrossFlush) && bio.sector.0 == self.last_end {
            (bio.preflush, bio.fua) = (false, false);
        }
        if bio.op == Op::Write && !bio.preflush && !bio.fua {
            self.last_end = bio.sector.0 + bio.len.0;
        }
        self.queue.submit(now, bio)
    }

    pub(super) fn plug(&mut self, io_context: IoContext) {
        self.queue.plug(io_context);
    }

    pub(super) fn unplug(&mut self, now: Nanos, io_context: IoContext) {
        self.queue.unplug(now, io_context);
    }

    pub(super) fn exit_context(&mut self, now: Nanos, io_context: IoContext) {
        self.queue.exit_context(now, io_context);
    }

    /// Starts all requests that the device accepts now.
    pub(super) fn run(&mut self, now: Nanos, by: &mut Witnesses<'_>) -> Result<(), Finding> {
        self.tell(now)?;
        let mut issues = Vec::new();
        let mut resent = Vec::new();
        issues.extend(self.later.take_held(now));
        loop {
            self.excuse(by);
            self.queue.dispatch(now, &mut issues);
            self.hold_one(now, &mut issues);
            self.queue.take_resent(&mut resent);
            resent.drain(..).for_each(|user| by.ledger.sent(user));
            if issues.is_empty() {
                return Ok(());
            }
            for (path, issue) in issues.drain(..) {
                self.issue(now, path, issue, by)?;
            }
        }
    }

    /// A saboteur holds back a clone that others may pass.
    fn hold_one(&mut self, now: Nanos, issues: &mut Vec<(u16, Issue)>) {
        let is_plain = |issue: &Issue| matches!(issue.op, Op::Read | Op::Write) && !issue.fua;
        let place = issues.iter().position(|(_, issue)| is_plain(issue));
        let Some(place) = place.filter(|_| !self.later.holds_one()) else { return };
        if self.saboteur.strikes(Sabotage::HeldClone) {
            let (path, issue) = issues.remove(place);
            let number = self.number(path, issue.tag);
            self.later.hold(now, number, path, issue);
        }
    }

    fn number(&self, path: u16, tag: Tag) -> u32 {
        u32::from(path) << 24 | (u32::from(tag.hctx) * self.config.queue_depth + tag.index)
    }

    fn issue(
        &mut self,
        now: Nanos,
        path: u16,
        mut issue: Issue,
        by: &mut Witnesses<'_>,
    ) -> Result<(), Finding> {
        let pieces = self.queue.pieces(path, issue.tag);
        by.trace.note(now, Event::Issue(path, &issue, pieces.len()));
        contiguous(&issue, &pieces)?;
        let pieces = self.of_volume(path, pieces)?;
        self.activity += 1 + std::mem::take(&mut self.changes);
        let number = self.number(path, issue.tag);
        must!(ExactlyOnce, !self.flights.contains_key(&number), "a tag twice: {issue:?}");
        let hctx = (path, issue.tag.hctx);
        let mates =
            self.flights.values().filter(|mate| (mate.path, mate.issue.tag.hctx) == hctx).count();
        by.ledger.issued(&issue, &pieces, mates, &self.stamps)?;
        by.waits.issued(now, &pieces)?;
        let outages = self.devices.paths[usize::from(path)].outages;
        if self.devices.paths[usize::from(path)].device.refuses() {
            by.trace.note(now, Event::Refuse(number));
            by.waits.refused(&pieces);
            if !self.saboteur.strikes(Sabotage::KeptBelow) {
                self.queue.busy(now, path, issue.tag);
            }
            return Ok(());
        }
        let command = command(number, &issue);
        let skips = path > 0 && self.saboteur.is(Sabotage::FirstDevice);
        if issue.op == Op::Flush && (skips || self.saboteur.strikes(Sabotage::EarlyFlush)) {
            self.queue.complete(now, path, issue.tag, whole(&issue));
            return Ok(());
        }
        let skipped = skipped_of_fua(&pieces, &by.ledger);
        self.fua_parts += u64::from(skipped.is_some());
        let forgets = skipped > Some(Sector(0)) && self.saboteur.is(Sabotage::FuaOfFirstPart);
        if issue.fua && (forgets || self.saboteur.strikes(Sabotage::ForgottenFua)) {
            issue.fua = false;
        }
        let covers = self.stamps.written();
        self.flights.insert(number, Flight { path, outages, issue, pieces, covers, started: now });
        match command {
            Some(command) => self.devices.paths[usize::from(path)].device.start(now, command),
            // Nothing to model: the range is dropped immediately.
            None => self.ended(now, number, BlkStatus::Ok, by)?,
        }
        Ok(())
    }

    /// A device's parts of bios, in the volume's positions.
    fn of_volume(&self, device: u16, pieces: Vec<Bio>) -> Result<Vec<Bio>, Finding> {
        match &self.layout {
            Some(layout) => {
                pieces.into_iter().map(|piece| layout.of_volume(device, piece)).collect()
            }
            None => Ok(pieces),
        }
    }

    /// Time of the next event without further submissions.
    pub(super) fn next_event(&self) -> Option<Nanos> {
        let wake = self.queue.wake_at().filter(|_| !self.saboteur.is(Sabotage::LostWakeUp));
        let late = self.late.iter().map(|(at, ..)| *at);
        let later = self.later.next_event();
        wake.into_iter().chain(self.devices.next_event()).chain(late).chain(later).min()
    }

    /// Advances to the next event.
    pub(super) fn advance(&mut self, now: Nanos, by: &mut Witnesses<'_>) -> Result<(), Finding> {
        let wakes = self.queue.wake_at().is_some_and(|at| at <= now);
        let mut ended = Vec::new();
        for (path, at) in self.devices.paths.iter_mut().enumerate() {
            let mut of_path = Vec::new();
            at.device.advance(now, &mut of_path);
            ended.extend(of_path.into_iter().map(|(at, number)| (at, path, number)));
        }
        if self.devices.paths.len() > 1 {
            ended.sort_by_key(|(at, ..)| *at);
        }
        for (at, path, number) in ended {
            let status = self.devices.paths[path].device.take_status(number);
            self.ended(at, number, status, by)?;
        }
        for raised in self.later.take_raised(now) {
            self.complete(now, raised.path, raised.tag, raised.fate, by)?;
        }
        let changes = self.change_paths(now, by)?;
        self.write_late(now);
        let mut late = Vec::new();
        self.queue.timed_out(now, &mut late);
        for (path, tag) in late {
            let number = self.number(path, tag);
            by.trace.note(now, Event::TimeOut(number));
            if self.later.contains(number) {
                continue;
            }
            let flight = self.flights.get(&number);
            let Some(flight) = flight else {
                must!(Leak, false, "{tag:?} is late, and the device does not have it");
                continue;
            };
            let limit = self.timeout.unwrap_or_default();
            let is_late = now.since(flight.started) >= limit;
            must!(Timeout, is_late, "{tag:?} is aborted, issued at {:?}", flight.started);
            self.devices.paths[usize::from(path)].device.abort(now, number);
        }
        let runs = self.later.runs(now) || wakes || changes || self.later.is_due(now);
        if runs { self.run(now, by) } else { Ok(()) }
    }

    /// Handles path changes, checks and operator orders; returns whether there were any.
    fn change_paths(&mut self, now: Nanos, by: &mut Witnesses<'_>) -> Result<bool, Finding> {
        if !self.has_paths {
            return Ok(false);
        }
        self.tell(now)?;
        let mut changed = Vec::new();
        self.devices.take_changes(now, &mut changed);
        let mut changes = !changed.is_empty();
        for path in changed {
            self.changes += 1;
            let is_up = self.devices.paths[usize::from(path)].is_up;
            by.trace.note(now, Event::Path(path, is_up));
            if let Some(order) = self.devices.operator() {
                by.trace.note(now, Event::Order(&order));
                self.queue.order(now, &order);
                self.excuse(by);
            }
        }
        let is_told = !self.saboteur.is(Sabotage::ForgottenCheck);
        for _ in 0..self.queue.check(now, &self.devices.paths, is_told) {
            by.trace.note(now, Event::Check);
            changes = true;
        }
        self.excuse(by);
        Ok(changes)
    }

    /// A path executes lost writes.
    fn write_late(&mut self, now: Nanos) {
        let due = self.late.extract_if(.., |(at, ..)| *at <= now).collect::<Vec<_>>();
        for (_, sector, sectors, user) in due {
            self.stamps.write(sector, sectors, Ledger::stamp(user), false);
        }
    }

    fn ended(
        &mut self,
        at: Nanos,
        number: u32,
        status: BlkStatus,
        by: &mut Witnesses<'_>,
    ) -> Result<(), Finding> {
        self.activity += 1;
        let Flight { path, outages, issue, pieces, covers, started } =
            self.flights.remove(&number).expect("the device ends what it got");
        let fate = self.devices.fate(path, outages, status, issue.len.0);
        by.trace.note(at, Event::End(number, fate.status));
        by.waits.served(at.since(started));
        // Multipath retries errors of paths.
        let fails = |status| status != BlkStatus::Ok && !(self.has_paths && is_path_error(status));
        let fails = fails(fate.status);
        match issue.op {
            Op::Flush if fate.status == BlkStatus::Ok => {
                // All paths lead to one disk.
                let device = if self.layout.is_some() { path } else { 0 };
                self.stamps.flushed(device, covers);
            }
            Op::Flush if fails => by.ledger.flush_failed(),
            _ => {}
        }
        let mut left = fate.done_sectors;
        for piece in &pieces {
            let done = left.min(piece.len.0);
            left -= done;
            for (part, is_done) in cut(piece, done) {
                let status = if is_done { BlkStatus::Ok } else { fate.status };
                if !is_done && status == BlkStatus::Ok {
                    continue;
                }
                self.perform(at, &issue, &part, status, by)?;
                if is_done || fails {
                    by.ledger.performed(&part, status);
                }
            }
        }
        let flight = Flight { path, outages, issue, pieces, covers, started };
        self.report(at, &flight, fate, by)
    }

    /// Completes a request in the queue, unless the saboteur interferes.
    fn report(
        &mut self,
        mut at: Nanos,
        flight: &Flight,
        mut fate: Fate,
        by: &mut Witnesses<'_>,
    ) -> Result<(), Finding> {
        let Flight { path, issue, pieces, started, .. } = flight;
        let status = fate.status;
        let is_whole =
            |piece: &Bio| by.ledger.bio(piece.user).is_some_and(|bio| bio.len == piece.len);
        if !pieces.is_empty()
            && pieces.iter().all(is_whole)
            && self.saboteur.strikes(Sabotage::LeakedTag)
        {
            self.forged.extend(pieces.iter().map(|piece| Done { user: piece.user, status }));
            return Ok(());
        }
        if self.saboteur.strikes(Sabotage::DroppedCompletion) {
            return Ok(());
        }
        if self.saboteur.strikes(Sabotage::ClockBack) {
            at = Nanos(started.0.saturating_sub(1));
        }
        if status != BlkStatus::Ok && self.saboteur.strikes(Sabotage::SwallowedError) {
            fate = whole(issue);
        }
        self.misreport(at, flight, &mut fate);
        if self.later.has_softirqs() && self.has_paths {
            let number = self.number(*path, issue.tag);
            if !self.saboteur.strikes(Sabotage::LostSoftirq) {
                let path = *path;
                let tag = issue.tag;
                self.later.raise(Raised { due: at, number, path, tag, fate });
            }
            return Ok(());
        }
        self.complete(at, *path, issue.tag, fate, by)
    }

    /// Completes a command in the queue, which may ask for a run.
    fn complete(
        &mut self,
        now: Nanos,
        path: u16,
        tag: Tag,
        fate: Fate,
        by: &mut Witnesses<'_>,
    ) -> Result<(), Finding> {
        self.tell(now)?;
        let runs = self.queue.complete(now, path, tag, fate);
        if runs && !self.saboteur.is(Sabotage::LostRun) {
            self.later.call_worker(now);
        }
        self.excuse(by);
        Ok(())
    }

    /// Faults of a saboteur of paths.
    fn misreport(&mut self, at: Nanos, flight: &Flight, fate: &mut Fate) {
        let Flight { issue, pieces, .. } = flight;
        let left = issue.len.0 - fate.done_sectors;
        if fate.done_sectors > 0 && left > 0 && self.saboteur.strikes(Sabotage::DroppedRest) {
            *fate = whole(issue);
        }
        if left > 1 && fate.status != BlkStatus::Ok && self.saboteur.strikes(Sabotage::Overstated) {
            fate.done_sectors += 1;
        }
        if fate.status == BlkStatus::Transport && self.saboteur.strikes(Sabotage::WrongClass) {
            fate.status = BlkStatus::Medium;
        }
        let is_lost = issue.op == Op::Write && fate.status == BlkStatus::Transport;
        if is_lost && self.saboteur.strikes(Sabotage::LateWrite) {
            let at = at + Nanos::from_ms(20);
            self.late
                .extend(pieces.iter().map(|piece| (at, piece.sector.0, piece.len.0, piece.user)));
        }
    }

    /// Applies a part of a bio to the medium.
    fn perform(
        &mut self,
        at: Nanos,
        issue: &Issue,
        piece: &Bio,
        status: BlkStatus,
        by: &mut Witnesses<'_>,
    ) -> Result<(), Finding> {
        let mut sector = piece.sector.0;
        let mut len = piece.len.0;
        if piece.op == Op::Read {
            return if status == BlkStatus::Ok { self.read(at, piece, by) } else { Ok(()) };
        }
        let stamp = Ledger::stamp(piece.user);
        if status != BlkStatus::Ok {
            self.write_in_part(piece);
            return Ok(());
        }
        if self.saboteur.strikes(Sabotage::ShortWrite) {
            len -= 1;
        }
        if sector + len < SECTORS && self.saboteur.strikes(Sabotage::MisdirectedWrite) {
            sector += 1;
        }
        let write = self.stamps.write(sector, len, stamp, issue.fua);
        by.ledger.written(piece, write);
        Ok(())
    }

    fn read(&mut self, at: Nanos, piece: &Bio, by: &mut Witnesses<'_>) -> Result<(), Finding> {
        let stale = self.saboteur.strikes(Sabotage::StaleRead);
        let stamp =
            |sector| if stale { self.stamps.read_older(sector) } else { self.stamps.read(sector) };
        let range = piece.sector.0..piece.sector.0 + piece.len.0;
        let found = range.map(|sector| (sector, stamp(sector)));
        let hash = found.clone().fold(0, |hash: u32, (_, stamp)| hash.rotate_left(5) ^ stamp);
        by.trace.note(at, Event::Read(piece.user, hash));
        by.ledger.read(piece, found)
    }

    /// Writes some sectors of a failed write.
    fn write_in_part(&mut self, piece: &Bio) {
        for sector in piece.sector.0..piece.sector.0 + piece.len.0 {
            if chance(&mut self.random, 500) {
                self.stamps.write(sector, 1, Ledger::stamp(piece.user), false);
            }
        }
    }

    /// Takes the ended bios.
    pub(super) fn take_done(&mut self, done: &mut Vec<Done>) {
        self.queue.take_done(done);
        done.append(&mut self.forged);
        if let Some(last) = done.last().copied() {
            if self.saboteur.strikes(Sabotage::DoubleEnd) {
                done.push(last);
            }
            if self.saboteur.strikes(Sabotage::WrongUser) {
                done.last_mut().expect("there is one").user ^= 1;
            }
        }
    }

    /// Takes the parked bios that have got their request.
    pub(super) fn take_unparked(&mut self, out: &mut Vec<u64>) {
        self.queue.take_unparked(out);
    }

    /// Cuts the power and restores it: queue and device are new, the medium keeps its content.
    pub(super) fn power_cut(
        &mut self,
        plan: &Plan,
        seed: u64,
        report: &mut Report,
        by: &mut Witnesses<'_>,
    ) -> Result<(), Finding> {
        self.count(report);
        for (_, flight) in std::mem::take(&mut self.flights) {
            if flight.issue.op != Op::Read {
                flight.pieces.iter().for_each(|piece| self.write_in_part(piece));
            }
        }
        let lost = self.stamps.power_cut(&mut self.random);
        if self.saboteur.is(Sabotage::LostCache) {
            self.stamps.lose_durable(&mut self.random);
        }
        report.power_cuts += 1;
        report.sectors_lost += lost;
        by.trace.note(self.told, Event::PowerCut(lost));
        by.waits.forget();
        by.ledger.power_cut(&mut self.stamps)?;
        self.boots += 1;
        self.late.clear();
        self.later.forget();
        (self.changes, self.fua_parts) = (0, 0);
        self.queue = Below::new(plan, self.config);
        self.devices = devices(plan, seed, self.boots);
        self.devices.set_faults(self.told, plan.faults);
        Ok(())
    }

    /// Checks that nothing is left at rest.
    pub(super) fn is_at_rest(&self) -> Result<(), Finding> {
        must!(Leak, self.queue.is_idle(), "all bios have ended, but the queue has requests");
        let commands = self.flights.len();
        let empty = self.devices.paths.iter().all(|path| path.device.is_empty());
        must!(Leak, commands == 0 && empty, "{commands} commands are left");
        must!(Leak, self.later.is_empty(), "a softirq is left");
        Ok(())
    }

    /// Adds the counts of this queue and device.
    pub(super) fn count(&self, report: &mut Report) {
        let [requests, merges, partial, resent] = self.queue.counts();
        report.requests += requests;
        report.merges += merges;
        report.partial += partial;
        report.resent += resent;
        report.fua_parts += self.fua_parts;
        for path in &self.devices.paths {
            let FaultCounters { errors, delays, hangs, refusals } = path.device.counters();
            report.faults += errors + delays + hangs + refusals;
            report.outages += u64::from(path.outages);
        }
    }
}

/// Softirqs and workers of a world with paths.
fn later(plan: &Plan, seed: u64) -> Later {
    let contexts = plan.paths.as_ref().map_or(Contexts::ONE, |paths| paths.contexts);
    Later::new(contexts, Random::new(seed, STREAM_CONTEXTS))
}

/// The devices of a life.
fn devices(plan: &Plan, seed: u64, boots: u64) -> PathSet {
    // Each life of each device has its own stream.
    let mut stream = STREAM_FAULTS + boots;
    let faults = || {
        let random = Random::new(seed, stream);
        stream += 1000;
        random
    };
    PathSet::new(plan, Random::new(seed, STREAM_PATHS + 1_000_000 * boots), faults)
}

/// Untouched content.
fn stamps(plan: &Plan) -> Stamps {
    let owners = plan.devices.as_ref().map(Devices::owners);
    Stamps::new(plan.queue.write_cache, owners.unwrap_or_default())
}

/// The outcome of a completely done command.
fn whole(issue: &Issue) -> Fate {
    Fate { status: BlkStatus::Ok, done_sectors: issue.len.0 }
}

/// For a part of a split FUA write: the length of the write before it.
fn skipped_of_fua(pieces: &[Bio], ledger: &Ledger) -> Option<Sector> {
    let [piece] = pieces else { return None };
    let bio = ledger.bio(piece.user)?;
    (bio.fua && piece.len < bio.len).then(|| Sector(piece.sector.0 - bio.sector.0))
}

/// Splits a piece into its done first sectors and the rest.
fn cut(piece: &Bio, done_sectors: u64) -> impl Iterator<Item = (Bio, bool)> {
    let piece = *piece;
    let done = Sector(done_sectors);
    let rest = Sector(piece.len.0 - done_sectors);
    let parts = [
        (Bio { len: done, ..piece }, true),
        (Bio { sector: piece.sector + done, len: rest, ..piece }, false),
    ];
    parts.into_iter().filter(|(part, _)| part.len > Sector(0))
}

fn command(number: u32, issue: &Issue) -> Option<Command> {
    let op = match issue.op {
        Op::Read => CommandOp::Read,
        Op::Write | Op::WriteZeroes => CommandOp::Write { fua: issue.fua },
        Op::Flush => CommandOp::Flush,
        Op::Discard => return None,
    };
    let sectors = u32::try_from(issue.len.0).expect("bios are short");
    Some(Command { tag: number, op, sector: issue.sector, sectors })
}
