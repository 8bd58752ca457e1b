//! Traces that the command line names.

use std::path::{Path, PathBuf};

use blockyard::traces;
use blockyard_workload::trace::Trace;
use blockyard_workload::trace::blktrace::Action;
use clap::{Args, ValueEnum, ValueHint};

use crate::failure::{Failure, printable};
use crate::output::say;

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
    let (trace, warnings) = traces::read(path, action)?;
    warnings.iter().for_each(|warning| say(&format!("warning: {}", printable(warning))));
    Ok(trace)
}
