//! `blockyard status`, `suspend`, `resume` and `message`: a server that runs, over its control
//! socket (`serve --control`). What they say and hear is in [`crate::control`].

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use blockyard_crypt::secret::SecretBytes;
use clap::{Args, ValueHint};
use serde_json::Value;

use crate::args::ShortHelpArgs;
use crate::failure::{Exit, Failure, printable};
use crate::key::{KeyInput, KeySource, StdinUse};
use crate::output::{print, say};

mod text;

/// A reply is a few lines for each volume.
const REPLY_BYTES_MAX: u64 = 16 << 20;

/// Show what a server does: state, table, pipeline, counters
///
/// Asks a server that was started with `serve --control SOCKET`.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct StatusArgs {
    /// The server's control socket
    #[arg(value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    socket: PathBuf,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Let the I/O of a volume wait, and return when what was in flight has ended
///
/// Its clients wait, and go on after `resume`. Keys can be changed meanwhile with `message`.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct SuspendArgs {
    #[command(flatten)]
    device: DeviceArgs,
}

/// Let the I/O of a suspended volume go on
///
/// After a failed flush or FUA write acknowledged writes may be lost, and all further flushes and
/// writes of the volume fail. `status` says so. They go on to fail after a plain `resume`.
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
/// enable_group N, fail_path DEVICE and reinstate_path DEVICE, while the volume is not suspended.
/// A crypt line takes its messages while it is. After `key wipe` nothing can be read or written,
/// nor the volume resumed, until `key set` gives it a key of the same length: hex digits, read from
/// the terminal or from the first line of standard input, or from a file; never an argument, which
/// everybody on the machine could see.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct MessageArgs {
    #[command(flatten)]
    device: DeviceArgs,

    /// `key set`, `key wipe`, or what a multipath line takes
    #[arg(value_name = "MESSAGE", required = true, num_args = 1..)]
    words: Vec<String>,

    /// The line at this sector of the volume
    #[arg(long, value_name = "N", default_value_t = 0)]
    sector: u64,

    /// Read the hex digits of the key from a file; `-` is standard input
    #[arg(short = 'd', long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    key_file: Option<PathBuf>,
}

/// Which volume of which server.
#[derive(Args, Debug)]
pub(super) struct DeviceArgs {
    /// The server's control socket
    #[arg(value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    pub(super) socket: PathBuf,

    /// The volume with this export name; not needed if there is only one
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    export: String,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Prints it.
pub(crate) fn status(args: &StatusArgs) -> Result<(), Failure> {
    let reply = ask(&args.socket, b"status\n")?;
    if args.json {
        let text = serde_json::to_string_pretty(&reply).expect("it has no odd keys");
        return print(&format!("{text}\n"));
    }
    print(&text::of(&reply))
}

/// Suspends.
pub(crate) fn suspend(args: &SuspendArgs) -> Result<(), Failure> {
    let line = format!("suspend {}\n", args.device.export()?);
    ask(&args.device.socket, line.as_bytes()).map(drop)
}

/// Resumes.
pub(crate) fn resume(args: &ResumeArgs) -> Result<(), Failure> {
    let command = if args.accept_loss { "resume-accepting-loss" } else { "resume" };
    let line = format!("{command} {}\n", args.device.export()?);
    let reply = ask(&args.device.socket, line.as_bytes())?;
    let loss = &reply["loss"];
    if !loss.is_null() {
        let word = |key: &str| printable(loss[key].as_str().unwrap_or("?"));
        say(&format!(
            "warning: flushes and writes go on to fail, because acknowledged writes may be lost \
             ({}: {}); `suspend`, then `resume --accept-loss` accepts them again",
            word("device"),
            word("problem")
        ));
    }
    Ok(())
}

/// Sends it.
pub(crate) fn message(args: &MessageArgs) -> Result<(), Failure> {
    let (device, sector) = (&args.device, args.sector);
    let export = device.export()?;
    let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    let line = match (&words[..], &args.key_file) {
        (["key", "wipe"], None) => {
            SecretBytes::copy_of(format!("key-wipe {sector} {export}\n").as_bytes())
        }
        (["key", "wipe"], Some(_)) => {
            return Err(Failure::failed("--key-file is for `key set`; `key wipe` takes no key"));
        }
        (["key", "set"], _) => key_set(args, export)?,
        (["key", "set", ..], _) => {
            return Err(Failure::failed(
                "a key is never an argument, where everybody on this machine can see it; it is \
                 read from standard input or from --key-file, and the one in this command line \
                 should not be used any more",
            ));
        }
        (["key", ..], _) => {
            return Err(Failure::failed(
                "the messages of a crypt line are `key set` and `key wipe`",
            ));
        }
        (_, Some(_)) => return Err(Failure::failed("--key-file is for `key set`")),
        (words, None) => {
            if words.iter().any(|word| word.is_empty() || word.contains(char::is_whitespace)) {
                return Err(Failure::failed("the words of a message have no blanks"));
            }
            let (count, text) = (words.len(), words.join(" "));
            SecretBytes::copy_of(format!("message {sector} {count} {text} {export}\n").as_bytes())
        }
    };
    ask(&device.socket, line.as_slice()).map(drop)
}

impl DeviceArgs {
    pub(super) fn export(&self) -> Result<&str, Failure> {
        match self.export.contains('\n') {
            true => Err(Failure::failed("--export: a name with a newline cannot be asked for")),
            false => Ok(&self.export),
        }
    }
}

/// The line with the key in it.
fn key_set(args: &MessageArgs, export: &str) -> Result<SecretBytes, Failure> {
    let source = match &args.key_file {
        None => KeySource::Ask,
        Some(path) if path.as_os_str() == "-" => KeySource::Stdin,
        Some(path) => KeySource::File(path.clone()),
    };
    let input = KeyInput { source, offset_bytes: 0, len_bytes: None };
    let key = input.read("the new key (hex digits)", StdinUse::Free)?;
    let digits = key.as_slice().trim_ascii();
    if digits.is_empty() || digits.iter().any(u8::is_ascii_whitespace) {
        return Err(Failure::failed("the key is not one word of hex digits"));
    }
    let (head, tail) = (format!("key-set {} ", args.sector), format!(" {export}\n"));
    let mut line = SecretBytes::zeroed(head.len() + digits.len() + tail.len());
    let (start, rest) = line.as_mut_slice().split_at_mut(head.len());
    let (middle, end) = rest.split_at_mut(digits.len());
    start.copy_from_slice(head.as_bytes());
    middle.copy_from_slice(digits);
    end.copy_from_slice(tail.as_bytes());
    Ok(line)
}

/// Sends a line and waits for the answer.
pub(super) fn ask(socket: &Path, line: &[u8]) -> Result<Value, Failure> {
    let place = socket.display();
    let failed = |what: &str, error: std::io::Error| {
        Failure::wrong_device(format!(
            "{place}: cannot {what}: {error}; is a server running with `--control {place}`?"
        ))
    };
    let mut stream = UnixStream::connect(socket).map_err(|error| failed("connect", error))?;
    stream.write_all(line).map_err(|error| failed("send", error))?;
    let mut reply = Vec::new();
    let mut limited = stream.take(REPLY_BYTES_MAX);
    limited.read_to_end(&mut reply).map_err(|error| failed("receive", error))?;
    let reply: Value = serde_json::from_slice(&reply).map_err(|_| {
        Failure::wrong_device(format!(
            "{place}: this is no control socket; name the path of `serve --control`"
        ))
    })?;
    match &reply["error"] {
        Value::Null => Ok(reply),
        error => {
            let word = |key: &str| printable(error[key].as_str().unwrap_or("?"));
            let (name, problem) = (word("name"), word("problem"));
            let exit = match name.as_str() {
                "EBUSY" | "EAGAIN" => Exit::Busy,
                "ENXIO" => Exit::WrongDevice,
                _ => Exit::Failed,
            };
            Err(Failure { exit, message: format!("{place}: {name}: {problem}") })
        }
    }
}
