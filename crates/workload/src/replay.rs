//! Plays a trace: one task for each submitter, at the recorded times or as fast as possible.
//!
//! As fast as possible, a task keeps as many bios in flight as its submitter had when the bio came,
//! so that dependent requests wait again. A fixed depth may be given instead, and [`USUAL_DEPTH`]
//! applies to a trace without completions. [`Replay::is_complete`] compares the numbers of
//! submitted and ended requests and bytes. A failed request is counted, and the replay goes on.

use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;

use blockyard_engine::bio::Op;
use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;

use crate::fio::Histogram;
use crate::program::{Call, DirectOp, FileId, Phase, Program, Returned, Task};
use crate::trace::{Trace, TracedBio};

/// Depth of a task if the trace has no completions. Our choice.
pub const USUAL_DEPTH: u32 = 32;
/// Greatest number of tasks; more submitters share tasks. Our choice: each task is a thread with
/// its own buffers.
pub const TASKS_MAX: usize = 256;
/// Speed of the recording, in the unit of [`Pace::Timed`].
pub const SPEED_ONE: u32 = 1000;

/// Time of submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// At the recorded times, with the intervals divided by this speed.
    Timed {
        /// Speed in thousandths: [`SPEED_ONE`] is real time, twice that is twice as fast.
        speed_permille: u32,
    },
    /// As soon as the depth allows.
    Fastest {
        /// Greatest number of bios in flight per task; `None`: the submitter's recorded depth.
        depth: Option<u32>,
    },
}

/// Target of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Length of the target.
    pub len_bytes: u64,
    /// Sector size of the target; bios must be whole sectors.
    pub sector_bytes: u32,
    /// Whether offsets past the end wrap around to the start.
    pub wrap: bool,
}

/// The reason why a trace does not fit a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// Number of the bio, counted from 1 in the order of arrival.
    pub bio: usize,
    /// The problem of the bio.
    pub problem: String,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bio {} {}", self.bio, self.problem)
    }
}

impl std::error::Error for Misfit {}

/// Numbers of submitted and ended bios of one operation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counted {
    /// Submitted bios.
    pub in_bios: u64,
    /// Bytes of the submitted bios.
    pub in_bytes: u64,
    /// Ended bios.
    pub out_bios: u64,
    /// Bytes of the ended bios.
    pub out_bytes: u64,
    /// Failed bios among the ended ones.
    pub errors: u64,
    /// Latency of the successful bios.
    pub latency: Histogram,
}

/// A failed bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Time of the end.
    pub ended: Nanos,
    /// Operation.
    pub op: &'static str,
    /// First byte on the target.
    pub offset_bytes: u64,
    /// Length.
    pub len_bytes: u64,
    /// Linux error number.
    pub error: i32,
}

/// A bio to be submitted.
#[derive(Clone, Copy, Debug)]
struct ScheduledBio {
    start: Nanos,
    op: DirectOp,
    offset_bytes: u64,
    len_bytes: u64,
    /// Greatest number of bios in flight, this one included.
    depth: u32,
    submitted: Nanos,
}

/// A task that plays one or more submitters.
#[derive(Debug)]
pub struct Player {
    priority: Priority,
    pace: Pace,
    steps: Vec<ScheduledBio>,
    next: usize,
    /// The last submission, until its call returns.
    submitted: Option<usize>,
    in_flight: u32,
    began: Option<Nanos>,
    counted: BTreeMap<&'static str, Counted>,
    first_failed: Option<Failed>,
    /// Delay of each submission after its due time.
    late: Histogram,
}

/// A replay as a program.
#[derive(Debug)]
pub struct Replay {
    players: Vec<Player>,
    end_bytes: u64,
    /// Number of submitters in the trace, before they share tasks.
    submitters: usize,
    counted: BTreeMap<&'static str, Counted>,
    first_failed: Option<Failed>,
    late: Histogram,
    took: Nanos,
}

impl Replay {
    /// Prepares a trace for a target.
    ///
    /// # Errors
    /// When a bio does not fit the target.
    pub fn new(trace: &Trace, pace: Pace, target: Target) -> Result<Self, Misfit> {
        let knows_ends = trace.bios.iter().any(|bio| bio.completion.is_some());
        let mut by_submitter: BTreeMap<(u32, Priority), Vec<ScheduledBio>> = BTreeMap::new();
        let mut ends: BTreeMap<(u32, Priority), BinaryHeap<std::cmp::Reverse<Nanos>>> =
            BTreeMap::new();
        let mut end_bytes = 0;
        for (number, bio) in (1..).zip(&trace.bios) {
            let offset_bytes = target.place(number, bio)?;
            let submitter = (bio.submitter, bio.priority);
            let running = ends.entry(submitter).or_default();
            while running.peek().is_some_and(|end| end.0 <= bio.start) {
                running.pop();
            }
            let latency = bio.completion.map_or(Nanos(u64::MAX), |completion| completion.latency);
            running.push(std::cmp::Reverse(bio.start + latency));
            let recorded = u32::try_from(running.len()).unwrap_or(u32::MAX);
            let depth = match pace {
                Pace::Fastest { depth: Some(depth) } => depth.max(1),
                _ if knows_ends => recorded,
                _ => USUAL_DEPTH,
            };
            let TracedBio { op, sync, fua, preflush, .. } = *bio;
            by_submitter.entry(submitter).or_default().push(ScheduledBio {
                start: bio.start,
                op: DirectOp::Bio { op, sync, fua, preflush },
                offset_bytes,
                len_bytes: bio.len_bytes(),
                depth,
                submitted: Nanos(0),
            });
            end_bytes = end_bytes.max(offset_bytes + bio.len_bytes());
        }
        let submitters = by_submitter.len();
        let mut players: Vec<Player> = Vec::new();
        for (number, ((_, priority), steps)) in by_submitter.into_iter().enumerate() {
            match players.get_mut(number % TASKS_MAX) {
                Some(player) if number >= TASKS_MAX => player.steps.extend(steps),
                _ => players.push(Player::new(priority, pace, steps)),
            }
        }
        for player in &mut players {
            player.steps.sort_by_key(|step| step.start);
        }
        let counted = BTreeMap::new();
        let late = Histogram::default();
        let took = Nanos(0);
        Ok(Self { players, end_bytes, submitters, counted, first_failed: None, late, took })
    }

    /// Least length of the target.
    #[must_use]
    pub fn end_bytes(&self) -> u64 {
        self.end_bytes
    }

    /// Number of submitters, and number of tasks.
    #[must_use]
    pub fn submitters(&self) -> (usize, usize) {
        (self.submitters, self.submitters.min(TASKS_MAX))
    }

    /// Counts by name of the operation.
    #[must_use]
    pub fn counted(&self) -> &BTreeMap<&'static str, Counted> {
        &self.counted
    }

    /// Delay of each submission after its due time.
    #[must_use]
    pub fn late(&self) -> &Histogram {
        &self.late
    }

    /// Duration of the replay.
    #[must_use]
    pub fn took(&self) -> Nanos {
        self.took
    }

    /// Number of failed bios.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.counted.values().map(|one| one.errors).sum()
    }

    /// The first failed bio.
    #[must_use]
    pub fn first_failed(&self) -> Option<Failed> {
        self.first_failed
    }

    /// Whether all submitted bios ended, with all their bytes.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let whole = |one: &Counted| (one.in_bios, one.in_bytes) == (one.out_bios, one.out_bytes);
        self.counted.values().all(whole)
    }
}

impl Target {
    /// Checks that a trace fits the target.
    ///
    /// # Errors
    /// The first bio that does not fit.
    pub fn check(&self, trace: &Trace) -> Result<(), Misfit> {
        (1..).zip(&trace.bios).try_for_each(|(number, bio)| self.place(number, bio).map(|_| ()))
    }

    /// The bio's offset on the target.
    fn place(&self, number: usize, bio: &TracedBio) -> Result<u64, Misfit> {
        let refuse = |problem| Err(Misfit { bio: number, problem });
        let offset_bytes = bio.sector * 512;
        let len_bytes = bio.len_bytes();
        let sector_bytes = u64::from(self.sector_bytes.max(512));
        let name = op_name(bio.op);
        if !(offset_bytes | len_bytes).is_multiple_of(sector_bytes) {
            return refuse(format!(
                "({name} of {len_bytes} bytes at byte {offset_bytes}) is not whole sectors of the \
                 target, which have {sector_bytes} bytes; use one with smaller sectors"
            ));
        }
        if offset_bytes + len_bytes <= self.len_bytes {
            return Ok(offset_bytes);
        }
        // Whole pages keep the alignment.
        let room_bytes = self.len_bytes / 4096 * 4096;
        if self.wrap && len_bytes <= room_bytes && room_bytes > 0 {
            return Ok((offset_bytes % room_bytes).min(room_bytes - len_bytes));
        }
        let or_wrap =
            if len_bytes <= room_bytes { ", or give --wrap to wrap such bios around" } else { "" };
        refuse(format!(
            "({name} of {len_bytes} bytes at byte {offset_bytes}) ends past the target, which \
             has {} bytes; use a larger one{or_wrap}",
            self.len_bytes
        ))
    }
}

/// Name of an operation for users.
#[must_use]
pub fn op_name(op: Op) -> &'static str {
    match op {
        Op::Read => "read",
        Op::Write => "write",
        Op::Flush => "flush",
        Op::Discard => "discard",
        Op::WriteZeroes => "zeroes",
    }
}

fn name_of(op: DirectOp) -> &'static str {
    match op {
        DirectOp::Bio { op, .. } => op_name(op),
        DirectOp::Read => op_name(Op::Read),
        DirectOp::Write => op_name(Op::Write),
        DirectOp::Flush => op_name(Op::Flush),
        DirectOp::Discard => op_name(Op::Discard),
    }
}

impl Player {
    fn new(priority: Priority, pace: Pace, steps: Vec<ScheduledBio>) -> Self {
        Self {
            priority,
            pace,
            steps,
            next: 0,
            submitted: None,
            in_flight: 0,
            began: None,
            counted: BTreeMap::new(),
            first_failed: None,
            late: Histogram::default(),
        }
    }

    fn take_answers(&mut self, now: Nanos, returned: &Returned<'_>) {
        if let Some(step) = self.submitted.take() {
            match returned.status {
                Ok(()) => self.in_flight += 1,
                Err(_) => self.take_end(step, returned.status, now),
            }
        }
        for reaped in returned.reaped {
            self.take_end(reaped.id as usize, reaped.status, reaped.ended);
            self.in_flight -= 1;
        }
    }

    fn take_end(&mut self, step: usize, status: Result<(), i32>, ended: Nanos) {
        let ScheduledBio { op, offset_bytes, len_bytes, submitted, .. } = self.steps[step];
        let op = name_of(op);
        let counted = self.counted.entry(op).or_default();
        counted.out_bios += 1;
        counted.out_bytes += len_bytes;
        match status {
            Ok(()) => counted.latency.record(ended.since(submitted)),
            Err(error) => {
                counted.errors += 1;
                let failed = Failed { ended, op, offset_bytes, len_bytes, error };
                self.first_failed.get_or_insert(failed);
            }
        }
    }

    fn submit(&mut self, now: Nanos) -> Call {
        let id = self.next;
        let step = &mut self.steps[id];
        step.submitted = now;
        let ScheduledBio { op, offset_bytes, len_bytes, .. } = *step;
        let counted = self.counted.entry(name_of(op)).or_default();
        counted.in_bios += 1;
        counted.in_bytes += len_bytes;
        self.next += 1;
        self.submitted = Some(id);
        let id = u32::try_from(id).expect("a trace in memory has fewer");
        Call::Submit { id, file: FileId(0), op, offset_bytes, len_bytes, more: false }
    }
}

impl Task for Player {
    fn next(&mut self, now: Nanos, returned: &Returned<'_>) -> Call {
        self.take_answers(now, returned);
        let began = *self.began.get_or_insert(now);
        let Some(step) = self.steps.get(self.next) else {
            return match self.in_flight {
                0 => Call::Exit,
                in_flight => Call::Reap { at_least: in_flight, at_most: u32::MAX },
            };
        };
        match self.pace {
            Pace::Timed { speed_permille } => {
                let due = u128::from(step.start.0) * u128::from(SPEED_ONE)
                    / u128::from(speed_permille.max(1));
                let due = began + Nanos(u64::try_from(due).unwrap_or(u64::MAX));
                if now < due {
                    return Call::ReapBefore(due);
                }
                self.late.record(now.since(due));
            }
            Pace::Fastest { .. } => {
                if self.in_flight >= step.depth {
                    let at_least = self.in_flight - step.depth + 1;
                    return Call::Reap { at_least, at_most: u32::MAX };
                }
            }
        }
        self.submit(now)
    }

    fn counts_errors(&self) -> bool {
        true
    }

    fn priority(&self) -> Priority {
        self.priority
    }
}

impl Program for Replay {
    type Task = Player;

    fn next_phase(&mut self) -> Option<Phase<Player>> {
        let tasks = std::mem::take(&mut self.players);
        (!tasks.is_empty()).then_some(Phase { tasks, background: Vec::new() })
    }

    fn end_phase(&mut self, started: Nanos, ended: Nanos, players: Vec<Player>) {
        self.took = ended.since(started);
        for player in players {
            self.late.add(&player.late);
            let both = self.first_failed.into_iter().chain(player.first_failed);
            self.first_failed = both.min_by_key(|failed| failed.ended);
            for (name, one) in player.counted {
                let all = self.counted.entry(name).or_default();
                all.in_bios += one.in_bios;
                all.in_bytes += one.in_bytes;
                all.out_bios += one.out_bios;
                all.out_bytes += one.out_bytes;
                all.errors += one.errors;
                all.latency.add(&one.latency);
            }
        }
    }
}

#[cfg(test)]
mod tests;
