//! The server's side of the control socket.

use std::convert::Infallible;
use std::num::NonZeroU64;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use blockyard_engine::throttle::Limits;
use blockyard_host::dirty_bitmap::BackupStep;
use blockyard_host::log::{Event, Kind, Value};
use blockyard_host::server::REQUEST_BYTES_MAX;
use blockyard_host::throttle::SharedThrottle;
use blockyard_host::volume::control::{ControlError, Message};
use serde::Serialize;

use super::request::{Request, invalid, parse};
use super::{BackupAnswer, Done, Refusal, Refused, Reloaded, Resumed};
use crate::Error;
use crate::output::InUse;
use crate::rate::RateLimits;
use crate::resize::say_resized;
use crate::status::{Build, ExportLimits, Loss, Status, VolumeStatus};
use crate::volume::Shared;

const NO_RELOAD: &str = "the server has no configuration to read again; start it with --config";
const NO_FORGET: &str = "the server has no exports that open at their first use; they are in a \
                         configuration, so start it with --config";

/// The volumes of a server, each with its export names. They may come and go.
pub(crate) struct Devices {
    build: Build,
    max_connections: usize,
    served: RwLock<Served>,
    /// Reads the configuration again, if the program can.
    reload: OnceLock<Reload>,
    /// Closes an export, if the program can.
    forget: OnceLock<Forget>,
}

/// A function that closes the export of a name; its refusal.
pub(crate) type Forget = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// A function that changes the exports; its reply or its refusal.
pub(crate) type Reload = Box<dyn Fn() -> Result<Reloaded, String> + Send + Sync>;

struct Served {
    devices: Vec<Arc<Device>>,
    /// Names of all exports, closed ones too, in order.
    order: Vec<String>,
    /// Files that no trace may overwrite.
    in_use: InUse,
}

/// An export of a server: its name, volume and limits.
pub(crate) type Named = (String, Arc<Shared>, Arc<SharedThrottle>);

/// A volume and its names. An answer that works on the volume keeps this value, and so the volume
/// open.
pub(crate) struct Device {
    /// Export names; at least one.
    pub(crate) names: Vec<String>,
    /// The limits of the rate, one for each name.
    pub(crate) throttles: Vec<Arc<SharedThrottle>>,
    pub(crate) volume: Arc<Shared>,
    uses: Uses,
}

/// The values [`Device`] of a volume, whose names and limits may change. Dropped after the volume.
#[derive(Clone)]
struct Uses {
    _mark: Sender<Infallible>,
    /// Closed when the last mark is dropped.
    end: Arc<Mutex<Receiver<Infallible>>>,
}

impl Uses {
    fn new() -> Self {
        let (mark, end) = mpsc::channel();
        Self { _mark: mark, end: Arc::new(Mutex::new(end)) }
    }
}

impl Device {
    /// Gives the volume of a removed export back, and waits until no answer works on it.
    pub(crate) fn give_back(self: Arc<Self>) {
        let end = Arc::clone(&self.uses.end);
        drop(self);
        let end = end.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = end.recv();
    }

    fn is_of(&self, volume: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.volume, volume)
    }

    fn status(&self) -> VolumeStatus {
        let mut status = VolumeStatus::of(&self.volume.host, &self.names);
        let mut seen: Vec<&Arc<SharedThrottle>> = Vec::new();
        for (name, throttle) in self.names.iter().zip(&self.throttles) {
            match seen.iter().position(|one| one.shares_with(throttle)) {
                Some(place) => status.limits[place].exports.push(name.clone()),
                None => {
                    seen.push(throttle);
                    let Limits { iops, bytes_per_s, burst } = throttle.limits();
                    let exports = vec![name.clone()];
                    let burst_ns = burst.0;
                    let group = throttle.group();
                    let limits = ExportLimits { exports, group, iops, bytes_per_s, burst_ns };
                    status.limits.push(limits);
                }
            }
        }
        status.limits.retain(|one| one.iops.is_some() || one.bytes_per_s.is_some());
        status
    }
}

impl Devices {
    /// All exports, grouped by volume. Those of `order` without a volume are closed.
    pub(crate) fn new(
        build: Build,
        order: &[String],
        exports: &[Named],
        max_connections: usize,
        in_use: InUse,
    ) -> Self {
        let served = RwLock::new(Served { devices: Vec::new(), order: order.to_vec(), in_use });
        let reload = OnceLock::new();
        let forget = OnceLock::new();
        let devices = Self { build, max_connections, served, reload, forget };
        devices.replace(exports, InUse::default());
        devices
    }

    /// Other exports; the files are in use in addition to those from before. Returns the volumes
    /// that are served no more.
    pub(crate) fn replace(&self, exports: &[Named], in_use: InUse) -> Vec<Arc<Device>> {
        let mut served = self.served.write().unwrap_or_else(PoisonError::into_inner);
        served.in_use.extend(in_use);
        let mut devices: Vec<Device> = Vec::new();
        for (name, volume, throttle) in exports {
            let found = devices.iter().position(|device| device.is_of(volume));
            let place = found.unwrap_or_else(|| {
                let before = served.devices.iter().find(|before| before.is_of(volume));
                let uses = before.map_or_else(Uses::new, |before| before.uses.clone());
                served.in_use.add(volume.host.file_ids());
                let volume = Arc::clone(volume);
                devices.push(Device { names: Vec::new(), throttles: Vec::new(), volume, uses });
                devices.len() - 1
            });
            devices[place].names.push(name.clone());
            devices[place].throttles.push(Arc::clone(throttle));
        }
        let is_new = |one: &Arc<Device>| devices.iter().any(|new| new.is_of(&one.volume));
        let mut gone = std::mem::take(&mut served.devices);
        gone.retain(|one| !is_new(one));
        served.devices = devices.into_iter().map(Arc::new).collect();
        gone
    }

    /// Names of all exports from now on, closed ones too.
    pub(crate) fn list(&self, order: Vec<String>) {
        self.served.write().unwrap_or_else(PoisonError::into_inner).order = order;
    }

    /// Gives up the exports of these names; returns their volumes.
    pub(crate) fn remove(&self, names: &[String]) -> Vec<Arc<Device>> {
        let mut left = self.named();
        left.retain(|(name, ..)| !names.contains(name));
        self.replace(&left, InUse::default())
    }

    /// The exports.
    pub(crate) fn named(&self) -> Vec<Named> {
        let devices = self.devices();
        let all = devices.iter().flat_map(|device| {
            let both = device.names.iter().zip(&device.throttles);
            both.map(|(name, of)| (name.clone(), Arc::clone(&device.volume), Arc::clone(of)))
        });
        all.collect()
    }

    /// Lets clients of the control socket reload the configuration.
    pub(crate) fn on_reload(&self, reload: Reload) {
        let _ = self.reload.set(reload);
    }

    /// Lets clients of the control socket close exports.
    pub(crate) fn on_forget(&self, forget: Forget) {
        let _ = self.forget.set(forget);
    }

    fn devices(&self) -> Vec<Arc<Device>> {
        self.served.read().unwrap_or_else(PoisonError::into_inner).devices.clone()
    }

    fn in_use(&self) -> InUse {
        self.served.read().unwrap_or_else(PoisonError::into_inner).in_use.clone()
    }

    /// All volumes, and the names of the closed exports.
    fn open_and_closed(&self) -> (Vec<Arc<Device>>, Vec<String>) {
        let served = self.served.read().unwrap_or_else(PoisonError::into_inner);
        let is_open =
            |name: &&String| served.devices.iter().any(|device| device.names.contains(name));
        let closed = served.order.iter().filter(|name| !is_open(name)).cloned().collect();
        (served.devices.clone(), closed)
    }

    /// A snapshot of all volumes.
    pub(crate) fn status(&self) -> Status {
        let (devices, closed) = self.open_and_closed();
        let devices = devices.iter().map(|device| device.status()).collect();
        Status { closed, ..Status::new(self.build.clone(), self.max_connections, devices) }
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
        if matches!(request, Request::Reload) {
            let reload = self.reload.get().ok_or_else(|| invalid(NO_RELOAD))?;
            let failed = |problem| ControlError { name: "EINVAL", problem };
            return Ok(json(&reload().map_err(failed)?));
        }
        if matches!(request, Request::Forget) {
            let forget = self.forget.get().ok_or_else(|| invalid(NO_FORGET))?;
            forget(export).map_err(|problem| ControlError { name: "EINVAL", problem })?;
            return Ok(json(&Done {}));
        }
        let device = &*self.find(export)?;
        let volume = &device.volume.host;
        let name = if export.is_empty() { &device.names[0] } else { export };
        let event = |kind| Event::new(kind).export(name);
        match request {
            Request::Status | Request::Reload | Request::Forget => unreachable!("answered above"),
            Request::Suspend => {
                volume.suspend()?;
                event(Kind::Suspended).say(format_args!("export {name:?} is suspended"));
            }
            Request::Resume(accept_loss) => {
                let loss = volume.resume(accept_loss)?;
                let how = if accept_loss { ", and its loss is accepted" } else { "" };
                event(Kind::Resumed).say(format_args!("export {name:?} is resumed{how}"));
                return Ok(json(&Resumed { loss: loss.as_ref().map(Loss::from) }));
            }
            Request::Message(sector, message) => {
                volume.message(sector, &message)?;
                say_message(event(Kind::Message), name, sector, &message);
            }
            Request::Resize => {
                let resized = device.volume.resize().map_err(|error| refusal(&error))?;
                if resized.from_bytes != resized.to_bytes {
                    say_resized(event(Kind::Resized), name, &resized);
                }
                return Ok(json(&resized));
            }
            Request::Limit(limits, keeps_burst) => {
                self.limit(device, export, limits, keeps_burst);
                say_limits(event(Kind::Limited), name, limits);
            }
            Request::Backup(step) => {
                let backup = volume.backup(step)?.to_string();
                say_step(event(Kind::Backup), name, step, &backup);
                return Ok(json(&BackupAnswer { backup }));
            }
            Request::TraceStart(to) => {
                let started = device.volume.record(&device.names[0], &to, &self.in_use());
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
    fn limit(&self, device: &Device, export: &str, limits: RateLimits, keeps_burst: bool) {
        let place = device.names.iter().position(|name| name == export).unwrap_or(0);
        let throttle = &device.throttles[place];
        let mut limits = Limits::from(limits);
        if keeps_burst {
            limits.burst = throttle.limits().burst;
        }
        throttle.set(limits);
        let shares = |one: &&Arc<Device>| one.throttles.iter().any(|of| of.shares_with(throttle));
        let devices = self.devices();
        devices.iter().filter(shares).for_each(|one| one.volume.host.limits_changed());
    }

    fn find(&self, export: &str) -> Result<Arc<Device>, ControlError> {
        let (devices, closed) = self.open_and_closed();
        let named = devices.iter().find(|device| device.names.iter().any(|name| name == export));
        match (named, &devices[..]) {
            (Some(device), _) => Ok(Arc::clone(device)),
            // With closed ones, the only open export may be another one than a moment ago.
            (None, [only]) if export.is_empty() && closed.is_empty() => Ok(Arc::clone(only)),
            (None, _) => {
                let open = devices.iter().map(|device| &device.names[0]);
                let names: Vec<_> = open.chain(&closed).map(|name| format!("{name:?}")).collect();
                let problem = match export {
                    named if closed.iter().any(|name| name == named) => {
                        let problem =
                            format!("export {named:?} is closed; it opens for its next client");
                        return Err(ControlError { name: "ENXIO", problem });
                    }
                    "" => "name an export with `export`".to_owned(),
                    named => format!("there is no export {named:?}"),
                };
                let problem = format!("{problem}; there are {}", names.join(", "));
                Err(ControlError { name: "ENXIO", problem })
            }
        }
    }
}

fn say_message(event: Event<'_>, export: &str, sector: u64, message: &Message) {
    let what = match message {
        Message::Target(text) => text,
        Message::KeySet(_) => "key set",
        Message::KeyWipe => "key wipe",
    };
    let fields = [("sector", Value::Number(sector)), ("text", Value::Text(what))];
    event.fields(&fields).say(format_args!(
        "export {export:?}: the line at sector {sector} got the message {what:?}"
    ));
}

fn say_limits(event: Event<'_>, export: &str, limits: RateLimits) {
    let number = |limit: Option<NonZeroU64>| limit.map_or(0, NonZeroU64::get);
    let [iops, bytes] = [limits.iops, limits.bytes_per_s].map(number);
    let fields = [("iops", Value::Number(iops)), ("bytes_per_s", Value::Number(bytes))];
    let rates = [(iops, "requests"), (bytes, "bytes")];
    let rates = rates.map(|(rate, of)| (rate > 0).then(|| format!("{rate} {of} per second")));
    let rates: Vec<String> = rates.into_iter().flatten().collect();
    let now = match &rates[..] {
        [] => "has no limits of its rate any more".to_owned(),
        rates => format!("is limited to {}", rates.join(" and ")),
    };
    event.fields(&fields).say(format_args!("export {export:?} {now}"));
}

fn say_step(event: Event<'_>, export: &str, step: BackupStep, backup: &str) {
    let what = match step {
        BackupStep::Freeze => "begins",
        BackupStep::Done(_) => "is done",
        BackupStep::Failed(_) => "has failed, and its blocks are dirty still",
    };
    let fields = [("step", Value::Text(step.name())), ("backup", Value::Text(backup))];
    event.fields(&fields).say(format_args!("the backup {backup} of export {export:?} {what}"));
}

fn refusal(error: &Error) -> ControlError {
    use blockyard_host::Error as Host;
    let name = match error {
        Error::Sandboxed { .. } => "EACCES",
        Error::Host(Host::Volume { .. } | Host::Parameter { .. }) => "EINVAL",
        error if error.is_busy() => "EBUSY",
        _ => "EIO",
    };
    ControlError { name, problem: error.to_string() }
}

fn json(reply: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(reply).expect("a reply has no odd keys")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use blockyard_host::file::{Access, DeviceFile};
    use blockyard_host::throttle::Buckets;
    use blockyard_host::volume::{self as host, VolumeOptions};

    use super::*;
    use crate::Volume;

    /// An export without limits.
    fn named(name: &str, file: DeviceFile) -> Named {
        let volume = host::Volume::from_file(file, &VolumeOptions::default()).unwrap();
        let volume = Volume::of_fixed_size(volume, "it is a test");
        let throttle = Arc::new(SharedThrottle::new(Arc::new(Buckets::new(Limits::default()))));
        (name.to_owned(), Arc::clone(volume.shared()), throttle)
    }

    #[test]
    fn removed_volume_is_given_back_when_no_answer_works_on_it() {
        let named = named("a", DeviceFile::in_memory(1 << 20).unwrap());
        let devices = Devices::new(
            Build::default(),
            &["a".into(), "b".into()],
            &[named],
            1,
            InUse::default(),
        );
        assert_eq!(devices.status().closed, ["b"]);
        let answering = devices.find("a").unwrap_or_else(|error| panic!("{}", error.problem));
        // A change of other exports gives it a new value.
        devices.replace(&devices.named(), InUse::default());
        let volume = Arc::downgrade(&answering.volume);
        let gone = devices.remove(&["a".to_owned()]);
        let (sender, given_back) = mpsc::channel();
        std::thread::spawn(move || {
            gone.into_iter().for_each(Device::give_back);
            sender.send(volume.upgrade().is_none()).unwrap();
        });
        let early = given_back.recv_timeout(Duration::from_millis(50));
        assert!(early.is_err(), "an answer works on it");
        drop(answering);
        assert!(given_back.recv().unwrap(), "it is closed");
        assert_eq!(devices.status().closed, ["a", "b"]);
    }

    /// The lock of a volume protects its files too, but not in file systems without locks.
    #[test]
    fn files_of_a_volume_that_comes_later_are_in_use_and_stay_so() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(1 << 20).unwrap();
        let file = DeviceFile::open(image.path(), Access::ReadWrite, false).unwrap();
        let named = named("a", file);
        let devices = Devices::new(Build::default(), &["a".into()], &[], 1, InUse::default());
        let is_in_use = || devices.in_use().has(&image.as_file().metadata().unwrap());
        assert!(!is_in_use());
        devices.replace(&[named], InUse::default());
        assert!(is_in_use());
        devices.remove(&["a".to_owned()]);
        assert!(is_in_use(), "its last answer may still work on it");
    }

    #[test]
    fn line_that_did_not_come_is_answered_too() {
        let devices = Devices::new(Build::default(), &[], &[], 1, InUse::default());
        let reply = devices.answer(None);
        assert!(String::from_utf8(reply).unwrap().contains("16384 bytes"));
    }
}
