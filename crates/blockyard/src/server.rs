//! Volumes as network block devices, served by this process.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use blockyard_engine::priority::Priority;
use blockyard_host::process::{StopSignal, leave_signals_to_others};
use blockyard_host::server as host;
use blockyard_host::server::{ServedExport, ServerOptions};

use crate::{Error, Volume};

/// An NBD server of volumes.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let volume = blockyard::Volume::options().open("home.img")?;
/// let server = blockyard::Server::new().export("", &volume).unix("home.sock").start()?;
/// // Clients connect to nbd+unix:///?socket=home.sock.
/// server.stop()?;
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct Server {
    exports: Vec<ServedExport>,
    options: ServerOptions,
    unix: Vec<PathBuf>,
    tcp: Vec<SocketAddr>,
}

impl Server {
    /// A server without exports.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Serves a volume by this name. The first export is the one that clients get who ask for the
    /// empty name. The program may go on using the volume.
    #[must_use]
    pub fn export(mut self, name: impl Into<String>, volume: &Volume) -> Self {
        let volume = Arc::clone(volume.host());
        self.exports.push(ServedExport {
            name: name.into(),
            volume,
            priority: Priority::default(),
        });
        self
    }

    /// Listens on a Unix socket, which only its owner may use (mode 0600).
    #[must_use]
    pub fn unix(mut self, path: impl Into<PathBuf>) -> Self {
        self.unix.push(path.into());
        self
    }

    /// Listens on a TCP address. The connection is not encrypted.
    #[must_use]
    pub fn tcp(mut self, address: SocketAddr) -> Self {
        self.tcp.push(address);
        self
    }

    /// Connections with an open export at a time, 1 to 1024; others wait.
    #[must_use]
    pub fn max_connections(mut self, max_connections: usize) -> Self {
        self.options.max_connections = max_connections;
        self
    }

    /// Listens, and serves on threads of its own.
    ///
    /// # Errors
    /// When there is no export, two have one name, a socket cannot be made, or `max_connections` is
    /// out of its range.
    pub fn start(self) -> Result<Running, Error> {
        let max = self.options.max_connections;
        if !(1..=host::CONNECTIONS_MAX).contains(&max) || self.exports.is_empty() {
            let problem = format!(
                "a server needs an export, and `max_connections` from 1 to {}; it has {} exports \
                 and {max}",
                host::CONNECTIONS_MAX,
                self.exports.len()
            );
            return Err(Error::options(Path::new("server"), problem));
        }
        let mut server = host::Server::new(self.exports, self.options)?;
        for path in &self.unix {
            server.listen_unix(path)?;
        }
        let mut addresses = Vec::new();
        for address in self.tcp {
            addresses.push(server.listen_tcp(address)?);
        }
        let failed = |action| move |error: io::Error| Error::file(Path::new(action), error);
        let stop = Arc::new(StopSignal::by_call().map_err(failed("eventfd"))?);
        let waited_for = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("nbd server".to_owned())
            .spawn(move || {
                leave_signals_to_others();
                server.run(&waited_for, || ())
            })
            .map_err(failed("thread"))?;
        Ok(Running { stop, thread: Some(thread), addresses })
    }
}

/// A server that runs. Dropping it stops it, and its outcome is lost.
#[derive(Debug)]
pub struct Running {
    stop: Arc<StopSignal>,
    thread: Option<JoinHandle<Result<(), blockyard_host::Error>>>,
    addresses: Vec<SocketAddr>,
}

impl Running {
    /// The TCP addresses that it listens on, with the ports that the system has chosen.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Finishes what clients have asked for, flushes the volumes and ends. A client that takes no
    /// replies delays it by 20 seconds at most.
    ///
    /// # Errors
    /// When a volume cannot be flushed, or a flush has failed before: then acknowledged writes may
    /// be lost.
    pub fn stop(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.stop.stop();
        match thread.join() {
            Ok(outcome) => Ok(outcome?),
            Err(_) => {
                let problem = "a defect in blockyard ended the server; the message is on stderr";
                Err(Error::options(Path::new("server"), problem))
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
