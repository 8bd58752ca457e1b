//! `flakey`: a device that alternates between reliable and unreliable seconds
//! (`drivers/md/dm-flakey.c`). Table: `<dev> <start> <up seconds> <down seconds> [<#words>
//! <feature>...]`.
//!
//! | feature | while it is down |
//! |---|---|
//! | none | everything fails |
//! | `error_reads` | reads fail |
//! | `error_writes` | writes, discards, zeroes and flushes fail |
//! | `drop_writes` | writes are acknowledged and dropped |
//! | `corrupt_bio_byte <nth> r <value> 0` | that byte of each read is replaced |
//!
//! Time counts from the loading of the table. The engine sees no bytes, and a write's bytes are
//! never changed. So corruption of writes, of random bytes, and of bios selected by flags is
//! refused.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use alloc::{format, vec};
use core::fmt;

use super::registry::{Arguments, Keys, Needs, Opened, TargetType};
use super::table::{Flushes, Reserve, TargetFacts, TargetSpec};
use super::words::{announced, device_area, number, shown, write_announced};
use super::{DeviceArea, Mapped, Part, Target, TargetCx};
use crate::bio::{BlkStatus, Op, Sector};
use crate::slab::Slab;
use crate::sq::{DevId, Owner, Sqe, SqeOp, Token};
use crate::time::Nanos;

const SECOND_NS: u64 = 1_000_000_000;

/// The target's type.
pub static FLAKEY: TargetType = TargetType {
    name: "flakey",
    arguments: "<device> <start> <up seconds> <down seconds> [<#words> <feature>...]",
    parse: |args, line| Ok(Arc::new(parse(args, line.len)?)),
};

/// Fault of writes in a down period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFault {
    /// No fault.
    None,
    /// Writes fail.
    Fail,
    /// Writes are acknowledged and dropped.
    Drop,
}

/// Fault of reads in a down period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFault {
    /// No fault.
    None,
    /// Reads fail.
    Fail,
    /// Reads are done, and then a byte is replaced.
    Corrupt {
        /// Offset of the byte in the part. Shorter parts are unchanged.
        offset_bytes: u32,
        /// Replacement.
        value: u8,
    },
}

/// Arguments of a line; the device by path, or by number once it is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlakeySpec<D> {
    /// The device below.
    pub area: DeviceArea<D>,
    /// Seconds of an up period.
    pub up_s: u32,
    /// Seconds of a down period. Both together are at least one.
    pub down_s: u32,
    /// Fault of reads in a down period.
    pub reads: ReadFault,
    /// Fault of writes in a down period.
    pub writes: WriteFault,
}

impl<D> FlakeySpec<D> {
    fn is_down(&self, now: Nanos) -> bool {
        let up = u64::from(self.up_s);
        let down = u64::from(self.down_s);
        now.0 / SECOND_NS % (up + down) >= up
    }
}

impl Arguments for FlakeySpec<String> {
    fn write(&self, _: Keys, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, " {} {} {}", self.area, self.up_s, self.down_s)?;
        write_announced(&features(self), out)
    }

    fn needs(&self, len: Sector) -> Needs<'_> {
        Needs::of([&self.area], len)
    }

    fn open(&self, opened: Opened) -> Result<Arc<dyn TargetSpec>, String> {
        let Self { up_s, down_s, reads, writes, .. } = *self;
        Ok(Arc::new(FlakeySpec { area: opened.area(0, &self.area), up_s, down_s, reads, writes }))
    }
}

impl TargetSpec for FlakeySpec<DevId> {
    fn facts(&self) -> TargetFacts {
        TargetFacts { reads_clock: true, ..TargetFacts::new(Flushes::Mapped) }
    }

    fn build(&self, number: u16, _: Reserve) -> Box<dyn Target> {
        Box::new(Flakey::new(self.clone(), number))
    }
}

/// A read with a byte to replace.
#[derive(Debug)]
struct Corrupted {
    part: Part,
    /// Whether the device has completed the read.
    is_read: bool,
}

/// The flakey target.
#[derive(Debug)]
pub struct Flakey {
    spec: FlakeySpec<DevId>,
    /// Its number in the table.
    number: u16,
    corrupted: Slab<Corrupted>,
}

impl Flakey {
    /// Creates the target of a line.
    #[must_use]
    pub fn new(spec: FlakeySpec<DevId>, number: u16) -> Self {
        assert!(spec.up_s > 0 || spec.down_s > 0);
        Self { spec, number, corrupted: Slab::default() }
    }

    fn remapped(&self, part: &Part) -> Mapped {
        Mapped::Remapped { dev: self.spec.area.dev, sector: self.spec.area.start + part.sector }
    }

    fn push(&self, index: u32, op: SqeOp, cx: &mut TargetCx<'_>) {
        let token = Token { owner: Owner::Target(self.number), index };
        let origin = self.corrupted.get(index).part.origin;
        cx.push(Sqe { token, op, linked: false, origin });
    }

    fn read_while_down(&mut self, part: Part, cx: &mut TargetCx<'_>) -> Mapped {
        match self.spec.reads {
            ReadFault::Fail => Mapped::Ended(BlkStatus::IoError),
            ReadFault::Corrupt { offset_bytes, .. } if offset_bytes < part.buf.len_bytes => {
                let index = self.corrupted.insert(Corrupted { part, is_read: false });
                let area = &self.spec.area;
                self.push(index, part.at(area.dev, area.start + part.sector), cx);
                Mapped::Submitted
            }
            ReadFault::None | ReadFault::Corrupt { .. } => self.remapped(&part),
        }
    }
}

impl Target for Flakey {
    fn map(&mut self, part: Part, cx: &mut TargetCx<'_>) -> Mapped {
        if !self.spec.is_down(cx.now) {
            return self.remapped(&part);
        }
        if part.op == Op::Read {
            return self.read_while_down(part, cx);
        }
        match self.spec.writes {
            WriteFault::None => self.remapped(&part),
            WriteFault::Fail => Mapped::Ended(BlkStatus::IoError),
            WriteFault::Drop => Mapped::Ended(BlkStatus::Ok),
        }
    }

    fn on_cqe(&mut self, index: u32, status: BlkStatus, cx: &mut TargetCx<'_>) {
        let read = self.corrupted.at(index);
        if status != BlkStatus::Ok || read.is_read {
            let part = self.corrupted.remove(index).part;
            return cx.end(part.index, status);
        }
        read.is_read = true;
        let ReadFault::Corrupt { offset_bytes, value: byte } = self.spec.reads else {
            unreachable!("only reads to be corrupted are awaited");
        };
        let buf = read.part.buf.part(offset_bytes, 1);
        self.push(index, SqeOp::Fill { buf, byte }, cx);
    }

    fn max_io(&self, _: Op, _: Sector) -> Sector {
        Sector(u64::MAX)
    }

    fn is_idle(&self) -> bool {
        self.corrupted.is_empty()
    }
}

/// Parses the arguments of a line of `len` sectors.
fn parse(args: &[&str], len: u64) -> Result<FlakeySpec<String>, String> {
    let [device, start, up, down, features @ ..] = args else { return Err(FLAKEY.takes()) };
    let area = device_area(device, start, len)?;
    let seconds = |text, what| {
        let value = number(text, what)?;
        u32::try_from(value).map_err(|_| format!("{what} {value} is more than {}", u32::MAX))
    };
    let up_s = seconds(up, "up interval")?;
    let down_s = seconds(down, "down interval")?;
    if up_s == 0 && down_s == 0 {
        return Err("up and down interval are both zero seconds".into());
    }
    let (reads, writes) = parse_features(features)?;
    Ok(FlakeySpec { area, up_s, down_s, reads, writes })
}

fn parse_features(words: &[&str]) -> Result<(ReadFault, WriteFault), String> {
    let mut words = announced(words, "feature words")?;
    if words.is_empty() {
        return Ok((ReadFault::Fail, WriteFault::Fail));
    }
    let mut reads = ReadFault::None;
    let mut writes = WriteFault::None;
    while let [feature, rest @ ..] = words {
        words = rest;
        match *feature {
            "error_reads" if reads == ReadFault::None => reads = ReadFault::Fail,
            "error_writes" if writes == WriteFault::None => writes = WriteFault::Fail,
            "drop_writes" if writes == WriteFault::None => writes = WriteFault::Drop,
            "corrupt_bio_byte" if reads == ReadFault::None => {
                let [nth, direction, value, flags, rest @ ..] = rest else {
                    return Err("corrupt_bio_byte takes `<nth byte> r <value> <flags>`".into());
                };
                reads = parse_corruption([nth, direction, value, flags])?;
                words = rest;
            }
            "error_reads" | "error_writes" | "drop_writes" | "corrupt_bio_byte" => {
                return Err(format!("feature `{feature}` contradicts one before it"));
            }
            "random_read_corrupt" | "random_write_corrupt" => {
                return Err(format!("feature `{feature}` is not supported; corrupt_bio_byte is"));
            }
            other => return Err(format!("feature `{}` is unknown", shown(other))),
        }
    }
    Ok((reads, writes))
}

/// The words of the features.
fn features(spec: &FlakeySpec<String>) -> Vec<String> {
    let mut words: Vec<String> = match spec.reads {
        ReadFault::None => vec![],
        ReadFault::Fail => vec!["error_reads".into()],
        ReadFault::Corrupt { offset_bytes, value } => {
            // The kernel counts bytes from one.
            let nth = u64::from(offset_bytes) + 1;
            vec![
                "corrupt_bio_byte".into(),
                format!("{nth}"),
                "r".into(),
                format!("{value}"),
                "0".into(),
            ]
        }
    };
    match spec.writes {
        WriteFault::None => {}
        WriteFault::Fail => words.push("error_writes".into()),
        WriteFault::Drop => words.push("drop_writes".into()),
    }
    // Both failing is the default without features.
    let is_usual = spec.reads == ReadFault::Fail && spec.writes == WriteFault::Fail;
    if is_usual { vec![] } else { words }
}

fn parse_corruption([nth, direction, value, flags]: [&str; 4]) -> Result<ReadFault, String> {
    match direction {
        "r" => {}
        "w" => {
            return Err("corrupt_bio_byte of writes is not supported: the bytes of a write are \
                        its submitter's and never changed; `r` corrupts reads"
                .into());
        }
        other => return Err(format!("direction `{}` is neither r nor w", shown(other))),
    }
    let nth = number(nth, "number of the byte to corrupt")?;
    let offset_bytes = nth.checked_sub(1).and_then(|offset| u32::try_from(offset).ok());
    let offset_bytes =
        offset_bytes.ok_or(format!("byte {nth} to corrupt is not one of 1 to 2^32"))?;
    let value = number(value, "value of the corrupted byte")?;
    let value = u8::try_from(value).map_err(|_| format!("value {value} is not a byte (0-255)"))?;
    if number(flags, "bio flags")? != 0 {
        return Err("corrupt_bio_byte by bio flags is not supported; the flags must be 0".into());
    }
    Ok(ReadFault::Corrupt { offset_bytes, value })
}

#[cfg(test)]
mod tests;
