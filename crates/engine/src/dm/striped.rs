//! `striped`: chunks alternate between the devices, as in RAID-0 (`drivers/md/dm-stripe.c`). Table:
//! `<#devs> <chunk sectors> [<dev> <start>]...`.
//!
//! ```text
//! chunk of the target   0  1  2  3  4  5       device = chunk % 3
//! device                0  1  2  0  1  2       its chunk = chunk / 3
//! chunk of the device   0  0  0  1  1  1
//! ```
//! A bio is split at chunk borders; a flush goes to every device.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use super::registry::{Arguments, Keys, Needs, Opened, TargetType};
use super::table::{Flushes, Reserve, TargetFacts, TargetSpec};
use super::words::{device_area, number};
use super::{DeviceArea, Mapped, Part, Target, TargetCx};
use crate::bio::{BlkStatus, Op, Sector};
use crate::sq::DevId;

/// Least chunk: a page, as the kernel's documentation requires.
const CHUNK_MIN_SECTORS: u64 = 8;

/// The target's type.
pub static STRIPED: TargetType = TargetType {
    name: "striped",
    arguments: "<#devices> <chunk sectors> [<device> <start>]...",
    parse: |args, line| Ok(Arc::new(parse(args, line.len)?)),
};

/// Arguments of a line; devices by path, or by number once they are open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripedSpec<D> {
    /// Length of a chunk.
    pub chunk: Sector,
    /// Devices, at least one, with equal shares of the target.
    pub areas: Vec<DeviceArea<D>>,
}

impl Arguments for StripedSpec<String> {
    fn write(&self, _: Keys, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, " {} {}", self.areas.len(), self.chunk.0)?;
        self.areas.iter().try_for_each(|area| write!(out, " {area}"))
    }

    fn needs(&self, len: Sector) -> Needs<'_> {
        Needs::of(&self.areas, Sector(len.0 / self.areas.len() as u64))
    }

    fn open(&self, opened: Opened) -> Result<Arc<dyn TargetSpec>, String> {
        let areas = self.areas.iter().enumerate().map(|(place, area)| opened.area(place, area));
        Ok(Arc::new(StripedSpec { chunk: self.chunk, areas: areas.collect() }))
    }
}

impl TargetSpec for StripedSpec<DevId> {
    fn facts(&self) -> TargetFacts {
        TargetFacts::new(Flushes::To(self.areas.iter().map(|area| area.dev).collect()))
    }

    fn build(&self, _: u16, _: Reserve) -> Box<dyn Target> {
        Box::new(Striped::new(self.clone()))
    }
}

/// The striped target.
#[derive(Debug)]
pub struct Striped {
    spec: StripedSpec<DevId>,
}

impl Striped {
    /// Creates the target of a line.
    #[must_use]
    pub fn new(spec: StripedSpec<DevId>) -> Self {
        assert!(spec.chunk.0 > 0 && !spec.areas.is_empty());
        Self { spec }
    }
}

impl Target for Striped {
    fn map(&mut self, part: Part, _: &mut TargetCx<'_>) -> Mapped {
        let StripedSpec { chunk, areas } = &self.spec;
        let number = part.sector.0 / chunk.0;
        let inside = part.sector.0 % chunk.0;
        let count = areas.len() as u64;
        let area =
            &areas[usize::try_from(number % count).expect("less than the number of stripes")];
        Mapped::Remapped {
            dev: area.dev,
            sector: area.start + Sector(number / count * chunk.0 + inside),
        }
    }

    fn on_cqe(&mut self, _: u32, _: BlkStatus, _: &mut TargetCx<'_>) {
        unreachable!("striped pushes no SQE");
    }

    fn max_io(&self, _: Op, sector: Sector) -> Sector {
        sector.to_border(self.spec.chunk)
    }
}

/// Parses the arguments of a line of `len` sectors.
fn parse(args: &[&str], len: u64) -> Result<StripedSpec<String>, String> {
    let [count, chunk, areas @ ..] = args else { return Err(STRIPED.takes()) };
    let count = number(count, "number of devices")?;
    let chunk = number(chunk, "chunk size")?;
    if count == 0 {
        return Err("it announces 0 devices; the line needs one at least".into());
    }
    if areas.len() as u64 != count.saturating_mul(2) {
        return Err(format!(
            "it announces {count} devices, but {} words follow; each device is `<device> <start>`",
            areas.len()
        ));
    }
    if chunk < CHUNK_MIN_SECTORS {
        return Err(format!(
            "the chunk has {chunk} sectors; it must have {CHUNK_MIN_SECTORS} (4 KiB) at least"
        ));
    }
    if count.checked_mul(chunk).is_none_or(|row| !len.is_multiple_of(row)) {
        return Err(format!(
            "its length {len} is not a multiple of {count} chunks of {chunk} sectors"
        ));
    }
    let share = len / count;
    let areas = areas.chunks_exact(2).map(|words| device_area(words[0], words[1], share));
    let areas = areas.collect::<Result<Vec<_>, _>>()?;
    Ok(StripedSpec { chunk: Sector(chunk), areas })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{bio, run, shard};
    use super::*;
    use crate::sq::SqeOp;

    fn striped(len: u64) -> crate::shard::Shard {
        let area = |dev, start| DeviceArea { dev: DevId(dev), start: Sector(start) };
        let areas = alloc::vec![area(0, 100), area(1, 0), area(2, 7)];
        shard(StripedSpec { chunk: Sector(8), areas }, len)
    }

    #[test]
    fn chunks_go_round_the_devices() {
        let read = bio(Op::Read, 4, 32);
        let (ops, status) = run(&mut striped(48), read);
        let parts = [(0, 104, 0, 4), (1, 0, 4, 8), (2, 7, 12, 8), (0, 108, 20, 8), (1, 8, 28, 4)];
        let expected = parts.map(|(dev, sector, skip, len)| SqeOp::Read {
            dev: DevId(dev),
            sector: Sector(sector),
            buf: read.buf.part(skip * 512, len * 512),
        });
        assert_eq!((&ops[..], status), (&expected[..], BlkStatus::Ok));
    }

    #[test]
    fn flush_goes_to_every_device() {
        let flush = bio(Op::Flush, 0, 0);
        let (ops, _) = run(&mut striped(48), flush);
        assert_eq!(ops, [0, 1, 2].map(|dev| SqeOp::Flush { dev: DevId(dev) }));
    }
}
