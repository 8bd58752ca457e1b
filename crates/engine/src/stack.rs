//! Devices on devices: stacked shards, driven as one.
//!
//! A device of a table may be mapped itself ([`DevId::mapped`], [`Table::over`]). It has its own
//! shard: an SQE of the shard above becomes a bio of that shard, and the bio's end becomes the CQE.
//! No shard knows of another.
//!
//! ```text
//! bio ──> top ── SQE ──> bio ──> shard below ── SQE ──> world
//! done <── top <── CQE ── done <── shard below <── CQE ──┘
//! ```
//! A linked pair with a write to a mapped device is split: the world runs the cipher, and then the
//! write becomes a bio. A stack of one shard costs one branch per event.

use alloc::vec::Vec;

use crate::bio::{Bio, BlkStatus, Done, Failures, Op, Sector};
use crate::buf::BufRef;
use crate::dm::Part;
use crate::dm::bounce::Bounce;
use crate::dm::control::{MessageError, Suspend, TargetStatus};
use crate::dm::crypt::ZEROS_MAX_BYTES;
use crate::dm::crypt::pipeline::{Decisions, Load};
use crate::dm::table::Table;
use crate::pages::{Allocator, OutOfPages, Segment};
use crate::shard::Shard;
use crate::slab::Slab;
use crate::sq::{Cqe, DevId, Owner, Sqe, SqeOp, Token};
use crate::time::Nanos;

/// A pending request of a shard.
#[derive(Debug)]
struct Asked {
    /// Index of the shard.
    by: usize,
    /// The shard's token.
    token: Token,
    /// The write of a split pair, whose cipher runs first.
    write: Option<Sqe>,
}

/// A shard, and those of the mapped devices below it.
pub struct Stack {
    /// Shards, each above those that it uses; the last is the served one.
    shards: Vec<Shard>,
    /// Index of the shard with slots or pages, if there is one.
    bouncing: usize,
    asked: Slab<Asked>,
    /// SQEs for the world.
    sq: Vec<Sqe>,
    /// Scratch buffers, kept for their memory.
    sqes: Vec<Sqe>,
    done: Vec<Done>,
}

impl Stack {
    /// Creates the shards of a table and of the tables below. `bounce` is for the one that needs
    /// it.
    ///
    /// # Errors
    /// As [`Shard::new`].
    ///
    /// # Panics
    /// As [`Shard::new`]; and when two of the shards need to bounce, because there is one reserve.
    pub fn new(table: &Table, bounce: Bounce) -> Result<Self, OutOfPages> {
        let bounces = |layer: &Table| layer.bounce_users() > 0;
        assert!(table.layers().filter(|layer| bounces(layer)).count() <= 1, "bounce is for one");
        let bouncing = table.layers().position(bounces).unwrap_or(0);
        let mut bounce = Some(bounce);
        let shard = |layer: &Table| {
            let own = if bounces(layer) { bounce.take() } else { None };
            let none = Bounce::Slots { slots: 0, slot_bytes: ZEROS_MAX_BYTES };
            Shard::new(layer, own.unwrap_or(none))
        };
        Ok(Self {
            shards: table.layers().map(shard).collect::<Result<_, _>>()?,
            bouncing,
            asked: Slab::default(),
            sq: Vec::new(),
            sqes: Vec::new(),
            done: Vec::new(),
        })
    }

    #[inline]
    fn top(&self) -> usize {
        self.shards.len() - 1
    }

    fn is_one(&self) -> bool {
        self.shards.len() == 1
    }

    /// Submits a bio. It ends in [`Stack::take_done`], perhaps at once.
    #[inline]
    pub fn submit_bio(&mut self, now: Nanos, bio: Bio) {
        let top = self.top();
        self.shards[top].submit_bio(now, bio);
        self.settle(now);
    }

    /// Handles a CQE.
    #[inline]
    pub fn on_cqe(&mut self, now: Nanos, cqe: Cqe) {
        let top = self.top();
        match cqe.token.owner {
            Owner::Stack => self.answer(now, cqe.token.index, cqe.status),
            _ => self.shards[top].on_cqe(now, cqe),
        }
        self.settle(now);
    }

    /// Moves new SQEs to the end of `out`.
    #[inline]
    pub fn take_sq(&mut self, out: &mut Vec<Sqe>) {
        if self.is_one() { self.shards[0].take_sq(out) } else { out.append(&mut self.sq) }
    }

    /// Moves finished bios to the end of `out`.
    #[inline]
    pub fn take_done(&mut self, out: &mut Vec<Done>) {
        let top = self.top();
        self.shards[top].take_done(out);
    }

    /// Number of bios in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shards[self.top()].in_flight()
    }

    /// Counts of failed bios: [`Shard::failures`].
    #[must_use]
    pub fn failures(&self) -> &Failures {
        self.shards[self.top()].failures()
    }

    /// Number of parts that wait in their targets: [`Shard::parked`].
    #[must_use]
    pub fn parked(&self) -> usize {
        self.shards.iter().map(Shard::parked).sum()
    }

    /// The pages of a list: [`Shard::segments`].
    ///
    /// # Panics
    /// As [`Shard::segments`]; and when no shard has pages.
    #[must_use]
    pub fn segments(&self, slot: u32) -> &[Segment] {
        self.shards[self.bouncing].segments(slot)
    }

    /// The page allocators of the crypt lines: [`Shard::page_allocators`].
    pub fn page_allocators(&self) -> impl Iterator<Item = &Allocator<Part>> {
        self.shards[self.bouncing].page_allocators()
    }

    /// Sets the page limit of each crypt line: [`Shard::set_page_limit`].
    pub fn set_page_limit(&mut self, now: Nanos, limit_pages: u32) {
        self.shards[self.bouncing].set_page_limit(now, limit_pages);
        self.settle(now);
    }

    /// Estimate of the bytes that go to ciphers of the served device after these CQEs:
    /// [`Shard::arriving_bytes`].
    #[must_use]
    pub fn arriving_bytes(&self, cqes: &[Cqe]) -> u64 {
        self.shards[self.top()].arriving_bytes(cqes)
    }

    /// Sets the current load: [`Shard::set_load`].
    pub fn set_load(&mut self, load: Load) {
        self.shards.iter_mut().for_each(|shard| shard.set_load(load));
    }

    /// Sends a message to a target of the served device: [`Shard::message`].
    ///
    /// # Errors
    /// As [`Shard::message`].
    ///
    /// # Panics
    /// As [`Shard::message`].
    pub fn message(&mut self, now: Nanos, number: u16, text: &str) -> Result<(), MessageError> {
        let top = self.top();
        let answer = self.shards[top].message(now, number, text);
        self.settle(now);
        answer
    }

    /// Status of a target of the served device: [`Shard::status`].
    ///
    /// # Panics
    /// As [`Shard::status`].
    pub fn status(&mut self, number: u16) -> Option<TargetStatus> {
        let top = self.top();
        self.shards[top].status(number)
    }

    /// Starts a suspension: [`Shard::suspend`].
    pub fn suspend(&mut self, now: Nanos, how: Suspend) {
        self.shards.iter_mut().for_each(|shard| shard.suspend(now, how));
        self.settle(now);
    }

    /// Ends a suspension: [`Shard::resume_targets`].
    pub fn resume_targets(&mut self, now: Nanos) {
        self.shards.iter_mut().for_each(|shard| shard.resume_targets(now));
        self.settle(now);
    }

    /// Counts of the pipeline decisions of all targets.
    #[must_use]
    pub fn decisions(&self) -> Decisions {
        let mut all = Decisions::default();
        self.shards.iter().for_each(|shard| all.add(shard.decisions()));
        all
    }

    /// Whether nothing is in flight and every target has its whole reserve.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.asked.is_empty() && self.shards.iter().all(Shard::is_idle)
    }

    /// Passes SQEs and CQEs between the shards until only the world can continue.
    #[inline]
    fn settle(&mut self, now: Nanos) {
        if !self.is_one() {
            self.settle_all(now);
        }
    }

    #[inline(never)]
    fn settle_all(&mut self, now: Nanos) {
        loop {
            let mut is_settled = true;
            for at in (0..self.shards.len()).rev() {
                is_settled &= !self.pass_down(now, at);
                is_settled &= !self.pass_up(now, at);
            }
            if is_settled {
                return;
            }
        }
    }

    /// Passes a shard's SQEs to a shard below or to the world; returns whether there were any.
    fn pass_down(&mut self, now: Nanos, by: usize) -> bool {
        let mut sqes = core::mem::take(&mut self.sqes);
        self.shards[by].take_sq(&mut sqes);
        let mut rest = &sqes[..];
        while let [sqe, tail @ ..] = rest {
            rest = tail;
            if !sqe.linked {
                self.pass_one(now, by, sqe);
                continue;
            }
            let [second, tail @ ..] = tail else { panic!("a linked SQE has a second half") };
            rest = tail;
            self.pass_pair(by, sqe, second);
        }
        let was_any = !sqes.is_empty();
        sqes.clear();
        self.sqes = sqes;
        was_any
    }

    fn pass_one(&mut self, now: Nanos, by: usize, sqe: &Sqe) {
        match asked_of(sqe) {
            Some((below, bio)) => {
                let index = self.asked.insert(Asked { by, token: sqe.token, write: None });
                assert!(below < by, "a device is above those that it is made of");
                self.shards[below].submit_bio(now, Bio { user: u64::from(index), ..bio });
            }
            None => {
                let token = self.token(by, sqe.token);
                self.sq.push(Sqe { token, ..*sqe });
            }
        }
    }

    fn pass_pair(&mut self, by: usize, first: &Sqe, second: &Sqe) {
        if asked_of(second).is_some() {
            let asked = Asked { by, token: first.token, write: Some(*second) };
            let token = Token { owner: Owner::Stack, index: self.asked.insert(asked) };
            self.sq.push(Sqe { token, linked: false, ..*first });
            return;
        }
        assert!(asked_of(first).is_none(), "a mapped device does not run ciphers");
        let token = self.token(by, first.token);
        self.sq.extend([first, second].map(|sqe| Sqe { token, ..*sqe }));
    }

    /// The world's token for an SQE: the shard's own token for the top shard.
    fn token(&mut self, by: usize, token: Token) -> Token {
        if by == self.top() {
            return token;
        }
        let index = self.asked.insert(Asked { by, token, write: None });
        Token { owner: Owner::Stack, index }
    }

    /// Passes the ended bios of a lower shard up as CQEs; returns whether there were any.
    fn pass_up(&mut self, now: Nanos, from: usize) -> bool {
        if from == self.top() {
            return false;
        }
        let mut done = core::mem::take(&mut self.done);
        self.shards[from].take_done(&mut done);
        let was_any = !done.is_empty();
        for done in done.drain(..) {
            let index = u32::try_from(done.user).expect("an index of `asked`");
            self.answer(now, index, done.status);
        }
        self.done = done;
        was_any
    }

    fn answer(&mut self, now: Nanos, index: u32, status: BlkStatus) {
        let Asked { by, token, write } = self.asked.remove(index);
        match write {
            Some(write) if status == BlkStatus::Ok => self.pass_one(now, by, &write),
            _ => self.shards[by].on_cqe(now, Cqe { token, status }),
        }
    }
}

/// Bio and device number of an SQE for a mapped device.
fn asked_of(sqe: &Sqe) -> Option<(usize, Bio)> {
    let of = |dev: DevId, op, sector, len, buf| {
        let bio = Bio { origin: sqe.origin, ..Bio::new(op, sector, len, buf, 0) };
        Some((dev.below()?, bio))
    };
    let len_of = |buf: BufRef| Sector::holding(u64::from(buf.len_bytes));
    match sqe.op {
        SqeOp::Read { dev, sector, buf } => of(dev, Op::Read, sector, len_of(buf), buf),
        SqeOp::Write { dev, sector, buf, fua } => {
            let (below, bio) = of(dev, Op::Write, sector, len_of(buf), buf)?;
            Some((below, Bio { fua, ..bio }))
        }
        // A check has no buffer, and a flush is the only bio without a buffer that reaches the
        // devices below. So a device that fails only reads and writes passes the check.
        SqeOp::Flush { dev } | SqeOp::Check { dev } => {
            of(dev, Op::Flush, Sector(0), Sector(0), BufRef::NONE)
        }
        SqeOp::Discard { dev, sector, len } => of(dev, Op::Discard, sector, len, BufRef::NONE),
        SqeOp::WriteZeroes { dev, sector, len } => {
            of(dev, Op::WriteZeroes, sector, len, BufRef::NONE)
        }
        SqeOp::Fill { .. }
        | SqeOp::Timeout { .. }
        | SqeOp::Log { .. }
        | SqeOp::Wake
        | SqeOp::Crypt { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use alloc::vec;

    use super::*;
    use crate::dm::DeviceArea;
    use crate::dm::crypt::CryptSpec;
    use crate::dm::crypt::pipeline::{Choice, find};
    use crate::dm::delay::{DelaySpec, DelayedArea};
    use crate::dm::error::Error;
    use crate::dm::flakey::{FlakeySpec, ReadFault, WriteFault};
    use crate::dm::linear::Linear;
    use crate::dm::loop_file::Loop;
    use crate::dm::multipath;
    use crate::dm::multipath::target::MultipathTargetSpec;
    use crate::dm::table::{TableExtent, TargetSpec};
    use crate::sq::{CipherId, Direction};

    const NOW: Nanos = Nanos(0);
    const FILE: DevId = DevId(0);

    fn table(target: impl TargetSpec) -> Table {
        Table::new(vec![TableExtent::new(Sector(0), Sector(64), Arc::new(target))])
    }

    fn linear(dev: DevId, start: u64) -> Linear<DevId> {
        Linear { area: DeviceArea { dev, start: Sector(start) } }
    }

    fn crypt(dev: DevId, pipeline: &str) -> CryptSpec {
        CryptSpec {
            dev,
            start: Sector(8),
            iv_offset: 0,
            sector_size_bytes: 512,
            cipher: CipherId(0),
            allow_discards: true,
            fuses_cipher: false,
            pipeline: Choice::Fixed(find(pipeline).unwrap().pipeline),
        }
    }

    fn bio(op: Op, len: u64) -> Bio {
        let len_bytes = if len > 0 { len as u32 * 512 } else { 0 };
        let buf = BufRef { slot: BufRef::FIRST_WORLD_SLOT, offset_bytes: 0, len_bytes };
        Bio::new(op, Sector(0), Sector(len), buf, 7)
    }

    fn stack_of(table: &Table, slots: u32) -> Stack {
        Stack::new(table, Bounce::Slots { slots, slot_bytes: 4096 }).unwrap()
    }

    /// All SQEs for the world, each completed successfully, and the status of the bio.
    fn run(stack: &mut Stack, bio: Bio) -> (Vec<SqeOp>, BlkStatus) {
        run_failing(stack, bio, |_| false)
    }

    fn run_failing(
        stack: &mut Stack,
        bio: Bio,
        fails: fn(&SqeOp) -> bool,
    ) -> (Vec<SqeOp>, BlkStatus) {
        stack.submit_bio(NOW, bio);
        let mut ops = Vec::new();
        let mut sqes = Vec::new();
        let mut done = Vec::new();
        loop {
            stack.take_sq(&mut sqes);
            if sqes.is_empty() {
                break;
            }
            let mut answered = None;
            for sqe in sqes.drain(..) {
                ops.push(sqe.op);
                let status = if fails(&sqe.op) { BlkStatus::NoSpace } else { BlkStatus::Ok };
                if answered.take() != Some(sqe.token) {
                    stack.on_cqe(NOW, Cqe { token: sqe.token, status });
                }
                answered = sqe.linked.then_some(sqe.token);
            }
        }
        stack.take_done(&mut done);
        assert_eq!((done.len(), done[0].user, stack.is_idle(), stack.parked()), (1, 7, true, 0));
        (ops, done[0].status)
    }

    /// crypt at 8 over linear at 100: sector 108 of the file.
    fn crypt_over_linear(pipeline: &str) -> Stack {
        let below = vec![table(linear(FILE, 100))];
        stack_of(&table(crypt(DevId::mapped(0), pipeline)).over(below), 2)
    }

    #[test]
    fn write_is_encrypted_and_then_mapped_by_the_device_below() {
        for pipeline in ["inline", "E", "G"] {
            let (ops, status) = run(&mut crypt_over_linear(pipeline), bio(Op::Write, 4));
            assert_eq!(status, BlkStatus::Ok);
            let [SqeOp::Crypt { direction: Direction::Encrypt, dst, .. }, .., write] = ops[..]
            else {
                panic!("{ops:?}")
            };
            assert_eq!(
                write,
                SqeOp::Write { dev: FILE, sector: Sector(108), buf: dst, fua: false }
            );
        }
    }

    #[test]
    fn read_is_mapped_and_then_decrypted() {
        let read = bio(Op::Read, 4);
        let (ops, _) = run(&mut crypt_over_linear("inline"), read);
        assert_eq!(ops[0], SqeOp::Read { dev: FILE, sector: Sector(108), buf: read.buf });
        assert!(matches!(ops[1], SqeOp::Crypt { direction: Direction::Decrypt, .. }), "{ops:?}");
    }

    #[test]
    fn flush_discard_and_fua_go_all_the_way_down() {
        let mut stack = crypt_over_linear("inline");
        let empty = Bio { buf: BufRef::NONE, ..bio(Op::Flush, 0) };
        assert_eq!(run(&mut stack, empty).0, [SqeOp::Flush { dev: FILE }]);
        let discard = Bio { buf: BufRef::NONE, ..bio(Op::Discard, 4) };
        let at = SqeOp::Discard { dev: FILE, sector: Sector(108), len: Sector(4) };
        assert_eq!(run(&mut stack, discard).0, [at]);
        let (ops, _) = run(&mut stack, Bio { fua: true, ..bio(Op::Write, 4) });
        assert!(matches!(ops[1], SqeOp::Write { fua: true, .. }), "{ops:?}");
    }

    #[test]
    fn failure_of_the_cipher_or_of_the_device_below_ends_the_bio_once() {
        let mut stack = crypt_over_linear("E");
        let is_crypt = |op: &SqeOp| matches!(op, SqeOp::Crypt { .. });
        let (ops, status) = run_failing(&mut stack, bio(Op::Write, 4), is_crypt);
        assert_eq!((ops.len(), status), (1, BlkStatus::NoSpace));
        let is_write = |op: &SqeOp| matches!(op, SqeOp::Write { .. });
        assert_eq!(run_failing(&mut stack, bio(Op::Write, 4), is_write).1, BlkStatus::NoSpace);
        let below = vec![table(Error)];
        let mut stack = stack_of(&table(linear(DevId::mapped(0), 0)).over(below), 0);
        assert_eq!(run(&mut stack, bio(Op::Read, 1)), (vec![], BlkStatus::IoError));
    }

    #[test]
    fn multipath_over_mapped_devices_checks_them_and_is_told_through_the_stack() {
        let words = "1 queue_if_no_path 0 1 1 round-robin 0 2 0 a b".split(' ');
        let multipath = multipath::line::parse(&words.collect::<Vec<_>>()).unwrap();
        let devs = vec![DevId::mapped(0), DevId::mapped(1)];
        let target = MultipathTargetSpec { multipath, devs, requests: None };
        let area = DeviceArea { dev: FILE, start: Sector(0) };
        let reads = ReadFault::Fail;
        let writes = WriteFault::Fail;
        let down = FlakeySpec { area, up_s: 0, down_s: 1, reads, writes };
        let below = vec![table(linear(FILE, 0)), table(down)];
        let mut stack = stack_of(&table(target).over(below), 0);
        for _ in 0..2 {
            stack.submit_bio(NOW, bio(Op::Read, 4));
        }
        stack.message(NOW, 0, "fail_path a").unwrap();
        stack.submit_bio(NOW, bio(Op::Read, 4));
        assert_eq!((stack.in_flight(), stack.parked()), (3, 1));
        assert!(stack.status(0).unwrap().info.ends_with("a F 1 b F 1 "));
        let mut sqes = Vec::new();
        stack.take_sq(&mut sqes);
        let timeout = sqes.iter().find(|sqe| matches!(sqe.op, SqeOp::Timeout { .. })).unwrap();
        let later = Nanos::from_ms(1000);
        stack.on_cqe(later, Cqe { token: timeout.token, status: BlkStatus::Ok });
        assert!(stack.status(0).unwrap().info.ends_with("a F 1 b F 1 "), "it was checked");
        stack.suspend(later, Suspend::Flush);
        assert_eq!((stack.in_flight(), stack.parked()), (2, 0));
        stack.resume_targets(later);
        assert!(stack.status(0).unwrap().table.starts_with("1 queue_if_no_path "));
    }

    #[test]
    fn three_devices_deep_the_lowest_cuts_and_the_middle_waits() {
        let area = DeviceArea { dev: DevId::mapped(0), start: Sector(0) };
        let delayed = DelayedArea { area, delay: Nanos(5) };
        let delay = DelaySpec { read: delayed.clone(), write: delayed.clone(), flush: delayed };
        let lowest = Loop { area: DeviceArea { dev: FILE, start: Sector(0) } };
        let below = vec![table(lowest), table(delay)];
        let mut stack = stack_of(&table(linear(DevId::mapped(1), 0)).over(below), 0);
        let (ops, status) = run(&mut stack, bio(Op::Read, 16));
        assert_eq!((ops[0], status), (SqeOp::Timeout { after: Nanos(5) }, BlkStatus::Ok));
        // dm-loop splits at 4 KiB.
        assert_eq!(ops.len(), 3, "{ops:?}");
    }
}
