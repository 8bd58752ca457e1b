//! `blockyard mount` and `umount`: a volume as files, by FUSE.
//!
//! ```text
//! fork: one process waits ─ the other: header, passphrase, key -> mount -> background, "ready"
//!                                                              -> until the end: flush
//! ```
//! The working process asks for the passphrase while it still has the terminal.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blockyard::mount::{self, MountOptions, MountUse, Mounted};
use blockyard::sandbox::{self, Parts};
use blockyard::{Settings, StopSignal, Volume};
use blockyard_host::fuse;
use blockyard_host::fuse::Target;
use blockyard_host::log::{catch_up, never_wait};
use blockyard_host::process::{Detached, Forked, Worker, fork_to_background, group_id, user_id};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, ValueHint};

use super::serve::sandbox::SandboxMode;
use crate::args::{HelpArgs, ShortHelpArgs, VolumeArgs};
use crate::failure::{Exit, Failure};
use crate::key::StdinUse;
use crate::output::say;
use crate::placement::PlacementArgs;
use crate::size::human_size;

/// Mount a volume without root: its files, or its plaintext as one file
///
/// The driver of the file system is a program of its own, such as fuse2fs; docs/mount.md lists
/// them. The command returns when the mount is there. `blockyard umount`, `fusermount3 -u` and
/// SIGTERM end the mount and flush the volume.
// 14 fields: one for each option of the command, and groups of shared options.
#[derive(Args, Debug)]
#[command(
    disable_help_flag = true,
    mut_arg("volume", |volume| volume.required(true).index(1)),
    mut_arg("table", |table| table.hide(true))
)]
pub(crate) struct MountArgs {
    #[command(flatten)]
    volume: VolumeArgs,

    /// Empty directory; with --as-file also a file, which may be the image itself
    #[arg(value_name = "TARGET", index = 2, value_hint = ValueHint::AnyPath)]
    target: PathBuf,

    /// Show the plaintext as one file: TARGET/NAME in a directory, or TARGET itself
    #[arg(long)]
    as_file: bool,

    /// Refuse writes
    #[arg(short = 'r', long, alias = "readonly")]
    read_only: bool,

    /// Use this partition of the disk inside the volume: its number, UUID or name
    #[arg(long, value_name = "N|UUID|NAME")]
    inner_partition: Option<String>,

    /// NAME of the file in a directory [default: that of the image, without its extension]
    #[arg(long, value_name = "NAME", requires = "as_file")]
    name: Option<String>,

    /// Owner of the files, a name or a number; for --as-file and file systems without owners
    #[arg(long, value_name = "USER", value_parser = parse_user)]
    uid: Option<u32>,

    /// Group of the files, a name or a number
    #[arg(long, value_name = "GROUP", value_parser = parse_group)]
    gid: Option<u32>,

    /// Permissions that the files do not have, in octal [default: 077]
    #[arg(long, value_name = "MODE", value_parser = parse_umask)]
    umask: Option<u32>,

    /// Threads that serve the plaintext [default: one for each CPU, at most 8]
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=fuse::THREADS_MAX as i64))]
    threads: Option<u16>,

    #[command(flatten)]
    placement: PlacementArgs,

    /// Limit the process to its volume and its mount, when the mount is there [default: on]; see
    /// docs/sandbox.md
    #[arg(long, value_name = "MODE", value_enum)]
    sandbox: Option<SandboxMode>,

    /// Stay in the foreground until the mount ends
    #[arg(short = 'f', long)]
    foreground: bool,

    #[command(flatten)]
    help: HelpArgs,
}

/// End a mount of `blockyard mount`, and flush the volume
///
/// The command returns when the volume is flushed, and fails if that failed. It also removes the
/// mount of a process that was killed.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct UmountArgs {
    /// Mount point
    #[arg(value_name = "TARGET", value_hint = ValueHint::AnyPath)]
    target: PathBuf,

    /// Unmount even if programs use the mount; their further I/O fails
    #[arg(short = 'l', long)]
    lazy: bool,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Mounts, in the background unless asked otherwise.
pub(crate) fn run(args: &MountArgs) -> Result<(), Failure> {
    let target = args.target.as_path();
    // Before a passphrase is asked for.
    fuse::check_machine()?;
    Target::check(target)?;
    args.placement.apply().map_err(|(_, failure)| failure)?;
    if args.foreground {
        return serve(args, target, None);
    }
    let failed = |error| Failure::failed(format!("cannot go to the background: {error}"));
    match fork_to_background().map_err(failed)? {
        Forked::Worker(worker) => serve(args, target, Some(worker)),
        Forked::Waiter(waiter) => match waiter.wait().map_err(failed)? {
            None | Some(0) => Ok(()),
            // The other process has said the reason.
            Some(code) => std::process::exit(code.into()),
        },
    }
}

/// Opens the volume, mounts it, and waits for the end.
fn serve(args: &MountArgs, target: &Path, worker: Option<Worker>) -> Result<(), Failure> {
    // Before any thread or secret.
    let mode = args.sandbox.unwrap_or(SandboxMode::On);
    let broker =
        (mode != SandboxMode::Off).then(fuse::fork_broker).transpose().map_err(|error| {
            Failure::failed(format!(
                "the process outside of the sandbox fails: {error}; --sandbox off mounts without"
            ))
        })?;
    let spec = args.volume.spec()?;
    let settings = Settings { read_only: args.read_only, ..Settings::default() };
    let prepared = spec.prepare(settings, StdinUse::Free)?;
    let stop = StopSignal::install()
        .map_err(|error| Failure::failed(format!("cannot catch signals: {error}")))?;
    let volume = prepared.unlock()?.start()?;
    let options = MountOptions {
        uid: args.uid,
        gid: args.gid,
        umask: args.umask,
        threads: args.threads.and_then(|threads| NonZeroUsize::new(threads.into())),
        name: Some(args.name.clone().unwrap_or_else(|| default_name(&spec.path))),
        inner_partition: args.inner_partition.clone(),
        broker: broker.map(Arc::new),
    };
    check_name(options.name.as_deref().unwrap_or_default())?;
    let mut mounted = if args.as_file {
        volume.mount_file(target, &options)?
    } else {
        volume.mount_files(target, &options, &stop)?
    };
    let failed = |error| Failure::failed(format!("cannot go to the background: {error}"));
    let detached = worker.map(Worker::leave_session).transpose().map_err(failed)?;
    if detached.is_none() {
        // A request must not wait for a reader of the log. In the background there is none: a copy
        // of standard error would let the reader of this command's output wait for the mount.
        never_wait();
    }
    if let Some(broker) = &options.broker {
        if detached.is_some() {
            broker.leave_terminal().map_err(failed)?;
        }
        limit(mode, &volume, &mut mounted)?;
    }
    say(&announcement(&spec.path, &volume, &mounted));
    detached.map(Detached::is_ready).transpose().map_err(failed)?;
    let place = mounted.place().to_path_buf();
    let ended = mounted.run(&stop);
    catch_up();
    told(ended?, &place);
    Ok(())
}

/// Limits the process of a mount.
fn limit(mode: SandboxMode, volume: &Volume, mounted: &mut Mounted) -> Result<(), Failure> {
    let problem = if sandbox::hinders(volume) {
        Some("threads of Ceph's library accept no limits, so the mount has no sandbox")
    } else {
        Parts::of_kernel().missing()
    };
    match problem {
        Some(problem) if mode == SandboxMode::Require => {
            return Err(Failure::failed(format!("--sandbox require: {problem}")));
        }
        Some(problem) => say(&format!("warning: the sandbox does not hold in full: {problem}")),
        None => {}
    }
    if !sandbox::hinders(volume) {
        mounted.limit(volume)?;
    }
    Ok(())
}

/// Ends a mount.
pub(crate) fn unmount(args: &UmountArgs) -> Result<(), Failure> {
    let last_use = mount::unmount(&args.target, args.lazy).map_err(|error| {
        let is_busy = error.is_busy();
        let mut failure = Failure::from(error);
        if is_busy {
            failure.message += "; end them, or unmount it with --lazy";
            failure.exit = Exit::Busy;
        }
        failure
    })?;
    told(last_use, &args.target);
    Ok(())
}

/// Warns of programs that have lost their files.
fn told(last_use: MountUse, place: &Path) {
    if last_use == MountUse::StillOpen {
        say(&format!(
            "warning: {}: programs still have the volume open; their further I/O fails",
            place.display()
        ));
    }
}

fn announcement(path: &Path, volume: &Volume, mounted: &Mounted) -> String {
    format!(
        "mounted {} ({}, {}{}) at {mounted}",
        path.display(),
        human_size(volume.len()),
        volume.describe(),
        if volume.is_read_only() { ", read-only" } else { "" },
    )
}

/// `home` for `/data/home.img` and for `nbd://store/home`.
fn default_name(path: &Path) -> String {
    let name = path.file_stem().map(|name| name.to_string_lossy().into_owned());
    name.filter(|name| !name.contains(['?', '&'])).unwrap_or_else(|| "volume".into())
}

fn check_name(name: &str) -> Result<(), Failure> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(Failure::failed(format!(
            "--name {name:?}: this is no name of a file; use one without `/`"
        )));
    }
    Ok(())
}

fn parse_user(text: &str) -> Result<u32, String> {
    let found = text.parse().ok().or_else(|| user_id(text));
    found.ok_or_else(|| "there is no such user; `getent passwd` lists them".into())
}

fn parse_group(text: &str) -> Result<u32, String> {
    let found = text.parse().ok().or_else(|| group_id(text));
    found.ok_or_else(|| "there is no such group; `getent group` lists them".into())
}

/// The sentence for `-o OPTIONS` of `mount(8)`: the letter is cryptsetup's `--offset` here.
pub(crate) fn explained(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else { return None };
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else {
        return None;
    };
    let is_offset = shown.starts_with("--offset") || shown.starts_with("-o");
    let is_value = matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation);
    (is_offset && is_value).then(|| {
        format!(
            "-o {value}: -o is --offset SECTORS here; instead of the options `ro`, `uid=`, `gid=` \
             and `umask=` of mount(8), say --read-only, --uid, --gid and --umask"
        )
    })
}

fn parse_umask(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mask| *mask <= 0o777)
        .ok_or_else(|| "this is no octal number up to 777, such as 027".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_has_the_name_of_the_image() {
        assert_eq!(default_name(Path::new("/data/home.img")), "home");
        assert_eq!(default_name(Path::new("nbd://store/home")), "home");
        assert_eq!(default_name(Path::new("nbd+unix:///?socket=s")), "volume");
    }
}
