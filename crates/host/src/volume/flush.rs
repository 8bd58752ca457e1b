//! The flush at the end of a volume: all devices, whatever a client has asked for.

use std::io;

use blockyard_engine::bio::Op;
use blockyard_engine::dm::table::{Table, TargetSpec};
use blockyard_engine::sq::DevId;

use super::{Device, Volume};
use crate::Error;
use crate::device_thread::Asked;

impl Volume {
    /// Everything written and answered is on stable storage when this returns. All devices are
    /// flushed, also behind one that fails.
    ///
    /// # Errors
    /// When a file cannot be synchronised, or a flush has failed before: the first failure.
    pub fn flush(&self) -> Result<(), Error> {
        // Servers are asked first: they flush at the same time.
        let asked: Vec<_> = self.devices.iter().map(|device| device.ask(Op::Flush)).collect();
        let devices = self.devices.iter().zip(asked);
        let flushed: Vec<_> = devices.map(|(device, asked)| device.flush(asked)).collect();
        // All paths of a line lead to one disk.
        let is_lost = |dev: &DevId| dev.below().is_none() && flushed[usize::from(dev.0)].is_err();
        let lines = self.table.layers().flat_map(Table::extents);
        let lost_paths = lines.filter_map(|line| match &line.target {
            TargetSpec::Multipath(line) => Some(&line.devs).filter(|devs| devs.iter().all(is_lost)),
            _ => None,
        });
        let lost_paths: Vec<_> = lost_paths.flatten().map(|dev| usize::from(dev.0)).collect();
        let devices = self.devices.iter().zip(flushed).enumerate();
        let mut counted = devices
            .filter(|(index, (device, _))| !device.is_path || lost_paths.contains(index))
            .map(|(_, (_, flushed))| flushed);
        match self.durability.loss() {
            Some(loss) => Err(Error::Lost(loss)),
            None => counted.find(Result::is_err).unwrap_or(Ok(())),
        }
    }
}

impl Device {
    /// Asks the server that it is on, if it is on one.
    pub(super) fn ask(&self, op: Op) -> Option<io::Result<Asked<'_>>> {
        self.file.remote().and_then(|_| self.disk()).map(|disk| disk.ask(op))
    }

    fn flush(&self, asked: Option<io::Result<Asked<'_>>>) -> Result<(), Error> {
        let flushed = match asked {
            Some(asked) => asked.and_then(Asked::answer),
            None => self.file.flush(),
        };
        flushed.map_err(|error| Error::io(self.file.path(), "flush", error))
    }
}

#[cfg(test)]
mod tests;
