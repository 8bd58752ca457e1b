//! Traces as files: ours, those of `blktrace(8)`, and logs of fio; read whole, with a word about
//! what they lack.

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use blockyard_workload::trace::blktrace::{Action, Events};
use blockyard_workload::trace::{Trace, TraceError, iolog};
use clap::{Args, ValueEnum, ValueHint};

use crate::failure::{Failure, printable};
use crate::output::say;

/// More CPUs than this have no files: one is looked for after the other.
const CPUS_MAX: u32 = 4096;

/// A trace to be read.
#[derive(Args, Clone, Debug)]
pub(crate) struct InputArgs {
    /// The trace: ours, a log of fio (write_iolog), or a file of blktrace (DEVICE.blktrace.0 stands
    /// for those of all CPUs)
    #[arg(value_name = "TRACE", value_hint = ValueHint::FilePath)]
    pub(crate) trace: PathBuf,

    /// Which of blktrace's events are the bios: queued (Q), or given to the device (D)
    #[arg(
        long,
        value_name = "Q|D",
        value_enum,
        ignore_case = true,
        default_value = "q",
        hide_possible_values = true
    )]
    action: ActionArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ActionArg {
    Q,
    D,
}

impl InputArgs {
    /// Reads it; says on standard error what it lacks.
    pub(crate) fn read(&self) -> Result<Trace, Failure> {
        let action = match self.action {
            ActionArg::Q => Action::Queue,
            ActionArg::D => Action::Issue,
        };
        read(&self.trace, action)
    }
}

/// Reads a trace; says on standard error what it lacks.
pub(crate) fn read(path: &Path, action: Action) -> Result<Trace, Failure> {
    let place = path.display();
    let mut file = open(path)?;
    let mut first = [0; 4];
    let is_short = file.read_exact(&mut first).is_err();
    let trace = if !is_short && Events::begin_with(first) {
        let mut events = Events::default();
        for path in &of_all_cpus(path) {
            let file = BufReader::new(open(path)?);
            events.add(file).map_err(|error| wrong(path, &error))?;
        }
        events.into_trace(action)
    } else {
        let failed = |error| Failure::failed(format!("{place}: cannot be read: {error}"));
        file.rewind().map_err(failed)?;
        let file = BufReader::new(file);
        let trace = match !is_short && iolog::begins_with(first) {
            true => iolog::read(file),
            false => Trace::read(file),
        };
        trace.map_err(|error| wrong(path, &error))?
    };
    if let Some(at) = trace.end.cut_off_at_bytes {
        let bios = trace.bios.len();
        say(&format!(
            "warning: {place} is cut off at byte {at}: its recording did not end; {bios} bios are \
             there"
        ));
    }
    if trace.end.lost > 0 {
        let lost = trace.end.lost;
        say(&format!("warning: {place} lacks {lost} events that came too fast to be written down"));
    }
    Ok(trace)
}

fn open(path: &Path) -> Result<File, Failure> {
    let place = path.display();
    File::open(path)
        .map_err(|error| Failure::wrong_device(format!("{place}: cannot open: {error}")))
}

fn wrong(path: &Path, error: &TraceError) -> Failure {
    Failure::failed(printable(&format!("{}: {error}", path.display())))
}

/// `sda.blktrace.0` and what lies beside it; any other name is alone.
fn of_all_cpus(path: &Path) -> Vec<PathBuf> {
    let alone = vec![path.to_owned()];
    let Some(name) = path.to_str() else { return alone };
    let Some((base, "0")) = name.rsplit_once('.') else { return alone };
    let all = (0..CPUS_MAX).map(|cpu| PathBuf::from(format!("{base}.{cpu}")));
    all.take_while(|path| path.exists()).collect()
}
