//! The devices of a volume: each is opened once, with direct I/O, a queue and an elevator as its
//! lines require.

use std::path::Path;
use std::sync::Arc;

use blockyard_crypt::source::HeaderSource;
use blockyard_engine::bio::Sector;
use blockyard_engine::dm::line::MappedDevice;
use blockyard_engine::dm::multipath::line::QueueMode;
use blockyard_engine::dm::registry::{DeviceNeed, Use};
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::elevator::none::NONE;
use blockyard_engine::mq::{Limits, QueueConfig};
use blockyard_engine::sq::DevId;

use super::builder::{Builder, dev_id};
use super::{Scheduling, VolumeOptions};
use crate::Error;
use crate::backend::Device;
use crate::disk::{self, DeviceQueue, default_elevator};
use crate::file::mapping::Mapping;
use crate::file::{Access, BackingKind, DeviceFile, Facts};

fn is_none(elevator: &ElevatorSpec) -> bool {
    std::ptr::eq(elevator.elevator, &NONE)
}

/// The file with direct I/O on or off, and its elevator: the requested one, or else the default for
/// the device if it can have one.
fn scheduled(
    file: DeviceFile,
    needs: &[DeviceNeed<'_>],
    scheduling: &Scheduling,
) -> Result<(DeviceFile, ElevatorSpec), Error> {
    let is_below = needs.iter().any(|need| matches!(need.using, Use::Path(QueueMode::Request)));
    let asked = scheduling.elevator.as_ref().filter(|elevator| !is_none(elevator) && !is_below);
    let file = match (asked, file.kind()) {
        (Some(_), BackingKind::Cached) => file.with_direct()?,
        _ => file,
    };
    match (asked, misfit(&file, needs)) {
        (Some(elevator), Some(problem)) => Err(Error::volume(
            file.path(),
            format!("elevator {} cannot be used: {problem}", elevator.elevator.name),
        )),
        (Some(elevator), None) => Ok((file, elevator.clone())),
        (None, Some(_)) => Ok((file.without_direct()?, ElevatorSpec::of(&NONE))),
        (None, None) if scheduling.elevator.is_some() || file.kind() != BackingKind::Direct => {
            Ok((file, ElevatorSpec::of(&NONE)))
        }
        (None, None) => {
            let Facts { rotational, kernel_scheduler } = file.facts();
            let elevator = default_elevator(rotational, kernel_scheduler.as_deref());
            Ok((file, elevator))
        }
    }
}

/// Why the device has no direct I/O, which every elevator needs, and the remedy.
fn misfit(file: &DeviceFile, needs: &[DeviceNeed<'_>]) -> Option<String> {
    if file.kind() == BackingKind::Tmpfs {
        return Some(
            "a file in memory (tmpfs) has no requests to order; leave `elevator` out".into(),
        );
    }
    if file.kind() == BackingKind::Remote {
        return Some("its server schedules requests; leave `elevator` out".into());
    }
    needs.iter().find_map(|need| match need.using {
        Use::Passed | Use::Path(_) => Some(
            "only a crypt line has buffers of its own: any other passes those of clients down as \
             they are, and the direct I/O that an elevator needs refuses them; leave `elevator` \
             out, or put the crypt lines into a volume of their own"
                .into(),
        ),
        Use::Encrypted(size_bytes) if !file.direct_fits(need.start.0, size_bytes) => Some(format!(
            "its data starts at sector {}, in sectors of {size_bytes} bytes, but the direct \
             I/O that an elevator needs goes in units of {} bytes there; leave `elevator` out, or \
             move the data to a multiple of that",
            need.start.0,
            file.direct_unit_bytes()
        )),
        Use::Encrypted(_) => None,
    })
}

impl Builder<'_> {
    pub(super) fn add_device(
        &mut self,
        file: DeviceFile,
        needs: &[DeviceNeed<'_>],
    ) -> Result<DevId, Error> {
        let writable = file.access().writes() && !self.options.read_only;
        if let Some(problem) = self.options.scheduling.problem() {
            return Err(Error::volume(file.path(), problem));
        }
        let (file, elevator) = scheduled(file, needs, &self.options.scheduling)?;
        let mapping = match file.kind() {
            BackingKind::Tmpfs => Mapping::new(file.file(), file.len_bytes(), writable),
            BackingKind::Cached | BackingKind::Direct | BackingKind::Remote => None,
        };
        if let Some(remote) = file.remote() {
            self.can_discard &= remote.can_trim();
        }
        let is_path = needs.iter().any(|need| matches!(need.using, Use::Path(_)));
        let file = Arc::new(file.watched_by(&self.durability, is_path));
        let number = self.backend.devices.len();
        let queue = self.queue(number, &file, &elevator)?;
        self.backend.devices.push(Device { file, mapping, queue, elevator, is_path });
        Ok(dev_id(number))
    }

    fn queue(
        &self,
        number: usize,
        file: &Arc<DeviceFile>,
        elevator: &ElevatorSpec,
    ) -> Result<DeviceQueue, Error> {
        if let Some(remote) = file.remote() {
            let unflushed = self.unflushed_of_paths.clone().unwrap_or_default();
            let disk = remote.start(number, Arc::clone(&self.durability), unflushed);
            let failed = |error| Error::io(file.path(), "start a thread for it", error);
            return disk.map(DeviceQueue::Shared).map_err(failed);
        }
        if file.kind() != BackingKind::Direct {
            return Ok(DeviceQueue::Bypassed);
        }
        let queue_depth = self.queue_depth(elevator);
        let config = self.queue_config(elevator, queue_depth, file.facts().rotational);
        if is_none(elevator) {
            return Ok(DeviceQueue::PerConnection(config));
        }
        let config = QueueConfig { timeout: Some(disk::TIMEOUT), ..config };
        let disk = disk::thread::start(number, Arc::clone(file), config, elevator)
            .map_err(|error| Error::io(file.path(), "start a thread for it", error))?;
        Ok(DeviceQueue::Shared(disk))
    }

    /// Queue depth of a device.
    pub(super) fn queue_depth(&self, elevator: &ElevatorSpec) -> u32 {
        let usual = if is_none(elevator) { 128 } else { 32 };
        self.options.scheduling.queue_depth.unwrap_or(usual)
    }

    pub(super) fn queue_config(
        &self,
        elevator: &ElevatorSpec,
        queue_depth: u32,
        rotational: bool,
    ) -> QueueConfig {
        let usual = QueueConfig::of(elevator.elevator.generation);
        QueueConfig {
            queue_depth,
            nr_requests: QueueConfig::usual_nr_requests(usual.generation, queue_depth),
            limits: Limits { max_sectors: self.options.scheduling.max_sectors, ..usual.limits },
            rotational,
            write_cache: true,
            fua: true,
            ..usual
        }
    }

    pub(super) fn open(&mut self, path: &str, mappings: &[MappedDevice]) -> Result<DevId, Error> {
        // Compared as text: as paths, URIs that differ in empty parts would be equal.
        let is_it = |device: &Device| device.file.path().as_os_str() == path;
        let opened = self.backend.devices.iter().position(is_it);
        if let Some(index) = opened {
            return Ok(dev_id(index));
        }
        let access = match self.options {
            VolumeOptions { read_only: true, .. } => Access::ReadOnly,
            VolumeOptions { shared: true, .. } => Access::Shared,
            _ => Access::ReadWrite,
        };
        let lines = mappings.iter().flat_map(|mapping| &mapping.lines);
        let needs = lines.flat_map(|line| line.needs().devices);
        let needs: Vec<DeviceNeed<'_>> = needs.filter(|need| need.path == path).collect();
        let is_path = needs.iter().any(|need| matches!(need.using, Use::Path(_)));
        let open = if is_path { DeviceFile::open_path } else { DeviceFile::open };
        let file = open(Path::new(path), access, self.options.direct)?;
        self.add_device(file, &needs)
    }

    /// Memory for one line, without an elevator, because it has no queue.
    pub(super) fn add_memory(&mut self, len: Sector) -> Result<DevId, Error> {
        let len_bytes = len.bytes();
        let file = Arc::new(DeviceFile::ram(len_bytes)?);
        let mapping = Mapping::new(file.file(), len_bytes, true);
        let queue = DeviceQueue::Bypassed;
        let elevator = ElevatorSpec::of(&NONE);
        self.backend.devices.push(Device { file, mapping, queue, elevator, is_path: false });
        Ok(dev_id(self.backend.devices.len() - 1))
    }
}
