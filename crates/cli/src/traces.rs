//! Traces named on the command line.

use std::path::{Path, PathBuf};

use blockyard::traces;
use blockyard_workload::trace::Trace;
use blockyard_workload::trace::blktrace::Action;
use clap::{Args, ValueEnum, ValueHint};

use crate::failure::{Failure, printable};
use crate::output::say;

/// An input trace.
#[derive(Args, Clone, Debug)]
pub(crate) struct InputArgs {
    /// Trace of blockyard, a log of fio (write_iolog), or a file of blktrace (DEVICE.blktrace.0
    /// stands for all CPUs' files)
    #[arg(value_name = "TRACE", value_hint = ValueHint::FilePath)]
    pub(crate) trace: PathBuf,

    /// Use blktrace's events of this action as bios: queued (Q), or given to the device (D)
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
    /// Reads the trace; reports on standard error what it lacks.
    pub(crate) fn read(&self) -> Result<Trace, Failure> {
        let action = match self.action {
            ActionArg::Q => Action::Queue,
            ActionArg::D => Action::Issue,
        };
        read(&self.trace, action)
    }
}

/// Reads a trace; reports on standard error what it lacks.
pub(crate) fn read(path: &Path, action: Action) -> Result<Trace, Failure> {
    let (trace, warnings) = traces::read(path, action)?;
    warnings.iter().for_each(|warning| say(&format!("warning: {}", printable(warning))));
    Ok(trace)
}
