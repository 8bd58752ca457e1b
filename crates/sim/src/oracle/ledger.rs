//! The ledger: every submitted bio, its allowed outcomes, and its actual outcome.
//!
//! Order is the submitters' knowledge: a step for each submission and each end. A write is old for
//! a reader if another write was submitted after its end, and ended before the read was submitted.
//! Of two writes that overlap in time either may persist. A failed write may be found, or not,
//! forever.
//!
//! This order limits the losses of a power cut: a successful flush promises every write that
//! had ended at its submission, FUA promises its own write.

use std::collections::BTreeMap;

use blockyard_engine::bio::{Bio, BlkStatus, Done, Op, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::elevator::Generation;
use blockyard_engine::mq::{Issue, Limits, PlugRule, QueueConfig};
use blockyard_engine::priority::PriorityClass;

use super::stamps::{Stamp, Stamps, WriteNumber};
use super::{Finding, must};

/// Time of an event; starts at 1.
pub type Step = u64;

/// End of a bio in flight, and of a failed one.
const NEVER: Step = Step::MAX;

/// Sectors stored together.
const CHUNK: u64 = 64;

/// A bio in the ledger.
#[derive(Debug)]
struct Sent {
    bio: Bio,
    submitted: Step,
    /// [`NEVER`] while in flight, or after a failure.
    ended: Step,
    open: bool,
    done_sectors: u64,
    failed: bool,
    /// Its last write on the medium.
    write: WriteNumber,
    /// The last write acknowledged before its submission.
    covers: WriteNumber,
    failed_flushes: u64,
    /// For a read: the step of [`Known::acknowledged`], by sector.
    expected: Vec<Step>,
}

/// Knowledge about a sector.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Latest submission of an ended write.
    acknowledged: Step,
    /// Latest submission of a write that is promised to survive.
    promised: Step,
}

/// The ledger of a queue.
// 13 fields: the bios, the sectors' states, and the promises so far.
#[derive(Debug)]
pub struct Ledger {
    elevator: &'static str,
    config: QueueConfig,
    sent: Vec<Sent>,
    /// By first sector divided by [`CHUNK`]; missing entries equal `elsewhere`.
    known: BTreeMap<u64, Vec<Known>>,
    elsewhere: Known,
    step: Step,
    open: usize,
    /// Acknowledged writes, oldest first: step and number.
    acknowledged: Vec<(Step, usize)>,
    /// Number of promised ones among them.
    promised: usize,
    acknowledged_write: WriteNumber,
    failed_flushes: u64,
    /// Bios submitted before this step may fail.
    excused: Step,
    /// A preflush is a separate flush before the write enters the queue.
    splits_preflush: bool,
}

impl Ledger {
    /// The ledger of a queue with this elevator.
    #[must_use]
    pub fn new(elevator: &'static str, config: QueueConfig) -> Self {
        Self {
            elevator,
            config,
            sent: Vec::new(),
            known: BTreeMap::new(),
            elsewhere: Known::default(),
            step: 0,
            open: 0,
            acknowledged: Vec::new(),
            promised: 0,
            acknowledged_write: 0,
            failed_flushes: 0,
            excused: 0,
            splits_preflush: false,
        }
    }

    /// For a queue below a mapped device, which flushes separately before it sends the write.
    #[must_use]
    pub fn below_mapped_device(self) -> Self {
        Self { splits_preflush: true, ..self }
    }

    /// The user data that the next bio must have.
    #[must_use]
    pub fn next_user(&self) -> u64 {
        self.sent.len() as u64
    }

    /// Number of bios in flight.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open
    }

    /// A bio as submitted.
    #[must_use]
    pub fn bio(&self, user: u64) -> Option<&Bio> {
        self.sent.get(usize::try_from(user).ok()?).map(|sent| &sent.bio)
    }

    fn known(&mut self, sector: u64) -> &mut Known {
        let chunk = self.known.entry(sector / CHUNK);
        let chunk = chunk.or_insert_with(|| vec![self.elsewhere; CHUNK as usize]);
        &mut chunk[(sector % CHUNK) as usize]
    }

    fn known_at(&self, sector: u64) -> Known {
        let chunk = self.known.get(&(sector / CHUNK));
        chunk.map_or(self.elsewhere, |chunk| chunk[(sector % CHUNK) as usize])
    }

    /// Notes a submission.
    ///
    /// # Panics
    /// The user data is not the next number.
    pub fn submitted(&mut self, bio: &Bio) {
        assert_eq!(bio.user, self.next_user());
        self.step += 1;
        let range = bio.sector.0..bio.sector.0 + bio.len.0;
        let expected = match bio.op {
            Op::Read => range.map(|sector| self.known_at(sector).acknowledged).collect(),
            _ => Vec::new(),
        };
        self.open += 1;
        self.sent.push(Sent {
            bio: *bio,
            submitted: self.step,
            ended: NEVER,
            open: true,
            done_sectors: 0,
            failed: false,
            write: 0,
            covers: self.acknowledged_write,
            failed_flushes: self.failed_flushes,
            expected,
        });
    }

    /// Notes the issue of a request, with `in_flight` others on this hardware queue. The pieces
    /// have the submitters' positions.
    ///
    /// # Errors
    /// The request violates a rule.
    pub fn issued(
        &self,
        issue: &Issue,
        pieces: &[Bio],
        in_flight: usize,
        stamps: &Stamps,
    ) -> Result<(), Finding> {
        must!(Limits, in_flight < self.config.queue_depth as usize, "one too many: {issue:?}");
        if issue.op == Op::Flush {
            must!(Flush, self.config.write_cache, "a flush for a device without a cache");
            must!(Merge, pieces.is_empty() && issue.len.0 == 0, "a flush of {pieces:?}");
            return Ok(());
        }
        must!(ExactlyOnce, !pieces.is_empty(), "a request of nothing: {issue:?}");
        let keeps = self.config.fua && self.config.write_cache;
        must!(Flush, !issue.fua || keeps, "FUA for a device that has none: {issue:?}");
        let Limits { max_sectors, max_segments } = self.config.limits;
        let moves_bytes = matches!(issue.op, Op::Read | Op::Write);
        let fits = issue.len.0 <= u64::from(max_sectors);
        must!(Limits, fits || !moves_bytes, "too long: {issue:?}");
        must!(Limits, pieces.len() <= usize::from(max_segments), "too many pieces: {issue:?}");
        let counted = usize::from(issue.segments) == pieces.len();
        must!(Limits, counted, "{} pieces: {issue:?}", pieces.len());
        for piece in pieces {
            self.piece_issued(issue, piece, stamps)?;
        }
        self.joined(issue, pieces)
    }

    fn piece_issued(&self, issue: &Issue, piece: &Bio, stamps: &Stamps) -> Result<(), Finding> {
        let sent = self.sent.get(piece.user as usize);
        must!(ExactlyOnce, sent.is_some(), "not submitted: {piece:?}");
        let Some(sent) = sent else { return Ok(()) };
        must!(
            Merge,
            piece.op == issue.op && sent.bio.op == issue.op,
            "kinds: {issue:?}, {piece:?}"
        );
        let changes = !self.config.write_cache;
        must!(ExactlyOnce, piece.origin == sent.bio.origin || changes, "whose: {piece:?}");
        must!(ExactlyOnce, sent.open, "has ended before: {piece:?}");
        let inside = piece.sector >= sent.bio.sector
            && piece.sector + piece.len <= sent.bio.sector + sent.bio.len;
        must!(ExactlyOnce, inside, "not inside of {:?}: {piece:?}", sent.bio);
        let early = sent.bio.preflush && !stamps.is_durable(sent.covers);
        must!(Flush, !early, "starts before its preflush has ended: {:?}", sent.bio);
        Ok(())
    }

    /// Checks that the parts of a request may be joined.
    fn joined(&self, issue: &Issue, pieces: &[Bio]) -> Result<(), Finding> {
        if pieces.len() < 2 {
            return Ok(());
        }
        must!(Merge, matches!(issue.op, Op::Read | Op::Write), "never joined: {pieces:?}");
        must!(Merge, !issue.fua, "FUA joined: {pieces:?}");
        let plain = |piece: &Bio| {
            let sent = &self.sent[piece.user as usize].bio;
            !sent.fua && (!sent.preflush || self.splits_preflush)
        };
        let border = self.config.write_cache && !pieces.iter().all(plain);
        must!(Merge, !border, "joined across a flush: {pieces:?}");
        let same = |holds: &dyn Fn(&Bio, &Bio) -> bool| {
            pieces.windows(2).all(|pair| holds(&pair[0], &pair[1]))
        };
        let priority = |a: &Bio, b: &Bio| a.origin.priority == b.origin.priority;
        if self.config.generation == Generation::Multi {
            must!(Merge, same(&priority), "priorities joined: {pieces:?}");
        }
        // A plug merges without asking the elevator.
        if self.config.plug == PlugRule::PerContext {
            return Ok(());
        }
        let class = |a: &Bio, b: &Bio| a.origin.priority.class == b.origin.priority.class;
        let fine = match self.elevator {
            "mq-deadline" => same(&class),
            "deadline-prio" => same(&|a, b| level(a) == level(b)),
            // Submitters may share a queue, but not across priorities.
            "cfq" => same(&|a, b| a.is_sync() == b.is_sync()) && same(&priority),
            _ => true,
        };
        must!(Merge, fine, "{} keeps these apart: {pieces:?}", self.elevator);
        Ok(())
    }

    /// Notes the stamps that the device has read for a part of a bio.
    ///
    /// # Errors
    /// A stamp is old, or was never written there.
    pub fn read(
        &self,
        piece: &Bio,
        found: impl Iterator<Item = (u64, Stamp)>,
    ) -> Result<(), Finding> {
        let reader = &self.sent[piece.user as usize];
        for (sector, stamp) in found {
            let expected = reader.expected[(sector - reader.bio.sector.0) as usize];
            let fresh = self.is_written(sector, stamp)? >= expected;
            must!(Data, fresh, "sector {sector}: {} is old for {:?}", self.name(stamp), reader.bio);
        }
        Ok(())
    }

    /// The end of the write with this stamp.
    fn is_written(&self, sector: u64, stamp: Stamp) -> Result<Step, Finding> {
        let Some(number) = stamp.checked_sub(1) else { return Ok(0) };
        let Sent { bio, ended, .. } = &self.sent[number as usize];
        let there = (bio.sector.0..bio.sector.0 + bio.len.0).contains(&sector);
        let wrote = there && !matches!(bio.op, Op::Read | Op::Flush);
        must!(Data, wrote, "sector {sector} holds {}, which is not for it", self.name(stamp));
        Ok(*ended)
    }

    fn name(&self, stamp: Stamp) -> String {
        match stamp.checked_sub(1) {
            None => "what was there at first".to_string(),
            Some(number) => format!("bio {number}"),
        }
    }

    /// The stamp of a bio's write.
    ///
    /// # Panics
    /// There are more than 2^32 bios.
    #[must_use]
    pub fn stamp(user: u64) -> Stamp {
        Stamp::try_from(user + 1).expect("a world has fewer than 2^32 bios")
    }

    /// Notes that the device has written a part of a bio.
    pub fn written(&mut self, piece: &Bio, number: WriteNumber) {
        self.sent[piece.user as usize].write = number;
    }

    /// Notes that the device has completed a part of a bio.
    pub fn performed(&mut self, piece: &Bio, status: BlkStatus) {
        let sent = &mut self.sent[piece.user as usize];
        if status == BlkStatus::Ok {
            sent.done_sectors += piece.len.0;
        } else {
            sent.failed = true;
        }
    }

    /// Notes that a bio is sent to the device, possibly again: completed parts repeat, failed ones
    /// may succeed.
    pub fn sent(&mut self, user: u64) {
        let sent = &mut self.sent[user as usize];
        (sent.done_sectors, sent.failed) = (0, false);
    }

    /// Notes that there is no path and no waiting for one: any bio in flight may fail.
    pub fn excuse(&mut self) {
        self.excused = self.step;
    }

    /// Notes a failed flush.
    pub fn flush_failed(&mut self) {
        self.failed_flushes += 1;
    }

    /// Notes the end of a bio; returns it.
    ///
    /// # Errors
    /// The end violates a rule.
    pub fn done(&mut self, done: &Done, stamps: &Stamps) -> Result<Bio, Finding> {
        self.step += 1;
        let number = done.user as usize;
        must!(ExactlyOnce, number < self.sent.len(), "bio {} ended without submission", done.user);
        let sent = &mut self.sent[number];
        let bio = sent.bio;
        must!(ExactlyOnce, sent.open, "ended twice: {bio:?}");
        sent.open = false;
        self.open -= 1;
        let flushes = bio.op == Op::Flush || bio.fua || bio.preflush;
        if done.status != BlkStatus::Ok {
            let flush_failed = flushes && self.failed_flushes > sent.failed_flushes;
            let excused = flush_failed || sent.submitted <= self.excused;
            must!(ExactlyOnce, sent.failed || excused, "failed for no reason: {bio:?}");
            return Ok(bio);
        }
        sent.ended = self.step;
        must!(ExactlyOnce, !sent.failed, "a failure became a success: {bio:?}");
        let did = sent.done_sectors;
        let of = bio.len.0;
        must!(ExactlyOnce, did == of, "{did} of {of} sectors were done: {bio:?}");
        if bio.op == Op::Flush || bio.preflush {
            must!(Flush, stamps.is_durable(sent.covers), "a flush without effect: {bio:?}");
        }
        if bio.fua {
            let submitted = sent.submitted;
            for sector in bio.sector.0..bio.sector.0 + bio.len.0 {
                let kept = self.is_written(sector, stamps.durable(sector))? >= submitted;
                must!(Flush, kept, "FUA, and sector {sector} is not durable: {bio:?}");
            }
        }
        self.acknowledge(number);
        Ok(bio)
    }

    /// Notes a successful end, on which other bios may rely from now on.
    fn acknowledge(&mut self, number: usize) {
        let Sent { bio, submitted, write, .. } = self.sent[number];
        if !matches!(bio.op, Op::Read | Op::Flush) {
            self.acknowledged.push((self.step, number));
            self.acknowledged_write = self.acknowledged_write.max(write);
            for sector in bio.sector.0..bio.sector.0 + bio.len.0 {
                let known = self.known(sector);
                known.acknowledged = known.acknowledged.max(submitted);
            }
            if bio.fua || !self.config.write_cache {
                self.promise(number);
            }
        }
        if bio.op == Op::Flush || bio.preflush {
            while let Some((ended, write)) = self.acknowledged.get(self.promised).copied()
                && ended < submitted
            {
                self.promise(write);
                self.promised += 1;
            }
        }
    }

    fn promise(&mut self, number: usize) {
        let Sent { bio, submitted, .. } = self.sent[number];
        for sector in bio.sector.0..bio.sector.0 + bio.len.0 {
            let known = self.known(sector);
            known.promised = known.promised.max(submitted);
        }
    }

    /// Notes a power cut with this remaining content. Bios in flight never end; the found content
    /// is the new content.
    ///
    /// # Errors
    /// Promised data is missing.
    pub fn power_cut(&mut self, stamps: &mut Stamps) -> Result<(), Finding> {
        for (sector, stamp) in stamps.sectors() {
            let kept = self.is_written(sector, stamp)? >= self.known_at(sector).promised;
            if !kept {
                let what = format!("sector {sector}: only {} is left", self.name(stamp));
                return Err(Finding { oracle: super::Oracle::PowerCut, what });
            }
        }
        for sent in &mut self.sent {
            sent.open = false;
            // Regardless of its state, it is over.
            sent.ended = sent.ended.min(self.step);
        }
        self.open = 0;
        self.recovered(stamps);
        Ok(())
    }

    /// The found content counts as one write over the whole device, between the two lives.
    fn recovered(&mut self, stamps: &mut Stamps) {
        let user = self.next_user();
        let all = Sector(u64::MAX);
        let mut bio = Bio::new(Op::WriteZeroes, Sector(0), all, BufRef::NONE, user);
        bio.fua = true;
        let submitted = self.step + 1;
        self.step += 2;
        self.sent.push(Sent {
            bio,
            submitted,
            ended: self.step,
            open: false,
            done_sectors: 0,
            failed: false,
            write: stamps.written(),
            covers: 0,
            failed_flushes: 0,
            expected: Vec::new(),
        });
        self.known.clear();
        self.elsewhere = Known { acknowledged: submitted, promised: submitted };
        self.acknowledged.clear();
        self.promised = 0;
        stamps.adopt(Self::stamp(user));
    }
}

/// Checks that the pieces of a request are one range on its device.
///
/// # Errors
/// There is a gap.
pub fn contiguous(issue: &Issue, pieces: &[Bio]) -> Result<(), Finding> {
    let mut end = issue.sector;
    for piece in pieces {
        must!(Merge, piece.sector == end, "does not touch: {issue:?} of {pieces:?}");
        end = end + piece.len;
    }
    must!(Merge, end == issue.sector + issue.len, "lengths: {issue:?} of {pieces:?}");
    Ok(())
}

/// Levels of `deadline-prio`: see its page.
fn level(bio: &Bio) -> u8 {
    match (bio.origin.priority.class, bio.op) {
        (PriorityClass::Idle, _) => 2,
        (PriorityClass::RealTime, Op::Read) => 0,
        (_, Op::Read) => 1,
        _ if bio.is_sync() => 1,
        _ => 2,
    }
}

#[cfg(test)]
mod tests;
