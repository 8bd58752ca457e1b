//! Text for standard output, whose reader may leave early (`blockyard info … | head -1`), and lines
//! on standard error.

use std::io::{self, ErrorKind, Write};

pub(crate) use blockyard::output::{InUse, Output};

use crate::failure::{Failure, printable};

/// Writes `text`. A reader that has gone away has seen enough: that is no error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    print_on(text).map(|_| ())
}

/// As [`print`], for what goes on without end: whether somebody still reads.
pub(crate) fn print_on(text: &str) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::failed(format!("cannot write to standard output: {error}"))),
    }
}

/// A line on standard error. It is one line, and shows control characters: the name of a file in it
/// may hold any.
pub(crate) fn say(text: &str) {
    // Standard error may be closed; a message that nobody can read is no reason to stop.
    let _ = writeln!(io::stderr(), "{}", printable(text));
}
