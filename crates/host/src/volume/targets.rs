//! Converts a line of a table to a target: opens devices, allocates memory, starts logs.

use std::path::Path;
use std::sync::Arc;

use blockyard_crypt::source::HeaderSource;
use blockyard_engine::dm::line::{Line, MappedDevice, TableError};
use blockyard_engine::dm::multipath::stacked::{StackedConfig, Stacking};
use blockyard_engine::dm::registry::{DeviceNeed, Opened, Use};
use blockyard_engine::dm::table::TargetSpec;
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::elevator::none::NONE;
use blockyard_engine::sq::{DevId, LogId};

use super::builder::{Builder, dev_id};
use crate::Error;
use crate::file::{Access, DeviceFile};
use crate::remote;
use crate::write_log::WriteLog;

/// Limit of requests that the queue of a multipath line issues (`DM_MQ_QUEUE_DEPTH`, from memory).
const DEPTH_ABOVE_MAX: u32 = 2048;

impl Builder<'_> {
    /// The target of a line.
    pub(super) fn target(
        &mut self,
        line: &Line,
        mappings: &[MappedDevice],
    ) -> Result<Arc<dyn TargetSpec>, Error> {
        let needs = line.needs();
        let is_path = |need: &DeviceNeed<'_>| matches!(need.using, Use::Path(_));
        // A flush of one path covers all.
        self.unflushed_of_paths = needs.devices.iter().any(is_path).then(Arc::default);
        let devs = needs.devices.iter().map(|need| self.device(need, mappings));
        let devs = devs.collect::<Result<Vec<DevId>, Error>>();
        self.unflushed_of_paths = None;
        self.target_on(line, devs?)
    }

    /// The target of a line whose devices are open.
    pub(super) fn target_on(
        &mut self,
        line: &Line,
        devs: Vec<DevId>,
    ) -> Result<Arc<dyn TargetSpec>, Error> {
        let needs = line.needs();
        let refused = |problem: String| Error::from(TableError { line: 0, problem });
        let first = || {
            let problem = format!("{} needs a device", line.target.name);
            devs.first().copied().ok_or_else(|| refused(problem))
        };
        let memory = needs.memory.map(|len| self.add_memory(len)).transpose()?;
        let log = needs.log.map(|path| self.log(first()?, path)).transpose()?;
        let cipher = needs.cipher.map(|params| {
            let problem = format!("{} needs a cipher of an unknown type", line.target.name);
            let params = params.downcast_ref().ok_or_else(|| refused(problem))?;
            self.cipher(first()?, params)
        });
        let queue = (needs.queue && !devs.is_empty()).then(|| self.stacked(&devs));
        let opened = Opened { memory, log, cipher: cipher.transpose()?, queue, devs };
        line.arguments.open(opened).map_err(refused)
    }

    /// The queue of a multipath line over these paths. Each path has tags for a device's depth, and
    /// the queue above for all paths together.
    fn stacked(&self, paths: &[DevId]) -> StackedConfig {
        let asked = self.options.scheduling.elevator.clone();
        let elevator = asked.unwrap_or_else(|| ElevatorSpec::of(&NONE));
        let depth = self.queue_depth(&elevator);
        let count = u32::try_from(paths.len()).expect("a line has few paths");
        let depth_above = depth.saturating_mul(count).min(depth.max(DEPTH_ABOVE_MAX));
        let files = paths.iter().filter(|dev| dev.below().is_none());
        let mut files = files.map(|dev| &self.backend.devices[usize::from(dev.0)].file);
        let rotational = files.any(|file| file.facts().rotational);
        let upper = self.queue_config(&elevator, depth_above, rotational);
        let lower = self.queue_config(&ElevatorSpec::of(&NONE), depth, rotational);
        StackedConfig { upper, elevator, lower, stacking: Stacking::TODAY }
    }

    /// The device of a range, which is opened if necessary.
    fn device(&mut self, need: &DeviceNeed<'_>, mappings: &[MappedDevice]) -> Result<DevId, Error> {
        let DeviceNeed { path, start, len, .. } = *need;
        let (dev, device) = match self.mapped_at(path) {
            Some(mapped) => mapped,
            None => {
                let dev = self.open(path, mappings)?;
                (dev, self.backend.devices[usize::from(dev.0)].file.len_bytes() >> 9)
            }
        };
        if start.0.checked_add(len.0).is_none_or(|end| end > device) {
            let wanted = format!("the table wants {} from sector {} on", len.0, start.0);
            let problem = format!("has {device} sectors, but {wanted}");
            return Err(Error::volume(Path::new(path), problem));
        }
        if dev.below().is_none()
            && let Some(remote) = self.backend.devices[usize::from(dev.0)].file.remote()
        {
            remote.require((start + len).bytes());
        }
        Ok(dev)
    }

    fn log(&mut self, dev: DevId, path: &str) -> Result<LogId, Error> {
        if self.options.read_only {
            let problem = "is the log of a log-writes line, which must be written; leave \
                           `read_only` out";
            return Err(Error::volume(Path::new(path), problem));
        }
        if dev.below().is_some() {
            let problem = "is the log of a log-writes line whose device is mapped in this table; \
                           only a file or block device can be logged";
            return Err(Error::volume(Path::new(path), problem));
        }
        if remote::is_remote(Path::new(path)) {
            let problem = "is the log of a log-writes line, which must be a file or block device";
            return Err(Error::volume(Path::new(path), problem));
        }
        let file = DeviceFile::open(Path::new(path), Access::ReadWrite, false)?;
        let data = Arc::clone(&self.backend.devices[usize::from(dev.0)].file);
        self.backend.logs.push(WriteLog::begin(file, data)?);
        Ok(LogId(dev_id(self.backend.logs.len() - 1).0))
    }
}
