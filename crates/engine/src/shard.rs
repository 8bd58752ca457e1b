//! The loop that every bio passes: split at target borders, map, collect the parts, end.
//!
//! A [`Shard`] owns all state of one core (`dm_submit_bio`, `__split_and_process_bio` and
//! `dm_io_complete` of `drivers/md/dm.c`). A bio that crosses targets or exceeds its target's limit
//! is split into parts. Each part is mapped once, and the bio ends with its last part. A target
//! never calls another target: it returns [`Mapped`] and the shard continues.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

use crate::bio::{Bio, BlkStatus, Done, Failures, Op, Origin, Sector};
use crate::buf::BufRef;
use crate::dm::bounce::{Bounce, PageBounce};
use crate::dm::control::{MessageError, Suspend, TargetControl, TargetStatus};
use crate::dm::crypt::pipeline::{Decisions, Load};
use crate::dm::table::{Reserve, Table};
use crate::dm::{Mapped, Part, Target, TargetCx};
use crate::pages::{Allocator, OutOfPages, Segment};
use crate::slab::Slab;
use crate::sq::{Cqe, DevId, Owner, Sqe, SqeOp, Token};
use crate::time::Nanos;

/// A submitted bio until its last part has ended.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    user: u64,
    op: Op,
    /// Number of parts in flight, plus one while the bio is being split.
    pending: u32,
    status: BlkStatus,
    /// Whether the bio waits for its preflush; the write follows.
    preflush: bool,
}

/// A target and its sectors of the mapped device.
struct Extent {
    start: Sector,
    end: Sector,
    target: Box<dyn Target>,
}

/// The engine of one core: a dm device with its targets and all I/O in flight.
pub struct Shard {
    /// Sorted by start, without gaps.
    extents: Vec<Extent>,
    /// Devices below, for flushes.
    devices: Vec<DevId>,
    /// Targets that map flushes themselves.
    flushed: Vec<u16>,
    /// Time of the current event.
    now: Nanos,
    load: Load,
    in_flight: Slab<InFlight>,
    /// Apart from what each bio touches.
    failures: Box<Failures>,
    /// Writes that wait for their preflush, by index: kept separately, because they are rare and
    /// large.
    preflushed: Vec<(u32, Bio)>,
    /// Pages, if the crypt lines have pages instead of slots.
    pages: Option<PageBounce>,
    sq: Vec<Sqe>,
    done: Vec<Done>,
    /// Parts that targets have ended, for the loop.
    ended: Vec<(u32, BlkStatus)>,
}

impl Shard {
    /// Creates a shard with its own targets, built from `table`. Targets that bounce share
    /// `bounce`.
    ///
    /// # Errors
    /// When the source of pages has too few for the reserves.
    ///
    /// # Panics
    /// When there are fewer bounce slots than targets that need one, or the slots are not a
    /// multiple of 4 KiB, or the reserve has no page.
    pub fn new(table: &Table, bounce: Bounce) -> Result<Self, OutOfPages> {
        let (slots, slot_bytes, mut pages) = match bounce {
            Bounce::Slots { slots, slot_bytes } => (slots, slot_bytes, None),
            Bounce::Pages { spec, sizes, source } => {
                let pages = PageBounce::new(source);
                (0, PageBounce::longest_bytes(sizes), Some((pages, (spec, sizes))))
            }
        };
        assert!(slot_bytes >= 4096 && slot_bytes.is_multiple_of(4096));
        let users = table.bounce_users();
        assert!(slots >= users || pages.is_some(), "one slot per crypt line is the least reserve");
        let share = slots / users.max(1);
        let mut extents = Vec::new();
        let mut next_slot = 0;
        for (number, extent) in (0u16..).zip(table.extents()) {
            let bounces = extent.facts().bounces;
            let slots = next_slot..next_slot + if bounces { share } else { 0 };
            next_slot = slots.end;
            if let Some((pages, client)) = &mut pages {
                pages.add_target(bounces.then_some(*client))?;
            }
            let mut target = extent.target().build(number, Reserve { slots, slot_bytes });
            assert_eq!(target.control().is_some(), extent.facts().has_control, "as its facts say");
            extents.push(Extent { start: extent.start, end: extent.start + extent.len, target });
        }
        Ok(Self {
            extents,
            devices: table.devices(),
            flushed: table.flushed(),
            now: Nanos(0),
            load: Load::default(),
            in_flight: Slab::default(),
            failures: Box::default(),
            preflushed: Vec::new(),
            pages: pages.map(|(pages, _)| pages),
            sq: Vec::new(),
            done: Vec::new(),
            ended: Vec::new(),
        })
    }

    /// Submits a bio. It ends in [`Shard::take_done`], perhaps at once.
    #[inline]
    pub fn submit_bio(&mut self, now: Nanos, bio: Bio) {
        self.now = now;
        let preflush = bio.preflush && bio.op == Op::Write;
        let index = self.in_flight.insert(InFlight {
            user: bio.user,
            op: bio.op,
            pending: 1,
            status: BlkStatus::Ok,
            preflush,
        });
        if preflush {
            self.preflushed.push((index, Bio { preflush: false, ..bio }));
        }
        if preflush || bio.op == Op::Flush {
            self.submit_flush(index, bio.origin);
        } else {
            self.submit_parts(index, &bio);
        }
        self.collect_ended();
        self.end_part(index, BlkStatus::Ok);
    }

    /// Sends one flush to each device below (`num_flush_bios`), through the targets that map
    /// flushes or directly.
    fn submit_flush(&mut self, index: u32, origin: Origin) {
        let pending = self.devices.len() + self.flushed.len();
        self.in_flight.at(index).pending += u32::try_from(pending).expect("a table has few lines");
        for &dev in &self.devices {
            let token = Token { owner: Owner::Shard, index };
            self.sq.push(Sqe { token, op: SqeOp::Flush { dev }, linked: false, origin });
        }
        for at in 0..self.flushed.len() {
            let sector = Sector(0);
            let len = Sector(0);
            let buf = BufRef::NONE;
            let part = Part { index, op: Op::Flush, fua: false, sector, len, buf, origin };
            self.map(usize::from(self.flushed[at]), part);
        }
    }

    #[inline]
    fn submit_parts(&mut self, index: u32, bio: &Bio) {
        let end = bio.sector.0.checked_add(bio.len.0);
        let device_end = self.extents.last().map_or(0, |last| last.end.0);
        if end.is_none_or(|end| end > device_end) || bio.len.0 == 0 {
            self.in_flight.at(index).status = BlkStatus::Invalid;
            return;
        }
        self.load.at_once_bytes = bio.len.bytes();
        let mut done = Sector(0);
        while done < bio.len {
            let sector = bio.sector + done;
            let number = self.extents.partition_point(|extent| extent.end <= sector);
            let extent = &self.extents[number];
            let lower = Sector(sector.0 - extent.start.0);
            let room = (extent.end.0 - sector.0).min(extent.target.max_io(bio.op, lower).0);
            let len = room.min(bio.len.0 - done.0);
            assert!(len > 0, "a target takes at least one sector");
            let part = Part {
                index,
                op: bio.op,
                fua: bio.fua,
                sector: lower,
                len: Sector(len),
                buf: part_buf(bio, done, len),
                origin: bio.origin,
            };
            self.in_flight.at(index).pending += 1;
            self.map(number, part);
            done = done + Sector(len);
        }
    }

    /// Maps a part, already counted as pending, in its target.
    #[inline]
    fn map(&mut self, number: usize, part: Part) {
        let Self { extents, now, load, pages, sq, ended, .. } = self;
        let mut cx = TargetCx { now: *now, load, pages: pages.as_mut(), sq, ended };
        match extents[number].target.map(part, &mut cx) {
            Mapped::Submitted => {}
            Mapped::Remapped { dev, sector } => cx.remap(&part, dev, sector),
            Mapped::Ended(status) => cx.end(part.index, status),
        }
    }

    /// Estimate of the bytes that go to ciphers after these CQEs.
    #[must_use]
    pub fn arriving_bytes(&self, cqes: &[Cqe]) -> u64 {
        let of = |cqe: &Cqe| match cqe.token.owner {
            Owner::Target(number) => {
                let crypt = self.extents[usize::from(number)].target.crypt();
                crypt.map_or(0, |crypt| crypt.arriving_bytes(cqe.token.index))
            }
            Owner::Shard | Owner::Stack | Owner::Pages => 0,
        };
        cqes.iter().map(|cqe| u64::from(of(cqe))).sum()
    }

    /// Handles a CQE.
    #[inline]
    pub fn on_cqe(&mut self, now: Nanos, cqe: Cqe) {
        self.now = now;
        match cqe.token.owner {
            Owner::Shard => self.end_part(cqe.token.index, cqe.status),
            Owner::Stack => unreachable!("the stack takes its own answers"),
            Owner::Target(number) => {
                let Self { extents, load, pages, sq, ended, .. } = self;
                let mut cx = TargetCx { now, load, pages: pages.as_mut(), sq, ended };
                let target = &mut extents[usize::from(number)].target;
                target.on_cqe(cqe.token.index, cqe.status, &mut cx);
                self.collect_ended();
            }
            Owner::Pages => {
                let pages = self.pages.as_mut().expect("only pages have a timer");
                pages.on_timer(&mut self.sq);
                self.resume();
            }
        }
    }

    /// Resumes parts whose pages came back in another way than by a part's end.
    fn resume(&mut self) {
        let Self { extents, now, load, pages: Some(pages), sq, ended, .. } = self else { return };
        for (number, extent) in extents.iter_mut().enumerate() {
            if pages.has_client(number) {
                let pages = Some(&mut *pages);
                let mut cx = TargetCx { now: *now, load, pages, sq, ended };
                extent.target.resume(&mut cx);
            }
        }
    }

    /// Sets the page limit of each crypt line, because clients of the memory came or went
    /// ([`crate::pages::pages_per_client`]). No pages are taken away.
    pub fn set_page_limit(&mut self, now: Nanos, limit_pages: u32) {
        self.now = now;
        if let Some(pages) = &mut self.pages {
            pages.set_limit(limit_pages);
            self.resume();
        }
    }

    /// Sends a message to the target with this number in the table.
    ///
    /// # Errors
    /// When the target refuses it, or takes no messages.
    ///
    /// # Panics
    /// When the table has no such line.
    pub fn message(&mut self, now: Nanos, number: u16, text: &str) -> Result<(), MessageError> {
        let none = Err(MessageError::Invalid("this target takes no messages".into()));
        self.control(now, number, |target, cx| target.message(text, cx)).unwrap_or(none)
    }

    /// Status of the target with this number, if it has one, and the current arguments of its line.
    ///
    /// # Panics
    /// When the table has no such line.
    pub fn status(&mut self, number: u16) -> Option<TargetStatus> {
        let target = self.extents[usize::from(number)].target.control()?;
        Some(TargetStatus { info: target.info(), table: target.table() })
    }

    /// Starts a suspension. It is complete once nothing is in flight, or, without a flush, once all
    /// parts in flight are parked.
    pub fn suspend(&mut self, now: Nanos, how: Suspend) {
        for number in self.numbers() {
            self.control(now, number, |target, cx| target.suspend(how, cx));
        }
    }

    /// Ends a suspension.
    pub fn resume_targets(&mut self, now: Nanos) {
        for number in self.numbers() {
            self.control(now, number, |target, cx| target.resume(cx));
        }
    }

    fn numbers(&self) -> Range<u16> {
        0..u16::try_from(self.extents.len()).expect("a table has few lines")
    }

    /// Runs a function on the control path of a target, if the target has one.
    fn control<T>(
        &mut self,
        now: Nanos,
        number: u16,
        does: impl FnOnce(&mut dyn TargetControl, &mut TargetCx<'_>) -> T,
    ) -> Option<T> {
        self.now = now;
        let Self { extents, load, pages, sq, ended, .. } = self;
        let mut cx = TargetCx { now, load, pages: pages.as_mut(), sq, ended };
        let target = extents[usize::from(number)].target.control()?;
        let done = does(target, &mut cx);
        self.collect_ended();
        Some(done)
    }

    #[inline]
    fn collect_ended(&mut self) {
        while let Some((index, status)) = self.ended.pop() {
            self.end_part(index, status);
        }
    }

    #[inline]
    fn end_part(&mut self, index: u32, status: BlkStatus) {
        let bio = self.in_flight.at(index);
        if status != BlkStatus::Ok {
            bio.status = status;
        }
        bio.pending -= 1;
        if bio.pending == 0 {
            self.end_bio(index);
        }
    }

    fn end_bio(&mut self, index: u32) {
        let bio = self.in_flight.at(index);
        if bio.preflush {
            return self.end_preflush(index);
        }
        let InFlight { user, op, status, .. } = *bio;
        self.in_flight.remove(index);
        if status != BlkStatus::Ok {
            self.failures.count(op, status);
        }
        self.done.push(Done { user, status });
    }

    /// Handles the end of a preflush, successful or not.
    fn end_preflush(&mut self, index: u32) {
        let is_it = |(of, _): &(u32, Bio)| *of == index;
        let place = self.preflushed.iter().position(is_it).expect("put there by its submit");
        let (_, write) = self.preflushed.swap_remove(place);
        let bio = self.in_flight.at(index);
        (bio.preflush, bio.pending) = (false, 1);
        if bio.status == BlkStatus::Ok {
            self.submit_parts(index, &write);
            self.collect_ended();
        }
        self.end_part(index, BlkStatus::Ok);
    }

    /// Sets the current load, until the next call. The initial value is [`Load::default`].
    pub fn set_load(&mut self, load: Load) {
        self.load = load;
    }

    /// Moves new SQEs to the end of `out`.
    #[inline]
    pub fn take_sq(&mut self, out: &mut Vec<Sqe>) {
        take(&mut self.sq, out);
    }

    /// Moves finished bios to the end of `out`.
    #[inline]
    pub fn take_done(&mut self, out: &mut Vec<Done>) {
        take(&mut self.done, out);
    }

    /// Number of bios in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Counts of failed bios.
    #[must_use]
    pub fn failures(&self) -> &Failures {
        &self.failures
    }

    /// Number of parts that wait in their target, for a bounce slot, their time or a path, and of
    /// writes that may be retried on another path. While it is zero, and every cipher SQE has its
    /// CQE, no write needs the front end's buffer any more.
    #[must_use]
    pub fn parked(&self) -> usize {
        let in_targets: usize = self.extents.iter().map(|extent| extent.target.parked()).sum();
        in_targets + self.pages.as_ref().map_or(0, PageBounce::parked)
    }

    /// The pages of a buffer with [`BufRef::is_list`], in the order of its bytes; the last segment
    /// may be longer than the rest of the bytes. The pages stay the same until the part ends.
    ///
    /// # Panics
    /// When no write has this list.
    #[must_use]
    pub fn segments(&self, slot: u32) -> &[Segment] {
        self.pages.as_ref().expect("lists are made of pages").segments(slot)
    }

    /// The page allocators of the crypt lines, in the order of the table.
    pub fn page_allocators(&self) -> impl Iterator<Item = &Allocator<Part>> {
        self.pages.iter().flat_map(PageBounce::allocators)
    }

    /// Counts of the pipeline decisions of all targets.
    #[must_use]
    pub fn decisions(&self) -> Decisions {
        let mut all = Decisions::default();
        let crypts = self.extents.iter().filter_map(|extent| extent.target.crypt());
        crypts.for_each(|crypt| all.add(crypt.decisions()));
        all
    }

    /// Whether nothing is in flight and every target has its whole reserve.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
            && self.extents.iter().all(|extent| extent.target.is_idle())
            && self.pages.as_ref().is_none_or(PageBounce::is_idle)
    }
}

/// Buffer of a part; empty for operations without data.
fn part_buf(bio: &Bio, done: Sector, len_sectors: u64) -> BufRef {
    match bio.op {
        Op::Read | Op::Write => {
            let skip = u32::try_from(done.bytes()).expect("a buffer is shorter than 4 GiB");
            let len = u32::try_from(Sector(len_sectors).bytes()).expect("shorter than 4 GiB");
            bio.buf.part(skip, len)
        }
        Op::Flush | Op::Discard | Op::WriteZeroes => BufRef::NONE,
    }
}

/// Moves all of `from` to the end of `out`. Usually `out` is empty, and the vectors are swapped.
fn take<T>(from: &mut Vec<T>, out: &mut Vec<T>) {
    if out.is_empty() {
        core::mem::swap(from, out);
    } else {
        out.append(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::sync::Arc;

    use crate::dm::DeviceArea;
    use crate::dm::error::Error;
    use crate::dm::linear::Linear;
    use crate::dm::table::{TableExtent, TargetSpec};
    use crate::dm::zero::ZeroSpec;

    const NOW: Nanos = Nanos(0);

    /// Sectors 0–7 linear to device 3 at 100, 8–15 zero, 16–23 error.
    fn shard() -> Shard {
        let linear = Linear { area: DeviceArea { dev: DevId(3), start: Sector(100) } };
        let targets: [Arc<dyn TargetSpec>; 3] =
            [Arc::new(linear), Arc::new(ZeroSpec), Arc::new(Error)];
        let extents = targets.into_iter().zip([0, 8, 16]);
        let extent = |(target, start)| TableExtent::new(Sector(start), Sector(8), target);
        let bounce = Bounce::Slots { slots: 0, slot_bytes: 4096 };
        Shard::new(&Table::new(extents.map(extent).collect()), bounce).unwrap()
    }

    fn bio(op: Op, sector: u64, len: u64) -> Bio {
        let len_bytes = u32::try_from(len * 512).unwrap();
        let buf = BufRef { slot: BufRef::FIRST_WORLD_SLOT, offset_bytes: 0, len_bytes };
        Bio::new(op, Sector(sector), Sector(len), buf, 7)
    }

    fn run(shard: &mut Shard, bio: Bio) -> (Vec<SqeOp>, BlkStatus) {
        shard.submit_bio(NOW, bio);
        let mut sqes = Vec::new();
        shard.take_sq(&mut sqes);
        for sqe in &sqes {
            shard.on_cqe(NOW, Cqe { token: sqe.token, status: BlkStatus::Ok });
        }
        let mut done = Vec::new();
        shard.take_done(&mut done);
        assert_eq!((done.len(), done[0].user, shard.is_idle()), (1, 7, true));
        (sqes.iter().map(|sqe| sqe.op).collect(), done[0].status)
    }

    #[test]
    fn read_across_a_border_is_cut_and_ends_once() {
        let read = bio(Op::Read, 6, 4);
        let (ops, status) = run(&mut shard(), read);
        let linear =
            SqeOp::Read { dev: DevId(3), sector: Sector(106), buf: read.buf.part(0, 1024) };
        assert_eq!(ops, [linear, SqeOp::Fill { buf: read.buf.part(1024, 1024), byte: 0 }]);
        assert_eq!(status, BlkStatus::Ok);
    }

    #[test]
    fn error_in_one_part_fails_the_whole_bio_after_all_parts() {
        let (ops, status) = run(&mut shard(), bio(Op::Write, 0, 24));
        assert_eq!((ops.len(), status), (1, BlkStatus::IoError));
    }

    #[test]
    fn range_outside_of_the_device_reaches_no_target() {
        for (sector, len) in [(24, 1), (23, 2), (u64::MAX, 2), (0, 0)] {
            let mut shard = shard();
            shard.submit_bio(
                NOW,
                Bio { sector: Sector(sector), len: Sector(len), ..bio(Op::Read, 0, 1) },
            );
            let mut done = Vec::new();
            shard.take_done(&mut done);
            assert_eq!(done, [Done { user: 7, status: BlkStatus::Invalid }]);
            assert!(shard.sq.is_empty());
        }
    }

    #[test]
    fn write_with_preflush_waits_until_the_devices_are_flushed() {
        let mut shard = shard();
        shard.submit_bio(NOW, Bio { preflush: true, ..bio(Op::Write, 0, 4) });
        let mut sqes = Vec::new();
        shard.take_sq(&mut sqes);
        assert_eq!(sqes.len(), 1);
        assert_eq!(sqes[0].op, SqeOp::Flush { dev: DevId(3) });
        shard.on_cqe(NOW, Cqe { token: sqes[0].token, status: BlkStatus::Ok });
        sqes.clear();
        shard.take_sq(&mut sqes);
        assert!(matches!(sqes[..], [Sqe { op: SqeOp::Write { .. }, .. }]));
        shard.on_cqe(NOW, Cqe { token: sqes[0].token, status: BlkStatus::Ok });
        assert_eq!((shard.done.len(), shard.is_idle()), (1, true));
    }

    #[test]
    fn write_whose_preflush_failed_is_not_written() {
        let mut shard = shard();
        shard.submit_bio(NOW, Bio { preflush: true, ..bio(Op::Write, 0, 4) });
        let token = shard.sq[0].token;
        shard.sq.clear();
        shard.on_cqe(NOW, Cqe { token, status: BlkStatus::IoError });
        assert!(shard.sq.is_empty());
        assert_eq!(shard.done, [Done { user: 7, status: BlkStatus::IoError }]);
    }

    #[test]
    fn flush_reaches_each_device_once() {
        let flush = Bio { len: Sector(0), buf: BufRef::NONE, ..bio(Op::Flush, 0, 0) };
        assert_eq!(run(&mut shard(), flush).0, [SqeOp::Flush { dev: DevId(3) }]);
    }
}
