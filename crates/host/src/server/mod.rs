//! Serves volumes over NBD and to virtual machines: listeners, threads, orderly stop.
//!
//! ```text
//! listener ─ accept ─> waiting ─ an export is open, and there is room ──> thread
//! │                     └ silent: time limit, or its descriptor is needed
//! ├ control, metrics ─> waiting ─ the request is complete ─> thread
//! └ virtual machine ─> thread, and one for each of its queues (`vhost_user`)
//! ```
//! One thread serves all listeners and all waiting clients (`waiting`) without blocking. Exports
//! may come and go meanwhile (`exchange`).
//!
//! The stop closes the listeners, then the receiving side of every connection. All requests
//! received by then are executed and answered, every file is flushed, and then [`Server::run`]
//! returns.

mod access;
mod connection;
mod control;
mod devices;
mod exchange;
mod exports;
mod first_use;
mod handshake;
mod inbox;
mod listen;
mod outbox;
mod pace;
mod reads;
mod socket;
mod threads;
mod transmission;
mod waiting;

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::process::{Resource, getrlimit};

use crate::Error;
use crate::canary::{Canary, is_planted};
use crate::log::{Event, Kind};
use crate::memory::Budget;
use crate::poll;
use crate::process::StopSignal;
use crate::ublk::{self, Served};
use crate::volume::Volume;

pub use access::SocketAccess;
use control::{ANSWERS_LIMIT, Control, Framing};
pub use control::{Answer, REQUEST_BYTES_MAX};
use devices::DeviceDoor;
pub use devices::{DeviceOptions, Polling, QUEUES_MAX, QUEUES_USUAL, RING_LEN_MAX};
use exchange::{Call, Flush, Leaving, number};
pub use exchange::{Exchange, Outcome, Remote};
use exports::Catalogue;
pub use exports::ServedExport;
pub use first_use::{FirstUse, Release};
use handshake::Handshake;
pub use handshake::ServerTls;
use listen::Listener;
pub use listen::inherited_unix_socket;
use threads::{Ends, Threads};
use waiting::{Limits, Waiting};

pub use crate::ublk::{UblkOptions, check as check_ublk};

/// Limit of connections; each has a thread.
pub const CONNECTIONS_MAX: usize = 1024;
/// Default limit of connections.
pub const CONNECTIONS_USUAL: usize = 64;
/// Limit of clients without an open export; see [`handshakes_max`].
const HANDSHAKES_MAX: usize = 256;
/// Their share of the process's descriptors is one in this number; the rest is for connections.
const HANDSHAKES_SHARE: u64 = 4;
/// Their limit per TCP address: a client with 16 connections, four times.
const HANDSHAKES_OF_ONE_PEER_MAX: usize = 64;
/// Pause of accepting after the system had no descriptor, unless one becomes free earlier: ten
/// attempts a second cost nothing.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// Limit of connections with an open export, at most [`CONNECTIONS_MAX`]. Further clients may
    /// negotiate, and wait for room with the reply that opens their export.
    pub max_connections: usize,
    /// Time limit of the handshake.
    pub handshake_timeout: Duration,
    /// Time limit of connections after the stop signal.
    pub drain_timeout: Duration,
    /// Access to the Unix sockets that the server makes, but for that of the metrics.
    pub socket_access: SocketAccess,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            max_connections: CONNECTIONS_USUAL,
            handshake_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(20),
            socket_access: SocketAccess::default(),
        }
    }
}

/// Limit of waiting clients; the most silent one is then closed. The system's limit of descriptors
/// would leave none for connections of active clients.
fn handshakes_max() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let share = (descriptors / HANDSHAKES_SHARE).clamp(1, HANDSHAKES_MAX as u64);
    usize::try_from(share).expect("it is at most a usize")
}

/// Parts that connections share.
pub(crate) struct Shared {
    budget: Arc<Budget>,
    /// Held by a connection while it allocates its memory.
    starting: Mutex<()>,
    options: ServerOptions,
}

/// Volumes and listening sockets.
// 15 fields: the exports, the sockets, and the clients of each kind of socket.
pub struct Server {
    shared: Arc<Shared>,
    catalogue: Catalogue,
    /// Opens and closes exports when clients come and leave.
    first_use: first_use::State,
    /// Exports that were removed and are not closed yet.
    leaving: Vec<Leaving>,
    /// Calls of other threads, through `remote`.
    calls: Receiver<Call>,
    remote: Remote,
    listeners: Vec<Listener>,
    tls: Option<ServerTls>,
    /// Clients without an open export, or waiting for room.
    handshakes: Waiting<Handshake>,
    connections: Threads,
    /// Sockets with one request per connection.
    controls: Vec<Control>,
    /// Sockets of virtual machines.
    devices: Vec<DeviceDoor>,
    /// Disks of this machine.
    disks: Vec<ublk::Disk>,
    ends: Ends,
    /// End of the pause of accepting.
    paused_until: Option<Instant>,
}

/// Source of an event.
#[derive(Clone, Copy)]
enum Source {
    Stop,
    /// A thread has ended.
    Ends,
    Listener(usize),
    ControlListener(usize),
    DeviceListener(usize),
    Handshake(usize),
    /// A client of a control socket.
    Request {
        control: usize,
        client: usize,
    },
}

impl Server {
    /// A server of exports with these names; the first is the default export. A name without an
    /// export is that of a closed one: see [`FirstUse`].
    ///
    /// # Errors
    /// A name is invalid or used twice, or the system has no more descriptors.
    ///
    /// # Panics
    /// `max_connections` exceeds [`CONNECTIONS_MAX`].
    pub fn new(
        order: &[String],
        exports: Vec<ServedExport>,
        options: ServerOptions,
    ) -> Result<Self, Error> {
        assert!((1..=CONNECTIONS_MAX).contains(&options.max_connections));
        // Not with one connection: a client that opens more would wait for itself.
        let catalogue = Catalogue::new(order, exports, options.max_connections > 1)?;
        let shared = Shared {
            budget: Budget::new(options.max_connections),
            starting: Mutex::new(()),
            options,
        };
        let ends = Ends::new().map_err(|error| Error::io(Path::new("eventfd"), "make", error))?;
        let (remote, calls) = Remote::new(ends.clone());
        Ok(Self {
            shared: Arc::new(shared),
            catalogue,
            first_use: first_use::State::default(),
            leaving: Vec::new(),
            calls,
            remote,
            listeners: Vec::new(),
            tls: None,
            handshakes: Waiting::new(Limits {
                clients_max: handshakes_max(),
                of_one_peer_max: HANDSHAKES_OF_ONE_PEER_MAX,
                time: options.handshake_timeout,
            }),
            connections: Threads::new("connection", ends.clone()),
            controls: Vec::new(),
            devices: Vec::new(),
            disks: Vec::new(),
            ends,
            paused_until: None,
        })
    }

    /// Offers or requires TLS on all NBD connections.
    pub fn use_tls(&mut self, tls: ServerTls) {
        self.tls = Some(tls);
    }

    /// Listens on a Unix socket with [`ServerOptions::socket_access`]. Replaces the socket of an
    /// ended server, but not that of a running one.
    ///
    /// # Errors
    /// The path is taken or cannot be created.
    pub fn listen_unix(&mut self, path: &Path) -> Result<(), Error> {
        self.listeners.push(Listener::unix(path, &self.shared.options.socket_access)?);
        Ok(())
    }

    /// Listens on TCP; returns the address (port 0 means any free port).
    ///
    /// # Errors
    /// The address is not available.
    pub fn listen_tcp(&mut self, address: SocketAddr) -> Result<SocketAddr, Error> {
        let (listener, address) = Listener::tcp(address)?;
        self.listeners.push(listener);
        Ok(address)
    }

    /// Takes over a listening socket, for example from systemd's socket activation.
    ///
    /// # Errors
    /// The descriptor is no socket.
    pub fn listen_fd(&mut self, fd: OwnedFd) -> Result<(), Error> {
        self.listeners.push(Listener::inherited(fd)?);
        Ok(())
    }

    /// Offers an export as a disk to a virtual machine, by vhost-user on a Unix socket like that of
    /// [`Server::listen_unix`].
    ///
    /// # Errors
    /// See [`Server::listen_unix`]; or a number of the options is out of its range.
    ///
    /// # Panics
    /// No export has this number.
    pub fn listen_vhost_user(
        &mut self,
        path: &Path,
        export: usize,
        options: &DeviceOptions,
    ) -> Result<(), Error> {
        let access = &self.shared.options.socket_access;
        let export = self.catalogue.at(export);
        self.devices.push(DeviceDoor::open(path, access, export, options, self.ends.clone())?);
        Ok(())
    }

    /// Like [`Server::listen_vhost_user`], over a Unix socket that listens already.
    ///
    /// # Errors
    /// The descriptor is no such socket; or a number of the options is out of its range.
    ///
    /// # Panics
    /// No export has this number.
    pub fn listen_vhost_user_fd(
        &mut self,
        fd: OwnedFd,
        export: usize,
        options: &DeviceOptions,
    ) -> Result<(), Error> {
        let export = self.catalogue.at(export);
        self.devices.push(DeviceDoor::inherited(fd, export, options, self.ends.clone())?);
        Ok(())
    }

    /// Offers an export as a disk of this machine, by the kernel's ublk driver; returns its path.
    /// The disk comes with [`Server::start_disks`].
    ///
    /// # Errors
    /// The kernel has no ublk, this user may not use it, or another server has the disk.
    ///
    /// # Panics
    /// No export has this number.
    pub fn add_ublk(&mut self, export: usize, options: &UblkOptions) -> Result<String, Error> {
        let export = self.catalogue.at(export);
        let served = Served {
            name: export.name.clone(),
            volume: Arc::clone(&export.volume),
            priority: export.priority,
            throttle: export.throttle.clone(),
        };
        let disk = ublk::Disk::new(&served, options)?;
        let place = disk.place();
        self.disks.push(disk);
        Ok(place)
    }

    /// Shows the disks of [`Server::add_ublk`] to this machine, as [`Server::run`] does otherwise.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn start_disks(&mut self) -> Result<(), Error> {
        self.disks.iter_mut().try_for_each(ublk::Disk::start)
    }

    /// Answers control requests on a Unix socket like that of [`Server::listen_unix`]: each
    /// connection sends a line, and `answer` produces the reply.
    ///
    /// # Errors
    /// See [`Server::listen_unix`].
    pub fn listen_control(&mut self, path: &Path, answer: Answer) -> Result<(), Error> {
        let listener = Listener::unix(path, &self.shared.options.socket_access)?;
        self.add_control(listener, Framing::Line, answer);
        Ok(())
    }

    /// Answers HTTP requests on a Unix socket like that of [`Server::listen_unix`], which only its
    /// owner may use: `answer` produces the whole reply to a head.
    ///
    /// # Errors
    /// See [`Server::listen_unix`].
    pub fn listen_metrics_unix(&mut self, path: &Path, answer: Answer) -> Result<(), Error> {
        let listener = Listener::unix(path, &SocketAccess::default())?;
        self.add_control(listener, Framing::Http, answer);
        Ok(())
    }

    /// Answers HTTP requests on TCP; returns the address.
    ///
    /// # Errors
    /// See [`Server::listen_tcp`].
    pub fn listen_metrics_tcp(
        &mut self,
        address: SocketAddr,
        answer: Answer,
    ) -> Result<SocketAddr, Error> {
        let (listener, address) = Listener::tcp(address)?;
        self.add_control(listener, Framing::Http, answer);
        Ok(address)
    }

    fn add_control(&mut self, listener: Listener, framing: Framing, answer: Answer) {
        self.controls.push(Control::new(listener, framing, answer, self.ends.clone()));
    }

    /// Serves until `stop`, calls `on_stop`, then drains and flushes.
    ///
    /// # Errors
    /// A volume cannot be flushed, or a flush failed before: data may not be on stable storage. Or
    /// the system cannot wait for clients: the server then stops as if by `stop`.
    pub fn run(mut self, stop: &StopSignal, on_stop: impl FnOnce()) -> Result<(), Error> {
        self.start_disks()?;
        let waited = self.serve_until(stop);
        if waited.is_ok() {
            stop.take();
        }
        // First: a second signal ends a server whose `on_stop` waits.
        stop.restore_default();
        on_stop();
        self.listeners.clear();
        self.handshakes.end();
        // Other threads get no answer from here on.
        self.calls = mpsc::channel().1;
        let volumes = self.catalogue.volumes();
        let asked: Vec<_> = volumes.iter().flat_map(|volume| volume.stop()).collect();
        self.drain();
        // Before the flush: the kernel may write meanwhile.
        let stopped = self.disks.drain(..).map(|mut disk| disk.stop());
        let stopped = stopped.fold(Ok(()), Result::and);
        // The flush shows their errors.
        asked.into_iter().for_each(|asked| drop(asked.answer()));
        // Before waiting for control answers: a hanging answer costs no data.
        let removed = std::mem::take(&mut self.leaving).into_iter().map(Leaving::abandon);
        let (left, flushes): (Vec<_>, Vec<_>) = removed.unzip();
        let flushed = flushes.iter().map(Flush::outcome).fold(Ok(()), Result::and);
        let all = [&volumes[..], &left.concat()].concat();
        let flushed = flushed.and(flush_all(&all)).and(self.first_use.take_outcome());
        let deadline = Instant::now() + ANSWERS_LIMIT;
        self.controls.drain(..).for_each(|control| control.end(deadline));
        // Answers may have kept volumes from their close.
        flushes.iter().for_each(|flush| flush.wait_until(deadline));
        flushed.and(waited).and(stopped)
    }

    fn serve_until(&mut self, stop: &StopSignal) -> Result<(), Error> {
        loop {
            let ready = self.wait(stop)?;
            if ready.iter().any(|source| matches!(source, Source::Stop)) {
                return Ok(());
            }
            let now = Instant::now();
            // Clients from the last to the first, because removing a client moves the last ones.
            // Then the listeners.
            ready.into_iter().rev().for_each(|source| self.on_ready(now, source));
            self.handshakes.expire(now);
            self.controls.iter_mut().for_each(|control| control.waiting.expire(now));
            // In this order: an exchange opens what clients wait for, who are served then.
            self.connections.join_ended();
            self.go_on_with_exchanges();
            self.answer_first_uses(now);
            self.serve_complete();
            self.close_idle(now);
        }
    }

    /// Waits for events.
    fn wait(&self, stop: &StopSignal) -> Result<Vec<Source>, Error> {
        let now = Instant::now();
        let sources = self.sources(now, stop);
        let deadlines = self.controls.iter().map(|control| control.waiting.next_deadline());
        let deadlines = deadlines.chain([self.handshakes.next_deadline(), self.paused_until]);
        let deadlines = deadlines.chain(self.leaving.iter().map(Leaving::deadline));
        let deadlines = deadlines.chain([self.first_use.next_deadline()]);
        let limit = deadlines.flatten().min().map(|at| at.saturating_duration_since(now));
        let fds: Vec<_> = sources.iter().map(|(_, fd, events)| (*fd, *events)).collect();
        let ready = poll::ready_among(&fds, limit).map_err(|error| {
            Error::io(Path::new("listening sockets"), "wait for a connection", error)
        })?;
        let sources = sources.iter().zip(ready).filter(|(_, ready)| *ready);
        Ok(sources.map(|((source, ..), _)| *source).collect())
    }

    fn sources<'a>(
        &'a self,
        now: Instant,
        stop: &'a StopSignal,
    ) -> Vec<(Source, BorrowedFd<'a>, PollFlags)> {
        let mut sources = vec![
            (Source::Stop, stop.as_fd(), PollFlags::IN),
            (Source::Ends, self.ends.as_fd(), PollFlags::IN),
        ];
        if self.paused_until.is_none_or(|until| until <= now) {
            let doors = self.listeners.iter().enumerate();
            let doors = doors.filter(|_| !self.handshakes.is_full());
            sources.extend(
                doors.map(|(at, door)| (Source::Listener(at), door.as_fd(), PollFlags::IN)),
            );
            let controls = self.controls.iter().enumerate();
            let controls = controls.filter(|(_, control)| !control.waiting.is_full());
            sources.extend(controls.map(|(at, control)| {
                (Source::ControlListener(at), control.listener.as_fd(), PollFlags::IN)
            }));
            let devices = self.devices.iter().enumerate();
            sources.extend(devices.filter_map(|(at, device)| {
                Some((Source::DeviceListener(at), device.vacant()?.as_fd(), PollFlags::IN))
            }));
        }
        let handshakes = self.handshakes.sources().enumerate();
        sources.extend(handshakes.map(|(at, (fd, events))| (Source::Handshake(at), fd, events)));
        for (control, waiting) in self.controls.iter().map(|one| &one.waiting).enumerate() {
            let requests = waiting.sources().enumerate();
            sources.extend(
                requests.map(|(client, (fd, events))| {
                    (Source::Request { control, client }, fd, events)
                }),
            );
        }
        sources
    }

    fn on_ready(&mut self, now: Instant, source: Source) {
        match source {
            Source::Stop => {}
            Source::Ends => {
                // A descriptor may be free now.
                self.paused_until = None;
                self.ends.reset();
            }
            Source::Listener(at) => match self.listeners[at].accept() {
                Ok(Some((socket, peer))) => {
                    let handshake = Handshake::new(self.catalogue.offer(), self.tls.as_ref());
                    self.handshakes.admit(now, socket, peer, handshake);
                }
                Ok(None) => {}
                Err(_) => self.make_room(now),
            },
            Source::ControlListener(at) => match self.controls[at].listener.accept() {
                Ok(Some((socket, peer))) => self.controls[at].admit(now, socket, peer),
                Ok(None) => {}
                Err(_) => self.make_room(now),
            },
            Source::DeviceListener(at) => {
                if self.devices[at].accept().is_err() {
                    self.make_room(now);
                }
            }
            Source::Handshake(at) => self.handshakes.on_ready(now, at),
            Source::Request { control, client } => {
                self.controls[control].waiting.on_ready(now, client);
            }
        }
    }

    /// Frees a descriptor or memory for another client: closes the most silent client, or pauses
    /// accepting.
    fn make_room(&mut self, now: Instant) {
        let waiting = self.controls.iter_mut().map(|control| &mut control.waiting);
        if !self.handshakes.make_room() && !waiting.into_iter().any(Waiting::make_room) {
            self.paused_until = Some(now + ACCEPT_PAUSE);
        }
    }

    /// Starts threads for waiting clients, within the limit.
    fn serve_complete(&mut self) {
        self.connections.join_ended();
        while self.connections.len() < self.shared.options.max_connections
            && let Some((socket, handshake)) = self.handshakes.take_complete()
        {
            let shared = Arc::clone(&self.shared);
            let opened = handshake.into_opened();
            // The client has negotiated with a list from before.
            let Some(export) = opened.export.clone().filter(|one| self.catalogue.has(one)) else {
                continue;
            };
            if self.is_taken(&export) {
                continue;
            }
            self.connections.start(socket, number(&export), move |socket| {
                connection::serve(&shared, socket, &export, opened);
            });
        }
        self.controls.iter_mut().for_each(Control::answer);
        self.devices.iter_mut().for_each(|device| device.front_end.join_ended());
    }

    /// Whether an export has as many connections as it may have, by all names of its volume. The
    /// client is refused: one that opens several at once would wait for itself.
    fn is_taken(&self, export: &ServedExport) -> bool {
        let Some(limit) = export.max_connections else { return false };
        let all = self.catalogue.served();
        let names = all.filter(|one| Arc::ptr_eq(&one.volume, &export.volume)).map(number);
        let names: Vec<usize> = names.collect();
        let is_taken = self.connections.count(|of| names.contains(&of)) >= limit;
        if is_taken {
            let refused = Event::new(Kind::ClientRefused).export(&export.name);
            refused.say(format_args!(
                "a client is refused: export {:?} has its {limit} connections already",
                export.name
            ));
        }
        is_taken
    }

    /// The threads that serve data.
    fn threads(&mut self) -> impl Iterator<Item = &mut Threads> {
        let leaving = self.leaving.iter_mut().flat_map(|leaving| &mut leaving.doors);
        let doors = self.devices.iter_mut().chain(leaving);
        let front_ends = doors.map(|device| &mut device.front_end);
        std::iter::once(&mut self.connections).chain(front_ends)
    }

    fn drain(&mut self) {
        let throttles = self.catalogue.served().filter_map(|one| one.throttle.as_ref());
        throttles.for_each(|throttle| throttle.lift());
        self.threads().for_each(|threads| threads.stop_receiving(|_| true));
        let deadline = Instant::now() + self.shared.options.drain_timeout;
        loop {
            self.ends.reset();
            self.threads().for_each(Threads::join_ended);
            let left = deadline.saturating_duration_since(Instant::now());
            if self.threads().all(|threads| threads.len() == 0) || left.is_zero() {
                break;
            }
            if poll::readable(&[Some(self.ends.as_fd())], Some(left)).is_err() {
                break;
            }
        }
        self.threads().for_each(|threads| threads.shut_down(|_| true));
        self.threads().for_each(Threads::join);
        self.devices.clear();
    }
}

/// Flushes all volumes; returns the first failure and reports the others.
fn flush_all(volumes: &[Arc<Volume>]) -> Result<(), Error> {
    if is_planted(Canary::ExitFlush) {
        return Ok(());
    }
    let mut outcome = Ok(());
    for volume in volumes {
        match volume.flush() {
            Err(error) if outcome.is_err() => {
                Event::new(Kind::FlushFailed).say(format_args!("{error}"));
            }
            Err(error) => outcome = Err(error),
            Ok(()) => {}
        }
    }
    outcome
}

#[cfg(test)]
mod tests;
