//! The sandbox of `serve`: its options, what the server needs, and the process outside.
//!
//! ```text
//! fork of the broker ─> volumes, sockets, PID file, --run ─> seal ─> sandbox ─> READY=1, clients
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use blockyard::Volume;
use blockyard::keys::KeyCommand;
use blockyard::sandbox::{self, Needs, Parts, Place, Reach};
use blockyard_host::broker::Broker;
use blockyard_host::nbd::uri::Uri;
use blockyard_host::rbd::RbdName;
use blockyard_host::remote::is_remote;
use clap::{Args, ValueEnum, ValueHint};
use serde::Deserialize;

use super::lifetime::Running;
use super::steps::find_step;
use super::{Plan, ServeArgs, Serving};
use crate::config::ExportSpec;
use crate::disk_spec::DiskSocket;
use crate::failure::{Failure, printable};
use crate::key::KeySource;
use crate::output::say;

/// Use of the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SandboxMode {
    /// All parts that the kernel has; a line names missing ones
    On,
    /// All parts, or the server does not start
    Require,
    /// No sandbox
    Off,
}

/// Options of the sandbox, also in the configuration.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct SandboxArgs {
    /// Limit the server to the files, sockets and system calls that it needs after its start
    /// [default: on]; see docs/sandbox.md
    #[arg(long, value_name = "MODE", value_enum)]
    pub(crate) sandbox: Option<SandboxMode>,

    /// Permit a file, or a folder with all that is in it, in the sandbox: for traces that are
    /// started later; may be repeated
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) sandbox_allow: Vec<PathBuf>,
}

impl SandboxArgs {
    /// These options, and those of the configuration.
    pub(super) fn or(&self, config: Self) -> Self {
        let mut sandbox_allow = self.sandbox_allow.clone();
        sandbox_allow.extend(config.sandbox_allow);
        Self { sandbox: self.sandbox.or(config.sandbox), sandbox_allow }
    }

    pub(super) fn is_off(&self) -> bool {
        self.sandbox == Some(SandboxMode::Off)
    }

    /// Starts without a sandbox, unless one is required.
    fn without(&self, problem: &str) -> Result<(), Failure> {
        if self.sandbox == Some(SandboxMode::Require) {
            return Err(Failure::failed(format!("--sandbox require: {problem}")));
        }
        say(&format!("warning: {problem}"));
        Ok(())
    }

    /// Checks what must hold, before any question for a passphrase.
    pub(super) fn check(&self, kernel: Parts) -> Result<(), Failure> {
        for path in &self.sandbox_allow {
            path.metadata().map_err(|error| {
                let is_missing = error.kind() == io::ErrorKind::NotFound;
                let remedy = if is_missing { "; create it first" } else { "" };
                Failure::failed(format!("--sandbox-allow {}: {error}{remedy}", path.display()))
            })?;
        }
        match kernel.missing().filter(|_| self.sandbox == Some(SandboxMode::Require)) {
            None => Ok(()),
            Some(missing) => Err(Failure::failed(format!(
                "--sandbox require: {missing}; --sandbox on starts the server without this part"
            ))),
        }
    }
}

/// The process outside of the sandbox. Its end removes the files of the server.
pub(super) struct Outside(Arc<Broker>);

impl Outside {
    /// Call it before there are threads, or secrets in memory.
    pub(super) fn start(args: &ServeArgs) -> Result<Option<Self>, Failure> {
        if args.sandbox.is_off() {
            return Ok(None);
        }
        let broker = Broker::fork(args.config.as_deref()).map_err(|error| failed(&error))?;
        Ok(Some(Self(Arc::new(broker))))
    }

    /// Limits programs that are started later to these CPUs.
    pub(super) fn run_on(&self, cpus: &[u16]) -> Result<(), Failure> {
        self.0.run_on(cpus).map_err(|error| failed(&error))
    }

    /// Fixes the files that are removed at the end of the server.
    pub(super) fn keep(&self, plan: &Plan) -> Result<(), Failure> {
        self.0.keep(&plan.files()).map_err(|error| failed(&error))
    }

    /// The broker, which ends with the server.
    pub(super) fn broker(&self) -> Weak<Broker> {
        Arc::downgrade(&self.0)
    }

    /// Removes sockets, and ends the command of `--run`, at the start of the stop. Returns whether
    /// the command was told.
    pub(super) fn stop(&self) -> bool {
        warn_if_failed(self.0.remove_sockets());
        self.0.terminate().is_ok()
    }
}

impl Serving<'_> {
    /// Limits the server.
    pub(super) fn limit(
        &self,
        outside: &Outside,
        running: Option<&Running>,
    ) -> Result<(), Failure> {
        let Self { args, plan, volumes, .. } = self;
        let command = running.map(|running| &running.end);
        if args.config.is_some() {
            let commands = plan.exports.iter().filter_map(|spec| match &spec.volume.key.source {
                KeySource::Command(command) => Some(command),
                _ => None,
            });
            KeyCommand::start_outside(&outside.0, commands).map_err(|error| failed(&error))?;
        }
        outside.0.seal(command).map_err(|error| failed(&error))?;
        let later = plan.opened_later();
        let is_rbd =
            |later: &Later<'_>| later.disks().filter_map(Path::to_str).any(RbdName::is_rbd);
        if volumes.iter().flatten().any(sandbox::hinders) || later.iter().any(is_rbd) {
            return plan.sandbox.without(
                "threads of Ceph's library accept no limits, so the server has no sandbox; \
                 docs/ceph.md shows a server of two processes",
            );
        }
        if let Some(Later { spec, .. }) = later.iter().find(|one| one.spec.volume.may_use_tokens())
        {
            return plan.sandbox.without(&format!(
                "exports.{}: a token at the first use needs a program, a connection or a keyring, \
                 so the server has no sandbox",
                printable(&spec.name)
            ));
        }
        let mut needs = plan.needs(volumes, &later)?;
        if let Some(config) = &args.config {
            plan.add_reloads(&mut needs, &later);
            let writable = writable(&needs);
            plan.check_commands(&writable)?;
            plan.warn_of_texts(config, &writable);
        }
        let parts = sandbox::start(&needs).map_err(|error| {
            Failure::failed(format!("{error}; --sandbox off starts the server without"))
        })?;
        if let Some(missing) = parts.missing() {
            say(&format!("warning: the sandbox holds in part: {missing}"));
        }
        Ok(())
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        // It is removed already if the sandbox has not started.
        warn_if_failed(self.0.remove());
    }
}

/// A file that stays is in the way of the next server.
fn warn_if_failed(removed: io::Result<()>) {
    if let Err(error) = removed {
        say(&format!("warning: a file of the server cannot be removed: {error}"));
    }
}

fn failed(error: &io::Error) -> Failure {
    Failure::failed(format!(
        "the process outside of the sandbox fails: {error}; --sandbox off starts the server without"
    ))
}

/// An export that is opened at its first use, and the disks that it opens then.
struct Later<'a> {
    spec: &'a ExportSpec,
    disks: Vec<PathBuf>,
}

impl Later<'_> {
    fn disks(&self) -> impl Iterator<Item = &Path> {
        self.disks.iter().map(PathBuf::as_path)
    }
}

impl Plan {
    /// A table that cannot be read now has no disks: other exports are served all the same.
    fn opened_later(&self) -> Vec<Later<'_>> {
        let later = self.exports.iter().filter(|spec| spec.first_use.is_some());
        let later = later.map(|spec| {
            let disks = spec.volume.disks_to_open().unwrap_or_else(|failure| {
                let failure = at_export(spec, failure);
                say(&format!("warning: {failure}; the sandbox permits no disks of this table"));
                Vec::new()
            });
            Later { spec, disks }
        });
        later.collect()
    }

    /// Files that the server removes at its end.
    fn files(&self) -> Vec<PathBuf> {
        let disks = self.exports.iter().filter_map(|export| export.disk.as_ref());
        let disks = disks.filter_map(|disk| match &disk.socket {
            DiskSocket::Path(path) => Some(path.clone()),
            DiskSocket::Inherited(..) => None,
        });
        let metrics = self.metrics.as_deref().filter(|place| place.contains('/'));
        let metrics = metrics.map(PathBuf::from);
        let own = [&self.socket, &self.control, &metrics, &self.pid_file];
        let own = own.into_iter().flatten().cloned();
        // Last: it is empty then.
        disks.chain(own).chain(self.private_folder.clone()).collect()
    }

    /// Adds the files of a reload: those that the configuration names now.
    fn add_reloads(&self, needs: &mut Needs, later: &[Later<'_>]) {
        needs.opens_volumes();
        for Later { spec, disks } in later {
            let reach = if spec.read_only { Reach::Read } else { Reach::Everything };
            disks.iter().filter(|disk| !is_remote(disk)).for_each(|disk| needs.add(disk, reach));
        }
        for spec in &self.exports {
            let mut written = if spec.read_only { Vec::new() } else { spec.volume.disks() };
            written.extend(spec.dirty_bitmap.iter().map(|bitmap| bitmap.path()));
            let files = spec.paths().into_iter().filter(|path| !is_remote(path));
            for path in files {
                let reach = if written.contains(&path) { Reach::Everything } else { Reach::Read };
                needs.add(path, reach);
            }
        }
        self.fixed.tls.paths().for_each(|path| needs.add(path, Reach::Read));
    }

    /// Refuses a key command that the server could change: the broker starts it outside of the
    /// sandbox.
    fn check_commands(&self, writable: &[PathBuf]) -> Result<(), Failure> {
        for spec in &self.exports {
            let KeySource::Command(command) = &spec.volume.key.source else { continue };
            for file in command.files() {
                let Some(place) = place_of(&file, writable) else { continue };
                return Err(Failure::failed(format!(
                    "exports.{}: key_command: the sandbox permits the server to write {}, and the \
                     command uses {}: a server that is taken over could change it, and a reload \
                     starts it outside of the sandbox. Move the file, or permit another folder",
                    printable(&spec.name),
                    place.display(),
                    file.display(),
                )));
            }
        }
        Ok(())
    }

    /// Warns of a configuration or a table that the server could change: the next start reads it
    /// outside of the sandbox.
    fn warn_of_texts(&self, config: &Path, writable: &[PathBuf]) {
        let tables = self.exports.iter().filter_map(|spec| spec.volume.table());
        for file in std::iter::once(config).chain(tables) {
            if let Some(place) = place_of(file, writable) {
                say(&format!(
                    "warning: the sandbox permits the server to write {}, and {} lies there: a \
                     server that is taken over could change it, and the next start obeys it. Move \
                     the file, or permit another folder",
                    place.display(),
                    file.display(),
                ));
            }
        }
    }

    fn needs(&self, volumes: &[Option<Volume>], later: &[Later<'_>]) -> Result<Needs, Failure> {
        let mut needs = Needs::of_process();
        for volume in volumes.iter().flatten() {
            sandbox::add_volume(&mut needs, volume, self.control.is_some())?;
        }
        for later in later {
            for uri in later.disks().filter(|disk| is_remote(disk)).filter_map(Path::to_str) {
                let uri = Uri::parse(uri)
                    .map_err(|error| at_export(later.spec, Failure::failed(error.to_string())))?;
                needs.connects_to(&uri);
            }
        }
        let allowed = self
            .sandbox
            .sandbox_allow
            .iter()
            .map(|path| Place { must_exist: true, ..Place::new(path, Reach::Everything) });
        needs.places.extend(allowed);
        if !later.is_empty() || volumes.iter().flatten().any(Volume::uses_rings) {
            let disks = self.exports.iter().filter_map(|export| export.disk.as_ref());
            let queues = disks.map(|disk| usize::from(disk.options.queues)).sum::<usize>();
            needs.rings = self.max_connections + queues;
        }
        Ok(needs)
    }
}

fn at_export(spec: &ExportSpec, failure: Failure) -> Failure {
    failure.at(format_args!("exports.{}", printable(&spec.name)))
}

/// Places that the server may write, without links in their paths.
fn writable(needs: &Needs) -> Vec<PathBuf> {
    let places = needs.places.iter().filter(|place| place.reach == Reach::Everything);
    places.filter_map(|place| place.path.canonicalize().ok()).collect()
}

/// The place that a path, or a link on the way, lies in. A file that does not exist could be made
/// there.
fn place_of<'a>(path: &Path, places: &'a [PathBuf]) -> Option<&'a PathBuf> {
    find_step(path, |step| places.iter().find(|place| step.starts_with(place)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn file_that_the_server_could_replace_is_found_behind_links_and_before_it_exists() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("open/sub")).unwrap();
        fs::create_dir_all(root.join("closed")).unwrap();
        symlink(root.join("closed"), root.join("open/closed")).unwrap();
        symlink(root.join("open/sub"), root.join("closed/sub")).unwrap();
        symlink("sub/key", root.join("closed/key")).unwrap();
        symlink("key", root.join("closed/chain")).unwrap();
        let places = [root.join("open")];
        let is_found = |path: &str| place_of(&root.join(path), &places).is_some();
        let found =
            ["open/key", "open/none/yet/key", "open/closed/key", "closed/sub/key", "closed/chain"];
        for path in found {
            assert!(is_found(path), "{path}");
        }
        for path in ["closed/other", "opened/key", "closed/none/../other"] {
            assert!(!is_found(path), "{path}");
        }
    }

    #[test]
    fn kernel_without_a_part_is_refused_only_if_all_are_required() {
        let all = Parts { landlock: Some(1), seccomp: true };
        let some = Parts { landlock: None, ..all };
        let args = |mode| SandboxArgs { sandbox: mode, sandbox_allow: Vec::new() };
        for mode in [None, Some(SandboxMode::On), Some(SandboxMode::Off)] {
            args(mode).check(some).unwrap();
        }
        let required = args(Some(SandboxMode::Require));
        required.check(all).unwrap();
        let failure = required.check(some).unwrap_err();
        assert!(failure.message.contains("Landlock") && failure.message.contains("--sandbox on"));
    }
}
