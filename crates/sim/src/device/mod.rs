//! Models of devices: a command starts, time passes, it ends.
//!
//! A device tells the time of its next event ([`Device::next_event`]); the world then calls
//! [`Device::advance`] and collects the ended commands. Devices move no bytes.

pub mod cluster;
pub mod disk;
pub mod flash;
pub mod memory;

use blockyard_engine::bio::Sector;
use blockyard_engine::time::Nanos;

use disk::DiskCounters;

/// Operation of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CommandOp {
    /// Transfer to the host.
    Read,
    /// Transfer from the host.
    Write {
        /// On the medium before the end of the command.
        fua: bool,
    },
    /// At the end of the flush, all commands that ended before it are on the medium.
    Flush,
}

/// A command of a device's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Command {
    /// Returned at its end.
    pub tag: u32,
    /// Operation.
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
    /// The command is outside the device, or exceeds its queue depth.
    fn start(&mut self, now: Nanos, command: Command);

    /// Time of the next event without further commands.
    fn next_event(&self) -> Option<Nanos>;

    /// Advances to `now`; adds the tags of ended commands with their times, in order of time.
    fn advance(&mut self, now: Nanos, ended: &mut Vec<(Nanos, u32)>);

    /// Counters of a spinning disk.
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
