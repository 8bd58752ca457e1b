//! Models of devices: a command starts, time passes, it ends.
//!
//! A device says when something happens in it next ([`Device::next_event`]); the world calls
//! [`Device::advance`] then, and collects what has ended. Devices move no bytes.

pub mod disk;
pub mod flash;
pub mod memory;

use blockyard_engine::bio::Sector;
use blockyard_engine::time::Nanos;

use disk::DiskCounters;

/// What a device is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandOp {
    /// Transfer to the host.
    Read,
    /// Transfer from the host.
    Write {
        /// On the medium before it ends.
        fua: bool,
    },
    /// All that had ended before is on the medium when it ends.
    Flush,
}

/// A command of a device's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Given back when it ends.
    pub tag: u32,
    /// What to do.
    pub op: CommandOp,
    /// First sector.
    pub sector: Sector,
    /// Length in sectors; zero for a flush.
    pub sectors: u32,
}

/// A device.
pub trait Device {
    /// Accepts a command.
    ///
    /// # Panics
    /// When it is outside of the device, or more are in flight than the device takes.
    fn start(&mut self, now: Nanos, command: Command);

    /// When something happens in it next, if nothing is started before.
    fn next_event(&self) -> Option<Nanos>;

    /// Lets the time pass up to `now`, and adds the tags of commands that have ended, with the time
    /// of each, in that order.
    fn advance(&mut self, now: Nanos, ended: &mut Vec<(Nanos, u32)>);

    /// What a spinning disk has done.
    fn disk_counters(&self) -> Option<DiskCounters> {
        None
    }
}

impl Device for Box<dyn Device> {
    fn start(&mut self, now: Nanos, command: Command) {
        self.as_mut().start(now, command);
    }

    fn next_event(&self) -> Option<Nanos> {
        self.as_ref().next_event()
    }

    fn advance(&mut self, now: Nanos, ended: &mut Vec<(Nanos, u32)>) {
        self.as_mut().advance(now, ended);
    }

    fn disk_counters(&self) -> Option<DiskCounters> {
        self.as_ref().disk_counters()
    }
}
