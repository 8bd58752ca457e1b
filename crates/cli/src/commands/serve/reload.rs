//! The configuration is read again while the server runs: at SIGHUP, or for a client of the control
//! socket.
//!
//! ```text
//! read and check the whole file ── new exports are opened ──> removed exports leave, new ones come
//!        wrong: nothing changes     one fails: nothing changes          │
//!                             exports with other settings: closed by now, and opened again
//! ```
//! Exports without a change are not touched: their connections, recordings and limits stay. Limits
//! change without a new opening. Settings of the whole server need a restart, except the files of
//! TLS and the log.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use blockyard::{Leaving, Listening, Live, RateLimits, Reloaded, Server, Volume};
use blockyard_host::broker::Broker;
use blockyard_host::log::{Event, Kind, Value};
use blockyard_host::process::{CollectedSignal, leave_signals_to_others};
use blockyard_host::remote::is_remote;
use blockyard_host::sandbox::{self, hinders_reading};
use sd_notify::NotifyState;

use super::first_use::{self, Turns};
use super::fixed::Fixed;
use super::{
    ServeArgs, announcement, own_disk, prepared, started, tell_service_manager, with_disk,
    with_export, with_limits,
};
use crate::config::{Config, ExportSpec, RateSpec};
use crate::disk_spec::DiskSocket;
use crate::failure::{Exit, Failure, printable};
use crate::key::{KeySource, StdinUse};
use crate::nbd;
use crate::output::{InUse, say};

/// Stack of a reload: opening a volume needs more than an answer of the control socket has. This is
/// the usual size of a main thread.
pub(super) const STACK_BYTES: usize = 8 << 20;

/// Reads the configuration of a server again.
pub(super) struct Reloader {
    args: Arc<ServeArgs>,
    pub(super) live: Live,
    /// Addresses of exports.
    servers: Vec<nbd::Server>,
    /// Settings that only a restart changes.
    fixed: Fixed,
    /// The process outside of the sandbox, if the server has one.
    broker: Option<Weak<Broker>>,
    /// One reload at a time.
    reloads: Mutex<()>,
    /// Locked only briefly, and for each change of the exports.
    current: Mutex<Current>,
    /// One key derivation at a time: it may take a large part of the memory.
    unlocks: Mutex<()>,
    /// One opening at a time of each export that is opened at its first use.
    pub(super) first_uses: Turns,
    /// Exports that clients of the control socket are closing.
    pub(super) closes: Mutex<BTreeSet<String>>,
}

/// Exports and limits that the server has now.
pub(super) struct Current {
    pub(super) exports: Vec<Arc<ExportSpec>>,
    pub(super) limit_groups: BTreeMap<String, RateLimits>,
}

/// Follows SIGHUP and the control socket from now on.
pub(super) fn start(
    args: &Arc<ServeArgs>,
    listening: &mut Listening,
    servers: Vec<nbd::Server>,
    (current, fixed): (Current, Fixed),
    (signal, broker): (CollectedSignal, Option<Weak<Broker>>),
) -> Result<(), Failure> {
    let args = Arc::clone(args);
    let live = listening.live();
    let reloader = Arc::new(Reloader {
        args,
        live,
        servers,
        fixed,
        broker,
        reloads: Mutex::default(),
        current: Mutex::new(current),
        unlocks: Mutex::default(),
        first_uses: Turns::default(),
        closes: Mutex::default(),
    });
    if reloader.args.config.is_some() {
        let for_clients = Arc::clone(&reloader);
        reloader.live.on_reload(move || on_a_thread(&for_clients));
        first_use::start(&reloader, listening);
    }
    let by_signal = move || {
        leave_signals_to_others();
        while signal.wait().is_ok() {
            // The log has the outcome.
            let turn = reloader.reloads.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = reloader.reload(&turn);
        }
    };
    let thread = std::thread::Builder::new().name("reload".into()).stack_size(STACK_BYTES);
    let started = thread.spawn(by_signal);
    started.map(drop).map_err(|error| Failure::failed(format!("cannot start a thread: {error}")))
}

fn on_a_thread(reloader: &Arc<Reloader>) -> Result<Reloaded, String> {
    let reloader = Arc::clone(reloader);
    let thread = std::thread::Builder::new().name("reload".into()).stack_size(STACK_BYTES);
    let reload = move || {
        // Clients that wait would take the control socket from all others.
        let turn = match reloader.reloads.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::failed("another reload is running; try again after it"));
            }
        };
        reloader.reload(&turn)
    };
    let thread = thread.spawn(reload).map_err(|error| error.to_string())?;
    let outcome = thread.join().map_err(|_| "a defect has ended the reload".to_owned())?;
    outcome.map_err(|failure| failure.message)
}

/// Reads the configuration file again and checks it, and reads the certificates for new
/// connections. The sandbox permits the file that had this name at the start, and an editor may
/// have replaced it, so the process outside opens it.
fn read_again(
    path: &Path,
    args: &ServeArgs,
    fixed: &Fixed,
    broker: Option<&Weak<Broker>>,
) -> Result<Read, Failure> {
    let file = match broker.map(Weak::upgrade) {
        None => File::open(path),
        Some(Some(broker)) => broker.open_configuration(),
        // The server ends.
        Some(None) => Err(io::ErrorKind::NotFound.into()),
    };
    let config = Config::read_opened(path, file)?;
    let changed = fixed.changed(&Fixed::of(args, &config));
    let server = Server::new();
    let keeps_tls = !changed.contains(&"tls");
    let tls = args.tls.or(config.tls.clone());
    let server = if keeps_tls {
        tls.apply(server).map_err(|failure| explained(tls.paths(), failure))?
    } else {
        server
    };
    let warning = |name| format!("`{name}` has changed, which takes effect after a restart");
    Ok(Read { config, server, warnings: changed.into_iter().map(warning).collect() })
}

/// A configuration that was read again.
struct Read {
    config: Config,
    /// With the certificates.
    server: Server,
    warnings: Vec<String>,
}

/// A reload that failed.
struct Problem {
    /// Exports have changed, but not all.
    is_partial: bool,
    failure: Failure,
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        Self { is_partial: false, failure }
    }
}

/// A new export, and its volume. `None`: it is opened at its first use.
pub(super) type Opened = (Arc<ExportSpec>, Option<Volume>);

impl Reloader {
    pub(super) fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the configuration again, and logs the outcome.
    fn reload(&self, _turn: &MutexGuard<'_, ()>) -> Result<Reloaded, Failure> {
        let Some(path) = &self.args.config else {
            Event::new(Kind::Warning).say(format_args!(
                "SIGHUP: there is no configuration to read again, because the server was started \
                 without --config; it continues"
            ));
            return Ok(Reloaded::default());
        };
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            tell_service_manager(&[NotifyState::Reloading, now]);
        }
        let outcome = self.apply(path);
        match &outcome {
            Ok(reloaded) => log(path, reloaded),
            Err(Problem { is_partial, failure }) => {
                let how = if *is_partial { "reloaded only in part" } else { "not reloaded" };
                let event = Event::new(Kind::ReloadFailed);
                event.say(format_args!("{} was {how}: {failure}", path.display()));
            }
        }
        tell_service_manager(&[NotifyState::Ready]);
        outcome.map_err(|problem| problem.failure)
    }

    /// Exports are opened and closed without the lock of the present ones: clients of others ask
    /// meanwhile.
    fn apply(&self, path: &Path) -> Result<Reloaded, Problem> {
        let Read { config, server, warnings } =
            read_again(path, &self.args, &self.fixed, self.broker.as_ref())?;
        own_disk::check(&self.args, &config.exports)?;
        let log = self.args.log.or(config.log);
        let plan = Plan::of(&self.current(), config.exports, config.limit_groups);
        plan.check_ublk()?;
        let (opened, later) = self.open_new(&plan)?;
        // From here on the configuration holds.
        let change = || {
            let mut current = self.current();
            let mut after =
                Current { exports: plan.kept.clone(), limit_groups: plan.groups.clone() };
            let leaving = self.change(&mut after, &opened, &plan.limited, server)?;
            *current = after;
            Ok::<_, Failure>(leaving)
        };
        let mut errors = waited(change()?)?;
        for spec in later {
            let Err(failure) = self.add(&spec, &mut errors) else { continue };
            let name = &spec.name;
            // Its clients are disconnected, but can come back.
            let former = plan.leaving.iter().find(|former| former.name == *name);
            let is_back = former.is_some_and(|former| self.add(former, &mut errors).is_ok());
            let end = if is_back { "it is served as before" } else { "it is not served" };
            errors.push(format!("exports.{}: {failure}; {end}", printable(name)));
        }
        log.apply(self.args.lifetime.run.is_some());
        if errors.is_empty() {
            return Ok(plan.outcome(warnings));
        }
        Err(Problem { is_partial: true, failure: Failure::failed(errors.join("; ")) })
    }

    /// Opens an export after others have left, and serves it too.
    fn add(&self, spec: &Arc<ExportSpec>, errors: &mut Vec<String>) -> Result<(), Failure> {
        let opened = [(Arc::clone(spec), self.open_now(spec)?)];
        let change = || self.change(&mut self.current(), &opened, &BTreeSet::new(), Server::new());
        errors.extend(waited(change()?)?);
        Ok(())
    }

    /// Opens new exports while all others are served. Those that need a file or a socket of an
    /// export that leaves follow later.
    fn open_new(&self, plan: &Plan) -> Result<(Vec<Opened>, Vec<Arc<ExportSpec>>), Failure> {
        if sandbox::parts().is_some() {
            for spec in plan.added.iter().chain(&plan.replaced) {
                let at = || format!("exports.{}", printable(&spec.name));
                check_sandbox(spec).map_err(|failure| failure.at(at()))?;
            }
        }
        for spec in &plan.replaced {
            if spec.volume.asks_for_key() {
                return Err(Failure::failed(format!(
                    "exports.{}: its passphrase cannot be read a second time, so its new settings \
                     take effect after a restart; `key_file` gives it at a reload too",
                    printable(&spec.name)
                )));
            }
        }
        let mut opened = Vec::new();
        let mut later = plan.replaced.clone();
        for spec in &plan.added {
            if plan.leaving.iter().any(|one| has_socket_of(spec, one)) {
                later.push(Arc::clone(spec));
                continue;
            }
            match self.open_now(spec) {
                Ok(volume) => opened.push((Arc::clone(spec), volume)),
                Err(failure) if failure.exit == Exit::Busy && !plan.leaving.is_empty() => {
                    later.push(Arc::clone(spec));
                }
                Err(failure) => {
                    return Err(failure.at(format!("exports.{}", printable(&spec.name))));
                }
            }
        }
        Ok((opened, later))
    }

    /// Opens a new export, unless that is for its first use.
    fn open_now(&self, spec: &ExportSpec) -> Result<Option<Volume>, Failure> {
        spec.first_use.is_none().then(|| self.open(spec)).transpose()
    }

    /// Opens an export, without a question for its passphrase.
    pub(super) fn open(&self, spec: &ExportSpec) -> Result<Volume, Failure> {
        let Fixed { threads, is_controlled, .. } = self.fixed;
        let opened = prepared(spec, threads, is_controlled, StdinUse::Closed);
        let opened = opened.and_then(|prepared| {
            let turn = self.unlocks.lock().unwrap_or_else(PoisonError::into_inner);
            let unlocked = prepared.unlock()?;
            drop(turn);
            started(spec, unlocked)
        });
        opened.map_err(|failure| {
            // Tokens have been tried then.
            if spec.volume.may_use_tokens() && sandbox::parts().is_some() {
                return Failure { message: format!("{failure}; {NO_TOKENS}"), ..failure };
            }
            failure
        })
    }

    /// Serves these exports and those that were opened, and no others; returns those that leave.
    /// Call it under the lock of the present ones.
    pub(super) fn change(
        &self,
        served: &mut Current,
        opened: &[Opened],
        limited: &BTreeSet<String>,
        mut server: Server,
    ) -> Result<Leaving, Failure> {
        let Current { exports: served, limit_groups: groups } = served;
        let mut limited = limited.clone();
        let mut after = served.clone();
        let paths = opened.iter().flat_map(|(spec, _)| spec.paths());
        let mut in_use = InUse::of_paths(paths);
        for (spec, volume) in opened {
            server = with_disk(with_export(server, spec, volume.as_ref()), spec)?;
            volume.iter().for_each(|volume| in_use.add_volume(volume));
            limited.insert(spec.name.clone());
            after.retain(|one| one.name != spec.name);
            after.push(Arc::clone(spec));
        }
        // The default export is the first one.
        after.sort_by(|one, other| one.name.cmp(&other.name));
        server = with_limits(server, &after, groups, |spec| limited.contains(&spec.name));
        let order: Vec<String> = after.iter().flat_map(|spec| spec.names().cloned()).collect();
        let leaving = self.live.change(&order, server.protect(in_use))?;
        // An export that opens at first use has been announced already, while it was closed.
        let is_new = |spec: &ExportSpec| served.iter().all(|one| one.name != spec.name);
        for (spec, volume) in opened.iter().filter(|(spec, _)| is_new(spec)) {
            let tls = &self.fixed.tls;
            let lines = announcement(spec, volume.as_ref(), &self.servers, None, tls);
            lines.iter().for_each(|line| say(line));
        }
        *served = after;
        Ok(leaving)
    }
}

/// Errors of exports that leave, at their end.
fn waited(leaving: Leaving) -> Result<Vec<String>, Failure> {
    Ok(leaving.wait()?.iter().map(ToString::to_string).collect())
}

/// Checks that the sandbox permits to open an export.
pub(super) fn check_sandbox(spec: &ExportSpec) -> Result<(), Failure> {
    if let KeySource::Command(command) = &spec.volume.key.source
        && !command.is_permitted()
    {
        return Err(Failure::failed(
            "the sandbox of the running server permits only the commands that its configuration \
             had at the start, so this `key_command` takes effect after a restart; `key_file` does \
             at a reload",
        ));
    }
    if spec.disk.as_ref().is_some_and(|disk| matches!(disk.socket, DiskSocket::Path(_))) {
        return Err(Failure::failed(
            "the sandbox of the running server permits no new sockets, so `vhost_user` takes \
             effect after a restart; --sandbox off permits it at a reload",
        ));
    }
    let mut paths: Vec<PathBuf> = spec.paths().into_iter().map(Path::to_owned).collect();
    if spec.first_use.is_some() {
        if spec.volume.may_use_tokens() {
            return Err(Failure::failed(NO_TOKENS));
        }
        let disks = spec.volume.disks_to_open()?;
        paths.extend(disks.into_iter().filter(|disk| !is_remote(disk)));
    }
    match paths.into_iter().find(|path| hinders_reading(path)) {
        None => Ok(()),
        Some(path) => {
            let problem = "the sandbox of the running server does not permit it";
            Err(with_remedy(Failure::failed(problem).at(path.display())))
        }
    }
}

/// A failure that names the sandbox, if it is the reason.
fn explained(paths: impl IntoIterator<Item = PathBuf>, failure: Failure) -> Failure {
    match paths.into_iter().find(|path| hinders_reading(path)) {
        None => failure,
        Some(path) => with_remedy(Failure::failed(format!(
            "{}: the sandbox of the running server permits only the file or folder that had this \
             name at its start",
            path.display()
        ))),
    }
}

fn with_remedy(mut failure: Failure) -> Failure {
    let remedy = "name its folder in `sandbox_allow`, and start the server again";
    failure.message = format!("{failure}; {remedy}");
    failure
}

/// Why a volume without another key does not open.
const NO_TOKENS: &str = "the sandbox of the running server permits no tokens that need a program, \
                         a connection or a keyring: start the server again";

/// The difference of two configurations.
struct Plan {
    /// Served as before, perhaps with other limits.
    kept: Vec<Arc<ExportSpec>>,
    added: Vec<Arc<ExportSpec>>,
    replaced: Vec<Arc<ExportSpec>>,
    /// Exports as they were, which are closed.
    leaving: Vec<Arc<ExportSpec>>,
    /// Those of `kept` with other limits.
    limited: BTreeSet<String>,
    /// Limits of the groups.
    groups: BTreeMap<String, RateLimits>,
}

impl Plan {
    fn of(
        current: &Current,
        exports: Vec<ExportSpec>,
        changed: BTreeMap<String, RateLimits>,
    ) -> Self {
        let mut groups = current.limit_groups.clone();
        groups.extend(changed);
        let [mut kept, mut added, mut replaced] = [const { Vec::new() }; 3];
        let mut limited = BTreeSet::new();
        for spec in exports.into_iter().map(Arc::new) {
            match current.exports.iter().find(|former| former.name == spec.name) {
                None => added.push(spec),
                Some(former) if !former.is_like(&spec) => replaced.push(spec),
                Some(former) => {
                    let limits = |spec: &ExportSpec, groups: &BTreeMap<_, _>| match &spec.rate {
                        RateSpec::Group(group) => groups.get(group).copied(),
                        RateSpec::None | RateSpec::Own(_) => None,
                    };
                    let is_limited = former.rate != spec.rate
                        || limits(former, &current.limit_groups) != limits(&spec, &groups);
                    limited.extend(is_limited.then(|| spec.name.clone()));
                    kept.push(spec);
                }
            }
        }
        let stays = |one: &&Arc<ExportSpec>| kept.iter().any(|spec| spec.name == one.name);
        let leaving = current.exports.iter().filter(|one| !stays(one)).cloned().collect();
        Self { kept, added, replaced, leaving, limited, groups }
    }

    /// A disk of this machine stays as it is, because programs of this machine have it open.
    fn check_ublk(&self) -> Result<(), Failure> {
        let changed = self.added.iter().chain(&self.replaced).chain(&self.leaving);
        match changed.into_iter().find(|spec| spec.ublk.is_some()) {
            None => Ok(()),
            Some(spec) => Err(Failure::failed(format!(
                "exports.{}: a disk of `ublk` comes, changes and goes with a restart only",
                printable(&spec.name)
            ))),
        }
    }

    fn outcome(self, warnings: Vec<String>) -> Reloaded {
        let names = |specs: &[Arc<ExportSpec>]| specs.iter().map(|one| one.name.clone()).collect();
        let replaced: Vec<String> = names(&self.replaced);
        let removed = self.leaving.iter().filter(|one| !replaced.contains(&one.name));
        let mut outcome = Reloaded::default();
        outcome.added = names(&self.added);
        outcome.removed = removed.map(|one| one.name.clone()).collect();
        outcome.replaced = replaced;
        outcome.limited = self.limited.into_iter().collect();
        outcome.warnings = warnings;
        outcome
    }
}

/// Whether an export needs the socket of a virtual machine that another one has.
fn has_socket_of(spec: &ExportSpec, other: &ExportSpec) -> bool {
    let path = |spec: &ExportSpec| match spec.disk.as_ref().map(|disk| &disk.socket) {
        Some(DiskSocket::Path(path)) => Some(path.clone()),
        Some(DiskSocket::Inherited(..)) | None => None,
    };
    path(spec).is_some_and(|wanted| path(other) == Some(wanted))
}

/// One line for a reload, and one for each warning.
fn log(path: &Path, reloaded: &Reloaded) {
    let place = path.display();
    for warning in &reloaded.warnings {
        Event::new(Kind::Warning).say(format_args!("{place}: {warning}"));
    }
    let lists = [
        ("added", &reloaded.added),
        ("removed", &reloaded.removed),
        ("replaced", &reloaded.replaced),
        ("limited", &reloaded.limited),
    ];
    let part = |(what, names): &(&str, &Vec<String>)| {
        let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
        (!names.is_empty()).then(|| format!("{what} {}", names.join(", ")))
    };
    let parts: Vec<String> = lists.iter().filter_map(part).collect();
    let what = if parts.is_empty() { "no export has changed".into() } else { parts.join("; ") };
    let fields = lists.map(|(name, names)| (name, Value::List(names)));
    Event::new(Kind::Reloaded).fields(&fields).say(format_args!("{place} was reloaded: {what}"));
}
