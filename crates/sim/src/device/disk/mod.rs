//! A spinning disk: arm, platters, a queue of commands, a write cache, a read-ahead buffer.
//!
//! The mechanism does one thing at a time: it positions, transfers, and takes the next job. The
//! angle of the platters is a function of time, so the cost of a command depends on its start;
//! sorting, queueing and merging exploit that.
//!
//! ```text
//!   start ─> read, or write through ────────────────> queue ─┐
//!        └─> write, cached: ended after the bus ─> dirty ────┴─> mechanism (one at a time)
//! ```
//! # Selection of the next command
//!
//! The time until the data of a command is under the head, with the rest of its preparation, is
//! reduced by its age times a weight, and the least is next: aged SPTF, or ASATF (Jacobson and
//! Wilkes, "Disk scheduling algorithms based on rotational position", HPL-CSP-91-7, 1991;
//! Worthington, Ganger and Patt, SIGMETRICS 1994; the formula is DiskSim's `ASPTF_OPT`). At the age
//! limit, the age weighs as much as the longest positioning. Cache writes for a flush or for room
//! have the age of the waiting command.
//!
//! Real firmware is secret, but its form is known. Patents describe an access time that is reduced
//! as a command approaches its limit (Seagate, US 10310923), and old commands of which the nearest
//! is taken (Western Digital, US 6145052) or the oldest every so often (IBM, US 6965965). Hitachi's
//! manuals have a *command aging limit*, after which commands are first come, first served: 48 in
//! the Ultrastars 15K450 and C15K600, in units of 50 ms (from memory), so 2.4 s.
//!
//! # Destaging
//!
//! The write cache is written to the medium for a flush, for a write without room, and after a
//! pause of the host. A drive that destaged in each short gap between the commands of a reader
//! would lose its position and its read-ahead. So firmware waits for a time without commands
//! (US 7721051: about the usual gap between two of them). Until then it keeps data for a threshold
//! of occupied memory (Seagate, US 6789163); here the threshold is a full cache.
//!
//! Left out: defects, thermal calibration, several arms, zones of the cache.

mod cache;
pub mod geometry;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use blockyard_engine::time::Nanos;

use self::cache::WriteCache;
use self::geometry::{Geometry, Place};
use super::{Command, CommandOp, Device};

/// Tolerance for times of positions, which are rounded to nanoseconds; a sector takes thousands.
const ROUNDING_NS: u64 = 100;

/// Selection of the next command in a drive's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The oldest command.
    InOrder,
    /// The command with the shortest positioning, less its age. Without ageing a busy queue can
    /// starve a command for minutes.
    ShortestPositioning {
        /// Age at which no later command passes.
        age_max: Nanos,
    },
}

/// Parameters of a disk.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// Platters and arm.
    pub geometry: Geometry,
    /// Electronics and protocol, per command.
    pub overhead: Nanos,
    /// Whether a command is prepared while the mechanism works on the previous one, so that a
    /// sequential command loses no revolution. Otherwise the mechanism waits.
    pub overlaps_overhead: bool,
    /// Bus time of one sector.
    pub bus_sector: Nanos,
    /// Queue depth (NCQ, TCQ).
    pub queue_depth: u32,
    /// Order of commands.
    pub policy: Policy,
    /// Sectors of the write cache; zero means write-through.
    pub write_cache_sectors: u32,
    /// Time without a host command, after which the drive destages its write cache unasked.
    pub destage_after: Nanos,
    /// Sectors of read-ahead after a read, while the drive is otherwise idle.
    pub read_ahead_sectors: u32,
}

/// A command that waits for the mechanism.
#[derive(Clone, Copy, Debug)]
struct Queued {
    command: Command,
    arrived: Nanos,
    place: Place,
}

/// A flush that waits for the cache.
#[derive(Clone, Copy, Debug)]
struct Flush {
    tag: u32,
    arrived: Nanos,
    /// The last epoch of the cache that it waits for.
    epoch: u64,
}

/// Current job of the mechanism.
#[derive(Clone, Copy, Debug)]
enum Job {
    /// A command of the host.
    Host(Command),
    /// A range of the write cache.
    Destage { sector: u64, sectors: u32 },
}

/// Read-ahead of the drive: all sectors from `start` pass the head from `since` on, until the
/// buffer is full.
#[derive(Clone, Copy, Debug)]
struct ReadAhead {
    start: u64,
    since: Nanos,
    /// End of the read-ahead, if it has filled the buffer and stopped.
    stopped: Option<u64>,
}

/// Counters of the mechanism.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounters {
    /// Jobs of the mechanism.
    pub jobs: u64,
    /// Cylinders passed by the arm.
    pub cylinders_passed: u64,
    /// Time of arm movement and settling.
    pub seeking: Nanos,
    /// Time of waiting for a sector.
    pub rotating: Nanos,
    /// Time of transfers at the head.
    pub transferring: Nanos,
    /// Reads answered from the read-ahead buffer or the write cache.
    pub buffer_hits: u64,
}

impl DiskCounters {
    /// Adds those of another disk.
    pub fn add(&mut self, other: &Self) {
        self.jobs += other.jobs;
        self.cylinders_passed += other.cylinders_passed;
        self.seeking = self.seeking + other.seeking;
        self.rotating = self.rotating + other.rotating;
        self.transferring = self.transferring + other.transferring;
        self.buffer_hits += other.buffer_hits;
    }
}

/// The disk.
// 14 fields: the places of a command, the state of the mechanics, and counts.
pub struct Disk {
    config: DiskConfig,
    /// Weight of a nanosecond of age; zero for `InOrder`.
    age_weight_x65536: u64,
    queue: Vec<Queued>,
    cache: WriteCache,
    /// Writes that wait for room in the cache, oldest first, with their arrival times.
    waiting_writes: VecDeque<(Nanos, Command)>,
    flushes: VecDeque<Flush>,
    active: Option<(Nanos, Job)>,
    /// Commands that need only the bus, by their end times.
    bus: VecDeque<(Nanos, u32)>,
    bus_free: Nanos,
    /// Cylinder and head.
    arm: (u32, u32),
    read_ahead: Option<ReadAhead>,
    in_flight: u32,
    /// Last start or end of a host command.
    host_seen: Nanos,
    counters: DiskCounters,
}

impl Disk {
    /// A disk at rest over its first cylinder.
    #[must_use]
    pub fn new(config: DiskConfig) -> Self {
        assert!(config.queue_depth > 0);
        let age_weight_x65536 = match config.policy {
            Policy::InOrder => 0,
            Policy::ShortestPositioning { age_max } => {
                (config.geometry.longest_positioning().0 << 16) / age_max.0.max(1)
            }
        };
        Self {
            age_weight_x65536,
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
            host_seen: Nanos(0),
            counters: DiskCounters::default(),
        }
    }

    /// Counters of the mechanism.
    #[must_use]
    pub fn counters(&self) -> DiskCounters {
        self.counters
    }

    /// Current cylinder of the arm.
    #[must_use]
    pub fn cylinder(&self) -> u32 {
        self.arm.0
    }

    /// Number of sectors.
    #[must_use]
    pub fn sectors(&self) -> u64 {
        self.config.geometry.sectors()
    }

    /// Ends a command after its bus transfer; the bus carries one at a time.
    fn end_over_bus(&mut self, ready: Nanos, command: &Command) {
        let transfer = Nanos(self.config.bus_sector.0 * u64::from(command.sectors));
        self.bus_free = self.bus_free.max(ready) + transfer;
        self.bus.push_back((self.bus_free, command.tag));
    }

    fn accept(&mut self, now: Nanos, command: Command) {
        let sector = command.sector.0;
        let ready = now + self.config.overhead;
        match command.op {
            CommandOp::Flush if self.cache.is_clean() => self.end_over_bus(ready, &command),
            CommandOp::Flush => {
                let epoch = self.cache.close_epoch();
                self.flushes.push_back(Flush { tag: command.tag, arrived: now, epoch });
            }
            CommandOp::Write { fua: false } if self.cache.capacity() > 0 => {
                self.forget_read_ahead(sector, command.sectors);
                self.waiting_writes.push_back((now, command));
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
        while let Some(&(_, write)) = self.waiting_writes.front() {
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

    /// Time at which the read-ahead has passed a whole range that starts in it; the read-ahead
    /// continues after it.
    fn read_on(&mut self, now: Nanos, sector: u64, sectors: u32) -> Option<Nanos> {
        let ahead = self.read_ahead?;
        let reach = self.config.read_ahead_sectors;
        let end = sector + u64::from(sectors);
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

    /// Time of a range under the head once its first sector is there: the transfer, and steps to
    /// further tracks, which the skew hides.
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

    /// Rotation until a position is under its head. A position that has passed by less than the
    /// rounding tolerance counts as there.
    fn turn_to(&self, at: Nanos, place: &Place) -> Nanos {
        let revolution = self.config.geometry.revolution.0;
        let turn = (place.angle.0 + revolution - at.0 % revolution) % revolution;
        Nanos(if turn + ROUNDING_NS >= revolution { 0 } else { turn })
    }

    /// Arm movement and rotation until a position is under the head.
    fn positioning(&self, now: Nanos, place: &Place, write: bool) -> (Nanos, Nanos) {
        let to = (place.cylinder, place.head);
        let seek = self.config.geometry.seek_time(self.arm, to, write);
        (seek, self.turn_to(now + seek, place))
    }

    /// Start of the oldest wait for the write cache: by a flush, or by a write without room. The
    /// mechanism then destages although commands wait.
    fn destage_wanted_since(&self) -> Option<Nanos> {
        let flush = self.flushes.front().map(|flush| flush.arrived);
        let write = self.waiting_writes.front().map(|(arrived, _)| *arrived);
        flush.into_iter().chain(write).min()
    }

    /// Start of destaging unasked, if the host sends nothing before.
    fn idle_destage_at(&self) -> Option<Nanos> {
        let pauses = self.in_flight == 0 && !self.cache.is_clean();
        pauses.then(|| self.host_seen + self.config.destage_after)
    }

    /// Time until the data is under the head, less the age of the waiting command.
    fn aged(&self, now: Nanos, until_data: Nanos, since: Nanos) -> i64 {
        let off = now.since(since).0.saturating_mul(self.age_weight_x65536) >> 16;
        until_data.0.cast_signed() - off.cast_signed()
    }

    /// Time at which the mechanism can begin a command: after its preparation.
    fn prepared_at(&self, now: Nanos, arrived: Nanos) -> Nanos {
        let prepares = if self.config.overlaps_overhead { arrived } else { now };
        now.max(prepares + self.config.overhead)
    }

    /// Chooses the mechanism's next job by the drive's policy.
    fn choose(&mut self, now: Nanos) {
        if self.active.is_some() {
            return;
        }
        let host = self.choose_command(now);
        let wanted_since = self.destage_wanted_since();
        let unasked = || self.idle_destage_at().filter(|at| *at <= now).map(|_| now);
        let since = wanted_since.or_else(unasked);
        let destage = since.and_then(|since| self.choose_destage(now, since));
        match (host, destage) {
            (Some((cost, _)), Some((destage_cost, sector))) if destage_cost < cost => {
                self.begin_destage(now, sector);
            }
            (Some((_, place)), _) => self.begin_command(now, place),
            (None, Some((_, sector))) => self.begin_destage(now, sector),
            (None, None) => {}
        }
    }

    /// Cost of the best command, less its age, and its index in the queue.
    fn choose_command(&self, now: Nanos) -> Option<(i64, usize)> {
        let cost = |(place, queued): (usize, &Queued)| {
            let write = matches!(queued.command.op, CommandOp::Write { .. });
            let ready = self.prepared_at(now, queued.arrived);
            let (seek, rotation) = self.positioning(ready, &queued.place, write);
            let until_data = ready.since(now) + seek + rotation;
            (self.aged(now, until_data, queued.arrived), place)
        };
        let mut costs = self.queue.iter().enumerate().map(cost);
        match self.config.policy {
            Policy::InOrder => costs.next(),
            Policy::ShortestPositioning { .. } => costs.min(),
        }
    }

    /// The cached range with the shortest positioning, among the nearest on either side of the arm;
    /// only of those that a flush waits for, if one waits.
    fn choose_destage(&self, now: Nanos, since: Nanos) -> Option<(i64, u64)> {
        let epoch = self.flushes.front().map(|flush| flush.epoch);
        let here = self.config.geometry.first_sector(self.arm.0);
        let near = self.cache.around(here, epoch.unwrap_or(u64::MAX)).into_iter().flatten();
        let cost = |sector: u64| {
            let place = self.config.geometry.place(sector);
            let (seek, rotation) = self.positioning(now, &place, true);
            (self.aged(now, seek + rotation, since), sector)
        };
        near.map(cost).min()
    }

    fn begin_command(&mut self, now: Nanos, place: usize) {
        let Queued { command, place, arrived } = self.queue.remove(place);
        let write = matches!(command.op, CommandOp::Write { .. });
        let range = (command.sector.0, command.sectors);
        let ready = self.prepared_at(now, arrived);
        let ends = self.run(ready, place, range, write);
        self.active = Some((ends, Job::Host(command)));
    }

    fn begin_destage(&mut self, now: Nanos, sector: u64) {
        let sectors = self.cache.len_at(sector);
        let place = self.config.geometry.place(sector);
        let ends = self.run(now, place, (sector, sectors), true);
        self.active = Some((ends, Job::Destage { sector, sectors }));
    }

    /// Moves the arm and passes a range; returns the end.
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
                        // Not earlier: until now a flush had to wait for the cached data.
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

    /// The cache has shrunk: ends flushes and accepts writes that waited for it.
    fn room_in_cache(&mut self, now: Nanos) {
        while let Some(flush) = self.flushes.front()
            && self.cache.is_clean_up_to(flush.epoch)
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
        self.host_seen = now;
        self.accept(now, command);
        self.choose(now);
    }

    fn next_event(&self) -> Option<Nanos> {
        let bus = self.bus.iter().map(|(at, _)| *at).min();
        let job = match self.active {
            Some((ends, _)) => Some(ends),
            None => self.idle_destage_at(),
        };
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
            let Some((at, tag)) = place.and_then(|place| self.bus.remove(place)) else {
                // The pause of the host is long enough.
                self.choose(at);
                continue;
            };
            self.in_flight -= 1;
            self.host_seen = at;
            ended.push((at, tag));
        }
    }
}
