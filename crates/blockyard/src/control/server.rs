//! The server's side of the control socket.

use std::sync::Arc;

use blockyard_engine::throttle::Limits;
use blockyard_host::server::REQUEST_BYTES_MAX;
use blockyard_host::throttle::SharedThrottle;
use blockyard_host::volume::control::ControlError;
use serde::Serialize;

use super::request::{Request, invalid, parse};
use super::{Done, Refusal, Refused, Resumed};
use crate::Error;
use crate::output::InUse;
use crate::rate::RateLimits;
use crate::status::{ExportLimits, Loss, Status, VolumeStatus};
use crate::volume::Shared;

/// The volumes of a server, each with its export names.
pub(crate) struct Devices {
    pub(crate) max_connections: usize,
    pub(crate) devices: Vec<Device>,
    /// Files that no trace may overwrite.
    pub(crate) in_use: InUse,
}

/// A volume and its names.
pub(crate) struct Device {
    /// Export names; at least one.
    pub(crate) names: Vec<String>,
    /// The limits of the rate, one for each name.
    pub(crate) throttles: Vec<Arc<SharedThrottle>>,
    pub(crate) volume: Arc<Shared>,
}

impl Device {
    fn status(&self) -> VolumeStatus {
        let mut status = VolumeStatus::of(&self.volume.host, &self.names);
        let mut seen: Vec<&Arc<SharedThrottle>> = Vec::new();
        for (name, throttle) in self.names.iter().zip(&self.throttles) {
            match seen.iter().position(|one| Arc::ptr_eq(one, throttle)) {
                Some(place) => status.limits[place].exports.push(name.clone()),
                None => {
                    seen.push(throttle);
                    let Limits { iops, bytes_per_s, burst } = throttle.limits();
                    let exports = vec![name.clone()];
                    let burst_ns = burst.0;
                    status.limits.push(ExportLimits { exports, iops, bytes_per_s, burst_ns });
                }
            }
        }
        status.limits.retain(|one| one.iops.is_some() || one.bytes_per_s.is_some());
        status
    }
}

impl Devices {
    /// All exports, grouped by volume.
    pub(crate) fn new<'a>(
        exports: impl Iterator<Item = (&'a str, &'a Arc<Shared>, &'a Arc<SharedThrottle>)>,
        max_connections: usize,
        mut in_use: InUse,
    ) -> Self {
        let mut devices: Vec<Device> = Vec::new();
        for (name, volume, throttle) in exports {
            let found = devices.iter().position(|device| Arc::ptr_eq(&device.volume, volume));
            let place = found.unwrap_or_else(|| {
                in_use.add(volume.host.file_ids());
                let volume = Arc::clone(volume);
                devices.push(Device { names: Vec::new(), throttles: Vec::new(), volume });
                devices.len() - 1
            });
            devices[place].names.push(name.to_owned());
            devices[place].throttles.push(Arc::clone(throttle));
        }
        Self { max_connections, devices, in_use }
    }

    /// A snapshot of all volumes.
    pub(crate) fn status(&self) -> Status {
        Status::new(self.max_connections, self.devices.iter().map(Device::status).collect())
    }

    /// The reply to a line; `None` stands for a line that is too long or incomplete.
    pub(crate) fn answer(&self, line: Option<&[u8]>) -> Vec<u8> {
        self.reply(line).unwrap_or_else(|ControlError { name, problem }| {
            json(&Refused { error: Refusal { name: name.to_owned(), problem } })
        })
    }

    fn reply(&self, line: Option<&[u8]>) -> Result<Vec<u8>, ControlError> {
        let line = line.ok_or_else(|| {
            invalid(format!("no line of at most {REQUEST_BYTES_MAX} bytes came within 10 s"))
        })?;
        let (request, export) = parse(line)?;
        if matches!(request, Request::Status) {
            return Ok(json(&self.status()));
        }
        let device = self.find(export)?;
        let volume = &device.volume.host;
        match request {
            Request::Status => unreachable!("answered above"),
            Request::Suspend => volume.suspend()?,
            Request::Resume(accept_loss) => {
                let loss = volume.resume(accept_loss)?;
                return Ok(json(&Resumed { loss: loss.as_ref().map(Loss::from) }));
            }
            Request::Message(sector, message) => volume.message(sector, &message)?,
            Request::Resize => {
                let resized = device.volume.resize().map_err(|error| refusal(&error))?;
                return Ok(json(&resized));
            }
            Request::Limit(limits) => self.limit(device, export, limits),
            Request::TraceStart(to) => {
                let started = device.volume.record(&device.names[0], &to, &self.in_use);
                started.map_err(|error| refusal(&error))?;
            }
            Request::TraceStop => {
                let recorded = device.volume.stop_recording().map_err(|error| refusal(&error))?;
                let recorded = recorded.ok_or_else(|| invalid("the volume is not being recorded"));
                return Ok(json(&recorded?));
            }
        }
        Ok(json(&Done {}))
    }

    /// Changes the limits of an export, and wakes the connections of all exports that share them.
    fn limit(&self, device: &Device, export: &str, limits: RateLimits) {
        let place = device.names.iter().position(|name| name == export).unwrap_or(0);
        let throttle = &device.throttles[place];
        throttle.set(limits.into());
        let shares = |one: &&Device| one.throttles.iter().any(|of| Arc::ptr_eq(of, throttle));
        self.devices.iter().filter(shares).for_each(|one| one.volume.host.limits_changed());
    }

    fn find(&self, export: &str) -> Result<&Device, ControlError> {
        let devices = &self.devices;
        let named = devices.iter().find(|device| device.names.iter().any(|name| name == export));
        match (named, &devices[..]) {
            (Some(device), _) => Ok(device),
            (None, [only]) if export.is_empty() => Ok(only),
            (None, _) => {
                let name = |device: &Device| format!("{:?}", device.names[0]);
                let names: Vec<_> = devices.iter().map(name).collect();
                let problem = match export {
                    "" => "several volumes are served; name one with `export`".to_owned(),
                    named => format!("there is no export {named:?}"),
                };
                let problem = format!("{problem}; there are {}", names.join(", "));
                Err(ControlError { name: "ENXIO", problem })
            }
        }
    }
}

fn refusal(error: &Error) -> ControlError {
    let name = if error.is_busy() { "EBUSY" } else { "EIO" };
    ControlError { name, problem: error.to_string() }
}

fn json(reply: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(reply).expect("a reply has no odd keys")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_that_did_not_come_is_answered_too() {
        let devices = Devices::new(std::iter::empty(), 1, InUse::default());
        let reply = devices.answer(None);
        assert!(String::from_utf8(reply).unwrap().contains("16384 bytes"));
    }
}
