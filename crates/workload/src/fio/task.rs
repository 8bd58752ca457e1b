//! One clone of a job at work.
//!
//! ```text
//!            ┌────────────── fsync, every N writes; a pause, with nothing in flight
//!            v                       ^
//!   open ─> choose ─> read/write ────┤            buffered
//!            │   └──> submit ────────┤            direct: reap when `iodepth` are in flight
//!            v                       v
//!          drain: reap all ─> close ─> exit       last block, runtime over, or an error
//! ```
//! A reap usually takes one block although more have ended, so the depth stays at `iodepth`
//! ([`super::slots`]). Only the last reap takes all.
//!
//! Latencies are fio's (its documentation, "Interpreting the output"). Submission latency (slat)
//! lasts from the start of a block until `submit` has returned. Completion latency (clat) lasts
//! from then until the block is *reaped*, not until the device has finished it. A buffered call is
//! clat as a whole. An `fsync` comes before the next block, so none follows the last. The clone's
//! resource use is read before its first block and after its last.

mod content;

use std::sync::Arc;

use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;

use super::buffers::Source;
use super::command_priority::Lots;
use super::control::{Common, Control, Step};
use super::ends::{Ends, GoesOn};
use super::job::Job;
use super::lens::Direction;
use super::log::{CloneLogs, Ended};
use super::measured::{Errors, Measured};
use super::offsets::{Extent, Offsets};
use super::pace::{Floor, Pace};
use super::slots::{Block, Slots};
use super::verify::Stamp;
use super::written::{Piece, Written};
use super::zoned::{Zoned, Zones};
use crate::program::{Call, Content, DirectOp, FileId, Interface, Returned, Task, Usage};
use crate::random::Random;

/// Error of a clone that is slower than its least rate: EIO, as in fio.
const TOO_SLOW: i32 = EIO;
/// EIO: a medium error.
const EIO: i32 = 5;

/// EILSEQ: fio's error for a verification mismatch.
const MISMATCH: i32 = 84;

/// Calls per clock reading with `gtod_reduce`, as in fio.
const CALLS_PER_LOOK: u32 = 256;

/// The last call.
#[derive(Clone, Copy, Debug)]
enum Made {
    Nothing,
    Open,
    /// Reads the resource use before the first block.
    UsageBefore,
    /// Sets the priority of the following request.
    Priority {
        direction: Direction,
        range: (u64, u64),
        stamp: Option<Stamp>,
    },
    Transfer(Block),
    Submit {
        id: u32,
        more: bool,
    },
    /// Submits the waiting blocks; [`Progress::held`] is next.
    Commit,
    Reap,
    Fsync(Nanos),
    /// The `fsync` after the last block; as in fio not measured.
    EndFsync,
    /// The delay before the first block.
    Delay,
    Pause(Nanos),
    UsageBehind,
    Close,
}

/// How far a clone is.
#[derive(Debug, Default)]
struct Progress {
    started: Nanos,
    /// End of the last block.
    ended: Nanos,
    issued: u64,
    /// Bytes of all requests; in a mix of trims and writes only of the writes.
    issued_bytes: u64,
    issued_writes: u64,
    /// Number of passes that ended by a leap past the end of the region.
    short_passes: u32,
    synced_last: bool,
    /// Whether the clone is in `ramp_time`, where measurements do not count.
    in_ramp: bool,
    /// Whether the clone stops before its limits are reached.
    is_done: bool,
    /// Bytes that were summed up for verification, and are not taken yet.
    summed_bytes: u64,
    /// The call after the one that submits the waiting blocks.
    held: Option<(Made, Call)>,
}

/// The directions and offsets of the next requests.
#[derive(Debug)]
struct Choice {
    /// Random numbers of the direction mix.
    lots: Random,
    /// Direction of the next request, if drawn already.
    lot: Option<Direction>,
    order: Offsets,
}

/// A clone of a job.
// 20 fields: who it is, how far it is, and one part for each group of options that has a state.
#[derive(Debug)]
pub struct Thread {
    job: Job,
    pub(crate) job_index: usize,
    /// Number among all clones of the program.
    pub(crate) number: u64,
    /// Number among the clones of its job.
    clone: u32,
    file: FileId,
    /// Start of the clone's region.
    start_bytes: u64,
    /// Bytes of a pass.
    pass_bytes: u64,
    choice: Choice,
    made: Made,
    progress: Progress,
    slots: Slots,
    pace: Pace,
    floor: Option<Floor>,
    /// The `exitall` rules, and the running groups.
    ends: Option<(Ends, Vec<u32>)>,
    /// Further checks before each request, if the job has any.
    control: Option<Box<Control>>,
    written: Written,
    /// Source of the written bytes; `None`: any bytes will do.
    source: Option<Box<Source>>,
    zoned: Option<Box<Zoned>>,
    /// The current priority, and the random ones if the job has them.
    priorities: (Option<Priority>, Option<Box<Lots>>),
    pub(crate) measured: Measured,
}

impl Thread {
    /// Creates a clone. `number` counts all clones of the program.
    pub(crate) fn new(
        job: &Job,
        (job_index, clone): (usize, u32),
        file: FileId,
        number: u64,
    ) -> Self {
        let progress = Progress { in_ramp: job.pace.ramp_time > Nanos(0), ..Progress::default() };
        let lots = Random::new(job.shape.seed, 2 * number + 1);
        Self {
            job: job.clone(),
            job_index,
            number,
            clone,
            file,
            start_bytes: job.start_bytes(clone),
            pass_bytes: job.pass_bytes(),
            choice: Choice { lots, lot: None, order: Offsets::of(job, number) },
            made: Made::Nothing,
            progress,
            slots: Slots::of(job),
            pace: Pace::of(job, number),
            floor: Floor::of(job),
            ends: None,
            control: None,
            written: Written::of(job),
            source: Source::of(job, number),
            zoned: None,
            priorities: (job.submission.priority, Lots::of(job, number)),
            measured: Measured { logs: CloneLogs::of(job), ..Measured::default() },
        }
    }

    /// Sets the `exitall` rules and the groups of the current phase.
    pub(super) fn set_ends(&mut self, ends: Ends, running: &[u32]) {
        self.ends = Some((ends, running.to_vec()));
    }

    /// Sets the state that the job shares with others.
    pub(super) fn set_control(&mut self, common: &Common) {
        self.control = Control::of(&self.job, common);
    }

    /// Sets the zones of the file.
    pub(super) fn set_zones(&mut self, zones: &Arc<Zones>) {
        self.zoned = Zoned::of(&self.job, self.clone, zones);
    }

    /// Handles the result of the last call.
    fn account(&mut self, now: Nanos, returned: &Returned<'_>) {
        if let Err(error) = returned.status {
            let direction = match self.made {
                Made::Transfer(Block { direction, .. }) => Some(direction),
                Made::Submit { id, .. } => self.slots.get(id).map(|block| block.direction),
                _ => None,
            };
            self.fail_or_go_on(direction, error);
        }
        match std::mem::replace(&mut self.made, Made::Nothing) {
            Made::Nothing | Made::Delay | Made::Open | Made::Close | Made::Priority { .. } => {}
            Made::Pause(pause) => self.pace.paused(pause),
            Made::UsageBefore => {
                (self.progress.started, self.progress.ended) = (now, now);
                self.measured.usage = returned.usage;
                if let Some(control) = &mut self.control {
                    control.started(now);
                }
                self.measured.read.samples.start(now);
                self.measured.write.samples.start(now);
                self.measured.trim.samples.start(now);
            }
            Made::UsageBehind => {
                let before = self.measured.usage;
                let behind = returned.usage;
                self.measured.usage = Usage {
                    user: behind.user - before.user,
                    system: behind.system - before.system,
                    switches: behind.switches - before.switches,
                    voluntary: behind.voluntary - before.voluntary,
                    involuntary: behind.involuntary - before.involuntary,
                };
            }
            Made::Transfer(block) if returned.status.is_ok() => {
                self.measured.queueing.depths.count(1);
                self.measured.queueing.submits.count(1);
                self.measured.queueing.completes.count(1);
                self.record(now, block);
            }
            Made::Fsync(called) if returned.status.is_ok() => {
                self.measured.sync.record(now.since(called));
                self.progress.ended = now;
            }
            Made::Transfer(_) | Made::Fsync(_) | Made::EndFsync => self.progress.ended = now,
            Made::Submit { id, more } => {
                let is_refused = returned.status.is_err();
                if is_refused {
                    self.slots.take(id);
                } else if more {
                    self.slots.wait(id);
                }
                if !more {
                    self.submitted(now, Some(id).filter(|_| !is_refused));
                }
            }
            Made::Commit => self.submitted(now, None),
            Made::Reap => {
                self.measured.queueing.completes.count(returned.reaped.len());
                for reaped in returned.reaped {
                    let block = self.slots.take(reaped.id);
                    let block = block.expect("only a request in flight ends");
                    match reaped.status {
                        Ok(()) => self.record(now, block),
                        Err(error) => self.fail_or_go_on(Some(block.direction), error),
                    }
                }
            }
        }
    }

    /// A call has submitted this block and all that waited.
    fn submitted(&mut self, now: Nanos, id: Option<u32>) {
        let depth = self.slots.in_use() as usize;
        let blocks = self.slots.submitted(now, id);
        if blocks > 0 {
            self.measured.queueing.submits.count(blocks);
            (0..blocks).for_each(|_| self.measured.queueing.depths.count(depth));
        }
    }

    /// Records an error; the first one is reported.
    fn fail(&mut self, error: i32) {
        self.measured.errors.ended_by.get_or_insert(error);
    }

    /// Counts a medium error if `continue_on_error` permits; any other error ends the clone, as in
    /// fio.
    fn fail_or_go_on(&mut self, direction: Option<Direction>, error: i32) {
        let goes_on = self.job.end.goes_on;
        let is_taken = match direction {
            Some(Direction::Read) => goes_on.read,
            Some(_) => goes_on.write,
            None => false,
        };
        if !is_taken || error != EIO {
            return self.fail(error);
        }
        self.measured.errors.counted += 1;
        self.measured.errors.first_counted.get_or_insert(error);
    }

    fn record(&mut self, now: Nanos, block: Block) {
        self.progress.ended = now;
        if block.direction == Direction::Read {
            self.sum_up(block.stamp, block.len_bytes);
        }
        let Block { direction, offset_bytes, len_bytes, .. } = block;
        let clat = now.since(block.submitted);
        let kept = self.job.kept;
        if kept.clat {
            self.measured.bounds.record(clat);
        }
        let transfers = self.measured.of(direction);
        transfers.bytes += len_bytes;
        let slat = self.job.submission.direct.then(|| block.submitted.since(block.started));
        if let Some(slat) = slat.filter(|_| kept.slat) {
            transfers.slat.record(slat);
        }
        if kept.clat {
            transfers.clat.record(clat);
        }
        if kept.lat {
            transfers.lat.record(now.since(block.started));
        }
        if self.priorities.1.is_some() {
            let is_lat = self.job.percentiles.lat;
            let latency = if is_lat { now.since(block.started) } else { clat };
            transfers.by_priority.record(block.priority, latency);
        }
        if kept.rates {
            transfers.samples.block(now, len_bytes);
        }
        self.pace.completed(1);
        if let Some(control) = &mut self.control
            && let Some(error) = control.ended(direction, len_bytes, now.since(block.started))
        {
            self.fail(error);
        }
        let elapsed = now.since(self.progress.started);
        let ended = Ended { direction, offset_bytes, len_bytes, slat, clat };
        self.measured.logs.ended(elapsed, &ended);
        if let Some(floor) = &mut self.floor
            && !floor.ended(elapsed, block.direction, block.len_bytes)
            && !self.progress.in_ramp
        {
            self.fail(TOO_SLOW);
        }
    }

    /// Whether no further request starts.
    fn is_over(&self, now: Nanos) -> bool {
        let loops = u64::from(self.job.end.loops);
        let ios = self.job.end.number_ios.unwrap_or(u64::MAX).saturating_mul(loops);
        let bytes = if self.job.end.time_based { u64::MAX } else { self.pass_bytes };
        let is_all = self.progress.issued >= ios
            || self.progress.issued_bytes >= bytes.saturating_mul(loops)
            || u64::from(self.progress.short_passes) >= loops;
        let is_late =
            self.job.end.runtime.is_some_and(|limit| now.since(self.progress.started) >= limit);
        let is_late = is_late && !self.progress.in_ramp;
        let is_stopped = self.ends.as_ref().is_some_and(|(ends, _)| ends.is_stopped());
        self.measured.errors.ended_by.is_some()
            || is_all
            || is_late
            || is_stopped
            || self.progress.is_done
    }

    /// Whether an `fsync` is due. As in fio, one is due while the number of writes is a multiple of
    /// N, so also between the reads of a mix, but never twice without a block between.
    fn wants_fsync(&self) -> bool {
        let every = u64::from(self.job.submission.fsync_every);
        every > 0
            && self.progress.issued_writes > 0
            && self.progress.issued_writes.is_multiple_of(every)
            && !self.progress.synced_last
    }

    fn draw_direction(&mut self) -> Direction {
        let rw = self.job.shape.rw;
        match (rw.reads(), rw.writes(), rw.trims()) {
            (true, true, _) => {
                let is_read = self.choice.lots.below(100) < u64::from(self.job.shape.read_percent);
                if is_read { Direction::Read } else { Direction::Write }
            }
            // A trimmed block is written next.
            (_, true, true) if self.progress.issued % 2 == 1 => Direction::Write,
            (_, _, true) => Direction::Trim,
            (reads, ..) => {
                if reads {
                    Direction::Read
                } else {
                    Direction::Write
                }
            }
        }
    }

    /// Direction of the next request.
    fn direction(&mut self) -> Direction {
        let direction = match self.choice.lot {
            Some(direction) => direction,
            None => self.draw_direction(),
        };
        self.choice.lot = Some(direction);
        direction
    }

    /// The pause before the next block, limited by the ramp or the runtime.
    fn pause(&mut self, now: Nanos) -> Option<Nanos> {
        let direction = self.direction();
        let elapsed = now.since(self.progress.started);
        let pause = self.pace.pause(elapsed, direction)?;
        let limit = if self.progress.in_ramp {
            Some(self.job.pace.ramp_time)
        } else {
            self.job.end.runtime
        };
        Some(limit.map_or(pause, |limit| pause.min(limit - elapsed)))
    }

    fn end_ramp(&mut self) -> Call {
        self.progress.in_ramp = false;
        self.measure_again()
    }

    /// Discards all measurements so far.
    fn measure_again(&mut self) -> Call {
        // Errors that ended no clone are measurements, the others are not.
        let errors =
            Errors { counted: 0, first_counted: None, ..std::mem::take(&mut self.measured.errors) };
        let logs = self.measured.logs.emptied();
        self.measured = Measured { errors, logs, ..Measured::default() };
        self.pace.restart();
        self.made = Made::UsageBefore;
        Call::Usage
    }

    /// Range of the next request. After a leap past the end, a further pass starts if one is left.
    fn place(&mut self, direction: Direction) -> Option<Extent> {
        let is_again = direction == Direction::Write && self.job.shape.rw.trims();
        let trimmed = self.choice.order.again(Direction::Trim).filter(|_| is_again);
        if let Some(extent) = trimmed.or_else(|| self.choice.order.next(direction)) {
            return Some(extent);
        }
        self.choice.order.restart();
        let has_more = self.job.end.time_based || self.job.region.io_size_bytes.is_some();
        self.progress.short_passes += u32::from(!has_more);
        let is_over = self.progress.short_passes >= self.job.end.loops;
        if is_over { None } else { self.choice.order.next(direction) }
    }

    /// Range of the next request within a zone; `None` if no zone can take the request.
    fn place_in_zone(&mut self, direction: Direction) -> Option<Extent> {
        let drawn = self.place(direction)?;
        let placed = self.zoned.as_mut().and_then(|zoned| zoned.place(direction, drawn));
        self.progress.is_done |= placed.is_none();
        placed
    }

    /// Starts a request; `None` if the last pass turned out to be complete.
    fn start_block(&mut self, now: Nanos) -> Option<Call> {
        let mut direction = self.direction();
        let extent = match &self.zoned {
            None => self.place(direction)?,
            Some(zoned) => {
                direction = zoned.direction(direction);
                self.place_in_zone(direction)?
            }
        };
        let Extent { offset_bytes, len_bytes } = extent;
        self.choice.lot = None;
        self.pace.started(direction, len_bytes);
        let offset_bytes = self.start_bytes + offset_bytes;
        self.progress.issued += 1;
        let counts = direction != Direction::Trim || !self.job.shape.rw.writes();
        self.progress.issued_bytes += if counts { len_bytes } else { 0 };
        self.progress.issued_writes += u64::from(direction == Direction::Write);
        self.progress.synced_last = false;
        let number = self.progress.issued_writes.saturating_sub(1);
        let stamp = match direction {
            Direction::Write => self.written.push(Piece { offset_bytes, len_bytes, number }),
            Direction::Read => self.written.stamp_of_read(offset_bytes),
            Direction::Trim => None,
        };
        let range = (offset_bytes, len_bytes);
        if let (current, Some(priorities)) = &mut self.priorities {
            let priority = priorities.draw(direction, len_bytes);
            if std::mem::replace(current, priority) != priority {
                self.made = Made::Priority { direction, range, stamp };
                return Some(Call::Priority(priority.unwrap_or_default()));
            }
        }
        Some(self.transfer(now, direction, range, stamp))
    }

    /// The call that transfers a range.
    fn transfer(
        &mut self,
        now: Nanos,
        direction: Direction,
        (offset_bytes, len_bytes): (u64, u64),
        stamp: Option<Stamp>,
    ) -> Call {
        let file = self.file;
        self.measured.of(direction).ios += 1;
        if direction == Direction::Write {
            self.sum_up(stamp, len_bytes);
        }
        let block = Block {
            direction,
            offset_bytes,
            len_bytes,
            stamp,
            priority: self.priorities.0,
            started: now,
            submitted: now,
        };
        // A trim always bypasses the page cache.
        if self.job.submission.direct || direction == Direction::Trim {
            let (id, more) = self.slots.insert(block);
            self.made = Made::Submit { id, more };
            let op = match direction {
                Direction::Read => DirectOp::Read,
                Direction::Write => DirectOp::Write,
                Direction::Trim => DirectOp::Discard,
            };
            return Call::Submit { id, file, op, offset_bytes, len_bytes, more };
        }
        self.made = Made::Transfer(block);
        match direction {
            Direction::Read => Call::Read { file, offset_bytes, len_bytes },
            _ => Call::Write { file, offset_bytes, len_bytes },
        }
    }

    /// Reads written blocks back for verification, when due.
    fn verify(&mut self, now: Nanos, in_flight: u32) -> Option<Call> {
        if self.job.verify.sum.is_none() || self.measured.errors.ended_by.is_some() {
            return None;
        }
        if self.written.is_only() {
            self.run_dry(now);
        }
        let passes = self.progress.issued_bytes / self.pass_bytes.max(1)
            + u64::from(self.progress.short_passes);
        if !self.written.is_reading() && !self.written.is_due(self.is_over(now), passes) {
            return None;
        }
        if !self.written.is_reading() || self.written.is_read() {
            // All writes end before the first read; all reads end before the next write.
            if in_flight > 0 {
                return Some(self.reap_all(in_flight));
            }
            if self.written.is_reading() {
                self.written.end_reading();
                return None;
            }
            self.written.begin_reading(passes);
        }
        if let Some(due) = self.slots.due() {
            return Some(self.reap(due));
        }
        let (piece, stamp) = self.written.next_to_read()?;
        let range = (piece.offset_bytes, piece.len_bytes);
        Some(self.transfer(now, Direction::Read, range, Some(stamp)))
    }

    /// `verify_only`: goes through all writes without executing them.
    fn run_dry(&mut self, now: Nanos) {
        while !self.is_over(now) {
            let direction = self.draw_direction();
            let Some(Extent { offset_bytes, len_bytes }) = self.place(direction) else { break };
            self.progress.issued += 1;
            self.progress.issued_bytes += len_bytes;
            if direction == Direction::Write {
                let offset_bytes = self.start_bytes + offset_bytes;
                let number = self.progress.issued_writes;
                self.written.push(Piece { offset_bytes, len_bytes, number });
                self.progress.issued_writes += 1;
            }
        }
        self.written.end_dry_run();
    }

    /// The call that [`Control`] demands before the next request.
    fn steer(&mut self, now: Nanos, in_flight: u32) -> Option<Call> {
        match self.control.as_mut()?.step(now, in_flight, self.progress.in_ramp) {
            Step::Start => None,
            Step::Reap(requests) => Some(self.reap_all(requests)),
            Step::Restart => Some(self.measure_again()),
            Step::Pause(pause) => {
                self.made = Made::Pause(pause);
                Some(Call::Sleep(pause))
            }
            Step::End => {
                self.progress.is_done = true;
                Some(self.drain(in_flight))
            }
        }
    }

    fn reap(&mut self, (at_least, at_most): (u32, u32)) -> Call {
        self.made = Made::Reap;
        Call::Reap { at_least, at_most }
    }

    fn reap_all(&mut self, in_flight: u32) -> Call {
        self.reap((in_flight, in_flight))
    }

    fn fsync(&mut self, now: Nanos) -> Call {
        self.progress.synced_last = true;
        self.made = Made::Fsync(now);
        Call::Fsync(self.file)
    }

    fn drain(&mut self, in_flight: u32) -> Call {
        if in_flight > 0 {
            return self.reap_all(in_flight);
        }
        if self.measured.errors.mismatches > 0 {
            self.fail(MISMATCH);
        }
        if self.job.submission.end_fsync
            && self.progress.issued_writes > 0
            && !self.progress.synced_last
        {
            (self.progress.synced_last, self.made) = (true, Made::EndFsync);
            return Call::Fsync(self.file);
        }
        self.measured.runtime = self.progress.ended.since(self.progress.started);
        self.measured.logs.end(self.measured.runtime);
        self.measured.zone_resets = self.zoned.as_ref().map_or(0, |zoned| zoned.resets);
        if let Some((ends, running)) = &self.ends {
            ends.ended(self.measured.errors.ended_by.is_some(), running);
        }
        // The clones that `exitall` ends stop before this one leaves its `flow` group.
        if let Some(control) = &mut self.control {
            (self.measured.depth, self.measured.steady) = control.end();
        }
        self.made = Made::UsageBehind;
        Call::Usage
    }
}

impl Thread {
    /// The call for the next block, or what comes before it.
    fn go_on(&mut self, now: Nanos) -> Call {
        let in_flight = self.slots.in_use();
        if self.progress.in_ramp && now.since(self.progress.started) >= self.job.pace.ramp_time {
            return self.end_ramp();
        }
        if let Some(call) = self.verify(now, in_flight) {
            return call;
        }
        if self.is_over(now) {
            return self.drain(in_flight);
        }
        if self.wants_fsync() {
            // As in fio, a full queue is reaped first: at a depth of 1 the last write has ended
            // then.
            return match self.slots.due_before_sync() {
                Some(due) => self.reap(due),
                None => self.fsync(now),
            };
        }
        if let Some(pause) = self.pause(now) {
            if in_flight > 0 {
                return self.reap_all(in_flight);
            }
            self.made = Made::Pause(pause);
            return Call::Sleep(pause);
        }
        if let Some(call) = self.steer(now, in_flight) {
            return call;
        }
        if let Some(due) = self.slots.due() {
            return self.reap(due);
        }
        match self.start_block(now) {
            Some(call) => call,
            None => self.drain(in_flight),
        }
    }
}

impl Task for Thread {
    fn next(&mut self, now: Nanos, returned: &Returned<'_>) -> Call {
        match self.made {
            Made::Nothing if self.job.pace.start_delay > Nanos(0) => {
                self.made = Made::Delay;
                return Call::Sleep(self.job.pace.start_delay);
            }
            Made::Nothing | Made::Delay => {
                self.made = Made::Open;
                return Call::Open(self.file);
            }
            Made::Open => {
                self.account(now, returned);
                self.made = Made::UsageBefore;
                return Call::Usage;
            }
            Made::UsageBehind => {
                self.account(now, returned);
                self.made = Made::Close;
                return Call::Close(self.file);
            }
            Made::Priority { direction, range, stamp } => {
                return self.transfer(now, direction, range, stamp);
            }
            Made::Close => return Call::Exit,
            Made::UsageBefore
            | Made::Transfer(_)
            | Made::Submit { .. }
            | Made::Commit
            | Made::Reap
            | Made::Pause(_)
            | Made::Fsync(_)
            | Made::EndFsync => {}
        }
        self.account(now, returned);
        if let Some((made, call)) = self.progress.held.take() {
            self.made = if let Made::Fsync(_) = made { Made::Fsync(now) } else { made };
            return call;
        }
        let call = self.go_on(now);
        // A change of the priority is no call of fio's: it belongs to the next request.
        let is_part = matches!(call, Call::Submit { .. } | Call::Priority(_));
        if is_part || !self.slots.has_waiting() {
            return call;
        }
        self.progress.held = Some((std::mem::replace(&mut self.made, Made::Commit), call));
        Call::Commit
    }

    fn content(&mut self) -> Option<&mut dyn Content> {
        let has_bytes = self.job.verify.sum.is_some() || self.source.is_some();
        if has_bytes { Some(self) } else { None }
    }

    fn interface(&self) -> Interface {
        self.job.submission.interface
    }

    fn counts_errors(&self) -> bool {
        self.job.end.goes_on != GoesOn::default()
    }

    fn calls_per_look(&self) -> u32 {
        if self.job.kept.is_seldom { CALLS_PER_LOOK } else { 1 }
    }

    fn priority(&self) -> Priority {
        self.job.submission.priority.unwrap_or_default()
    }

    fn socket(&self) -> Option<u16> {
        self.job.clones.socket(self.clone)
    }

    fn cpus(&self) -> &[u16] {
        self.job.clones.cpus_of(self.number)
    }
}
