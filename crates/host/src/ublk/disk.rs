//! A volume as a disk of this machine: made or taken over, started, stopped.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use blockyard_engine::priority::Priority;
use blockyard_protocol::ublk::{
    ANY_DEVICE, BLOCK_MAX_BYTES, Control, DeviceState, Disk as Geometry, Info, flag,
};

use super::control::{CONTROL, Controller, Target, path_of};
use super::queue::{self, Setup};
use super::takeover::{self, left_by_another, open_node};
use crate::Error;
use crate::cpus;
use crate::throttle::SharedThrottle;
use crate::volume::Volume;

/// Limit of queues, of which a machine has one for each CPU. All buffers of a disk are then at most
/// 32 MiB, half of what the connections of a server have.
const QUEUES_MAX: u16 = 4;
/// Number of requests in a queue: as many as a connection usually has in flight, and more.
const DEPTH: u16 = 64;
/// Length of a request's buffer: two pieces, so that both are in flight.
const BUFFER_BYTES: u32 = 128 << 10;
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
    /// over, if it was a disk of the same volume: the same file or device, key, cipher and offset.
    pub number: Option<u32>,
}

/// A disk. Its drop removes it, unless it was taken over: a file system may be mounted, and the
/// next server may serve it.
pub(crate) struct Disk {
    controller: Controller,
    device: u32,
    /// Path of its character device.
    path: String,
    /// The character device. While it is open, the number belongs to this disk.
    file: Option<Arc<File>>,
    is_unprivileged: bool,
    /// The disk was there and waited for a server.
    is_taken_over: bool,
    is_started: bool,
    is_stopped: bool,
    queues: Vec<JoinHandle<()>>,
}

/// The export of a disk.
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
        let geometry = geometry(&served.volume)?;
        let mut controller = Controller::new()?;
        let wanted = wanted(served, options);
        let left = match options.number {
            Some(number) => left_by_another(&mut controller, number, &wanted, &geometry)?,
            None => None,
        };
        match left {
            Some((info, geometry)) => Self::take_over(controller, served, geometry, &info),
            None => Self::make(controller, served, geometry, &wanted),
        }
    }

    /// Takes over a disk that another server has left.
    fn take_over(
        mut controller: Controller,
        served: &Served,
        geometry: Geometry,
        info: &Info,
    ) -> Result<Self, Error> {
        let queues = Queues::prepare(served, geometry, info)?;
        takeover::begin(&mut controller, info)?;
        let file = open_node(&path_of(info.device))?;
        let mut disk = Self::with(controller, info, file, true);
        disk.start_queues(queues)?;
        Ok(disk)
    }

    /// Makes a device with a new disk.
    fn make(
        mut controller: Controller,
        served: &Served,
        geometry: Geometry,
        wanted: &Info,
    ) -> Result<Self, Error> {
        let info = add(&mut controller, wanted)?;
        let path = path_of(info.device);
        let file = match open_node(&path) {
            Ok(file) => file,
            Err(error) => {
                // No server removes a device of this age, so the number is still of this one.
                let path = info.is_unprivileged().then_some(path.as_str());
                let target = Target { device: info.device, path };
                let _ = controller.run(Control::Delete, target, &mut [], 0);
                return Err(error);
            }
        };
        let mut disk = Self::with(controller, &info, file, false);
        // Ranges of zeroes take long, and many of them may be in flight.
        let geometry = Geometry { can_zero: !info.is_unprivileged(), ..geometry };
        if info.is_unprivileged() {
            served.volume.refuse_suspend(
                "the volume is a disk of a user without privileges, and the kernel kills a server \
                 of such a disk that holds a request for 30 s",
            );
        }
        disk.run(Control::SetParameters, "set the size of", &mut geometry.parameters(), 0)?;
        disk.start_queues(Queues::prepare(served, geometry, &info)?)?;
        Ok(disk)
    }

    fn with(controller: Controller, info: &Info, file: File, is_taken_over: bool) -> Self {
        Self {
            controller,
            device: info.device,
            path: path_of(info.device),
            file: Some(Arc::new(file)),
            is_unprivileged: info.is_unprivileged(),
            is_taken_over,
            is_started: false,
            is_stopped: false,
            queues: Vec::new(),
        }
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

    /// Lets the queues fetch requests.
    fn start_queues(&mut self, queues: Queues) -> Result<(), Error> {
        let mut started = Ok(());
        for Prepared { thread, device, is_ready } in queues.0 {
            self.queues.push(thread);
            // The kernel would wait for the requests of a queue that did not start.
            if started.is_ok() {
                let _ = device.send(Arc::clone(self.file.as_ref().expect("it is open")));
                started = ready(&is_ready);
            }
        }
        started.map_err(|error| Error::io(Path::new(&self.path), "serve", error))
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

    /// Ends the requests in flight, and removes the disk; once. A disk that was to be taken over
    /// and was not goes on waiting when this process ends: a file system may be mounted.
    pub(crate) fn stop(&mut self) -> Result<(), Error> {
        let waits_for_another = self.is_taken_over && !self.is_started;
        // Another server may have a disk of this number afterwards.
        if waits_for_another || std::mem::replace(&mut self.is_stopped, true) {
            return Ok(());
        }
        self.run(Control::Stop, "stop", &mut [], 0)?;
        // The kernel has taken back all requests.
        self.queues.drain(..).for_each(|queue| drop(queue.join()));
        // While the file is open, as far as the kernel can do that.
        let deleted = self.run(Control::DeleteOpen, "remove", &mut [], 0);
        self.file = None;
        deleted.or_else(|_| self.run(Control::Delete, "remove", &mut [], 0))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if !self.is_taken_over {
            let _ = self.stop();
        }
    }
}

/// Queues that wait for their device. If they are dropped, their threads end.
struct Queues(Vec<Prepared>);

struct Prepared {
    thread: JoinHandle<()>,
    device: Sender<Arc<File>>,
    is_ready: Receiver<io::Result<()>>,
}

impl Queues {
    fn prepare(served: &Served, geometry: Geometry, info: &Info) -> Result<Self, Error> {
        let failed = |error: io::Error| Error::io(Path::new(&path_of(info.device)), "serve", error);
        let mut queues = Self(Vec::new());
        for queue in 0..info.queues {
            let setup = Setup {
                name: format!("export {:?}", served.name),
                place: format!("/dev/ublkb{}", info.device),
                volume: Arc::clone(&served.volume),
                priority: served.priority,
                throttle: served.throttle.clone(),
                disk: geometry,
                queue,
                depth: info.depth,
            };
            let (device, opened) = mpsc::channel();
            let (said, is_ready) = mpsc::channel();
            let thread = std::thread::Builder::new().name("ublk queue".into());
            let thread = thread.stack_size(STACK_BYTES);
            let thread = thread.spawn(move || queue::serve(setup, &opened, &said));
            let thread = thread.map_err(failed)?;
            ready(&is_ready).map_err(failed)?;
            queues.0.push(Prepared { thread, device, is_ready });
        }
        Ok(queues)
    }
}

/// The next word of a queue's thread.
fn ready(said: &Receiver<io::Result<()>>) -> io::Result<()> {
    said.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
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
        can_zero: true,
    })
}

/// The device that is asked of the kernel.
fn wanted(served: &Served, options: &UblkOptions) -> Info {
    let cpus = cpus::parallelism();
    let identity = served.volume.identity();
    Info {
        queues: u16::try_from(cpus).unwrap_or(u16::MAX).min(QUEUES_MAX),
        depth: DEPTH,
        state: DeviceState::Dead,
        buffer_bytes: BUFFER_BYTES,
        device: options.number.unwrap_or(ANY_DEVICE),
        server: -1,
        flags: FLAGS,
        server_word: u64::from_le_bytes(*identity.first_chunk().expect("it has 32 bytes")),
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
