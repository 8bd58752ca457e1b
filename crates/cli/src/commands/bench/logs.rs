//! The logs that jobs ask for, as files where the command runs, as fio leaves them: one of an
//! earlier run is written over.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use blockyard_load::fio::{Job, LogFile};

use crate::failure::Failure;
use crate::output::{check_folder, say};

/// Whether their folders take files, before the jobs run.
pub(super) fn check(jobs: &[Job]) -> Result<(), Failure> {
    let prefixes = jobs.iter().flat_map(|job| job.logs.prefixes());
    prefixes.map(Path::new).try_for_each(check_folder)
}

/// Writes all of them.
pub(super) fn write(logs: &[LogFile]) -> Result<(), Failure> {
    for LogFile { name, appends, text, lost } in logs {
        if *lost > 0 {
            say(&format!("note: {name} is full, and lacks {lost} lines; take log_avg_msec=1000"));
        }
        let written = put(name, *appends, text);
        written
            .map_err(|error| Failure::failed(format!("cannot write the log {name}: {error}")))?;
    }
    Ok(())
}

fn put(name: &str, appends: bool, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.create(true).write(true).append(appends).truncate(!appends);
    options.open(name)?.write_all(text.as_bytes())
}
