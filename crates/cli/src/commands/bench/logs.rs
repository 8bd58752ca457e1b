//! The logs that jobs ask for, as files where the command runs, as fio leaves them: one of an
//! earlier run is written over.

use std::fs::OpenOptions;
use std::io::{self, Write};

use blockyard_load::fio::LogFile;

use crate::failure::Failure;
use crate::output::say;

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
