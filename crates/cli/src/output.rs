//! Text for standard output, whose reader may leave early (`blockyard info … | head -1`).

use std::io::{self, Write};

use crate::failure::Failure;

/// Writes `text`. A reader that has gone away has seen enough: that is no error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// A line on standard error that is no failure.
pub(crate) fn say(text: &str) {
    // Standard error may be closed; a message that nobody can read is no reason to stop.
    let _ = writeln!(io::stderr(), "{text}");
}
