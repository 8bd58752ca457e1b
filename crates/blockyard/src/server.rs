//! Volumes as network block devices and as disks, of virtual machines or of this one, served by
//! this process.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use blockyard_engine::priority::Priority;
use blockyard_engine::throttle::Limits;
use blockyard_host::process::{StopSignal, leave_signals_to_others};
use blockyard_host::server as host;
use blockyard_host::server::{
    Answer, DeviceOptions, FirstUse, Release, ServedExport, ServerOptions, ServerTls, SocketAccess,
    UblkOptions,
};
use blockyard_host::throttle::{Buckets, SharedThrottle};

use crate::control::{Device, Devices, Named};
use crate::error::{contained, contained_with};
use crate::output::InUse;
use crate::rate::RateLimits;
use crate::status::Build;
use crate::tls::{Credentials, ServerPolicy, Tls};
use crate::volume::Shared;
use crate::{Error, Volume, metrics};

mod live;

pub use live::{Leaving, Live};

/// A server of volumes: over NBD, as disks of virtual machines, and as disks of this machine.
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
///
/// A panic on the thread of a connection is a defect of this library. It ends this connection
/// only, its message is on standard error, and [`Running::stop`] does not report it. A panic on the
/// thread of a device or of a cipher worker aborts the process: clients would wait for ever.
#[derive(Default)]
pub struct Server {
    exports: Vec<Export>,
    /// Names of all exports, closed ones too, in order.
    names: Vec<String>,
    /// Limits of the rate, with the exports that share them.
    limits: Vec<Limited>,
    options: ServerOptions,
    doors: Vec<Door>,
    in_use: InUse,
    tls: Option<ServerTls>,
    /// The limits may change while it runs.
    is_live: bool,
    build: Option<Build>,
}

/// Exports that share limits, and the name of their group.
struct Limited {
    group: Option<String>,
    exports: Vec<String>,
    limits: RateLimits,
}

impl Limited {
    fn buckets(&self) -> Arc<Buckets> {
        Arc::new(Buckets::new(self.limits.into()).of_group(self.group.clone()))
    }
}

struct Export {
    name: String,
    volume: Arc<Shared>,
    priority: Priority,
    /// Time without a client after which it is closed.
    idle_close: Option<Duration>,
    max_connections: Option<usize>,
}

impl Export {
    /// With its limits, if it has any or may get some.
    fn served(self, throttle: &Arc<SharedThrottle>, has_throttles: bool) -> ServedExport {
        let has_one = has_throttles || throttle.limits().is_some();
        let throttle = has_one.then(|| Arc::clone(throttle));
        let volume = Arc::clone(&self.volume.host);
        let Self { name, priority, idle_close, max_connections, .. } = self;
        ServedExport { name, volume, priority, throttle, idle_close, max_connections }
    }
}

/// A listening socket.
enum Door {
    Unix(PathBuf),
    /// The first available of these addresses.
    Tcp(Vec<SocketAddr>),
    Descriptor(OwnedFd),
    /// A disk of a virtual machine, by the name of its export.
    VhostUser(PathBuf, String, DeviceOptions),
    VhostUserDescriptor(OwnedFd, String, DeviceOptions),
    /// A disk of this machine, by the name of its export.
    Ublk(String, UblkOptions),
    Control(PathBuf),
    MetricsUnix(PathBuf),
    MetricsTcp(SocketAddr),
}

impl Door {
    fn check(&self) -> Result<(), Error> {
        let (field, path) = match self {
            Self::Unix(path) => ("unix", path),
            Self::VhostUser(path, ..) => ("vhost_user", path),
            Self::Control(path) => ("control", path),
            Self::MetricsUnix(path) => ("metrics_unix", path),
            Self::Tcp(_)
            | Self::Descriptor(_)
            | Self::VhostUserDescriptor(..)
            | Self::Ublk(..)
            | Self::MetricsTcp(_) => return Ok(()),
        };
        if path.as_os_str().is_empty() {
            let problem = format!("`{field}`: the path is empty");
            return Err(Error::options(Path::new("server"), problem));
        }
        Ok(())
    }
}

impl Server {
    /// A server without exports.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Serves a volume by this name. The first export is the default for clients that ask for the
    /// empty name. The program may continue to use the volume.
    #[must_use]
    pub fn export(self, name: impl Into<String>, volume: &Volume) -> Self {
        self.export_with(name, volume, Priority::default())
    }

    /// Like [`Server::export`], with an I/O priority for clients of this name. A volume may have
    /// several names.
    #[must_use]
    pub fn export_with(
        mut self,
        name: impl Into<String>,
        volume: &Volume,
        priority: Priority,
    ) -> Self {
        let (volume, name) = (Arc::clone(volume.shared()), name.into());
        self.names.push(name.clone());
        self.exports.push(Export {
            name,
            volume,
            priority,
            idle_close: None,
            max_connections: None,
        });
        self
    }

    /// Lists a closed export, whose volume the program opens when a client asks for it: see
    /// [`Listening::on_first_use`]. Its place is among the exports in the order of the calls.
    #[must_use]
    pub fn closed(mut self, name: impl Into<String>) -> Self {
        self.names.push(name.into());
        self
    }

    /// Closes these exports after a time without a client, which wipes the volume's keys if the
    /// program does not use the volume. The next client asks for a closed export.
    #[must_use]
    pub fn close_idle<N: AsRef<str>>(
        mut self,
        names: impl IntoIterator<Item = N>,
        limit: Duration,
    ) -> Self {
        for name in names {
            let named = self.exports.iter_mut().filter(|export| export.name == name.as_ref());
            named.for_each(|export| export.idle_close = Some(limit));
        }
        self
    }

    /// Limits the rate of these exports: of all their clients together.
    #[must_use]
    pub fn limit<N: Into<String>>(
        mut self,
        exports: impl IntoIterator<Item = N>,
        limits: RateLimits,
    ) -> Self {
        let exports = exports.into_iter().map(Into::into).collect();
        self.limits.push(Limited { group: None, exports, limits });
        self
    }

    /// Like [`Server::limit`], for a group whose name the status has.
    #[must_use]
    pub fn limit_group<N: Into<String>>(
        mut self,
        group: impl Into<String>,
        exports: impl IntoIterator<Item = N>,
        limits: RateLimits,
    ) -> Self {
        let exports = exports.into_iter().map(Into::into).collect();
        self.limits.push(Limited { group: Some(group.into()), exports, limits });
        self
    }

    /// Listens on a Unix socket with access for its owner only (mode 0600), or as
    /// [`Server::socket_access`] says.
    #[must_use]
    pub fn unix(self, path: impl Into<PathBuf>) -> Self {
        self.door(Door::Unix(path.into()))
    }

    /// Listens on a TCP address. Without [`Server::tls`] the connection is not encrypted.
    #[must_use]
    pub fn tcp(self, address: SocketAddr) -> Self {
        self.door(Door::Tcp(vec![address]))
    }

    /// Listens on the first available of these TCP addresses, because a host name may have several.
    #[must_use]
    pub fn tcp_first_of(self, addresses: Vec<SocketAddr>) -> Self {
        self.door(Door::Tcp(addresses))
    }

    /// Takes over a listening socket, for example from systemd's socket activation.
    #[must_use]
    pub fn descriptor(self, socket: OwnedFd) -> Self {
        self.door(Door::Descriptor(socket))
    }

    /// Offers the export of this name as a disk to a virtual machine, by vhost-user-blk on a Unix
    /// socket like that of [`Server::unix`]. One virtual machine at a time may use the socket.
    #[must_use]
    pub fn vhost_user(
        self,
        path: impl Into<PathBuf>,
        export: impl Into<String>,
        options: DeviceOptions,
    ) -> Self {
        self.door(Door::VhostUser(path.into(), export.into(), options))
    }

    /// Like [`Server::vhost_user`], over a Unix socket that listens already: the program that
    /// starts the virtual machine may have opened it.
    #[must_use]
    pub fn vhost_user_descriptor(
        self,
        socket: OwnedFd,
        export: impl Into<String>,
        options: DeviceOptions,
    ) -> Self {
        self.door(Door::VhostUserDescriptor(socket, export.into(), options))
    }

    /// Offers the export of this name as a disk of this machine, `/dev/ublkbN`, by the kernel's
    /// ublk driver (Linux 6.4). The disk is there while the server runs. It has the size that the
    /// volume has now.
    #[must_use]
    pub fn ublk(self, export: impl Into<String>, options: UblkOptions) -> Self {
        self.door(Door::Ublk(export.into(), options))
    }

    /// Accepts commands of [`Control`](crate::Control) on a Unix socket like that of
    /// [`Server::unix`]. Commands other than `status` need volumes opened with
    /// [`Options::controlled`].
    ///
    /// [`Options::controlled`]: crate::Options::controlled
    #[must_use]
    pub fn control(self, path: impl Into<PathBuf>) -> Self {
        self.door(Door::Control(path.into()))
    }

    /// Serves metrics for Prometheus on a Unix socket (mode 0600).
    #[must_use]
    pub fn metrics_unix(self, path: impl Into<PathBuf>) -> Self {
        self.door(Door::MetricsUnix(path.into()))
    }

    /// Serves metrics for Prometheus on a TCP address, without authentication.
    #[must_use]
    pub fn metrics_tcp(self, address: SocketAddr) -> Self {
        self.door(Door::MetricsTcp(address))
    }

    /// Offers or requires TLS on all NBD sockets, with the certificates of a directory.
    ///
    /// # Errors
    /// A file is missing or damaged, or the key does not belong to the certificate.
    pub fn tls(
        mut self,
        mode: Tls,
        credentials: &Credentials,
        policy: ServerPolicy,
    ) -> Result<Self, Error> {
        self.tls = Some(ServerTls { mode, config: credentials.server(policy)? });
        Ok(self)
    }

    /// Files that no trace may overwrite, in addition to those of the volumes.
    #[must_use]
    pub fn protect(mut self, in_use: InUse) -> Self {
        self.in_use = in_use;
        self
    }

    /// Shows this build of the program in the status and the metrics, in place of the library's.
    #[must_use]
    pub fn build_info(mut self, build: Build) -> Self {
        self.build = Some(build);
        self
    }

    /// Prepares for changes of the exports while the server runs; see [`Listening::live`].
    #[must_use]
    pub fn changing(mut self) -> Self {
        self.is_live = true;
        self
    }

    /// Limit of connections of the volume of these names; others are refused.
    /// [`Server::max_connections`] is the limit of all volumes.
    #[must_use]
    pub fn max_connections_of<N: AsRef<str>>(
        mut self,
        names: impl IntoIterator<Item = N>,
        limit: usize,
    ) -> Self {
        for name in names {
            let named = self.exports.iter_mut().filter(|export| export.name == name.as_ref());
            named.for_each(|export| export.max_connections = Some(limit));
        }
        self
    }

    /// Limit of connections with an open export, 1 to 1024; others wait.
    #[must_use]
    pub fn max_connections(mut self, max_connections: usize) -> Self {
        self.options.max_connections = max_connections;
        self
    }

    /// Access to the sockets of [`Server::unix`], [`Server::vhost_user`] and [`Server::control`].
    /// A user with write permission on a socket reads and writes the plaintext.
    #[must_use]
    pub fn socket_access(mut self, access: SocketAccess) -> Self {
        self.options.socket_access = access;
        self
    }

    fn door(mut self, door: Door) -> Self {
        self.doors.push(door);
        self
    }

    /// Listens. Clients that connect wait until the server runs.
    ///
    /// # Errors
    /// There is no export or no socket, two exports have one name, a name is too long, a socket
    /// cannot be created, or `max_connections` is out of range.
    pub fn listen(self) -> Result<Listening, Error> {
        contained(|| self.open())
    }

    fn open(self) -> Result<Listening, Error> {
        let max = self.options.max_connections;
        if !(1..=host::CONNECTIONS_MAX).contains(&max) || self.names.is_empty() {
            let problem = format!(
                "a server needs an export, and `max_connections` from 1 to {}; it has {} exports \
                 and {max}",
                host::CONNECTIONS_MAX,
                self.names.len()
            );
            return Err(Error::options(Path::new("server"), problem));
        }
        if self.options.socket_access.mode > 0o777 {
            let mode = self.options.socket_access.mode;
            let problem = format!("`socket_access`: mode {mode:o} is more than 777");
            return Err(Error::options(Path::new("server"), problem));
        }
        if self.doors.is_empty() {
            let problem = "a server needs a socket or a disk: `unix`, `tcp`, `descriptor`, \
                           `vhost_user`, `ublk`, `control`, `metrics_unix` or `metrics_tcp`";
            return Err(Error::options(Path::new("server"), problem));
        }
        self.doors.iter().try_for_each(Door::check)?;
        let names = self.names;
        let throttles = throttles(&names, &self.limits)?;
        let throttle = |name: &String| {
            let place = names.iter().position(|one| one == name);
            Arc::clone(&throttles[place.expect("each export has its name in the order")])
        };
        let named: Vec<Named> = self
            .exports
            .iter()
            .map(|Export { name, volume, .. }| (name.clone(), Arc::clone(volume), throttle(name)))
            .collect();
        named.iter().for_each(|(name, volume, _)| volume.follow_growth(name));
        let build = self.build.unwrap_or_else(Build::of_library);
        let devices = Arc::new(Devices::new(build, &names, &named, max, self.in_use));
        // Limits may come later, by the control socket or with other exports.
        let is_controlled = self.doors.iter().any(|door| matches!(door, Door::Control(_)));
        let has_throttles = is_controlled || self.is_live;
        let targets = self.exports.iter().flat_map(|export| export.volume.targets.iter().copied());
        let targets = targets.collect();
        let served = self.exports.into_iter().zip(&named);
        let served = served.map(|(export, (.., of))| export.served(of, has_throttles));
        let mut server = host::Server::new(&names, served.collect(), self.options)?;
        if let Some(tls) = self.tls {
            server.use_tls(tls);
        }
        let addresses = Vec::new();
        let metrics = Vec::new();
        let disks = Vec::new();
        let mut listening =
            Listening { server, names, addresses, metrics, disks, targets, devices, has_throttles };
        let devices = Arc::clone(&listening.devices);
        for door in self.doors {
            listening.open(door, &devices)?;
        }
        Ok(listening)
    }

    /// Listens, and serves on separate threads.
    ///
    /// # Errors
    /// See [`Server::listen`].
    pub fn start(self) -> Result<Running, Error> {
        let listening = self.listen()?;
        let addresses = listening.addresses.clone();
        let failed = |action| move |error: io::Error| Error::file(Path::new(action), error);
        let stop = Arc::new(StopSignal::by_call().map_err(failed("eventfd"))?);
        let waited_for = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("nbd server".to_owned())
            .spawn(move || {
                leave_signals_to_others();
                listening.run(&waited_for, || ())
            })
            .map_err(failed("thread"))?;
        Ok(Running { stop, thread: Some(thread), addresses })
    }
}

/// A server that listens but does not run yet.
pub struct Listening {
    server: host::Server,
    /// Names of the exports, in order.
    names: Vec<String>,
    addresses: Vec<SocketAddr>,
    metrics: Vec<SocketAddr>,
    /// Paths of the disks, by the names of their exports.
    disks: Vec<(String, String)>,
    /// The program's own targets that the volumes may use.
    targets: Vec<&'static str>,
    devices: Arc<Devices>,
    has_throttles: bool,
}

impl Listening {
    /// The TCP addresses of the server, with the ports chosen by the system.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The TCP addresses of [`Server::metrics_tcp`], with the ports chosen by the system.
    #[must_use]
    pub fn metrics_addresses(&self) -> &[SocketAddr] {
        &self.metrics
    }

    /// The paths of the disks of [`Server::ublk`], each behind the name of its export.
    #[must_use]
    pub fn disks(&self) -> &[(String, String)] {
        &self.disks
    }

    /// Shows the disks of [`Server::ublk`] to this machine. Without this call [`Listening::run`]
    /// does it: a program that says what it serves wants to know before.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn start_disks(&mut self) -> Result<(), Error> {
        contained_with(&self.targets, || Ok(self.server.start_disks()?))
    }

    /// Calls a function with the name of a closed export when a client asks for it. The function
    /// runs on the serving thread, so it must return at once; another thread opens the volume, and
    /// calls [`Live::change`] or [`Live::refuse`]. Without this call the clients are refused.
    pub fn on_first_use(&mut self, open: impl Fn(&str) + Send + 'static) {
        let devices = Arc::clone(&self.devices);
        let closing = Box::new(move |names: Vec<String>| released(devices.remove(&names)));
        self.server.on_first_use(FirstUse { open: Box::new(open), closing });
    }

    /// The server for a thread that changes its exports while it runs. Limits of exports that have
    /// none so far need [`Server::changing`].
    #[must_use]
    pub fn live(&self) -> Live {
        let devices = Arc::downgrade(&self.devices);
        Live { remote: self.server.remote(), devices, has_throttles: self.has_throttles }
    }

    /// Serves on this thread until the signal, calls `on_stop`, completes received requests, and
    /// flushes the volumes.
    ///
    /// # Errors
    /// See [`Running::stop`]; or the system cannot wait for clients.
    pub fn run(self, stop: &StopSignal, on_stop: impl FnOnce()) -> Result<(), Error> {
        contained_with(&self.targets, || Ok(self.server.run(stop, on_stop)?))
    }

    fn open(&mut self, door: Door, devices: &Arc<Devices>) -> Result<(), Error> {
        let metrics = || -> Answer {
            let devices = Arc::clone(devices);
            Arc::new(move |head| metrics::answer(head, || devices.status()))
        };
        let server = &mut self.server;
        match door {
            Door::Unix(path) => server.listen_unix(&path)?,
            Door::Tcp(addresses) => self.addresses.push(first_of(server, &addresses)?),
            Door::Descriptor(socket) => server.listen_fd(socket)?,
            Door::VhostUser(path, name, options) => {
                let export = position(&self.names, &name, "vhost_user")?;
                server.listen_vhost_user(&path, export, &options)?;
            }
            Door::VhostUserDescriptor(socket, name, options) => {
                let export = position(&self.names, &name, "vhost_user_descriptor")?;
                server.listen_vhost_user_fd(socket, export, &options)?;
            }
            Door::Ublk(name, options) => {
                let export = position(&self.names, &name, "ublk")?;
                let place = server.add_ublk(export, &options)?;
                self.disks.push((name, place));
            }
            Door::Control(path) => {
                let devices = Arc::clone(devices);
                server.listen_control(&path, Arc::new(move |line| devices.answer(line)))?;
            }
            Door::MetricsUnix(path) => server.listen_metrics_unix(&path, metrics())?,
            Door::MetricsTcp(address) => {
                self.metrics.push(server.listen_metrics_tcp(address, metrics())?);
            }
        }
        Ok(())
    }
}

/// Gives the volumes of removed exports back, after their last flush. An answer of the control
/// socket may work on one: clients must not ask for it again before, because the file is locked.
fn released(devices: Vec<Arc<Device>>) -> Release {
    Box::new(move || devices.into_iter().for_each(Device::give_back))
}

/// The throttle of each export.
fn throttles(names: &[String], limits: &[Limited]) -> Result<Vec<Arc<SharedThrottle>>, Error> {
    let unlimited = || Arc::new(SharedThrottle::new(Arc::new(Buckets::new(Limits::default()))));
    let throttles: Vec<_> = names.iter().map(|_| unlimited()).collect();
    for limited in limits {
        let buckets = limited.buckets();
        for export in &limited.exports {
            throttles[position(names, export, "limit")?].use_buckets(Arc::clone(&buckets));
        }
    }
    Ok(throttles)
}

/// Number of the export that a door has named.
fn position(names: &[String], name: &str, field: &str) -> Result<usize, Error> {
    names.iter().position(|export| export == name).ok_or_else(|| {
        let problem = format!("`{field}`: there is no export {name:?}");
        Error::options(Path::new("server"), problem)
    })
}

/// Listens on the first available address.
fn first_of(server: &mut host::Server, addresses: &[SocketAddr]) -> Result<SocketAddr, Error> {
    let mut failure = Error::options(Path::new("server"), "`tcp_first_of` needs an address");
    for &address in addresses {
        match server.listen_tcp(address) {
            Ok(bound) => return Ok(bound),
            Err(error) => failure = error.into(),
        }
    }
    Err(failure)
}

/// A running server. Dropping it stops it and discards its result.
#[derive(Debug)]
pub struct Running {
    stop: Arc<StopSignal>,
    thread: Option<JoinHandle<Result<(), Error>>>,
    addresses: Vec<SocketAddr>,
}

impl Running {
    /// The TCP addresses of the server, with the ports chosen by the system.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Completes received requests, flushes the volumes and ends. A client that reads no replies
    /// delays it by at most 20 seconds.
    ///
    /// # Errors
    /// A volume cannot be flushed, or a flush failed before: acknowledged writes may be lost.
    pub fn stop(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.stop.stop();
        match thread.join() {
            Ok(outcome) => outcome,
            Err(_) => Err(Error::Defect { targets: Vec::new() }),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
