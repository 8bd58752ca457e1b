//! The flush at the end of a volume: all devices, regardless of client flushes.

use blockyard_engine::bio::Op;
use blockyard_engine::dm::table::Table;
use blockyard_engine::sq::DevId;

use super::Volume;
use crate::Error;

impl Volume {
    /// Flushes all devices, even after a failure: all acknowledged writes are then on stable
    /// storage.
    ///
    /// # Errors
    /// A file cannot be synchronised, or a flush failed before; the first failure.
    pub fn flush(&self) -> Result<(), Error> {
        let flushed = self.flush_devices();
        // Blocks may lose what a backup has: the latch of losses does not know every failure.
        if let (Err(_), Some(dirty)) = (&flushed, &self.parts.dirty) {
            dirty.mark_all();
        }
        flushed
    }

    fn flush_devices(&self) -> Result<(), Error> {
        // Remote servers first, so that they flush in parallel.
        let asked: Vec<_> =
            self.parts.backend.devices.iter().map(|device| device.ask(Op::Flush)).collect();
        let devices = self.parts.backend.devices.iter().zip(asked);
        let flushed: Vec<_> = devices.map(|(device, asked)| device.flush(asked)).collect();
        // All paths of a line lead to one disk.
        let is_lost = |dev: &DevId| dev.below().is_none() && flushed[usize::from(dev.0)].is_err();
        let table = self.parts.table.get();
        let lines = table.layers().flat_map(Table::extents);
        let paths = lines.map(|line| &line.facts().paths);
        let lost_paths = paths.filter(|paths| paths.iter().all(is_lost));
        let lost_paths: Vec<_> = lost_paths.flatten().map(|dev| usize::from(dev.0)).collect();
        let devices = self.parts.backend.devices.iter().zip(flushed).enumerate();
        let mut counted = devices
            .filter(|(index, (device, _))| !device.is_path || lost_paths.contains(index))
            .map(|(_, (_, flushed))| flushed);
        match self.parts.durability.loss() {
            Some(loss) => Err(Error::Lost(loss)),
            None => counted.find(Result::is_err).unwrap_or(Ok(())),
        }
    }
}

#[cfg(test)]
mod tests;
