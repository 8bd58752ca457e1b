//! A spinning disk: arm, platters, a queue of commands, a write cache, a read-ahead buffer.
//!
//! The mechanism does one thing at a time: it positions, transfers, and looks for the next. The
//! angle of the platters is a function of the time, so that what a command costs depends on when
//! it starts; that is what sorting, queueing and merging are about.
//!
//! ```text
//!   start ─> read, or write through ────────────────> queue ─┐
//!        └─> write, cached: ended after the bus ─> dirty ────┴─> mechanism (one at a time)
//! ```
//! What it leaves out: defects, thermal calibration, several arms, zones of the cache.

mod cache;
pub mod geometry;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use blockyard_engine::time::Nanos;

use self::cache::WriteCache;
use self::geometry::{Geometry, Place};
use super::{Command, CommandOp, Device};

/// Times of places are rounded to nanoseconds; a sector takes thousands of them.
const ROUNDING_NS: u64 = 100;

/// Which command of its queue a drive does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The oldest.
    InOrder,
    /// The one that is in position soonest; one that has waited for longer than the limit goes
    /// first. Without a limit a busy queue can starve a command for minutes.
    ShortestPositioning {
        /// How long a command may be passed by others.
        age_max: Nanos,
    },
}

/// What a disk is like.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// Platters and arm.
    pub geometry: Geometry,
    /// Electronics and protocol, for each command.
    pub overhead: Nanos,
    /// A command is prepared while the mechanism still works on the one before it, so that one that
    /// follows the last on the medium loses no turn. Else the mechanism waits for it.
    pub overlaps_overhead: bool,
    /// One sector over the bus.
    pub bus_sector: Nanos,
    /// Commands that it takes at a time (NCQ, TCQ).
    pub queue_depth: u32,
    /// Their order.
    pub policy: Policy,
    /// Sectors of writes that it keeps before they are on the medium; zero is write-through.
    pub write_cache_sectors: u32,
    /// Sectors that it reads on after a read, while nothing else is to be done.
    pub read_ahead_sectors: u32,
}

/// A command that waits for the mechanism.
#[derive(Clone, Copy, Debug)]
struct Queued {
    command: Command,
    arrived: Nanos,
    place: Place,
}

/// What the mechanism is doing.
#[derive(Clone, Copy, Debug)]
enum Job {
    /// A command of the host.
    Host(Command),
    /// Something of the write cache.
    Destage { sector: u64, sectors: u32 },
}

/// What the drive reads on: everything from `start` passes the head from `since` on, until the
/// buffer is full.
#[derive(Clone, Copy, Debug)]
struct ReadAhead {
    start: u64,
    since: Nanos,
    /// Where it ends, if it has filled the buffer and stopped.
    stopped: Option<u64>,
}

/// Counters of what the mechanism did: causes, beside times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounters {
    /// Jobs of the mechanism.
    pub jobs: u64,
    /// Cylinders that the arm has passed.
    pub cylinders_passed: u64,
    /// Time in which the arm moved or settled.
    pub seeking: Nanos,
    /// Time in which the head waited for its sector.
    pub rotating: Nanos,
    /// Time in which sectors passed the head.
    pub transferring: Nanos,
    /// Reads answered from the read-ahead buffer or the write cache.
    pub buffer_hits: u64,
}

/// The disk.
pub struct Disk {
    config: DiskConfig,
    queue: Vec<Queued>,
    cache: WriteCache,
    /// Writes that wait for room in the cache, oldest first.
    waiting_writes: VecDeque<Command>,
    /// Flushes, and the last epoch of the cache that each waits for.
    flushes: VecDeque<(Command, u64)>,
    active: Option<(Nanos, Job)>,
    /// Commands that need no mechanism any more, by the time they end.
    bus: VecDeque<(Nanos, u32)>,
    bus_free: Nanos,
    /// Cylinder and head.
    arm: (u32, u32),
    read_ahead: Option<ReadAhead>,
    in_flight: u32,
    counters: DiskCounters,
}

impl Disk {
    /// A disk at rest over its first cylinder.
    #[must_use]
    pub fn new(config: DiskConfig) -> Self {
        assert!(config.queue_depth > 0);
        Self {
            cache: WriteCache::new(config.write_cache_sectors),
            config,
            queue: Vec::new(),
            waiting_writes: VecDeque::new(),
            flushes: VecDeque::new(),
            active: None,
            bus: VecDeque::new(),
            bus_free: Nanos(0),
            arm: (0, 0),
            read_ahead: None,
            in_flight: 0,
            counters: DiskCounters::default(),
        }
    }

    /// What the mechanism has done.
    #[must_use]
    pub fn counters(&self) -> DiskCounters {
        self.counters
    }

    /// Where the arm is.
    #[must_use]
    pub fn cylinder(&self) -> u32 {
        self.arm.0
    }

    /// How many sectors there are.
    #[must_use]
    pub fn sectors(&self) -> u64 {
        self.config.geometry.sectors()
    }

    /// A command ends when it has been over the bus, which carries one at a time.
    fn end_over_bus(&mut self, ready: Nanos, command: &Command) {
        let transfer = Nanos(self.config.bus_sector.0 * u64::from(command.sectors));
        self.bus_free = self.bus_free.max(ready) + transfer;
        self.bus.push_back((self.bus_free, command.tag));
    }

    fn accept(&mut self, now: Nanos, command: Command) {
        let (sector, ready) = (command.sector.0, now + self.config.overhead);
        match command.op {
            CommandOp::Flush if self.cache.is_clean() => self.end_over_bus(ready, &command),
            CommandOp::Flush => self.flushes.push_back((command, self.cache.close_epoch())),
            CommandOp::Write { fua: false } if self.cache.capacity() > 0 => {
                self.forget_read_ahead(sector, command.sectors);
                self.waiting_writes.push_back(command);
                self.fill_cache(now);
            }
            CommandOp::Read if self.cache.holds(sector, command.sectors) => {
                self.counters.buffer_hits += 1;
                self.end_over_bus(ready, &command);
            }
            CommandOp::Read => match self.read_on(now, sector, command.sectors) {
                Some(passed) => {
                    self.counters.buffer_hits += 1;
                    self.end_over_bus(passed.max(ready), &command);
                }
                None => self.enqueue(now, command),
            },
            CommandOp::Write { .. } => {
                self.forget_read_ahead(sector, command.sectors);
                self.enqueue(now, command);
            }
        }
    }

    fn enqueue(&mut self, now: Nanos, command: Command) {
        let place = self.config.geometry.place(command.sector.0);
        self.queue.push(Queued { command, arrived: now, place });
    }

    fn fill_cache(&mut self, now: Nanos) {
        while let Some(&write) = self.waiting_writes.front() {
            if !self.cache.accept(write.sector.0, write.sectors) {
                return;
            }
            self.waiting_writes.pop_front();
            self.end_over_bus(now + self.config.overhead, &write);
        }
    }

    fn forget_read_ahead(&mut self, sector: u64, sectors: u32) {
        let reach = u64::from(self.config.read_ahead_sectors);
        let touched = |ahead: &ReadAhead| {
            sector < ahead.start + reach && sector + u64::from(sectors) > ahead.start
        };
        if self.read_ahead.as_ref().is_some_and(touched) {
            self.read_ahead = None;
        }
    }

    /// When the read-ahead has passed over all of a range that starts in it; it goes on behind it.
    fn read_on(&mut self, now: Nanos, sector: u64, sectors: u32) -> Option<Nanos> {
        let ahead = self.read_ahead?;
        let (reach, end) = (self.config.read_ahead_sectors, sector + u64::from(sectors));
        let full = (ahead.start + u64::from(reach)).min(self.sectors());
        let len = |to: u64| u32::try_from(to - ahead.start).expect("the buffer is small");
        let is_full = ahead.since + self.pass_time(ahead.start, len(full)) <= now;
        let limit = ahead.stopped.unwrap_or(full);
        if sector < ahead.start || end > limit {
            return None;
        }
        let passed = ahead.since + self.pass_time(ahead.start, len(end));
        let stopped = ahead.stopped.or(is_full.then_some(full));
        self.read_ahead = (end < self.sectors()).then(|| ReadAhead {
            start: end,
            since: passed + self.turn_to(passed, &self.config.geometry.place(end)),
            stopped,
        });
        Some(passed)
    }

    /// How long a range takes to pass the head once it is over its first sector: transfer, and the
    /// steps to further tracks, which the skew hides.
    fn pass_time(&self, mut sector: u64, mut sectors: u32) -> Nanos {
        let geometry = &self.config.geometry;
        let start = geometry.place(sector).angle;
        let mut at = start;
        loop {
            let place = geometry.place(sector);
            at = at + self.turn_to(at, &place);
            let part = sectors.min(place.left_in_track);
            at = at + place.transfer(part);
            sectors -= part;
            sector += u64::from(part);
            if sectors == 0 {
                return at - start;
            }
        }
    }

    /// How long the platters turn until a place is under its head. A place that has passed by less
    /// than rounding can explain is still there.
    fn turn_to(&self, at: Nanos, place: &Place) -> Nanos {
        let revolution = self.config.geometry.revolution.0;
        let turn = (place.angle.0 + revolution - at.0 % revolution) % revolution;
        Nanos(if turn + ROUNDING_NS >= revolution { 0 } else { turn })
    }

    /// Arm movement and rotation from now until a place is under the head.
    fn positioning(&self, now: Nanos, place: &Place, write: bool) -> (Nanos, Nanos) {
        let to = (place.cylinder, place.head);
        let seek = self.config.geometry.seek_time(self.arm, to, write);
        (seek, self.turn_to(now + seek, place))
    }

    /// Whether the mechanism works for the cache although commands wait: a flush wants it, or there
    /// is little room left.
    fn must_destage(&self) -> bool {
        !self.flushes.is_empty() || !self.waiting_writes.is_empty()
    }

    /// Gives the mechanism its next job: the policy of the drive.
    fn choose(&mut self, now: Nanos) {
        if self.active.is_some() {
            return;
        }
        let host = self.choose_command(now);
        let destage = match host {
            Some(_) if !self.must_destage() => None,
            _ => self.choose_destage(now),
        };
        match (host, destage) {
            (Some((command, _)), None) => self.begin_command(now, command),
            (None, Some((sector, _))) => self.begin_destage(now, sector),
            (Some((command, cost)), Some((sector, destage_cost))) => {
                if destage_cost < cost {
                    self.begin_destage(now, sector);
                } else {
                    self.begin_command(now, command);
                }
            }
            (None, None) => {}
        }
    }

    /// A place in the queue, and what positioning for it costs.
    fn choose_command(&self, now: Nanos) -> Option<(usize, Nanos)> {
        let cost = |queued: &Queued| {
            let write = matches!(queued.command.op, CommandOp::Write { .. });
            let (seek, rotation) = self.positioning(now, &queued.place, write);
            seek + rotation
        };
        let oldest = self.queue.first()?;
        let in_order = match self.config.policy {
            Policy::InOrder => true,
            Policy::ShortestPositioning { age_max } => now.since(oldest.arrived) > age_max,
        };
        if in_order {
            return Some((0, cost(oldest)));
        }
        let costs = self.queue.iter().map(cost).enumerate();
        costs.min_by_key(|(place, cost)| (*cost, *place))
    }

    /// The cached range that is in position soonest, among those next to the arm on either side; of
    /// those that a flush waits for, if one does.
    fn choose_destage(&self, now: Nanos) -> Option<(u64, Nanos)> {
        let epoch = self.flushes.front().map(|(_, epoch)| *epoch);
        let here = self.config.geometry.first_sector(self.arm.0);
        let near = self.cache.around(here, epoch.unwrap_or(u64::MAX)).into_iter().flatten();
        let cost = |sector: &u64| {
            let place = self.config.geometry.place(*sector);
            let (seek, rotation) = self.positioning(now, &place, true);
            (*sector, seek + rotation)
        };
        near.map(|sector| cost(&sector)).min_by_key(|(sector, cost)| (*cost, *sector))
    }

    fn begin_command(&mut self, now: Nanos, place: usize) {
        let Queued { command, place, arrived } = self.queue.remove(place);
        let write = matches!(command.op, CommandOp::Write { .. });
        let range = (command.sector.0, command.sectors);
        let prepares = if self.config.overlaps_overhead { arrived } else { now };
        let ready = now.max(prepares + self.config.overhead);
        let ends = self.run(ready, place, range, write);
        self.active = Some((ends, Job::Host(command)));
    }

    fn begin_destage(&mut self, now: Nanos, sector: u64) {
        let sectors = self.cache.len_at(sector);
        let place = self.config.geometry.place(sector);
        let ends = self.run(now, place, (sector, sectors), true);
        self.active = Some((ends, Job::Destage { sector, sectors }));
    }

    /// Moves the arm and passes over a range; when that has been done.
    fn run(&mut self, now: Nanos, place: Place, range: (u64, u32), write: bool) -> Nanos {
        let (seek, rotation) = self.positioning(now, &place, write);
        let transfer = self.pass_time(range.0, range.1);
        let last = self.config.geometry.place(range.0 + u64::from(range.1) - 1);
        self.counters.jobs += 1;
        self.counters.cylinders_passed += u64::from(self.arm.0.abs_diff(place.cylinder));
        self.counters.seeking = self.counters.seeking + seek;
        self.counters.rotating = self.counters.rotating + rotation;
        self.counters.transferring = self.counters.transferring + transfer;
        self.arm = (last.cylinder, last.head);
        self.read_ahead = None;
        now + seek + rotation + transfer
    }

    fn end_job(&mut self, now: Nanos, job: Job) {
        match job {
            Job::Host(command) => {
                let end = command.sector.0 + u64::from(command.sectors);
                if command.op == CommandOp::Read
                    && self.config.read_ahead_sectors > 0
                    && end < self.sectors()
                {
                    let since = now + self.turn_to(now, &self.config.geometry.place(end));
                    self.read_ahead = Some(ReadAhead { start: end, since, stopped: None });
                }
                match command.op {
                    CommandOp::Read => self.end_over_bus(now, &command),
                    _ => {
                        // Not earlier: until now a flush would have to wait for what was cached.
                        self.cache.overwrite(command.sector.0, command.sectors);
                        self.bus.push_back((now, command.tag));
                        self.room_in_cache(now);
                    }
                }
            }
            Job::Destage { sector, sectors } => {
                self.cache.destaged(sector, sectors);
                self.room_in_cache(now);
            }
        }
    }

    /// Something has left the cache: flushes may have waited for it, and writes for the room.
    fn room_in_cache(&mut self, now: Nanos) {
        while let Some((flush, epoch)) = self.flushes.front()
            && self.cache.is_clean_up_to(*epoch)
        {
            self.bus.push_back((now, flush.tag));
            self.flushes.pop_front();
        }
        self.fill_cache(now);
    }
}

impl Device for Disk {
    fn disk_counters(&self) -> Option<DiskCounters> {
        Some(self.counters)
    }

    fn start(&mut self, now: Nanos, command: Command) {
        assert!(command.sector.0 + u64::from(command.sectors) <= self.sectors());
        assert!(self.in_flight < self.config.queue_depth, "the queue depth is respected");
        self.in_flight += 1;
        self.accept(now, command);
        self.choose(now);
    }

    fn next_event(&self) -> Option<Nanos> {
        let bus = self.bus.iter().map(|(at, _)| *at).min();
        let job = self.active.map(|(ends, _)| ends);
        bus.into_iter().chain(job).min()
    }

    fn advance(&mut self, now: Nanos, ended: &mut Vec<(Nanos, u32)>) {
        while let Some(at) = self.next_event().filter(|at| *at <= now) {
            if let Some((ends, job)) = self.active
                && ends == at
            {
                self.active = None;
                self.end_job(at, job);
                self.choose(at);
                continue;
            }
            let place = self.bus.iter().position(|(ends, _)| *ends == at);
            let (at, tag) = self
                .bus
                .remove(place.expect("the next event is one of these two"))
                .expect("the place was found");
            self.in_flight -= 1;
            ended.push((at, tag));
        }
    }
}
