//! Serves volumes over NBD: listeners, one thread per connection, orderly stop.
//!
//! The stop: listeners are closed, then the receiving side of every connection. What had been sent
//! by then is executed and answered, every file is flushed, and only then [`Server::run`] returns.

mod connection;
mod control;
mod inbox;
mod listen;
mod outbox;
mod pace;
mod reads;
mod socket;
mod transmission;

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use blockyard_engine::priority::Priority;
use blockyard_export::nbd::Export;

use crate::Error;
use crate::memory::Budget;
use crate::poll;
use crate::process::StopSignal;
use crate::volume::Volume;

use connection::Connection;
pub use control::{Answer, REQUEST_BYTES_MAX};
use control::{Control, Framing};
use listen::Listener;
use socket::Socket;

/// Each connection has a thread; more are another design's.
pub const CONNECTIONS_MAX: usize = 1024;
/// So many, unless somebody says otherwise.
pub const CONNECTIONS_USUAL: usize = 64;

/// Limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// Connections at a time, at most [`CONNECTIONS_MAX`]; more wait to be accepted.
    pub max_connections: usize,
    /// How long a client may take until it has opened an export.
    pub handshake_timeout: Duration,
    /// How long connections may take to end after the stop signal.
    pub drain_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            max_connections: CONNECTIONS_USUAL,
            handshake_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(20),
        }
    }
}

/// A name that clients may open. Several names may share one volume.
pub struct ServedExport {
    /// The name; empty for the one that clients get who give none.
    pub name: String,
    /// What they get.
    pub volume: Arc<Volume>,
    /// The I/O priority of whoever opens it by this name.
    pub priority: Priority,
}

/// What connections share.
pub(crate) struct Shared {
    exports: Arc<[Export]>,
    /// In the order of `exports`.
    served: Vec<ServedExport>,
    budget: Arc<Budget>,
    options: ServerOptions,
}

/// Volumes and where clients may connect.
pub struct Server {
    shared: Arc<Shared>,
    listeners: Vec<Listener>,
    connections: Vec<Running>,
    /// Sockets for those who ask and are answered once.
    controls: Vec<Control>,
}

/// A connection and its thread.
struct Running {
    socket: Arc<Socket>,
    thread: JoinHandle<()>,
}

impl Server {
    /// A server of these volumes by name; the first is the one that clients get who give no name.
    ///
    /// # Errors
    /// When a name cannot be an export's name, or there are two of one name.
    ///
    /// # Panics
    /// When `max_connections` exceeds [`CONNECTIONS_MAX`].
    pub fn new(exports: Vec<ServedExport>, options: ServerOptions) -> Result<Self, Error> {
        assert!((1..=CONNECTIONS_MAX).contains(&options.max_connections));
        let mut offered: Vec<Export> = Vec::new();
        for ServedExport { name, volume, .. } in &exports {
            let export = export(name, volume);
            let problem = |problem: String| Error::volume(Path::new(name), problem);
            export.check().map_err(|error| problem(error.to_string()))?;
            if offered.iter().any(|other| other.name == *name) {
                return Err(problem("two exports have this name; give each its own".into()));
            }
            offered.push(export);
        }
        let shared = Shared {
            exports: offered.into(),
            served: exports,
            budget: Budget::new(options.max_connections),
            options,
        };
        Ok(Self {
            shared: Arc::new(shared),
            listeners: Vec::new(),
            connections: Vec::new(),
            controls: Vec::new(),
        })
    }

    /// Listens on a unix socket that only the owner may use (mode 0600). The socket of a server
    /// that is gone is replaced, that of a living one is not.
    ///
    /// # Errors
    /// When the path is taken or cannot be made.
    pub fn listen_unix(&mut self, path: &Path) -> Result<(), Error> {
        self.listeners.push(Listener::unix(path)?);
        Ok(())
    }

    /// Listens on TCP, and says on which address (port 0 is any free one).
    ///
    /// # Errors
    /// When the address cannot be had.
    pub fn listen_tcp(&mut self, address: SocketAddr) -> Result<SocketAddr, Error> {
        let (listener, address) = Listener::tcp(address)?;
        self.listeners.push(listener);
        Ok(address)
    }

    /// Takes over a listening socket, as of systemd's socket activation.
    ///
    /// # Errors
    /// When the descriptor is no socket.
    pub fn listen_fd(&mut self, fd: OwnedFd) -> Result<(), Error> {
        self.listeners.push(Listener::inherited(fd)?);
        Ok(())
    }

    /// Answers control requests on a unix socket, as [`Server::listen_unix`]: each connection sends
    /// a line, of which `answer` makes the reply.
    ///
    /// # Errors
    /// As [`Server::listen_unix`].
    pub fn listen_control(&mut self, path: &Path, answer: Answer) -> Result<(), Error> {
        self.controls.push(Control::new(Listener::unix(path)?, Framing::Line, answer));
        Ok(())
    }

    /// Answers requests of HTTP on a unix socket, as [`Server::listen_unix`]: `answer` makes the
    /// whole reply of a head.
    ///
    /// # Errors
    /// As [`Server::listen_unix`].
    pub fn listen_metrics_unix(&mut self, path: &Path, answer: Answer) -> Result<(), Error> {
        self.controls.push(Control::new(Listener::unix(path)?, Framing::Http, answer));
        Ok(())
    }

    /// The same on TCP; says on which address.
    ///
    /// # Errors
    /// As [`Server::listen_tcp`].
    pub fn listen_metrics_tcp(
        &mut self,
        address: SocketAddr,
        answer: Answer,
    ) -> Result<SocketAddr, Error> {
        let (listener, address) = Listener::tcp(address)?;
        self.controls.push(Control::new(listener, Framing::Http, answer));
        Ok(address)
    }

    /// Serves until `stop`, calls `on_stop`, then drains and flushes.
    ///
    /// # Errors
    /// When a volume cannot be flushed: then not everything may be on stable storage.
    pub fn run(mut self, stop: &StopSignal, on_stop: impl FnOnce()) -> Result<(), Error> {
        while !self.accept_until(stop)? {
            self.join_ended();
        }
        stop.take();
        on_stop();
        stop.restore_default();
        self.listeners.clear();
        self.shared.served.iter().for_each(|served| served.volume.stop());
        self.drain();
        self.controls.drain(..).for_each(Control::end);
        self.flush()
    }

    /// Each volume once, however many names it has.
    fn flush(&self) -> Result<(), Error> {
        let mut flushed: Vec<*const Volume> = Vec::new();
        for ServedExport { volume, .. } in &self.shared.served {
            if !flushed.contains(&Arc::as_ptr(volume)) {
                flushed.push(Arc::as_ptr(volume));
                volume.flush()?;
            }
        }
        Ok(())
    }

    /// Waits for one event; whether it was the stop.
    fn accept_until(&mut self, stop: &StopSignal) -> Result<bool, Error> {
        let full = self.connections.len() >= self.shared.options.max_connections;
        let mut fds = vec![Some(stop.as_fd())];
        fds.extend(self.controls.iter().map(Control::ready));
        if !full {
            fds.extend(self.listeners.iter().map(|listener| Some(listener.as_fd())));
        }
        // With all places taken, look every now and then whether one has become free.
        let limit = full.then_some(Duration::from_millis(50));
        let ready = poll::readable_of(&fds, limit)
            .map_err(|error| Error::io(Path::new("listening sockets"), "wait on", error))?;
        if ready[0] {
            return Ok(true);
        }
        let (of_controls, of_listeners) = ready[1..].split_at(self.controls.len());
        let asked = self.controls.iter_mut().zip(of_controls).filter(|(_, ready)| **ready);
        asked.for_each(|(control, _)| control.accept());
        for (index, _) in of_listeners.iter().enumerate().filter(|(_, ready)| **ready) {
            match self.listeners[index].accept() {
                Ok(Some(socket)) => self.start(socket),
                Ok(None) => {}
                // Out of descriptors: those in use come back when connections end.
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        Ok(false)
    }

    fn start(&mut self, socket: Socket) {
        self.join_ended();
        let socket = Arc::new(socket);
        let connection = Connection::new(Arc::clone(&self.shared), Arc::clone(&socket));
        let thread = std::thread::Builder::new()
            .name("connection".into())
            .stack_size(256 << 10)
            .spawn(move || connection.serve());
        // Without a thread the client sees its connection closed.
        if let Ok(thread) = thread {
            self.connections.push(Running { socket, thread });
        }
    }

    fn join_ended(&mut self) {
        self.controls.iter_mut().for_each(Control::join_ended);
        for index in (0..self.connections.len()).rev() {
            if self.connections[index].thread.is_finished() {
                let _ = self.connections.swap_remove(index).thread.join();
            }
        }
    }

    fn drain(&mut self) {
        for running in &self.connections {
            running.socket.stop_receiving();
        }
        let deadline = Instant::now() + self.shared.options.drain_timeout;
        while Instant::now() < deadline {
            self.join_ended();
            if self.connections.is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        for running in self.connections.drain(..) {
            running.socket.shut_down();
            let _ = running.thread.join();
        }
    }
}

/// What clients are told about a volume.
fn export(name: &str, volume: &Volume) -> Export {
    Export {
        description: volume.describe().to_owned(),
        read_only: volume.read_only(),
        can_trim: volume.can_discard(),
        can_fast_zero: volume.can_fast_zero() && !volume.read_only(),
        multi_conn: true,
        block_preferred_bytes: volume.sector_size_bytes().max(4096),
        ..Export::new(name, volume.size_bytes())
    }
}
