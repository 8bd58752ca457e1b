//! `protect`: a range of a device with sectors that are never written, as VeraCrypt protects a
//! hidden volume. Table: `<dev> <start> <first sector> <sectors> [<first sector> <sectors>...]`.
//!
//! ```text
//!   writable ── a write, zeroes or a discard touches protected sectors ──> read-only, until closed
//! ```
//! That operation fails, and so does every later one; reads and flushes continue. The operation is
//! probably one of many by a file system that does not know of the protected sectors. The state
//! belongs to the open line: the targets of all shards share it. The target is not in the engine,
//! because it reports to the operator.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use blockyard_engine::bio::{BlkStatus, Op, Sector};
use blockyard_engine::dm::registry::{Arguments, Keys, LineRange, Needs, Opened, TargetType};
use blockyard_engine::dm::table::{Flushes, Reserve, TargetFacts, TargetSpec};
use blockyard_engine::dm::words::{device_area, number};
use blockyard_engine::dm::{DeviceArea, Mapped, Part, Target, TargetCx};
use blockyard_engine::sq::DevId;

use crate::log::{Event, Kind};

/// Limit of the ranges of a line: every write is compared with all of them.
const RANGES_MAX: usize = 16;

/// The target's type.
pub static PROTECT: TargetType = TargetType {
    name: "protect",
    arguments: "<device> <start> <first sector> <sectors> [<first sector> <sectors>...]",
    parse: |args, line| Ok(Arc::new(parse(args, line)?)),
};

/// Arguments of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProtectArguments {
    pub(crate) area: DeviceArea<String>,
    /// Sectors of the line that are never written.
    pub(crate) protected: Vec<Range<u64>>,
    /// Name of the volume for messages; `None`: that of the device. Not a part of the table.
    pub(crate) volume: Option<String>,
}

impl Arguments for ProtectArguments {
    fn write(&self, _: Keys, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, " {}", self.area)?;
        let mut ranges = self.protected.iter();
        ranges.try_for_each(|range| write!(out, " {} {}", range.start, range.end - range.start))
    }

    fn needs(&self, len: Sector) -> Needs<'_> {
        Needs::of([&self.area], len)
    }

    fn open(&self, opened: Opened) -> Result<Arc<dyn TargetSpec>, String> {
        let area = opened.area(0, &self.area);
        let name = self.volume.clone().unwrap_or_else(|| self.area.dev.clone());
        let protected = self.protected.clone();
        let protection = Protection { name, protected, ..Protection::default() };
        Ok(Arc::new(ProtectSpec { area, protection: Arc::new(protection) }))
    }
}

/// A line with its device open.
#[derive(Debug)]
pub(crate) struct ProtectSpec {
    area: DeviceArea<DevId>,
    protection: Arc<Protection>,
}

impl ProtectSpec {
    /// The operation that made the line read-only.
    pub(crate) fn refused(&self) -> Option<RefusedWrite> {
        *self.protection.lock()
    }
}

impl TargetSpec for ProtectSpec {
    fn facts(&self) -> TargetFacts {
        let flushes = Flushes::To(vec![self.area.dev]);
        TargetFacts { window: Some(self.area), ..TargetFacts::new(flushes) }
    }

    fn build(&self, _: u16, _: Reserve) -> Box<dyn Target> {
        Box::new(Protect { area: self.area, protection: Arc::clone(&self.protection) })
    }
}

/// The first operation that would have changed protected sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedWrite {
    /// Its first sector.
    pub sector: u64,
    /// Its length.
    pub sectors: u64,
    /// Its time.
    pub at: SystemTime,
}

/// The state of a line, shared by the targets of all shards.
#[derive(Debug, Default)]
struct Protection {
    name: String,
    protected: Vec<Range<u64>>,
    /// Whether `refused` is set.
    is_read_only: AtomicBool,
    refused: Mutex<Option<RefusedWrite>>,
}

impl Protection {
    fn lock(&self) -> MutexGuard<'_, Option<RefusedWrite>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a change of these sectors is refused.
    fn refuses(&self, sector: Sector, len: Sector) -> bool {
        if self.is_read_only.load(Ordering::Acquire) {
            return true;
        }
        let end = sector.0.saturating_add(len.0);
        let touches = |range: &Range<u64>| sector.0 < range.end && range.start < end;
        if !self.protected.iter().any(touches) {
            return false;
        }
        self.close(RefusedWrite { sector: sector.0, sectors: len.0, at: SystemTime::now() });
        true
    }

    /// Ends the writable state, before the operation fails: its submitter may act on the failure.
    fn close(&self, refused: RefusedWrite) {
        let mut first = self.lock();
        if first.is_some() {
            return;
        }
        *first = Some(refused);
        self.is_read_only.store(true, Ordering::Release);
        drop(first);
        let RefusedWrite { sector, sectors, .. } = refused;
        Event::new(Kind::WriteRefused).say(format_args!(
            "{}: a write to sectors {sector} to {} was refused, because it would change protected \
             sectors; all writes to this line of the table fail from now on, until the volume is \
             closed",
            self.name,
            sector.saturating_add(sectors - 1)
        ));
    }
}

/// The target of a shard.
struct Protect {
    area: DeviceArea<DevId>,
    protection: Arc<Protection>,
}

impl Target for Protect {
    fn map(&mut self, part: Part, _: &mut TargetCx<'_>) -> Mapped {
        let is_refused = match part.op {
            Op::Read | Op::Flush => false,
            Op::Write | Op::WriteZeroes | Op::Discard => {
                self.protection.refuses(part.sector, part.len)
            }
        };
        if is_refused {
            return Mapped::Ended(BlkStatus::IoError);
        }
        Mapped::Remapped { dev: self.area.dev, sector: self.area.start + part.sector }
    }

    fn on_cqe(&mut self, _: u32, _: BlkStatus, _: &mut TargetCx<'_>) {
        unreachable!("protect pushes no SQE");
    }

    fn max_io(&self, _: Op, _: Sector) -> Sector {
        Sector(u64::MAX)
    }
}

fn parse(args: &[&str], line: LineRange) -> Result<ProtectArguments, String> {
    let [device, start, ranges @ ..] = args else { return Err(PROTECT.takes()) };
    let (pairs, []) = ranges.as_chunks::<2>() else { return Err(PROTECT.takes()) };
    if pairs.is_empty() || pairs.len() > RANGES_MAX {
        return Err(format!("{}, with at most {RANGES_MAX} ranges", PROTECT.takes()));
    }
    let area = device_area(device, start, line.len)?;
    let protected = pairs.iter().map(|pair| protected(pair, line.len));
    Ok(ProtectArguments { area, protected: protected.collect::<Result<_, _>>()?, volume: None })
}

fn protected([first, len]: &[&str; 2], line_len: u64) -> Result<Range<u64>, String> {
    let start = number(first, "first protected sector")?;
    let len = number(len, "number of protected sectors")?;
    match start.checked_add(len) {
        Some(end) if start < end && end <= line_len => Ok(start..end),
        _ => Err(format!(
            "{len} protected sectors from sector {start} on are no range of a line of {line_len} \
             sectors"
        )),
    }
}

#[cfg(test)]
mod tests;
