//! `delay`: delays reads, writes and flushes, each kind to its own device if the line has one
//! (`drivers/md/dm-delay.c`). Table: `<dev> <start> <ms>`, then the same three words for writes and
//! flushes, then the same for flushes.
//!
//! ```text
//! map ─ no delay? ──yes──> remapped
//!          └─no─> timeout ─> remapped
//! ```
//! Discards and zeroes count as writes. Each bio has its own timeout, while the kernel has one
//! timer and a list: the delays are the same.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;

use super::registry::{Arguments, Keys, Needs, Opened, TargetType};
use super::table::{Flushes, Reserve, TargetFacts, TargetSpec};
use super::words::{device_area, number};
use super::{DeviceArea, Mapped, Part, Target, TargetCx};
use crate::bio::{BlkStatus, Op, Sector};
use crate::slab::Slab;
use crate::sq::{DevId, Owner, Sqe, SqeOp, Token};
use crate::time::Nanos;

/// The target's type.
pub static DELAY: TargetType = TargetType {
    name: "delay",
    arguments: "<device> <start> <milliseconds> [<device> <start> <milliseconds>]...",
    parse: |args, line| Ok(Arc::new(parse(args, line.len)?)),
};

/// Device and delay of one kind of bio.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayedArea<D> {
    /// Device and start.
    pub area: DeviceArea<D>,
    /// Delay.
    pub delay: Nanos,
}

/// Arguments of a line; devices by path, or by number once they are open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelaySpec<D> {
    /// Reads.
    pub read: DelayedArea<D>,
    /// Writes, discards, zeroes.
    pub write: DelayedArea<D>,
    /// Flushes.
    pub flush: DelayedArea<D>,
}

impl<D> DelaySpec<D> {
    fn of(&self, op: Op) -> &DelayedArea<D> {
        match op {
            Op::Read => &self.read,
            Op::Write | Op::Discard | Op::WriteZeroes => &self.write,
            Op::Flush => &self.flush,
        }
    }
}

impl Arguments for DelaySpec<String> {
    /// In the shortest form: the words of writes and of flushes only if they differ from the words
    /// before.
    fn write(&self, _: Keys, out: &mut dyn fmt::Write) -> fmt::Result {
        let Self { read, write, flush } = self;
        let count = match () {
            () if flush != write => 3,
            () if write != read => 2,
            () => 1,
        };
        [read, write, flush].into_iter().take(count).try_for_each(|DelayedArea { area, delay }| {
            write!(out, " {area} {}", delay.0.div_ceil(Nanos::from_ms(1).0))
        })
    }

    fn needs(&self, len: Sector) -> Needs<'_> {
        Needs::of([&self.read.area, &self.write.area, &self.flush.area], len)
    }

    fn open(&self, opened: Opened) -> Result<Arc<dyn TargetSpec>, String> {
        let of = |place, DelayedArea { area, delay }: &DelayedArea<String>| DelayedArea {
            area: opened.area(place, area),
            delay: *delay,
        };
        let read = of(0, &self.read);
        let write = of(1, &self.write);
        let flush = of(2, &self.flush);
        Ok(Arc::new(DelaySpec { read, write, flush }))
    }
}

impl TargetSpec for DelaySpec<DevId> {
    fn facts(&self) -> TargetFacts {
        TargetFacts { waits: true, ..TargetFacts::new(Flushes::Mapped) }
    }

    fn build(&self, number: u16, _: Reserve) -> Box<dyn Target> {
        Box::new(Delay::new(self.clone(), number))
    }
}

/// The delay target.
#[derive(Debug)]
pub struct Delay {
    spec: DelaySpec<DevId>,
    /// Its number in the table.
    number: u16,
    /// Parts that wait.
    waiting: Slab<Part>,
    /// Number of waiting writes, whose buffers still belong to the submitter.
    writes: usize,
}

impl Delay {
    /// Creates the target of a line.
    #[must_use]
    pub fn new(spec: DelaySpec<DevId>, number: u16) -> Self {
        Self { spec, number, waiting: Slab::default(), writes: 0 }
    }
}

impl Target for Delay {
    fn map(&mut self, part: Part, cx: &mut TargetCx<'_>) -> Mapped {
        let DelayedArea { area, delay } = self.spec.of(part.op);
        if *delay == Nanos(0) {
            return Mapped::Remapped { dev: area.dev, sector: area.start + part.sector };
        }
        let op = SqeOp::Timeout { after: *delay };
        self.writes += usize::from(part.op == Op::Write);
        let token = Token { owner: Owner::Target(self.number), index: self.waiting.insert(part) };
        cx.push(Sqe { token, op, linked: false, origin: part.origin });
        Mapped::Submitted
    }

    fn on_cqe(&mut self, index: u32, status: BlkStatus, cx: &mut TargetCx<'_>) {
        assert!(status == BlkStatus::Ok, "time passes without errors");
        let part = self.waiting.remove(index);
        self.writes -= usize::from(part.op == Op::Write);
        let area = &self.spec.of(part.op).area;
        cx.remap(&part, area.dev, area.start + part.sector);
    }

    fn max_io(&self, _: Op, _: Sector) -> Sector {
        Sector(u64::MAX)
    }

    fn parked(&self) -> usize {
        self.writes
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// Parses the arguments of a line of `len` sectors.
fn parse(args: &[&str], len: u64) -> Result<DelaySpec<String>, String> {
    if !matches!(args.len(), 3 | 6 | 9) {
        return Err("delay takes `<device> <start> <milliseconds>` one, two or three times: for \
                    everything, for writes and flushes, for flushes"
            .into());
    }
    let delayed = |at: usize| {
        let words = &args[at.min(args.len() - 3)..];
        let delay = Nanos::from_ms(number(words[2], "delay in milliseconds")?);
        Ok::<_, String>(DelayedArea { area: device_area(words[0], words[1], len)?, delay })
    };
    let read = delayed(0)?;
    let write = delayed(3)?;
    let flush = delayed(6)?;
    Ok(DelaySpec { read, write, flush })
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::super::testing::{bio, shard};
    use super::*;
    use crate::shard::Shard;
    use crate::sq::Cqe;

    fn delay() -> Shard {
        let area = |dev, ms| {
            let area = DeviceArea { dev: DevId(dev), start: Sector(10) };
            DelayedArea { area, delay: Nanos::from_ms(ms) }
        };
        let spec = DelaySpec { read: area(0, 0), write: area(1, 20), flush: area(2, 30) };
        shard(spec, 64)
    }

    fn sqes(shard: &mut Shard) -> Vec<Sqe> {
        let mut out = Vec::new();
        shard.take_sq(&mut out);
        out
    }

    fn answer(shard: &mut Shard, sqe: &Sqe) {
        shard.on_cqe(Nanos(0), Cqe { token: sqe.token, status: BlkStatus::Ok });
    }

    #[test]
    fn each_kind_waits_its_time_and_goes_to_its_device() {
        let mut shard = delay();
        for (op, wait, dev) in [(Op::Write, 20, 1), (Op::Discard, 20, 1), (Op::Flush, 30, 2)] {
            let bio = bio(op, 0, if op == Op::Flush { 0 } else { 8 });
            shard.submit_bio(Nanos(0), bio);
            let [timeout] = sqes(&mut shard)[..] else { panic!("{op:?}: one SQE") };
            assert_eq!(timeout.op, SqeOp::Timeout { after: Nanos::from_ms(wait) });
            assert_eq!(shard.parked(), usize::from(op == Op::Write));
            answer(&mut shard, &timeout);
            let [sqe] = sqes(&mut shard)[..] else { panic!("{op:?}: one SQE") };
            let dev = DevId(dev);
            let sector = Sector(10);
            match op {
                Op::Write => {
                    assert_eq!(sqe.op, SqeOp::Write { dev, sector, buf: bio.buf, fua: false });
                }
                Op::Discard => assert_eq!(sqe.op, SqeOp::Discard { dev, sector, len: Sector(8) }),
                _ => assert_eq!(sqe.op, SqeOp::Flush { dev }),
            }
            assert_eq!((shard.parked(), shard.in_flight()), (0, 1));
            answer(&mut shard, &sqe);
            assert!(shard.is_idle());
        }
    }

    #[test]
    fn without_a_delay_nothing_waits() {
        let mut shard = delay();
        let read = bio(Op::Read, 0, 8);
        shard.submit_bio(Nanos(0), read);
        let [sqe] = sqes(&mut shard)[..] else { panic!("one SQE") };
        let dev = DevId(0);
        let sector = Sector(10);
        assert_eq!(sqe.op, SqeOp::Read { dev, sector, buf: read.buf });
    }
}
