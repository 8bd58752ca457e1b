//! One world: a queue, submitters, a disk, and the invariants of each step.
//!
//! - Every bio ends once, and successfully only if all of it was done.
//! - A request consists of touching bios of one kind, within the limits, and of one priority or
//!   level where the policy demands it.
//! - Reads return valid data; flushes and FUA keep their guarantees (`disk.rs`).
//! - The device never has more requests than tags. While bios wait and the device is idle, the
//!   queue gives a time for the next dispatch. When the device answers all requests, all bios end,
//!   and nothing is left.

use blockyard_engine::bio::{Bio, BlkStatus, IoContext, Op, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::elevator::{ElevatorSpec, ElevatorType, Generation};
use blockyard_engine::mq::{
    Counters, Issue, Limits, PlugRule, QueueConfig, RequestQueue, Submitted,
};
use blockyard_engine::priority::{Priority, PriorityClass};
use blockyard_engine::time::Nanos;

use super::disk::{Disk, NEVER, SECTORS, Step};
use super::rng::{Rng, mix};

/// Greatest number of bios in flight.
const BIOS_MAX: usize = 160;

/// Successive wake-ups without effect after which a queue counts as stuck.
const IDLE_WAKES_MAX: u32 = 40;

macro_rules! ensure {
    ($holds:expr, $($problem:tt)+) => {
        if !$holds {
            return Err(format!($($problem)+));
        }
    };
}

/// The world's record of a bio.
struct Sent {
    bio: Bio,
    submitted: Step,
    ended: Step,
    /// Number of sectors that the disk has done.
    done_sectors: u64,
    failed: bool,
    /// Number of its last write on the disk, and whether that was FUA.
    write: u64,
    write_fua: bool,
    /// For a flush or preflush: number of writes that had ended at its submission.
    covers: u64,
    /// Number of failed flushes at its submission.
    failed_flushes: u64,
    /// For a read: see [`Disk::expectation`].
    expected: Vec<Step>,
}

/// A request at the device.
struct Flight {
    issue: Issue,
    pieces: Vec<Bio>,
    /// For a flush: number of writes that it covers.
    covers: u64,
}

/// A submitter.
struct Submitter {
    io_context: IoContext,
    cpu: u16,
    priority: Priority,
    plugged: bool,
    /// Range of the last bio.
    last: (u64, u64),
}

// 18 fields: the queue under test, the disk, the random load, and the model.
pub(crate) struct World {
    rng: Rng,
    config: QueueConfig,
    elevator: &'static str,
    queue: RequestQueue,
    disk: Disk,
    now: Nanos,
    step: Step,
    submitters: Vec<Submitter>,
    io_contexts: u32,
    sent: Vec<Sent>,
    /// Number of bios in flight.
    open: usize,
    parked: Vec<u64>,
    flights: Vec<Flight>,
    /// Number of the last write of an ended bio.
    ended_writes: u64,
    failed_flushes: u64,
    requeued: u64,
    completed: u64,
    hash: u64,
}

fn tunables(rng: &mut Rng, elevator: &ElevatorType) -> String {
    let mut text = elevator.name.to_string();
    for tunable in elevator.tunables {
        let value = match rng.below(4) {
            0 => tunable.min,
            1 => tunable.min.saturating_add(rng.below(10)).min(tunable.max),
            _ => continue,
        };
        text += &format!(",{}={value}", tunable.name);
    }
    text
}

fn config(rng: &mut Rng, generation: Generation) -> QueueConfig {
    let cpus = rng.one_of(&[1, 1, 2, 4]);
    let hw_queues = match generation {
        Generation::Single => 1,
        Generation::Multi => rng.one_of(&[1, 1, 2, 4]).min(cpus),
    };
    QueueConfig {
        cpus,
        hw_queues,
        queue_depth: rng.one_of(&[1, 2, 4, 32]),
        nr_requests: rng.one_of(&[1, 2, 8, 32, 128]),
        limits: Limits {
            max_sectors: rng.one_of(&[1, 8, 16, 64, 256]),
            max_segments: rng.one_of(&[1, 2, 3, 16, 128]),
        },
        rotational: rng.percent(50),
        write_cache: rng.percent(75),
        fua: rng.percent(50),
        plug: rng.one_of(&[PlugRule::Off, PlugRule::PerContext, PlugRule::PerQueue]),
        tick: rng.one_of(&[Nanos(1), Nanos::from_ms(1), Nanos::from_ms(4)]),
        timeout: rng.one_of(&[None, Some(Nanos::from_ms(30))]),
        ..QueueConfig::of(generation)
    }
}

impl World {
    pub(crate) fn new(elevator: &'static ElevatorType, generation: Generation, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let config = config(&mut rng, generation);
        // A test's own elevator may have the name of a registered one.
        let known = ElevatorType::named(elevator.name);
        let spec = if known.is_some_and(|known| std::ptr::eq(known, elevator)) {
            ElevatorSpec::parse(&tunables(&mut rng, elevator)).expect("values in range")
        } else {
            ElevatorSpec::of(elevator)
        };
        let mut world = Self {
            rng,
            config,
            elevator: elevator.name,
            queue: RequestQueue::new(config, &spec),
            disk: Disk::new(),
            now: Nanos(0),
            step: 0,
            submitters: Vec::new(),
            io_contexts: 0,
            sent: Vec::new(),
            open: 0,
            parked: Vec::new(),
            flights: Vec::new(),
            ended_writes: 0,
            failed_flushes: 0,
            requeued: 0,
            completed: 0,
            hash: 0,
        };
        for _ in 0..4 {
            let submitter = world.submitter();
            world.submitters.push(submitter);
        }
        world
    }

    fn submitter(&mut self) -> Submitter {
        self.io_contexts += 1;
        let priority = match self.rng.below(6) {
            0 => Priority::real_time(self.rng.one_of(&[0, 4])),
            1 => Priority::IDLE,
            2 => Priority::best_effort(self.rng.one_of(&[0, 7])),
            _ => Priority::default(),
        };
        let cpu = self.rng.one_of(&[0, 1, 2, 3]);
        let io_context = IoContext(self.io_contexts);
        Submitter { io_context, cpu, priority, plugged: false, last: (0, 0) }
    }

    /// Runs some rounds of traffic with a standstill after each; returns the hash of all events,
    /// and the queue's counters.
    pub(crate) fn live(mut self, operations: u64) -> Result<(u64, Counters), String> {
        for operation in 1..=operations {
            self.operate()?;
            if operation % (operations / 4) == 0 {
                self.drain()?;
            }
        }
        let counters = *self.queue.counters();
        ensure!(counters.bios == self.sent.len() as u64, "{} bios were counted", counters.bios);
        ensure!(counters.requeued == self.requeued, "{} were requeued", counters.requeued);
        let issued = self.requeued + self.completed;
        ensure!(counters.issued == issued, "{} were issued, not {issued}", counters.issued);
        Ok((self.hash, counters))
    }

    /// One random operation.
    fn operate(&mut self) -> Result<(), String> {
        self.step += 1;
        let number = self.rng.index(self.submitters.len());
        match self.rng.below(100) {
            0..40 if self.open < BIOS_MAX => self.submit(number),
            0..40 => self.complete_any()?,
            40..62 => self.dispatch()?,
            62..80 => self.complete_any()?,
            80..82 => self.busy_any(),
            82..87 => self.plug(number),
            87..88 => self.exit(number),
            88..89 => self.look_for_late()?,
            89..94 => self.now = self.now + Nanos(self.rng.below(200_000)),
            94..97 => self.now = self.now + Nanos(self.rng.below(20_000_000)),
            _ => {
                if let Some(then) = self.queue.wake_at().filter(|then| *then > self.now) {
                    self.now = then;
                }
                self.dispatch()?;
            }
        }
        self.settle()
    }

    /// Without further submissions, with a disk that answers, all bios end.
    fn drain(&mut self) -> Result<(), String> {
        for submitter in &mut self.submitters {
            submitter.plugged = false;
            self.queue.unplug(self.now, submitter.io_context);
        }
        let mut wakes = 0;
        loop {
            self.step += 1;
            self.settle()?;
            let before = self.flights.len();
            self.dispatch()?;
            self.settle()?;
            if self.flights.len() > before {
                wakes = 0;
            }
            if !self.flights.is_empty() {
                self.complete_any()?;
                continue;
            }
            if self.open == 0 {
                break;
            }
            let then = self.queue.wake_at();
            let open = self.open;
            ensure!(then.is_some(), "stuck: {open} bios, an idle disk, and nobody wakes the queue");
            wakes += 1;
            ensure!(wakes < IDLE_WAKES_MAX, "stuck: {open} bios, and waking up leads to nothing");
            self.now = self.now.max(then.unwrap_or_default());
        }
        ensure!(self.queue.is_idle(), "all bios have ended and the queue is not idle");
        ensure!(self.parked.is_empty(), "{:?} are parked and have ended", self.parked);
        Ok(())
    }

    fn submit(&mut self, number: usize) {
        let bio = self.random_bio(number);
        let sector = bio.sector.0;
        let len = bio.len.0;
        let reads = bio.op == Op::Read;
        let expected = if reads { self.disk.expectation(sector, len).to_vec() } else { Vec::new() };
        self.sent.push(Sent {
            bio,
            submitted: self.step,
            ended: NEVER,
            done_sectors: 0,
            failed: false,
            write: 0,
            write_fua: false,
            covers: self.ended_writes,
            failed_flushes: self.failed_flushes,
            expected,
        });
        self.open += 1;
        if self.queue.submit_bio(self.now, bio) == Submitted::Parked {
            self.parked.push(bio.user);
        }
    }

    fn random_bio(&mut self, number: usize) -> Bio {
        let rng = &mut self.rng;
        let submitter = &mut self.submitters[number];
        let op = match rng.below(100) {
            0..46 => Op::Read,
            46..92 => Op::Write,
            92..96 => Op::Flush,
            96..98 => Op::Discard,
            _ => Op::WriteZeroes,
        };
        let len = if rng.percent(97) { 1 + rng.below(8) } else { 1 + rng.below(200) };
        let (last, last_len) = submitter.last;
        let sector = match rng.below(10) {
            0..6 => last + last_len,
            6..8 => last.saturating_sub(len),
            _ => rng.below(SECTORS),
        };
        let sector = if sector + len > SECTORS { rng.below(SECTORS - len) } else { sector };
        let (sector, len) = if op == Op::Flush { (0, 0) } else { (sector, len) };
        let moves_bytes = matches!(op, Op::Read | Op::Write);
        let len_bytes = u32::try_from(len * 512).expect("a short bio");
        let buf = if moves_bytes { BufRef::zeros(len_bytes) } else { BufRef::NONE };
        let user = self.sent.len() as u64;
        let mut bio = Bio::new(op, Sector(sector), Sector(len), buf, user);
        if op == Op::Write {
            bio.preflush = rng.percent(4);
            bio.fua = rng.percent(4);
        }
        if op != Op::Flush {
            submitter.last = (sector, len);
        }
        bio.origin.sync = rng.percent(30);
        bio.origin.io_context = submitter.io_context;
        bio.origin.cpu = submitter.cpu;
        bio.origin.priority = submitter.priority;
        bio
    }

    fn plug(&mut self, number: usize) {
        let submitter = &mut self.submitters[number];
        if submitter.plugged {
            self.queue.unplug(self.now, submitter.io_context);
        } else {
            self.queue.plug(submitter.io_context);
        }
        submitter.plugged = !submitter.plugged;
    }

    /// Replaces a submitter by a new one.
    fn exit(&mut self, number: usize) {
        self.queue.exit_context(self.now, self.submitters[number].io_context);
        self.submitters[number] = self.submitter();
    }

    fn look_for_late(&mut self) -> Result<(), String> {
        let mut late = Vec::new();
        self.queue.timed_out(self.now, &mut late);
        for tag in late {
            ensure!(self.flights.iter().any(|flight| flight.issue.tag == tag), "{tag:?} is late");
        }
        Ok(())
    }

    fn dispatch(&mut self) -> Result<(), String> {
        let mut issues = Vec::new();
        self.queue.dispatch(self.now, &mut issues);
        for issue in issues {
            let pieces: Vec<_> = self.queue.bios(issue.tag).copied().collect();
            self.note(mix(issue.sector.0 ^ issue.len.0 << 32) ^ u64::from(issue.tag.index));
            self.check_request(&issue, &pieces)?;
            self.flights.push(Flight { issue, pieces, covers: self.disk.writes() });
        }
        let plugged = self.submitters.iter().any(|submitter| submitter.plugged);
        if self.flights.is_empty() && self.open > 0 && !plugged {
            ensure!(self.queue.wake_at().is_some(), "stuck: {} bios, an idle disk", self.open);
        }
        Ok(())
    }

    fn check_request(&self, issue: &Issue, pieces: &[Bio]) -> Result<(), String> {
        let same_tag = |flight: &&Flight| flight.issue.tag == issue.tag;
        ensure!(!self.flights.iter().any(|flight| same_tag(&flight)), "a tag twice: {issue:?}");
        let mates = self.flights.iter().filter(|flight| flight.issue.tag.hctx == issue.tag.hctx);
        ensure!(mates.count() < self.config.queue_depth as usize, "too deep: {issue:?}");
        if issue.op == Op::Flush {
            ensure!(self.config.write_cache, "a flush for a disk without a cache");
            ensure!(pieces.is_empty() && issue.len.0 == 0, "a flush of {pieces:?}");
            return Ok(());
        }
        ensure!(!pieces.is_empty(), "a request of nothing: {issue:?}");
        ensure!(!issue.fua || (self.config.fua && self.config.write_cache), "FUA: {issue:?}");
        let Limits { max_sectors, max_segments } = self.config.limits;
        // A discard moves no bytes and has no limit.
        let moves_bytes = matches!(issue.op, Op::Read | Op::Write);
        let fits = issue.len.0 <= u64::from(max_sectors);
        ensure!(fits || !moves_bytes, "too long: {issue:?}");
        ensure!(pieces.len() <= usize::from(max_segments), "too many pieces: {pieces:?}");
        ensure!(usize::from(issue.segments) == pieces.len(), "miscounted: {issue:?} {pieces:?}");
        let mut end = issue.sector;
        for piece in pieces {
            let sent = &self.sent[piece.user as usize];
            ensure!(piece.sector == end, "does not touch: {issue:?} {pieces:?}");
            ensure!(piece.op == issue.op && sent.bio.op == issue.op, "kinds: {pieces:?}");
            ensure!(
                piece.origin == sent.bio.origin || !self.config.write_cache,
                "whose: {piece:?}"
            );
            ensure!(sent.ended == NEVER, "has ended before: {piece:?}");
            ensure!(
                !sent.bio.preflush || !self.config.write_cache || self.disk.is_stable(sent.covers),
                "a preflush write before the flush: {piece:?}"
            );
            end = end + piece.len;
        }
        ensure!(end == issue.sector + issue.len, "lengths: {issue:?} {pieces:?}");
        self.check_merged(issue, pieces)
    }

    /// Checks that the merged bios may be merged.
    fn check_merged(&self, issue: &Issue, pieces: &[Bio]) -> Result<(), String> {
        let same = |holds: &dyn Fn(&Bio, &Bio) -> bool| {
            pieces.windows(2).all(|pair| holds(&pair[0], &pair[1]))
        };
        if pieces.len() > 1 {
            ensure!(matches!(issue.op, Op::Read | Op::Write), "never merged: {pieces:?}");
            ensure!(!issue.fua, "FUA merged: {pieces:?}");
            let plain = |bio: &Bio| !bio.fua && !bio.preflush;
            ensure!(pieces.iter().all(plain) || !self.config.write_cache, "stable: {pieces:?}");
        }
        let priority = |a: &Bio, b: &Bio| a.origin.priority == b.origin.priority;
        if self.config.generation == Generation::Multi {
            ensure!(same(&priority), "priorities merged: {pieces:?}");
        }
        // In its plug a submitter merges without asking the elevator.
        if self.config.plug == PlugRule::PerContext {
            return Ok(());
        }
        let class = |a: &Bio, b: &Bio| a.origin.priority.class == b.origin.priority.class;
        let level = |a: &Bio, b: &Bio| level(a) == level(b);
        let sync = |a: &Bio, b: &Bio| a.is_sync() == b.is_sync();
        let fine = match self.elevator {
            "mq-deadline" => same(&class),
            "deadline-prio" => same(&level),
            // Submitters may share a queue, but not with another priority.
            "cfq" => same(&sync) && same(&priority),
            _ => true,
        };
        ensure!(fine, "merged across what {} keeps apart: {pieces:?}", self.elevator);
        Ok(())
    }

    fn complete_any(&mut self) -> Result<(), String> {
        if self.flights.is_empty() {
            return Ok(());
        }
        let flight = self.flights.swap_remove(self.rng.index(self.flights.len()));
        let failed = self.rng.percent(2);
        if flight.issue.op == Op::Flush {
            if failed {
                self.failed_flushes += 1;
            } else {
                self.disk.flushed(flight.covers);
            }
        }
        for piece in &flight.pieces {
            // A failed request may be done partly.
            if !failed || self.rng.percent(50) {
                self.perform(&flight, piece, failed)?;
            }
            self.sent[piece.user as usize].failed |= failed;
        }
        self.completed += 1;
        let status = if failed { BlkStatus::IoError } else { BlkStatus::Ok };
        self.queue.complete(self.now, flight.issue.tag, status);
        Ok(())
    }

    fn perform(&mut self, flight: &Flight, piece: &Bio, failed: bool) -> Result<(), String> {
        let sector = piece.sector.0;
        let len = piece.len.0;
        let number = piece.user as usize;
        if piece.op == Op::Read {
            let reader = &self.sent[number];
            let skip = (sector - reader.bio.sector.0) as usize;
            let expected = &reader.expected[skip..];
            for (place, (writer, expected)) in self.disk.read(sector, len).zip(expected).enumerate()
            {
                let ended = writer.map_or(0, |writer| self.sent[writer].ended);
                let at = sector + place as u64;
                ensure!(ended >= *expected, "sector {at}: {writer:?} is old for {:?}", reader.bio);
            }
        } else {
            let write = self.disk.write(sector, len, number);
            let writer = &mut self.sent[number];
            writer.write = write;
            writer.write_fua = flight.issue.fua;
        }
        if !failed {
            self.sent[number].done_sectors += len;
        }
        Ok(())
    }

    fn busy_any(&mut self) {
        if !self.flights.is_empty() {
            let flight = self.flights.swap_remove(self.rng.index(self.flights.len()));
            self.requeued += 1;
            self.queue.busy(self.now, flight.issue.tag);
        }
    }

    /// Takes the ended bios, and those that have got their request.
    fn settle(&mut self) -> Result<(), String> {
        let mut done = Vec::new();
        self.queue.take_done(&mut done);
        for done in done {
            self.note(done.user << 1 | u64::from(done.status == BlkStatus::Ok));
            self.check_done(done.user as usize, done.status)?;
            self.open -= 1;
        }
        let mut unparked = Vec::new();
        self.queue.take_unparked(&mut unparked);
        for user in unparked {
            let place = self.parked.iter().position(|parked| *parked == user);
            ensure!(place.is_some(), "bio {user} was not parked");
            self.parked.swap_remove(place.unwrap_or_default());
        }
        Ok(())
    }

    fn check_done(&mut self, number: usize, status: BlkStatus) -> Result<(), String> {
        let cached = self.config.write_cache;
        let sent = &mut self.sent[number];
        let Bio { op, sector, len, fua, preflush, .. } = sent.bio;
        ensure!(sent.ended == NEVER, "ended twice: {:?}", sent.bio);
        sent.ended = self.step;
        let flushes = op == Op::Flush || fua || preflush;
        if status != BlkStatus::Ok {
            let flush_failed = flushes && self.failed_flushes > sent.failed_flushes;
            ensure!(sent.failed || flush_failed, "failed for no reason: {:?}", sent.bio);
            // The data may be there or not: either is valid forever.
            sent.ended = NEVER - 1;
            return Ok(());
        }
        ensure!(!sent.failed, "a failure became a success: {:?}", sent.bio);
        ensure!(sent.done_sectors == len.0, "not all of it was done: {:?}", sent.bio);
        if cached && (op == Op::Flush || preflush) {
            ensure!(self.disk.is_stable(sent.covers), "a flush without effect: {:?}", sent.bio);
        }
        if cached && fua {
            let stable = sent.write_fua || self.disk.is_stable(sent.write);
            ensure!(stable, "FUA, and not stable: {:?}", sent.bio);
        }
        if !matches!(op, Op::Read | Op::Flush) {
            self.ended_writes = sent.write.max(self.ended_writes);
            self.disk.acknowledge(sector.0, len.0, sent.submitted);
        }
        Ok(())
    }

    fn note(&mut self, event: u64) {
        self.hash = mix(self.hash.rotate_left(5) ^ event ^ self.now.0);
    }
}

/// Levels of `deadline-prio`: see its documentation.
fn level(bio: &Bio) -> u8 {
    match (bio.origin.priority.class, bio.op) {
        (PriorityClass::Idle, _) => 2,
        (PriorityClass::RealTime, Op::Read) => 0,
        (_, Op::Read) => 1,
        _ => {
            if bio.is_sync() {
                1
            } else {
                2
            }
        }
    }
}
