//! The queue, the device below it, and what the device holds; with the oracles at every seam.
//!
//! ```text
//!   submitters ── ledger ──> queue ── ledger, waits ──> faults ──> model of a device
//!        <─────── ledger ───────┘ <─────── stamps ────────┘
//! ```
//! The saboteur, if there is one, tampers between an oracle and what it judges: nowhere else.

use std::collections::BTreeMap;

use blockyard_engine::bio::{Bio, BlkStatus, Done, IoContext, Op};
use blockyard_engine::mq::{Issue, QueueConfig, RequestQueue, Submitted, Tag};
use blockyard_engine::time::Nanos;
use blockyard_load::random::Random;

use super::plan::{Plan, SECTORS};
use super::sabotage::{Sabotage, Saboteur};
use super::trace::{Event, Trace};
use super::{Report, STREAM_CONTENTS, STREAM_FAULTS};
use crate::device::{Command, CommandOp, Device};
use crate::fault::{FaultCounters, Faulty, chance};
use crate::oracle::bound::Waits;
use crate::oracle::ledger::Ledger;
use crate::oracle::stamps::{Stamps, WriteNumber};
use crate::oracle::{Finding, must};

/// Everybody who looks on.
pub(super) struct Witnesses<'a> {
    pub(super) ledger: Ledger,
    pub(super) waits: Waits,
    pub(super) trace: Trace<'a>,
}

/// A request at the device.
struct Flight {
    issue: Issue,
    pieces: Vec<Bio>,
    /// With a flush: the last write that it covers.
    covers: WriteNumber,
    started: Nanos,
}

/// A queue and what is below it.
pub(super) struct Stack {
    queue: RequestQueue,
    /// What the queue was told; the ledger knows what is true.
    config: QueueConfig,
    device: Faulty<Box<dyn Device>>,
    stamps: Stamps,
    /// By number of the command.
    flights: BTreeMap<u32, Flight>,
    saboteur: Saboteur,
    random: Random,
    /// The last time that the queue was told.
    told: Nanos,
    /// Where the last plain write ended.
    last_end: u64,
    /// Bios that the saboteur says have ended.
    forged: Vec<Done>,
    /// Requests issued, commands ended.
    activity: u64,
    boots: u64,
}

/// What the queue is told of the device.
fn told(plan: &Plan, saboteur: &Saboteur) -> QueueConfig {
    let mut config = plan.queue;
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
        let faults = Random::new(seed, STREAM_FAULTS);
        Self {
            queue: RequestQueue::new(config, &plan.spec),
            config,
            device: Faulty::new(plan.model.build(), plan.faults, faults),
            stamps: Stamps::new(plan.queue.write_cache),
            flights: BTreeMap::new(),
            saboteur,
            random: Random::new(seed, STREAM_CONTENTS),
            told: Nanos(0),
            last_end: 0,
            forged: Vec::new(),
            activity: 0,
            boots: 0,
        }
    }

    /// Grows with everything that the device gets or ends.
    pub(super) fn activity(&self) -> u64 {
        self.activity
    }

    pub(super) fn device(&mut self) -> &mut Faulty<Box<dyn Device>> {
        &mut self.device
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
        self.queue.submit_bio(now, bio)
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

    /// Starts what the device takes now.
    pub(super) fn run(&mut self, now: Nanos, by: &mut Witnesses<'_>) -> Result<(), Finding> {
        self.tell(now)?;
        let mut issues = Vec::new();
        loop {
            self.queue.dispatch(now, &mut issues);
            if issues.is_empty() {
                return Ok(());
            }
            for issue in issues.drain(..) {
                self.issue(now, issue, by)?;
            }
        }
    }

    fn number(&self, tag: Tag) -> u32 {
        u32::from(tag.hctx) * self.config.queue_depth + tag.index
    }

    fn issue(
        &mut self,
        now: Nanos,
        mut issue: Issue,
        by: &mut Witnesses<'_>,
    ) -> Result<(), Finding> {
        let pieces: Vec<Bio> = self.queue.bios(issue.tag).copied().collect();
        by.trace.note(now, Event::Issue(&issue, pieces.len()));
        self.activity += 1;
        let number = self.number(issue.tag);
        must!(ExactlyOnce, !self.flights.contains_key(&number), "a tag twice: {issue:?}");
        let mates = self.flights.values().filter(|flight| flight.issue.tag.hctx == issue.tag.hctx);
        by.ledger.issued(&issue, &pieces, mates.count(), &self.stamps)?;
        by.waits.issued(now, &pieces)?;
        if self.device.refuses() {
            by.trace.note(now, Event::Refuse(number));
            by.waits.refused(&pieces);
            self.queue.busy(now, issue.tag);
            return Ok(());
        }
        let command = command(number, &issue);
        if issue.op == Op::Flush && self.saboteur.strikes(Sabotage::EarlyFlush) {
            self.queue.complete(now, issue.tag, BlkStatus::Ok);
            return Ok(());
        }
        if issue.fua && self.saboteur.strikes(Sabotage::ForgottenFua) {
            issue.fua = false;
        }
        let covers = self.stamps.written();
        self.flights.insert(number, Flight { issue, pieces, covers, started: now });
        match command {
            Some(command) => self.device.start(now, command),
            // Nothing to model: the range is forgotten at once.
            None => self.ended(now, number, BlkStatus::Ok, by)?,
        }
        Ok(())
    }

    /// When something happens next, if nothing is submitted before.
    pub(super) fn next_event(&self) -> Option<Nanos> {
        let wake = self.queue.wake_at().filter(|_| !self.saboteur.is(Sabotage::LostWakeUp));
        wake.into_iter().chain(self.device.next_event()).min()
    }

    /// Lets the time pass up to the next event.
    pub(super) fn advance(&mut self, now: Nanos, by: &mut Witnesses<'_>) -> Result<(), Finding> {
        let mut ended = Vec::new();
        self.device.advance(now, &mut ended);
        for (at, number) in ended {
            let status = self.device.take_status(number);
            self.ended(at, number, status, by)?;
        }
        let mut late = Vec::new();
        self.queue.timed_out(now, &mut late);
        for tag in late {
            let number = self.number(tag);
            by.trace.note(now, Event::TimeOut(number));
            let has = self.flights.contains_key(&number);
            must!(Leak, has, "{tag:?} is late, and the device does not have it");
            self.device.abort(now, number);
        }
        self.run(now, by)
    }

    fn ended(
        &mut self,
        at: Nanos,
        number: u32,
        status: BlkStatus,
        by: &mut Witnesses<'_>,
    ) -> Result<(), Finding> {
        by.trace.note(at, Event::End(number, status));
        self.activity += 1;
        let Flight { issue, pieces, covers, started } =
            self.flights.remove(&number).expect("the device ends what it got");
        by.waits.served(at.since(started));
        match (issue.op, status) {
            (Op::Flush, BlkStatus::Ok) => self.stamps.flushed(covers),
            (Op::Flush, _) => by.ledger.flush_failed(),
            _ => {}
        }
        for piece in &pieces {
            self.perform(at, &issue, piece, status, by)?;
            by.ledger.performed(piece, status);
        }
        self.report(at, &issue, &pieces, (status, started), by)
    }

    /// The queue hears of the end, unless the saboteur has other plans.
    fn report(
        &mut self,
        mut at: Nanos,
        issue: &Issue,
        pieces: &[Bio],
        (mut status, started): (BlkStatus, Nanos),
        by: &Witnesses<'_>,
    ) -> Result<(), Finding> {
        let whole = |piece: &Bio| by.ledger.bio(piece.user).is_some_and(|bio| bio.len == piece.len);
        if !pieces.is_empty()
            && pieces.iter().all(whole)
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
            status = BlkStatus::Ok;
        }
        self.tell(at)?;
        self.queue.complete(at, issue.tag, status);
        Ok(())
    }

    /// A part of a bio is done at the medium.
    fn perform(
        &mut self,
        at: Nanos,
        issue: &Issue,
        piece: &Bio,
        status: BlkStatus,
        by: &mut Witnesses<'_>,
    ) -> Result<(), Finding> {
        let (mut sector, mut len) = (piece.sector.0, piece.len.0);
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
        by.ledger.written(piece, write, issue.fua);
        Ok(())
    }

    fn read(&mut self, at: Nanos, piece: &Bio, by: &mut Witnesses<'_>) -> Result<(), Finding> {
        let stale = self.saboteur.strikes(Sabotage::StaleRead);
        let stamp = |sector| match stale {
            true => self.stamps.read_older(sector),
            false => self.stamps.read(sector),
        };
        let range = piece.sector.0..piece.sector.0 + piece.len.0;
        let found = range.map(|sector| (sector, stamp(sector)));
        let hash = found.clone().fold(0, |hash: u32, (_, stamp)| hash.rotate_left(5) ^ stamp);
        by.trace.note(at, Event::Read(piece.user, hash));
        by.ledger.read(piece, found)
    }

    /// Some sectors of a write are written.
    fn write_in_part(&mut self, piece: &Bio) {
        for sector in piece.sector.0..piece.sector.0 + piece.len.0 {
            if chance(&mut self.random, 500) {
                self.stamps.write(sector, 1, Ledger::stamp(piece.user), false);
            }
        }
    }

    /// The bios that have ended.
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

    /// The bios that were parked and have got their request.
    pub(super) fn take_unparked(&mut self, out: &mut Vec<u64>) {
        self.queue.take_unparked(out);
    }

    /// The power fails, and comes back: queue and device are new, the medium is what is left.
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
        self.queue = RequestQueue::new(self.config, &plan.spec);
        let faults = Random::new(seed, STREAM_FAULTS + self.boots);
        self.device = Faulty::new(plan.model.build(), plan.faults, faults);
        Ok(())
    }

    /// Nothing is to do: nothing may be left.
    pub(super) fn is_at_rest(&self) -> Result<(), Finding> {
        must!(Leak, self.queue.is_idle(), "all bios have ended and the queue has requests");
        let commands = self.flights.len();
        must!(Leak, commands == 0 && self.device.is_empty(), "{commands} commands are left");
        Ok(())
    }

    /// Adds what this queue and this device have counted.
    pub(super) fn count(&self, report: &mut Report) {
        let counters = self.queue.counters();
        report.requests += counters.issued;
        report.merges += counters.back_merges + counters.front_merges + counters.request_merges;
        let FaultCounters { errors, delays, hangs, refusals } = self.device.counters();
        report.faults += errors + delays + hangs + refusals;
    }
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
