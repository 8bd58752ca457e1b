//! `blockyard trace`: records requests of a server's clients, and shows recordings.
//!
//! The format is in [`blockyard_workload::trace`]. The server writes the file.

mod json;
mod text;

use std::io::{self, BufWriter};
use std::path::PathBuf;
use std::time::Duration;

use blockyard::{Status, StopSignal, TraceFile};
use blockyard_workload::trace::{Summary, Writer};
use clap::{Args, Subcommand, ValueHint};
use rustix::event::{PollFd, PollFlags, poll};

use self::json::{BioReport, SummaryReport};
use super::control::DeviceArgs;
use crate::args::{ForceArgs, ShortHelpArgs};
use crate::failure::Failure;
use crate::json::{line, pretty};
use crate::output::{InUse, Output, print, say};
use crate::time::parse_time;
use crate::traces::InputArgs;

/// Lines per write.
const LINES: usize = 10_000;

/// Record and show the requests to a served volume
///
/// A trace has the time, submitter, operation and duration of each bio, and no data. `blockyard
/// replay` plays it. docs/trace.md has the format.
#[derive(Args, Debug)]
#[command(disable_help_flag = true, disable_help_subcommand = true)]
pub(crate) struct TraceArgs {
    #[command(subcommand)]
    command: TraceCommand,

    #[command(flatten)]
    help: ShortHelpArgs,
}

#[derive(Subcommand, Debug)]
#[command(disable_help_flag = true)]
enum TraceCommand {
    Record(RecordArgs),
    Stop(StopArgs),
    Show(ShowArgs),
    Summary(SummaryArgs),
    Convert(ConvertArgs),
}

/// Record a volume of a running server, until --for has passed or Ctrl-C
///
/// The server must run with `serve --control SOCKET`. It writes the file, which only its owner can
/// read.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct RecordArgs {
    #[command(flatten)]
    device: DeviceArgs,

    /// Trace file to write
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: PathBuf,

    /// Duration: 30s, 500ms, 5m
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    limit: Option<Duration>,

    #[command(flatten)]
    force: ForceArgs,
}

/// Stop a recording of `serve --trace`, or of a `trace record` that was killed
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct StopArgs {
    #[command(flatten)]
    device: DeviceArgs,
}

/// Print the bios of a trace in order of their start
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct ShowArgs {
    #[command(flatten)]
    input: InputArgs,

    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,

    /// Print the first N only
    #[arg(long, value_name = "N")]
    limit: Option<u32>,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Print statistics of a trace: operations, sizes, order, rates, depth
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct SummaryArgs {
    #[command(flatten)]
    input: InputArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Convert a recording of blktrace or fio to a trace of blockyard
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct ConvertArgs {
    #[command(flatten)]
    input: InputArgs,

    /// Trace file to write
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: PathBuf,

    #[command(flatten)]
    force: ForceArgs,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Runs the subcommand.
pub(crate) fn run(args: &TraceArgs) -> Result<(), Failure> {
    match &args.command {
        TraceCommand::Record(args) => record(args),
        TraceCommand::Stop(args) => stop(&args.device),
        TraceCommand::Show(args) => show(args),
        TraceCommand::Summary(args) => summary(args),
        TraceCommand::Convert(args) => convert(args),
    }
}

fn record(args: &RecordArgs) -> Result<(), Failure> {
    let path = std::path::absolute(&args.output).unwrap_or_else(|_| args.output.clone());
    let to = TraceFile { path, replace: args.force.force, limit: args.limit };
    let signal = StopSignal::install()
        .map_err(|error| Failure::failed(format!("cannot catch signals: {error}")))?;
    args.device.control().start_trace(&args.device.export, &to)?;
    if args.limit.is_none() {
        say("recording; Ctrl-C ends it");
    }
    let limit = args.limit.map(|limit| rustix::event::Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    // The recording ends on any return: a signal interrupts the wait.
    let _ = poll(&mut [PollFd::new(&signal, PollFlags::IN)], limit.as_ref());
    stop(&args.device).map_err(|failure| ended_meanwhile(args, failure))
}

/// A recording ends with its export, and its file is complete.
fn ended_meanwhile(args: &RecordArgs, failure: Failure) -> Failure {
    let DeviceArgs { export, .. } = &args.device;
    let status = args.device.control().status();
    let is_served = |status: &Status| {
        status.devices.iter().any(|device| export.is_empty() || device.exports.contains(export))
    };
    let what = match &status {
        Err(_) => return failure,
        Ok(status) if is_served(status) => "the recording was stopped, or its export was replaced",
        Ok(_) => "the export was removed",
    };
    Failure::failed(format!(
        "{what} meanwhile; {} has what was recorded until then",
        args.output.display()
    ))
}

fn stop(device: &DeviceArgs) -> Result<(), Failure> {
    let recorded = device.control().stop_trace(&device.export)?;
    print(&format!("{recorded}\n"))
}

fn show(args: &ShowArgs) -> Result<(), Failure> {
    let trace = args.input.read()?;
    let count = args.limit.map_or(trace.bios.len(), |limit| trace.bios.len().min(limit as usize));
    if !args.json {
        print(text::HEAD)?;
    }
    for bios in trace.bios[..count].chunks(LINES) {
        let lines: String = if args.json {
            bios.iter().map(|bio| line(&BioReport::of(bio))).collect()
        } else {
            bios.iter().map(text::bio).collect()
        };
        print(&lines)?;
    }
    Ok(())
}

fn summary(args: &SummaryArgs) -> Result<(), Failure> {
    let trace = args.input.read()?;
    let summary = Summary::of(&trace);
    if args.json {
        print(&pretty(&SummaryReport::of(&trace, &summary)))
    } else {
        print(&text::summary(&trace, &summary))
    }
}

fn convert(args: &ConvertArgs) -> Result<(), Failure> {
    let in_use = InUse::of_paths([args.input.trace.as_path()]);
    let output = Output::private(&args.output, args.force.force);
    output.check(&in_use)?;
    let trace = args.input.read()?;
    let file = output.create(&in_use)?;
    let written = (|| {
        let mut writer = Writer::begin(BufWriter::new(file), &trace.header)?;
        trace.bios.iter().try_for_each(|bio| writer.push(bio))?;
        writer.set_lost(trace.end.lost);
        writer.end(trace.end.length).map(|_| ())
    })();
    written.map_err(|error: io::Error| {
        Failure::failed(format!("{}: cannot write: {error}", args.output.display()))
    })?;
    print(&format!("{} bios\n", trace.bios.len()))
}
