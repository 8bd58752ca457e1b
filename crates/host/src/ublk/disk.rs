//! A volume as a disk of this machine: made or taken over, started, stopped.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{JoinHandle, available_parallelism};
use std::time::{Duration, Instant};

use blockyard_engine::priority::Priority;
use blockyard_protocol::ublk::{
    ANY_DEVICE, BLOCK_MAX_BYTES, Control, DeviceState, Disk as Geometry, INFO_BYTES, Info,
    PARAMETERS_BYTES, flag,
};
use sha2::{Digest, Sha256};

use super::control::{CONTROL, Controller, Target};
use super::queue::{self, Setup};
use crate::Error;
use crate::throttle::SharedThrottle;
use crate::volume::Volume;

/// Limit of queues, of which a machine has one for each CPU. All buffers of a disk are then at most
/// 32 MiB, half of what the connections of a server have.
const QUEUES_MAX: u16 = 4;
/// Number of requests in a queue: as many as a connection usually has in flight, and more.
const DEPTH: u16 = 64;
/// Length of a request's buffer: two pieces, so that both are in flight.
const BUFFER_BYTES: u32 = 128 << 10;
/// Time for udev to give the character device to its user.
const NODE_PATIENCE: Duration = Duration::from_secs(5);
/// Time for the end of a server that was killed.
const LEAVING_PATIENCE: Duration = Duration::from_secs(3);
/// Time between looks at either.
const NODE_PAUSE: Duration = Duration::from_millis(10);
/// Largest number of a disk: the kernel's `UBLK_MAX_UBLKS` is 2^20.
const NUMBER_MAX: u32 = (1 << 20) - 1;
const STACK_BYTES: usize = 256 << 10;
/// Properties that a device of ours is made with. The kernel drops those that it does not have or
/// does not grant: unprivileged devices are not recovered, and those of root are not unprivileged.
const FLAGS: u64 =
    flag::USER_RECOVERY | flag::USER_RECOVERY_REISSUE | flag::UNPRIVILEGED | flag::IOCTL_NUMBERS;

/// A volume as a disk of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UblkOptions {
    /// Number of the disk; `None` for any. A disk of this number whose server was killed is taken
    /// over.
    pub number: Option<u32>,
    /// Name of the volume, such as its path. A disk is not taken over for another one.
    pub identity: String,
}

/// A disk; its drop removes it.
pub(crate) struct Disk {
    controller: Controller,
    device: u32,
    /// Path of its character device.
    path: String,
    is_unprivileged: bool,
    /// The disk is there and waits for a server.
    is_taken_over: bool,
    is_started: bool,
    queues: Vec<JoinHandle<()>>,
}

/// What a disk serves.
pub(crate) struct Served {
    /// Name of the export.
    pub(crate) name: String,
    pub(crate) volume: Arc<Volume>,
    pub(crate) priority: Priority,
    pub(crate) throttle: Option<Arc<SharedThrottle>>,
}

impl Disk {
    /// Makes a device or takes one over, and starts its queues. The disk comes with
    /// [`Disk::start`].
    pub(crate) fn new(served: &Served, options: &UblkOptions) -> Result<Self, Error> {
        if let Some(number) = options.number.filter(|number| *number > NUMBER_MAX) {
            let problem = format!("the number {number} is not one from 0 to {NUMBER_MAX}");
            return Err(Error::parameter("ublk", problem));
        }
        let mut geometry = geometry(&served.volume)?;
        let mut controller = Controller::new()?;
        let wanted = wanted(options);
        let left = match options.number {
            Some(number) => left_by_another(&mut controller, number, &wanted, &mut geometry)?,
            None => None,
        };
        let info = match left {
            Some(info) => info,
            None => add(&mut controller, &wanted)?,
        };
        let mut disk = Self {
            controller,
            device: info.device,
            path: path_of(info.device),
            is_unprivileged: info.is_unprivileged(),
            is_taken_over: left.is_some(),
            is_started: false,
            queues: Vec::new(),
        };
        let file = open_node(&disk.path)?;
        if !disk.is_taken_over {
            disk.run(Control::SetParameters, "set the size of", &mut geometry.parameters(), 0)?;
        }
        disk.start_queues(served, geometry, &info, &file)?;
        Ok(disk)
    }

    /// The path of the disk.
    pub(crate) fn place(&self) -> String {
        format!("/dev/ublkb{}", self.device)
    }

    /// Shows the disk to this machine; once.
    pub(crate) fn start(&mut self) -> Result<(), Error> {
        if self.is_started {
            return Ok(());
        }
        let server = u64::from(std::process::id());
        let command = if self.is_taken_over { Control::EndRecovery } else { Control::Start };
        self.run(command, "start", &mut [], server)?;
        self.is_started = true;
        Ok(())
    }

    fn start_queues(
        &mut self,
        served: &Served,
        geometry: Geometry,
        info: &Info,
        file: &File,
    ) -> Result<(), Error> {
        let failed = |error: io::Error| Error::io(Path::new(&path_of(info.device)), "serve", error);
        for queue in 0..info.queues {
            let setup = Setup {
                name: format!("export {:?}", served.name),
                place: self.place(),
                volume: Arc::clone(&served.volume),
                priority: served.priority,
                throttle: served.throttle.clone(),
                disk: geometry,
                file: file.try_clone().map_err(failed)?,
                queue,
                depth: info.depth,
            };
            let (ready, is_ready) = mpsc::channel();
            let thread = std::thread::Builder::new().name("ublk queue".into());
            let thread = thread.stack_size(STACK_BYTES);
            let thread = thread.spawn(move || queue::serve(setup, &ready)).map_err(failed)?;
            self.queues.push(thread);
            // The kernel would wait for the requests of a queue that did not start.
            let started = is_ready.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
            started.map_err(failed)?;
        }
        Ok(())
    }

    fn run(
        &mut self,
        command: Control,
        action: &'static str,
        buffer: &mut [u8],
        argument: u64,
    ) -> Result<(), Error> {
        let path = self.is_unprivileged.then_some(self.path.as_str());
        let target = Target { device: self.device, path };
        let done = self.controller.run(command, target, buffer, argument);
        done.map_err(|error| Error::io(Path::new(&self.path), action, error))
    }

    /// Ends the requests in flight, and removes the disk. A disk that was to be taken over and was
    /// not goes on waiting when this process ends: a file system may be mounted.
    pub(crate) fn stop(&mut self) -> Result<(), Error> {
        if self.is_taken_over && !self.is_started {
            return Ok(());
        }
        let stopped = self.run(Control::Stop, "stop", &mut [], 0);
        if stopped.is_ok() {
            // The kernel has taken back all requests.
            self.queues.drain(..).for_each(|queue| drop(queue.join()));
        }
        stopped.and_then(|()| self.run(Control::Delete, "remove", &mut [], 0))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

/// Path of a character device.
fn path_of(device: u32) -> String {
    format!("/dev/ublkc{device}")
}

fn geometry(volume: &Volume) -> Result<Geometry, Error> {
    let block_bytes = volume.sector_size_bytes().max(volume.minimum_block_bytes()).max(512);
    if block_bytes > BLOCK_MAX_BYTES {
        return Err(Error::parameter(
            "ublk",
            format!(
                "the volume has blocks of {block_bytes} bytes, and a disk of ublk has at most \
                 {BLOCK_MAX_BYTES}; serve the volume by NBD or --vhost-user"
            ),
        ));
    }
    let size_bytes = volume.size_bytes();
    Ok(Geometry {
        size_bytes: size_bytes - size_bytes % u64::from(block_bytes),
        block_bytes,
        buffer_bytes: BUFFER_BYTES,
        read_only: volume.read_only(),
        can_discard: volume.can_discard(),
    })
}

/// The device that is asked of the kernel.
fn wanted(options: &UblkOptions) -> Info {
    let cpus = available_parallelism().map_or(1, usize::from);
    let digest = Sha256::digest(options.identity.as_bytes());
    Info {
        queues: u16::try_from(cpus).unwrap_or(u16::MAX).min(QUEUES_MAX),
        depth: DEPTH,
        state: DeviceState::Dead,
        buffer_bytes: BUFFER_BYTES,
        device: options.number.unwrap_or(ANY_DEVICE),
        server: -1,
        flags: FLAGS,
        server_word: u64::from_le_bytes(*digest.first_chunk().expect("it has 32 bytes")),
    }
}

fn add(controller: &mut Controller, wanted: &Info) -> Result<Info, Error> {
    let mut bytes = wanted.bytes();
    let target = Target { device: wanted.device, path: None };
    controller.run(Control::Add, target, &mut bytes, 0).map_err(|error| {
        let place = Path::new(CONTROL);
        match error.raw_os_error() {
            Some(libc::ENOTSUP | ENOTSUPP | libc::EINVAL) => {
                Error::parameter(CONTROL, "the ublk of this kernel is too old; it needs Linux 6.4")
            }
            Some(libc::EEXIST) => {
                Error::parameter(CONTROL, "another server is making a disk of this number")
            }
            _ => Error::io(place, "make a disk", error),
        }
    })?;
    Ok(Info::of(&bytes))
}

/// `ENOTSUPP` of the kernel, which is no error number of programs.
const ENOTSUPP: i32 = 524;

/// The device of this number, if a server has left a disk for the same volume. An empty device is
/// removed.
fn left_by_another(
    controller: &mut Controller,
    number: u32,
    wanted: &Info,
    geometry: &mut Geometry,
) -> Result<Option<Info>, Error> {
    let path = path_of(number);
    let disk = format!("/dev/ublkb{number}");
    let refused = |problem: String| Err(Error::parameter(&disk, problem));
    let failed = |action| move |error| Error::io(Path::new(&path_of(number)), action, error);
    let with_path = Target { device: number, path: Some(&path) };
    let Some(info) = settled(controller, with_path).map_err(failed("look at"))? else {
        return Ok(None);
    };
    let target = Target { path: with_path.path.filter(|_| info.is_unprivileged()), ..with_path };
    match info.state {
        DeviceState::Dead if !is_open(&path) => {
            controller.run(Control::Delete, target, &mut [], 0).map_err(failed("remove"))?;
            return Ok(None);
        }
        DeviceState::Quiesced => {}
        DeviceState::Dead | DeviceState::Live | DeviceState::Other(_) => {
            return refused(format!(
                "another server (process {}) has this disk; choose another number, or none for any",
                info.server
            ));
        }
    }
    if info.server_word != wanted.server_word {
        return refused(
            "the server of this disk has ended, and served another volume or this one by another \
             path; serve that one again, or choose another number"
                .into(),
        );
    }
    geometry.buffer_bytes = info.buffer_bytes;
    let ours = geometry.parameters();
    let mut theirs = ours;
    controller.run(Control::GetParameters, target, &mut theirs, 0).map_err(failed("look at"))?;
    // Behind the length and the kinds, which the kernel extends.
    if theirs[8..PARAMETERS_BYTES] != ours[8..] {
        return refused(
            "the disk had another size, block size, --read-only or --allow-discards with its last \
             server; serve the volume as before, or choose another number"
                .into(),
        );
    }
    controller.run(Control::StartRecovery, target, &mut [], 0).map_err(failed("take over"))?;
    Ok(Some(info))
}

/// The state of a device, after a server that was killed has left; `None` if there is no device.
fn settled(controller: &mut Controller, target: Target<'_>) -> io::Result<Option<Info>> {
    let start = Instant::now();
    loop {
        let mut bytes = [0; INFO_BYTES];
        match controller.run(Control::GetInfo, target, &mut bytes, 0) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
            result => result?,
        }
        let info = Info::of(&bytes);
        let may_leave = info.state == DeviceState::Live
            || info.state == DeviceState::Quiesced && target.path.is_some_and(is_open);
        if !may_leave || start.elapsed() > LEAVING_PATIENCE {
            return Ok(Some(info));
        }
        std::thread::sleep(NODE_PAUSE);
    }
}

/// Whether a server has opened this character device.
fn is_open(path: &str) -> bool {
    let opened = File::options().read(true).write(true).open(path);
    opened.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
}

/// Opens a character device, which udev may have yet to give to this user.
fn open_node(path: &str) -> Result<File, Error> {
    let start = Instant::now();
    loop {
        match File::options().read(true).write(true).open(path) {
            Ok(file) => return Ok(file),
            Err(error) if start.elapsed() > NODE_PATIENCE => {
                return Err(match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => Error::parameter(
                        path,
                        format!(
                            "{error}; udev has not given the device to this user within {} s: \
                             docs/ublk.md has the rules",
                            NODE_PATIENCE.as_secs()
                        ),
                    ),
                    _ => Error::io(Path::new(path), "open", error),
                });
            }
            Err(_) => std::thread::sleep(NODE_PAUSE),
        }
    }
}
