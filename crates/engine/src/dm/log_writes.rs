//! `log-writes`: passes all I/O on, and keeps a log of all writes in an order that a power cut
//! could have left behind (`drivers/md/dm-log-writes.c`). Table: `<dev> <log dev>`.
//!
//! A write goes to the log when the device has completed it. The log holds it until a flush makes
//! it stable: one that *started* after the write had ended, and that has itself ended. A write with
//! FUA is stable at once and overtakes all held ones.
//!
//! ```text
//! write  map ─> Writing ─────────> Logging ─> end
//! flush  map ─> Collecting ─> Flushing ─> Logging ─> end
//! ```
//! The engine reports the events, and a world keeps and writes the log ([`LogStep`]): the order
//! spans all shards, and the bytes are the world's. Zeroes are written and logged as bytes; a
//! failed write is not logged.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use core::fmt;

use super::registry::{Arguments, DeviceNeed, Keys, Needs, Opened, TargetType, Use};
use super::table::{Flushes, Reserve, TargetFacts, TargetSpec};
use super::{DeviceArea, Mapped, Part, Target, TargetCx};
use crate::bio::{BlkStatus, Op, Sector};
use crate::buf::BufRef;
use crate::slab::Slab;
use crate::sq::{DevId, LogId, LogStep, Owner, Sqe, SqeOp, Token};

/// Longest single write of zeroes; the world's zeroes are at least this long.
pub const ZEROS_MAX_BYTES: u32 = super::crypt::ZEROS_MAX_BYTES;

/// The target's type.
pub static LOG_WRITES: TargetType = TargetType {
    name: "log-writes",
    arguments: "<device> <log device>",
    parse: |args, _| Ok(Arc::new(parse(args)?)),
};

/// Arguments of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogWritesLine {
    /// Path of the device or file.
    pub device: String,
    /// Path of the device or file for the log.
    pub log: String,
}

impl Arguments for LogWritesLine {
    fn write(&self, _: Keys, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, " {} {}", self.device, self.log)
    }

    fn needs(&self, len: Sector) -> Needs<'_> {
        let path = &*self.device;
        let start = Sector(0);
        let using = Use::Passed;
        let devices = vec![DeviceNeed { path, start, len, using }];
        Needs { devices, log: Some(&self.log), ..Needs::default() }
    }

    fn open(&self, opened: Opened) -> Result<Arc<dyn TargetSpec>, String> {
        let log = opened.log.expect("the line needs a log");
        Ok(Arc::new(LogWritesSpec { dev: opened.devs[0], log }))
    }
}

/// A line with its device and its log open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogWritesSpec {
    /// The device below.
    pub dev: DevId,
    /// Log of its writes.
    pub log: LogId,
}

impl TargetSpec for LogWritesSpec {
    fn facts(&self) -> TargetFacts {
        let window = Some(DeviceArea { dev: self.dev, start: Sector(0) });
        TargetFacts { window, ..TargetFacts::new(Flushes::Mapped) }
    }

    fn build(&self, number: u16, _: Reserve) -> Box<dyn Target> {
        Box::new(LogWrites::new(*self, number))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The device writes.
    Writing,
    /// The log notes the start of a flush.
    Collecting,
    /// The device flushes.
    Flushing,
    /// The log stores the write or the flush.
    Logging,
}

/// A write, a discard or a flush in flight.
#[derive(Debug)]
struct LoggedIo {
    part: Part,
    phase: Phase,
    /// Status from the device.
    status: BlkStatus,
}

/// The log-writes target.
#[derive(Debug)]
pub struct LogWrites {
    spec: LogWritesSpec,
    /// Its number in the table.
    number: u16,
    ios: Slab<LoggedIo>,
    /// Number of writes in flight, whose buffers belong to the submitter until the log has them.
    writes: usize,
}

impl LogWrites {
    /// Creates the target of a line.
    #[must_use]
    pub fn new(spec: LogWritesSpec, number: u16) -> Self {
        Self { spec, number, ios: Slab::default(), writes: 0 }
    }

    fn push(&mut self, index: u32, phase: Phase, op: SqeOp, cx: &mut TargetCx<'_>) {
        let io = self.ios.at(index);
        io.phase = phase;
        let token = Token { owner: Owner::Target(self.number), index };
        cx.push(Sqe { token, op, linked: false, origin: io.part.origin });
    }

    fn log(&mut self, index: u32, phase: Phase, step: LogStep, cx: &mut TargetCx<'_>) {
        let buf = self.ios.get(index).part.buf;
        self.push(index, phase, SqeOp::Log { log: self.spec.log, step, buf }, cx);
    }

    fn end(&mut self, index: u32, status: BlkStatus, cx: &mut TargetCx<'_>) {
        let part = self.ios.remove(index).part;
        self.writes -= usize::from(part.op == Op::Write);
        cx.end(part.index, status);
    }

    /// Handles the device's completion of a write or a flush.
    fn on_device(&mut self, index: u32, status: BlkStatus, cx: &mut TargetCx<'_>) {
        let io = self.ios.at(index);
        io.status = status;
        let Part { op, sector, len, fua, .. } = io.part;
        let step = match (op, status) {
            (Op::Flush, status) => LogStep::FlushEnded { is_stable: status == BlkStatus::Ok },
            (_, BlkStatus::Ok) if op == Op::Discard => LogStep::Discarded { sector, len },
            (_, BlkStatus::Ok) => LogStep::Written { sector, fua },
            (_, failed) => return self.end(index, failed, cx),
        };
        self.log(index, Phase::Logging, step, cx);
    }
}

impl Target for LogWrites {
    fn map(&mut self, mut part: Part, cx: &mut TargetCx<'_>) -> Mapped {
        match part.op {
            Op::Read => return Mapped::Remapped { dev: self.spec.dev, sector: part.sector },
            Op::WriteZeroes => {
                let len_bytes = part.len.bytes().try_into().expect("cut to ZEROS_MAX_BYTES");
                (part.op, part.buf) = (Op::Write, BufRef::zeros(len_bytes));
            }
            Op::Write | Op::Discard | Op::Flush => {}
        }
        self.writes += usize::from(part.op == Op::Write);
        let phase = Phase::Writing;
        let status = BlkStatus::Ok;
        let index = self.ios.insert(LoggedIo { part, phase, status });
        match part.op {
            Op::Flush => self.log(index, Phase::Collecting, LogStep::FlushStarts, cx),
            _ => self.push(index, phase, part.at(self.spec.dev, part.sector), cx),
        }
        Mapped::Submitted
    }

    fn on_cqe(&mut self, index: u32, status: BlkStatus, cx: &mut TargetCx<'_>) {
        let io = self.ios.get(index);
        match (io.phase, status) {
            (Phase::Collecting, BlkStatus::Ok) => {
                let flush = SqeOp::Flush { dev: self.spec.dev };
                self.push(index, Phase::Flushing, flush, cx);
            }
            (Phase::Writing | Phase::Flushing, status) => self.on_device(index, status, cx),
            (Phase::Logging, BlkStatus::Ok) => {
                let of_device = io.status;
                self.end(index, of_device, cx);
            }
            (Phase::Collecting | Phase::Logging, failed) => self.end(index, failed, cx),
        }
    }

    fn max_io(&self, op: Op, _: Sector) -> Sector {
        match op {
            Op::WriteZeroes => Sector::holding(u64::from(ZEROS_MAX_BYTES)),
            _ => Sector(u64::MAX),
        }
    }

    fn parked(&self) -> usize {
        self.writes
    }

    fn is_idle(&self) -> bool {
        self.ios.is_empty()
    }
}

/// Parses the arguments of a line.
fn parse(args: &[&str]) -> Result<LogWritesLine, String> {
    match args {
        [device, log] if device != log => {
            Ok(LogWritesLine { device: (*device).into(), log: (*log).into() })
        }
        [_, _] => {
            Err("the device and its log are the same; the log needs a device or file of its \
                       own"
            .into())
        }
        _ => Err(LOG_WRITES.takes()),
    }
}

#[cfg(test)]
mod tests;
