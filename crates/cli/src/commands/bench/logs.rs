//! The logs that jobs ask for, as files where the command runs.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use blockyard_workload::fio::{Fio, Job, LogFile};

use crate::failure::Failure;
use crate::output::{InUse, Output, say};

/// Whether all of them can be written, before the jobs run.
pub(super) fn check(jobs: &[Job], force: bool, in_use: &InUse) -> Result<(), Failure> {
    let logs = Fio::logs_of(jobs);
    // A log that is appended to a file overwrites nothing.
    let outputs = logs.iter().map(|log| Output::new(Path::new(&log.name), force || log.appends));
    Ok(outputs.into_iter().try_for_each(|output| output.check(in_use))?)
}

/// Writes all of them. With several runs the last one's stay.
pub(super) fn write(logs: &[LogFile], in_use: &InUse) -> Result<(), Failure> {
    for LogFile { name, appends, text, lost } in logs {
        if *lost > 0 {
            say(&format!("note: {name} is full, and lacks {lost} lines; take log_avg_msec=1000"));
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
