//! `blockyard status`, `suspend`, `resume`, `message`, `limit`, `backup`, `reload` and `forget`:
//! commands to a running server over its control socket (`serve --control`).

use std::path::PathBuf;
use std::time::Duration;

use blockyard::status::Loss;
use blockyard::{BackupId, BackupStep, Control, ControlError, Reloaded, Status};
use blockyard_crypt::secret::SecretBytes;
use clap::{Args, ValueHint};

use crate::args::{RateArgs, ShortHelpArgs};
use crate::failure::{Failure, printable};
use crate::json::pretty;
use crate::key::{KeyInput, KeySource, StdinUse};
use crate::output::{print, say};

mod text;

/// Show the state of a server: table, pipeline, counters
///
/// The server must run with `serve --control SOCKET`.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct StatusArgs {
    /// The server's control socket
    #[arg(value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    socket: PathBuf,

    /// Show the volume with this export name only
    #[arg(long, value_name = "NAME")]
    export: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Suspend the I/O of a volume, and return when requests in flight have ended
///
/// Clients wait until `resume`. While the volume is suspended, `message` can change its keys.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct SuspendArgs {
    #[command(flatten)]
    device: DeviceArgs,
}

/// Resume the I/O of a suspended volume
///
/// After a failed flush or FUA write, acknowledged writes may be lost, and all further flushes and
/// writes of the volume fail, also after a plain `resume`. `status` reports this.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    device: DeviceArgs,

    /// Accept flushes and writes again although acknowledged writes may be lost
    #[arg(long)]
    accept_loss: bool,
}

/// Send a message to a crypt line, `key set` or `key wipe`, or to a multipath line
///
/// A multipath line takes queue_if_no_path, fail_if_no_path, switch_group N, disable_group N,
/// enable_group N, fail_path DEVICE and reinstate_path DEVICE, while the volume is not suspended. A
/// crypt line takes its messages while the volume is suspended. After `key wipe` the volume cannot
/// be read, written or resumed until `key set` gives it a key of the same length. The key is given
/// in hex digits, at the terminal, in the first line of standard input, or in a file; never as an
/// argument, which every process on the machine could see.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct MessageArgs {
    #[command(flatten)]
    device: DeviceArgs,

    /// `key set`, `key wipe`, or a message for multipath
    #[arg(value_name = "MESSAGE", required = true, num_args = 1..)]
    words: Vec<String>,

    /// Sector of the volume where the line starts
    #[arg(long, value_name = "N", default_value_t = 0)]
    sector: u64,

    /// Read the hex digits of the key from a file; `-` is standard input
    #[arg(short = 'd', long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    key_file: Option<PathBuf>,
}

/// Change the limits of the rate of a served volume
///
/// The limits hold for requests that have not started, and replace those from before: a limit that
/// is not named is gone. The burst stays, unless it is named. Exports that share a group of limits
/// have the new ones too.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct LimitArgs {
    #[command(flatten)]
    device: DeviceArgs,

    #[command(flatten)]
    rate: RateArgs,

    /// Remove the limits
    #[arg(long, conflicts_with_all = ["iops_limit", "bps_limit", "burst"])]
    none: bool,
}

/// Begin or end an incremental backup of a volume with `serve --dirty-bitmap`
///
/// `freeze` prints the ID of the backup. From then on, clients see its blocks in the metadata
/// context of the bitmap, and later writes are for the next backup. `done` with the ID ends the
/// backup. After `failed` with the ID, the next one has its blocks too. `blockyard status` shows
/// the ID.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct BackupArgs {
    #[command(flatten)]
    device: DeviceArgs,

    /// `freeze` begins; `done` or `failed` ends
    #[arg(value_name = "STEP", value_parser = BackupStep::NAMES)]
    step: String,

    /// The backup to end
    #[arg(
        value_name = "ID",
        required_if_eq_any = [("step", BackupStep::NAMES[1]), ("step", BackupStep::NAMES[2])]
    )]
    id: Option<BackupId>,
}

/// Let a server read its configuration again, and wait for the outcome
///
/// New exports are opened, and removed ones complete their requests and are closed. Others are not
/// touched. A mistake in the configuration changes nothing and is an error of this command too.
/// SIGHUP has the same effect, with the outcome in the log only.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct ReloadArgs {
    /// The server's control socket
    #[arg(value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    socket: PathBuf,

    /// Limit of the time for the outcome: keys are derived, and clients complete their requests
    #[arg(long, value_name = "SECONDS", default_value_t = 300,
          value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Close a volume that opens at its first use, and wipe its keys
///
/// The export must have `open = "first-use"` in the configuration. Its clients get the replies to
/// requests that the server has received, and are disconnected. The next client opens it again: its
/// key file or key command decides whether that is possible.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct ForgetArgs {
    /// The server's control socket
    #[arg(value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    socket: PathBuf,

    /// Name of the export
    #[arg(long, value_name = "NAME")]
    export: String,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Server and volume.
#[derive(Args, Debug)]
pub(super) struct DeviceArgs {
    /// The server's control socket
    #[arg(value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    pub(super) socket: PathBuf,

    /// The volume with this export name; not needed if there is only one
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub(super) export: String,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Prints the status.
pub(crate) fn status(args: &StatusArgs) -> Result<(), Failure> {
    let status = of_export(Control::at(&args.socket).status()?, args.export.as_deref())?;
    if args.json {
        return print(&pretty(&status));
    }
    print(&text::of(&status))
}

/// The status of one export, if one is named.
pub(super) fn of_export(mut status: Status, export: Option<&str>) -> Result<Status, Failure> {
    if let Some(export) = export {
        let open = status.devices.iter().flat_map(|device| &device.exports);
        let names: Vec<_> = open.chain(&status.closed).cloned().collect();
        status.devices.retain(|device| device.exports.iter().any(|name| name == export));
        let is_closed = status.closed.iter().any(|name| name == export);
        status.closed.retain(|name| name == export);
        if status.devices.is_empty() && !is_closed {
            let names: Vec<_> = names.iter().map(|name| format!("{name:?}")).collect();
            return Err(Failure::wrong_device(format!(
                "--export: there is no export {export:?}; there are {}",
                names.join(", ")
            )));
        }
    }
    Ok(status)
}

/// Suspends the volume.
pub(crate) fn suspend(args: &SuspendArgs) -> Result<(), Failure> {
    Ok(args.device.control().suspend(&args.device.export)?)
}

/// Resumes the volume.
pub(crate) fn resume(args: &ResumeArgs) -> Result<(), Failure> {
    let loss = args.device.control().resume(&args.device.export, args.accept_loss)?;
    if let Some(Loss { device, problem, .. }) = loss {
        say(&format!(
            "warning: flushes and writes go on to fail, because acknowledged writes may be lost \
             ({device}: {problem}); `suspend`, then `resume --accept-loss` accepts them again"
        ));
    }
    Ok(())
}

/// Sends the message.
pub(crate) fn message(args: &MessageArgs) -> Result<(), Failure> {
    let control = args.device.control();
    let export = &args.device.export;
    let sector = args.sector;
    let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    match (&words[..], &args.key_file) {
        (["key", "wipe"], None) => Ok(control.wipe_key(export, sector)?),
        (["key", "wipe"], Some(_)) => {
            Err(Failure::failed("--key-file is for `key set`; `key wipe` takes no key"))
        }
        (["key", "set"], _) => Ok(control.set_key(export, sector, &new_key(args)?)?),
        (["key", "set", ..], _) => Err(Failure::failed(
            "a key is never an argument, where everybody on this machine can see it; it is read \
             from standard input or from --key-file, and the one in this command line should not \
             be used any more",
        )),
        (["key", ..], _) => {
            Err(Failure::failed("the messages of a crypt line are `key set` and `key wipe`"))
        }
        (_, Some(_)) => Err(Failure::failed("--key-file is for `key set`")),
        (words, None) => Ok(control.message(export, sector, words)?),
    }
}

/// Changes the limits.
pub(crate) fn limit(args: &LimitArgs) -> Result<(), Failure> {
    if !args.none && !args.rate.names_a_limit() {
        return Err(Failure::failed(
            "name the limits: --iops-limit, --bps-limit, or --none to remove them",
        ));
    }
    let limits = args.rate.limits().map_err(|problem| Failure::failed(problem).at("--burst"))?;
    let control = args.device.control();
    let export = &args.device.export;
    if args.rate.has_burst() {
        Ok(control.limit(export, limits)?)
    } else {
        Ok(control.limit_keeping_burst(export, limits)?)
    }
}

/// Takes a step of a backup.
pub(crate) fn backup(args: &BackupArgs) -> Result<(), Failure> {
    let step = BackupStep::named(&args.step, args.id)
        .ok_or_else(|| Failure::failed("`freeze` begins a backup, and takes no ID"))?;
    let id = args.device.control().backup(&args.device.export, step)?;
    if step == BackupStep::Freeze {
        print(&format!("{id}\n"))?;
    }
    Ok(())
}

/// Reloads the configuration, and prints a line for each change.
pub(crate) fn reload(args: &ReloadArgs) -> Result<(), Failure> {
    let limit = Duration::from_secs(args.timeout);
    let reloaded =
        Control::at(&args.socket).timeout(limit).reload().map_err(|error| match error {
            // The sentence names keys of the configuration.
            ControlError::Refused { problem, .. } => {
                Failure::failed(printable(&problem)).at(args.socket.display())
            }
            error => error.into(),
        })?;
    reloaded.warnings.iter().for_each(|warning| say(&format!("warning: {warning}")));
    let Reloaded { added, removed, replaced, limited, .. } = reloaded;
    let mut lines = String::new();
    for (what, names) in
        [("added", added), ("removed", removed), ("replaced", replaced), ("limited", limited)]
    {
        lines.extend(names.iter().map(|name| format!("{what} {}\n", printable(name))));
    }
    print(&lines)
}

/// Closes an export.
pub(crate) fn forget(args: &ForgetArgs) -> Result<(), Failure> {
    // Longer than the server gives clients for their replies.
    let limit = Duration::from_secs(60);
    Ok(Control::at(&args.socket).timeout(limit).forget(&args.export)?)
}

impl DeviceArgs {
    pub(super) fn control(&self) -> Control {
        Control::at(&self.socket)
    }
}

/// The hex digits of the new key.
fn new_key(args: &MessageArgs) -> Result<SecretBytes, Failure> {
    let source = match &args.key_file {
        None => KeySource::Ask,
        Some(path) if path.as_os_str() == "-" => KeySource::Stdin,
        Some(path) => KeySource::File(path.clone()),
    };
    let input = KeyInput { source, offset_bytes: 0, len_bytes: None };
    let key = input.read("the new key (hex digits)", StdinUse::Free)?;
    Ok(SecretBytes::copy_of(key.as_slice().trim_ascii()))
}
