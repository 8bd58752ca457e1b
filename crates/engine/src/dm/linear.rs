//! `linear`: a range of a device (`drivers/md/dm-linear.c`). Table: `<dev> <start>`.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use core::fmt;

use super::registry::{Arguments, Keys, Needs, Opened, TargetType};
use super::table::{Flushes, Reserve, TargetFacts, TargetSpec};
use super::words::number;
use super::{DeviceArea, Mapped, Part, Target, TargetCx};
use crate::bio::{BlkStatus, Op, Sector};
use crate::sq::DevId;

/// The target's type.
pub static LINEAR: TargetType = TargetType {
    name: "linear",
    arguments: "<device> <start>",
    parse: |args, _| {
        let [device, start] = args else { return Err(LINEAR.takes()) };
        let start = Sector(number(start, "start sector on the device")?);
        Ok(Arc::new(Linear { area: DeviceArea { dev: String::from(*device), start } }))
    },
};

/// Adds an offset to the sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear<D> {
    /// The device below, and the start of the range on it.
    pub area: DeviceArea<D>,
}

impl Arguments for Linear<String> {
    fn write(&self, _: Keys, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, " {}", self.area)
    }

    fn needs(&self, len: Sector) -> Needs<'_> {
        Needs::of([&self.area], len)
    }

    fn open(&self, opened: Opened) -> Result<Arc<dyn TargetSpec>, String> {
        Ok(Arc::new(Linear { area: opened.area(0, &self.area) }))
    }
}

impl TargetSpec for Linear<DevId> {
    fn facts(&self) -> TargetFacts {
        let flushes = Flushes::To(vec![self.area.dev]);
        TargetFacts { window: Some(self.area), ..TargetFacts::new(flushes) }
    }

    fn build(&self, _: u16, _: Reserve) -> Box<dyn Target> {
        Box::new(*self)
    }
}

impl Target for Linear<DevId> {
    fn map(&mut self, part: Part, _: &mut TargetCx<'_>) -> Mapped {
        Mapped::Remapped { dev: self.area.dev, sector: self.area.start + part.sector }
    }

    fn on_cqe(&mut self, _: u32, _: BlkStatus, _: &mut TargetCx<'_>) {
        unreachable!("linear pushes no SQE");
    }

    fn max_io(&self, _: Op, _: Sector) -> Sector {
        Sector(u64::MAX)
    }
}
