//! The log files of jobs, in the current directory.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use blockyard_workload::fio::{Fio, Job, LogFile};

use crate::failure::Failure;
use crate::output::{InUse, Output, say};

/// Checks before the jobs run that all logs can be written.
pub(super) fn check(jobs: &[Job], force: bool, in_use: &InUse) -> Result<(), Failure> {
    let logs = Fio::logs_of(jobs);
    // Appending to a log overwrites nothing.
    let outputs = logs.iter().map(|log| Output::new(Path::new(&log.name), force || log.appends));
    Ok(outputs.into_iter().try_for_each(|output| output.check(in_use))?)
}

/// Writes all logs. With several runs the logs of the last one remain.
pub(super) fn write(logs: &[LogFile], in_use: &InUse) -> Result<(), Failure> {
    for LogFile { name, appends, text, lost } in logs {
        if *lost > 0 {
            say(&format!("note: {name} is full and lacks {lost} lines; use log_avg_msec=1000"));
        }
        let output = Output::new(Path::new(name), true);
        if !appends {
            output.write(in_use, text)?;
            continue;
        }
        output.check(in_use)?;
        let opened = OpenOptions::new().create(true).append(true).open(name);
        opened
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| Failure::failed(format!("cannot write the log {name}: {error}")))?;
    }
    Ok(())
}
