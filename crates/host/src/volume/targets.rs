//! Converts a line of a table to a target: opens devices, allocates memory, starts logs.

use std::path::Path;
use std::sync::Arc;

use blockyard_crypt::source::HeaderSource;
use blockyard_engine::bio::Sector;
use blockyard_engine::dm::Leg;
use blockyard_engine::dm::delay::{DelaySpec, DelayedLeg};
use blockyard_engine::dm::flakey::FlakeySpec;
use blockyard_engine::dm::line::{Line, LineTarget, MappedDevice, TableError};
use blockyard_engine::dm::log_writes::LogWritesSpec;
use blockyard_engine::dm::multipath::line::{MultipathSpec, PathSpec, QueueMode};
use blockyard_engine::dm::multipath::stacked::{StackedConfig, Stacking};
use blockyard_engine::dm::multipath::target::MultipathTargetSpec;
use blockyard_engine::dm::striped::StripedSpec;
use blockyard_engine::dm::table::TargetSpec;
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::elevator::none::NONE;
use blockyard_engine::sq::{DevId, LogId};

use super::builder::{Builder, dev_id};
use crate::Error;
use crate::file::{Access, DeviceFile};
use crate::nbd::uri::Uri;
use crate::write_log::WriteLog;

/// Limit of requests that the queue of a multipath line issues (`DM_MQ_QUEUE_DEPTH`, from memory).
const DEPTH_ABOVE_MAX: u32 = 2048;

impl Builder<'_> {
    /// The target of a line.
    pub(super) fn target(
        &mut self,
        line: &Line,
        mappings: &[MappedDevice],
    ) -> Result<TargetSpec, Error> {
        let len = line.len;
        Ok(match &line.target {
            LineTarget::Zero => TargetSpec::Zero,
            LineTarget::Error => TargetSpec::Error,
            LineTarget::Ram => TargetSpec::Ram { dev: self.add_memory(len)? },
            LineTarget::Null(options) => {
                self.can_discard &= options.discard;
                let memory = match options.memory_backed {
                    true => Some(self.add_memory(len)?),
                    false => None,
                };
                TargetSpec::Null { options: options.clone(), memory }
            }
            LineTarget::Linear { device, start } => {
                let leg = Leg { dev: device.clone(), start: Sector(*start) };
                let Leg { dev, start } = self.leg(&leg, len, mappings)?;
                TargetSpec::Linear { dev, start }
            }
            LineTarget::Loop(leg) => TargetSpec::Loop(self.leg(leg, len, mappings)?),
            LineTarget::Striped(StripedSpec { chunk, legs }) => {
                let share = len / legs.len() as u64;
                let legs = legs.iter().map(|leg| self.leg(leg, share, mappings));
                let legs = legs.collect::<Result<_, _>>()?;
                TargetSpec::Striped(StripedSpec { chunk: *chunk, legs })
            }
            LineTarget::Delay(DelaySpec { read, write, flush }) => {
                let mut open = |delayed: &DelayedLeg<String>| {
                    let leg = self.leg(&delayed.leg, len, mappings)?;
                    Ok::<_, Error>(DelayedLeg { leg, delay: delayed.delay })
                };
                let (read, write, flush) = (open(read)?, open(write)?, open(flush)?);
                TargetSpec::Delay(DelaySpec { read, write, flush })
            }
            LineTarget::Flakey(spec) => {
                let leg = self.leg(&spec.leg, len, mappings)?;
                let FlakeySpec { up_s, down_s, reads, writes, .. } = *spec;
                TargetSpec::Flakey(FlakeySpec { leg, up_s, down_s, reads, writes })
            }
            LineTarget::LogWrites { device, log } => {
                let leg = Leg { dev: device.clone(), start: Sector(0) };
                let dev = self.leg(&leg, len, mappings)?.dev;
                TargetSpec::LogWrites(LogWritesSpec { dev, log: self.log(dev, log)? })
            }
            LineTarget::Multipath(multipath) => self.multipath(multipath, len, mappings)?,
            LineTarget::Crypt { device, params } => {
                let start = Sector(params.data_offset_sectors);
                let leg = Leg { dev: device.clone(), start };
                let dev = self.leg(&leg, len, mappings)?.dev;
                self.crypt(dev, params)?
            }
        })
    }

    fn multipath(
        &mut self,
        multipath: &MultipathSpec,
        len: u64,
        mappings: &[MappedDevice],
    ) -> Result<TargetSpec, Error> {
        if multipath.paths().next().is_none() {
            let problem = "a multipath line has no path, so nothing could be read or written, ever";
            return Err(TableError { line: 0, problem: problem.into() }.into());
        }
        let open = |builder: &mut Self, path: &PathSpec| {
            let leg = Leg { dev: path.device.clone(), start: Sector(0) };
            Ok::<_, Error>(builder.leg(&leg, len, mappings)?.dev)
        };
        // A flush of one path covers all.
        self.unflushed_of_paths = Some(Arc::default());
        let devs = multipath.paths().map(|path| open(self, path)).collect::<Result<Vec<_>, _>>()?;
        self.unflushed_of_paths = None;
        let chooses = multipath.queue_mode == QueueMode::Request;
        let requests = chooses.then(|| self.stacked(&devs));
        let multipath = multipath.clone();
        Ok(TargetSpec::Multipath(MultipathTargetSpec { multipath, devs, requests }))
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

    /// A range of `len` sectors on a device, which is opened if necessary.
    fn leg(
        &mut self,
        leg: &Leg<String>,
        len: u64,
        mappings: &[MappedDevice],
    ) -> Result<Leg<DevId>, Error> {
        let start = leg.start;
        let (dev, device) = match self.mapped_at(&leg.dev) {
            Some(mapped) => mapped,
            None => {
                let dev = self.open(&leg.dev, mappings)?;
                (dev, self.backend.devices[usize::from(dev.0)].file.len_bytes() >> 9)
            }
        };
        if start.0.checked_add(len).is_none_or(|end| end > device) {
            let wanted = format!("the table wants {len} from sector {} on", start.0);
            let problem = format!("has {device} sectors, but {wanted}");
            return Err(Error::volume(Path::new(&leg.dev), problem));
        }
        if dev.below().is_none()
            && let Some(remote) = self.backend.devices[usize::from(dev.0)].file.remote()
        {
            remote.require((start + Sector(len)).bytes());
        }
        Ok(Leg { dev, start })
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
        if Uri::is_uri(path) {
            let problem = "is the log of a log-writes line, which must be a file or block device";
            return Err(Error::volume(Path::new(path), problem));
        }
        let file = DeviceFile::open(Path::new(path), Access::ReadWrite, false)?;
        let data = Arc::clone(&self.backend.devices[usize::from(dev.0)].file);
        self.backend.logs.push(WriteLog::begin(file, data)?);
        Ok(LogId(dev_id(self.backend.logs.len() - 1).0))
    }
}
