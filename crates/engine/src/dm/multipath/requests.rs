//! `multipath` for requests: a queue over the queues of the paths, as a target
//! (`drivers/md/dm-rq.c`).
//!
//! Parts of bios go into a [`StackedQueue`], which merges and schedules them. Each dispatched
//! request goes to a path as a clone, with an SQE for each separate piece of memory, because merged
//! bios have their own buffers. A clone ends after all its pieces.
//!
//! ```text
//! map ─> upper queue ─ unplugged ─ dispatch ─> clone ─> SQE, SQE, ... ─> all answered
//!          ^   ^                                                           │
//!          │   └── the rest, from the first piece on that failed <─────────┤ error of the path
//!          └────── no tag below: busy                                      └─> its parts end
//! ```
//! *Partial completion*: the pieces before the first failed one, in the order of their sectors, are
//! done. Their bios end, and the rest is requeued for another path. Later pieces may be done as
//! well, and are repeated.
//!
//! *Plug*: a submitter's parts are held until the shard's writing thread runs ([`SqeOp::Wake`]),
//! when the submitter has no more for now, or until there are `PLUG_MAX` parts.
//!
//! A part is retried from its original buffer, as in [`target`](super::target): writes count as
//! parked until they end. Checks are the same, too.

use alloc::string::String;
use alloc::vec::Vec;

use super::target::MultipathTargetSpec;
use super::{Multipath, PathId};
use crate::bio::{Bio, BlkStatus, Done, IoContext, Op, Origin, Sector};
use crate::buf::BufRef;
use crate::dm::control::{MessageError, Suspend, TargetControl};
use crate::dm::multipath::stacked::{Answer, CloneInsert, Dispatched, StackedQueue};
use crate::dm::{Mapped, Part, Target, TargetCx};
use crate::mq::Issue;
use crate::slab::Slab;
use crate::sq::{DevId, Owner, Sqe, SqeOp, Token};
use crate::time::Nanos;

/// Greatest number of plugged parts (`BLK_MAX_REQUEST_COUNT`; from memory).
const PLUG_MAX: usize = 32;

/// Purpose of an SQE.
#[derive(Debug)]
enum Pending {
    /// A piece of a clone, from this sector of the disk on.
    Piece {
        clone: u32,
        start: Sector,
    },
    /// Unplug.
    Unplug,
    Check(PathId),
    /// A timeout that ends at this time.
    Timer(Nanos),
}

/// A request at a path.
#[derive(Debug)]
struct Cloned {
    path: PathId,
    issue: Issue,
    /// Number of pieces in flight.
    pieces: u32,
    /// Sector and status of the first failed piece, by sector.
    failed: Option<(Sector, BlkStatus)>,
}

/// The request-based multipath target.
// 15 fields: the queue, the tables of operations in flight, and vectors that are kept for their
// memory.
pub struct RequestTarget {
    queue: StackedQueue,
    devs: Vec<DevId>,
    /// Its number in the table.
    number: u16,
    /// Parts that have not ended. [`Bio::user`] is an index of it.
    parts: Slab<Part>,
    /// Number of writes among the parts.
    writes: usize,
    clones: Slab<Cloned>,
    /// SQEs without a CQE.
    pending: Slab<Pending>,
    /// Submitters with a plug, and the number of plugged parts.
    plugged: Vec<IoContext>,
    held: usize,
    /// The earliest pending timeout. Later ones stay pending and have no effect.
    timer: Option<Nanos>,
    /// CPU of the last submitter, which dispatches.
    cpu: u16,
    /// Current time. It never goes back, although a timeout may be ahead of the world's clock.
    now: Nanos,
    /// Scratch buffers, kept for their memory.
    dispatched: Vec<Dispatched>,
    done: Vec<Done>,
    unparked: Vec<u64>,
}

impl RequestTarget {
    /// Creates the target of a line.
    ///
    /// # Panics
    /// When the line is for bios, when clones would wait below, or as [`StackedQueue::new`].
    #[must_use]
    pub fn new(spec: MultipathTargetSpec, number: u16) -> Self {
        let MultipathTargetSpec { multipath, devs, requests } = spec;
        let config = requests.expect("a line for bios has a target of its own");
        assert!(config.stacking.insert == CloneInsert::Direct, "there is no worker for them");
        assert_eq!(multipath.paths().count(), devs.len(), "each path has its device");
        Self {
            queue: StackedQueue::new(config, Multipath::new(multipath)),
            devs,
            number,
            parts: Slab::default(),
            writes: 0,
            clones: Slab::default(),
            pending: Slab::default(),
            plugged: Vec::new(),
            held: 0,
            timer: None,
            cpu: 0,
            now: Nanos(0),
            dispatched: Vec::new(),
            done: Vec::new(),
            unparked: Vec::new(),
        }
    }

    fn push(&mut self, pending: Pending, op: SqeOp, origin: Origin, cx: &mut TargetCx<'_>) {
        let index = self.pending.insert(pending);
        cx.push(sqe(self.number, index, op, origin));
    }

    /// Plugs a submitter's parts.
    fn plug(&mut self, origin: Origin, cx: &mut TargetCx<'_>) {
        if self.plugged.contains(&origin.io_context) {
            return;
        }
        if self.plugged.is_empty() {
            self.push(Pending::Unplug, SqeOp::Wake, origin, cx);
        }
        self.plugged.push(origin.io_context);
        self.queue.plug(origin.io_context);
    }

    fn unplug(&mut self) {
        self.held = 0;
        for io_context in self.plugged.drain(..) {
            self.queue.unplug(self.now, io_context);
        }
    }

    /// Runs after each event: dispatches requests to the paths, ends parts, and starts the timeout
    /// for the next attempt.
    fn go_on(&mut self, cx: &mut TargetCx<'_>) {
        while let Some(path) = self.queue.take_check(self.now) {
            let op = SqeOp::Check { dev: self.devs[usize::from(path.0)] };
            self.push(Pending::Check(path), op, Origin::default(), cx);
        }
        let mut dispatched = core::mem::take(&mut self.dispatched);
        self.queue.dispatch(self.now, self.cpu, &mut dispatched);
        for one in dispatched.drain(..) {
            match one {
                Dispatched::Issue { path, issue } => self.issue(path, &issue, cx),
                Dispatched::Run { .. } => unreachable!("clones are inserted directly"),
            }
        }
        self.dispatched = dispatched;
        self.end_parts(cx);
        if let Some(at) = self.queue.wake_at()
            && self.timer.is_none_or(|timer| at < timer)
        {
            self.timer = Some(at);
            let op = SqeOp::Timeout { after: at.since(self.now) };
            self.push(Pending::Timer(at), op, Origin::default(), cx);
        }
    }

    /// Sends a clone to the device of its path.
    fn issue(&mut self, path: PathId, issue: &Issue, cx: &mut TargetCx<'_>) {
        let Self { queue, devs, number, clones, pending, .. } = self;
        let dev = devs[usize::from(path.0)];
        let clone = clones.insert(Cloned { path, issue: *issue, pieces: 0, failed: None });
        let mut pieces = 0;
        let mut piece = |part: &Part| {
            pieces += 1;
            let index = pending.insert(Pending::Piece { clone, start: part.sector });
            cx.push(sqe(*number, index, part.at(dev, part.sector), part.origin));
        };
        let mut open: Option<Part> = None;
        for bio in queue.bios(path, issue.tag) {
            let next = part_of(bio, issue.fua);
            match &mut open {
                Some(part) if is_behind(part, &next) => {
                    part.len = part.len + next.len;
                    part.buf.len_bytes += next.buf.len_bytes;
                }
                _ => {
                    open.iter().for_each(&mut piece);
                    open = Some(next);
                }
            }
        }
        // A flush by the queue itself has no bio.
        let flush = Part {
            index: 0,
            op: issue.op,
            fua: false,
            sector: issue.sector,
            len: issue.len,
            buf: BufRef::NONE,
            origin: issue.origin,
        };
        assert!(open.is_some() || issue.op == Op::Flush, "only a flush has no bios");
        piece(&open.unwrap_or(flush));
        clones.at(clone).pieces = pieces;
    }

    /// Handles the completion of one piece of a clone.
    fn answered(&mut self, clone: u32, start: Sector, status: BlkStatus) {
        let at = self.clones.at(clone);
        at.pieces -= 1;
        if status != BlkStatus::Ok && at.failed.is_none_or(|(first, _)| start < first) {
            at.failed = Some((start, status));
        }
        if at.pieces > 0 {
            return;
        }
        let Cloned { path, issue, failed, .. } = self.clones.remove(clone);
        let answer = match failed {
            None => Answer::done(&issue),
            Some((start, status)) => {
                Answer { status, done_bytes: Sector(start.0 - issue.sector.0).bytes() }
            }
        };
        self.queue.complete(self.now, path, issue.tag, answer);
    }

    fn end_parts(&mut self, cx: &mut TargetCx<'_>) {
        // No submitter sleeps for a request.
        self.queue.take_unparked(&mut self.unparked);
        self.unparked.clear();
        self.queue.take_done(&mut self.done);
        for Done { user, status } in self.done.drain(..) {
            let part = self.parts.remove(u32::try_from(user).expect("an index of `parts`"));
            self.writes -= usize::from(part.op == Op::Write);
            cx.end(part.index, status);
        }
    }
}

fn sqe(number: u16, index: u32, op: SqeOp, origin: Origin) -> Sqe {
    let token = Token { owner: Owner::Target(number), index };
    Sqe { token, op, linked: false, origin }
}

/// A bio of a request as a part.
fn part_of(bio: &Bio, fua: bool) -> Part {
    let &Bio { op, sector, len, buf, origin, .. } = bio;
    Part { index: 0, op, fua, sector, len, buf, origin }
}

/// Whether a part's memory follows directly after another one's. Their sectors do.
fn is_behind(part: &Part, next: &Part) -> bool {
    let one = part.buf;
    let two = next.buf;
    let end_bytes = one.offset_bytes + one.len_bytes;
    one.is_world() && one.slot == two.slot && end_bytes == two.offset_bytes
}

impl Target for RequestTarget {
    fn map(&mut self, part: Part, cx: &mut TargetCx<'_>) -> Mapped {
        self.now = self.now.max(cx.now);
        self.cpu = part.origin.cpu;
        self.plug(part.origin, cx);
        let Part { op, fua, sector, len, buf, origin, .. } = part;
        self.writes += usize::from(op == Op::Write);
        let user = u64::from(self.parts.insert(part));
        let bio = Bio { fua, origin, ..Bio::new(op, sector, len, buf, user) };
        self.queue.submit_bio(self.now, bio);
        self.held += 1;
        if self.held >= PLUG_MAX {
            self.unplug();
            self.go_on(cx);
        }
        Mapped::Submitted
    }

    fn on_cqe(&mut self, index: u32, status: BlkStatus, cx: &mut TargetCx<'_>) {
        self.now = self.now.max(cx.now);
        match self.pending.remove(index) {
            Pending::Piece { clone, start } => self.answered(clone, start, status),
            Pending::Unplug => self.unplug(),
            Pending::Check(path) => self.queue.checked(self.now, path, status),
            Pending::Timer(at) => {
                // A timeout may be ahead of the world's clock.
                self.now = self.now.max(at);
                if self.timer == Some(at) {
                    self.timer = None;
                }
            }
        }
        self.go_on(cx);
    }

    fn max_io(&self, _: Op, _: Sector) -> Sector {
        Sector(u64::MAX)
    }

    /// Writes may be retried. Other parts wait only while no path is live.
    fn parked(&self) -> usize {
        if self.queue.is_stalled() { self.parts.len() } else { self.writes }
    }

    fn is_idle(&self) -> bool {
        let is_idle = self.parts.is_empty();
        assert!(!is_idle || self.queue.is_idle(), "what the queue has is of a part");
        is_idle
    }

    fn control(&mut self) -> Option<&mut dyn TargetControl> {
        Some(self)
    }
}

impl TargetControl for RequestTarget {
    fn message(&mut self, text: &str, cx: &mut TargetCx<'_>) -> Result<(), MessageError> {
        self.now = self.now.max(cx.now);
        self.queue.message(self.now, text)?;
        self.go_on(cx);
        Ok(())
    }

    fn info(&self) -> String {
        self.queue.info()
    }

    fn table(&self) -> String {
        self.queue.table()
    }

    fn suspend(&mut self, how: Suspend, cx: &mut TargetCx<'_>) {
        self.now = self.now.max(cx.now);
        self.unplug();
        self.queue.suspend(how);
        self.go_on(cx);
    }

    fn resume(&mut self, cx: &mut TargetCx<'_>) {
        self.now = self.now.max(cx.now);
        self.queue.resume();
        self.go_on(cx);
    }
}

#[cfg(test)]
mod tests;
