//! A world of ranges in flight: shards, their requests, and the program that each shard runs.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use blockyard_engine::ranges::{
    ANNOUNCEMENTS_MAX, Announcer, BLOCK_BYTES, Blocks, EntryId, Ranges, Share, Slot,
};
use blockyard_workload::random::Random;

use super::disk::{CELL_BYTES, Disk, Io, Stamp};
use super::judge::{Expected, Judge};
use super::{Report, Sabotage};
use crate::oracle::{Finding, must};
use crate::torture::Log;

const STREAM: u64 = 13;
const STREAM_SABOTAGE: u64 = 14;
const BLOCK_CELLS: usize = (BLOCK_BYTES / CELL_BYTES) as usize;
/// An offset beyond every volume of these worlds.
const FAR_BYTES: u64 = 1 << 40;

/// A client's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Zeroes,
    Discard,
}

/// A request in flight.
struct Request {
    shard: usize,
    cells: Range<usize>,
    /// Stamp of a change.
    stamp: Option<Stamp>,
    /// Expectation of a read.
    expected: Option<Expected>,
    /// Number of claims in flight.
    pending: u32,
    /// Zeroes: whole sectors that were not submitted.
    portions: Range<usize>,
}

/// The purpose of a claim.
enum Work {
    Read,
    Write,
    /// A portion of zeroes; the next one follows it.
    Portion,
    /// A part of a sector, with these cells.
    Patch(Range<usize>),
}

/// The way in which a claim holds its range.
enum Hold {
    Nothing,
    Announced(Slot),
    Entry(EntryId),
}

/// A bio or a read-modify-write, from its submission to its end.
struct Claim {
    shard: usize,
    request: u64,
    /// Whole sectors.
    cells: Range<usize>,
    work: Work,
    hold: Hold,
    waits: bool,
    /// Step of its announcement or first entry.
    came: u64,
}

/// A part of the current call of a shard's thread: one call of the engine.
enum Step {
    Announce(u64),
    Admit(u64, Slot),
    Enter(u64),
    Withdraw(Slot),
    Freed(Blocks),
    End(EntryId),
    /// Reports the end to the front end.
    Settle(u64),
}

/// A connection.
struct Shard {
    announcer: Announcer,
    steps: VecDeque<Step>,
    /// Claims with granted ranges.
    mail: VecDeque<u64>,
    /// Ended operations of the disk.
    ended: VecDeque<Io>,
    open: usize,
    is_leaving: bool,
}

/// A possible next event.
#[derive(Clone, Copy)]
enum Turn {
    /// The next step of this shard's call.
    Step(usize),
    Mail(usize),
    Ended(usize),
    Request(usize),
    Leave(usize),
    Disk,
}

// 19 fields: the engine under test, its callers, the judge, and the limits of the load.
pub(super) struct World<'c, 'l> {
    random: Random,
    saboteur: Random,
    sabotage: Option<Sabotage>,
    clock: &'c Cell<u64>,
    log: Option<Log<'l>>,
    ranges: Ranges,
    shards: Vec<Shard>,
    disk: Disk,
    judge: Judge,
    requests: BTreeMap<u64, Request>,
    claims: BTreeMap<u64, Claim>,
    /// Waiting read-modify-writes.
    waiting: BTreeSet<u64>,
    next_id: u64,
    /// Number of requests still to be sent.
    budget: u64,
    depth: usize,
    portion_cells: usize,
    leaves_per_mille: u64,
    /// Announcements of a shard far away, so that it runs out of slots.
    far: usize,
    report: Report,
}

impl<'c, 'l> World<'c, 'l> {
    pub(super) fn new(
        seed: u64,
        sabotage: Option<Sabotage>,
        clock: &'c Cell<u64>,
        log: Option<Log<'l>>,
    ) -> Self {
        let mut random = Random::new(seed, STREAM);
        let mut below = |end: u64| random.below(end) as usize;
        let cells = (1 + below(6)) * BLOCK_CELLS;
        let sector_cells = [2, BLOCK_CELLS][below(2)];
        let tears = below(3) == 0;
        let shards = 2 + below(3);
        let depth = 1 + below(8);
        let portion_cells = (1 + below(2)) * BLOCK_CELLS;
        let leaves_per_mille = [0, 10, 50][below(3)];
        let far = if below(8) == 0 { ANNOUNCEMENTS_MAX - below(6) } else { 0 };
        let budget = 100 + below(150) as u64;
        let mut world = Self {
            random,
            saboteur: Random::new(seed, STREAM_SABOTAGE),
            sabotage,
            clock,
            log,
            ranges: Ranges::default(),
            shards: Vec::new(),
            disk: Disk::new(cells, sector_cells, tears),
            judge: Judge::new(cells),
            requests: BTreeMap::new(),
            claims: BTreeMap::new(),
            waiting: BTreeSet::new(),
            next_id: 0,
            budget,
            depth,
            portion_cells,
            leaves_per_mille,
            far,
            report: Report::default(),
        };
        let sector_bytes = sector_cells as u64 * CELL_BYTES;
        world.note(|| {
            format!(
                "{cells} cells, sectors of {sector_bytes}, torn {tears}; {shards} shards of \
                 {depth} requests, {budget} requests, portions of {portion_cells} cells, \
                 {leaves_per_mille} ‰ leave, {far} announcements far away"
            )
        });
        for _ in 0..shards {
            let shard = world.join();
            world.shards.push(shard);
        }
        world
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log(&format!("{:>6}  {}", self.clock.get(), line()));
        }
    }

    fn now(&self) -> u64 {
        self.clock.get()
    }

    fn below(&mut self, end: usize) -> usize {
        self.random.below(end as u64) as usize
    }

    /// Whether the saboteur lets this claim continue too early. Not past other waiters, which is
    /// another oracle's case.
    fn hastens(&mut self, sabotage: Sabotage) -> bool {
        self.waiting.is_empty() && self.sabotages(sabotage)
    }

    /// Whether the saboteur strikes now.
    fn sabotages(&mut self, sabotage: Sabotage) -> bool {
        self.sabotage == Some(sabotage) && self.saboteur.below(4) == 0
    }

    fn join(&mut self) -> Shard {
        let mut announcer = self.ranges.join();
        for _ in 0..self.far {
            announcer.announce(Blocks::around(FAR_BYTES, BLOCK_BYTES)).expect("there is room");
        }
        let steps = VecDeque::new();
        let mail = VecDeque::new();
        let ended = VecDeque::new();
        Shard { announcer, steps, mail, ended, open: 0, is_leaving: false }
    }

    pub(super) fn live(mut self) -> Result<Report, Finding> {
        let mut turns = Vec::new();
        loop {
            self.find_turns(&mut turns);
            if turns.is_empty() {
                break;
            }
            let index = self.below(turns.len());
            self.clock.set(self.now() + 1);
            self.mix((index as u64) << 32 | turns.len() as u64);
            match turns[index] {
                Turn::Step(shard) => self.step(shard)?,
                Turn::Mail(shard) => self.take_mail(shard)?,
                Turn::Ended(shard) => self.take_ended(shard),
                Turn::Request(shard) => self.send(shard),
                Turn::Leave(shard) => self.leave(shard)?,
                Turn::Disk => self.move_disk()?,
            }
        }
        self.judge_end()
    }

    fn mix(&mut self, word: u64) {
        let hash = &mut self.report.hash;
        *hash = (hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// All possible next events.
    fn find_turns(&self, turns: &mut Vec<Turn>) {
        turns.clear();
        for (index, shard) in self.shards.iter().enumerate() {
            if !shard.steps.is_empty() {
                turns.push(Turn::Step(index));
                continue;
            }
            if shard.is_leaving {
                let is_early = self.sabotage == Some(Sabotage::EarlyLeave);
                let of_shard =
                    |user: u64| self.claims.get(&user).is_some_and(|claim| claim.shard == index);
                if is_early || !self.disk.has_io_of(of_shard) {
                    turns.push(Turn::Leave(index));
                }
                continue;
            }
            if !shard.mail.is_empty() {
                turns.push(Turn::Mail(index));
            }
            if !shard.ended.is_empty() {
                turns.push(Turn::Ended(index));
            }
            if self.budget > 0 && shard.open < self.depth {
                turns.push(Turn::Request(index));
            }
        }
        if !self.disk.is_idle() {
            turns.push(Turn::Disk);
        }
    }

    // The client and the front end.

    /// Sends a client's request, or breaks its connection.
    fn send(&mut self, shard: usize) {
        if self.random.below(1000) < self.leaves_per_mille {
            self.note(|| format!("shard {shard} is about to leave"));
            self.shards[shard].is_leaving = true;
            return;
        }
        let (kind, cells) = self.draw();
        let now = self.now();
        let id = self.new_id();
        self.budget -= 1;
        self.report.requests += 1;
        self.shards[shard].open += 1;
        let changes = kind != Kind::Read;
        let stamp = changes.then(|| self.judge.begin(now, cells.clone()));
        let expected = (!changes).then(|| self.judge.begin_read(now, cells.clone()));
        self.note(|| format!("shard {shard} sends request {id}: {kind:?} {cells:?} {stamp:?}"));
        let request =
            Request { shard, cells: cells.clone(), stamp, expected, pending: 0, portions: 0..0 };
        self.requests.insert(id, request);
        let sector = self.disk.sector_cells;
        let outer = cells.start / sector * sector..cells.end.next_multiple_of(sector);
        match kind {
            Kind::Read => self.claim(shard, id, outer, Work::Read),
            Kind::Discard => self.claim(shard, id, cells, Work::Write),
            Kind::Write | Kind::Zeroes => {
                let (patches, whole) = cut(cells, sector);
                if kind == Kind::Zeroes {
                    self.request(id).portions = whole;
                } else if !whole.is_empty() {
                    self.claim(shard, id, whole, Work::Write);
                }
                for part in patches {
                    let first = part.start / sector * sector;
                    self.claim(shard, id, first..first + sector, Work::Patch(part));
                }
                self.next_portion(id);
            }
        }
    }

    /// Draws a request: mostly parts of few sectors, so that requests overlap.
    fn draw(&mut self) -> (Kind, Range<usize>) {
        let kind = match self.below(20) {
            0..10 => Kind::Write,
            10..13 => Kind::Zeroes,
            13..15 => Kind::Discard,
            _ => Kind::Read,
        };
        let sector = self.disk.sector_cells;
        let unit = match self.below(4) {
            0 => BLOCK_CELLS,
            1 => sector,
            // A trim affects only whole sectors.
            _ if kind == Kind::Discard => sector,
            _ => 1,
        };
        let units = self.disk.cells.len() / unit;
        let start = self.below(units);
        let len_max = (3 * BLOCK_CELLS / unit).min(units - start);
        let len = 1 + self.below(len_max);
        (kind, start * unit..(start + len) * unit)
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn request(&mut self, id: u64) -> &mut Request {
        self.requests.get_mut(&id).expect("it has not ended")
    }

    /// Submits the next portion of zeroes, if any.
    fn next_portion(&mut self, id: u64) {
        let portion_cells = self.portion_cells;
        let request = self.request(id);
        let shard = request.shard;
        let portions = &mut request.portions;
        if Range::is_empty(portions) {
            return;
        }
        let border = (portions.start / portion_cells + 1) * portion_cells;
        let portion = portions.start..border.min(portions.end);
        portions.start = portion.end;
        self.claim(shard, id, portion, Work::Portion);
    }

    /// Ends a claim, and its request with the last claim.
    fn settle(&mut self, user: u64) -> Result<(), Finding> {
        let claim = self.claims.remove(&user).expect("it ends once");
        let id = claim.request;
        self.request(id).pending -= 1;
        if matches!(claim.work, Work::Portion) {
            self.next_portion(id);
        }
        if self.request(id).pending > 0 {
            return Ok(());
        }
        let Request { shard, stamp, cells, .. } = self.requests.remove(&id).expect("just there");
        self.shards[shard].open -= 1;
        self.note(|| format!("request {id} of shard {shard} is answered"));
        if let Some(stamp) = stamp {
            self.judge.end(self.now(), stamp, true);
            self.judge.judge_disk(cells, &self.disk.cells)?;
        }
        Ok(())
    }

    /// Ends a connection and opens another one in its place.
    fn leave(&mut self, shard: usize) -> Result<(), Finding> {
        self.note(|| format!("shard {shard} leaves"));
        self.report.leaves += 1;
        let next = self.join();
        let gone = std::mem::replace(&mut self.shards[shard], next);
        self.ranges.leave(&gone.announcer);
        self.deliver()?;
        let now = self.now();
        let of_shard: Vec<u64> =
            self.requests.iter().filter(|(_, of)| of.shard == shard).map(|(&id, _)| id).collect();
        for id in of_shard {
            if let Some(stamp) = self.requests.remove(&id).and_then(|request| request.stamp) {
                self.judge.end(now, stamp, false);
            }
        }
        self.claims.retain(|_, claim| claim.shard != shard);
        self.waiting.retain(|user| self.claims.contains_key(user));
        Ok(())
    }

    // The shard's program, like `driver.rs` and `ranges.rs` of the host.

    fn claim(&mut self, shard: usize, request: u64, cells: Range<usize>, work: Work) {
        let user = self.new_id();
        self.request(request).pending += 1;
        let is_patch = matches!(work, Work::Patch(_));
        self.report.patches += u64::from(is_patch);
        let hold = Hold::Nothing;
        let waits = false;
        let came = 0;
        self.note(|| format!("request {request}: claim {user} of {cells:?}, patch {is_patch}"));
        let claim = Claim { shard, request, cells, work, hold, waits, came };
        self.claims.insert(user, claim);
        let step = if is_patch { Step::Enter(user) } else { Step::Announce(user) };
        self.shards[shard].steps.push_back(step);
    }

    fn at(&mut self, user: u64) -> &mut Claim {
        self.claims.get_mut(&user).expect("it has not ended")
    }

    fn step(&mut self, shard: usize) -> Result<(), Finding> {
        self.report.steps += 1;
        let step = self.shards[shard].steps.pop_front().expect("it has one");
        match step {
            Step::Announce(user) => return self.announce(user),
            Step::Admit(user, slot) => return self.admit(user, slot),
            Step::Enter(user) => return self.enter(user, Share::Nobody),
            Step::Withdraw(slot) => {
                let freed = self.shards[shard].announcer.withdraw(slot);
                if let Some(blocks) = freed
                    && !self.sabotages(Sabotage::SilentWithdrawal)
                {
                    self.shards[shard].steps.push_front(Step::Freed(blocks));
                }
            }
            Step::Freed(blocks) => {
                self.ranges.freed(blocks);
                self.deliver()?;
            }
            Step::End(entry) => {
                if !self.sabotages(Sabotage::KeptEntry) {
                    self.ranges.end(entry);
                }
                self.deliver()?;
            }
            Step::Settle(user) => return self.settle(user),
        }
        Ok(())
    }

    fn announce(&mut self, user: u64) -> Result<(), Finding> {
        let now = self.now();
        let claim = self.at(user);
        claim.came = now;
        let shard = claim.shard;
        let blocks = blocks(&claim.cells);
        let is_read = matches!(claim.work, Work::Read);
        let skips = if is_read {
            !self.disk.tears || self.hastens(Sabotage::UnannouncedRead)
        } else {
            self.hastens(Sabotage::Unannounced)
        };
        if skips {
            return self.go(user);
        }
        match self.shards[shard].announcer.announce(blocks) {
            Some((slot, may_go)) => {
                self.at(user).hold = Hold::Announced(slot);
                if may_go || self.overtakes(user) {
                    return self.go(user);
                }
                self.shards[shard].steps.push_front(Step::Admit(user, slot));
                Ok(())
            }
            None => self.enter(user, Share::Writes),
        }
    }

    /// Whether the saboteur lets a write pass waiting read-modify-writes.
    fn overtakes(&mut self, user: u64) -> bool {
        if !self.sabotages(Sabotage::Overtaking) {
            return false;
        }
        let claim = &self.claims[&user];
        let is_in_the_way = |other: &Claim| {
            matches!(other.work, Work::Patch(_))
                && !other.waits
                && matches!(other.hold, Hold::Entry(_))
                && blocks(&other.cells).overlaps(blocks(&claim.cells))
        };
        !self.claims.values().any(is_in_the_way)
    }

    fn admit(&mut self, user: u64, slot: Slot) -> Result<(), Finding> {
        let shard = self.at(user).shard;
        let entry = self.ranges.admit(&mut self.shards[shard].announcer, slot, user);
        let Some(entry) = entry else { return self.go(user) };
        self.at(user).hold = Hold::Entry(entry);
        self.wait(user);
        self.deliver()
    }

    fn enter(&mut self, user: u64, share: Share) -> Result<(), Finding> {
        let now = self.now();
        let claim = self.at(user);
        claim.came = now;
        let shard = claim.shard;
        let blocks = blocks(&claim.cells);
        let announcer = &self.shards[shard].announcer;
        let (entry, may_go) = self.ranges.enter(announcer, blocks, share, user);
        self.at(user).hold = Hold::Entry(entry);
        if may_go || share == Share::Nobody && self.hastens(Sabotage::HastyPatch) {
            return self.go(user);
        }
        self.wait(user);
        Ok(())
    }

    fn wait(&mut self, user: u64) {
        self.note(|| format!("claim {user} waits"));
        self.report.waits += 1;
        let claim = self.at(user);
        claim.waits = true;
        if matches!(claim.work, Work::Patch(_)) {
            self.waiting.insert(user);
        }
    }

    /// Sends the shards their grants.
    fn deliver(&mut self) -> Result<(), Finding> {
        let granted: Vec<_> = self.ranges.take_granted().collect();
        for grant in granted {
            if self.sabotages(Sabotage::ForgottenGrant) {
                continue;
            }
            let times = if self.sabotages(Sabotage::DoubleGrant) { 2 } else { 1 };
            let shard = self.shards.iter_mut().find(|shard| shard.announcer.shard() == grant.shard);
            must!(ExactlyOnce, shard.is_some(), "{grant:?} of a shard that has left");
            let mail = shard.map(|shard| &mut shard.mail).into_iter();
            mail.for_each(|mail| mail.extend((0..times).map(|_| grant.user)));
        }
        Ok(())
    }

    fn take_mail(&mut self, shard: usize) -> Result<(), Finding> {
        let user = self.shards[shard].mail.pop_front().expect("there is some");
        let waits = self.claims.get_mut(&user).map(|claim| std::mem::take(&mut claim.waits));
        if self.sabotage == Some(Sabotage::HastyPatch) && waits != Some(true) {
            return Ok(());
        }
        must!(ExactlyOnce, waits == Some(true), "claim {user} does not wait, and is granted");
        self.waiting.remove(&user);
        self.go(user)
    }

    /// Continues a claim with its range.
    fn go(&mut self, user: u64) -> Result<(), Finding> {
        self.note(|| format!("claim {user} goes on"));
        let claim = &self.claims[&user];
        let own = blocks(&claim.cells);
        let needs_range = self.disk.tears || !matches!(claim.work, Work::Read);
        for other in self.waiting.iter().filter(|_| needs_range) {
            let waiting = &self.claims[other];
            let is_passed = waiting.came < claim.came && blocks(&waiting.cells).overlaps(own);
            must!(Wait, !is_passed, "claim {user} goes on before {other}, which came earlier");
        }
        let cells = claim.cells.clone();
        match claim.work {
            Work::Read | Work::Patch(_) => self.disk.read(user, cells),
            Work::Write | Work::Portion => {
                let stamp = self.requests[&claim.request].stamp.expect("it changes something");
                self.disk.write(user, cells.start, vec![stamp; cells.len()]);
            }
        }
        Ok(())
    }

    fn take_ended(&mut self, shard: usize) {
        let io = self.shards[shard].ended.pop_front().expect("there is one");
        let user = io.user;
        let claim = &self.claims[&user];
        if let (Work::Patch(part), false) = (&claim.work, io.is_write) {
            let stamp = self.requests[&claim.request].stamp.expect("it changes something");
            let mut stamps = io.stamps;
            let first = io.cells.start;
            stamps[part.start - first..part.end - first].fill(stamp);
            self.disk.write(user, first, stamps);
            return;
        }
        let steps = &mut self.shards[shard].steps;
        match claim.hold {
            Hold::Nothing => {}
            Hold::Announced(slot) => steps.push_back(Step::Withdraw(slot)),
            Hold::Entry(entry) => steps.push_back(Step::End(entry)),
        }
        steps.push_back(Step::Settle(user));
    }

    // The disk and the end.

    fn move_disk(&mut self) -> Result<(), Finding> {
        self.report.steps += 1;
        let step = self.disk.step(&mut self.random);
        self.judge.judge_disk(step.written, &self.disk.cells)?;
        let Some(io) = step.ended else { return Ok(()) };
        self.note(|| format!("disk: claim {}, write {} ended", io.user, io.is_write));
        // The claim's connection left without waiting.
        let Some(claim) = self.claims.get(&io.user) else { return Ok(()) };
        let shard = claim.shard;
        let request = &self.requests[&claim.request];
        if let Some(expected) = &request.expected {
            let skip = request.cells.start - io.cells.start;
            let stamps = &io.stamps[skip..][..request.cells.len()];
            self.judge.judge_read(expected, request.cells.start, stamps)?;
        }
        self.shards[shard].ended.push_back(io);
        Ok(())
    }

    /// Judges the end: no event is possible.
    fn judge_end(mut self) -> Result<Report, Finding> {
        let left: Vec<u64> = self.claims.keys().copied().collect();
        must!(Progress, left.is_empty(), "claims {left:?} wait forever");
        self.judge.judge_disk(0..self.disk.cells.len(), &self.disk.cells)?;
        // A remaining entry would slow every write down.
        let may_go = self.ranges.join().announce(blocks(&(0..1))).is_some_and(|(_, may_go)| may_go);
        must!(Leak, may_go, "the entry of a read-modify-write is left");
        let cells = std::mem::take(&mut self.disk.cells);
        cells.into_iter().for_each(|stamp| self.mix(stamp.into()));
        Ok(self.report)
    }
}

fn blocks(cells: &Range<usize>) -> Blocks {
    Blocks::around(cells.start as u64 * CELL_BYTES, cells.len() as u64 * CELL_BYTES)
}

/// The partial sectors at the ends of a range, and the whole sectors between.
fn cut(cells: Range<usize>, sector: usize) -> (Vec<Range<usize>>, Range<usize>) {
    let Range { start, end } = cells;
    let first = start.next_multiple_of(sector);
    let last = end / sector * sector;
    // A single part that touches neither end of its sector.
    let (parts, whole) = if first > last {
        ([start..end, end..end], start..start)
    } else {
        ([start..first, last..end], first..last)
    };
    (parts.into_iter().filter(|part| !part.is_empty()).collect(), whole)
}
