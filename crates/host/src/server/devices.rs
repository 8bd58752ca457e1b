//! Sockets of virtual machines: one front end at a time, on a thread of its own.
//!
//! A volume in two virtual machines destroys its file system, so a second front end waits in the
//! backlog until the first one has left.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::access::SocketAccess;
use super::exchange::number;
use super::exports::ServedExport;
use super::listen::Listener;
use super::threads::{Ends, Threads};
use crate::Error;
use crate::log::{Event, Kind};
use crate::vhost_user::Device;
pub use crate::vhost_user::Polling;

/// Limit of queues: the protocol's.
pub const QUEUES_MAX: u16 = 256;
/// Default number of queues. A front end that asks for more than a server has fails, and a queue
/// that is not used costs nothing.
pub const QUEUES_USUAL: u16 = 64;
/// Limit of a ring's size: that of QEMU.
pub const RING_LEN_MAX: u16 = 1024;
/// Length of a disk's name in its virtual machine.
const NAME_BYTES: usize = 20;

/// A volume as a disk of a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Name of the disk in the virtual machine; its first 20 bytes count.
    pub name: String,
    /// Number of queues, at most [`QUEUES_MAX`].
    pub queues: u16,
    /// Limit of a ring's size, a power of two up to [`RING_LEN_MAX`].
    pub ring_len_max: u16,
    /// Whether its queues poll.
    pub polling: Polling,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            name: String::new(),
            queues: QUEUES_USUAL,
            ring_len_max: RING_LEN_MAX,
            polling: Polling::default(),
        }
    }
}

/// A socket, its volume, and the thread of its front end.
pub(super) struct DeviceDoor {
    listener: Listener,
    /// Number of the export.
    pub(super) export: usize,
    /// Name of the export.
    name: String,
    device: Arc<Device>,
    pub(super) front_end: Threads,
}

impl DeviceDoor {
    pub(super) fn open(
        path: &Path,
        access: &SocketAccess,
        export: &Arc<ServedExport>,
        options: &DeviceOptions,
        ends: Ends,
    ) -> Result<Self, Error> {
        let listen = || Listener::unix(path, access);
        Self::over(path.display().to_string(), listen, export, options, ends)
    }

    /// Over a socket that listens already.
    pub(super) fn inherited(
        fd: OwnedFd,
        export: &Arc<ServedExport>,
        options: &DeviceOptions,
        ends: Ends,
    ) -> Result<Self, Error> {
        let listen = || Listener::inherited_unix(fd);
        Self::over("inherited socket".into(), listen, export, options, ends)
    }

    fn over(
        place: String,
        listen: impl FnOnce() -> Result<Listener, Error>,
        export: &Arc<ServedExport>,
        options: &DeviceOptions,
        ends: Ends,
    ) -> Result<Self, Error> {
        let DeviceOptions { queues, ring_len_max, polling, .. } = *options;
        let fits = (1..=QUEUES_MAX).contains(&queues);
        if !fits || !ring_len_max.is_power_of_two() || ring_len_max > RING_LEN_MAX {
            return Err(Error::parameter(
                place,
                format!(
                    "a disk has 1 to {QUEUES_MAX} queues of a size that is a power of two up to \
                     {RING_LEN_MAX}; it has {queues} of {ring_len_max}"
                ),
            ));
        }
        let mut name = [0; NAME_BYTES];
        name.iter_mut().zip(options.name.bytes()).for_each(|(to, byte)| *to = byte);
        let device = Device {
            volume: Arc::clone(&export.volume),
            priority: export.priority,
            throttle: export.throttle.clone(),
            queues,
            ring_len_max,
            polling,
            place,
            name,
            writeback: Arc::new(AtomicBool::new(true)),
            closing: Arc::default(),
        };
        let listener = listen()?;
        let front_end = Threads::new("vhost device", ends);
        let name = export.name.clone();
        Ok(Self { listener, export: number(export), name, device: Arc::new(device), front_end })
    }

    /// The socket, while there is no front end.
    pub(super) fn vacant(&self) -> Option<&Listener> {
        (self.front_end.len() == 0).then_some(&self.listener)
    }

    /// Takes a waiting front end.
    ///
    /// # Errors
    /// The system has no descriptor for it.
    pub(super) fn accept(&mut self) -> std::io::Result<()> {
        if let Some((socket, _)) = self.listener.accept()? {
            let device = Arc::clone(&self.device);
            let name = self.name.clone();
            self.front_end.start(socket, self.export, move |socket| {
                let peer = socket.peer_name();
                let place = &device.place;
                let event = |kind| Event::new(kind).export(&name).peer(&peer);
                event(Kind::ClientConnected)
                    .say(format_args!("{peer} has opened export {name:?} as a disk at {place}"));
                device.serve(socket.as_fd());
                event(Kind::ClientDisconnected)
                    .say(format_args!("{peer} has left export {name:?} as a disk at {place}"));
            });
        }
        Ok(())
    }
}
