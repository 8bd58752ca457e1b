//! A device of a volume: its file, its mapping if any, and its queue.

use std::io;
use std::sync::Arc;

use blockyard_engine::bio::Op;
use blockyard_engine::elevator::ElevatorSpec;

use crate::Error;
use crate::device_thread::{Asked, DeviceThread};
use crate::disk::DeviceQueue;
use crate::file::DeviceFile;
use crate::file::mapping::Mapping;

/// One device.
pub(crate) struct Device {
    pub(crate) file: Arc<DeviceFile>,
    pub(crate) mapping: Option<Mapping>,
    pub(crate) queue: DeviceQueue,
    pub(crate) elevator: ElevatorSpec,
    /// The device is one of several paths to a disk.
    pub(crate) is_path: bool,
}

impl Device {
    /// The thread of an elevator, or of the connection to a server.
    pub(crate) fn thread(&self) -> Option<&DeviceThread> {
        match &self.queue {
            DeviceQueue::Shared(thread) => Some(thread),
            DeviceQueue::Bypassed | DeviceQueue::PerConnection(_) => None,
        }
    }

    pub(crate) fn has_queue(&self) -> bool {
        !matches!(self.queue, DeviceQueue::Bypassed)
    }

    /// Sends an operation to its server, if it is remote.
    pub(crate) fn ask(&self, op: Op) -> Option<io::Result<Asked<'_>>> {
        self.file.remote().and_then(|_| self.thread()).map(|thread| thread.ask(op))
    }

    /// Flushes the device, or waits for the server's answer to `asked`.
    pub(crate) fn flush(&self, asked: Option<io::Result<Asked<'_>>>) -> Result<(), Error> {
        let flushed = match asked {
            Some(asked) => asked.and_then(Asked::answer),
            None => self.file.flush(),
        };
        flushed.map_err(|error| Error::io(self.file.path(), "flush", error))
    }
}
