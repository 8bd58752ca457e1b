//! `error`: fails every bio (`drivers/md/dm-target.c`, `io_err`). Table: no arguments.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use core::fmt;

use super::registry::{Arguments, Keys, Needs, Opened, TargetType};
use super::table::{Flushes, Reserve, TargetFacts, TargetSpec};
use super::{Mapped, Part, Target, TargetCx, words};
use crate::bio::{BlkStatus, Op, Sector};

/// The target's type.
pub static ERROR: TargetType = TargetType {
    name: "error",
    arguments: "",
    parse: |args, _| {
        words::none(args)?;
        Ok(Arc::new(Error))
    },
};

/// Fails everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error;

impl Arguments for Error {
    fn write(&self, _: Keys, _: &mut dyn fmt::Write) -> fmt::Result {
        Ok(())
    }

    fn needs(&self, _: Sector) -> Needs<'_> {
        Needs::default()
    }

    fn open(&self, _: Opened) -> Result<Arc<dyn TargetSpec>, String> {
        Ok(Arc::new(*self))
    }
}

impl TargetSpec for Error {
    fn facts(&self) -> TargetFacts {
        TargetFacts::new(Flushes::To(vec![]))
    }

    fn build(&self, _: u16, _: Reserve) -> Box<dyn Target> {
        Box::new(*self)
    }
}

impl Target for Error {
    fn map(&mut self, _: Part, _: &mut TargetCx<'_>) -> Mapped {
        Mapped::Ended(BlkStatus::IoError)
    }

    fn on_cqe(&mut self, _: u32, _: BlkStatus, _: &mut TargetCx<'_>) {
        unreachable!("error pushes no SQE");
    }

    fn max_io(&self, _: Op, _: Sector) -> Sector {
        Sector(u64::MAX)
    }
}
