//! `blockyard serve`: volumes as network block devices and disks of virtual machines, until
//! SIGTERM or SIGINT, or until a command ends. SIGHUP reads `--config` again.
//!
//! ```text
//! options or --config -> read headers, get passphrases -> signals into a descriptor
//! -> derive keys, start workers -> listen -> --pid-file, "serving …", --run -> sandbox, --ublk,
//! READY=1
//! -> until a signal, or the end of --run: drain, flush
//! ```
//!
//! During the questions for passphrases Ctrl-C simply ends the program; signals are blocked before
//! the first thread starts, and so in every thread.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use blockyard::keys::stop_programs;
use blockyard::sandbox::Parts;
use blockyard::{
    DirtyBitmapOptions, Listening, RateLimits, Server, SocketAccess, StopSignal, TraceFile,
    UblkOptions, Volume,
};
use blockyard_host::log::{catch_up, never_wait};
use blockyard_host::process::{CollectedSignal, flush_for_others, raise_descriptors};
use blockyard_host::server::{CONNECTIONS_MAX, CONNECTIONS_USUAL, check_ublk};
use blockyard_host::volume::VolumeOptions;
use clap::{Args, ValueHint};
use sd_notify::NotifyState;

use crate::args::{ForceArgs, HelpArgs, RateArgs, SchedulingArgs, VolumeArgs};
use crate::bitmap_spec::{BitmapPlace, parse_granularity};
use crate::config::{Config, ExportSpec, RateSpec, check_export_name, check_names};
use crate::disk_spec::{DiskSocket, disk_name};
use crate::failure::{Failure, printable};
use crate::key::StdinUse;
use crate::nbd;
use crate::output::{InUse, say};
use crate::scheduling::{Alias, checked_minimum_block};
use crate::version;
use crate::volume_spec::{Prepared, Unlocked};

mod activation;
mod addresses;
mod announcement;
mod first_use;
mod fixed;
pub(crate) mod foreign;
mod lifetime;
pub(crate) mod log;
mod own_disk;
mod reload;
pub(crate) mod sandbox;
mod service_manager;
pub(crate) mod sockets;
mod steps;
pub(crate) mod tls;
mod vhost_user;

use activation::Activated;
use addresses::{absolute, reachable_host, resolved, say_metrics, with_metrics};
use announcement::announcement;
use fixed::{ComputingArgs, Fixed};
use lifetime::{LifetimeArgs, PidFile, Running};
use log::LogArgs;
use reload::Current;
use sandbox::{Outside, SandboxArgs};
use service_manager::tell_service_manager;
use sockets::{AccessArgs, PrivateFolder};
use tls::TlsArgs;
use vhost_user::VhostUserArgs;

/// No present machine gains from more cipher workers.
pub(crate) const THREADS_MAX: i64 = 1024;
/// Options that `--config` excludes: the file has them for each volume.
const OF_ONE_VOLUME: [&str; 48] = [
    "iops_limit",
    "bps_limit",
    "burst",
    "volume",
    "trace",
    "pipeline",
    "pages",
    "table",
    "kind",
    "header",
    "key_slot",
    "max_kdf_memory",
    "max_kdf_time",
    "direct",
    "key_file",
    "keyfile_offset",
    "keyfile_size",
    "key_fd",
    "key_command",
    "key_credential",
    "no_token",
    "token_only",
    "token_id",
    "token_type",
    "cipher",
    "key_size",
    "hash",
    "offset",
    "skip",
    "size",
    "sector_size",
    "iv_large_sectors",
    "export_name",
    "read_only",
    "shared",
    "allow_discards",
    "minimum_block",
    "dirty_bitmap",
    "dirty_granularity",
    "elevator",
    "queue_depth",
    "max_sectors",
    "ioprio",
    "alias",
    "vhost_user",
    "ublk",
    "fd",
    "blk_file",
];

/// Serve volumes over NBD, to virtual machines, or as local disks
///
/// The server runs until SIGTERM or SIGINT, then completes requests of clients, flushes and exits;
/// a second SIGTERM or SIGINT ends the server at once. With --run, it also ends with a command.
/// SIGHUP lets the server read --config again: exports come and go, others are not touched. The
/// server accepts sockets from systemd (socket activation), and notifies systemd when ready.
// 20 fields: one for each option of the command, and groups of options.
#[derive(Args, Debug)]
#[command(disable_help_flag = true, mut_arg("force", |force| force.requires("trace")))]
pub(crate) struct ServeArgs {
    /// Listen on a Unix socket; `-` makes a private one
    ///
    /// Only its owner may use the socket (mode 0600). `-` makes a private folder with a socket in
    /// $XDG_RUNTIME_DIR, which goes with the server.
    #[arg(short = 'U', short_alias = 'k', long, visible_alias = "unix", value_name = "PATH",
          value_hint = ValueHint::FilePath)]
    socket: Option<PathBuf>,

    #[command(flatten)]
    access: AccessArgs,

    /// Listen on a TCP port (default 10809)
    ///
    /// Addresses beyond this machine need TLS or --insecure.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,

    #[command(flatten)]
    tls: TlsArgs,

    #[command(flatten)]
    vhost_user: VhostUserArgs,

    /// Accept commands on a Unix socket (mode 0600)
    ///
    /// The commands are status, top, suspend, resume, resize, limit, backup, message, trace record
    /// and stop, reload and forget.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    control: Option<PathBuf>,

    /// Record requests of clients from the start, into this file: see `blockyard trace`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    trace: Option<PathBuf>,

    /// Serve metrics to Prometheus at HOST:PORT or a Unix socket, whose path has a `/`
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,

    #[command(flatten)]
    export: ExportArgs,

    #[command(flatten)]
    computing: ComputingArgs,

    /// Limit of connections with an open export; more wait [default: 64, or 8 for each export]
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=CONNECTIONS_MAX as i64))]
    max_connections: Option<u16>,

    /// Serve the volumes of a TOML file as named exports
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = OF_ONE_VOLUME)]
    config: Option<PathBuf>,

    #[command(flatten)]
    log: LogArgs,

    #[command(flatten)]
    lifetime: LifetimeArgs,

    #[command(flatten)]
    sandbox: SandboxArgs,

    #[command(flatten)]
    volume: VolumeArgs,

    #[command(flatten)]
    scheduling: SchedulingArgs,

    #[command(flatten)]
    rate: RateArgs,

    #[command(flatten)]
    force: ForceArgs,

    #[command(flatten)]
    help: HelpArgs,
}

/// Options of the export.
#[derive(Args, Debug)]
struct ExportArgs {
    /// Name of the export; the default export has the empty name
    #[arg(short_alias = 'x', long, value_name = "NAME")]
    export_name: Option<String>,

    /// Refuse writes
    #[arg(short = 'r', long, alias = "readonly")]
    read_only: bool,

    /// Allow other servers to write to the same image with --shared too, for two paths to it
    #[arg(long, conflicts_with = "read_only")]
    shared: bool,

    /// Pass TRIM down to the file or device, which reveals free areas of the volume
    #[arg(long)]
    allow_discards: bool,

    /// Minimum block size of clients [default: 1, or the encryption sector if a power cut would
    /// destroy all of a sector in writing: see docs/targets/crypt.md]
    #[arg(long, value_name = "BYTES", value_parser = parse_minimum_block)]
    minimum_block: Option<u32>,

    /// Track the blocks that are written, for incremental backups: see docs/backup.md
    ///
    /// NBD clients read the bitmap as the metadata context `qemu:dirty-bitmap:NAME`. It lasts in
    /// FILE, which is made if it does not exist.
    #[arg(long, value_name = "NAME=FILE", value_parser = BitmapPlace::parse,
          conflicts_with = "shared")]
    dirty_bitmap: Option<BitmapPlace>,

    /// Length of a block in a new dirty bitmap, a power of two, 4K to 64M [default: 64K]
    #[arg(long, value_name = "SIZE", value_parser = parse_granularity, requires = "dirty_bitmap")]
    dirty_granularity: Option<u32>,

    /// Make the volume the disk /dev/ublkbN of this machine
    ///
    /// Without N, the disk has any number. The option needs the kernel's ublk (Linux 6.4): see
    /// docs/ublk.md.
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true,
          conflicts_with_all = ["disk_socket", "run"])]
    ublk: Option<Option<u32>>,
}

impl ExportArgs {
    fn dirty_bitmap(&self) -> Option<DirtyBitmapOptions> {
        let place = self.dirty_bitmap.clone();
        place.map(|place| place.options(Path::new(""), self.dirty_granularity))
    }
}

/// Volumes to serve, and addresses.
// 14 fields: one for each choice of the options and the configuration.
struct Plan {
    exports: Vec<Arc<ExportSpec>>,
    /// Limits that exports share.
    limit_groups: BTreeMap<String, RateLimits>,
    socket: Option<PathBuf>,
    addresses: Vec<SocketAddr>,
    control: Option<PathBuf>,
    metrics: Option<String>,
    fixed: Fixed,
    /// With its certificates, which are read before any question for a passphrase.
    server: Server,
    max_connections: usize,
    activated: Vec<Activated>,
    access: SocketAccess,
    pid_file: Option<PathBuf>,
    sandbox: SandboxArgs,
    /// The folder of a private socket.
    private_folder: Option<PathBuf>,
}

/// A server that is about to run.
struct Serving<'a> {
    args: &'a Arc<ServeArgs>,
    plan: Plan,
    /// `None`: an export that is opened at its first use.
    volumes: Vec<Option<Volume>>,
    outside: Option<&'a Outside>,
}

impl Serving<'_> {
    /// Follows SIGHUP and the control socket, if the sandbox and the command of `--run` have
    /// started. Returns the volume that is recorded from the start: an export of the configuration
    /// may be removed, which closes its volume.
    fn follow_reloads(
        self,
        listening: &mut Listening,
        servers: &[nbd::Server],
        signal: CollectedSignal,
    ) -> Result<Option<Volume>, Failure> {
        let Self { args, plan, volumes, outside } = self;
        let Plan { exports, limit_groups, fixed, .. } = plan;
        let current = Current { exports, limit_groups };
        let broker = outside.map(Outside::broker);
        let servers = servers.to_vec();
        reload::start(args, listening, servers, (current, fixed), (signal, broker))?;
        Ok(args.trace.as_ref().and(volumes.into_iter().next().flatten()))
    }
}

/// Serves until a signal, or until the end of a command, whose exit code it returns.
pub(crate) fn run(args: Box<ServeArgs>) -> Result<ExitCode, Failure> {
    let args: Arc<ServeArgs> = args.into();
    if args.vhost_user.prints_capabilities() {
        return vhost_user::print_capabilities().map(|()| ExitCode::SUCCESS);
    }
    args.lifetime.follow_parent()?;
    args.log.apply(args.lifetime.run.is_some());
    never_wait();
    // Before any thread: taking the sockets changes the environment.
    let activated = activation::sockets()?;
    // Before any thread or secret. The last to be dropped: it removes what the others cannot.
    let outside = Outside::start(&args)?;
    let mut plan = Plan::new(&args, activated)?;
    let cpus = plan.fixed.place(&args)?;
    plan.raise_descriptors();
    let outside = outside.filter(|_| !plan.sandbox.is_off());
    outside.as_ref().zip(cpus).map_or(Ok(()), |(outside, cpus)| outside.run_on(&cpus))?;
    plan.pid_file.iter().try_for_each(|path| PidFile::check(path, &plan.in_use(&args, &[])))?;
    let prepared = plan.prepare(&args)?;
    let (stop, reload) = StopSignal::install_for_server()
        .map_err(|error| Failure::failed(format!("cannot catch signals: {error}")))?;
    let mut volumes = Vec::with_capacity(prepared.len());
    for (spec, prepared) in plan.exports.iter().zip(prepared) {
        let started = prepared.map(|prepared| started(spec, prepared.unlock()?)).transpose();
        volumes.push(started.map_err(|failure| at_export(&args, spec, failure))?);
    }
    let in_use = plan.in_use(&args, &volumes);
    if let (Some(path), Some(volume)) = (&args.trace, volumes.iter().flatten().next()) {
        let to = TraceFile { path: path.clone(), replace: args.force.force, limit: None };
        volume.record(&plan.exports[0].name, &to, &in_use)?;
    }
    // Dropped after the server, whose socket it holds.
    let _folder = plan.make_private_socket()?;
    let (listening, servers) = plan.listen(&volumes, in_use)?;
    // Before the line that programs wait for.
    let pid_file = plan.pid_file.as_ref().map(|path| PidFile::write(path)).transpose()?;
    for (spec, volume) in plan.exports.iter().zip(&volumes) {
        if spec.ublk.is_none() {
            let tls = &plan.fixed.tls;
            announcement(spec, volume.as_ref(), &servers, None, tls)
                .iter()
                .for_each(|line| say(line));
        }
    }
    let serving = Serving { args: &args, plan, volumes, outside: outside.as_ref() };
    let code = serve(serving, listening, (stop, reload), &servers);
    drop(pid_file);
    catch_up();
    code
}

/// Serves on sockets that listen, beside the command of `--run`.
fn serve(
    serving: Serving<'_>,
    mut listening: Listening,
    (stop, reload): (StopSignal, CollectedSignal),
    servers: &[nbd::Server],
) -> Result<ExitCode, Failure> {
    let outside = serving.outside;
    // Before the command of `--run` starts: it may write to these files.
    outside.map_or(Ok(()), |outside| outside.keep(&serving.plan))?;
    let running = serving.args.lifetime.run.as_ref().map(|command| {
        let Plan { exports, fixed, .. } = &serving.plan;
        let export = &exports[0].name;
        let uri = servers.first().map(|server| fixed.tls.uri_with_certificates(server, export));
        Running::start(command, export, uri, servers)
    });
    let running = running.transpose()?;
    service_manager::connect();
    let limited = outside.map_or(Ok(()), |outside| serving.limit(outside, running.as_ref()));
    let recorded = limited.and_then(|()| {
        let lines = serving.of_disks(&listening, servers);
        let recorded = serving.follow_reloads(&mut listening, servers, reload)?;
        // Their clients are all programs of this machine, so they come after the limits, and after
        // all steps that may fail.
        listening.start_disks()?;
        lines.iter().for_each(|line| say(line));
        Ok(recorded)
    });
    let stop = recorded.and_then(|recorded| match &running {
        None => Ok((stop, recorded)),
        Some(running) => match stop.or_readable(&running.end) {
            Ok(stop) => Ok((stop, recorded)),
            Err(error) => {
                let problem = format!("--run: its end cannot be waited for: {error}");
                Err(Failure::failed(problem))
            }
        },
    });
    let is_told = Cell::new(true);
    let terminate = || {
        stop_programs();
        match (outside, &running) {
            (Some(outside), _) => is_told.set(outside.stop()),
            (None, Some(running)) => running.terminate(),
            (None, None) => {}
        }
    };
    let (stop, recorded) = stop.inspect_err(|_| terminate())?;
    tell_service_manager(&[NotifyState::Ready]);
    let served = listening.run(&stop, || {
        tell_service_manager(&[NotifyState::Stopping]);
        terminate();
    });
    let code = running.map_or(Ok(ExitCode::SUCCESS), |running| running.exit_code(is_told.get()));
    // The recording may have been stopped already.
    if let Some(volume) = recorded
        && let Some(recorded) = volume.stop_recording()?
    {
        say(&format!("trace: {recorded}"));
    }
    served?;
    code
}

fn nowhere_to_listen(args: &ServeArgs) -> Failure {
    match &args.config {
        Some(path) => Failure::failed(
            "nowhere to listen: set `socket` or `listen`, or `vhost_user` or `ublk` of an export, \
             or say --socket PATH",
        )
        .at(path.display()),
        None => Failure::failed(
            "nowhere to listen: name a Unix socket with --socket PATH, a TCP port with --listen \
             HOST:PORT, the socket of a virtual machine with --vhost-user PATH, or a disk of this \
             machine with --ublk",
        ),
    }
}

/// The failure of an export, with its place in the configuration.
fn at_export(args: &ServeArgs, spec: &ExportSpec, failure: Failure) -> Failure {
    match args.config {
        Some(_) => failure.at(format_args!("exports.{}", printable(&spec.name))),
        None => failure,
    }
}

/// Reads the header of a volume, and gets its passphrase.
fn prepared(
    spec: &ExportSpec,
    threads: Option<u16>,
    controlled: bool,
    stdin_use: StdinUse,
) -> Result<Prepared, Failure> {
    let settings = VolumeOptions {
        read_only: spec.read_only,
        shared: spec.shared,
        allow_discards: spec.allow_discards,
        minimum_block_bytes: spec.minimum_block_bytes,
        dirty_bitmap: spec.dirty_bitmap.clone(),
        worker_threads: threads.map(usize::from),
        scheduling: spec.scheduling.clone(),
        pipeline: spec.pipeline,
        bounce: spec.bounce,
        controlled,
        ..VolumeOptions::default()
    };
    spec.volume.prepare(settings, stdin_use)
}

/// Starts the volume.
fn started(spec: &ExportSpec, unlocked: Unlocked) -> Result<Volume, Failure> {
    let volume = unlocked.start()?;
    check_minimum_block(spec, &volume)?;
    Ok(volume)
}

/// Clients count a disk in blocks.
fn check_minimum_block(spec: &ExportSpec, volume: &Volume) -> Result<(), Failure> {
    let size = volume.len();
    let block = volume.minimum_block();
    if size.is_multiple_of(block.into()) {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "{}: its size, {size} bytes, is no multiple of the minimum block, {block} bytes; choose a \
         smaller one, as in --minimum-block 512",
        spec.volume.path.display()
    )))
}

impl Plan {
    fn new(args: &ServeArgs, activated: Vec<Activated>) -> Result<Self, Failure> {
        let config = match &args.config {
            Some(path) => Config::read(path)?,
            None => Config { exports: vec![single_export(args)?], ..Config::default() },
        };
        args.log.or(config.log).apply(args.lifetime.run.is_some());
        let fixed = Fixed::of(args, &config);
        let access_args = args.access.clone().or(config.access);
        let access = access_args.access()?;
        let pid_file = args.lifetime.pid_file.clone().or(config.pid_file);
        let mut socket = args.socket.clone().or(config.socket);
        let listen = args.listen.as_ref().or(config.listen.as_ref());
        let addresses = listen.map_or_else(|| Ok(Vec::new()), |listen| resolved(listen))?;
        let sandbox = args.sandbox.or(config.sandbox.clone());
        sandbox.check(Parts::of_kernel())?;
        let tls = &fixed.tls;
        let inherited = activated.iter().filter_map(|activated| activated.address.as_ref());
        addresses.iter().chain(inherited).try_for_each(|address| tls.check_address(address))?;
        let server = tls.apply(Server::new().build_info(version::build()))?;
        let control = args.control.clone().or(config.control);
        let metrics = args.metrics.clone().or(config.metrics);
        let Config { exports, limit_groups, max_connections, .. } = config;
        let has_ublk = exports.iter().any(|export| export.ublk.is_some());
        if has_ublk {
            check_ublk()?;
            own_disk::check(args, &exports)?;
            // Before any thread that may write for the kernel.
            flush_for_others();
        }
        let has_disk = has_ublk || exports.iter().any(|export| export.disk.is_some());
        let has_nbd = socket.is_some() || !addresses.is_empty() || !activated.is_empty();
        if !has_nbd && !has_disk && args.lifetime.run.is_some() {
            socket = Some(PathBuf::from("-"));
        } else if !has_nbd && !has_disk {
            return Err(nowhere_to_listen(args));
        }
        check_passed_once(&exports, &activated)?;
        socket.iter().try_for_each(|path| check_folder("--socket", path))?;
        sockets::check_private(socket.as_deref(), &access_args)?;
        for disk in exports.iter().filter_map(|export| export.disk.as_ref()) {
            if let DiskSocket::Path(path) = &disk.socket {
                check_folder("--vhost-user", path)?;
            }
        }
        // A client usually has four connections.
        let usual = CONNECTIONS_USUAL.max(8 * exports.len()).min(CONNECTIONS_MAX);
        let max_connections = args.max_connections.or(max_connections);
        let max_connections = max_connections.map_or(usual, usize::from);
        Ok(Self {
            exports: exports.into_iter().map(Arc::new).collect(),
            limit_groups,
            socket,
            addresses,
            control,
            metrics,
            fixed,
            server,
            max_connections,
            activated,
            access,
            pid_file,
            sandbox,
            private_folder: None,
        })
    }

    /// Raises the limit of descriptors, as far as the system permits, if the exports need more.
    fn raise_descriptors(&self) {
        // A connection has a socket and a ring. A volume has files, rings of its device, and its
        // files once more in the sandbox: 8 at most was counted with one device.
        const OF_THE_PROCESS: usize = 64;
        const OF_CONNECTION: usize = 2;
        const OF_EXPORT: usize = 16;
        let of_exports = OF_EXPORT * self.exports.len();
        raise_descriptors(OF_THE_PROCESS + OF_CONNECTION * self.max_connections + of_exports);
    }

    /// Makes the folder of a private socket, if one is asked for.
    fn make_private_socket(&mut self) -> Result<Option<PrivateFolder>, Failure> {
        if !self.socket.as_deref().is_some_and(sockets::is_private) {
            return Ok(None);
        }
        let folder = PrivateFolder::make()?;
        self.socket = Some(folder.socket());
        self.private_folder = Some(folder.path().to_owned());
        Ok(Some(folder))
    }

    /// Reads all headers and gets all passphrases, before slow key derivations. Exports that are
    /// opened at their first use have none.
    fn prepare(&self, args: &ServeArgs) -> Result<Vec<Option<Prepared>>, Failure> {
        let Fixed { threads, is_controlled, .. } = self.fixed;
        let prepare = |spec: &Arc<ExportSpec>| {
            let now = spec.first_use.is_none();
            let prepared = now.then(|| prepared(spec, threads, is_controlled, StdinUse::Free));
            prepared.transpose().map_err(|failure| at_export(args, spec, failure))
        };
        self.exports.iter().map(prepare).collect()
    }

    /// All files that an output must not overwrite.
    fn in_use(&self, args: &ServeArgs, volumes: &[Option<Volume>]) -> InUse {
        let exports = self.exports.iter().flat_map(|export| export.paths());
        let mut in_use = InUse::of_paths(exports.chain(args.config.as_deref()));
        volumes.iter().flatten().for_each(|volume| in_use.add_volume(volume));
        in_use
    }

    /// Opens the sockets, and reports their addresses.
    fn listen(
        &mut self,
        volumes: &[Option<Volume>],
        in_use: InUse,
    ) -> Result<(Listening, Vec<nbd::Server>), Failure> {
        let server = std::mem::take(&mut self.server).socket_access(self.access);
        let mut server = server.max_connections(self.max_connections).protect(in_use).changing();
        for (spec, volume) in self.exports.iter().zip(volumes) {
            server = with_export(server, spec, volume.as_ref());
        }
        let mut server = with_limits(server, &self.exports, &self.limit_groups, |_| true);
        let mut servers = Vec::new();
        if let Some(socket) = &self.socket {
            server = server.unix(socket);
            servers.push(nbd::Server::Unix(absolute(socket)));
        }
        if !self.addresses.is_empty() {
            server = server.tcp_first_of(self.addresses.clone());
        }
        let tcp_place = servers.len();
        for spec in &self.exports {
            server = with_disk(server, spec)?;
            if let Some(options) = &spec.ublk {
                server = server.ublk(&spec.name, options.clone());
            }
        }
        for activated in self.activated.drain(..) {
            servers.extend(activated.place);
            activated.address.iter().for_each(|address| self.fixed.tls.warn_if_exposed(address));
            server = server.descriptor(activated.fd);
        }
        if let Some(socket) = &self.control {
            server = server.control(socket);
        }
        if let Some(place) = &self.metrics {
            server = with_metrics(server, place)?;
        }
        let listening = server.listen()?;
        for address in listening.addresses() {
            let place = nbd::Server::Tcp(reachable_host(address), address.port());
            servers.insert(tcp_place, place);
            self.fixed.tls.warn_if_exposed(address);
        }
        listening.metrics_addresses().iter().for_each(say_metrics);
        Ok((listening, servers))
    }
}

/// Adds an export with all its names; without a volume it is closed.
fn with_export(server: Server, spec: &ExportSpec, volume: Option<&Volume>) -> Server {
    let Some(volume) = volume else { return spec.names().fold(server, Server::closed) };
    let mut server = with_names(server, spec, volume);
    if let Some(limit) = spec.max_connections {
        server = server.max_connections_of(spec.names(), limit);
    }
    match spec.first_use.and_then(|first_use| first_use.idle_close) {
        Some(limit) => server.close_idle(spec.names(), limit),
        None => server,
    }
}

fn with_names(server: Server, spec: &ExportSpec, volume: &Volume) -> Server {
    let server = server.export_with(&spec.name, volume, spec.priority);
    let add =
        |server: Server, alias: &Alias| server.export_with(&alias.name, volume, alias.priority);
    spec.aliases.iter().fold(server, add)
}

/// Adds the limits of those exports that are asked for, and of all exports of their groups.
fn with_limits(
    mut server: Server,
    exports: &[Arc<ExportSpec>],
    groups: &BTreeMap<String, RateLimits>,
    is_asked_for: impl Fn(&ExportSpec) -> bool,
) -> Server {
    for spec in exports.iter().filter(|spec| is_asked_for(spec)) {
        match &spec.rate {
            RateSpec::None => server = server.limit(spec.names(), RateLimits::default()),
            RateSpec::Own(limits) => server = server.limit(spec.names(), *limits),
            RateSpec::Group(_) => {}
        }
    }
    for (group, limits) in groups {
        let is_in =
            |spec: &Arc<ExportSpec>| matches!(&spec.rate, RateSpec::Group(of) if of == group);
        let members: Vec<_> = exports.iter().filter(|spec| is_in(spec)).collect();
        if members.iter().any(|spec| is_asked_for(spec)) {
            let names = members.iter().flat_map(|spec| spec.names());
            server = server.limit_group(group, names, *limits);
        }
    }
    server
}

/// Adds the socket of a virtual machine.
fn with_disk(server: Server, spec: &ExportSpec) -> Result<Server, Failure> {
    let Some(disk) = &spec.disk else { return Ok(server) };
    let options = disk.options.clone();
    match &disk.socket {
        DiskSocket::Path(path) => Ok(server.vhost_user(path, &spec.name, options)),
        DiskSocket::Inherited(number, socket) => {
            let socket = socket.try_clone().map_err(|error| {
                Failure::failed(format!("--fd {number}: it cannot be duplicated: {error}"))
            })?;
            Ok(server.vhost_user_descriptor(socket, &spec.name, options))
        }
    }
}

/// One socket cannot be that of NBD clients and of a virtual machine.
fn check_passed_once(exports: &[ExportSpec], activated: &[Activated]) -> Result<(), Failure> {
    for disk in exports.iter().filter_map(|export| export.disk.as_ref()) {
        let DiskSocket::Inherited(number, _) = &disk.socket else { continue };
        if activated.iter().any(|socket| socket.fd.as_raw_fd() == *number) {
            return Err(Failure::failed(format!(
                "--fd {number}: socket activation (LISTEN_FDS) has passed this socket for NBD \
                 clients; pass another one, or start the server without LISTEN_FDS"
            )));
        }
    }
    Ok(())
}

/// Whether a socket can be made at a path.
fn check_folder(option: &str, path: &Path) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder.filter(|folder| !folder.is_dir()) {
        None => Ok(()),
        Some(folder) => Err(Failure::failed(format!(
            "{option}: the folder {} does not exist; create it first",
            folder.display()
        ))),
    }
}

fn parse_minimum_block(text: &str) -> Result<u32, String> {
    checked_minimum_block(text.parse().unwrap_or(0))
}

fn single_export(args: &ServeArgs) -> Result<ExportSpec, Failure> {
    let name = args.export.export_name.clone().unwrap_or_default();
    check_export_name(&name).map_err(|failure| failure.at("--export-name"))?;
    let volume = args.vhost_user.named_volume(&args.volume).spec();
    let volume = volume.map_err(|failure| foreign::hinted(failure, args))?;
    let limits = args.rate.limits().map_err(|problem| Failure::failed(problem).at("--burst"))?;
    let disk = args.vhost_user.disk(disk_name(&name, &volume.path))?;
    let ublk = args.export.ublk.map(|number| UblkOptions { number });
    let export = ExportSpec {
        name,
        volume,
        read_only: args.export.read_only,
        shared: args.export.shared,
        allow_discards: args.export.allow_discards,
        minimum_block_bytes: args.export.minimum_block,
        dirty_bitmap: args.export.dirty_bitmap(),
        scheduling: args.scheduling.scheduling(),
        pipeline: args.scheduling.pipeline(),
        bounce: args.scheduling.bounce(),
        priority: args.scheduling.priority(),
        rate: RateSpec::of(limits),
        aliases: args.scheduling.aliases(),
        disk,
        ublk,
        first_use: None,
        max_connections: None,
        text: None,
    };
    check_names(std::slice::from_ref(&export)).map_err(|failure| failure.at("--alias"))?;
    Ok(export)
}
